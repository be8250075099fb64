"""The gradient noise scale that every run records: what it costs, and whether it is right.

Cost: steps with and without it, taking turns in one process, one thread; the ratio of medians for
digits and nodules, with the spread over rounds. Truth: on digits, at the weights of a run, against
the gradients of all single examples; and the average over a run of digits and (with the data) of
CIFAR-10, beside what McCandlish et al. 2018 published for MNIST and CIFAR-10.

    python benchmarks/noise_scale.py [--cifar10 shared/data/cifar-10-batches-bin/data_batch_2.bin]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from samepath import start
from samepath.engine import trainer as engine
from samepath.engine.loop import make_trainer
from samepath.engine.options import Asked, resolve
from samepath.engine.rundir import RunFolder
from samepath.engine.train import Request, train
from samepath.recipe import find_recipe
from samepath.study.clock import machine

ROUNDS, STEPS = 15, {"digits": 60, "nodules": 8}
PUBLISHED = {"digits": ("MNIST", 900), "cifar10": ("CIFAR-10", 2000)}
"""Averages of the simple noise scale over a run: McCandlish et al. 2018, table 1."""


def cost(name: str) -> dict[str, Any]:
    """Ratios of step times with to without, one per round."""
    found = find_recipe(name)
    options = resolve(found, Asked(threads=1))
    ratios = []
    with start(seed=options.seed, threads=1) as session:
        made = make_trainer(found.recipe, options, session)
        shares = made.stream(made.source(found.recipe.train), 0, 1 << 40)

        def run() -> float:
            seconds: list[float] = []
            while len(seconds) < STEPS[name]:
                share = next(shares)
                began = time.perf_counter()
                made.step(share)
                if len(share.batch.examples) == options.batch_size:
                    seconds.append(time.perf_counter() - began)
            return statistics.median(seconds)

        run()
        for number in range(ROUNDS):
            times: dict[bool, float] = {}
            for measured in (True, False) if number % 2 else (False, True):
                if measured:
                    times[measured] = run()
                else:
                    with mock.patch.object(engine, "is_measured", return_value=False):
                        times[measured] = run()
            ratios.append(times[True] / times[False])
    ordered = sorted(ratios)
    return {
        "ratio": statistics.median(ratios),
        "low": ordered[len(ordered) // 4],
        "high": ordered[-1 - len(ordered) // 4],
    }


def truth(run: Path) -> dict[str, float]:
    """At the run's last weights: from single examples, one backward pass each; and from steps."""
    from samepath.engine.noise import NoiseScale
    from samepath.engine.reopen import reopen

    reopened = reopen(run)
    model, _ = reopened.model()
    recipe, config = reopened.recipe, reopened.config
    assert isinstance(recipe.train, tuple)
    inputs, labels = recipe.train
    total = [torch.zeros_like(p, dtype=torch.float64) for p in model.parameters()]
    squares = 0.0
    for i in range(len(inputs)):
        loss = recipe.loss(model, (inputs[i : i + 1], labels[i : i + 1]))
        for sum_, gradient in zip(
            total, torch.autograd.grad(loss, list(model.parameters())), strict=True
        ):
            sum_ += gradient
            squares += float(gradient.double().square().sum())
    count = len(inputs)
    mean_squared = sum(float((t / count).square().sum()) for t in total)
    variance = (squares - count * mean_squared) / (count - 1)
    direct = variance / (mean_squared - variance / count)
    scale = NoiseScale()
    with start(seed=1, threads=1) as session:
        held = _Held(model)
        made = session.prepare(
            held,
            torch.optim.SGD(held.parameters(), lr=0.0),
            recipe.loss,
            batch_size=config["batch_size"],
            grain_size=config["grain_size"],
        )
        for epoch in range(60):
            for share in made.batches(recipe.train, epoch):
                result = made.step(share)
                assert result.noise is not None
                scale.add(result.noise)
    low, high = scale.interval
    assert scale.value is not None
    return {"direct": direct, "steps": scale.value, "low": low or 0.0, "high": high or float("inf")}


class _Held(nn.Module):
    """A model that stays in evaluation mode: one loss, without dropout or batch statistics."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def train(self, mode: bool = True) -> _Held:
        super().train(mode)
        self.model.eval()
        return self

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model(inputs)
        return found


def run_average(folder: Path) -> float:
    """Over the steps of a run."""
    return statistics.fmean(
        line["noise_scale"]
        for line in RunFolder(folder).read_metrics()
        if line.get("noise_scale") is not None
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cifar10", help="data for the recipe cifar10; left out when not given")
    parser.add_argument("--cifar10-epochs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/noise_scale.json"))
    given = parser.parse_args()
    report: dict[str, Any] = {"machine": machine(), "cost": {}, "runs": {}}
    for name in STEPS:
        report["cost"][name] = found = cost(name)
        print(
            f"{name}: a step with the noise scale takes {found['ratio']:.4f} of one without "
            f"(half of the rounds {found['low']:.4f} to {found['high']:.4f})"
        )
    with tempfile.TemporaryDirectory() as folder:
        for name, data, epochs in (
            ("digits", None, 40),
            ("cifar10", given.cifar10, given.cifar10_epochs),
        ):
            if name == "cifar10" and data is None:
                continue
            asked = Asked(epochs=epochs)
            request = Request(
                recipe=name, data=data, num_workers=1, asked=asked, out=Path(folder) / name
            )
            result, path = train(request)
            average = run_average(path)
            known, published = PUBLISHED[name]
            report["runs"][name] = {
                "epochs": epochs,
                "average": average,
                "last": result.noise_scale,
                "published_for": known,
                "published": published,
            }
            print(
                f"{name}, {epochs} epochs: {average:.0f} on average, "
                f"{result.noise_scale or 0:.0f} at the end (published for {known}: {published})"
            )
            if name == "digits":
                report["truth"] = found = truth(path)
                print(
                    f"digits at the end: {found['direct']:.1f} from single examples, "
                    f"{found['steps']:.1f} ({found['low']:.1f} to {found['high']:.1f}) from steps"
                )
    given.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
