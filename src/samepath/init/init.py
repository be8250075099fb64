"""Writes a recipe that runs, with comments, from data or from a training script.

In: a path (or a Hugging Face name), what it is where that cannot be seen, the target column of a
table. Out: a recipe file; what a person should look at in it. The templates are the text files in
`templates/`: a recipe each, with a few words between @ signs.
Guaranteed: data is only listed, or its head read; no script is run; no file is written over.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samepath.errors import UserError
from samepath.files import brief, write_atomically
from samepath.init.script import recipe_of_script

KINDS = {
    "images": "pictures in folders, one folder per class",
    "csv": "a table: a CSV file",
    "numpy": "NumPy arrays: an .npz or .npy file",
    "volumes": "NIfTI or DICOM volumes: in folders, one per class, or images/ and labels/ (masks)",
    "huggingface": "a Hugging Face data set of texts and labels: its name, or a folder",
    "monai": "a MONAI bundle (a folder with configs/train.json), or a data list: dataset.json",
    "script": "an existing training script: a Python file, which is read and never run",
}
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
NIFTI = (".nii", ".nii.gz")
MOST_CLASSES = 50
"""A column of whole numbers with more values is one of numbers."""
_PAIRS = (("images", "labels"), ("imagesTr", "labelsTr"), ("images", "masks"), ("image", "label"))
_TARGETS = ("target", "label", "labels", "y", "class", "targets")

Words = dict[str, Any]


@dataclass(frozen=True)
class Written:
    """A recipe file, and what there is to say about it."""

    out: Path
    kind: str
    found: str
    """What was seen of the data, in words."""
    look: list[str]
    """What a person should look at."""

    @property
    def commands(self) -> list[str]:
        """Three commands to try."""
        return [
            f"samepath train {self.out}",
            f"samepath verify {self.out} -n 1,2,3",
            f"samepath advise {self.out}",
        ]


def write_recipe(
    data: str, out: Path, *, kind: str | None = None, target: str | None = None
) -> Written:
    """Write a recipe for what is at `data`."""
    if out.suffix != ".py":
        raise UserError(f"--out {out}: give a name that ends in .py")
    if out.exists():
        raise UserError(f"--out {out} is there already; give another name, or remove it")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}; make it, or give another")
    kind = kind or guess_kind(data)
    path = Path(data)
    if kind != "huggingface" and not path.exists():
        raise UserError(f"{data}: there is no such file or folder; check the path")
    if target is not None and kind not in ("csv", "numpy"):
        raise UserError(f"--target {target} is for tables and arrays, and this is {kind}")
    if kind == "script":
        text, found = recipe_of_script(path)
    elif kind == "huggingface":
        name = str(path.resolve()) if path.is_dir() else data
        text, found = _filled("huggingface", {"DATA": name}), name
    else:
        template, words, found = _READERS[kind](path, target)
        text = _filled(template, {"DATA": str(path.resolve()), **words})
    write_atomically(out, text)
    lines = [line.strip() for line in text.splitlines() if "LOOK:" in line]
    return Written(out, kind, found, [line.partition("LOOK:")[2].strip() for line in lines])


def _filled(template: str, words: Words) -> str:
    """A template with its words filled in: texts and lists as Python writes them, code as it is."""
    folder = Path(__file__).parent / "templates"
    text = (folder / f"{template}.txt").read_text()
    for name, value in words.items():
        if name == "LOSS":
            value = (folder / f"loss_{value}.txt").read_text().rstrip()
        text = text.replace(
            f"@{name}@", value if name in ("LOSS", "READ", "UNUSED") else repr(value)
        )
    return text


def guess_kind(data: str) -> str:
    """What is at a path, by its name or by what is in it."""
    path = Path(data)
    endings = {".csv": "csv", ".npz": "numpy", ".npy": "numpy", ".py": "script"}
    endings |= {".json": "monai", ".yaml": "monai", ".yml": "monai"}
    if path.suffix in endings:
        return endings[path.suffix]
    if path.is_dir():
        if _bundle_config(path) is not None:
            return "monai"
        if (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
            return "huggingface"
        for file in _files(path):
            if file.name.endswith((*NIFTI, ".dcm")):
                return "volumes"
            if file.suffix.lower() in PICTURES:
                return "images"
    kinds = ", ".join(KINDS)
    if not path.exists():
        raise UserError(f"{data}: there is no such file or folder; check the path (or add --kind)")
    raise UserError(f"{data}: cannot tell what it holds; add --kind (one of {kinds})")


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


# ---- what is seen of each kind of data: a template, the words in it, and what was found

Reader = Callable[[Path, str | None], tuple[str, Words, str]]


def _images(path: Path, target: str | None) -> tuple[str, Words, str]:
    folder = path / "train" if (path / "train").is_dir() else path
    classes = _classes(folder, PICTURES)
    return "images", {"CLASSES": classes, "LOSS": "classes"}, f"{len(classes)} classes"


def _classes(folder: Path, endings: tuple[str, ...]) -> list[str]:
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give one with a folder per class")
    found = [
        each.name
        for each in sorted(folder.iterdir())
        if each.is_dir() and any(f.name.lower().endswith(endings) for f in _files(each))
    ]
    if len(found) < 2:
        raise UserError(
            f"{folder} has {len(found)} folders with such files ({', '.join(endings)}); give a "
            "folder with at least two, one per class"
        )
    return found


def _volumes(path: Path, target: str | None) -> tuple[str, Words, str]:
    for images, masks in _PAIRS:
        if (path / images).is_dir() and (path / masks).is_dir():
            pictured = {p.name for p in (path / images).iterdir()}
            drawn = {p.name for p in (path / masks).iterdir() if p.name.endswith(NIFTI)}
            if not drawn <= pictured or not drawn:
                lacking = next(iter(sorted(drawn - pictured)), "any file")
                raise UserError(
                    f"{path / images} lacks {lacking}, of which there is a mask in "
                    f"{path / masks}; give volumes and masks the same names"
                )
            return "masks", {"FOLDERS": (images, masks)}, f"{len(drawn)} volumes with masks"
    classes = _classes(path, (*NIFTI, ".dcm"))
    return "volumes", {"CLASSES": classes, "LOSS": "classes"}, f"{len(classes)} classes"


def _bundle_config(path: Path) -> Path | None:
    """The training config of a MONAI bundle's folder."""
    files = [path / "configs" / f"train.{ending}" for ending in ("json", "yaml", "yml")]
    return next((file for file in files if file.is_file()), None)


def _bundle(config: Path) -> tuple[str, Words, str]:
    """A bundle's training config, read and not run."""
    import yaml

    try:
        read = (json.loads if config.suffix == ".json" else yaml.safe_load)(config.read_text())
        trainer = read["train"]["trainer"]["_target_"]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise UserError(
            f"{config} is no training config of a MONAI bundle ({brief(error)}); give one that has "
            "train#trainer"
        ) from None
    parts = {name: read.get(f"{name}_def", read.get(name)) for name in ("network", "loss")}
    kinds = [part["_target_"] for part in parts.values() if isinstance(part, dict)]
    kinds = [str(kind).rpartition(".")[2] for kind in (trainer, *kinds)]
    return "monai_bundle", {}, f"a bundle: {', '.join(kinds)}"


def _monai(path: Path, target: str | None) -> tuple[str, Words, str]:
    if path.is_dir():
        config = _bundle_config(path)
        if config is None:
            raise UserError(
                f"{path} is no MONAI bundle: it has no configs/train.json or .yaml; give a "
                "bundle's folder, its training config, or a data list (dataset.json)"
            )
        return _bundle(config)
    if path.suffix != ".json" or path.parent.name == "configs":
        return _bundle(path)
    try:
        items = json.loads(path.read_text())["training"]
        known = all(isinstance(item[name], str) for item in items for name in ("image", "label"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f'{path} is no data list with "training": [{{"image": ..., "label": ...}}] '
            f"({brief(error)}); give a dataset.json of this form"
        ) from None
    if not items or not known:
        raise UserError(f'{path}: "training" lists no images with labels; add some')
    return "monai", {}, f"{len(items)} training volumes"


def _csv(path: Path, target: str | None) -> tuple[str, Words, str]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file)
            rows = list(table)
            names = list(table.fieldnames or [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as a table ({brief(error)})") from None
    if len(names) < 2 or not rows:
        raise UserError(
            f"{path} has {len(names)} columns and {len(rows)} rows; give a table with a header, a "
            "column to find and others to find it from, separated by commas"
        )
    if target is None:
        target = next((name for name in names if name.lower() in _TARGETS), names[-1])
    if target not in names:
        raise UserError(f"--target {target}: {path} has no such column; it has {', '.join(names)}")
    values = {name: [row[name] for row in rows if row[name]] for name in names}
    columns = [n for n in names if n != target and values[n] and all(map(_is_number, values[n]))]
    unused = [name for name in names if name not in (target, *columns)]
    if not columns:
        raise UserError(f"{path} has no column of numbers beside {target!r}; give one that has")
    classes = _classes_of(values[target])
    words = {
        "TARGET": target,
        "COLUMNS": columns,
        "UNUSED": ", ".join(unused) or "none",
        "CLASSES": classes,
        "LOSS": "classes" if classes else "numbers",
    }
    of_what = f"{len(classes)} classes" if classes else "a number"
    return "csv", words, f"{len(rows)} rows, {target} ({of_what}) from {len(columns)} columns"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _classes_of(values: list[str]) -> list[str]:
    """The classes that a column's texts or few whole numbers are; none where it holds numbers."""
    found = sorted(set(values))
    if not all(map(_is_number, found)):
        return found
    if len(found) <= MOST_CLASSES and all(float(value).is_integer() for value in found):
        return sorted(found, key=float)
    return []


def _numpy(path: Path, target: str | None) -> tuple[str, Words, str]:
    from samepath.data.formats.numpy_files import load_arrays

    arrays = load_arrays(path, "numpy.savez('data.npz', inputs=array, labels=labels)")
    shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
    by_size = sorted(arrays, key=lambda name: arrays[name].ndim)
    inputs = by_size[-1] if by_size else ""
    if not by_size or arrays[inputs].ndim < 2 or arrays[inputs].dtype.kind not in "biuf":
        raise UserError(f"{path} holds {shapes or 'nothing'}; give inputs, one row per example")
    if target is None:
        rows = [
            n for n in arrays if n != inputs and arrays[n].shape[:1] == arrays[inputs].shape[:1]
        ]
        target = next((name for name in rows if name.lower() in _TARGETS), (*rows, None)[0])
    elif target not in arrays or target == inputs:
        raise UserError(f"--target {target}: {path} has no such array beside its inputs: {shapes}")
    shape = arrays[inputs].shape[1:]
    load = "np.load(path)" if path.suffix == ".npy" else f"np.load(path)[{inputs!r}]"
    lines = [f"    inputs = torch.from_numpy({load}).float()"]
    num_outputs, loss, of_what = 1, "numbers", "themselves (an autoencoder)"
    if target is None:
        lines += ["    targets = inputs.flatten(1)  # LOOK: no targets were found: an autoencoder"]
        num_outputs = int(arrays[inputs][0].size)
    else:
        values = arrays[target]
        read = f"    targets = torch.from_numpy(np.load(path)[{target!r}])"
        whole = values.dtype.kind in "biu" and values.size == len(values)
        if whole and values.min() >= 0 and values.max() < MOST_CLASSES:
            num_outputs, loss = int(values.max()) + 1, "classes"
            lines.append(f"{read}.long().flatten()")
        else:
            num_outputs = int(values[0].size)
            lines.append(f"{read}.float().reshape(len(inputs), -1)")
        of_what = f"{target} ({num_outputs} {'classes' if loss == 'classes' else 'numbers'})"
    words = {"SHAPE": shape, "NUM_OUTPUTS": num_outputs, "READ": "\n".join(lines), "LOSS": loss}
    return "numpy", words, f"{len(arrays[inputs])} examples of shape {shape}, to find {of_what}"


_READERS: dict[str, Reader] = {
    "images": _images,
    "volumes": _volumes,
    "monai": _monai,
    "csv": _csv,
    "numpy": _numpy,
}
