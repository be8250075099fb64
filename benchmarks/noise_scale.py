"""The gradient noise scale that every run records: what it costs, and whether it is right.

Cost: steps with and without it, taking turns in one process, one thread; the ratio of medians for
digits and nodules, with the spread over rounds. Truth: on digits, at the weights of a run, against
the gradients of all single examples; and the average over a run of digits and (with the data) of
CIFAR-10, beside what McCandlish et al. 2018 published for MNIST and CIFAR-10.

    python benchmarks/noise_scale.py --cifar10 ../shared/data/cifar-10-batches-bin/data_batch_2.bin

(with CIFAR-10 about ten minutes)
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
from samepath.engine.run.loop import make_trainer
from samepath.engine.run.options import Overrides, resolve
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.step import step as engine
from samepath.engine.train import Request, train
from samepath.recipe import find_recipe
from samepath.timing.stopwatch import machine

ROUNDS, STEPS = 12, {"digits": 20, "nodules": 15}
PUBLISHED = {"digits": ("MNIST", 900), "cifar10-small": ("CIFAR-10", 2000)}
"""Averages of the simple noise scale over a run: McCandlish et al. 2018, table 1."""


def cost(name: str) -> dict[str, Any]:
    """Step times with over without, steps taking turns: medians over each stretch of them."""
    found = find_recipe(name)
    options = resolve(found, Overrides(threads=1))
    ratios = []
    with start(seed=options.seed, threads=1) as session:
        made = make_trainer(found, options, session)
        shares = made.stream(made.source(found.train), 0, 1 << 40)

        def step() -> float:
            while True:
                share = next(shares)
                began = time.perf_counter()
                made.step(share)
                if len(share.batch.examples) == options.batch_size:
                    return time.perf_counter() - began

        for number in range(1 + ROUNDS):
            with_it, without = [], []
            for _ in range(STEPS[name]):
                with_it.append(step())
                with mock.patch.object(engine, "is_measured", return_value=False):
                    without.append(step())
            if number:  # the first stretch warms up
                ratios.append(statistics.median(with_it) / statistics.median(without))
    ordered = sorted(ratios)
    return {
        "ratio": statistics.median(ratios),
        "low": ordered[len(ordered) // 4],
        "high": ordered[-1 - len(ordered) // 4],
    }


def truth(run: Path) -> dict[str, float]:
    """At the run's last weights: from single examples, one backward pass each; and from steps."""
    from samepath.engine.noise_scale import NoiseScale
    from samepath.engine.state.reopen import reopen

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


def trained(name: str, data: str | None, epochs: int, folder: str) -> Path:
    request = Request(recipe=name, data=data, num_workers=1, epochs=epochs, out=Path(folder) / name)
    return train(request)[1]


def over_a_run(name: str, data: str | None, epochs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = trained(name, data, epochs, folder)
        average, last = run_average(path), RunFolder(path).read()["result"]["noise_scale"]
    known, published = PUBLISHED[name]
    print(
        f"{name}, {epochs} epochs: {average:.0f} on average, {last:.0f} at the end "
        f"(published for {known}: {published})"
    )
    return {
        "epochs": epochs,
        "average": average,
        "last": last,
        "published_for": known,
        "published": published,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cifar10", help="data for cifar10-small; left out when not given")
    parser.add_argument("--only", default="cost,truth,runs", help="parts; the others stay as found")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/noise_scale.json"))
    given = parser.parse_args()
    report: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    report["machine"] = machine()
    if "cost" in given.only:
        report["cost"] = {name: cost(name) for name in STEPS}
        for name, found in report["cost"].items():
            print(
                f"{name}: a step with the noise scale takes {found['ratio']:.4f} of one without "
                f"(half of the rounds {found['low']:.4f} to {found['high']:.4f})"
            )
    if "truth" in given.only:
        with tempfile.TemporaryDirectory() as folder:
            report["truth"] = found = truth(trained("digits", None, 5, folder))
        print(
            f"digits after 5 epochs: {found['direct']:.1f} from single examples, "
            f"{found['steps']:.1f} ({found['low']:.1f} to {found['high']:.1f}) from steps"
        )
    if "runs" in given.only:
        report["runs"] = {"digits": over_a_run("digits", None, 40)}
        if given.cifar10:
            report["runs"]["cifar10-small"] = over_a_run("cifar10-small", given.cifar10, 6)
    given.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
