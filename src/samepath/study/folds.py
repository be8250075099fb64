"""Cross-validation: every fold a run of the same recipe, trained side by side.

In: a StudyRequest, and how examples are to be split. Out: Folds; in the study's folder the fold
files (`splits/`), the runs, and the out-of-fold predictions. Guaranteed: every fold ends with the
bits of `samepath train --keep splits/...` at any number of workers, and so does the file of
predictions; a finished fold is never repeated; a folder of another split is refused.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from samepath.console import Watcher
from samepath.data import GrainRequest, as_source, seed_everything
from samepath.data.fold_file import write_fold
from samepath.data.sources import requests_for
from samepath.engine.checks.replicas import LeftAlone
from samepath.engine.comm.rows import joined
from samepath.engine.run.evaluation import judge_all, outputs_and_targets
from samepath.engine.run.options import (
    Options,
    Overrides,
    refuse_recipe,
    resolve,
    with_fingerprints,
)
from samepath.engine.state.reopen import FOLD_FILES, ReopenedRun, reopen
from samepath.engine.state.run_folder import RunFolder
from samepath.errors import UserError
from samepath.files import content_hash, make_folder, read_as
from samepath.keys import key
from samepath.output.model_call import bare, forward_context
from samepath.output.predict import OUT_OF_FOLD, num_classes, predict, write_npz
from samepath.recipe import Recipe, find_recipe, of_fold, with_valid_joined
from samepath.study.calibration import Calibration, calibration_of
from samepath.study.opening import Opened, StudyRequest, entered
from samepath.study.results import AnyStudy, Ended, Epoch
from samepath.study.runner import PlannedRun, end_of, epochs_of, train_runs
from samepath.study.splits import NumberedFold, SplitRequest, split, split_identity
from samepath.threads import limited_threads

Weights = Literal["newest", "best"]
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class MeanInterval:
    """A mean over folds, and where the mean over other splits of such data lies with 95%."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class FoldRun:
    """One fold, trained."""

    repeat: int
    fold: int
    """Both from 1."""
    folder: str
    """The folder of the run, inside the study's folder."""
    num_train: int
    num_held_out: int
    ended: Ended
    why: str
    weights: Weights
    """Which weights are judged: the best where the recipe keeps them, else the newest."""
    epochs: float
    """Epochs after which the run had these weights."""
    digest: str
    """The run's, at its end."""
    metrics: dict[str, float]
    """What the recipe evaluates, on the examples held out."""
    curve: tuple[Epoch, ...]


@dataclass(frozen=True, kw_only=True)
class Folds(AnyStudy):
    """All of a cross-validation; `num_valid` is the size of its largest held-out part."""

    batch_size: int
    seed: int
    epochs: int
    folds: int
    repeats: int
    groups: str | None
    stratify: str | None
    examples: Literal["all", "train"]
    runs: tuple[FoldRun, ...]
    metrics: dict[str, MeanInterval]
    """Means by name, over all folds."""
    pooled: dict[str, float]
    """What evaluate_all says of the out-of-fold outputs of all examples together (mean over
    repeats); empty where the recipe has none."""
    predictions: str
    """The SHA-256 of the file of out-of-fold predictions."""
    verdict: str
    calibration: Calibration | None = None
    """What out-of-fold confidence is worth; None where the model gives no scores of classes."""


def cross_validate(
    request: StudyRequest,
    asked: SplitRequest,
    watcher: Watcher,
    *,
    seed: int | None = None,
    num_workers: int | Literal["auto"] = "auto",
) -> Folds:
    """Train all folds, and predict with each what it held out. `num_workers` are shared by the
    folds under way."""
    _refuse(request, num_workers)
    recipe = find_recipe(request.recipe, request.data)
    whole = replace(recipe, valid=None, valid_facts={})
    if asked.examples == "all":
        whole = with_valid_joined(recipe)
    given = Overrides(
        epochs=request.max_epochs,
        batch_size=request.batch_size,
        grain_size=request.grain_size,
        max_workers=request.max_workers,
        seed=seed,
    )
    folds = split(whole, asked, recipe.seed if seed is None else seed)
    options = [_options(whole, each, request.folder, given) for each in folds]
    opened = _opened(whole, request, given, max(int(f.fold.held_out.sum()) for f in folds))
    runs = [
        PlannedRun(folder=f"runs/{each.name}", label=_label(each, asked), options=one)
        for each, one in zip(folds, options, strict=True)
    ]
    shared = options[0]
    settings = {
        **asdict(asked),
        "seed": shared.seed,
        "batch_size": shared.batch_size,
        "split": split_identity(folds),
    }
    with entered(opened, request, "folds", settings):
        make_folder(request.folder / FOLD_FILES)
        for each in folds:
            write_fold(_fold_file(request.folder, each), each.fold)
        cores = None if num_workers == "auto" else num_workers
        train_runs(runs, opened, request, watcher, cores=cores)
        trained = [
            _trained(request.folder, run, each) for run, each in zip(runs, folds, strict=True)
        ]
        predictions = _out_of_fold(request.folder, trained, folds, whole, num_workers, watcher)
        write_npz(request.folder / OUT_OF_FOLD, predictions)
        pooled = _pooled(request.folder, trained)
    return Folds(
        **opened.heading(request),
        batch_size=shared.batch_size,
        seed=shared.seed,
        epochs=shared.epochs,
        **asdict(asked),
        runs=tuple(trained),
        metrics=mean_intervals(trained),
        pooled=pooled,
        predictions=content_hash(request.folder / OUT_OF_FOLD),
        verdict="",
        calibration=calibration_of(predictions, num_classes(whole)),
    )


def to_json(found: Folds) -> dict[str, Any]:
    """Plain values; NaN and infinities become text where it is written."""
    return {"kind": "folds", **asdict(found)}


def from_json(content: Mapping[str, Any]) -> Folds:
    """The cross-validation that `to_json` was given."""
    found: Folds = read_as(Folds, content)
    return found


# ---- before anything is written


def _refuse(request: StudyRequest, num_workers: int | Literal["auto"]) -> None:
    """Raise for a keep-list, whose place fold files take, and for workers that share a GPU."""
    if request.keep is not None:
        raise UserError(f"{request.keep}: folds are of all examples; leave the keep-list out")
    gpus = torch.cuda.device_count()
    if gpus and num_workers != "auto" and num_workers > gpus:
        raise UserError(f"-n {num_workers}: this machine has {gpus} GPUs; give at most {gpus}")


def _fold_file(folder: Path, each: NumberedFold) -> Path:
    return folder / FOLD_FILES / f"{each.name}.csv"


def _label(each: NumberedFold, asked: SplitRequest) -> str:
    fold = f"fold {each.number}"
    return fold if asked.repeats == 1 else f"{fold} of repeat {each.repeat}"


def _options(whole: Recipe, each: NumberedFold, folder: Path, given: Overrides) -> Options:
    """What the run of a fold is asked to do, checked."""
    recipe = of_fold(whole, each.fold, _fold_file(folder, each))
    options = resolve(recipe, given)
    refuse_recipe(recipe, options, 1)
    return with_fingerprints(options, recipe)


def _opened(whole: Recipe, request: StudyRequest, given: Overrides, num_valid: int) -> Opened:
    """The study's folder, and the examples that are split."""
    optimizer = whole.optimizer(p for p in whole.model().parameters() if p.requires_grad)
    groups = optimizer.param_groups
    return Opened(
        folder=request.folder,
        recipe=whole,
        options=with_fingerprints(resolve(whole, given), whole),
        optimizer=type(optimizer).__name__,
        recipe_rate=float(groups[0]["lr"]),
        recipe_decay=max(float(group.get("weight_decay", 0)) for group in groups),
        num_valid=num_valid,
    )


# ---- what the runs left


def _trained(study: Path, run: PlannedRun, each: NumberedFold) -> FoldRun:
    result = RunFolder(study / run.folder).read()["result"]
    ended, why = end_of(study, run)
    curve = tuple(end.epoch for end in epochs_of(study, run))
    epochs, metrics = result["epochs"], result["metrics"]
    weights: Weights = "newest"
    if (run.options.keep_best or run.options.stop_patience) and result["best_epoch"]:
        weights, epochs = "best", result["best_epoch"]
        (best,) = (epoch for epoch in curve if epoch.epoch == epochs)
        metrics = {"loss": best.valid_loss, **best.metrics}
    return FoldRun(
        repeat=each.repeat,
        fold=each.number,
        folder=run.folder,
        num_train=len(each.fold.train),
        num_held_out=len(each.fold.valid),
        ended=ended,
        why=why,
        weights=weights,
        epochs=float(epochs),
        digest=result["digest"],
        metrics={name: math.nan if v is None else float(v) for name, v in metrics.items()},
        curve=curve,
    )


def mean_intervals(runs: Sequence[FoldRun]) -> dict[str, MeanInterval]:
    """Means over folds with 95% intervals, of the metrics that all folds have.

    Folds share most of their training data, so that the usual standard error is too small; the
    variance is Nadeau and Bengio's (2003, eq. 7), with Student's t.
    """
    from scipy.stats import t

    number = len(runs)
    share = statistics.mean(run.num_held_out / run.num_train for run in runs)
    reach = float(t.ppf(0.975, number - 1)) * math.sqrt(1 / number + share)
    found = {}
    for name in runs[0].metrics:
        values = [run.metrics.get(name, math.nan) for run in runs]
        mean, width = math.nan, math.nan
        if all(map(math.isfinite, values)):
            mean, width = statistics.fmean(values), reach * statistics.stdev(values)
        found[name] = MeanInterval(mean=mean, low=mean - width, high=mean + width)
    return found


# ---- out-of-fold predictions


def _out_of_fold(
    study: Path,
    runs: Sequence[FoldRun],
    folds: Sequence[NumberedFold],
    whole: Recipe,
    num_workers: int | Literal["auto"],
    watcher: Watcher,
) -> Arrays:
    """What each fold's model says of the examples it has not seen, in the order of the examples,
    repeat after repeat: index, repeat, fold, the label or target, and the model's answers."""
    told: list[Arrays] = []
    for done, (run, each) in enumerate(zip(runs, folds, strict=True)):
        watcher.progress("out-of-fold predictions", done, len(runs))
        epoch: Literal["best"] | None = "best" if run.weights == "best" else None
        answers = predict(study / run.folder, num_workers=num_workers, epoch=epoch)
        ours = {
            "index": each.fold.valid,
            "repeat": np.full(run.num_held_out, each.repeat),
            "fold": np.full(run.num_held_out, each.number),
        }
        # an answer that has the name of a column of ours is still written
        taken = {*ours, "label"}
        told.append(ours | {f"output_{n}" if n in taken else n: a for n, a in answers.items()})
    watcher.end("out-of-fold predictions")
    if len({tuple(each) for each in told}) > 1:
        raise UserError("the models of the folds answer by different names; return the same ones")
    arrays = {name: np.concatenate([each[name] for each in told]) for name in told[0]}
    order = np.lexsort((arrays["index"], arrays["repeat"]))
    arrays = {name: array[order] for name, array in arrays.items()}
    targets = _targets(whole)
    if targets is not None:
        arrays["label"] = targets[arrays["index"]]
    return arrays


def _targets(whole: Recipe) -> NDArray[Any] | None:
    """The second part of batches that are pairs, where it is a few numbers per example; else the
    fact "label"; None where there is neither."""
    source = as_source(whole.train, seed=0, collate=whole.collate)
    rows = np.arange(len(source), dtype=np.int64)

    def target(batch: Any) -> Any:
        pair = isinstance(batch, (tuple, list)) and len(batch) == 2
        is_small = pair and isinstance(batch[1], torch.Tensor) and 1 <= batch[1].ndim <= 2
        return batch[1].numpy(force=True) if is_small else None

    if target(next(source.load(requests_for(rows[:1])))) is not None:
        return np.concatenate([target(batch) for batch in source.load(requests_for(rows))])
    return np.asarray(whole.train_facts["label"]) if "label" in whole.train_facts else None


def _pooled(study: Path, runs: Sequence[FoldRun]) -> dict[str, float]:
    """What evaluate_all says of all examples of a repeat, each judged by the model that has not
    seen it; the mean over repeats."""
    found: list[dict[str, float]] = []
    for repeat in range(1, runs[-1].repeat + 1):
        told = []
        for run in (run for run in runs if run.repeat == repeat):
            opened = reopen(study / run.folder)
            if opened.recipe.evaluate_all is None:
                return {}
            told += _shown(opened, run.weights)
        outputs, targets = (joined([grain[i] for grain in told], "the outputs") for i in (0, 1))
        judge = opened.recipe.evaluate_all
        found.append(judge_all(judge, outputs, targets, int(opened.config["seed"])))
    return {name: statistics.fmean(each[name] for each in found) for name in found[0]}


def _shown(run: ReopenedRun, weights: Weights) -> list[tuple[Any, Any]]:
    """Outputs and targets of what a fold held out, a grain at a time, as its own evaluation has
    them."""
    recipe, seed = run.recipe, int(run.config["seed"])
    assert recipe.valid is not None
    model = bare(run.model("best" if weights == "best" else None)[0]).eval()
    source = as_source(recipe.valid, seed=seed, collate=recipe.collate)
    size, rows = int(run.config["grain_size"]), np.arange(len(source), dtype=np.int64)
    grains = np.split(rows, range(size, len(rows), size))
    before, told = LeftAlone(model), []
    with limited_threads(run.config["threads"]), torch.no_grad():
        for number, batch in enumerate(source.load(GrainRequest(-1, grain) for grain in grains)):
            seed_everything(key("evaluate", seed, number))
            with forward_context(recipe, torch.device("cpu")):
                values = {} if recipe.evaluate is None else dict(recipe.evaluate(model, batch))
                told.append(outputs_and_targets(model, batch, values))
            before.put_back()
    return told
