"""Memory that was used is kept for the next step.

A step frees what it allocated and asks for as much again. glibc may give large pieces back to the
system every time, and the system hands out zeroed pages one fault at a time: a quarter of a plain
loop's step with DeepDensity (`benchmarks/nodules_step.py`). On GPUs torch keeps memory by itself.
"""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST_MMAP_THRESHOLD = 32 << 20
"""What glibc takes at most; larger pieces still come from the system."""

_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


def keep_freed_memory() -> bool:
    """Tell glibc not to give memory back; False where that is not ours to say.

    Left alone: other systems, and processes for which settings or another allocator were chosen.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _SETTINGS):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    keeps = mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    return bool(keeps and mallopt(_TRIM_THRESHOLD, 2**31 - 1))
