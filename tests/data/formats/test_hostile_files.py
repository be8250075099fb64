"""Files made to harm: each is refused in one line, before it has taken memory or time.

While they are read there is room for a quarter of a gigabyte and ten seconds, and every machine is
taken for a huge one: it is the file that refutes the claim, not the size of the machine.
"""

from __future__ import annotations

import ast
import copy
import gzip
import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from little_room import little_room
from readers import FEW, READERS
from torch import nn

from samepath import files
from samepath.curation.folder import Pictures
from samepath.curation.folder import read_arrays as read_stage
from samepath.curation.weights import load_from
from samepath.data.content import fingerprint_path
from samepath.data.formats import cifar10
from samepath.data.formats.images import ImageProblem, as_image, read_image, simpleitk
from samepath.data.formats.listing import typed
from samepath.data.formats.numpy_files import read_arrays
from samepath.data.formats.scans import CubeSettings, read_annotations
from samepath.data.formats.volumes import load_volumes, make_cubes
from samepath.data.keep_list import read_keep_list
from samepath.engine.state import checkpoint
from samepath.engine.state.checkpoint import load_weights, weights_of, write_weights
from samepath.engine.state.state import State
from samepath.errors import CheckpointDamaged, UserError
from samepath.recipe import find_recipe

TERA = 10**12
SOURCES = Path(__file__).parents[3] / "src" / "samepath"


@contextmanager
def refused(*words: object, raises: type[Exception] = UserError) -> Iterator[None]:
    """One line that holds these words (of a tuple, one), and little memory and time until then."""
    with pytest.raises(raises) as caught, little_room(1 << 28, 10):
        yield
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 1000
    for word in words:
        assert any(str(w) in said for w in (word if isinstance(word, tuple) else (word,))), said


@pytest.fixture
def huge_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "memory_bytes", lambda: 1 << 60)


pytestmark = pytest.mark.usefixtures("huge_machine")


# ---- anything in the place of any file

DEEP = 100_000
CONTENTS = {
    "nothing": b"",
    "deep lists": b"[" * DEEP,
    "deep objects": b'{"a":' * DEEP,
    "a number without end": b"9" * 5000,
    "no text": b"\xff\xfe\x00\xd8" * 50,
    "a name twice": b'{"format": 1, "format": 2, "config": {}, "config": 3}\n',
    "no number": b'{"format": NaN, "config": {"recipe": Infinity}, "step": NaN}\n',
    "zeros": bytes(4096),
}


PLACED: dict[str, Callable[[Path], Any]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "loop": lambda file: file.symlink_to(file.name),
    "device": lambda file: file.symlink_to("/dev/zero"),
    "forbidden": lambda file: file.touch(mode=0),
    "absent": lambda file: None,
    **dict.fromkeys(CONTENTS, Path.touch),
}


@pytest.mark.parametrize("name", READERS)
def test_no_reader_trusts_its_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar10, "NUM_IMAGES", FEW)
    reader = READERS[name]
    for how, put in PLACED.items():
        if how not in CONTENTS and not reader.opens:
            continue
        folder = tmp_path / how.replace(" ", "-")
        folder.mkdir()
        reader.make(folder)
        file = folder / reader.file
        file.unlink()
        put(file)
        if how in CONTENTS:
            file.write_bytes(reader.seal(folder, CONTENTS[how]))
        with little_room(seconds=10), as_nobody(tmp_path, how == "forbidden"):
            try:
                reader.read(folder)
                continue  # some files may be absent or empty
            except reader.raises as error:
                said = str(error)
        assert 0 < len(said) < 2000, how
        assert "\n" not in said, how


@contextmanager
def as_nobody(folder: Path, needed: bool) -> Iterator[None]:
    """root may read everything."""
    if not needed or os.geteuid() != 0:
        yield
        return
    for path in (*reversed(folder.parents), *folder.rglob("*"), folder):
        if path.is_dir() and path.owner() == "root" and "pytest" in str(path):
            path.chmod(0o777)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


# ---- scans

ANNOTATIONS = "seriesuid,coordX,coordY,coordZ,diameter_mm\na,{x},1,1,5\n"
HEADER = """ObjectType = Image
NDims = 3
DimSize = {size}
ElementSpacing = {spacing}
ElementType = MET_SHORT
{more}ElementDataFile = {data}
"""


def write_scan(folder: Path, content: bytes = bytes(240), **changes: str) -> Path:
    """A scan of zeros with a nodule in it."""
    given = {"size": "4 5 6", "spacing": "1 1 1", "more": "", "data": "a.raw"} | changes
    (folder / "annotations.csv").write_text(ANNOTATIONS.format(x=1))
    (folder / "a.mhd").write_text(HEADER.format(**given))
    (folder / "a.raw").write_bytes(content)
    return folder / "a.mhd"


PACKED = "CompressedData = True\n"


def test_what_these_tests_change_is_read(tmp_path: Path) -> None:
    assert read_image(write_scan(tmp_path)).GetSize() == (4, 5, 6)
    packed = write_scan(tmp_path, zlib.compress(bytes(240)), more=PACKED)
    assert read_image(packed).GetSize() == (4, 5, 6)
    values = np.arange(120, dtype=">i2").reshape(6, 5, 4)
    for more in ("BinaryDataByteOrderMSB = True\n", "ElementByteOrderMSB = 1\n"):
        found = read_image(write_scan(tmp_path, values.tobytes(), more=more))
        np.testing.assert_array_equal(simpleitk().GetArrayFromImage(found), values)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"])
def test_what_itk_writes_is_read_as_itk_reads_it(
    kind: str, is_packed: bool, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    turned, _ = np.linalg.qr(random.normal(size=(3, 3)))
    image = as_image(random.integers(0, 99, (3, 4, 5)).astype(kind))
    image.SetSpacing([0.7, 1.5, 2.25])
    image.SetOrigin([-10.5, 20.0, 1 / 3])
    image.SetDirection((turned * np.sign(np.linalg.det(turned))).ravel().tolist())
    file = tmp_path / "a.mhd"
    simpleitk().WriteImage(image, str(file), useCompression=is_packed)
    ours, theirs = read_image(file), simpleitk().ReadImage(str(file))
    for name in ("GetPixelID", "GetSize", "GetSpacing", "GetOrigin", "GetDirection"):
        assert getattr(ours, name)() == getattr(theirs, name)(), name
    arrays = [simpleitk().GetArrayFromImage(each) for each in (ours, theirs)]
    np.testing.assert_array_equal(*arrays)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"size": "10000 10000 10000"}, "shorter than its header says"),
        ({"size": "10000 10000 10000", "more": PACKED}, "become 2.0 TB"),
        ({"size": "4 5 7", "more": PACKED, "content": zlib.compress(bytes(240))}, "shorter"),
        ({"size": "4 5 5", "more": PACKED, "content": zlib.compress(bytes(240))}, "longer"),
        ({"more": PACKED, "content": bytes(240)}, "cannot be read (Error -3 while decompressing"),
        ({"more": PACKED, "content": zlib.compress(bytes(240))[:-6]}, "shorter"),
        ({"size": "-4 5 6"}, "DimSize"),
        ({"size": "4.5 5 6"}, "DimSize"),
        ({"size": "nan 5 6"}, "DimSize"),
        ({"size": "4 5 " + "9" * 400}, "DimSize"),
        ({"spacing": "1 0 1"}, "which cannot be"),
        ({"spacing": "1 -1 1"}, "which cannot be"),
        ({"spacing": "1 nan 1"}, "ElementSpacing"),
        ({"more": "Offset = 1e11 0 0\n"}, "not a number"),
        ({"more": "NDims = 1000\n"}, "gives NDims twice"),
        ({"more": "HeaderSize = 99999999999\n"}, "shorter"),
        ({"more": "TransformMatrix = 0 0 0 0 0 0 0 0 0\n"}, "SimpleITK"),
        ({"more": "ElementNumberOfChannels = 1000000\n"}, "numbers per voxel"),
        ({"data": "/dev/zero"}, "absent or cannot be opened"),
        ({"data": "."}, "absent or cannot be opened"),
        ({"data": "pipe"}, "absent or cannot be opened"),
        ({"data": "LIST"}, "several data files"),
        ({"data": "a%03d.raw 1 999999999 1"}, "several data files"),
    ],
)
def test_hostile_scans(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    scan = write_scan(tmp_path, **changes)
    with refused(said, raises=ImageProblem):
        read_image(scan)
    with refused("no cube could be made of", tmp_path, said):
        make_cubes(tmp_path, tmp_path.parent / f"{tmp_path.name}-out")


BLANKS = b"Comment = a" + b" " * 500_000 + b"b" + b"\t" * 500_000 + b"\0\n"
"""A pattern that tries every way to share the blanks out takes an hour."""


@pytest.mark.parametrize(
    "header",
    [b"NDims = 1000\n", b"NDims = -1\n", b"DimSize = 1 2\n" * 9, b"x" * 10**6, b"=\n" * 99, BLANKS],
    ids=lambda header: str(header[:15]),
)
def test_headers_that_crash_itk_or_take_time(header: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.mhd").write_bytes(header + b"ElementDataFile = LOCAL\n" + bytes(100))
    with refused(raises=ImageProblem):
        read_image(tmp_path / "a.mhd")


def test_a_voxel_of_a_nanometre_makes_no_terabyte_of_blur(tmp_path: Path) -> None:
    write_scan(tmp_path, spacing="0.000001 1 1")
    (tmp_path / "annotations.csv").write_text(ANNOTATIONS.format(x=0))
    with refused("thinner than 1/100"):
        make_cubes(tmp_path, tmp_path / "out", CubeSettings(side=4))


def test_packed_scans_that_are_honest_bombs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "UNPACKED_FREELY", 1 << 20)
    scan = write_scan(tmp_path, zlib.compress(bytes(10**7), 9), size="1000 1000 5", more=PACKED)
    with refused("must be stored unpacked", raises=ImageProblem):
        read_image(scan)
    write_scan(tmp_path, bytes(10**7), size="1000 1000 5")
    assert read_image(scan).GetSize() == (1000, 1000, 5)


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (42, struct.pack("<3h", 30000, 30000, 30000), ("shorter", "become 108.0 TB")),
        (42, struct.pack("<3h", -1, 4, 4), ("has no size",)),
        (40, struct.pack("<h", 0), ("has no size",)),
        (70, struct.pack("<h", 128), ("not one number each",)),
        (108, struct.pack("<f", 1e9), ("shorter",)),
        (344, b"ni1\0", ("is no NIfTI image",)),
    ],
)
def test_hostile_nifti(
    name: str, place: int, value: bytes, said: tuple[str, ...], tmp_path: Path
) -> None:
    simpleitk().WriteImage(as_image(np.zeros((4, 4, 4), np.float32)), str(tmp_path / "a.nii"))
    content = bytearray((tmp_path / "a.nii").read_bytes())
    content[place : place + len(value)] = value
    (tmp_path / "a.nii").unlink()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with refused(tmp_path / name, "remove or replace it", said):
        load_volumes(tmp_path)


# ---- NumPy files


def npy(header: str, content: bytes = b"", version: int = 1, length: int | None = None) -> bytes:
    text = header.encode("latin-1") + b"\n"
    size = struct.pack("<H" if version == 1 else "<I", len(text) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + content


def about(shape: str, kind: str = "'|u1'") -> str:
    return f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}}}"


HEADERS = {
    "a terabyte": npy(about("(1000000000000,)")),
    "more than numbers can say": npy(about("(1" + "0" * 60 + ",)")),
    "a negative size": npy(about("(-1, 4, 4, 4)"), bytes(64)),
    "long text": npy(about("(2,)", "'<U999999999'"), bytes(64)),
    "a large inner array": npy(about("(1,)", "('<f8', (1000000000,))")),
    "many dimensions": npy(about("(" + "1," * 200 + ")"), bytes(64)),
    "four gigabytes of header": npy(about("(1,)"), version=2, length=2**32 - 1),
    "a header too deep": npy("(" * 5000),
    "no header": npy("__import__('os').system('true')"),
    "an unknown format": b"\x93NUMPY\x09\x00" + bytes(100),
}


@pytest.mark.parametrize("name", HEADERS)
def test_hostile_arrays(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(HEADERS[name])
    with refused(tmp_path / "a.npy", "cannot be read", "numpy.savez"):
        load_volumes(tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("volume.npy", HEADERS[name])
    with refused(tmp_path / "a.npz", "cannot be read", "numpy.savez"):
        load_volumes(tmp_path / "a.npz")


class Harm:
    """What is unpickled makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


def test_objects_are_never_made(tmp_path: Path) -> None:
    objects = np.array([Harm(tmp_path / "harm")], object)
    np.save(tmp_path / "a.npy", objects)
    np.savez(tmp_path / "a.npz", objects=objects, volume=np.zeros((1, 4, 4, 4), np.uint8))
    for name in ("a.npy", "a.npz"):
        with refused(tmp_path / name, "pickled Python objects", "numpy.savez"):
            load_volumes(tmp_path / name)
    assert not (tmp_path / "harm").exists()


def array_of(num_bytes: int) -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros((num_bytes // 64, 4, 4, 4), np.uint8))
    return file.getvalue()


def one_member(path: Path, num_bytes: int, how: int = zipfile.ZIP_DEFLATED) -> None:
    with zipfile.ZipFile(path, "w", how) as archive:
        archive.writestr("volume.npy", array_of(num_bytes))


def claim(path: Path, num_bytes: int, claimed: int) -> None:
    """Let the directory of an archive give its only member a false size."""
    one_member(path, num_bytes)
    content = path.read_bytes()
    place = content.rindex(b"PK\x01\x02") + 24
    path.write_bytes(content[:place] + struct.pack("<I", claimed) + content[place + 4 :])


def share_bytes(path: Path) -> None:
    """As in zbsm.zip of Fifield 2019, where 42 kB become 5 GB."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("volume.npy", array_of(1 << 20))
        for number in range(1000):
            again = copy.copy(archive.filelist[0])
            again.filename = f"a{number}.npy"
            archive.filelist.append(again)


def name_twice(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("volume.npy", array_of(64))
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("volume.npy", array_of(128))


ARCHIVES: dict[str, tuple[Callable[[Path], None], str]] = {
    "claims gigabytes": (lambda path: claim(path, 64, 4_000_000_000), "become 4.0 GB"),
    "claims less": (lambda path: claim(path, 64 << 20, 128 + 64), "Bad CRC-32"),
    "members share bytes": (share_bytes, "members overlap"),
    "bzip2": (lambda path: one_member(path, 1 << 20, zipfile.ZIP_BZIP2), "NumPy does not know"),
    "lzma": (lambda path: one_member(path, 1 << 20, zipfile.ZIP_LZMA), "NumPy does not know"),
    "one name twice": (name_twice, "two arrays of one name"),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_hostile_archives(name: str, tmp_path: Path) -> None:
    write, said = ARCHIVES[name]
    write(tmp_path / "a.npz")
    with refused(tmp_path / "a.npz", "cannot be read", said):
        load_volumes(tmp_path / "a.npz")


def test_an_honest_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = np.zeros((1 << 14, 4, 4, 4), np.float32)
    np.savez_compressed(tmp_path / "a.npz", volume=zeros)
    assert len(load_volumes(tmp_path / "a.npz")) == len(zeros)  # small ones do no harm
    monkeypatch.setattr(files, "UNPACKED_FREELY", 1 << 20)
    with refused(tmp_path / "a.npz", "more than 100 times as much must be stored unpacked"):
        load_volumes(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", volume=zeros)
    assert len(load_volumes(tmp_path / "a.npz")) == len(zeros)


def test_a_file_larger_than_memory_stays_on_disk(tmp_path: Path) -> None:
    with (tmp_path / "a.npy").open("wb") as file:
        file.write(npy(about("(81920, 64, 64, 64)"), b""))
        file.truncate(file.tell() + 81920 * 64**3)
    found = read_arrays(tmp_path / "a.npy").cubes
    assert isinstance(found, np.memmap)
    assert found.nbytes == 20 << 30


def test_what_must_be_copied_must_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "a.npy", np.zeros((100, 4, 4, 4)))
    monkeypatch.setattr(files, "memory_bytes", lambda: 20_000)
    with refused(tmp_path / "a.npy", "must become float32 in memory", "save it as float32"):
        load_volumes(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.zeros((100, 4, 4, 4), np.float32))
    assert len(load_volumes(tmp_path / "a.npy")) == 100


# ---- safetensors


def tensors(header: dict[str, Any] | bytes, content: bytes = b"", size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + content


def one(shape: list[int], end: int, kind: str = "U8", start: int = 0) -> dict[str, Any]:
    return {"images": {"dtype": kind, "shape": shape, "data_offsets": [start, end]}}


LIES = {
    "a header longer than the file": tensors(b"{}", size=99_000_000),
    "a header of no end": tensors(b"{}", size=2**63),
    "a terabyte": tensors(one([TERA], TERA)),
    "a terabyte in eight bytes": tensors(one([TERA], 8), bytes(8)),
    "a shape beyond all numbers": tensors(one([2**62, 2**62], 8), bytes(8)),
    "an end before its start": tensors(one([8], 0, start=8), bytes(8)),
    "one memory for many": tensors(
        {f"a{n}": one([1 << 20], 1 << 20)["images"] for n in range(99)}, bytes(1 << 20)
    ),
    "deep": tensors(b'{"a":' * 50_000),
    "an unknown type": tensors(one([8], 8, "U9"), bytes(8)),
}


@pytest.mark.parametrize("name", LIES)
def test_safetensors_that_lie(name: str, tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    file.write_bytes(LIES[name])
    with refused(file, "cannot be read", raises=ValueError):
        read_stage(file)
    with refused(file, "give a run's folder"):
        load_from(file, None, nn.Linear(2, 2))  # type: ignore[arg-type]
    with refused(file, "run `samepath curate` again"):
        Pictures(file, 1)
    with refused(file, raises=CheckpointDamaged):
        load_weights(file, nn.Linear(2, 2))
    checkpoint.save(tmp_path, State({"w": torch.ones(2)}, {"step": 7}), {})
    (tmp_path / "step-00000007" / "state.safetensors").write_bytes(LIES[name])
    with refused(tmp_path / "step-00000007", raises=CheckpointDamaged):
        checkpoint.load(tmp_path / "step-00000007")


def test_a_hundred_megabytes_of_header(tmp_path: Path) -> None:
    with (tmp_path / "a.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", 99_000_000))
        file.truncate(99_000_008)
    with refused("a.safetensors", "cannot be read", raises=ValueError):
        read_stage(tmp_path / "a.safetensors")


def test_a_file_that_no_memory_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_weights(tmp_path, "best", weights_of(nn.Linear(2, 2)))
    monkeypatch.setattr(files, "memory_bytes", lambda: 100)
    with refused("best.safetensors", "of memory; there are 100 bytes"):
        load_from(tmp_path / "best.safetensors", None, nn.Linear(2, 2))  # type: ignore[arg-type]


# ---- tables


def test_a_line_without_an_end(tmp_path: Path) -> None:
    file = tmp_path / "keep.csv"
    file.write_bytes(b"index,label,x,y,cluster,kept,reason\n0,0,0,0,0,1," + b"a" * (64 << 20))
    with refused(file, "more than 1,048,576 characters"):
        read_keep_list(file)
    file.write_bytes(b"a," * (8 << 20))
    with refused(file, "characters"):
        read_annotations(file)


@pytest.mark.parametrize(
    "cell", ["9" * 100_000, "a" * 100_000, '"a\nb\nc"', "nan", "-inf", "1e400"]
)
def test_hostile_cells(cell: str, tmp_path: Path) -> None:
    file = tmp_path / "keep.csv"
    for row in (f"{cell},0,0,0,0,1,", f"0,{cell},0,0,0,1,", f"0,0,{cell},0,0,1,"):
        file.write_text(f"index,label,x,y,cluster,kept,reason\n{row}\n")
        with refused(file, "line "):
            read_keep_list(file)


def test_one_long_text_among_many(tmp_path: Path) -> None:
    with refused("facts.csv", "shorten its longest text"):
        typed(["x" * 100_000, *["y"] * 100_000], Path("facts.csv"))


# ---- folders


def test_data_that_leads_round(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with refused("--data", "there is no such file"):
        find_recipe("nodules", str(tmp_path / "loop"))
    with refused(tmp_path / "loop", "no such file"):
        load_volumes(tmp_path / "loop")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "up").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with little_room():
        assert len(fingerprint_path(tmp_path)) == 64


# ---- the sources


def test_nothing_unpickles() -> None:
    """Also `pickle_` of another name would be found: every import and every call is looked at."""
    loaders = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    for path in sorted(SOURCES.rglob("*.py")):
        text = path.read_text()
        is_suspect = ".load(" in text or any(name in text for name in loaders)
        for node in ast.walk(ast.parse(text)) if is_suspect else ():
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                module = node.module if isinstance(node, ast.ImportFrom) else None
                names = {module or alias.name for alias in node.names}
                roots = {str(name).split(".")[0] for name in names}
                # between a process and those that it starts: pipes, and a folder of its own
                own = (
                    "engine/verify/runs.py",
                    "engine/launch/launch.py",
                    "study/places/task.py",
                )
                allowed = {"pickle"} if str(path.relative_to(SOURCES)) in own else set()
                assert roots & loaders <= allowed, path
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".load"):
                called = ast.unparse(node)
                if ast.unparse(node.func) in ("np.load", "numpy.load"):
                    assert "allow_pickle=False" in called, f"{path}: {called}"
                if ast.unparse(node.func) == "torch.load":
                    assert "weights_only=True" in called, f"{path}: {called}"
