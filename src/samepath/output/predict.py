"""What a run's model says of data, on any number of workers.

In: a run, or the folder of a cross-validation (its runs are asked one after the other); and data:
a set of its recipe (train, valid), an .npy or .npz file of inputs, another recipe file's set. Out:
the model's answers, one row per example, in order (of a cross-validation: the mean of its models'
answers); in memory, or as an .npz or .csv file. Evaluation mode, no augmentation, no gradient,
eager code.
Guaranteed: the same bits (of a file: the same bytes) at every worker count: the grains are the
run's, random state is keyed by (seed, grain), and each grain meets the model as training left it.
The file is written whole or not at all, and never over another.
"""

from __future__ import annotations

import csv
import hashlib
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor, nn

from samepath.console import SilentWatcher, Watcher
from samepath.data import GrainRequest, Loaders, Source, as_source, seed_everything
from samepath.data.formats.numpy_files import load_arrays
from samepath.data.sources import Data, as_tensor, labels_of
from samepath.engine.checks.replicas import LeftAlone
from samepath.engine.comm.tensors import to_device
from samepath.engine.launch.launch import launch
from samepath.engine.run.request import available_workers
from samepath.engine.run.session import start
from samepath.engine.state.checkpoint import Epoch, weights_of, write_tensors
from samepath.engine.state.reopen import ReopenedRun, reopen
from samepath.errors import UserError
from samepath.files import (
    brief,
    content_hash,
    opened_tensors,
    read_object,
    read_tensors,
    replaced,
)
from samepath.keys import key
from samepath.output.model_call import bare, forward_context, learn_call, rows_of
from samepath.plan import assign
from samepath.recipe import Recipe, find_recipe
from samepath.threads import limited_threads

Arrays = dict[str, NDArray[Any]]

BLOCK = 16
"""Grains that are written at once."""
QUICK_SECONDS = 10.0
"""What takes less is not worth starting workers for."""
MOST_COLUMNS = 1000
"""The most columns of a CSV file."""
_SETS = ("train", "valid")


@dataclass(frozen=True)
class Predictions:
    """A file of predictions."""

    out: Path
    num_examples: int
    shapes: dict[str, tuple[int, ...]]
    """The shape of each array, rows first."""
    sha256: str
    """The SHA-256 of the file: equal for equal predictions."""
    num_workers: int
    weights: str
    """The digest of where the weights are from."""


def predict(
    run: str | Path,
    data: str | Path = "valid",
    *,
    num_workers: int | Literal["auto"] = "auto",
    epoch: Epoch | None = None,
    extra: str | None = None,
    display: Callable[[], Watcher] = SilentWatcher,
) -> Arrays:
    """What a run's model says of data, by name: `output`, or the names the model gives."""
    with _answers(Path(run), str(data), num_workers, epoch, extra, display) as found:
        return {name: found.whole(name) for name in found.names}


def predict_to(
    out: Path,
    run: str | Path,
    data: str | Path = "valid",
    *,
    num_workers: int | Literal["auto"] = "auto",
    epoch: Epoch | None = None,
    extra: str | None = None,
    display: Callable[[], Watcher] = SilentWatcher,
) -> Predictions:
    """Write what a run's model says of data to an .npz or .csv file."""
    refuse_existing(out)
    if out.suffix not in (".npz", ".csv"):
        raise UserError(f"--out {out}: give a name that ends in .npz or .csv")
    with _answers(Path(run), str(data), num_workers, epoch, extra, display) as found:
        with replaced(out) as aside:
            (_write_csv if out.suffix == ".csv" else _write_npz)(aside, found, out)
        shapes = {name: found.shape(name) for name in found.names}
        return Predictions(
            out,
            found.num_examples,
            shapes,
            content_hash(out),
            found.num_workers,
            found.weights,
        )


def refuse_existing(out: Path, flag: str = "--out") -> None:
    """Raise unless a file of this name can be written."""
    if out.exists():
        raise UserError(f"{flag} {out} is there already; give another name, or remove it")
    if not out.parent.is_dir():
        raise UserError(f"{flag} {out}: there is no folder {out.parent}; make it, or give another")


# ---- data


def _find_data(run: ReopenedRun, what: str) -> tuple[Data, Recipe | None]:
    """The data that was named, and the recipe that loads it; None: a file of inputs."""
    place, _, part = what.rpartition(":")
    if what in _SETS:
        return _set_of(run.recipe, what), run.recipe
    if what.endswith(".py") or (place.endswith(".py") and part in _SETS):
        file, name = (what, None) if what.endswith(".py") else (place, part)
        recipe = find_recipe(file, threads=run.config["threads"])
        return _set_of(recipe, name or ("train" if recipe.valid is None else "valid")), recipe
    path = Path(what)
    if path.suffix not in (".npy", ".npz"):
        raise UserError(
            f"--data {what}: give train or valid (the recipe's own), an .npy or .npz file of "
            "inputs, or another recipe file (my_recipe.py, my_recipe.py:train)"
        )
    if not path.is_file():
        raise UserError(f"--data {what}: there is no such file; check the path")
    arrays = load_arrays(path, "numpy.savez('inputs.npz', inputs=array)")
    return _like_batches_of(run.recipe, arrays, path), None


def _set_of(recipe: Recipe, name: str) -> Data:
    data: Data | None = getattr(recipe, name)
    if data is None:
        raise UserError(f"the recipe {recipe.origin.name!r} has no {name} data; give other --data")
    return data


def _like_batches_of(recipe: Recipe, arrays: Arrays, path: Path) -> Data:
    """A file's arrays as data whose batches have the form of training batches, as far as the file
    has their parts: one array, a tuple in the file's order, or a dict by name."""
    known = _first_batch(recipe)
    if isinstance(known, Tensor):
        if len(arrays) != 1:
            raise UserError(
                f"--data {path} holds {', '.join(arrays) or 'nothing'}; a batch of the recipe is "
                "one tensor: save one array"
            )
        (array,) = arrays.values()
        return _as_trained_on(array, known, path)
    if isinstance(known, dict):
        parts = {name: known[name] for name in arrays if isinstance(known.get(name), Tensor)}
        if not parts:
            raise UserError(
                f"--data {path} holds {', '.join(arrays)}; a batch of the recipe has "
                f"{', '.join(map(str, known))}: save arrays by these names"
            )
        named = {name: _as_trained_on(arrays[name], parts[name], path) for name in parts}
        return _NamedColumns(named)
    if isinstance(known, (tuple, list)) and len(arrays) <= len(known):
        return tuple(
            _as_trained_on(array, part, path)
            for array, part in zip(arrays.values(), known, strict=False)
        )
    raise UserError(
        f"--data {path} holds {', '.join(arrays)}, which is not how the recipe's batches "
        f"({type(known).__name__}) are made up; give a recipe file's data (my_recipe.py:valid)"
    )


def _as_trained_on(array: NDArray[Any], part: Any, path: Path) -> Tensor:
    """An array as a tensor of the training data's type; floats of another precision are cast."""
    tensor = as_tensor(array)
    if not isinstance(part, Tensor) or tensor.dtype == part.dtype:
        return tensor
    if tensor.is_floating_point() and part.is_floating_point():
        return tensor.to(part.dtype)
    raise UserError(
        f"--data {path} holds {tensor.dtype} where the recipe's batches have {part.dtype}; save "
        "it with that type"
    )


class _NamedColumns:
    """Tensors by name, with one row per example: a source of dicts."""

    def __init__(self, columns: dict[str, Tensor]) -> None:
        self._names = list(columns)
        self._columns = as_source(tuple(columns.values()), seed=0)

    def __len__(self) -> int:
        return len(self._columns)

    def load(self, requests: Any) -> Iterator[dict[str, Tensor]]:
        for grain in self._columns.load(requests):
            yield dict(zip(self._names, grain, strict=True))


def _first_batch(recipe: Recipe, most: int = 2) -> Any:
    source = as_source(recipe.train, seed=0, collate=recipe.collate)
    rows = np.arange(min(most, len(source)), dtype=np.int64)
    return next(iter(source.load(iter([GrainRequest(-1, rows)]))))


# ---- all workers


@dataclass(frozen=True)
class _Task:
    """What every worker is told; it crosses a process border."""

    run: Path
    data: str
    folder: Path
    """Holds the weights, then blocks of predictions."""


class _Blocks:
    """Predictions as workers left them: blocks of consecutive examples."""

    def __init__(self, folder: Path, num_workers: int, weights: str) -> None:
        self.num_workers, self.weights = num_workers, weights
        self._files = sorted(folder.glob("block-*"))
        self._shapes: dict[str, tuple[int, ...]] = {}
        for file in self._files:
            with opened_tensors(file, "pt") as content:
                shapes = {n: tuple(content.get_slice(n).get_shape()) for n in content.keys()}  # noqa: SIM118
            self._add(shapes)

    def _add(self, shapes: dict[str, tuple[int, ...]]) -> None:
        before = self._shapes or {name: (0, *shape[1:]) for name, shape in shapes.items()}
        if before.keys() != shapes.keys():
            raise UserError(
                f"the predictions are {sorted(before)} for some examples and {sorted(shapes)} for "
                "others; return the same names for every batch"
            )
        for name, shape in shapes.items():
            if shape[1:] != before[name][1:]:
                raise UserError(
                    f"the predictions {name!r} have the shape {before[name][1:]} for some examples "
                    f"and {shape[1:]} for others; return one shape (predict= in the recipe can pad)"
                )
        self._shapes = {n: (before[n][0] + len_, *rest) for n, (len_, *rest) in shapes.items()}

    @property
    def names(self) -> list[str]:
        return sorted(self._shapes)

    @property
    def num_examples(self) -> int:
        return self._shapes[self.names[0]][0]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def parts(self, name: str) -> Iterator[NDArray[Any]]:
        for file in self._files:
            with opened_tensors(file, "pt") as content:
                yield content.get_tensor(name).numpy()

    def whole(self, name: str) -> NDArray[Any]:
        return np.concatenate(list(self.parts(name)))


@contextmanager
def _answers(
    path: Path,
    data: str,
    num_workers: int | Literal["auto"],
    epoch: Epoch | None,
    extra: str | None,
    display: Callable[[], Watcher],
) -> Iterator[_Blocks | _Mean]:
    """What a run says, or the mean of what the runs of a cross-validation say."""
    members = read_members(path)
    if not members:
        with _predicted(path, data, num_workers, epoch, extra, display) as found:
            yield found
        return
    if data in _SETS:
        raise UserError(
            f"--data {data}: every fold of {path} has another; its out-of-fold predictions are in "
            f"{path / OUT_OF_FOLD}; for new data give an .npy or .npz file of inputs, or a recipe "
            "file (my_recipe.py:valid)"
        )
    with ExitStack() as stack:
        asked: list[_Blocks] = []
        for member in members:
            own = "best" if epoch is None and extra is None and member.is_best else epoch
            folder = path / member.folder
            predicted = _predicted(folder, data, num_workers, own, extra, display)
            asked.append(stack.enter_context(predicted))
            num_workers = asked[0].num_workers  # so that all have the same blocks
        yield _Mean(asked, classes=num_classes(reopen(path / members[0].folder).recipe))


@contextmanager
def _predicted(
    path: Path,
    data: str,
    num_workers: int | Literal["auto"],
    epoch: Epoch | None,
    extra: str | None,
    display: Callable[[], Watcher],
) -> Iterator[_Blocks]:
    """Have workers predict into a folder that goes afterwards."""
    run = reopen(path)
    with limited_threads(run.config["threads"]), tempfile.TemporaryDirectory() as place:
        task = _Task(path, data, Path(place))
        model, digest = run.model(epoch, extra)
        write_tensors(task.folder / "weights", weights_of(model))
        asker = _Asker(run, data, model, torch.device("cpu"))
        began = time.perf_counter()
        next(asker.answers([0]))
        alone = (time.perf_counter() - began) * asker.num_grains
        asked = num_workers
        if asked == "auto":
            asked = 1 if alone < QUICK_SECONDS else available_workers()
        workers = min(asked, asker.num_grains)
        if workers == 1:
            _work(task, display)
        else:
            launch(_work, (task, display), workers)
        yield _Blocks(task.folder, workers, digest)


# ---- the models of a cross-validation

FOLDS = "folds.json"
"""The file that says what is in the folder of a cross-validation."""
OUT_OF_FOLD = "predictions.npz"


@dataclass(frozen=True)
class FoldModel:
    """One model of an ensemble."""

    folder: str
    """The folder of its run, inside the cross-validation's."""
    is_best: bool
    """Its best weights are asked, else its newest."""


def read_members(path: Path) -> list[FoldModel]:
    """The runs of the cross-validation in a folder; none where the folder is something else."""
    file = path / FOLDS
    if not file.is_file():
        return []
    try:
        runs = read_object(file)["runs"]
        return [FoldModel(str(run["folder"]), run["weights"] == "best") for run in runs]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{file} cannot be read ({brief(error)}); run the same `samepath folds` once more"
        ) from None


def num_classes(recipe: Recipe) -> int:
    """How many classes the examples have, as far as their labels tell; 0 where they have none, or
    where the recipe says itself what a prediction is."""
    if recipe.predict is not None:
        return 0
    labels = labels_of(recipe.train, recipe.train_facts, recipe.collate)
    return 0 if labels is None or labels.min() < 0 else int(labels.max()) + 1


class _Mean:
    """The mean of several models' predictions: of classes' scores, that of their probabilities
    (softmax), which has the name `probability`."""

    def __init__(self, members: Sequence[_Blocks], classes: int) -> None:
        self._members, first = members, members[0]
        self.num_workers, self.num_examples = first.num_workers, first.num_examples
        self.weights = hashlib.sha256("".join(m.weights for m in members).encode()).hexdigest()
        shapes = {name: first.shape(name) for name in first.names}
        for member in members:
            if {name: member.shape(name) for name in member.names} != shapes:
                raise UserError(
                    "the models of the folds answer in different shapes; predict with each run of "
                    "the folder on its own"
                )
        _, *width = shapes.get("output", (0,))
        self._is_scores = len(shapes) == len(width) == 1 and 1 < classes <= width[0]
        self._inner = {"probability": "output"} if self._is_scores else {n: n for n in shapes}

    @property
    def names(self) -> list[str]:
        return sorted(self._inner)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._members[0].shape(self._inner[name])

    def parts(self, name: str) -> Iterator[NDArray[Any]]:
        """Means in float64, added in the order of the folds, in the type that the models have."""
        inner = self._inner[name]
        for blocks in zip(*(member.parts(inner) for member in self._members), strict=True):
            values = [block.astype(np.float64) for block in blocks]
            if self._is_scores:
                values = [as_probabilities(value) for value in values]
            kind = blocks[0].dtype if blocks[0].dtype.kind == "f" else np.dtype(np.float64)
            yield (sum(values[1:], start=values[0]) / len(values)).astype(kind)

    def whole(self, name: str) -> NDArray[Any]:
        return np.concatenate(list(self.parts(name)))


def as_probabilities(scores: NDArray[Any]) -> NDArray[Any]:
    """Softmax of rows; a row of probabilities stays as it is."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    are_probabilities = (scores >= 0).all(-1) & (np.abs(scores.sum(-1) - 1.0) < 1e-4)
    softmax = powers / powers.sum(-1, keepdims=True)
    return np.where(are_probabilities[:, None], scores, softmax)


# ---- one worker


def _work(task: _Task, display: Callable[[], Watcher]) -> None:
    """Predict one worker's share of the grains."""
    run = reopen(task.run)
    with start(seed=run.config["seed"], threads=run.config["threads"]) as session:
        model = run.recipe.model()
        model.load_state_dict(read_tensors(task.folder / "weights", "pt")[0])
        asker = _Asker(run, task.data, model.to(session.device), session.device)
        mine = list(assign(asker.num_grains, session.num_workers)[session.worker])
        watch, what = display() if session.is_first else SilentWatcher(), "predictions"
        watch.progress(what, 0, len(mine))
        try:
            waiting: list[dict[str, Tensor]] = []
            for done, answer in enumerate(asker.answers(mine), start=1):
                waiting.append(answer)
                if len(waiting) == BLOCK or done == len(mine):
                    first = mine[done - len(waiting)]
                    block = {n: torch.cat([each[n] for each in waiting]) for n in answer}
                    write_tensors(task.folder / f"block-{first:012d}", block)
                    waiting = []
                watch.progress(what, done, len(mine))
        finally:
            watch.end(what)


class _Asker:
    """Asks a run's model about data, a grain at a time."""

    def __init__(self, run: ReopenedRun, what: str, model: nn.Module, device: torch.device) -> None:
        self._recipe, self._device = run.recipe, device
        self._model = bare(model).eval()
        self._seed, self._grain_size = int(run.config["seed"]), int(run.config["grain_size"])
        self._ask = self._recipe.predict or learn_call(
            self._recipe, self._model, to_device(_first_batch(self._recipe), device)
        )
        data, loads = _find_data(run, what)
        self._source: Source = as_source(
            data,
            seed=self._seed,
            loaders=Loaders(0 if loads is None else loads.loader_workers),
            collate=None if loads is None else loads.collate,
        )
        if not len(self._source):
            raise UserError(f"--data {what} has no examples; give some")

    @property
    def num_grains(self) -> int:
        return -(-len(self._source) // self._grain_size)

    def answers(self, numbers: list[int]) -> Iterator[dict[str, Tensor]]:
        """The answers to some grains, in order."""
        rows = np.arange(len(self._source), dtype=np.int64)
        size, before = self._grain_size, LeftAlone(self._model)
        grains = [rows[n * size : (n + 1) * size] for n in numbers]
        loaded = self._source.load(GrainRequest(-1, grain) for grain in grains)
        whose = "the model" if self._recipe.predict is None else "predict()"
        for number, grain, batch in zip(numbers, grains, loaded, strict=True):
            batch = to_device(batch, self._device)
            seed_everything(key("predict", self._seed, number))
            with torch.no_grad(), forward_context(self._recipe, self._device):
                answer = self._ask(self._model, batch)
            before.put_back(all_of_it=number == numbers[0])
            yield {
                name: _writable(value) for name, value in rows_of(answer, len(grain), whose).items()
            }


def _writable(value: Tensor) -> Tensor:
    """A tensor of a type that NumPy has, alone in its memory."""
    kind = torch.float32 if value.dtype == torch.bfloat16 else value.dtype
    return value.cpu().to(kind).clone(memory_format=torch.contiguous_format)


# ---- files


def _write_npz(path: Path, found: _Blocks | _Mean, out: Path) -> None:
    _write_arrays(path, {name: (found.shape(name), found.parts(name)) for name in found.names})


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays as a file of the bytes that equal arrays always have, whole or not at all."""
    whole = {name: (array.shape, [array]) for name, array in arrays.items()}
    with replaced(path) as aside:
        _write_arrays(aside, whole)


def _write_arrays(
    path: Path, arrays: Mapping[str, tuple[tuple[int, ...], Iterable[NDArray[Any]]]]
) -> None:
    """Write arrays by name, each a shape and its parts, with nothing in the file that differs from
    one time to another: equal arrays are equal bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, (shape, parts) in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")  # dated 1980
            with archive.open(member, "w", force_zip64=True) as file:
                _write_array(file, shape, parts)


def _write_array(file: IO[bytes], shape: tuple[int, ...], parts: Iterable[NDArray[Any]]) -> None:
    for number, part in enumerate(parts):
        if number == 0:
            about = npy.header_data_from_array_1_0(part) | {"shape": shape}
            npy.write_array_header_1_0(file, about)
        file.write(part.tobytes())


def _write_csv(path: Path, found: _Blocks | _Mean, out: Path) -> None:
    """Write one line per example; numbers are written so that reading them gives the same bits."""
    columns = {name: int(np.prod(found.shape(name)[1:])) for name in found.names}
    if sum(columns.values()) > MOST_COLUMNS:
        raise UserError(
            f"--out {out}: {sum(columns.values())} columns are too many for a CSV file (at most "
            f"{MOST_COLUMNS}); give a name that ends in .npz"
        )
    head = [
        name if found.shape(name)[1:] == () else f"{name}_{number}"
        for name, width in columns.items()
        for number in range(width)
    ]
    example = 0
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["example", *head])
        for parts in zip(*(found.parts(name) for name in found.names), strict=True):
            flat = [part.reshape(len(part), -1) for part in parts]
            for row in zip(*flat, strict=True):
                writer.writerow([example, *(str(value) for cells in row for value in cells)])
                example += 1
