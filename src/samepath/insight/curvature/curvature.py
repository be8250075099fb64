"""The curvature of the loss where runs ended.

In: folders of runs of one recipe. Out: for each, the largest eigenvalues of the Hessian, its trace,
and the loss along lines and planes, all of the same sample of training examples (if the runs have
the same data). Guaranteed: the same bits at every worker count; runs are not changed; what can be
found wrong with runs and models is found before a worker is started.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from samepath.data import GrainRequest, as_source
from samepath.engine.launch.launch import launch
from samepath.engine.run.request import available_workers
from samepath.engine.state.reopen import ReopenedRun, reopen
from samepath.errors import UserError
from samepath.insight.curvature.faults import refuse_undifferentiable
from samepath.insight.curvature.hessian import choose_sample
from samepath.insight.curvature.measure import MOST_PRODUCTS, work
from samepath.insight.curvature.request import CurvatureRequest
from samepath.insight.curvature.result import Curvature, RunCurvature, run_from_json
from samepath.owners import owned_folder
from samepath.plan import Batch


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
    with owned_folder() as folder:
        arguments = (request, sample.grain_size, int(runs[0].config["threads"]), Path(folder))
        if workers == 1:
            work(*arguments)
        else:
            launch(work, arguments, workers)
        files = [Path(folder) / f"{number}.json" for number in range(len(runs))]
        found = [run_from_json(json.loads(file.read_text())) for file in files]
        if vectors is not None and request.save_vectors:
            vectors.mkdir(parents=True, exist_ok=True)
            for file in sorted(Path(folder).glob("*.safetensors")):
                (vectors / file.name).write_bytes(file.read_bytes())
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
    """An error unless losses can be compared; what to know where they almost can."""
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
    """The smallest run's sample; an error if a run cannot be looked at, or its loss cannot be
    differentiated twice."""
    samples = []
    for run in runs:
        model, _ = run.model(request.epoch)
        source = as_source(run.recipe.train, seed=request.seed, collate=run.recipe.collate)
        size = int(runs[0].config["grain_size"])
        samples.append(choose_sample(len(source), request.num_examples, size, request.seed))
        (data,) = source.load([GrainRequest(-1, samples[-1].grain(0))])
        refuse_undifferentiable(model, run.recipe.loss, data, str(run.folder.path))
    return min(samples, key=lambda sample: sample.num_grains)
