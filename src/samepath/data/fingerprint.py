"""Is it still the same data? A fingerprint of a file or folder that is quick at any size.

Covered: the names and sizes of all files, and the first and last megabyte of each. A change in the
middle of a larger file that keeps its size goes unnoticed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from samepath.errors import UserError
from samepath.files import open_plain, size_of

_EDGE = 1 << 20


def fingerprint(path: Path) -> str:
    """SHA-256 as text. A folder may have moved; what is in it may not have."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    whole = hashlib.sha256()
    for file in files:
        name = "" if file == path else file.relative_to(path).as_posix()
        try:
            with open_plain(file) as content:
                size = size_of(content)
                first = content.read(_EDGE)
                content.seek(max(len(first), size - _EDGE))
                parts = hashlib.sha256(first + content.read(_EDGE)).hexdigest()
        except OSError as error:
            raise UserError(
                f"{file} cannot be read ({error.strerror}); move it out of the data, or let it be "
                "read"
            ) from None
        whole.update(f"{name}\0{size}\0{parts}\n".encode())
    return whole.hexdigest()
