"""Probabilities that a model which has not seen an example gives its classes.

In: the folder of a cross-validation by `samepath folds`, or how many folds to train; or features
and labels. Out: one row of probabilities per training example. Guaranteed: the same bits at any
number of workers; a cross-validation of another recipe, other labels or part of the examples is
refused by name.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samepath.curation.request import CurateRequest, Subject
from samepath.curation.training_margin import FOLDER as MARGINS
from samepath.curation.training_margin import NoteMargins, training_margins
from samepath.data.fold_file import read_fold
from samepath.engine.state.reopen import FOLD_FILES
from samepath.errors import UserError
from samepath.files import brief, content_hash
from samepath.keys import key, keys_for
from samepath.output.predict import FOLDS, OUT_OF_FOLD, as_probabilities, read_members
from samepath.study.folds import cross_validate
from samepath.study.opening import StudyRequest
from samepath.study.splits import SplitRequest, split

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NUM_FOLDS = 5
_OWN_COLUMNS = ("index", "repeat", "fold", "label")
_REGULARISATION = 0.01


@dataclass(frozen=True, kw_only=True, eq=False)
class OutOfFold:
    """What the models of a cross-validation say of the examples they have not seen."""

    probabilities: NDArray[np.float32]
    """(N, C)"""
    run: Path
    """The first fold's."""
    identity: str
    """SHA-256 of the file they are from."""
    training_margins: NDArray[np.float32] | None = None
    """(N,): while the folds learned the examples; None where that was not noted."""


def is_folds(path: Path | None) -> bool:
    """Whether a folder is that of a cross-validation."""
    return path is not None and (path / FOLDS).is_file()


def refuse_folds(request: CurateRequest, subject: Subject) -> None:
    """Raise unless the recipe's training data can be split into the folds that are asked for."""
    whole = replace(subject.recipe, valid=None, valid_facts={})
    split(whole, _splits(request), request.seed)


def _splits(request: CurateRequest) -> SplitRequest:
    assert request.folds is not None
    return SplitRequest(folds=request.folds, stratify="label", examples="train")


def train_folds(
    request: CurateRequest, subject: Subject, listen: NoteMargins | None = None
) -> OutOfFold:
    """Train the folds of the recipe's training data in the curation's folder, or take them from
    there."""
    folder = request.out / "folds"
    asked = StudyRequest(
        recipe=request.recipe,
        data=request.data,
        max_epochs=request.epochs,
        out=folder,
        command=tuple(request.command),
        listen=listen,
    )
    found = cross_validate(
        asked,
        _splits(request),
        request.watcher(),
        seed=request.seed,
        num_workers=request.num_workers,
    )
    return _read(folder, [folder / run.folder for run in found.runs], subject)


def read_folds(folder: Path, subject: Subject) -> OutOfFold:
    """What a finished cross-validation says."""
    return _read(folder, [folder / run.folder for run in read_members(folder)], subject)


def _read(folder: Path, runs: list[Path], subject: Subject) -> OutOfFold:
    file = folder / OUT_OF_FOLD
    instead = f"run `samepath folds {subject.recipe.origin.name}` and give its folder"
    try:
        with np.load(file, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files}
        index = arrays["index"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{file} cannot be read ({brief(error)}); {instead}") from None
    number, classes = subject.num_examples, len(subject.class_names)
    ours = index < number  # validation examples come after those of the training data
    answers = {name: array for name, array in arrays.items() if name not in _OWN_COLUMNS}
    fitting = [n for n, a in answers.items() if a.ndim == 2 and a.shape[1] == classes]
    if len(fitting) != 1:
        shapes = ", ".join(f"{name} {array.shape[1:]}" for name, array in answers.items())
        raise UserError(
            f"{file} holds {brief(shapes)} for each example, and not one row of scores for "
            f"{classes} classes; let the recipe's predict return that alone"
        )
    counts = np.bincount(index[ours], minlength=number)
    if subject.labels is None or len(set(counts.tolist())) != 1 or not counts[0]:
        raise UserError(
            f"{file} is not of the {number:,} labelled training examples of "
            f"{subject.recipe.origin.name}; {instead}"
        )
    if "label" not in arrays or (arrays["label"][ours] != subject.labels[index[ours]]).any():
        raise UserError(
            f"{file} is of other labels than {subject.recipe.origin.name} has; {instead}"
        )
    told = np.zeros((number, classes))
    np.add.at(told, index[ours], as_probabilities(answers[fitting[0]].astype(np.float64))[ours])
    return OutOfFold(
        probabilities=(told / counts[0]).astype(np.float32),
        run=runs[0],
        identity=content_hash(file),
        training_margins=_margins(folder, runs, number),
    )


def _margins(folder: Path, runs: list[Path], number: int) -> NDArray[np.float32] | None:
    """Margins that the folds' runs noted of all examples, if they did."""
    noted = [run for run in runs if (run / MARGINS).is_dir()]
    splits = [read_fold(folder / FOLD_FILES / f"{run.name}.csv").train for run in noted]
    return training_margins(list(zip(noted, splits, strict=True)), number)


def regression_beliefs(
    reduced: NDArray[np.floating], place: Ints, num_classes: int, seed: int = 0
) -> Floats:
    """Probabilities of a logistic regression that has not seen the example, by five folds, on
    features. The network of the features has seen it: this is for those in a hurry."""
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    scaled = (reduced - reduced.mean(0)) / np.maximum(reduced.std(0), 1e-12)
    beliefs = np.full((len(place), num_classes), 1.0 / num_classes)
    folds = _folds(place, seed)
    for fold in range(NUM_FOLDS):
        train, test = folds != fold, folds == fold
        known = np.unique(place[train])
        if not test.any() or len(known) < 2:
            continue
        model = LogisticRegression(C=_REGULARISATION, max_iter=200)
        with threadpool_limits(1, user_api="blas"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nearly converged will do
            found = model.fit(scaled[train], place[train]).predict_proba(scaled[test])
        beliefs[test] = 0.0
        beliefs[np.ix_(test, known)] = found
    return beliefs


def _folds(place: Ints, seed: int) -> Ints:
    """A fold for each example, every class spread evenly over them."""
    keys = keys_for(key("folds", seed), np.arange(len(place), dtype=np.int64))
    order = np.lexsort((keys, place))
    folds = np.empty(len(place), dtype=np.int64)
    folds[order] = np.arange(len(place)) % NUM_FOLDS
    return folds
