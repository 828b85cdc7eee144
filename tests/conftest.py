"""Settings for all tests: the CPU, as four devices, so that one process can compare one device with several.

Most of the time of a test goes into compiling, so XLA is asked to optimise little. (Not to optimise at all, level 0, gives NaN
in right programs: seen with JAX 0.10.2 on a CPU.) Where the rounding of programs as users have them is what is tested, the
test asks for them.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1 --xla_llvm_disable_expensive_passes=true")
os.environ.setdefault("MPLBACKEND", "Agg")
