"""Files that somebody else may have written: opened without waiting, read without trusting.

In: a path, and what its content claims. Out: an open file, text, JSON, tensors. Guaranteed: only a
plain file is opened (a pipe or a device is an error, not a wait); memory is taken only for what the
file really holds and the machine has; what cannot be had is `OSError` or `ValueError` with one
line, whatever the bytes.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, TypeVar

MOST_JSON = 256 << 20
"""Bytes of a JSON file: a cube folder of a million names has 100 million."""
MOST_SHOWN = 200
"""Characters of somebody else's text in a message of ours."""
UNPACKED_FREELY = 1 << 30
"""Bytes that any packed file may become: an empty scan of 512 x 512 x 1000 is packed 1000 to 1."""
UNPACKED_TIMES = 100
"""Beyond that: so many times what is on disk."""

Value = TypeVar("Value")


def open_plain(path: Path) -> BufferedReader:
    """A regular file, to be read; OSError for anything else. Nothing is waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no plain file", str(path))
    return os.fdopen(descriptor, "rb")


def size_of(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def read_whole(path: Path, most: int) -> bytes:
    """All bytes of a small file."""
    with open_plain(path) as file:
        content = file.read(min(size_of(file), most) + 1)
        if len(content) > most:
            raise ValueError(f"it has more than {most:,} bytes")
        return content


def parse_json(content: bytes | str) -> Any:
    """A JSON value; ValueError for all that is none, however deep."""
    try:
        found = json.loads(content)
        text = content if isinstance(content, str) else content.decode("latin-1")
        if "\\ud" in text.lower():  # perhaps half a character, which nobody can print or write
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path, most: int = MOST_JSON) -> Any:
    """What a JSON file says."""
    return parse_json(read_whole(path, most))


def read_object(path: Path, most: int = MOST_JSON) -> dict[str, Any]:
    """The same of a file that must hold an object."""
    content = read_json(path, most)
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")
    return content


@contextmanager
def opened_tensors(path: Path, framework: str) -> Iterator[Any]:
    """A safetensors file whose header agrees with its length, and which fits into memory.

    safetensors maps the file and takes no memory for what the header claims, but it waits for
    pipes, and what it raises is not always its own error.
    """
    from safetensors import SafetensorError, safe_open

    with open_plain(path) as file:
        check_memory(size_of(file))
    try:
        with safe_open(path, framework=framework) as content:
            yield content
    except (SafetensorError, TypeError, AttributeError, KeyError, RuntimeError) as error:
        raise ValueError(brief(error)) from None


def read_tensors(path: Path, framework: str) -> tuple[dict[str, Any], dict[str, str]]:
    """All tensors of a safetensors file, and what is written beside them."""
    with opened_tensors(path, framework) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def check_memory(num_bytes: int) -> None:
    """Raise unless the machine has so much memory."""
    if num_bytes > (there := memory_bytes()):
        raise ValueError(f"it needs {_in_words(num_bytes)} of memory; there are {_in_words(there)}")


def check_unpacked(num_bytes: int, packed_bytes: int) -> None:
    """Raise unless so many bytes may come out of a packed file."""
    most = max(UNPACKED_FREELY, UNPACKED_TIMES * packed_bytes)
    if num_bytes > most:
        raise ValueError(
            f"it says that {packed_bytes:,} bytes on disk become {_in_words(num_bytes)}; more than "
            f"{UNPACKED_TIMES} times as much must be stored unpacked"
        )
    check_memory(num_bytes)


def check_text(values: Sequence[str]) -> None:
    """Raise where one long text among many would make an array of them far larger than they are:
    in it, all are as long as the longest."""
    check_unpacked(4 * max(map(len, values), default=0) * len(values), sum(map(len, values)))


def memory_bytes() -> int:
    """What this process may have at most: of the machine, its container and its limits."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    allowed = resource.getrlimit(resource.RLIMIT_AS)[0]
    if allowed != resource.RLIM_INFINITY:
        found.append(allowed)
    with suppress(OSError, ValueError):  # not in a container, or one without a limit ("max")
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(found)


def guarded(read: Callable[[], Value]) -> Value:
    """What a parser of another library makes of bytes; ValueError for whatever they made it raise.

    Only for parsers of bytes, which have no other reason to fail.
    """
    try:
        return read()
    except (OSError, ValueError):
        raise
    except Exception as error:  # numpy's header alone raises nine kinds
        raise ValueError(brief(error) or type(error).__name__) from error


def brief(words: object) -> str:
    """Somebody else's words on one line, not too many."""
    known = words.strerror if isinstance(words, OSError) else None
    text = " ".join(str(known or words).split())
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 4] + " ..."


def _in_words(num_bytes: int) -> str:
    for name, size in (("PB", 10**15), ("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if num_bytes >= size:
            return f"{num_bytes / size:,.1f} {name}" if num_bytes < 10**21 else "no end of bytes"
    return f"{num_bytes:,} bytes"
