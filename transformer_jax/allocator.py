"""Settings of glibc's memory allocator for XLA on a CPU."""

import ctypes
import mmap
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


def use_huge_pages(size: int = 1 << 30) -> None:
  """Asks Linux for pages of 2 MB in the next `size` bytes of glibc's heap (elsewhere: does nothing).

  A processor finds these without a walk through the tables of pages, which takes a twentieth of the time of a step of the
  quickstart. Pages that nobody writes to take no memory. To be called after `keep_freed_memory` and when the data is read:
  libraries that read (pyarrow, protobuf) hand the rest of the heap back. Protobuf does so in a run too, whenever TensorBoard's
  events are written: only a part of the heap then stays in huge pages.
  """
  if platform.libc_ver()[0] != "glibc" or not hasattr(mmap, "MADV_HUGEPAGE"):
    return
  libc = ctypes.CDLL(None)
  libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
  libc.free.argtypes = [ctypes.c_void_p]
  libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
  if block := libc.malloc(size):
    start = -(-block // mmap.PAGESIZE) * mmap.PAGESIZE
    libc.madvise(start, size - mmap.PAGESIZE, mmap.MADV_HUGEPAGE)  # where it is refused, the pages are small
    libc.free(block)  # it stays a part of the heap
