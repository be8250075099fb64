"""CIFAR's python batches, read without trusting them.

In: the bytes of a pickle. Out: what it holds, arrays as `PickledArray`. Guaranteed: nothing that a
pickle names is imported or called. Of all names only the three by which numpy writes an array are
known, and they stand for classes here that hold what they are given.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samepath.errors import UserError
from samepath.files import brief


class PickledArray:
    """What a pickle says of an array; numpy has not seen it."""

    state: Any = None

    def __init__(self, *_: Any) -> None:
        """Made of a class, an empty shape and a type code, all to be replaced by the state."""

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def as_bytes(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """The array, if it is one of bytes of this shape, row by row."""
        match self.state:
            case (_, found, _PickledType(code=b"u1" | "u1"), False, bytes(content)):
                if found == shape and len(content) == np.prod(shape):
                    return np.frombuffer(content, np.uint8).reshape(shape)
                raise ValueError(f"an array of {found} in {len(content):,} bytes, not {shape}")
        raise ValueError("not an array of bytes")


class _PickledType:
    """A numpy dtype: u1 for bytes."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment: one byte has neither."""


_KNOWN = {
    ("numpy.core.multiarray", "_reconstruct"): PickledArray,  # before numpy 2
    ("numpy._core.multiarray", "_reconstruct"): PickledArray,
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): _PickledType,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no such file needs")
        return _KNOWN[module, name]


def _check_claims(content: bytes) -> None:
    """Raise where a few bytes would make pickle take gigabytes: the number under which something
    is remembered is the length of a table, and a text's length is believed before it is read."""
    for code, argument, _ in pickletools.genops(content):  # itself holds lengths against the rest
        if code.name.endswith("PUT") and int(argument or 0) > len(content):
            raise pickle.UnpicklingError("it numbers what it remembers beyond its length")


def unpickle(content: bytes, path: object) -> Any:
    """What a batch file holds. Text of Python 2 comes as bytes."""
    try:
        _check_claims(content)
        return _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # whatever bytes can make pickle raise: it is not a batch
        what = brief(error) or type(error).__name__
        raise UserError(
            f"{path} is not a batch of CIFAR-10 and was not loaded: {what}; "
            "get it anew with `samepath download cifar10`"
        ) from error
