"""The allocator's settings, seen in a process of its own."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_jax import allocator

PROGRAM = """
import resource, sys
from pathlib import Path
import numpy as np
from transformer_jax import allocator
for name in sys.argv[1:]:
  getattr(allocator, name)()
for _ in range(20):
  array = np.ones(10_000_000)  # 80 MB, freed when the next one is there
huge = [line for line in Path("/proc/self/smaps_rollup").read_text().splitlines() if line.startswith("AnonHugePages")]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt, huge[0].split()[1])
"""
THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def page_faults_and_huge_kilobytes(*settings):
  output = subprocess.run([sys.executable, "-c", PROGRAM, *settings], capture_output=True, text=True, check=True).stdout
  return map(int, output.split())


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc")
def test_freed_memory_is_used_again():
  """Twenty arrays of 80 MB, one after the other, take new pages for the first ones only."""
  kept, _ = page_faults_and_huge_kilobytes("keep_freed_memory")
  returned, _ = page_faults_and_huge_kilobytes()
  assert kept < returned / 3


@pytest.mark.skipif(
  platform.libc_ver()[0] != "glibc" or not THP.exists() or "[madvise]" not in THP.read_text(),
  reason="huge pages are not there for whoever asks",
)
def test_large_arrays_lie_in_huge_pages():
  _, huge = page_faults_and_huge_kilobytes("keep_freed_memory", "use_huge_pages")
  assert huge > 50_000


def test_without_glibc_nothing_is_set(monkeypatch):
  monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
  monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: pytest.fail("no library is to be touched"))
  allocator.keep_freed_memory()
  allocator.use_huge_pages()
