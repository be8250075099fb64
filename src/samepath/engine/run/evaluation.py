"""Validation on fixed grains.

In: a trainer and a source. Out: means by name. Guaranteed: the same bits at every worker count: the
grains are the plan's, each meets the model as training left it, and their weighted means are added
with one rounding (fsum has no order).
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samepath.data import GrainRequest, Source, seed_everything
from samepath.engine.checks.replicas import LeftAlone
from samepath.engine.comm.rows import gather_grains, joined, settled
from samepath.engine.comm.tensors import to_device
from samepath.engine.step.loss_metrics import numbers_of, split_loss
from samepath.engine.step.record import exact_sum
from samepath.engine.step.settings import Settings, is_metric
from samepath.engine.step.step import Stepper
from samepath.engine.step.whole_batch import GrainRows, refuse_other_loss, rows_of, whole_rows
from samepath.errors import UserError
from samepath.keys import key
from samepath.plan import assign
from samepath.recipe import WholeBatchLoss


def evaluate(trainer: Stepper, source: Source, other: nn.Module | None = None) -> dict[str, float]:
    """Means of the loss and metrics over all examples of a source, and what evaluate_all says of
    all of them; with an `other` model, if given, than the trainer's. A loss of the whole batch is
    that of batches, in order, as training has them."""
    evaluated = trainer.model if other is None else other
    collective, settings = trainer.collective, trainer.settings
    whole = trainer.loss if isinstance(trainer.loss, WholeBatchLoss) else None
    if settings.metrics is not None:
        whole = None
    batches = _batches(len(source), settings.batch_size if whole else len(source), settings)
    costs = trainer.balance.costs
    runs = [assign(len(batch), collective.num_workers, costs) for batch in batches]
    mine = [
        [list(batch.items())[place] for place in run[collective.worker]]
        for batch, run in zip(batches, runs, strict=True)
    ]
    # no epoch: validation meets the same numbers always
    loaded = source.load(GrainRequest(-1, examples) for batch in mine for _, examples in batch)

    found: list[dict[str, Tensor | float]] = []
    shown: list[tuple[int, Any, Any]] = []
    weights: list[float] = []
    modes = [(module, module.training) for module in evaluated.modules()]
    evaluated.eval()
    model = LeftAlone(evaluated)
    try:
        with torch.no_grad():
            for batch in mine:
                rows: list[GrainRows] = []
                for number, examples in batch:
                    data = to_device(next(loaded), collective.device)
                    trainer.watch("valid", number, data)
                    seed_everything(key("evaluate", settings.seed, number))
                    with trainer.forward_context():
                        if whole is not None:
                            rows.append(rows_of(whole.encode(evaluated, data), data, whole))
                            values: dict[str, Any] = {}
                        else:
                            values = _metrics(trainer, evaluated, data)
                        if settings.evaluate_all is not None:
                            shown.append((number, *outputs_and_targets(evaluated, data, values)))
                    found.append(values)
                    trainer.watch("metrics", number, rows[-1] if whole else values)
                    trainer.watch("done", number, None)
                    model.put_back(all_of_it=len(weights) == 0)
                    weigh = settings.weight
                    weights.append(len(examples) if weigh is None else float(weigh(data)))
                if whole is not None:
                    loss = _batch_loss(trainer, whole, rows)
                    for values in found[len(found) - len(batch) :]:
                        values["loss"] = loss
            next(loaded, None)  # there is none left: loader processes end
    finally:
        model.put_back()
        for module, training in modes:
            module.training = training
    if model.changed:
        trainer.warn_once(
            f"evaluation changes {min(model.changed)!r} of the model, which is put back: only "
            "training changes it"
        )
    trainer.seed_between_steps("evaluation")
    names = _agree_on_names(trainer, found)
    for values in found:
        if sorted(values) != names:
            raise UserError(
                f"evaluate() returned {sorted(values)} for some examples and {names} for others; "
                "return the same names for every batch"
            )
    counts = [sum(len(run[w]) for run in runs) for w in range(collective.num_workers)]
    facts = np.zeros((max(counts), len(names) + 1))
    for row, (values, weight) in enumerate(zip(found, weights, strict=True)):
        facts[row] = [weight, *(float(values[name]) for name in names)]
    of_workers = zip(collective.gather_rows(facts), counts, strict=True)
    gathered = np.concatenate([rows[:count] for rows, count in of_workers])
    gathered = gathered[gathered[:, 0] > 0]
    total = exact_sum(gathered[:, 0]) or math.nan  # nothing that counts has no mean
    means = {
        name: exact_sum(gathered[:, 0] * gathered[:, column]) / total
        for column, name in enumerate(names, start=1)
    }
    return means if settings.evaluate_all is None else means | _of_all(trainer, shown, means)


def _batches(num_examples: int, size: int, settings: Settings) -> list[dict[int, Any]]:
    """Consecutive batches, each as its grains by number."""
    order = np.arange(num_examples, dtype=np.int64)
    number, found = count(), []
    for batch in np.split(order, range(size, num_examples, size)) if size else []:
        grains = np.split(batch, range(settings.grain_size, len(batch), settings.grain_size))
        found.append({next(number): grain for grain in grains})
    return found


def _batch_loss(trainer: Stepper, loss: WholeBatchLoss, rows: list[GrainRows]) -> Tensor:
    """The loss of a batch of which this worker has encoded some grains (all workers together)."""
    batch, _, _ = whole_rows(gather_grains(trainer.collective, rows))
    seed_everything(key("evaluate batch", trainer.settings.seed))
    with trainer.forward_context():
        found = loss.of_rows(batch.encoded, batch.data)
    refuse_other_loss(found, "batch_loss()")
    return found


# ---- metrics that are no means


def outputs_and_targets(model: nn.Module, data: Any, values: dict[str, Any]) -> tuple[Any, Any]:
    """A grain's outputs and targets for evaluate_all: those that evaluate() returned, which are
    taken out of its means; else what the model makes of a pair."""
    if "outputs" in values and "targets" in values:
        return settled(values.pop("outputs")), settled(values.pop("targets"))
    if not (isinstance(data, (tuple, list)) and len(data) == 2 and isinstance(data[0], Tensor)):
        raise UserError(
            f"evaluate_all needs outputs and targets, and a batch ({type(data).__name__}) does not "
            "say which they are; have evaluate(model, batch) return them too, as 'outputs' and "
            "'targets'"
        )
    return settled(model(data[0])), settled(data[1])


def _of_all(
    trainer: Stepper, shown: list[tuple[int, Any, Any]], means: Mapping[str, float]
) -> dict[str, float]:
    """What evaluate_all says of all examples, in order; every worker computes it alike."""
    grains = sorted(gather_grains(trainer.collective, shown), key=lambda grain: int(grain[0]))
    outputs = joined([of_grain[1] for of_grain in grains], "the outputs")
    targets = joined([of_grain[2] for of_grain in grains], "the targets")
    found = judge_all(trainer.settings.evaluate_all, outputs, targets, trainer.settings.seed)
    trainer.seed_between_steps("evaluation")
    for name in found:
        if name in means:
            raise UserError(f"both evaluate() and evaluate_all() have {name!r}; rename one")
    return found


def judge_all(evaluate_all: Any, outputs: Any, targets: Any, seed: int) -> dict[str, float]:
    """What a recipe's evaluate_all says of outputs and targets of many examples."""
    seed_everything(key("evaluate all", seed))
    with torch.no_grad():
        if isinstance(evaluate_all, Mapping) or is_metric(evaluate_all):
            found = _by_torchmetrics(evaluate_all, outputs, targets)
        else:
            found = evaluate_all(outputs, targets)
    if not isinstance(found, Mapping):
        raise UserError(f"evaluate_all() returned {type(found).__name__}; return a dict of numbers")
    for name, value in found.items():
        if isinstance(value, Tensor) and value.numel() != 1:
            raise UserError(
                f"evaluate_all has {name!r} of shape {tuple(value.shape)}; make it one number "
                "(torchmetrics: average='macro')"
            )
    return {name: float(value) for name, value in found.items()}


def _by_torchmetrics(metrics: Any, outputs: Any, targets: Any) -> dict[str, Any]:
    """Values of a Metric, of several by name, or of a MetricCollection. Each worker has all
    examples, so that copies which do not ask other processes are used."""
    if isinstance(metrics, Mapping):
        found: dict[str, Any] = {}
        for name, metric in metrics.items():
            values = _by_torchmetrics(metric, outputs, targets)
            for inner, value in values.items():
                found[name if len(values) == 1 else f"{name}_{inner}"] = value
        return found
    own = copy.deepcopy(metrics)
    for part in own.modules():
        if hasattr(part, "distributed_available_fn"):
            part.distributed_available_fn = None
    own.reset()
    own.update(outputs, targets)
    value = own.compute()
    return dict(value) if isinstance(value, Mapping) else {type(metrics).__name__: value}


def _metrics(trainer: Stepper, model: nn.Module, data: Any) -> dict[str, Tensor | float]:
    if trainer.settings.metrics is None:
        loss, metrics = split_loss(trainer.loss(model, data))
        return {"loss": loss, **numbers_of(metrics)}
    found: dict[str, Tensor | float] = dict(trainer.settings.metrics(model, data))
    if "loss" not in found:
        raise UserError(f"evaluate() returned {sorted(found)}; 'loss' must be among them")
    return found


def _agree_on_names(trainer: Stepper, found: list[dict[str, Tensor | float]]) -> list[str]:
    """Worker 0 has the first grain; a worker without one learns the names from it."""
    text = json.dumps(sorted(found[0]) if found else []).encode()
    names: list[str] = json.loads(trainer.collective.gather_bytes(text)[0])
    return names
