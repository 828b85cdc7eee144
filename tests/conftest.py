"""Settings for all tests: the CPU, as four devices, so that one process can compare one device with several.

Most of the time of a test goes into compiling, so XLA is asked not to optimise. Where the rounding of programs as users have them
is what is tested, the test asks for them; and where unoptimised programs are wrong, for `helpers.compiling.RIGHT`.
What is left is LLVM's, which is quicker with a program as one module, and without the emitters of fusions.
"""

import gc
import os
from importlib.metadata import version

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

xla_flags = ["--xla_cpu_parallel_codegen_split_count=1"]
if version("jaxlib").startswith("0.10."):  # later ones know no such flag, and end the process over it
  xla_flags.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(xla_flags))

# Tracing makes so many small objects, and keeps them, that looking through them for cycles takes an eighth of the time.
gc.set_threshold(200_000, 20, 100)
