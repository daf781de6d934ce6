"""Tells glibc's allocator to keep freed memory, which training on a CPU asks for again in the next step."""

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
"""Parameters of mallopt(3), from glibc's malloc.h."""

_GIB = 1 << 30


def keep_freed_memory() -> None:
    """Serve all allocations from one heap that is never given back; does nothing where there is no glibc.

    Otherwise each tensor of some megabytes is mapped, its pages faulted in and zeroed, and unmapped again.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for parameter, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2 * _GIB - 1), (_TOP_PAD, _GIB // 16), (_ARENA_MAX, 1)):
        mallopt(parameter, value)
