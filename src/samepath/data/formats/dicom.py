"""DICOM: series of slices as images, and volumes with their masks as series and segmentations.

In: folders with .dcm files of one or several series; arrays. Out: images that know their place in
millimetres, as `images.read_image` gives them; a CT series and a DICOM-SEG of it. Guaranteed:
slices are sorted by their places, not their names or numbers; a series with a slice missing, twice,
tilted or of another grid raises `ImageProblem`, and so does a file whose header claims other bytes
than it has, or that would have to be unpacked. A written series has the same bytes for the same
input (its segmentation says when it was made). pydicom and highdicom are optional parts, imported
when the first file is touched.
"""

from __future__ import annotations

import hashlib
import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samepath.data.formats.images import Image, ImageProblem, check_place, simpleitk
from samepath.data.formats.listing import by
from samepath.errors import UserError
from samepath.files import brief, check_memory, guarded, read_whole

DICOM = ".dcm"
MOST_BYTES = 1 << 27
"""Of one file: a slice of 8192 x 8192 voxels of two bytes."""
_PLAIN = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.2")
"""Transfer syntaxes that store voxels as they are: implicit, explicit, big-endian."""
_ROUND = 1e-3
"""How far directions may be from right angles, and gaps from each other (in gaps)."""
_MOST_SLICES = 100_000
_KINDS = {8: "1", 16: "2", 32: "4"}
_CT = "1.2.840.10008.5.1.4.1.1.2"


def pydicom() -> Any:
    """The pydicom module, or an error that says how to install it."""
    try:
        import pydicom
    except ImportError as error:
        raise UserError(
            "DICOM files need pydicom and highdicom, which are not installed; type: pip install "
            "'samepath[dicom]'"
        ) from error
    return pydicom


# ---- reading


def find_series(files: Sequence[Path]) -> dict[str, list[Path]]:
    """Files of each series of slices, by SeriesInstanceUID; files that hold none (a segmentation,
    a report, something damaged) are left out."""
    found: dict[str, list[Path]] = {}
    for file in files:
        try:
            head = _read(file, stop_before_pixels=True)
            with _read_of(file.name):
                uid = str(head.SeriesInstanceUID)
                has_place = "ImagePositionPatient" in head and "Rows" in head
        except ImageProblem:
            continue
        if has_place:
            found.setdefault(uid, []).append(file)
    return found


def read_series(files: Sequence[Path]) -> Image:
    """The image of a series' slices: float32, after the rescale slope and intercept."""
    if len(files) > _MOST_SLICES:
        raise ImageProblem(f"has {len(files):,} slices; at most {_MOST_SLICES:,} are read")
    return _stacked([_Slice(file) for file in files])


class _Slice:
    """One file's voxels and place, checked."""

    def __init__(self, file: Path) -> None:
        self.name = file.name
        head = _read(file)
        with _read_of(self.name):
            shape = int(head.Rows), int(head.Columns)
            bits, sign = int(head.BitsAllocated), int(head.get("PixelRepresentation", 0))
            samples = int(head.get("SamplesPerPixel", 1))
            frames = int(head.get("NumberOfFrames", 1) or 1)
            self.position = _numbers(head.ImagePositionPatient, 3)
            self.axes = _numbers(head.ImageOrientationPatient, 6)
            self.spacing = _numbers(head.PixelSpacing, 2)
            slope, intercept = (
                float(head.get(name, default))
                for name, default in (("RescaleSlope", 1.0), ("RescaleIntercept", 0.0))
            )
            content = bytes(head.PixelData)
            self.series = str(head.SeriesInstanceUID)
        if samples != 1 or frames != 1:
            raise ImageProblem(f"{self.name} has {samples} numbers per voxel, {frames} frames")
        if bits not in _KINDS or sign not in (0, 1):
            raise ImageProblem(f"{self.name} has voxels of {bits} bits")
        if not (math.isfinite(slope) and math.isfinite(intercept)):
            raise ImageProblem(f"{self.name} rescales by {slope:g} and {intercept:g}")
        num_bytes = shape[0] * shape[1] * bits // 8
        if min(shape) < 1 or len(content) - num_bytes not in (0, 1):  # to an even length
            raise ImageProblem(
                f"{self.name} has {len(content):,} bytes of voxels, and its header says {by(shape)}"
            )
        order = ">" if head.original_encoding[1] is False else "<"
        kind = np.dtype(order + "ui"[sign] + _KINDS[bits])
        stored = np.frombuffer(content, kind, shape[0] * shape[1]).reshape(shape)
        self.values = stored.astype(np.float32) * np.float32(slope) + np.float32(intercept)
        if not np.isfinite(self.values).all():
            raise ImageProblem(f"{self.name} holds values that are no finite numbers")


def _stacked(slices: list[_Slice]) -> Image:
    first = slices[0]
    for each in slices:
        for name in ("series", "axes", "spacing"):
            if getattr(each, name) != getattr(first, name):
                raise ImageProblem(f"{each.name} has another {name} than {first.name}")
        if each.values.shape != first.values.shape:
            raise ImageProblem(
                f"{each.name} has {by(each.values.shape)} voxels, {first.name} "
                f"{by(first.values.shape)}"
            )
    try:
        check_memory(2 * len(slices) * first.values.nbytes)
    except ValueError as error:
        raise ImageProblem(f"is too large: {error}") from None
    row, column = np.array(first.axes[:3]), np.array(first.axes[3:])
    lengths = abs(row @ row - 1.0), abs(column @ column - 1.0), abs(row @ column)
    if max(lengths) > _ROUND:
        raise ImageProblem("its axes are not at right angles")
    normal = np.cross(row, column)
    slices = sorted(slices, key=lambda each: float(normal @ each.position))
    places = np.array([each.position for each in slices])
    origin = places[0]
    if len(slices) < 2:
        raise ImageProblem("is one slice, and a volume needs several")
    steps = np.diff(places, axis=0)
    gap = float(np.median(steps @ normal))
    if not gap > 0:
        raise ImageProblem("has slices at one place (several series under one name?)")
    check_place((first.spacing[1], first.spacing[0], gap), origin.tolist())
    off = np.abs(steps - gap * normal).max(1) / gap
    if off.max() > 10 * _ROUND:
        worst = int(off.argmax())
        apart = float(steps[worst] @ normal)
        what = "a slice is missing, or there twice" if abs(apart - gap) > _ROUND * gap else "tilted"
        raise ImageProblem(
            f"its slices are not evenly apart ({slices[worst].name} and {slices[worst + 1].name}: "
            f"{apart:.4g} mm, others {gap:.4g} mm): {what}"
        )
    image = simpleitk().GetImageFromArray(np.stack([each.values for each in slices]))
    image.SetSpacing([first.spacing[1], first.spacing[0], gap])
    image.SetOrigin(origin.tolist())
    image.SetDirection(np.stack([row, column, normal], axis=1).ravel().tolist())
    return image


def _read(file: Path, *, stop_before_pixels: bool = False) -> Any:
    """A file's data set; its transfer syntax is looked at before anything is unpacked."""
    dicom = pydicom()
    with _read_of(file.name):
        content = read_whole(file, MOST_BYTES)

        def read() -> Any:
            about = dicom.filereader.read_file_meta_info(file)
            syntax = str(about.get("TransferSyntaxUID", ""))
            if syntax not in _PLAIN:
                name = dicom.uid.UID(syntax).name or "in an unknown way"
                raise ValueError(f"its voxels are packed ({name}); unpack it: gdcmconv --raw")
            return dicom.dcmread(io.BytesIO(content), stop_before_pixels=stop_before_pixels)

        return guarded(read)


@contextmanager
def _read_of(name: str) -> Iterator[None]:
    """Say in one line what is wrong with a file, whatever pydicom raises."""
    try:
        # neither warned nor logged: what is used of odd values is checked here
        with warnings.catch_warnings(), pydicom().config.disable_value_validation():
            warnings.simplefilter("ignore")
            yield
    except FileNotFoundError as error:
        raise ImageProblem(f"{name}: no such file") from error
    except (OSError, ValueError, AttributeError, TypeError, KeyError, ArithmeticError) as error:
        raise ImageProblem(f"{name} is no DICOM slice that can be used ({brief(error)})") from error
    except (NotImplementedError, RecursionError, MemoryError) as error:
        raise ImageProblem(f"{name} is no DICOM slice that can be used (damaged header)") from error


def _numbers(values: Any, count: int) -> tuple[float, ...]:
    found = tuple(float(value) for value in values)
    if len(found) != count or not all(math.isfinite(value) for value in found):
        raise ValueError(f"its header gives {len(found)} numbers where {count} are needed")
    return found


# ---- writing


def write_series(
    folder: Path,
    volume: NDArray[np.floating[Any]],
    mask: NDArray[np.bool_] | None,
    *,
    spacing_mm: float,
    window: tuple[float, float],
    name: str,
) -> list[Path]:
    """Write a (z, y, x) volume in [0, 1] as a CT series, in a folder that exists, and its mask as a
    DICOM-SEG that refers to it. Values of the window become 0 and 1; they are stored in 16 bits."""
    dicom = pydicom()
    low, high = window
    stored = np.rint(np.clip(volume, 0.0, 1.0).astype(np.float64) * 65535.0).astype("<u2")
    seeds = [name, hashlib.sha256(stored.tobytes()).hexdigest(), f"{spacing_mm!r} {window!r}"]

    def uid(*what: str) -> Any:
        return dicom.uid.generate_uid(entropy_srcs=[*seeds, *what])

    study, series, frame = uid("study"), uid("series"), uid("frame")
    written, slices = [], []
    for number, plane in enumerate(stored):
        one = dicom.Dataset()
        one.file_meta = dicom.dataset.FileMetaDataset()
        one.file_meta.TransferSyntaxUID = dicom.uid.ExplicitVRLittleEndian
        one.file_meta.MediaStorageSOPClassUID = one.SOPClassUID = _CT
        instance = uid("slice", str(number))
        one.file_meta.MediaStorageSOPInstanceUID = one.SOPInstanceUID = instance
        one.StudyInstanceUID, one.SeriesInstanceUID, one.FrameOfReferenceUID = study, series, frame
        one.ImageType, one.Modality = ["DERIVED", "SECONDARY", "AXIAL"], "CT"
        one.PatientName, one.PatientID, one.PatientSex, one.PatientBirthDate = name, name, "", ""
        one.StudyDate, one.StudyTime, one.StudyID, one.AccessionNumber = "", "", "1", ""
        one.ReferringPhysicianName, one.Manufacturer = "", "samepath"
        one.SeriesDescription = "generated, not a patient's"
        one.SeriesNumber, one.AcquisitionNumber, one.InstanceNumber = 1, 1, number + 1
        one.PositionReferenceIndicator, one.KVP, one.PatientPosition = "", None, "HFS"
        one.ImagePositionPatient = [0.0, 0.0, _decimal(number * spacing_mm)]
        one.ImageOrientationPatient = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
        one.PixelSpacing = [_decimal(spacing_mm)] * 2
        one.SliceThickness = _decimal(spacing_mm)
        one.SamplesPerPixel, one.PhotometricInterpretation = 1, "MONOCHROME2"
        one.Rows, one.Columns = plane.shape
        one.BitsAllocated = one.BitsStored = 16
        one.HighBit, one.PixelRepresentation = 15, 0
        one.RescaleIntercept, one.RescaleSlope = _decimal(low), _decimal((high - low) / 65535.0)
        one.RescaleType = "HU"
        one.WindowCenter, one.WindowWidth = _decimal((low + high) / 2), _decimal(high - low)
        one.PixelData = plane.tobytes()
        path = folder / f"slice-{number:04d}{DICOM}"
        one.save_as(path, enforce_file_format=True)
        slices.append(one)
        written.append(path)
    if mask is not None:
        path = folder / f"segmentation{DICOM}"
        _segmentation(slices, mask, uid).save_as(path)
        written.append(path)
    return written


def _decimal(value: float) -> Any:
    """A number in the 16 characters that DICOM has for one."""
    return pydicom().valuerep.DSfloat(value, auto_format=True)


def _segmentation(slices: list[Any], mask: NDArray[np.bool_], uid: Any) -> Any:
    with warnings.catch_warnings():  # highdicom's, of names without a comma
        warnings.simplefilter("ignore")
        import highdicom
        from pydicom.sr.codedict import codes

        described = highdicom.seg.SegmentDescription(
            segment_number=1,
            segment_label="nodule",
            segmented_property_category=codes.SCT.MorphologicallyAbnormalStructure,
            segmented_property_type=codes.SCT.Nodule,
            algorithm_type=highdicom.seg.SegmentAlgorithmTypeValues.AUTOMATIC,
            algorithm_identification=highdicom.AlgorithmIdentificationSequence(
                name="samepath", version="1", family=codes.DCM.ArtificialIntelligence
            ),
        )
        return highdicom.seg.Segmentation(
            source_images=slices,
            pixel_array=mask.astype(np.uint8),
            segmentation_type=highdicom.seg.SegmentationTypeValues.BINARY,
            segment_descriptions=[described],
            series_instance_uid=uid("segmentation series"),
            series_number=2,
            sop_instance_uid=uid("segmentation"),
            instance_number=1,
            manufacturer="samepath",
            manufacturer_model_name="samepath",
            software_versions="1",
            device_serial_number="1",
            omit_empty_frames=False,
        )
