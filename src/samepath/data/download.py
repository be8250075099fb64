"""Archives from the network: fetched, checked, unpacked; and where data lies.

In: an `Archive` (address, size, MD5) and a folder. Out: the archive's folder in it. Guaranteed: the
folder is there complete or not at all; what does not have the published size and MD5 is removed; a
download that was cut goes on where it stopped, in this call or the next; unpacking writes regular
files inside the folder and nothing else.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import http.client
import os
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import urlsplit

from samepath.errors import SamepathError, UserError
from samepath.files import PART, brief, folder_aside, size_of, try_lock

Progress = Callable[[int, int], None]
"""progress(bytes that are there, bytes in all)"""

_ATTEMPTS = 4
"""Attempts in a row without a new byte that end a download."""
_TIMEOUT_SECONDS = 30.0
_CHUNK = 1 << 18
_MOST_MEMBERS = 1000
_NO_ARCHIVE = (
    tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError, OverflowError
)  # fmt: skip
_PASSING = {408, 429, 500, 502, 503, 504}
"""Answers of a server that may be better in a while."""
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""Errors of the disk that is written to, not of the network."""


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A .tar.gz of one folder."""

    url: str
    num_bytes: int
    md5: str
    folder: str
    """The name of the one folder in the archive."""
    files: tuple[str, ...]
    """Files that the folder must hold."""
    most_unpacked: int = 1 << 30
    """Bytes that its files may have in all."""


ARCHIVES = {
    "cifar10": Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        num_bytes=170_052_171,
        md5="c32a1d4ab5d03f1284b67883e8d87530",
        folder="cifar-10-batches-bin",
        files=(*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"),
    )
}


class DownloadFailed(SamepathError):
    """The network or the server did not give what was asked for."""


def download(
    archive: Archive,
    to: Path,
    progress: Progress = lambda done, total: None,
    *,
    wait_seconds: float = 0.5,
) -> Path:
    """Fetch, check and unpack; the folder. One that is there already is left as it is.

    The first wait between two attempts is `wait_seconds`, each later one twice as long.
    """
    if urlsplit(archive.url).scheme not in ("http", "https"):
        raise UserError(
            f"--url {archive.url}: give an address that begins with https:// or http://"
        )
    folder = to / archive.folder
    if folder.is_dir():
        missing = [name for name in archive.files if not (folder / name).is_file()]
        if missing:
            raise UserError(
                f"{folder} is there already, without {', '.join(missing)}; give another folder "
                "(--to DIR), or move this one away"
            )
        return folder
    part = to / f"{archive.folder}.tar.gz{PART}"
    try:
        to.mkdir(parents=True, exist_ok=True)
        with part.open("a+b", buffering=0) as file:
            if not try_lock(file):
                raise UserError(f"{part} is being downloaded by another process; wait for it")
            _fetch(archive, file, progress, wait_seconds)
            _check(archive, file)
            _unpack(archive, file, folder)
            part.unlink()
    except OSError as error:
        raise UserError(
            f"{to} cannot be written to ({error.strerror or error}); give another folder: --to DIR"
        ) from error
    return folder


def _fetch(archive: Archive, file: IO[bytes], progress: Progress, wait_seconds: float) -> None:
    """Ask until as many bytes are there as there should be."""
    most, failed = size_of(file), 0
    while size_of(file) < archive.num_bytes:
        why = _receive(archive, file, progress)
        failed = 0 if size_of(file) > most else failed + 1
        most = max(most, size_of(file))
        if failed == _ATTEMPTS:
            raise DownloadFailed(
                f"{archive.url}: {why}; try again later (what is there is kept), or fetch and "
                f"unpack it elsewhere and give the folder with --data"
            )
        if failed:
            time.sleep(wait_seconds * 2 ** (failed - 1))


def _receive(archive: Archive, file: IO[bytes], progress: Progress) -> str:
    """Append what the server sends, from where the file ends; why no more came."""
    start = size_of(file)
    request = urllib.request.Request(archive.url)
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
            # "bytes 100-199/200", or, of a server that does not know ranges, the whole file
            begin, _, announced = answer.headers.get("Content-Range", "").partition("/")
            if not begin.startswith(f"bytes {start}-"):
                file.truncate(0)
                announced = answer.headers.get("Content-Length", "")
            if announced.isdecimal() and int(announced) != archive.num_bytes:
                raise DownloadFailed(
                    f"{archive.url} is a file of {int(announced):,} bytes, not of "
                    f"{archive.num_bytes:,}: another file; give the address of a mirror with --url"
                )
            while size_of(file) <= archive.num_bytes and (chunk := answer.read1(_CHUNK)):
                file.write(chunk)
                progress(size_of(file), archive.num_bytes)
    except urllib.error.HTTPError as error:
        error.close()
        why = f"the server answers {error.code} {error.reason}"
        if error.code in _PASSING:
            return why
        raise DownloadFailed(
            f"{archive.url}: {why}; give the address of a mirror with --url"
        ) from error
    except urllib.error.URLError as error:
        return f"no connection ({error.reason})"
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, OSError) and error.errno in _FULL:
            raise
        return f"the connection was cut ({error or type(error).__name__})"
    return f"the connection ended after {size_of(file):,} of {archive.num_bytes:,} bytes"


def _check(archive: Archive, file: FileIO) -> None:
    """Size and MD5 are those published, or the file is emptied and removed."""
    file.seek(0)
    md5 = hashlib.file_digest(file, "md5").hexdigest()  # as published: against damage, not attack
    size = size_of(file)
    if (size, md5) != (archive.num_bytes, archive.md5):
        file.truncate(0)
        Path(file.name).unlink()
        raise DownloadFailed(
            f"{archive.url} came as {size:,} bytes with the MD5 {md5}, not "
            f"{archive.num_bytes:,} with {archive.md5}; it was removed: try again, or another --url"
        )


def _unpack(archive: Archive, file: IO[bytes], folder: Path) -> None:
    """Unpack beside the folder, then rename."""
    file.seek(0)
    with folder_aside(folder, shared=True) as aside:
        try:
            with tarfile.open(fileobj=file, mode="r:gz") as packed:
                packed.extractall(aside, _checked_members(archive, packed), filter="data")
        except _NO_ARCHIVE as error:
            raise DownloadFailed(
                f"{archive.url} is no .tar.gz that can be read: {brief(error)}"
            ) from error
        (aside / archive.folder).rename(folder)


def _checked_members(archive: Archive, packed: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Files and folders, as long as they are what may be unpacked."""
    num_bytes = 0
    for number, member in enumerate(packed):
        path = PurePosixPath(member.name)
        inside = path.parts[:1] == (archive.folder,) and ".." not in path.parts
        if not inside or not (member.isdir() or member.isreg()):
            raise DownloadFailed(
                f"{archive.url} holds {member.name!r}, which is not a file in {archive.folder}/; "
                "nothing was unpacked"
            )
        num_bytes += member.size
        if num_bytes > archive.most_unpacked or number >= _MOST_MEMBERS:
            raise DownloadFailed(
                f"{archive.url} holds more than {archive.most_unpacked:,} bytes or "
                f"{_MOST_MEMBERS} files; nothing was unpacked"
            )
        yield member


# ---- where data lies


def download_folder() -> Path:
    """`$SAMEPATH_DATA`, else `$SAMEPATH_CACHE`, else `~/.cache/samepath`."""
    said = os.environ.get("SAMEPATH_DATA") or os.environ.get("SAMEPATH_CACHE")
    return Path(said or "~/.cache/samepath").expanduser()


def data_folders() -> list[Path]:
    """Folders that may hold data, the first to be looked at first."""
    said = os.environ.get("SAMEPATH_DATA")
    return [*([Path(said).expanduser()] if said else []), Path("../shared/data"), download_folder()]
