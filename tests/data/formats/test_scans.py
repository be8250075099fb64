"""LUNA16: annotations, places in millimetres, damaged scans, and the cache.

The scans are written here: a bright Gaussian blob at a known place, in air.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from samepath import console
from samepath.cli.cubes import cubes as cubes_command
from samepath.console import WaitedTooLong
from samepath.data.formats import volumes
from samepath.data.formats.images import as_image, simpleitk
from samepath.data.formats.scans import CubeSettings, read_annotations
from samepath.data.formats.volumes import load_volumes, make_cubes
from samepath.errors import UserError

REAL = Path(__file__).parents[4] / "shared" / "data" / "luna16" / "annotations.csv"
HEADER = "seriesuid,coordX,coordY,coordZ,diameter_mm\n"
AIR, TISSUE = -1000.0, 400.0
STRAIGHT = np.eye(3)
FLIPPED = np.diag([-1.0, -1.0, 1.0])  # as in some of LUNA16's scans
TURNED = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
_C, _S = np.cos(0.4), np.sin(0.4)
OBLIQUE = np.array([[_C, -_S, 0.0], [_S, _C, 0.0], [0.0, 0.0, 1.0]])


def write_scan(
    path: Path,
    blobs: Sequence[Sequence[float]],
    *,
    sigma_mm: float = 4.0,
    size: tuple[int, int, int] = (60, 50, 40),
    spacing: tuple[float, float, float] = (1.0, 1.0, 1.0),
    origin: tuple[float, float, float] = (0.0, 0.0, 0.0),
    direction: NDArray[np.float64] = STRAIGHT,
) -> None:
    """A scan of air with Gaussian blobs of tissue at world places; all triples are (x, y, z)."""
    index = np.indices(size[::-1])[::-1].reshape(3, -1)  # x, y, z of each voxel
    world = np.array(origin)[:, None] + direction @ (np.array(spacing)[:, None] * index)
    bright = sum(
        np.exp(-((world - np.array(blob)[:, None]) ** 2).sum(0) / (2 * sigma_mm**2))
        for blob in blobs
    )
    values = AIR + (TISSUE - AIR) * np.minimum(bright, 1)
    image = as_image(values.reshape(size[::-1]).astype(np.int16))
    image.SetSpacing(spacing)
    image.SetOrigin(origin)
    image.SetDirection(direction.ravel().tolist())
    path.parent.mkdir(parents=True, exist_ok=True)
    simpleitk().WriteImage(image, str(path))


def write_annotations(folder: Path, rows: Sequence[tuple[str, Sequence[float]]]) -> None:
    lines = [f"{series},{x},{y},{z},9.5\n" for series, (x, y, z) in rows]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "annotations.csv").write_text(HEADER + "".join(lines))


def moments(cube: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Centre of mass and standard deviation along z, y, x, in voxels."""
    mass = cube.astype(np.float64) / cube.sum(dtype=np.float64)
    grid = np.indices(cube.shape).reshape(3, -1)
    mean = grid @ mass.ravel()
    return mean, np.sqrt(((grid - mean[:, None]) ** 2) @ mass.ravel())


@pytest.fixture
def luna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two scans in two subsets, three nodules."""
    monkeypatch.setenv("SAMEPATH_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "luna"
    write_scan(folder / "subset0" / "1.2.3.mhd", [(20, 22, 18), (42, 22, 24)], sigma_mm=3)
    write_scan(folder / "subset1" / "4.5.mhd", [(25, 25, 20)], sigma_mm=3)
    rows = [("1.2.3", (20, 22, 18)), ("4.5", (25, 25, 20)), ("1.2.3", (42, 22, 24))]
    write_annotations(folder, rows)
    return folder


# ---- annotations


@pytest.mark.skipif(not REAL.exists(), reason=f"{REAL} is not here")
def test_the_real_annotations() -> None:
    nodules = read_annotations(REAL)
    assert len(nodules) == 1186
    assert len({nodule.series for nodule in nodules}) == 601
    series = "1.3.6.1.4.1.14519.5.2.1.6279.6001.100225287222365663678666836860"
    assert nodules[0] == (series, (-128.6994211, -175.3192718, -298.3875064), 5.651470635)
    assert all(3 <= nodule.diameter_mm < 33 for nodule in nodules)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seriesuid,x,y,z\n", "coordX, coordY, coordZ, diameter_mm, each once; it names seriesuid"),
        ("", "it names nothing"),
        (HEADER, "holds no nodules, only column names"),
        (HEADER + "a,1,2,3,4\nb,1,2,x,4\n", "line 3: coordZ is 'x'; it must be a number"),
        (HEADER + "a,1,nan,3,4\n", "line 2: coordY is 'nan'; it must be a number"),
        (HEADER + "a,1,2,3,\n", "line 2: diameter_mm is ''; it must be a number"),
        (HEADER + "a,1,2,3\n", "line 2: not 5 values"),
        (HEADER + ",1,2,3,4\n", "line 2: seriesuid is empty"),
        ("\x00\xff", "it names \x00"),
    ],
)
def test_bad_annotations_are_one_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "annotations.csv"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        read_annotations(file)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_columns_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("more,diameter_mm,coordZ,coordY,coordX,seriesuid\n-,4,3,2,1,s")
    assert read_annotations(tmp_path / "a.csv") == [("s", (1, 2, 3), 4)]


# ---- places


@pytest.mark.parametrize("direction", [STRAIGHT, FLIPPED, TURNED, OBLIQUE])
@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (0.7, 0.7, 2.5), (2.5, 2.2, 2.4)])
def test_the_nodule_lands_in_the_middle_with_its_size(
    tmp_path: Path, direction: NDArray[np.float64], spacing: tuple[float, float, float]
) -> None:
    size = tuple(int(56 / s) for s in spacing)
    origin = np.array([-120.3, 45.1, -310.7])
    # not on the grid, in the middle third
    place = origin + direction @ (np.array([26.3, 30.4, 28.9]))
    write_scan(
        tmp_path / "luna" / "s.mhd",
        [place],
        size=size,  # type: ignore[arg-type]
        spacing=spacing,
        origin=tuple(origin),
        direction=direction,
    )
    write_annotations(tmp_path / "luna", [("s", place)])
    make_cubes(tmp_path / "luna", tmp_path / "out")
    cube = load_volumes(tmp_path / "out").cubes[0]
    mean, deviation = moments(cube)
    assert np.abs(mean - 7.5).max() < 0.1  # the middle of 16, in voxels
    expected = np.sqrt(4.0**2 + 1.0)  # blurred by up to half of the 2 mm step
    assert np.abs(deviation * 2 - expected).max() < 0.3, "its size in mm is right"


def test_axes_are_the_worlds(tmp_path: Path) -> None:
    """A second blob 8 mm further along +x shows at +x, also where the scan runs the other way."""
    for name, direction, origin in (("a", STRAIGHT, (0, 0, 0)), ("b", FLIPPED, (59, 49, 0))):
        write_scan(
            tmp_path / "luna" / f"{name}.mhd",
            [(30, 25, 20), (40, 25, 20)],
            sigma_mm=2,
            origin=origin,
            direction=direction,
        )
    write_annotations(tmp_path / "luna", [("a", (30, 25, 20)), ("b", (30, 25, 20))])
    make_cubes(tmp_path / "luna", tmp_path / "out")
    straight, flipped = load_volumes(tmp_path / "out").cubes
    assert np.abs(straight.astype(int) - flipped).max() <= 1
    assert moments(straight)[0] == pytest.approx([7.5, 7.5, 10.0], abs=0.1)


def test_values_and_sizes_that_look_wrong_are_warned_of(luna: Path, tmp_path: Path) -> None:
    """Here the scans are what scanners write with 1024 added, and one nodule is 40 mm across."""
    fine = make_cubes(luna, tmp_path / "fine", CubeSettings(mm=16))
    assert fine.warnings == []
    for scan in luna.rglob("*.mhd"):
        image = simpleitk().ReadImage(str(scan))
        simpleitk().WriteImage(image + 1024, str(scan))
    annotations = luna / "annotations.csv"
    annotations.write_text(annotations.read_text().replace("9.5", "40", 1).replace("9.5", "1", 1))
    report = make_cubes(luna, tmp_path / "out", CubeSettings(mm=16))
    values, large, small = report.warnings
    assert "if these are HU + 1024, add --window 24,1424" in values
    assert "nodules larger than their cube: 1 of 3 (up to 40 mm across); add --mm 60" in large
    assert "nodules smaller than two voxels: 1 of 3 (from 1 mm across)" in small
    right = make_cubes(luna, tmp_path / "right", CubeSettings(mm=16, window=(24.0, 1424.0)))
    assert right.warnings == [large, small]
    before, after = (load_volumes(tmp_path / name).cubes for name in ("fine", "right"))
    assert np.array_equal(before, after), "the window that is suggested is the right one"


def test_settings_change_the_cube(tmp_path: Path) -> None:
    """Outside the scan is the window's low end."""
    write_scan(tmp_path / "luna" / "s.mhd", [(2, 25, 20)], sigma_mm=60)
    write_scan(tmp_path / "luna" / "t.mhd", [(30, 25, 20)])
    write_annotations(tmp_path / "luna", [("s", (2, 25, 20)), ("t", (30, 25, 20))])
    make_cubes(tmp_path / "luna", tmp_path / "low", CubeSettings(window=(-1200, 400)))
    cube = load_volumes(tmp_path / "low").cubes[0]
    assert not cube[:, :, :6].any()  # voxel 6 is at -1 mm
    assert (cube[4:12, 4:12, 8:] > 200).all()
    make_cubes(tmp_path / "luna", tmp_path / "out", CubeSettings(side=32, mm=24))
    found = load_volumes(tmp_path / "out")
    assert found.facts["side_mm"].tolist() == [24, 24]
    cube = found.cubes[1]
    assert cube.shape == (32, 32, 32)
    assert cube.max() >= 240
    # 12 mm from the middle, 3 standard deviations, at the cube's face
    assert cube[16, 16, 0] == pytest.approx(255 * np.exp(-(11.6**2) / 32), abs=3)


# ---- damaged scans


def test_missing_and_damaged_scans_are_listed(
    luna: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    scan = luna / "subset0" / "1.2.3.mhd"
    for name in ("truncated", "no-raw", "bad-header", "bad-size"):
        text = scan.read_text()
        if name == "bad-size":
            text = text.replace("DimSize = 60 50 40", "DimSize = x y z")
        (luna / f"{name}.mhd").write_text(text.replace("1.2.3.raw", f"{name}.raw"))
    (luna / "truncated.raw").write_bytes((luna / "subset0" / "1.2.3.raw").read_bytes()[:999])
    (luna / "bad-header.mhd").write_bytes(b"\x00\x01 garbage")
    at = (20.0, 22.0, 18.0)
    bad = ["truncated", "no-raw", "bad-header", "bad-size", "absent", "absent", "../../etc/passwd"]
    rows: list[tuple[str, Sequence[float]]] = [(name, at) for name in bad]
    write_annotations(luna, [*rows, ("1.2.3", at), ("4.5", (999, 0, 0))])
    result = CliRunner().invoke(cubes_command, [str(luna), "--out", str(luna.parent / "out")])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("1 cube of 16 x 16 x 16 voxels")
    assert lines[1].startswith("8 cubes could not be made (7 reasons, all in ")
    assert lines[2] == "  truncated: its data file is shorter than its header says"
    assert lines[3] == "  no-raw: its data file is absent or cannot be opened"
    assert lines[4].startswith("  bad-header: is no image that SimpleITK can read")
    assert lines[5].startswith("  bad-size: ")
    assert lines[6] == "  absent: no .mhd scan or DICOM series of this name in the folder"
    assert lines[7] == "  and 2 more"
    assert lines[8] == f"preview: {luna.parent / 'out' / 'preview.png'}"
    assert lines[9] == f"samepath train nodules --data {luna.parent / 'out'}"
    failed = json.loads((luna.parent / "out" / "cubes.json").read_text())["failed"]
    assert failed[-1] == {
        "name": "4.5#8",
        "reason": "(999.0, 0.0, 0.0) mm is outside the scan",
    }
    assert load_volumes(luna.parent / "out").names == ("1.2.3#7",)
    assert "MetaImage" not in capfd.readouterr().err  # ITK's own words are kept away


def test_no_cube_at_all_is_an_error(tmp_path: Path) -> None:
    write_annotations(tmp_path / "luna", [("a", (0, 0, 0)), ("b", (0, 0, 0))])
    with pytest.raises(UserError, match=r"no cube .* \(a: no \.mhd scan .*, and 1 more like it"):
        make_cubes(tmp_path / "luna", tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["luna"]


# ---- the cache


def test_luna_loads_and_is_cached(luna: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = load_volumes(luna)
    assert found.names == ("1.2.3#0", "1.2.3#2", "4.5#1")  # scan by scan
    assert found.group == ("1.2.3", "1.2.3", "4.5")
    assert found.facts["diameter_mm"].tolist() == [9.5, 9.5, 9.5]
    assert found.facts["side_mm"].tolist() == [32, 32, 32]
    assert found.split is None
    assert isinstance(found.cubes, np.memmap)
    assert found.cubes.shape == (3, 16, 16, 16)
    assert all(cube[7:9, 7:9, 7:9].min() > 150 for cube in found.cubes)
    assert "making cubes" in capsys.readouterr().err

    (luna / "subset1" / "4.5.raw").unlink()
    (luna / "subset1" / "4.5.mhd").unlink()
    again = load_volumes(luna)
    assert np.array_equal(again.cubes, found.cubes)
    assert again.names == found.names
    assert capsys.readouterr().err == ""

    write_annotations(luna, [("1.2.3", (20, 22, 18)), ("new", (25, 25, 20))])
    assert load_volumes(luna).names == ("1.2.3#0",)
    said = capsys.readouterr().err
    assert "1 of 2 cubes could not be made" in said
    assert "new: no .mhd scan" in said
    write_scan(luna / "new.mhd", [(25, 25, 20)])
    assert load_volumes(luna).names == ("1.2.3#0", "new#1")


def test_a_cache_that_is_damaged_or_cannot_be_made_says_so(
    luna: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_volumes(luna)
    (about,) = (tmp_path / "cache").glob("*/cubes.json")
    about.write_text("{")
    with pytest.raises(UserError, match=r"damaged or incomplete .* delete it"):
        load_volumes(luna)
    monkeypatch.setenv("SAMEPATH_CACHE", str(luna / "annotations.csv" / "below"))
    with pytest.raises(UserError, match="set SAMEPATH_CACHE=FOLDER"):
        load_volumes(luna)


def test_processes_that_race_share_one_result(luna: Path, tmp_path: Path) -> None:
    """One makes the cubes, the other waits. (Where locks do not work: the test at the end.)"""
    code = f"""
import hashlib, sys
from pathlib import Path
from samepath.data.formats.volumes import load_volumes

print("ready", flush=True)
sys.stdin.readline()
found = load_volumes(Path({str(luna)!r}))
print(hashlib.sha256(found.cubes.tobytes()).hexdigest(), flush=True)
"""
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for _ in range(2)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        print("go", file=racer.stdin, flush=True)
    ended = [racer.communicate(timeout=60) for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0], ended
    expected = hashlib.sha256(load_volumes(luna).cubes.tobytes()).hexdigest()
    assert [out for out, _ in ended] == [f"{expected}\n"] * 2
    assert "".join(err for _, err in ended).count("making cubes of") == 1
    assert sorted(p.suffix for p in (tmp_path / "cache").iterdir()) == ["", ".lock"]


def test_a_wait_for_others_has_a_limit_and_a_message(
    luna: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SAMEPATH_CACHE", str(tmp_path))
    monkeypatch.setattr(volumes, "WAIT_SECONDS", 1.0)
    monkeypatch.setattr(console, "QUIET_SECONDS", 0.1)
    load_volumes(luna)
    (lock,) = tmp_path.glob("*.lock")
    (made,) = tmp_path.glob("luna16-*-*")
    shutil.rmtree(made)
    capsys.readouterr()
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(WaitedTooLong, match="waited 1 s for the process that makes the same"):
            load_volumes(luna)
    assert f"waiting for the process that makes the same cubes and has locked {lock}" in (
        capsys.readouterr().err
    )
    load_volumes(luna)


def test_whoever_ends_first_wins(luna: Path, tmp_path: Path) -> None:
    """A second process fills the place while the first makes cubes, as where locks do not work."""
    out = tmp_path / "out"

    def overtake(done: int, total: int) -> None:
        if done == 2:
            make_cubes(luna, out, CubeSettings(side=8))

    with pytest.raises(UserError, match="another process wrote there first; give a new folder"):
        make_cubes(luna, out, progress=overtake)
    assert load_volumes(out).cubes.shape == (3, 8, 8, 8)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["luna", "out"]
