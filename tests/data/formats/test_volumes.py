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
from samepath.data.formats.cubes import make_cubes
from samepath.data.formats.cutting import CubeSettings, sample_cube
from samepath.data.formats.images import as_image, read_nifti, simpleitk, write_nifti
from samepath.data.formats.volumes import load_volumes
from samepath.errors import UserError

CT = Path(__file__).parents[4] / "shared" / "data" / "ct_nodules16.npz"


def some(count: int = 3, side: int = 8, dtype: Any = np.uint8) -> NDArray[Any]:
    values = np.random.default_rng(count).integers(0, 256, (count, side, side, side))
    return values.astype(np.uint8) if dtype == np.uint8 else (values / 255).astype(dtype)


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


# ---- NumPy files


@pytest.mark.parametrize("key", ["volume", "volumes", "cubes", "images", "anything"])
def test_npz_with_facts_and_groups(tmp_path: Path, key: str) -> None:
    arrays = {key: some(), "patient": np.array([7, 7, 9]), "label": np.array([[0], [1], [1]])}
    found = load_volumes(saved(tmp_path / "a.npz", **arrays, note=np.array("not one per row")))
    assert np.array_equal(found.cubes, some())
    assert found.cubes.dtype == np.uint8
    assert found.names == ("row 0", "row 1", "row 2")
    assert found.group == ("7", "7", "9")
    assert list(found.facts) == ["label"]
    assert found.facts["label"].tolist() == [0, 1, 1]
    assert found.split is None


def test_without_groups_each_is_its_own(tmp_path: Path) -> None:
    found = load_volumes(saved(tmp_path / "a.npz", volume=some()))
    assert found.group == found.names


def test_a_named_array_wins_over_others_of_four_dimensions(tmp_path: Path) -> None:
    found = load_volumes(saved(tmp_path / "a.npz", mask=some(2), volume=some(3)))
    assert len(found.cubes) == 3


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
def test_floats_become_float32(tmp_path: Path, dtype: Any) -> None:
    found = load_volumes(saved(tmp_path / "a.npz", volume=some(dtype=dtype)))
    assert found.cubes.dtype == np.float32
    assert np.array_equal(found.cubes, some(dtype=dtype).astype(np.float32))


def test_truths_become_bytes(tmp_path: Path) -> None:
    found = load_volumes(saved(tmp_path / "a.npz", volume=some() > 100))
    assert found.cubes.dtype == np.uint8
    assert np.unique(found.cubes).tolist() == [0, 255]


def test_npy_stays_on_disk_and_is_checked_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_PIECE_BYTES", 5000)  # two rows
    array = some(7, dtype=np.float32)
    np.save(tmp_path / "a.npy", array)
    assert isinstance(load_volumes(tmp_path / "a.npy").cubes, np.memmap)
    array[5, 0, 0, 0] = 2
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(UserError, match=r"from 0 to 2, not from 0 to 1; type: samepath cubes .*"):
        load_volumes(tmp_path / "a.npy")
    array[4, 0, 0, 0] = np.nan
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(UserError, match=r"row 4 holds NaN"):
        load_volumes(tmp_path / "a.npy")


def test_generated_nodules_with_their_gaussians(tmp_path: Path) -> None:
    """What `samepath generate` writes: only what is one value per nodule is a fact."""
    facts = {
        "category": np.array(["benign", "malignant", "benign"]),
        "key": np.array([1, 2**64 - 1, 3], np.uint64),
        "side_mm": np.array([20.0, 30.5, 9.0]),
        "mass": np.array([1.0, 2.0, 3.0], np.float32),
    }
    gaussians = {
        "log_alpha": np.zeros((3, 5)),
        "mu": np.zeros((3, 5, 3)),
        "sigma": np.ones((3, 5, 3, 3)),  # four dimensions, but the volumes have their name
        "partial": np.zeros((3, 5, 3)),
    }
    provenance = np.array('{"made_by": "samepath generate"}')
    arrays = {"volumes": some(dtype=np.float32), **facts, **gaussians, "provenance": provenance}
    found = load_volumes(saved(tmp_path / "new.npz", **arrays))
    assert np.array_equal(found.cubes, arrays["volumes"])
    assert found.facts.keys() == facts.keys()
    for name, values in facts.items():
        assert found.facts[name].tolist() == values.tolist()


@pytest.mark.parametrize("side", [28, 64])
def test_medmnist(tmp_path: Path, side: int) -> None:
    arrays: dict[str, Any] = {}
    for word, count in (("train", 3), ("val", 1), ("test", 2)):
        arrays[f"{word}_images"] = some(count, side)
        arrays[f"{word}_labels"] = np.full((count, 1), count)
    found = load_volumes(saved(tmp_path / "nodulemnist3d.npz", **arrays))
    assert found.cubes.shape == (6, side, side, side)
    assert found.split == ("train", "train", "train", "valid", "test", "test")
    assert found.facts["label"].tolist() == [3, 3, 3, 1, 2, 2]
    assert found.names[3:5] == ("valid row 0", "test row 0")
    assert np.array_equal(found.cubes[3], arrays["val_images"][0])


def test_real_ct_nodules() -> None:
    if not CT.exists():
        pytest.skip(f"{CT} is not here")
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
        ({"volume": some()[:0]}, "holds no volumes"),
        ({"volume": some()[:, :0]}, "without voxels"),
        ({"volume": np.array([{}], object).reshape(1, 1, 1, 1)}, "pickled Python objects"),
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
    whole = saved(tmp_path / "whole.npz", volume=some()).read_bytes()
    np.save(tmp_path / "whole.npy", some())
    half = tmp_path / "half.npz"
    half.write_bytes(whole[: len(whole) // 2])
    flipped = tmp_path / "flipped.npz"
    flipped.write_bytes(whole[:600] + b"\0\1\2\3" * 10 + whole[640:])
    short = tmp_path / "short.npy"
    short.write_bytes((tmp_path / "whole.npy").read_bytes()[:-9])
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "empty.npy").write_bytes(b"")
    for name in ("half.npz", "flipped.npz", "short.npy", "text.npz", "empty.npy"):
        with pytest.raises(UserError, match="cannot be read") as caught:
            load_volumes(tmp_path / name)
        assert "\n" not in str(caught.value)
    np.save(tmp_path / "objects.npy", np.array([{}], object))
    with pytest.raises(UserError, match="pickled Python objects, which could run code"):
        load_volumes(tmp_path / "objects.npy")
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(UserError, match=r"no file of volumes; give an \.npz"):
        load_volumes(tmp_path / "a.txt")
    with pytest.raises(UserError, match="no such file or folder"):
        load_volumes(tmp_path / "nowhere")


# ---- NIfTI


@pytest.fixture
def crops(tmp_path: Path) -> Path:
    folder = tmp_path / "crops"
    for number, cube in enumerate(some(3, dtype=np.float32)):
        write_nifti(folder / f"{number}.nii.gz", cube, 0.5)
    return folder


def test_nifti_round_trip(tmp_path: Path) -> None:
    volume = some(1)[0, :4].astype(np.float32)
    for name in ("a.nii.gz", "a.nii"):
        write_nifti(tmp_path / name, volume, 0.75)
        back, spacing = read_nifti(tmp_path / name)
        assert back.dtype == np.float32
        assert np.array_equal(back, volume)
        assert spacing == (0.75, 0.75, 0.75)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.nii", "a.nii.gz"]


def test_nifti_refusals(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no NIfTI name"):
        write_nifti(tmp_path / "a.png", some(1)[0], 1)
    with pytest.raises(UserError, match="3 dimensions"):
        write_nifti(tmp_path / "a.nii", some(1), 1)
    with pytest.raises(UserError, match=r"no such file; give a \.nii"):
        read_nifti(tmp_path / "a.nii")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_nifti(tmp_path / "file" / "a.nii", some(1)[0], 1)


def test_a_folder_of_nifti(crops: Path) -> None:
    found = load_volumes(crops)
    assert found.names == found.group == ("0.nii.gz", "1.nii.gz", "2.nii.gz")
    assert found.cubes.dtype == np.float32
    assert np.array_equal(found.cubes, some(3, dtype=np.float32))
    assert found.facts["side_mm"].tolist() == [4, 4, 4]  # 8 voxels of 0.5 mm


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
    write_nifti(crops / "3.nii.gz", some(1, 4)[0] / 255, 1)
    with pytest.raises(UserError, match=r"3\.nii\.gz has 4 x 4 x 4 voxels, 0\.nii\.gz has 8"):
        load_volumes(crops)
    write_nifti(crops / "3.nii.gz", some(1)[0] * 1.0, 1)
    with pytest.raises(UserError, match=r"not from 0 to 1; type: samepath cubes .* --window LOW"):
        load_volumes(crops)
    write_nifti(crops / "3.nii.gz", np.full((8, 8, 8), np.nan), 1)
    with pytest.raises(UserError, match=r"3\.nii\.gz: holds NaN"):
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
    write_nifti(file, some(1, dtype=np.float32)[0], 1)
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


def test_nan_in_the_last_voxel_of_nifti(tmp_path: Path) -> None:
    volume = np.zeros((5, 5, 5))
    volume[-1, -1, -1] = np.nan
    write_nifti(tmp_path / "a.nii", volume, 1)
    with pytest.raises(UserError, match="holds NaN"):
        read_nifti(tmp_path / "a.nii")


def test_bytes_beside_numbers(crops: Path) -> None:
    simpleitk().WriteImage(as_image(some(1)[0]), str(crops / "3.nii"))
    found = load_volumes(crops)
    assert found.cubes.dtype == np.float32
    assert found.cubes[3] == pytest.approx(some(1)[0] / 255)


def test_without_simpleitk_it_says_what_to_install(
    crops: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "SimpleITK", None)
    with pytest.raises(UserError, match=r"pip install 'samepath\[medical\]'"):
        load_volumes(crops)


def test_numpy_files_need_no_simpleitk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "SimpleITK", None)
    assert len(load_volumes(saved(tmp_path / "a.npz", volume=some())).cubes) == 3


# ---- samepath cubes


def run(*arguments: object) -> Any:
    return CliRunner().invoke(cubes_command, [str(a) for a in arguments])


def test_cubes_of_arrays_keep_what_is_known(tmp_path: Path) -> None:
    facts = {"patient": np.array([1, 1, 2]), "weight": np.array([1.5, np.nan, np.inf])}
    source = saved(tmp_path / "a.npz", volume=some(), **facts)
    result = run(source, "--out", tmp_path / "out", "--side", "8")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0].startswith("3 cubes of 8 x 8 x 8 voxels")
    assert result.stderr == ""
    assert result.stdout.splitlines()[-1] == f"samepath train nodules --data {tmp_path / 'out'}"
    found = load_volumes(tmp_path / "out")
    assert isinstance(found.cubes, np.memmap)
    assert np.array_equal(found.cubes, some())  # the same side: nothing is lost
    assert found.group == ("1", "1", "2")
    assert np.array_equal(found.facts["weight"], facts["weight"], equal_nan=True)
    assert list(found.facts) == ["weight"]  # no millimetres: nobody knows them


def test_cubes_keep_medmnists_split(tmp_path: Path) -> None:
    source = saved(tmp_path / "a.npz", train_images=some(2, 28), val_images=some(1, 28))
    make_cubes(source, tmp_path / "out")
    found = load_volumes(tmp_path / "out")
    assert found.split == ("train", "train", "valid")
    assert found.cubes.shape == (3, 16, 16, 16)


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
    assert about["window"] == [-1000, 400]
    assert about["side"] == 16


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
        write_nifti(tmp_path / "in" / f"{name}.nii.gz", volume, 0.8)
    (tmp_path / "in" / "bad.nii.gz").write_bytes(b"junk")
    (tmp_path / "in" / "facts.csv").write_text("file,label\na.nii.gz,4\nbad.nii.gz,5\nb.nii.gz,6\n")
    result = run(tmp_path / "in", "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    said = json.loads(result.stdout)
    assert (said["cubes"], said["asked"], said["flat"]) == (2, 3, 0)
    assert [one["name"] for one in said["failed"]] == ["bad.nii.gz"]
    found = load_volumes(tmp_path / "out")
    assert found.names == ("a.nii.gz", "b.nii.gz")
    assert found.facts["label"].tolist() == [4, 6]
    assert found.facts["side_mm"] == pytest.approx([16, 32])  # 20 and 40 voxels of 0.8 mm
    assert "side_mm" in json.loads((tmp_path / "out" / "cubes.json").read_text())["facts"]
    first, second = found.cubes
    assert not first[:4].any()  # 10 of 20 deep: padded
    assert (first[6:10, 10:] > 250).all()
    assert not first[:, :6].any()
    assert (second[:, 10:12, 6:10] > 250).all()
    assert not second[:, :, :3].any()  # 20 of 40 wide


def test_a_given_size_in_millimetres(tmp_path: Path) -> None:
    volume = np.zeros((32, 32, 32))
    volume[12:20, 12:20, 12:20] = 1  # 8 mm
    write_nifti(tmp_path / "in" / "a.nii.gz", volume, 1.0)
    make_cubes(tmp_path / "in", tmp_path / "out", CubeSettings(mm=16))
    cube = load_volumes(tmp_path / "out").cubes[0]
    assert cube.sum() / 255 == pytest.approx(8**3, rel=0.02)  # voxels of 1 mm


def test_the_side_that_facts_give(tmp_path: Path) -> None:
    """It holds for the whole image, not for a part of it."""
    write_nifti(tmp_path / "in" / "a.nii.gz", some(1)[0] / 255, 1.0)
    (tmp_path / "in" / "facts.csv").write_text("file,side_mm\na.nii.gz,20.5\n")
    for mm, side_mm in ((None, 20.5), (4.0, 4.0)):
        out = tmp_path / f"out {mm}"
        make_cubes(tmp_path / "in", out, CubeSettings(mm=mm))
        assert load_volumes(out).facts["side_mm"].tolist() == [side_mm]


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
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


def test_bad_sources_and_targets(tmp_path: Path) -> None:
    source = saved(tmp_path / "a.npz", volume=some())
    with pytest.raises(UserError, match="exists and is not empty; give a new folder"):
        make_cubes(source, tmp_path)
    with pytest.raises(UserError, match="exists and is not empty"):
        make_cubes(source, source)
    with pytest.raises(UserError, match="cannot be written"):
        make_cubes(source, source / "below")
    with pytest.raises(UserError, match="no such file or folder"):
        make_cubes(tmp_path / "nowhere", tmp_path / "out")
    broken = saved(tmp_path / "b.npz", volume=np.full((2, 4, 4, 4), np.nan))
    with pytest.raises(UserError, match=r"no cube could be made of .*row 0: holds NaN"):
        make_cubes(broken, tmp_path / "out")
    (tmp_path / "out").mkdir()  # an empty one is as good as none
    make_cubes(source, tmp_path / "out")
    with pytest.raises(UserError, match="holds cubes already"):
        make_cubes(tmp_path / "out", tmp_path / "again")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npz", "b.npz", "out"]


def test_stopping_leaves_nothing_behind(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_cubes(saved(tmp_path / "a.npz", volume=some()), tmp_path / "out", progress=stop)
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


def test_one_single_value_is_pointed_out(tmp_path: Path) -> None:
    source = saved(tmp_path / "a.npz", volume=some())
    result = run(source, "--out", tmp_path / "out", "--window", "1000,2000")
    assert "3 cubes with one single value: does --window fit the data?" in result.stdout


def test_damaged_cube_folders(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    make_cubes(saved(tmp_path / "a.npz", volume=some()), folder)
    voxels, about = (folder / "cubes.npy").read_bytes(), (folder / "cubes.json").read_text()
    for name, content in (
        ("cubes.npy", voxels[:-1] + bytes([voxels[-1] ^ 1])),
        ("cubes.npy", voxels[:-1]),
        ("cubes.json", about[:-20].encode()),
        ("cubes.json", b"[]"),
        ("cubes.json", about.replace('"row 0",', "").encode()),
        ("cubes.json", about.replace('"facts": {}', '"facts": []').encode()),
    ):
        (folder / name).write_bytes(content)
        with pytest.raises(UserError, match=r"damaged or incomplete .* delete it and make it"):
            load_volumes(folder)
        (folder / "cubes.npy").write_bytes(voxels)
        (folder / "cubes.json").write_text(about)
    (folder / "cubes.json").write_text(about.replace('"format": 1', '"format": 99'))
    with pytest.raises(UserError, match="cube format 99, this samepath reads 1"):
        load_volumes(folder)
    (folder / "cubes.json").write_text(about)
    (folder / "cubes.npy").unlink()
    with pytest.raises(UserError, match="damaged or incomplete"):
        load_volumes(folder)
