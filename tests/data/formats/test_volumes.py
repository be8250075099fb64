"""Volumes from files people have: what is read, what is refused, and in which words."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from samepath.cli.cubes import cubes as cubes_command
from samepath.data.formats import listing
from samepath.data.formats.images import as_image, read_image, simpleitk, write_nifti
from samepath.data.formats.scans import CubeSettings, sample_cube
from samepath.data.formats.volumes import load_volumes, make_cubes
from samepath.errors import UserError

CT = Path(__file__).parents[4] / "shared" / "data" / "ct_nodules16.npz"


def some(count: int = 3, side: int = 8, dtype: Any = np.uint8) -> NDArray[Any]:
    values = np.random.default_rng(count).integers(0, 256, (count, side, side, side))
    return values.astype(np.uint8) if dtype == np.uint8 else (values / 255).astype(dtype)


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- NumPy files


@pytest.mark.parametrize("key", ["volume", "volumes", "cubes", "images", "anything"])
def test_npz_with_facts_and_groups(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "SimpleITK", None)  # it is not needed
    found = load_volumes(saved(tmp_path / "a.npz", **{key: some()}))
    assert found.group == found.names, "each is its own"
    arrays = {key: some(), "patient": np.array([7, 7, 9]), "label": np.array([[0], [1], [1]])}
    found = load_volumes(saved(tmp_path / "a.npz", **arrays, note=np.array("not one per row")))
    assert np.array_equal(found.cubes, some())
    assert found.cubes.dtype == np.uint8
    assert found.names == ("row 0", "row 1", "row 2")
    assert found.group == ("7", "7", "9")
    assert list(found.facts) == ["label"]
    assert found.facts["label"].tolist() == [0, 1, 1]
    assert found.split is None


def test_a_named_array_wins_over_others_of_four_dimensions(tmp_path: Path) -> None:
    found = load_volumes(saved(tmp_path / "a.npz", mask=some(2), volume=some(3)))
    assert len(found.cubes) == 3


def test_floats_become_float32_and_truths_bytes(tmp_path: Path) -> None:
    for dtype in (np.float16, np.float32, np.float64, ">f4"):
        found = load_volumes(saved(tmp_path / "a.npz", volume=some(dtype=dtype)))
        assert found.cubes.dtype == np.float32
        assert np.array_equal(found.cubes, some(dtype=dtype).astype(np.float32))
    found = load_volumes(saved(tmp_path / "a.npz", volume=some() > 100))
    assert found.cubes.dtype == np.uint8
    assert np.array_equal(found.cubes == 255, some() > 100)
    assert found.cubes.min() == 0


def test_npy_stays_on_disk_and_is_checked_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_PIECE_BYTES", 5000)  # two rows
    array = some(7, dtype=np.float32)
    np.save(tmp_path / "a.npy", array)
    assert isinstance(load_volumes(tmp_path / "a.npy").cubes, np.memmap)
    for row, value, said in ((5, 2, "from 0 to 2, not from 0 to 1"), (4, np.nan, "row 4 holds")):
        array[row, 0, 0, 0] = value
        np.save(tmp_path / "a.npy", array)
        with pytest.raises(UserError, match=said):
            load_volumes(tmp_path / "a.npy")


@pytest.mark.parametrize("side", [28, 64])
def test_medmnist(tmp_path: Path, side: int) -> None:
    arrays: dict[str, Any] = {}
    for word, count in (("train", 3), ("val", 1), ("test", 2)):
        arrays[f"{word}_images"] = some(count, side)
        arrays[f"{word}_labels"] = np.full((count, 1), count)
    source = saved(tmp_path / "nodulemnist3d.npz", **arrays)
    found = load_volumes(source)
    assert found.cubes.shape == (6, side, side, side)
    assert found.split == ("train", "train", "train", "valid", "test", "test")
    assert found.facts["label"].tolist() == [3, 3, 3, 1, 2, 2]
    assert found.names[3:5] == ("valid row 0", "test row 0")
    assert np.array_equal(found.cubes[3], arrays["val_images"][0])
    make_cubes(source, tmp_path / "out")
    cubes = load_volumes(tmp_path / "out")
    assert cubes.split == found.split
    assert cubes.cubes.shape == (6, 16, 16, 16)


@pytest.mark.skipif(not CT.exists(), reason=f"{CT} is not here")
def test_real_ct_nodules() -> None:
    found = load_volumes(CT)
    assert found.cubes.shape == (465, 16, 16, 16)
    assert found.cubes.dtype == np.uint8
    assert len(set(found.group)) == 465


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"a": some(), "b": some()}, "several arrays of volumes: a, b; keep one, named 'volume'"),
        ({"a": some()[0]}, "no array of number x depth x height x width, only a (8, 8, 8)"),
        ({}, "only nothing"),
        ({"train_images": np.zeros((2, 28, 28))}, "give a 3-D set such as nodulemnist3d.npz"),
        ({"volume": some()[:0]}, "holds no voxels"),
        ({"volume": some()[:, :0]}, "holds no voxels"),
        ({"volume": some().astype(complex)}, "type complex128; give uint8 or float32"),
        ({"volume": some()[:, :6]}, "volumes of 6 x 8 x 8 voxels are not cubes"),
        ({"volume": some(1, 6)}, "multiple of 4; type: samepath cubes "),
        ({"volume": some().astype(np.int16) - 100}, "not from 0 to 1; type: samepath cubes "),
        ({"volume": (some() > 9).astype(np.uint8)}, "bytes 0 and 1"),
        ({"volume": some(dtype=np.float32) - np.inf}, "row 0 holds NaN or infinite values"),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        load_volumes(saved(tmp_path / "a.npz", **arrays))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "a.npz" in str(caught.value)


def test_damaged_and_absent_files(tmp_path: Path) -> None:
    """What is truncated; every other damage is in test_fuzz_readers and test_hostile_files."""
    whole = saved(tmp_path / "whole.npz", volume=some()).read_bytes()
    (tmp_path / "half.npz").write_bytes(whole[: len(whole) // 2])
    np.save(tmp_path / "whole.npy", some())
    (tmp_path / "short.npy").write_bytes((tmp_path / "whole.npy").read_bytes()[:-9])
    (tmp_path / "a.txt").write_text("hello")
    for name, said in (
        ("half.npz", "cannot be read"),
        ("short.npy", "cannot be read"),
        ("a.txt", r"no file of volumes; give an \.npz"),
        ("nowhere", "no such file or folder"),
    ):
        with pytest.raises(UserError, match=said):
            load_volumes(tmp_path / name)


# ---- NIfTI


def write(path: Path, volume: NDArray[Any], spacing_mm: float = 1.0) -> None:
    path.parent.mkdir(exist_ok=True)
    write_nifti(path, volume, spacing_mm)


@pytest.fixture
def crops(tmp_path: Path) -> Path:
    folder = tmp_path / "crops"
    for number, cube in enumerate(some(3, dtype=np.float32)):
        write(folder / f"{number}.nii.gz", cube, 0.5)
    return folder


def test_nifti_round_trip(tmp_path: Path) -> None:
    volume = some(1)[0, :4].astype(np.float32)
    for name in ("a.nii.gz", "a.nii"):
        write(tmp_path / name, volume, 0.75)
        image = read_image(tmp_path / name)
        back = simpleitk().GetArrayFromImage(image)
        assert back.dtype == np.float32
        assert np.array_equal(back, volume)
        assert image.GetSpacing() == (0.75, 0.75, 0.75)
    with pytest.raises(UserError, match="cannot be written"):
        write_nifti(tmp_path / "nowhere" / "a.nii", some(1)[0], 1)


def test_a_folder_of_nifti(crops: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = load_volumes(crops)
    assert found.names == found.group == ("0.nii.gz", "1.nii.gz", "2.nii.gz")
    assert found.cubes.dtype == np.float32
    assert np.array_equal(found.cubes, some(3, dtype=np.float32))
    assert found.facts["side_mm"].tolist() == [4, 4, 4]  # 8 voxels of 0.5 mm
    simpleitk().WriteImage(as_image(some(1)[0]), str(crops / "3.nii"))  # bytes beside numbers
    found = load_volumes(crops)
    assert found.cubes.dtype == np.float32
    assert found.cubes[3] == pytest.approx(some(1)[0] / 255)
    monkeypatch.setitem(sys.modules, "SimpleITK", None)
    with pytest.raises(UserError, match=r"pip install 'samepath\[medical\]'"):
        load_volumes(crops)


def test_the_longest_side_counts_unless_facts_say_more(tmp_path: Path) -> None:
    image = as_image(some(1)[0])
    image.SetSpacing((1.0, 3.0, 2.0))
    simpleitk().WriteImage(image, str(tmp_path / "a.nii.gz"))
    assert load_volumes(tmp_path).facts["side_mm"].tolist() == [24]
    key = 2**64 - 1  # as of a generated nodule
    (tmp_path / "facts.csv").write_text(f"file,category,key,side_mm\na.nii.gz,benign,{key},20.5\n")
    facts = load_volumes(tmp_path).facts
    assert {name: values.tolist() for name, values in facts.items()} == {
        "category": ["benign"],
        "key": [key],
        "side_mm": [20.5],
    }


def test_facts_beside_nifti(crops: Path) -> None:
    (crops / "facts.csv").write_text(
        "file,patient,malignancy,size,site\n"
        "2.nii.gz,007,5,,a\n0.nii.gz,007,1,2.5,b\n1.nii.gz,8,3,1,c\ngone.nii.gz,8,3,1,c\n",
        encoding="utf-8-sig",
    )
    found = load_volumes(crops)
    assert found.group == ("007", "8", "007")
    assert found.facts["malignancy"].tolist() == [1, 3, 5]
    assert found.facts["malignancy"].dtype == np.int64
    assert found.facts["size"][:2].tolist() == [2.5, 1]
    assert np.isnan(found.facts["size"][2])
    assert found.facts["site"].tolist() == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name,x\n", "must name the columns file, each once; it names name, x"),
        ("", "it names nothing"),
        ("file,x\n0.nii.gz,1\n", "has no row for 1.nii.gz"),
        ("file,x\n0.nii.gz,1\n0.nii.gz,2\n", "line 3: 0.nii.gz again"),
        ("file,x\n0.nii.gz,1,2\n", "line 2: not 2 values"),
        ("file,x\n0.nii.gz\n", "line 2: not 2 values"),
        ('file,x\n"0.nii.gz,1\n', "cannot be read as CSV"),
    ],
)
def test_bad_facts(crops: Path, text: str, words: str) -> None:
    (crops / "facts.csv").write_text(text)
    with pytest.raises(UserError) as caught:
        load_volumes(crops)
    assert words in str(caught.value)


def test_nifti_that_does_not_fit(crops: Path, tmp_path: Path) -> None:
    with_nan = some(1, dtype=np.float32)[0]
    with_nan[-1, -1, -1] = np.nan
    for volume, said in (
        (some(1, 4)[0] / 255, r"3\.nii\.gz has 4 x 4 x 4 voxels, 0\.nii\.gz has 8"),
        (some(1)[0] * 1.0, r"not from 0 to 1; type: samepath cubes .* --window LOW"),
        (with_nan, r"3\.nii\.gz: holds NaN"),
    ):
        write(crops / "3.nii.gz", volume)
        with pytest.raises(UserError, match=said):
            load_volumes(crops)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UserError, match="holds no volumes; give a folder of"):
        load_volumes(empty)
    (empty / "a.mhd").write_text("")
    with pytest.raises(UserError, match=r"\.mhd scans but no annotations\.csv"):
        load_volumes(empty)


@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
def test_damaged_nifti(tmp_path: Path, ending: str, capfd: pytest.CaptureFixture[str]) -> None:
    """ITK itself reads a truncated file as if nothing were wrong."""
    file = tmp_path / "crops" / f"a{ending}"
    write(file, some(1, dtype=np.float32)[0])
    whole = file.read_bytes()
    for content in (whole[: len(whole) * 2 // 3], whole[:20], b"", b"junk" * 200):
        file.write_bytes(content)
        with pytest.raises(UserError, match="; remove or replace it"):
            load_volumes(tmp_path / "crops")
    if ending == ".nii.gz":
        file.write_bytes(gzip.compress(gzip.decompress(whole)[:-100]))
        with pytest.raises(UserError, match="shorter than its header says"):
            load_volumes(tmp_path / "crops")
    assert capfd.readouterr() == ("", "")


# ---- samepath cubes


def run(*arguments: object) -> Any:
    return CliRunner().invoke(cubes_command, [str(a) for a in arguments])


def test_cubes_of_arrays_keep_what_is_known(tmp_path: Path) -> None:
    facts = {"patient": np.array([1, 1, 2]), "weight": np.array([1.5, np.nan, np.inf])}
    source = saved(tmp_path / "a.npz", volume=some(), **facts)
    result = run(source, "--out", tmp_path / "out", "--side", "8")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0].startswith("3 cubes of 8 x 8 x 8 voxels")
    assert result.stderr.count("\n") == 1, "what it does"
    assert (tmp_path / "out" / "preview.png").read_bytes().startswith(b"\x89PNG")
    assert result.stdout.splitlines()[-1] == f"samepath train nodules --data {tmp_path / 'out'}"
    found = load_volumes(tmp_path / "out")
    assert isinstance(found.cubes, np.memmap)
    assert np.array_equal(found.cubes, some())  # the same side: nothing is lost
    assert found.group == ("1", "1", "2")
    assert np.array_equal(found.facts["weight"], facts["weight"], equal_nan=True)
    assert list(found.facts) == ["weight"]  # no millimetres: nobody knows them


@pytest.mark.parametrize("spelling", [["--window=-1000,400"], ["--window", "-1000,400"]])
def test_window_and_padding(tmp_path: Path, spelling: list[str]) -> None:
    """Half as deep as wide: a quarter of padding above and below, at the window's low end."""
    values = np.full((1, 8, 16, 16), -300, np.int16)
    values[..., 0] = 3000
    source = saved(tmp_path / "a.npz", volume=values)
    result = run(source, "--out", tmp_path / "out", *spelling)
    assert result.exit_code == 0, result.output
    cube = load_volumes(tmp_path / "out").cubes[0]
    assert not cube[:4].any()
    assert not cube[12:].any()
    assert (cube[4:12, :, 1:] == 128).all()  # 700 of 1400
    assert (cube[4:12, :, 0] == 255).all()
    about = json.loads((tmp_path / "out" / "cubes.json").read_text())
    assert (about["window"], about["side"]) == ([-1000, 400], 16)
    result = run(source, "--out", tmp_path / "flat", "--window", "5000,6000")
    assert "1 cube with one single value: does --window fit the data?" in result.stdout
    bright = saved(tmp_path / "b.npz", volume=np.full((1, 8, 8, 8), 3000, np.int16))
    result = run(
        bright, "--out", tmp_path / "bright", "--window", "0,1000", "--side", "8", "--json"
    )
    (warning,) = json.loads(result.stdout)["warnings"]
    assert "100% of the voxels are at the window's high end or above" in warning


def test_values_nobody_gave_a_window_for(tmp_path: Path) -> None:
    for name, array in (
        ("bytes", some()),
        ("unit", some(dtype=np.float64)),
        ("mask", np.eye(8, dtype=np.uint8)[None, None].repeat(8, 1)),
    ):
        make_cubes(saved(tmp_path / "a.npz", volume=array), tmp_path / name, CubeSettings(side=8))
    assert np.array_equal(load_volumes(tmp_path / "bytes").cubes, some())
    assert np.array_equal(load_volumes(tmp_path / "unit").cubes, some())
    assert load_volumes(tmp_path / "mask").cubes.max() == 255


def test_cubes_of_nifti_of_any_shape(tmp_path: Path) -> None:
    """Bright half-spaces: each image's longest side becomes the cube's."""
    for name, shape in (("a", (10, 20, 20)), ("b", (40, 30, 20))):
        volume = np.full(shape, -1000.0)
        volume[:, shape[1] // 2 :] = 400
        write(tmp_path / "in" / f"{name}.nii.gz", volume, 0.8)
    (tmp_path / "in" / "bad.nii.gz").write_bytes(b"junk")
    (tmp_path / "in" / "facts.csv").write_text("file,label\na.nii.gz,4\nbad.nii.gz,5\nb.nii.gz,6\n")
    result = run(tmp_path / "in", "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr.count("\n") == 1, "what it does"
    said = json.loads(result.stdout)
    assert (said["cubes"], said["asked"], said["flat"]) == (2, 3, 0)
    assert [one["name"] for one in said["failed"]] == ["bad.nii.gz"]
    found = load_volumes(tmp_path / "out")
    assert found.names == ("a.nii.gz", "b.nii.gz")
    assert found.facts["label"].tolist() == [4, 6]
    assert found.facts["side_mm"] == pytest.approx([16, 32])  # 20 and 40 voxels of 0.8 mm
    first, second = found.cubes
    assert not first[:4].any()  # 10 of 20 deep: padded
    assert (first[6:10, 10:] > 250).all()
    assert not first[:, :6].any()
    assert (second[:, 10:12, 6:10] > 250).all()
    assert not second[:, :, :3].any()  # 20 of 40 wide


def test_a_given_size_in_millimetres(tmp_path: Path) -> None:
    """The side that facts give holds for the whole image, not for a part of it."""
    volume = np.zeros((32, 32, 32))
    volume[12:20, 12:20, 12:20] = 1  # 8 mm
    write(tmp_path / "in" / "a.nii.gz", volume)
    (tmp_path / "in" / "facts.csv").write_text("file,side_mm\na.nii.gz,20.5\n")
    for mm, side_mm in ((None, 20.5), (16.0, 16.0)):
        make_cubes(tmp_path / "in", tmp_path / f"out {mm}", CubeSettings(mm=mm))
        found = load_volumes(tmp_path / f"out {mm}")
        assert found.facts["side_mm"].tolist() == [side_mm]
    assert found.cubes[0].sum() / 255 == pytest.approx(8**3, rel=0.02)  # voxels of 1 mm


def test_fine_detail_fades_instead_of_folding() -> None:
    """A pattern finer than the cube's voxels must not come out as a coarse one."""
    x = np.arange(128)
    stripes = np.broadcast_to(0.5 + 0.5 * np.cos(2 * np.pi * x / 7.5), (128, 128, 128))
    image = as_image(stripes.astype(np.float32))
    cube = sample_cube(image, centre_mm=(63.5,) * 3, side=16, mm=128, fill=0)
    assert cube[4:12, 4:12, 2:14].std() < 0.05  # plain sampling: 0.35
    assert stripes[4::8, 4::8, 4::8].std() > 0.3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--side", "15"], "--side 15: give a multiple of 4, such as 16"),
        (["--side", "0"], "--side 0: give a multiple of 4"),
        (["--mm", "0"], "--mm 0: give millimetres above 0"),
        (["--mm", "nan"], "--mm nan: give millimetres above 0"),
        (["--mm", "20"], "knows no millimetres; leave --mm out"),
        (["--window", "5"], "--window 5: give LOW,HIGH, such as -1000,400"),
        (["--window", "400,-1000"], "--window 400,-1000: give a low and a higher value"),
        (["--window", "nan,1"], "--window nan,1: give a low and a higher value"),
    ],
)
def test_bad_settings_leave_nothing_behind(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    source = saved(tmp_path / "a.npz", volume=some())
    result = run(source, "--out", tmp_path / "out", *arguments)
    assert isinstance(result.exception, UserError)
    assert words in str(result.exception)
    assert names_in(tmp_path) == ["a.npz"]


def test_bad_sources_and_targets(tmp_path: Path) -> None:
    source = saved(tmp_path / "a.npz", volume=some())
    broken = saved(tmp_path / "b.npz", volume=np.full((2, 4, 4, 4), np.nan))
    (tmp_path / "out").mkdir()  # an empty one is as good as none
    make_cubes(source, tmp_path / "out")
    again = tmp_path / "again"
    for given, out, said in (
        (source, tmp_path, "exists and is not empty; give a new folder"),
        (source, source, "exists and is not empty"),
        (source, source / "below", "cannot be written"),
        (tmp_path / "nowhere", again, "no such file or folder"),
        (broken, again, r"no cube could be made of .*row 0: holds NaN"),
        (tmp_path / "out", again, "holds cubes already"),
    ):
        with pytest.raises(UserError, match=said):
            make_cubes(given, out)
    assert names_in(tmp_path) == ["a.npz", "b.npz", "out"]


def test_stopping_leaves_nothing_behind(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_cubes(saved(tmp_path / "a.npz", volume=some()), tmp_path / "out", progress=stop)
    assert names_in(tmp_path) == ["a.npz"]


def test_damaged_cube_folders(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    make_cubes(saved(tmp_path / "a.npz", volume=some()), folder)
    voxels, about = (folder / "cubes.npy").read_bytes(), (folder / "cubes.json").read_text()
    damaged = r"damaged or incomplete .* delete it and make it"
    for name, content, said in (
        ("cubes.npy", voxels[:-1] + bytes([voxels[-1] ^ 1]), damaged),
        ("cubes.npy", voxels[:-1], damaged),
        ("cubes.json", about[:-20].encode(), damaged),
        ("cubes.json", b"[]", damaged),
        ("cubes.json", about.replace('"row 0",', "").encode(), damaged),
        ("cubes.json", about.replace('"facts": {}', '"facts": []').encode(), damaged),
        ("cubes.json", about.replace('"format": 1', '"format": 99').encode(), "cube format 99, "),
    ):
        (folder / name).write_bytes(content)
        with pytest.raises(UserError, match=said):
            load_volumes(folder)
        (folder / "cubes.npy").write_bytes(voxels)
        (folder / "cubes.json").write_text(about)
    (folder / "cubes.npy").unlink()
    with pytest.raises(UserError, match="damaged or incomplete"):
        load_volumes(folder)
