"""Every reader of samepath by name: a small valid file for it, how it is read, what it may raise.

The table that `test_fuzz_readers.py` and `test_hostile_files.py` go through.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from curation_folders import make_curation_folder
from measured_steps import made, made_clock
from torch import nn
from ui_folders import make_finding, make_run

from samepath.curation.folder import CurationFolder, read_arrays, write_arrays
from samepath.curation.weights import load_from
from samepath.data import download
from samepath.data.content import examples_identity, fingerprint_path
from samepath.data.fold_file import Fold, read_fold, write_fold
from samepath.data.formats import cifar10
from samepath.data.formats.dicom import write_series
from samepath.data.formats.images import as_image, simpleitk
from samepath.data.formats.scans import LUNA_FILL, CubeSettings, dicom_job, luna_job
from samepath.data.formats.volumes import load_volumes, make_cubes, open_cubes
from samepath.data.keep_list import KeepList, read_keep_list, refuse_other_data, write_keep_list
from samepath.engine.run.tensorboard import EventWriter
from samepath.engine.state import checkpoint
from samepath.engine.state.checkpoint import load_weights, weights_of, write_weights
from samepath.engine.state.reopen import look_at, needs_code_to_draw
from samepath.engine.state.state import State
from samepath.errors import CheckpointDamaged, UserError
from samepath.files import read_as, read_object
from samepath.report.show import finding_sections, noise_lines
from samepath.timing.measured import ClockFacts, read_measured, write_measured
from samepath.web.dashboard.contents import FolderContents
from samepath.web.explorer.explorer import Explorer

Files = Callable[[Path], Any]


@dataclass(frozen=True)
class Reader:
    """A way into samepath for a file."""

    file: str
    """Is damaged, in a folder of its own."""
    make: Files
    """Writes all files that are needed into that folder."""
    read: Files
    raises: type[Exception] = UserError
    opens: bool = True
    """False: bytes come to it, and the file is opened here."""
    seal: Callable[[Path, bytes], bytes] = lambda folder, content: content
    """Mends checksums after the damage: whoever is hostile can do that too."""


def volumes_of(name: str, write: Callable[[Path], None]) -> Reader:
    return Reader(name, lambda f: write(f / name), lambda f: load_volumes(f / name))


def cubes(number: int = 3) -> Any:
    return np.random.default_rng(0).integers(0, 255, (number, 4, 4, 4)).astype(np.uint8)


def npz(path: Path) -> None:
    np.savez(path, volume=cubes(), label=np.arange(3), patient=np.array(["a", "b", "b"]))


def small_npz(path: Path) -> None:
    np.savez_compressed(path, train_images=cubes(), val_images=cubes(2), train_labels=np.ones(3))


def luna(packed: bool) -> Files:
    def write(folder: Path) -> None:
        voxels = np.random.default_rng(0).integers(-1000, 400, (6, 5, 4)).astype(np.int16)
        image = as_image(voxels)
        image.SetSpacing((1.5, 1.0, 2.0))
        simpleitk().WriteImage(image, str(folder / "a.mhd"), useCompression=packed)
        (folder / "annotations.csv").write_text(
            "seriesuid,coordX,coordY,coordZ,diameter_mm\na,2.5,1.0,4.0,9.5\na,1,1e0,2,3\n"
        )

    return write


def dicom_series(folder: Path) -> None:
    volume = np.random.default_rng(0).random((3, 4, 4))
    write_series(folder, volume, None, spacing_mm=1.0, window=(-1000, 400), name="a")


def cut_series(folder: Path) -> None:
    list(dicom_job(folder).results(CubeSettings(side=4)))


def cut(folder: Path) -> None:
    list(luna_job(folder).results(CubeSettings(side=4).filled(*LUNA_FILL)))


def nifti(name: str) -> Files:
    def write(folder: Path) -> None:
        image = as_image(cubes()[0].astype(np.float32) / 255)
        simpleitk().WriteImage(image, str(folder / name))
        (folder / "facts.csv").write_text(f"file,group,age,note\n{name},p1,61,of the left\n")

    return write


def cube_folder(folder: Path) -> None:
    np.savez(folder / "a.npz", volume=cubes(), label=np.arange(3), word=np.array(["a", "b", "cc"]))
    make_cubes(folder / "a.npz", folder / "cubes", CubeSettings(side=4))


def open_made(folder: Path) -> None:
    open_cubes(folder / "cubes")


def sealed_voxels(folder: Path, content: bytes) -> bytes:
    file = folder / "cubes" / "cubes.json"
    about = json.loads(file.read_text()) | {"sha256": hashlib.sha256(content).hexdigest()}
    file.write_text(json.dumps(about))
    return content


KEPT = KeepList(
    labels=np.array([0, 1, 1]),
    positions=np.array([[0.5, 1], [2, 3], [4, 5]], np.float32),
    clusters=np.array([0, -1, 0]),
    kept=np.array([True, False, True]),
    reasons=["", "noise", ""],
    notes=["", "odd, that", ""],
)
EXAMPLES_OF_KEPT = (torch.zeros(3, 2), torch.tensor([0, 1, 1]))


def keep(folder: Path) -> None:
    write_keep_list(folder / "keep.csv", KEPT)
    identity = examples_identity(EXAMPLES_OF_KEPT)
    about = {"recipe": "digits", "data": None, "identity": "digits", "examples_identity": identity}
    (folder / "curation.json").write_text(json.dumps(about))


def fold(folder: Path) -> None:
    write_fold(folder / "fold.csv", Fold(np.arange(6) % 3 == 0))


def match(folder: Path) -> None:
    refuse_other_data(
        KEPT,
        folder / "keep.csv",
        recipe="digits",
        data=EXAMPLES_OF_KEPT,
        facts={},
        collate=None,
        origin={"identity": "digits"},
    )


ORIGIN = {"identity": "digits", "data_identity": ""}


def curation_cache(folder: Path) -> None:
    (folder / "cache").mkdir()
    about = {**ORIGIN, "recipe": "digits", "wrote": ["ab"]}
    (folder / "cache" / "origin.json").write_text(json.dumps(about))


def explored(folder: Path) -> None:
    make_curation_folder(folder / "c", 20, num_classes=2)
    digest = hashlib.sha256((folder / "c" / "keep.csv").read_bytes()).hexdigest()
    edit = {"edit": "drop 1", "rows": [3], "kept": [False], "reasons": ["x"], "clusters": [0]}
    lines = [
        {"format": 1, "keep": "keep.csv", "sha256": digest},
        {**edit, "notes": [""], "setting": [0, 1.5, 5]},
        {"undo": 1},
        {"redo": 1},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "c" / "keep.csv.edits").write_text(text)


def explore(folder: Path) -> None:
    explorer = Explorer(folder / "c", read_only=True)
    json.dumps(explorer.about())
    explorer.points()
    if explorer.curation.pictures is not None:
        explorer.curation.pictures.png(0)


def in_explorer(name: str) -> Reader:
    return Reader(f"c/{name}", explored, explore)


def weights(folder: Path) -> None:
    write_weights(folder, 1, weights_of(nn.Linear(2, 2)))


def a_run(folder: Path) -> None:
    make_run(folder / "run", 20)
    make_finding(
        folder / "run" / "insight", "curvature", time=1.5, runs=[{"path": str(folder / "run")}]
    )
    make_finding(folder / "advice", "advice", time=1.5, workers=[1, 2], verdict="x")
    (folder / "study").mkdir()
    study = {"kind": "race", "recipe": "digits", "strategies": ["a"], "runs": [{"path": "x"}]}
    (folder / "study" / "study.json").write_text(json.dumps(study))


def shown(folder: Path) -> None:
    """What `samepath show` and `samepath tensorboard` read."""
    run = look_at(folder / "run")
    needs_code_to_draw(run.record)
    run.losses_by_epoch()
    noise_lines(run.folder.read_metrics())


def events(folder: Path) -> None:
    EventWriter(folder / "run", folder / "events").close()


def on_dashboard(folder: Path) -> None:
    contents = FolderContents(folder)
    items = contents.overview()["items"]
    json.dumps([contents.item(item["id"]) for item in items])
    json.dumps(contents.runs([item["id"] for item in items if item["kind"] == "run"]))


def read_clock_file(folder: Path) -> None:
    try:
        read_as(ClockFacts, read_object(folder / "clock.json"))
    except (OSError, KeyError, TypeError) as error:  # as `study.race` takes it
        raise ValueError(str(error)) from None


def a_checkpoint(folder: Path) -> None:
    tensors = {"w": torch.ones(2, 3), "n": torch.tensor(3), "h": torch.ones(2).bfloat16()}
    structure = {"step": 7, "model": {"w": {"tensor": "w"}}, "numbers": [0.1, None]}
    checkpoint.save(folder, State(tensors, structure), {"epoch_loss": 0.25})


def sealed_json(folder: Path, content: bytes) -> bytes:
    """The second line of checkpoint.json under the checksum it now has."""
    _, _, text = content.partition(b"\n")
    digest = hashlib.sha256(text.rstrip(b"\n")).hexdigest()
    return json.dumps({"checksum": digest}).encode() + b"\n" + text


FEW = 2


def batch(folder: Path) -> None:
    content = np.zeros((FEW, cifar10.RECORD), np.uint8)
    for name in (*cifar10.BATCHES, cifar10.TEST):
        content.tofile(folder / name)
    (folder / "batches.meta.txt").write_text("\n".join(cifar10.CLASS_NAMES) + "\n\n")


ARCHIVE = download.Archive(
    url="https://x", num_bytes=1, md5="", folder="f", files=("a",), most_unpacked=1 << 20
)


def packed(folder: Path) -> None:
    with tarfile.open(folder / "a.tar", "w") as archive:
        for name in ("f/a", "f/b/c"):
            member = tarfile.TarInfo(name)
            member.size = 5
            archive.addfile(member, io.BytesIO(b"hello"))
    (folder / "a.tar.gz").write_bytes(gzip.compress((folder / "a.tar").read_bytes(), mtime=0))


def unpack(folder: Path) -> None:
    shutil.rmtree(folder / "out", ignore_errors=True)
    (folder / "out").mkdir()
    try:
        with (folder / "a.tar.gz").open("rb") as file:
            download._unpack(ARCHIVE, file, folder / "out" / "f")
    except OSError as error:  # as `download` takes it: the names in it cannot be written
        raise download.DownloadFailed(str(error)) from error
    finally:
        assert {p.name for p in folder.iterdir()} == {"a.tar", "a.tar.gz", "out"}


def pack_and_unpack(folder: Path) -> None:
    (folder / "a.tar.gz").write_bytes(gzip.compress((folder / "a.tar").read_bytes(), 1, mtime=0))
    unpack(folder)


def read_checkpoint(folder: Path) -> None:
    checkpoint.load(folder / "step-00000007")


WEIGHTS = "epoch-00001.safetensors"

READERS = {
    "npz": volumes_of("a.npz", npz),
    "npz packed": volumes_of("a.npz", small_npz),
    "npy": volumes_of("a.npy", lambda path: np.save(path, cubes())),
    "mhd": Reader("a.mhd", luna(False), cut),
    "raw": Reader("a.raw", luna(False), cut),
    "zraw": Reader("a.zraw", luna(True), cut),
    "annotations": Reader("annotations.csv", luna(False), cut),
    "dicom": Reader("slice-0001.dcm", dicom_series, cut_series),
    "nii": Reader("a.nii", nifti("a.nii"), load_volumes),
    "nii.gz": Reader("a.nii.gz", nifti("a.nii.gz"), load_volumes),
    "facts": Reader("facts.csv", nifti("a.nii"), load_volumes),
    "cubes.json": Reader("cubes/cubes.json", cube_folder, open_made),
    "cubes.npy": Reader("cubes/cubes.npy", cube_folder, open_made, seal=sealed_voxels),
    "fingerprint": Reader("keep.csv", keep, fingerprint_path),
    "keep-list": Reader("keep.csv", keep, lambda f: read_keep_list(f / "keep.csv")),
    "fold file": Reader("fold.csv", fold, lambda f: read_fold(f / "fold.csv")),
    "beside keep-list": Reader("curation.json", keep, match),
    "origin": Reader(
        "cache/origin.json", curation_cache, lambda f: CurationFolder(f).refuse(ORIGIN)
    ),
    "curation.json": in_explorer("curation.json"),
    "facts.json": in_explorer("facts.json"),
    "map": in_explorer("map.safetensors"),
    "features": in_explorer("features.safetensors"),
    "images": in_explorer("images.safetensors"),
    "edits": in_explorer("keep.csv.edits"),
    "stage": Reader(
        "a.safetensors",
        lambda f: write_arrays(f / "a.safetensors", {"a": cubes(), "b": np.ones(3)}),
        lambda f: read_arrays(f / "a.safetensors"),
        ValueError,
    ),
    "weights given": Reader(
        WEIGHTS,
        weights,
        lambda f: load_from(f / WEIGHTS, None, nn.Linear(2, 2)),  # type: ignore[arg-type]
    ),
    "torch weights given": Reader(
        "a.pt",
        lambda f: torch.save({"state_dict": nn.Linear(2, 2).state_dict()}, f / "a.pt"),
        lambda f: load_from(f / "a.pt", None, nn.Linear(2, 2)),  # type: ignore[arg-type]
    ),
    "weights kept": Reader(
        WEIGHTS, weights, lambda f: load_weights(f / WEIGHTS, nn.Linear(2, 2)), CheckpointDamaged
    ),
    "checkpoint.json": Reader(
        "step-00000007/checkpoint.json",
        a_checkpoint,
        read_checkpoint,
        CheckpointDamaged,
        seal=sealed_json,
    ),
    "state": Reader(
        "step-00000007/state.safetensors", a_checkpoint, read_checkpoint, CheckpointDamaged
    ),
    "run.json": Reader("run/run.json", a_run, shown),
    "metrics": Reader("run/metrics.jsonl", a_run, shown),
    "run.json as events": Reader("run/run.json", a_run, events),
    "metrics as events": Reader("run/metrics.jsonl", a_run, events),
    "run.json on the page": Reader("run/run.json", a_run, on_dashboard),
    "metrics on the page": Reader("run/metrics.jsonl", a_run, on_dashboard),
    "study on the page": Reader("study/study.json", a_run, on_dashboard),
    "finding on the page": Reader("advice/advice.json", a_run, on_dashboard),
    "finding of a run": Reader(
        "run/insight/curvature.json", a_run, lambda f: finding_sections(f / "run", "digits")
    ),
    "measured": Reader("measured.json", lambda f: write_measured(f, made()), read_measured),
    "clock": Reader(
        "clock.json",
        lambda f: (f / "clock.json").write_text(json.dumps(asdict(made_clock()))),
        read_clock_file,
        ValueError,
    ),
    "cifar10 binary": Reader("data_batch_2.bin", batch, cifar10.load_cifar10),
    "cifar10 names": Reader("batches.meta.txt", batch, cifar10.load_cifar10),
    "tar.gz": Reader("a.tar.gz", packed, unpack, download.DownloadFailed, opens=False),
    "tar": Reader("a.tar", packed, pack_and_unpack, download.DownloadFailed, opens=False),
}
