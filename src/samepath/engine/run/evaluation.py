"""Validation on fixed grains.

In: a trainer and a source. Out: means by name. Guaranteed: the same bits at every worker count: the
grains are the plan's, each meets the model as training left it, and their weighted means are added
with one rounding (fsum has no order).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samepath.data import GrainRequest, Source, seed_everything
from samepath.engine.checks.replicas import LeftAlone
from samepath.engine.comm.tensors import to_device
from samepath.engine.step.record import exact_sum
from samepath.engine.step.step import Stepper
from samepath.errors import UserError
from samepath.keys import key
from samepath.plan import assign


def evaluate(trainer: Stepper, source: Source) -> dict[str, float]:
    """Means of the loss and metrics over all examples of a source."""
    collective, grain_size = trainer.collective, trainer.settings.grain_size
    num_grains = -(-len(source) // grain_size)
    runs = assign(num_grains, collective.num_workers, trainer.balance.costs)
    order = np.arange(len(source), dtype=np.int64)
    mine = {n: order[n * grain_size : (n + 1) * grain_size] for n in runs[collective.worker]}

    def requests() -> Iterator[GrainRequest]:
        for examples in mine.values():
            yield GrainRequest(-1, examples)  # no epoch: validation meets the same numbers always

    found: list[dict[str, Tensor]] = []
    weights: list[float] = []
    modes = [(module, module.training) for module in trainer.model.modules()]
    trainer.model.eval()
    model = LeftAlone(trainer.model)
    try:
        with torch.no_grad():
            for (number, examples), data in zip(mine.items(), source.load(requests()), strict=True):
                data = to_device(data, collective.device)
                trainer.watch("valid", number, data)
                seed_everything(key("evaluate", trainer.settings.seed, number))
                with trainer.forward_context():
                    found.append(_metrics(trainer, data))
                trainer.watch("metrics", number, found[-1])
                trainer.watch("done", number, None)
                model.put_back(all_of_it=len(weights) == 0)
                weigh = trainer.settings.weight
                weights.append(len(examples) if weigh is None else float(weigh(data)))
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
    facts = np.zeros((max(len(run) for run in runs), len(names) + 1))
    for row, (values, weight) in enumerate(zip(found, weights, strict=True)):
        facts[row] = [weight, *(float(values[name]) for name in names)]
    of_workers = zip(collective.gather_rows(facts), runs, strict=True)
    gathered = np.concatenate([rows[: len(run)] for rows, run in of_workers])
    gathered = gathered[gathered[:, 0] > 0]
    total = exact_sum(gathered[:, 0]) or math.nan  # nothing that counts has no mean
    return {
        name: exact_sum(gathered[:, 0] * gathered[:, column]) / total
        for column, name in enumerate(names, start=1)
    }


def _metrics(trainer: Stepper, data: Any) -> dict[str, Tensor]:
    if trainer.settings.metrics is None:
        return {"loss": trainer.loss(trainer.model, data)}
    found = dict(trainer.settings.metrics(trainer.model, data))
    if "loss" not in found:
        raise UserError(f"evaluate() returned {sorted(found)}; 'loss' must be among them")
    return found


def _agree_on_names(trainer: Stepper, found: list[dict[str, Tensor]]) -> list[str]:
    """Worker 0 has the first grain; a worker without one learns the names from it."""
    text = json.dumps(sorted(found[0]) if found else []).encode()
    names: list[str] = json.loads(trainer.collective.gather_bytes(text)[0])
    return names
