"""Tensors and arrays that lie in files, which may be larger than memory.

In: a tensor or array. Out: whether it is mapped from a file; advice to the system before rows of it
are read. Guaranteed: advice changes how fast rows come, never what is in them.

Without advice the system reads ahead of every row as if the next ones were to follow: megabytes for
a row of kilobytes, of data that is taken in random order.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Column: TypeAlias = Tensor | NDArray[Any]
"""One row per example."""


def is_mapped(column: Column) -> bool:
    """Whether it lies in a file."""
    if isinstance(column, Tensor):
        return column.untyped_storage().filename is not None
    base: Any = column
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    return isinstance(base, np.memmap)


def expect_random_rows(column: Tensor) -> None:
    """Rows of this mapped tensor will be read in any order: nothing else with them."""
    if sys.platform == "linux" and column.numel():
        last = sum(s * (n - 1) for s, n in zip(column.stride(), column.shape, strict=True)) + 1
        _advise(column.data_ptr(), last * column.itemsize, mmap.MADV_RANDOM)


def expect_rows(column: Tensor, rows: Sequence[int]) -> None:
    """These rows will be read next: fetch them all at once, each as a whole."""
    row_bytes = column[:1].numel() * column.itemsize
    if sys.platform == "linux" and row_bytes and column[:1].is_contiguous():
        stride = column.stride(0) * column.itemsize
        for row in rows:
            _advise(column.data_ptr() + row * stride, row_bytes, mmap.MADV_WILLNEED)


def _advise(address: int, num_bytes: int, advice: int) -> None:
    begin = address - address % mmap.PAGESIZE
    # What it answers does not matter: without advice rows come too, only later
    ctypes.CDLL(None).madvise(
        ctypes.c_void_p(begin), ctypes.c_size_t(address + num_bytes - begin), advice
    )
