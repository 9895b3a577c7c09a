"""Keeping memory that a step gives back, since the next step asks for it again."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # malloc.h of glibc
TOP_PAD_BYTES = 64 << 20


def keep_freed_memory() -> bool:
    """Make glibc's malloc reuse large blocks instead of returning them to the system; whether it could.

    Otherwise every large tensor is mapped and unmapped in each step, and its
    pages are faulted in and zeroed anew: a third of the time of a step on a
    CPU. The price is that the peak stays reserved. Call it before the first
    large allocation. Elsewhere than on glibc nothing is done.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    options = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_TOP_PAD, TOP_PAD_BYTES))
    return all(libc.mallopt(option, value) == 1 for option, value in options)
