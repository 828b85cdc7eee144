"""The allocator's setting, seen in the page faults of a process of its own."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from transformer_jax.allocator import keep_freed_memory
if sys.argv[1] == "keep":
  keep_freed_memory()
for _ in range(20):
  np.ones(10_000_000)  # 80 MB, freed at once
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_freed_memory_is_used_again():
  """Twenty arrays of 80 MB, one after the other, take new pages for the first one only."""

  def page_faults(mode):
    return int(subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True).stdout)

  kept, returned = page_faults("keep"), page_faults("return")
  assert kept < returned / 3
