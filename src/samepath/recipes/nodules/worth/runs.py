"""What generated nodules are worth: generators and classifiers trained side by side, and compared.

In: a StudyRequest whose recipe is a classifier and whose data are real nodules of two classes; a
WorthRequest. Out: Worth; in the study's folder the data files of all runs (`data/`), the runs, and
every score (`predictions.npz`). Guaranteed: a fold's generator sees its training part alone, at
each share only that share; the nodules that a fold holds out are neither trained on nor used to
choose anything; runs have the same bits at any number of workers, and so do the data files and the
scores; a finished run is never repeated; a folder of another study is refused.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from samepath.console import Watcher
from samepath.data import GrainRequest, as_source
from samepath.engine.run.options import (
    Options,
    Overrides,
    refuse_recipe,
    resolve,
    with_fingerprints,
)
from samepath.engine.state.reopen import look_at
from samepath.engine.state.run_folder import RunFolder
from samepath.errors import UserError
from samepath.files import content_hash, make_folder, read_as
from samepath.output.predict import predict, write_npz
from samepath.recipe import Recipe, find_recipe
from samepath.recipes.nodules.worth.compare import (
    ARMS,
    ArmResult,
    ArmSetting,
    PairResult,
    Scored,
    compare,
    verdict,
)
from samepath.recipes.nodules.worth.data import (
    RealNodules,
    WorthFold,
    load_real,
    split_real,
    write_classifier_data,
    write_generator_data,
)
from samepath.recipes.nodules.worth.make import Made, make_nodules
from samepath.study.opening import Opened, StudyRequest, entered
from samepath.study.results import AnyStudy
from samepath.study.runner import PlannedRun, end_of, train_runs

SCORES = "predictions.npz"
_GENERATED = ("generated", "both", "synthetic")
_AUGMENTED = ("augmented", "both")


@dataclass(frozen=True, kw_only=True)
class WorthRequest:
    """What is to be compared."""

    generator: str
    """A recipe that makes nodules, or the folder of a run of one, whose epochs it then has too."""
    arms: tuple[str, ...] = tuple(ARMS)
    percents: tuple[int, ...] = (25, 50, 100)
    """Shares of a fold's real training nodules."""
    folds: int = 5
    seeds: int = 5
    """Of the classifiers."""
    times: float = 1.0
    """Generated nodules for each real one."""
    epochs: int | None = None
    """Of a classifier on the largest share of the real nodules; others make about as many steps.
    The recipe's when not given."""
    generator_epochs: int | None = None
    """Likewise, of a generator."""
    seed: int = 0
    """Of the split, the generators, and what they generate."""

    def __post_init__(self) -> None:
        unknown = [arm for arm in self.arms if arm not in ARMS]
        if unknown or not self.arms:
            raise UserError(
                f"--arms {','.join(self.arms)}: there is no arm {unknown[0] if unknown else ''!r}; "
                f"choose from {', '.join(ARMS)}"
            )
        for percent in self.percents:
            if not 1 <= percent <= 100:
                raise UserError(f"--percents {percent}: give whole numbers from 1 to 100")
        if not self.percents:
            raise UserError("--percents: give at least one, such as 100")
        if self.seeds < 1:
            raise UserError(f"--seeds {self.seeds}: it must be at least 1")
        if not 0 < self.times <= 100:
            raise UserError(f"--times {self.times:g}: give a number above 0, at most 100")


@dataclass(frozen=True, kw_only=True)
class WorthRun:
    """One classifier, trained."""

    arm: str
    percent: int
    fold: int
    seed: int
    folder: str
    epochs: int
    digest: str
    why: str
    """The end in words, where there is more to say."""


@dataclass(frozen=True, kw_only=True)
class Worth(AnyStudy):
    """All of it; `recipe` is the classifier's, `num_valid` the largest held-out part."""

    generator: str
    generator_epochs: int
    epochs: int
    batch_size: int
    folds: int
    seeds: int
    times: float
    seed: int
    num_groups: int
    has_groups: bool
    arms: tuple[ArmResult, ...]
    pairs: tuple[PairResult, ...]
    runs: tuple[WorthRun, ...]
    generators: dict[str, str]
    """Digests of the generators' runs by folder."""
    predictions: str
    """The SHA-256 of the file of scores."""
    verdict: str


def measure_worth(
    request: StudyRequest,
    asked: WorthRequest,
    watcher: Watcher,
    *,
    num_workers: int | Literal["auto"] = "auto",
) -> Worth:
    """Train all, and compare. `num_workers` are shared by the runs under way."""
    if request.data is None:
        raise UserError("--data: give the real nodules, such as ct_nodules32.npz")
    real = load_real(Path(request.data))
    settings = [
        ArmSetting(arm, p) for p in sorted(set(asked.percents)) for arm in dict.fromkeys(asked.arms)
    ]
    generates = any(each.arm in _GENERATED for each in settings)
    percents = sorted({each.percent for each in settings})
    folds = split_real(
        real, folds=asked.folds, percents=percents, seed=asked.seed, generates=generates
    )
    name, generator_epochs = _generator(asked)
    classifier = _opened(request, request.recipe, asked.epochs)
    _refuse_classifier(classifier.recipe, asked)
    generator = _opened(request, name, generator_epochs) if generates else None
    also = {
        **asdict(asked),
        "arms": sorted(asked.arms),
        "percents": percents,
        "epochs": classifier.options.epochs,
        "generator": generator and generator.options.identity,
        "generator_epochs": generator and generator.options.epochs,
        "classifier_batch": classifier.options.batch_size,
    }
    cores = None if num_workers == "auto" else num_workers
    with entered(classifier, request, "worth", also):
        for part in ("data", "made"):
            make_folder(request.folder / part)
        makers: list[PlannedRun] = []
        if generator is not None:
            makers = _plan_generators(real, folds, percents, generator, request.folder, watcher)
            train_runs(makers, generator, request, watcher, cores=cores)
        planned = _plan_classifiers(
            real, folds, settings, asked, classifier, request.folder, watcher
        )
        runs = [each.run for each in planned]
        train_runs(runs, classifier, request, watcher, cores=cores)
        scored = _scores(real, folds, settings, planned, request.folder, asked.seeds, watcher)
        arrays = {f"{arm}_{percent}": scores for (arm, percent), scores in scored.scores.items()}
        known = {"label": scored.label, "fold": scored.fold, "group": real.groups}
        write_npz(request.folder / SCORES, known | arrays)
        arms, pairs = compare(scored, _sizes(planned))
        digests = {run.folder: _digest(request.folder, run) for run in makers}
        trained = tuple(_trained(request.folder, each) for each in planned)
    return Worth(
        **classifier.heading(request)
        | {"num_examples": len(real), "num_valid": max(len(f.held_out) for f in folds)},
        generator=name,
        generator_epochs=0 if generator is None else generator.options.epochs,
        epochs=classifier.options.epochs,
        batch_size=classifier.options.batch_size,
        folds=asked.folds,
        seeds=asked.seeds,
        times=asked.times,
        seed=asked.seed,
        num_groups=len(np.unique(real.groups)),
        has_groups=len(np.unique(real.groups)) < len(real),
        arms=tuple(arms),
        pairs=tuple(pairs),
        runs=trained,
        generators=digests,
        predictions=content_hash(request.folder / SCORES),
        verdict=verdict(pairs, asked.seeds),
    )


def to_json(found: Worth) -> dict[str, Any]:
    """Plain values; NaN and infinities become text where it is written."""
    return {"kind": "worth", **asdict(found)}


def from_json(content: Mapping[str, Any]) -> Worth:
    """What `to_json` was given."""
    found: Worth = read_as(Worth, content)
    return found


# ---- before anything is written


def _generator(asked: WorthRequest) -> tuple[str, int | None]:
    """The generator's recipe and its epochs: those of a run where one was named."""
    if not RunFolder(Path(asked.generator)).holds_run:
        return asked.generator, asked.generator_epochs
    config = look_at(Path(asked.generator)).config
    return str(config["recipe"]), asked.generator_epochs or int(config["epochs"])


def _opened(request: StudyRequest, name: str, epochs: int | None) -> Opened:
    """What all runs of a recipe share; it is tried on all data first."""
    recipe = find_recipe(name, request.data)
    options = _options(recipe, epochs)
    optimizer = recipe.optimizer(p for p in recipe.model().parameters() if p.requires_grad)
    return Opened(
        folder=request.folder,
        recipe=recipe,
        options=options,
        optimizer=type(optimizer).__name__,
        recipe_rate=float(optimizer.param_groups[0]["lr"]),
        recipe_decay=0.0,
        num_valid=0,
    )


def _options(recipe: Recipe, epochs: int | None, seed: int | None = None) -> Options:
    options = resolve(recipe, Overrides(epochs=epochs, target="none", seed=seed))
    refuse_recipe(recipe, options, 1)
    return with_fingerprints(options, recipe)


def _refuse_classifier(recipe: Recipe, asked: WorthRequest) -> None:
    """Raise unless the recipe says two numbers per nodule, and can augment where that is asked."""
    name = recipe.origin.name
    if any(arm in _AUGMENTED for arm in asked.arms) and recipe.augment is None:
        raise UserError(
            f"the recipe {name!r} has no augment=, which changes examples whose fact `augment` is "
            "1 (see samepath.recipes.nodules.classifier); add it, or leave augmented and both out "
            "of --arms"
        )
    if recipe.predict is None:
        raise UserError(
            f"the recipe {name!r} has no predict=; give one that returns two numbers per nodule, a "
            "score for each class"
        )
    source = as_source(recipe.train, seed=0, collate=recipe.collate)
    batch = next(iter(source.load(iter([GrainRequest(-1, np.arange(2))]))))
    with torch.no_grad():
        answer = recipe.predict(recipe.model().eval(), batch)
    if not isinstance(answer, torch.Tensor) or answer.shape != (2, 2):
        shape = tuple(answer.shape) if isinstance(answer, torch.Tensor) else type(answer).__name__
        raise UserError(
            f"predict of the recipe {name!r} returns {shape} for two nodules; it must return (2, "
            "2): a score for each class"
        )


# ---- runs


class _Planned(NamedTuple):
    run: PlannedRun
    setting: ArmSetting
    fold: WorthFold
    seed: int
    num_real: int
    num_generated: int


def _plan_generators(
    real: RealNodules,
    folds: Sequence[WorthFold],
    percents: Sequence[int],
    opened: Opened,
    study: Path,
    watcher: Watcher,
) -> list[PlannedRun]:
    runs = []
    wholes = {fold.number: len(fold.train[max(percents)]) for fold in folds}
    for fold in folds:
        for percent in percents:
            name = _maker_name(fold, percent)
            path = study / "data" / f"{name}.npz"
            if not path.exists():
                write_generator_data(path, real, fold.train[percent])
            recipe = find_recipe(opened.recipe.origin.name, str(path))
            epochs = _as_many_steps(
                opened.options.epochs, wholes[fold.number], len(fold.train[percent])
            )
            label = f"generator of fold {fold.number} at {percent}%"
            options = _options(recipe, epochs, opened.options.seed)
            runs.append(PlannedRun(folder=f"runs/{name}", label=label, options=options))
            watcher.progress("data of the generators", len(runs), len(folds) * len(percents))
    watcher.end("data of the generators")
    return runs


def _maker_name(fold: WorthFold, percent: int) -> str:
    return f"fold{fold.number}-{percent}-generator"


def _as_many_steps(epochs: int, whole: int, examples: int) -> int:
    """Epochs over so many examples that make about the steps of `epochs` over the whole."""
    return max(1, round(epochs * whole / examples))


def _plan_classifiers(
    real: RealNodules,
    folds: Sequence[WorthFold],
    settings: Sequence[ArmSetting],
    asked: WorthRequest,
    opened: Opened,
    study: Path,
    watcher: Watcher,
) -> list[_Planned]:
    """The classifiers' runs; their data files are written, and nodules generated, where they are
    not there yet."""
    planned: list[_Planned] = []
    for done, (fold, setting) in enumerate((f, s) for f in folds for s in settings):
        watcher.progress("data of the classifiers", done, len(folds) * len(settings))
        arm, percent = setting
        rows = fold.train[percent]
        counts = np.rint(np.bincount(real.label[rows], minlength=2) * asked.times).astype(int)
        has_real, has_made = arm != "synthetic", arm in _GENERATED
        name = f"fold{fold.number}-{percent}-{arm}"
        path = study / "data" / f"{name}.npz"
        if not path.exists():
            made = _made(study, fold, percent, counts, asked.seed) if has_made else None
            own = rows if has_real else rows[:0]
            augment = arm in _AUGMENTED
            write_classifier_data(path, real, own, fold.held_out, made, augment=augment)
        num_real = len(rows) if has_real else 0
        num_made = int(counts.sum()) if has_made else 0
        whole = len(fold.train[max(asked.percents)])
        recipe = find_recipe(opened.recipe.origin.name, str(path))
        epochs = _as_many_steps(opened.options.epochs, whole, num_real + num_made)
        options = _options(recipe, epochs)
        for seed in range(asked.seeds):
            run = PlannedRun(
                folder=f"runs/{name}-seed{seed}",
                label=f"{arm} at {percent}%, fold {fold.number}, seed {seed}",
                options=replace(options, seed=seed),
            )
            planned.append(_Planned(run, setting, fold, seed, num_real, num_made))
    watcher.end("data of the classifiers")
    return planned


def _made(study: Path, fold: WorthFold, percent: int, counts: NDArray[np.int64], seed: int) -> Made:
    """The nodules of a fold's generator, made once."""
    path = study / "made" / f"fold{fold.number}-{percent}.npz"
    if not path.exists():
        zeros, ones = counts.tolist()
        cubes, label = make_nodules(
            study / "runs" / _maker_name(fold, percent), (zeros, ones), seed=seed
        )
        write_npz(path, {"volume": cubes, "label": label})
    with np.load(path, allow_pickle=False) as content:
        return content["volume"], content["label"]


# ---- what the runs left


def _scores(
    real: RealNodules,
    folds: Sequence[WorthFold],
    settings: Sequence[ArmSetting],
    planned: Sequence[_Planned],
    study: Path,
    num_seeds: int,
    watcher: Watcher,
) -> Scored:
    """What every classifier says of what its fold held out."""
    scores = {each: np.zeros((num_seeds, len(real))) for each in settings}
    for done, each in enumerate(planned):
        watcher.progress("scores of the nodules held out", done, len(planned))
        (answer,) = predict(study / each.run.folder, num_workers=1).values()
        found = np.asarray(answer, np.float64)
        scores[each.setting][each.seed, each.fold.held_out] = found[:, 1] - found[:, 0]
    watcher.end("scores of the nodules held out")
    number = np.zeros(len(real), np.int64)
    for fold in folds:
        number[fold.held_out] = fold.number
    return Scored(scores=scores, label=real.label, fold=number, groups=real.groups.tolist())


def _sizes(planned: Sequence[_Planned]) -> dict[ArmSetting, tuple[int, int]]:
    """Real and generated nodules that a setting trains on, on average over folds."""
    found: dict[ArmSetting, tuple[int, int]] = {}
    for setting in {each.setting for each in planned}:
        mine = [each for each in planned if each.setting == setting]
        sizes = ([each.num_real for each in mine], [each.num_generated for each in mine])
        real, made = (round(statistics.mean(numbers)) for numbers in sizes)
        found[setting] = real, made
    return found


def _digest(study: Path, run: PlannedRun) -> str:
    digest: str = RunFolder(study / run.folder).read()["result"]["digest"]
    return digest


def _trained(study: Path, each: _Planned) -> WorthRun:
    result = RunFolder(study / each.run.folder).read()["result"]
    return WorthRun(
        arm=each.setting.arm,
        percent=each.setting.percent,
        fold=each.fold.number,
        seed=each.seed,
        folder=each.run.folder,
        epochs=round(result["epochs"]),
        digest=result["digest"],
        why=end_of(study, each.run)[1],
    )
