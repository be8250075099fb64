"""DICOM series and pairs: round trips through SimpleITK, nibabel, MONAI and highdicom."""

from __future__ import annotations

import csv
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest

from samepath.data.formats.dicom import find_series, read_series, write_series
from samepath.data.formats.images import ImageProblem, simpleitk
from samepath.data.formats.pairs import write_pairs
from samepath.data.formats.scans import CubeSettings
from samepath.data.formats.volumes import load_masks, load_volumes, make_cubes
from samepath.errors import UserError

VOLUME = np.random.default_rng(0).random((5, 6, 8))
MASK = VOLUME > 0.6
WINDOW = (-1000.0, 400.0)
UNITS = -1000 + 1400 * VOLUME


@pytest.fixture
def series(tmp_path: Path) -> Path:
    folder = tmp_path / "series"
    folder.mkdir()
    write_series(folder, VOLUME, MASK, spacing_mm=0.7, window=WINDOW, name="a")
    return folder


def slices(folder: Path) -> list[Path]:
    (files,) = find_series(sorted(folder.glob("*.dcm"))).values()
    return files


def change(file: Path, **values: Any) -> None:
    one = pydicom.dcmread(file)
    for name, value in values.items():
        setattr(one, name, value)
    one.save_as(file)


def test_a_series_is_read_as_itk_reads_it(series: Path) -> None:
    sitk, files = simpleitk(), slices(series)
    assert len(files) == 5  # and not the segmentation
    reader = sitk.ImageSeriesReader()
    reader.SetFileNames([str(file) for file in files])
    theirs, ours = reader.Execute(), read_series(files[::-1])
    assert ours.GetSpacing() == pytest.approx((0.7, 0.7, 0.7))
    for name in ("GetSize", "GetSpacing", "GetOrigin", "GetDirection"):
        assert getattr(ours, name)() == pytest.approx(getattr(theirs, name)())
    assert np.allclose(sitk.GetArrayFromImage(ours), UNITS, atol=0.02)
    assert np.allclose(sitk.GetArrayFromImage(theirs), UNITS, atol=0.02)


def test_orientation_and_places_are_the_scanners(series: Path) -> None:
    """A sagittal series with other spacings, its files named in any order."""
    for number, file in enumerate(sorted(series.glob("slice*"))):
        change(
            file,
            ImageOrientationPatient=[0, 1, 0, 0, 0, -1],
            ImagePositionPatient=[10 - 2.5 * number, -20, 30],
            PixelSpacing=[0.5, 0.8],
            InstanceNumber=1,
        )
        file.rename(series / f"{(number * 3) % 5}.dcm")
    image = read_series(slices(series))
    assert image.GetSpacing() == pytest.approx((0.8, 0.5, 2.5))
    assert image.GetOrigin() == pytest.approx((10, -20, 30))
    # the first voxel of the last slice
    assert image.TransformIndexToPhysicalPoint((0, 0, 4)) == pytest.approx((0, -20, 30))
    assert image.TransformIndexToPhysicalPoint((1, 2, 0)) == pytest.approx((10, -19.2, 29))
    reader = simpleitk().ImageSeriesReader()
    reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(series), image_uid(series)))
    theirs = reader.Execute()
    for name in ("GetSize", "GetSpacing", "GetOrigin", "GetDirection"):
        assert getattr(image, name)() == pytest.approx(getattr(theirs, name)())
    one, other = (simpleitk().GetArrayFromImage(each) for each in (image, theirs))
    assert np.allclose(one, other, atol=0.001)


def image_uid(folder: Path) -> str:
    (uid,) = find_series(sorted(folder.glob("*.dcm")))
    return uid


def test_the_segmentation_refers_to_its_slices(series: Path) -> None:
    from highdicom.seg import segread

    found = segread(series / "segmentation.dcm")
    uids = [pydicom.dcmread(file).SOPInstanceUID for file in slices(series)]
    masks = found.get_pixels_by_source_instance(uids, combine_segments=True)
    assert np.array_equal(masks, MASK)
    volume = found.get_volume(combine_segments=True)
    assert np.linalg.norm(volume.affine[:3, :3], axis=0) == pytest.approx([0.7] * 3)


def deflated(file: Path) -> None:
    """A file that claims to be packed: a bomb, if it were believed."""
    one = pydicom.dcmread(file)
    one.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    one.save_as(file)
    content = file.read_bytes()
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    file.write_bytes(content[:400] + packer.compress(bytes(1 << 24)) + packer.flush())


DAMAGE: dict[str, tuple[Any, str]] = {
    "missing": (lambda file: file.unlink(), "a slice is missing"),
    "twice": (
        lambda file: change(file, ImagePositionPatient=[0, 0, 0.7]),
        "not evenly apart|at one place",
    ),
    "tilted": (lambda file: change(file, ImagePositionPatient=[0, 0.3, 1.4]), "tilted"),
    "other grid": (lambda file: change(file, PixelSpacing=[1, 1]), "another spacing"),
    "too many rows": (lambda file: change(file, Rows=60000, Columns=60000), "bytes of voxels"),
    "no numbers": (lambda file: change(file, RescaleSlope="inf"), "rescales by inf"),
    "several frames": (lambda file: change(file, NumberOfFrames=100000), "100000 frames"),
    "no direction": (
        lambda file: change(file, ImageOrientationPatient=[1, 0, 0, 1, 0, 0]),
        "another axes",
    ),
    "cut": (lambda file: file.write_bytes(file.read_bytes()[:-40]), "slice-0002.dcm"),
    "packed": (deflated, "its voxels are packed"),
}


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_damaged_series_are_refused(name: str, series: Path) -> None:
    damage, said = DAMAGE[name]
    files = slices(series)
    damage(files[2])
    with pytest.raises(ImageProblem, match=said) as raised:
        read_series([file for file in files if file.exists()])
    assert "\n" not in str(raised.value)


def test_cubes_of_series(series: Path, tmp_path: Path) -> None:
    """By name where there are annotations, else one of each series."""
    uid = image_uid(series)
    report = make_cubes(tmp_path, tmp_path / "plain", CubeSettings(side=4, mm=2.8))
    assert (report.num_cubes, report.failed) == (1, [])
    cubes = load_volumes(tmp_path / "plain")
    assert cubes.names == (f"series {uid}",)
    assert cubes.facts["side_mm"].tolist() == [2.8]
    shutil.rmtree(tmp_path / "plain")
    (tmp_path / "annotations.csv").write_text(
        f"seriesuid,coordX,coordY,coordZ,diameter_mm\n{uid},2.1,2.1,1.4,3\n", encoding="utf-8"
    )
    made = make_cubes(tmp_path, tmp_path / "luna", CubeSettings(side=4, mm=2.8))
    assert made.num_cubes == 1
    (voxels,) = load_volumes(tmp_path / "luna").cubes
    # voxel (z, y, x) lies at 1.4 - 1.05 + 0.7 z: between slices 0 and 1, rows and columns 1 and 2
    between = VOLUME[0:2, 1:3, 1:3].mean() * 255
    assert abs(int(voxels[0, 0, 0]) - between) <= 1


def test_a_folder_of_slices_says_what_to_type(series: Path) -> None:
    with pytest.raises(UserError, match=r"holds DICOM slices; .* samepath cubes"):
        load_volumes(series)


# ---- pairs


@pytest.fixture
def cubes(tmp_path: Path) -> Path:
    path = tmp_path / "new.npz"
    random = np.random.default_rng(1)
    volume = random.random((2, 8, 8, 8)).astype(np.float32)
    np.savez(path, volume=volume, mask=volume > 0.5, side_mm=[8.0, 12.0], label=[0, 1])
    return path


@pytest.mark.filterwarnings("ignore")  # MONAI's, of readers that are not there
def test_nifti_pairs_open_everywhere(cubes: Path, tmp_path: Path) -> None:
    nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed")
    pytest.importorskip("monai", reason="monai is not installed")
    from monai.transforms import LoadImaged

    result = write_pairs(cubes, tmp_path / "out", window=(-1000, 400))
    assert (result.num_volumes, result.has_masks, result.spacing_mm) == (2, True, (1.0, 1.5))
    volume, mask = (np.load(cubes)[name][1] for name in ("volume", "mask"))
    files = [str(tmp_path / "out" / f"nodule-001{end}.nii.gz") for end in ("", "-mask")]
    sitk = simpleitk()
    images = [sitk.ReadImage(file) for file in files]
    for image in images:
        assert image.GetSpacing() == pytest.approx((1.5,) * 3)
        assert image.GetDirection() == pytest.approx(np.eye(3).ravel())
    assert images[1].GetPixelID() == sitk.sitkUInt8
    assert np.allclose(sitk.GetArrayFromImage(images[0]), volume * 1400 - 1000, atol=1e-3)
    assert np.array_equal(sitk.GetArrayFromImage(images[1]), mask)
    theirs: Any = nibabel.load(files[0])
    axes = nibabel.orientations.aff2axcodes(theirs.affine)
    assert axes == ("L", "P", "S")  # x, y and z of ITK
    assert theirs.header.get_zooms() == pytest.approx((1.5,) * 3)
    assert np.allclose(theirs.get_fdata().T, volume * 1400 - 1000, atol=1e-3)
    pair = LoadImaged(["image", "label"], reader="NibabelReader")(
        {"image": files[0], "label": files[1]}
    )
    assert np.allclose(pair["image"].numpy().T, volume * 1400 - 1000, atol=1e-3)
    assert np.array_equal(pair["label"].numpy().T, mask)
    assert np.allclose(pair["image"].affine, pair["label"].affine)
    with (tmp_path / "out" / "facts.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == ["nodule-000.nii.gz", "nodule-001.nii.gz"]
    assert [row["label"] for row in rows] == ["0", "1"]


def test_nifti_pairs_are_read_again(cubes: Path, tmp_path: Path) -> None:
    given, out = np.load(cubes), tmp_path / "out"
    write_pairs(cubes, out, window=(-1000, 400))
    again = load_volumes(out)
    assert np.allclose(again.cubes, given["volume"], atol=1e-5)
    assert again.cubes.min() >= 0
    assert again.facts["side_mm"].tolist() == [8.0, 12.0]
    assert again.facts["label"].tolist() == [0, 1]
    assert "window_low" not in again.facts
    masks = load_masks(out, again.cubes.shape)
    assert masks is not None
    assert np.array_equal(masks, given["mask"])
    write_pairs(out, tmp_path / "twice")
    assert np.array_equal(load_masks(tmp_path / "twice", masks.shape), masks)  # type: ignore[arg-type]
    report = make_cubes(out, tmp_path / "made", CubeSettings(side=8))
    assert report.num_cubes == 2  # and none of a mask
    assert np.allclose(load_volumes(tmp_path / "made").cubes / 255, given["volume"], atol=0.01)


def test_pairs_of_others_are_read_or_refused_in_a_line(cubes: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_pairs(cubes, out)
    (out / "facts.csv").unlink()
    with pytest.raises(
        UserError, match=r"reach from -\S+ to \S+, not .* window_low and window_high"
    ):
        load_volumes(out)
    names = ["nodule-000.nii.gz", "nodule-001.nii.gz"]
    rows = "".join(f"{name},-1000,400\n" for name in names)
    (out / "facts.csv").write_text(f"file,window_low,window_high\n{rows}")
    shape = load_volumes(out).cubes.shape
    mask = out / "nodule-001-mask.nii.gz"
    image = simpleitk().ReadImage(str(mask))
    image.SetSpacing((1.0, 1.5, 1.5))
    simpleitk().WriteImage(image, str(mask))
    with pytest.raises(UserError, match=r"001-mask.nii.gz does not lie where nodule-001.nii.gz do"):
        load_masks(out, shape)
    mask.unlink()
    with pytest.raises(UserError, match=r"001.nii.gz has no mask nodule-001-mask.nii.gz beside it"):
        load_masks(out, shape)
    (out / "nodule-000-mask.nii.gz").unlink()
    assert load_masks(out, shape) is None
    write_pairs(cubes, tmp_path / "b")
    for file in (tmp_path / "b").glob("*.nii.gz"):
        image = simpleitk().ReadImage(str(file))
        image.SetSpacing((0.7, 0.7, 1.25))
        simpleitk().WriteImage(image, str(file))
    with pytest.raises(UserError, match=r"voxels are 0.69\d* x 0.69\d* x 1.25 mm|0.7 x 0.7 x 1.25"):
        load_masks(tmp_path / "b", shape)


@pytest.mark.filterwarnings("ignore")
def test_dicom_pairs_open_in_monai(cubes: Path, tmp_path: Path) -> None:
    pytest.importorskip("monai", reason="monai is not installed")
    from monai.transforms import LoadImage

    write_pairs(cubes, tmp_path / "out", "dicom", window=(0, 1))
    volume = np.load(cubes)["volume"][0]
    folder = tmp_path / "out" / "nodule-000"
    image = read_series(slices(folder))
    assert np.allclose(simpleitk().GetArrayFromImage(image), volume, atol=1e-5)
    (folder / "segmentation.dcm").unlink()
    theirs = LoadImage(reader="PydicomReader")(str(folder))
    assert sorted(theirs.shape) == [8, 8, 8]
    assert np.allclose(np.sort(theirs.numpy().ravel()), np.sort(volume.ravel()), atol=1e-4)


def test_bad_pairs_are_refused_and_nothing_is_written(cubes: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    given = dict(np.load(cubes))
    for changes, said in (
        ({"mask": given["mask"][:, :4]}, "mask has the shape"),
        ({"mask": given["mask"] & False}, "the mask of row 0 is empty"),
        ({"mask": given["mask"] * 3}, "more than 0 and 1"),
        ({"side_mm": np.array([1.0, -1.0])}, "side_mm must be a number above 0"),
    ):
        np.savez(tmp_path / "bad.npz", **given | changes)
        with pytest.raises(UserError, match=said):
            write_pairs(tmp_path / "bad.npz", out)
    with pytest.raises(UserError, match="--spacing 0"):
        write_pairs(cubes, out, spacing_mm=0.0)
    with pytest.raises(UserError, match="--window 1,0"):
        write_pairs(cubes, out, window=(1, 0))
    assert not out.exists()
    out.mkdir()
    with pytest.raises(UserError, match="exists"):
        write_pairs(cubes, out)
