"""The curvature of the loss where runs ended (`samepath curvature`).

In: folders of runs of one recipe. Out: for each, the largest eigenvalues of the Hessian, its trace,
and the loss along lines and planes, all of the same sample of training examples (if the runs have
the same data). The first worker leads and writes what it finds; the others compute their grains of
each loss and product. Guaranteed: the same bits at every worker count; runs are not changed; what
can be found wrong with runs and models is found before a worker is started.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from samepath.console import SilentWatcher, Watcher
from samepath.data import GrainRequest, as_source
from samepath.engine.launch.launch import call_workers
from samepath.engine.run.lanczos import top_eigenpairs
from samepath.engine.run.measure import choose_sample, trained
from samepath.engine.run.request import available_workers
from samepath.engine.run.session import Session, start
from samepath.engine.state.checkpoint import Epoch
from samepath.engine.state.reopen import ReopenedRun, reopen
from samepath.errors import UserError
from samepath.insight.curvature.hessian import (
    SampleLoss,
    estimate_trace,
    refuse_undifferentiable,
    unflatten,
)
from samepath.insight.curvature.landscape import (
    Line,
    Plane,
    Rise,
    filter_normalised,
    line,
    plane,
    rise,
)
from samepath.keys import key
from samepath.plan import Batch
from samepath.recipe import refuse_whole_batch

RISE_DIRECTIONS = 10
EIGEN_SHARE = 0.5
"""The loss rises faster along eigenvectors: lines and planes go so far of the radius."""
MOST_PRODUCTS = 400
"""The most products for the eigenvalues of one run."""


@dataclass(frozen=True, kw_only=True)
class CurvatureRequest:
    """What the user asked `samepath curvature` for."""

    runs: tuple[Path, ...]
    num_workers: int | Literal["auto"] = "auto"
    num_examples: int = 256
    """The most examples that are sampled, in whole grains."""
    top: int = 20
    """How many eigenvalues."""
    grid: int = 31
    """Points of a line; planes have half as many each way."""
    radius: float = 1.0
    """How far lines and planes go from the weights, each way; along eigenvectors half as far."""
    epoch: Epoch | None = None
    """Weights kept after so many epochs, or at a run's best; the newest when not given."""
    seed: int = 0
    save_vectors: bool = False
    watcher: Callable[[], Watcher] = SilentWatcher
    """Makes, in the first worker, what shows progress; must pickle."""

    def __post_init__(self) -> None:
        for flag, value, least in (
            ("--examples", self.num_examples, 1),
            ("--top", self.top, 1),
            ("--grid", self.grid, 5),
            ("--seed", self.seed, 0),
        ):
            if value < least:
                raise UserError(f"{flag} {value}: it must be at least {least}")
        if not 0 < self.radius < math.inf:
            raise UserError(f"--radius {self.radius}: it must be above 0")
        if not self.runs:
            raise UserError("no run was named; give folders of `samepath train`")

    @property
    def plane_grid(self) -> int:
        """Odd, so that the weights themselves are a point."""
        return 2 * (self.grid // 4) + 1


@dataclass(frozen=True, kw_only=True)
class RunCurvature:
    """The loss around the weights of one run."""

    name: str
    """What figures and tables call it."""
    path: str
    digest: str
    """SHA-256 of the checkpoint, or of the weights kept."""
    epoch: int | str | None
    """Whose weights they are: after so many epochs, at its best, or the newest."""
    batch_size: int
    learning_rate: float | None
    """The rate at the last step before these weights."""
    steps: int | None
    num_parameters: int
    num_examples: int
    """Examples in the run's training data."""
    num_sampled: int
    """How many of these all of this was measured on."""
    loss: float
    """The sample's mean, in evaluation mode, without augmentation."""
    valid: dict[str, float]
    """What the recipe evaluates, on all validation data, with the same weights."""
    eigenvalues: list[float]
    """The Hessian's, the largest in size first."""
    residuals: list[float]
    """|H v - l v| of each: an eigenvalue of the Hessian is no further from it."""
    tolerance: float
    """What residuals were to get below."""
    trace: float
    trace_error: float
    """The trace's standard error."""
    num_products: int
    """How many products of the Hessian with a vector it took."""
    rise: Rise
    random_line: Line
    random_plane: Plane
    eigen_line: Line
    eigen_plane: Plane | None
    """Along the first two eigenvectors, if there are two."""
    seconds: float

    @property
    def gap(self) -> float | None:
        """How much higher the loss is on validation data."""
        return self.valid["loss"] - self.loss if "loss" in self.valid else None

    @property
    def num_negative(self) -> int:
        """Eigenvalues that are surely below zero."""
        pairs = zip(self.eigenvalues, self.residuals, strict=True)
        return sum(value + max(residual, self.tolerance) < 0.0 for value, residual in pairs)


@dataclass(frozen=True, kw_only=True)
class Curvature:
    """Several runs of one recipe on the same sample."""

    recipe: str
    seed: int
    """Chooses the sample and the directions."""
    grain_size: int
    num_workers: int
    radius: float
    runs: Sequence[RunCurvature]
    notes: Sequence[str]
    """Sentences for the reader."""


def measure_curvature(request: CurvatureRequest, vectors: Path | None = None) -> Curvature:
    """Measure all runs. `vectors`: a folder for files of eigenvectors, if they are asked for."""
    runs = [reopen(path) for path in request.runs]
    notes = _refuse_mixture(runs)
    sample = _look_at(request, runs)
    workers = available_workers() if request.num_workers == "auto" else request.num_workers
    if request.num_workers != "auto" and workers > sample.num_grains:
        raise UserError(
            f"-n {workers}, but {len(sample.examples)} examples in grains of {sample.grain_size} "
            f"are {sample.num_grains} grains; use at most {sample.num_grains} workers, or more "
            "--examples"
        )
    workers = min(workers, sample.num_grains)
    arguments = (request, sample.grain_size, int(runs[0].config["threads"]))
    results = _work(*arguments) if workers == 1 else call_workers(_work, arguments, workers)[0]
    found = [result for result, _ in results]
    if vectors is not None and request.save_vectors:
        vectors.mkdir(parents=True, exist_ok=True)
        for number, (_, tensors) in enumerate(results, 1):
            save_file(tensors, vectors / f"eigenvectors-{number}.safetensors")
    return Curvature(
        recipe=runs[0].config["recipe"],
        seed=request.seed,
        grain_size=sample.grain_size,
        num_workers=workers,
        radius=request.radius,
        runs=found,
        notes=[*notes, *(note for run in found for note in _notes(run, request.top))],
    )


def _notes(run: RunCurvature, top: int) -> Iterator[str]:
    if len(run.eigenvalues) < top:
        yield (
            f"{run.name} has {run.num_parameters} parameters, so there are only "
            f"{len(run.eigenvalues)} eigenvalues"
        )
    late = sum(residual > run.tolerance for residual in run.residuals)
    if late:
        yield (
            f"{run.name}: {late} of {len(run.residuals)} eigenvalues have residuals above "
            f"{run.tolerance:.2g} after {MOST_PRODUCTS} products"
        )


def _refuse_mixture(runs: Sequence[ReopenedRun]) -> list[str]:
    """Raise unless the runs' losses can be compared; notes for the reader where they almost can."""
    first = runs[0]
    for run in runs[1:]:
        for name, what in (("identity", "recipe"), ("data_identity", "data")):
            if run.config.get(name) != first.config.get(name):
                raise UserError(
                    f"{run.folder.path} is a run of the {what} {run.config[what]}, and "
                    f"{first.folder.path} of {first.config[what]}; compare runs of one {what}"
                )
    if len({run.config.get("keep_identity") for run in runs}) > 1:
        return ["the runs have different keep-lists, so their samples are different examples"]
    return []


def _look_at(request: CurvatureRequest, runs: Sequence[ReopenedRun]) -> Batch:
    """The smallest run's sample; raise if a run has no weights to look at, or its loss cannot be
    differentiated twice."""
    samples = []
    for run in runs:
        refuse_whole_batch(run.recipe, "curvature")
        model, _ = run.model(request.epoch)
        source = as_source(run.recipe.train, seed=request.seed, collate=run.recipe.collate)
        size = int(runs[0].config["grain_size"])
        samples.append(choose_sample(len(source), request.num_examples, size, request.seed))
        (data,) = source.load([GrainRequest(-1, samples[-1].grain(0))])
        refuse_undifferentiable(model, run.recipe.loss, data, str(run.folder.path))
    return min(samples, key=lambda sample: sample.num_grains)


# ---- one worker


def _work(
    request: CurvatureRequest, grain_size: int, threads: int
) -> list[tuple[RunCurvature, dict[str, Tensor]]]:
    """One worker's life; what it found of all runs, on the first worker."""
    short = [path.resolve().name for path in request.runs]
    names = short if len(set(short)) == len(short) else map(str, request.runs)
    with start(seed=request.seed, threads=threads) as session:
        watcher = request.watcher() if session.is_first else SilentWatcher()
        with closing(watcher):
            found = [
                _measure(session, request, grain_size, reopen(path), name, watcher)
                for path, name in zip(request.runs, names, strict=True)
            ]
        return [result for result in found if result is not None]


def _measure(
    session: Session,
    request: CurvatureRequest,
    grain_size: int,
    run: ReopenedRun,
    name: str,
    watcher: Watcher,
) -> tuple[RunCurvature, dict[str, Tensor]] | None:
    """Measure one run; on the first worker its result, and eigenvectors by parameter."""
    began = time.monotonic()
    recipe = run.recipe
    model, digest = run.model(request.epoch)
    model.to(session.device)
    num_examples = len(as_source(recipe.train, seed=0, collate=recipe.collate))
    sample = choose_sample(num_examples, request.num_examples, grain_size, request.seed)
    trainer = session.prepare(  # for what it knows of data and validation; nothing is trained
        model,
        torch.optim.SGD(trained(model), lr=0.0),
        recipe.loss,
        batch_size=len(sample.examples),
        grain_size=sample.grain_size,
        weight=recipe.weight,
        metrics=recipe.evaluate,
        autocast=recipe.autocast,
        collate=recipe.collate,
        loader_workers=recipe.loader_workers,
    )
    valid = {} if recipe.valid is None else trainer.evaluate(recipe.valid)
    source, weight = trainer.source(recipe.train), recipe.weight
    loss = SampleLoss(
        session.collective, model, recipe.loss, source, sample, weight=weight, seed=request.seed
    )
    if not session.is_first:
        loss.serve()
        return None
    found, vectors = _explore(loss, request, name, watcher)
    loss.dismiss()
    result = RunCurvature(
        name=name,
        path=str(run.folder.path),
        digest=digest,
        epoch=request.epoch,
        num_parameters=len(loss.weights),
        num_examples=num_examples,
        num_sampled=len(sample.examples),
        valid=valid,
        seconds=time.monotonic() - began,
        **_position(run, request.epoch),
        **found,
    )
    if not request.save_vectors:
        return result, {}
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    rows = [unflatten(vector, list(parameters.values())) for vector in vectors]
    parts = zip(parameters, *rows, strict=True)
    return result, {n: torch.stack(tensors).cpu() for n, *tensors in parts}


def _explore(
    loss: SampleLoss, request: CurvatureRequest, name: str, watcher: Watcher
) -> tuple[dict[str, Any], Tensor]:
    """What the first worker asks of the loss: fields of RunCurvature, and eigenvectors."""

    def show(part: str, done: int, expected: int) -> None:
        watcher.progress(f"{name}: {part}", done, expected)

    home, seed = loss.weights, request.seed
    at_home = loss.loss_at(home)
    if not math.isfinite(at_home):
        raise UserError(
            f"the loss of {name} on {loss.num_examples} training examples is {at_home}; look "
            "at weights from before it diverged (--epoch), or mend the data"
        )
    generator = torch.Generator().manual_seed(key("curvature", seed))
    begin = torch.randn(len(home), generator=generator, dtype=torch.float64).to(home)
    try:
        pairs = top_eigenpairs(
            lambda vector: [loss.product(*vector)],
            [begin],
            request.top,
            most_products=MOST_PRODUCTS,
            tell=partial(show, "eigenvalues"),
        )
    except FloatingPointError:
        raise UserError(
            f"the Hessian of {name} is not finite where the loss is {at_home:.3g}; look at other "
            "weights (--epoch), or at what the model divides by or takes roots of"
        ) from None
    watcher.end(f"{name}: eigenvalues")
    (axes,) = pairs.vectors
    trace, trace_error, trace_products = estimate_trace(
        loss.product, pairs.values, axes, seed=seed, tell=partial(show, "trace")
    )
    watcher.end(f"{name}: trace")
    points, fine, coarse = 0, request.grid, request.plane_grid
    num_planes = 1 + (len(axes) > 1)
    expected = 2 * (2 * (fine // 2) + 1) + num_planes * coarse**2 + 2 * RISE_DIRECTIONS

    def loss_at(weights: Tensor) -> float:
        nonlocal points
        points += 1
        value = loss.loss_at(weights)
        show("landscape", points, expected)
        return value

    parameters, far = trained(loss.model), request.radius
    near = EIGEN_SHARE * far
    first, second = (filter_normalised(parameters, seed, i) for i in range(2))
    around = (filter_normalised(parameters, seed, i) for i in range(RISE_DIRECTIONS))
    found = {
        "loss": at_home,
        "eigenvalues": pairs.values,
        "residuals": pairs.residuals,
        "tolerance": pairs.tolerance,
        "trace": trace,
        "trace_error": trace_error,
        "num_products": pairs.num_products + trace_products,
        "rise": rise(loss_at, home, around, far / 2.0, at_home),
        "random_line": line(loss_at, home, first, far, fine),
        "random_plane": plane(loss_at, home, first, second, far, coarse),
        "eigen_line": line(loss_at, home, axes[0], near, fine),
        "eigen_plane": plane(loss_at, home, axes[0], axes[1], near, coarse)
        if num_planes == 2
        else None,
    }
    watcher.end(f"{name}: landscape")
    return found, axes


def _position(run: ReopenedRun, epoch: Epoch | None) -> dict[str, Any]:
    """The step whose weights these are, and its learning rate and batch, by metrics.jsonl (a
    strategy may have another batch than the recipe)."""
    lines = run.folder.read_metrics()
    ends = [line for line in lines if "epoch_train_loss" in line]
    step = lines[-1]["step"] if lines else None
    if epoch == "best":
        judged = [line for line in ends if isinstance(line.get("valid_loss"), float)]
        step = min(judged, key=lambda line: float(line["valid_loss"]))["step"] if judged else None
    elif epoch is not None:
        step = next((line["step"] for line in ends if line["epoch"] + 1 == epoch), 0)
    here = {name: value for line in lines if line["step"] == step for name, value in line.items()}
    return {
        "steps": step,
        "learning_rate": here.get("learning_rate"),
        "batch_size": int(here.get("batch_size", run.config["batch_size"])),
    }
