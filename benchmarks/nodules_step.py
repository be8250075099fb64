"""A whole training step of `nodules` against the straightforward version of the same step.

Straightforward: a plain loop, the batch in one piece, torch's Conv3d and Adam as they come,
autograd through the density; written with the density as one matrix product, and with broadcasting.
Ours: what `samepath train nodules -n 1` does. Same parameters, data, loss and optimizer; that the
gradients agree is checked. Part of the gain is that samepath keeps freed memory
(engine/run/memory.py), so the plain loop is also measured with that. Each contestant is a process
of its own with one thread; they take turns in one run. Prints ratios, writes JSON.

    python benchmarks/nodules_step.py
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor, nn

import samepath
from contestants import job, samepath_step
from density import broadcast_density
from samepath.engine.run.memory import keep_freed_memory
from samepath.recipes.nodules import deepdensity
from samepath.recipes.nodules.deepdensity import DeepDensity, Mixture

Step = Callable[[], object]
ROUNDS = 15
STEPS = 5


def autograd_density(mixture: Mixture, side: int) -> Tensor:
    """The same matrix product, left to autograd."""
    coefficients = deepdensity._log_density_coefficients(mixture)
    return (coefficients @ deepdensity._monomials(side, mixture.mu)).exp().sum(1)


class Straightforward(DeepDensity):
    """DeepDensity as one would first write it."""

    def __init__(self, density: Callable[[Mixture, int], Tensor]) -> None:
        super().__init__()
        self._density = density
        plain: list[nn.Module] = []
        for layer in self.encoder:
            if isinstance(layer, nn.Conv3d):
                size, step = layer.kernel_size[0], layer.stride[0]
                plain.append(nn.Conv3d(layer.in_channels, 32, size, step, size // 2))
                plain[-1].load_state_dict(layer.state_dict())
            else:
                plain.append(nn.ReLU() if isinstance(layer, nn.ReLU) else layer)
        self.encoder = nn.Sequential(*plain)
        rows = [50, 150, 150, 150]
        self.parallel = nn.ModuleList([nn.Linear(self.heads.in_features, size) for size in rows])
        weights, biases = self.heads.weight.split(rows), self.heads.bias.split(rows)
        for head, weight, bias in zip(self.parallel, weights, biases, strict=True):
            head.load_state_dict({"weight": weight, "bias": bias})
        del self.heads

    def encode(self, images: Tensor) -> Tensor:
        code = self.encoder(images)
        return torch.cat([head(code) for head in self.parallel], dim=1)

    def forward(self, images: Tensor) -> Tensor:
        mass = images.flatten(1).sum(1) * (2.0 / self.side) ** 3
        density = self._density(self.mixture(images), self.side)
        return (density * mass[:, None]).view_as(images)


def straightforward_step(density: Callable[[Mixture, int], Tensor]) -> Step:
    the_job = job("nodules")
    torch.manual_seed(0)
    model = Straightforward(density)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.00105)
    size = the_job.batch_size
    order = torch.randperm(len(the_job.data), generator=torch.Generator().manual_seed(0))
    places = itertools.cycle(range(0, len(order) - size + 1, size))

    def step() -> float:
        place = next(places)
        images = the_job.data[order[place : place + size]]
        optimizer.zero_grad()
        loss = the_job.loss(model, images)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def gradient_of(model: nn.Module) -> list[Tensor]:
    """Gradients of the convolutions, then of the heads' weights and biases, each as one matrix."""
    named = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    heads = [
        torch.cat([grad for name, grad in named.items() if "encoder" not in name and kind in name])
        for kind in ("weight", "bias")
    ]
    return [grad for name, grad in named.items() if "encoder" in name] + heads


def check_same_gradient() -> None:
    """Same weights, same batch: the three models have the same gradient, up to rounding."""
    the_job = job("nodules")
    images = the_job.data[: the_job.batch_size]
    found = []
    for make in (
        the_job.model,
        lambda: Straightforward(autograd_density),
        lambda: Straightforward(broadcast_density),
    ):
        torch.manual_seed(0)
        model = make()
        the_job.loss(model, images).backward()
        found.append(gradient_of(model))
    for other in found[1:]:
        for ours, theirs in zip(found[0], other, strict=True):
            torch.testing.assert_close(
                ours, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max())
            )


def keeping_memory() -> Step:
    """The straightforward step, with memory kept as samepath keeps it."""
    assert keep_freed_memory()
    return straightforward_step(autograd_density)


def ours() -> Step:
    """One worker of samepath, started as every run is."""
    the_job = job("nodules")
    return samepath_step(the_job, samepath.start().collective)


WAYS: dict[str, Callable[[], Step]] = {
    "samepath": ours,
    "straightforward": lambda: straightforward_step(autograd_density),
    "straightforward, keeping memory": keeping_memory,
    "straightforward, broadcast density": lambda: straightforward_step(broadcast_density),
}


def contestant(way: str, turns: Connection) -> None:
    """In a process of its own: at every turn take some steps, tell how long one took."""
    torch.set_num_threads(1)
    step = WAYS[way]()
    while turns.recv():
        began = time.perf_counter()
        for _ in range(STEPS):
            step()
        turns.send((time.perf_counter() - began) / STEPS)


def measure(rounds: int) -> dict[str, list[float]]:
    """Seconds per step of every contestant in every round, without the first."""
    context = multiprocessing.get_context("spawn")
    turns: dict[str, Connection] = {}
    for way in WAYS:
        turns[way], theirs = context.Pipe()
        context.Process(target=contestant, args=(way, theirs), daemon=True).start()
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds + 1):
        for way in list(WAYS)[:: -1 if number % 2 else 1]:
            turns[way].send(True)
            seconds[way].append(turns[way].recv())
    for way in WAYS:
        turns[way].send(False)
    return {way: values[1:] for way, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = Path(__file__).parent / "results" / "nodules_step.json"
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    check_same_gradient()
    seconds = measure(options.rounds)
    found: dict[str, object] = {}
    for way in list(WAYS)[1:]:
        times = [b / a for a, b in zip(seconds["samepath"], seconds[way], strict=True)]
        median = statistics.median(times)
        found[f"times faster than {way}"] = {
            "median": median,
            "low": min(times),
            "high": max(times),
            "rounds": options.rounds,
        }
        print(f"times faster than {way}: {median:.2f} ({min(times):.2f} to {max(times):.2f})")
    found |= {"step_seconds": seconds, "steps per round": STEPS, "torch": torch.__version__}
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    for way, values in seconds.items():
        print(f"  {way}: {statistics.median(values) * 1e3:.0f} ms")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
