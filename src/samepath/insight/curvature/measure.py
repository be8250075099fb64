"""One worker's part of `samepath curvature`.

In: a request, a folder. Out: for every run a JSON file (and eigenvectors) in the folder, written by
the first worker, which leads; the others do their share of each loss and product.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from samepath.console import SilentWatcher, Watcher
from samepath.data import as_source
from samepath.engine.run.session import Session, start
from samepath.engine.state.reopen import ReopenedRun, reopen
from samepath.engine.state.weights import Epoch
from samepath.errors import UserError
from samepath.insight.curvature.hessian import SampleLoss, choose_sample, trained, unflatten
from samepath.insight.curvature.lanczos import top_eigenpairs
from samepath.insight.curvature.landscape import filter_normalised, line, plane, rise
from samepath.insight.curvature.request import CurvatureRequest
from samepath.insight.curvature.result import RunCurvature
from samepath.insight.curvature.trace import estimate_trace
from samepath.keys import key

RISE_DIRECTIONS = 10
EIGEN_SHARE = 0.5
"""The loss rises faster along eigenvectors: lines and planes go so far of the radius."""
MOST_PRODUCTS = 400
"""For the eigenvalues of one run."""


def work(request: CurvatureRequest, grain_size: int, threads: int, folder: Path) -> None:
    """One worker's part; the first leaves what was found in the folder."""
    with start(seed=request.seed, threads=threads) as session:
        watcher = request.watcher() if session.is_first else SilentWatcher()
        names = names_of(request.runs)
        with closing(watcher):
            for number, path in enumerate(request.runs):
                run, name = reopen(path), names[number]
                _measure(session, request, grain_size, run, name, watcher, folder, number)


def names_of(paths: Sequence[Path]) -> list[str]:
    """What runs are called: their folders' names, if those tell them apart."""
    short = [path.resolve().name for path in paths]
    return short if len(set(short)) == len(short) else [str(path) for path in paths]


def _measure(
    session: Session,
    request: CurvatureRequest,
    grain_size: int,
    run: ReopenedRun,
    name: str,
    watcher: Watcher,
    folder: Path,
    number: int,
) -> None:
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
    source = trainer.source(recipe.train)
    loss = SampleLoss(
        session.collective,
        model,
        recipe.loss,
        source,
        sample,
        weight=recipe.weight,
        seed=request.seed,
    )
    if not session.is_first:
        loss.serve()
        return
    with loss:
        found, vectors = _explore(loss, request, name, watcher)
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
    (folder / f"{number}.json").write_text(json.dumps(asdict(result)))
    if request.save_vectors:
        names = [n for n, p in model.named_parameters() if p.requires_grad]
        rows = [unflatten(vector, trained(model)) for vector in vectors]
        save_file(
            {n: torch.stack(parts).cpu() for n, *parts in zip(names, *rows, strict=True)},
            folder / f"eigenvectors-{number + 1}.safetensors",
        )


def _explore(
    loss: SampleLoss, request: CurvatureRequest, name: str, watcher: Watcher
) -> tuple[dict[str, Any], Tensor]:
    """What the leading worker asks of the loss: fields of RunCurvature, and eigenvectors."""

    def show(part: str, done: int, expected: int) -> None:
        watcher.progress(f"{name}: {part}", done, expected)
        if done >= expected:
            watcher.end(f"{name}: {part}")

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
            loss.product,
            begin,
            request.top,
            most_products=MOST_PRODUCTS,
            tell=lambda done, expected: show("eigenvalues", done, expected),
        )
    except FloatingPointError:
        raise UserError(
            f"the Hessian of {name} is not finite where the loss is {at_home:.3g}; look at other "
            "weights (--epoch), or at what the model divides by or takes roots of"
        ) from None
    trace = estimate_trace(
        loss.product,
        pairs,
        seed=seed,
        tell=lambda done, expected: show("trace", done, expected),
    )
    points, fine, coarse = 0, request.grid, request.plane_grid
    num_planes = 1 + (len(pairs.vectors) > 1)
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
    axes = pairs.vectors
    return {
        "loss": at_home,
        "eigenvalues": pairs.values,
        "residuals": pairs.residuals,
        "tolerance": pairs.tolerance,
        "trace": trace.value,
        "trace_error": trace.standard_error,
        "num_products": pairs.num_products + trace.num_products,
        "rise": rise(loss_at, home, around, far / 2.0, at_home),
        "random_line": line(loss_at, home, first, far, fine),
        "random_plane": plane(loss_at, home, first, second, far, coarse),
        "eigen_line": line(loss_at, home, axes[0], near, fine),
        "eigen_plane": plane(loss_at, home, axes[0], axes[1], near, coarse)
        if num_planes == 2
        else None,
    }, axes


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
