"""Settings for all tests: the CPU, as four devices, so that one process can compare one device with several.

Most of the time of a test goes into compiling, so XLA is asked not to optimise. Where the rounding of programs as users have them
is what is tested, the test asks for them; and where unoptimised programs are wrong, for `helpers.compiling.RIGHT`.
"""

import gc
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

# Tracing makes so many small objects, and keeps them, that looking through them for cycles takes an eighth of the time.
gc.set_threshold(200_000, 20, 100)
