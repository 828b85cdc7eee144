"""A setting of glibc's memory allocator for XLA on a CPU."""

import ctypes
import platform

# mallopt's parameters, from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> None:
  """Makes glibc keep the memory that is freed instead of handing it back to the system (elsewhere: does nothing).

  XLA takes one large block for the temporary arrays of each step and frees it after. glibc maps such a block anew every
  time, and the system fills its pages with zeros: 20,000 page faults and a sixth of the time of a step of the quickstart.
  """
  if platform.libc_ver()[0] != "glibc":
    return
  mallopt = ctypes.CDLL(None).mallopt
  mallopt(_M_MMAP_MAX, 0)  # no block of its own for a large array …
  mallopt(_M_ARENA_MAX, 1)  # … so that all come from the one heap that can grow without a limit
  mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
