"""Settings for all tests: the CPU, as four devices, so that one process can compare one device with several.

Most of the time of a test goes into compiling, so XLA is asked not to optimise. Where the rounding of programs as users have them
is what is tested, the test asks for them; and where unoptimised programs are wrong, for `helpers.compiling.RIGHT`.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
