"""Files: written whole or not at all, locked by one process, read without being trusted.

In: a path. Out: a file that is replaced as a whole, a lock, bytes, JSON, tensors, a hash.
Guaranteed: a reader of a file that was written here finds the old content or the new, never half
of one; one process at a time holds a lock, whatever machine it is on, if the file system has locks;
only a plain file is opened for reading (a pipe or a device is an error, not a wait); memory is
taken only for what a file really holds and the machine has; what cannot be read is `OSError` or
`ValueError` with one line, whatever the bytes. Every other module of samepath writes, locks and
hashes files through this one.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import resource
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields, is_dataclass
from io import BufferedReader
from pathlib import Path
from types import UnionType
from typing import IO, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from samepath.errors import UserError
from samepath.faults import fault_point

PART = ".part"
"""Ends the name of what is being written."""
LOCK = ".lock"
"""The file by which a folder is locked."""
LOCK_SECONDS = 5.0
"""How long `lock_folder` waits for a process that is just ending."""
MOST_JSON = 256 << 20
"""Bytes of a JSON file: a cube folder of a million names has 100 million."""
MOST_SHOWN = 200
"""Characters of another program's text in a message of ours."""
UNPACKED_FREELY = 1 << 30
"""Bytes that any packed file may become: an empty scan of 512 x 512 x 1000 is packed 1000 to 1."""
UNPACKED_TIMES = 100
"""Beyond `UNPACKED_FREELY`: so many times what is on disk."""

Value = TypeVar("Value")


# ---- writing


@contextmanager
def replaced(path: Path, *, aside: Path | None = None, sync: bool = True) -> Iterator[Path]:
    """A place to write a file to, which then replaces `path` as a whole; where that fails, what was
    written is removed and `path` is as it was. With `sync`, the file survives a power cut."""
    aside = aside or path.with_name(path.name + PART)
    try:
        yield aside
        if sync:
            _sync(aside)
        aside.replace(path)
    except BaseException:
        with suppress(OSError):  # the error that is on its way says more
            aside.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


def write_atomically(
    path: Path, content: str | bytes, *, sync: bool = True, private: bool = False
) -> None:
    """Replace a small file: the old or the new content, never half of one. A `private` one can be
    read by this user only."""
    data = content.encode() if isinstance(content, str) else content
    fault_point("write", path=path, data=data)
    own_name = path.with_name(f".{path.name}.{secrets.token_hex(4)}") if private else None
    with replaced(path, aside=own_name, sync=sync) as aside:
        how, mode = (os.O_EXCL, 0o600) if private else (os.O_TRUNC, 0o666)
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | how, mode), "wb") as file:
            file.write(data)


@contextmanager
def folder_aside(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """An empty folder beside `path`, to be filled and renamed to it; what is left of it is removed.
    Where other processes may be writing the same one (`shared`), each has one of its own name."""
    own_name = f".{path.name}.{secrets.token_hex(16)}{PART}"
    aside = path.with_name(own_name if shared else path.name + PART)
    shutil.rmtree(aside, ignore_errors=True)  # of a process that was killed
    try:
        aside.mkdir(parents=True)
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def make_folder(folder: Path, *, is_new: bool = False) -> None:
    """Make the folder that --out names, or one in it. FileExistsError for one that is not new."""
    try:
        folder.mkdir(parents=True, exist_ok=not is_new)
    except OSError as error:
        if is_new and isinstance(error, FileExistsError):
            raise
        raise UserError(
            f"--out {folder} cannot be made ({error.strerror}); give another folder"
        ) from None


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    fault_point("rename", folder=folder)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- locks


def lock_folder(folder: Path, busy: str) -> int:
    """Lock a folder until the result is closed or this process ends; an error if another process
    has locked it and keeps it."""
    until = time.monotonic() + LOCK_SECONDS
    while (lock := take_lock(folder)) is None:
        if time.monotonic() > until:
            raise UserError(f"{busy} by another process; wait for it, or stop it")
        time.sleep(0.05)
    return lock


def take_lock(folder: Path) -> int | None:
    """Lock a folder, if no other process has: the lock's descriptor, or None."""
    descriptor = _open_lock(folder)
    if try_lock(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def try_lock(file: int | IO[Any]) -> bool:
    """Lock an open file until it is closed; False if another process has. A file system without
    locks refuses no process."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _open_lock(folder: Path) -> int:
    """What is locked is a file: of a lock on a folder network file systems tell no other machine,
    and of an exclusive one only if the file can be written to. Where none can be made (a folder
    that is only looked at, a full disk), it is the folder."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    for how in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):  # a disk may have become read-only
        with suppress(OSError):
            return os.open(folder / LOCK, how | flags, 0o666)
    return os.open(folder, os.O_RDONLY | flags)


def is_locked(folder: Path) -> bool:
    """Whether a process is writing there. This asks with a shared lock and lets go of it at once:
    others who ask do not see it, and a process that begins in the same instant tries again."""
    for place in (folder / LOCK, folder):
        try:
            descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass
        finally:
            os.close(descriptor)
    return False


def is_empty(folder: Path) -> bool:
    """Whether a folder holds nothing but its lock."""
    return all(path.name == LOCK for path in folder.iterdir())


# ---- reading


def open_plain(path: Path, *, follow: bool = True) -> BufferedReader:
    """Open a regular file to read it; OSError for anything else, and for a link unless it may be
    followed. Nothing is waited for."""
    how = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, how)
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


def read_through(path: Path) -> None:
    """Read a file that is then mapped into memory: a bad sector is an OSError here, and the end of
    the process there."""
    chunk = bytearray(2**20)
    with open_plain(path) as file:
        check_memory(size_of(file))
        while file.readinto(chunk):
            pass


def content_hash(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parse_json(content: bytes | str) -> Any:
    """A JSON value; ValueError for all that is none, however deep."""
    try:
        found = json.loads(content)
        text = content if isinstance(content, str) else content.decode("latin-1")
        if "\\ud" in text.lower():  # perhaps half a character, which cannot be printed or written
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path, most: int = MOST_JSON) -> Any:
    """What a JSON file says."""
    return parse_json(read_whole(path, most))


def read_object(path: Path, most: int = MOST_JSON) -> dict[str, Any]:
    """What a JSON file says that must hold an object."""
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
    """Words of a file or another program on one line, not too many."""
    known = words.strerror if isinstance(words, OSError) else None
    text = " ".join(str(known or words).split())
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 4] + " ..."


def _in_words(num_bytes: int) -> str:
    for name, size in (("PB", 10**15), ("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if num_bytes >= size:
            return f"{num_bytes / size:,.1f} {name}" if num_bytes < 10**21 else "no end of bytes"
    return f"{num_bytes:,} bytes"


# ---- JSON and dataclasses

NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""How files of ours spell numbers that JSON does not have."""


def read_as(kind: Any, value: Any) -> Any:
    """A value of JSON as the type a field is annotated with; ValueError where it is of another.
    Fields with a default may be missing."""
    arguments = get_args(kind)
    if get_origin(kind) in (Union, UnionType):  # "or None" is the only one
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return None if value is None else read_as(inner, value)
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(value, Mapping):
        hints = get_type_hints(kind)
        there = [f.name for f in fields(kind) if f.name in value or f.default is MISSING]
        return kind(**{name: read_as(hints[name], value[name]) for name in there})
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(read_as(arguments[0], item) for item in value)
    if get_origin(kind) is dict and isinstance(value, Mapping):
        return {name: read_as(arguments[1], item) for name, item in value.items()}
    if kind is float and (type(value) in (int, float) or value in NOT_FINITE):
        return NOT_FINITE.get(value, value)
    if type(value) is kind or (get_origin(kind) is Literal and value in arguments):
        return value
    raise ValueError(f"{brief(repr(value))} where {getattr(kind, '__name__', kind)} is due")


def toml(values: Mapping[str, Any]) -> str:
    """A line of TOML for each value, which is text, a number, a truth or a list of these."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


def finite(value: Any) -> Any:
    """Write NaN and infinities in a value as text: JSON has no words for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return value
