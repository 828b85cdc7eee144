"""Settings for all tests: the CPU, as four devices, so that one process can compare one device with several."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")
os.environ.setdefault("MPLBACKEND", "Agg")
