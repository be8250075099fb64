"""DeepDensity's density layer against the same formula written with broadcasting.

Forward and backward of a batch of 32 mixtures of 50 Gaussians at 16^3 voxels, one thread,
alternating in one run; peak memory of each in a process of its own. Prints ratios, writes JSON.

    python benchmarks/density.py
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor

from samepath.recipes.nodules.deepdensity import (
    Mixture,
    covariances,
    evaluate_density,
    make_mixture,
    min_sigma,
)

BATCH, COMPONENTS, SIDE, DIMS = 32, 50, 16, 3
ROUNDS = 11


def broadcast_density(mixture: Mixture, side: int) -> Tensor:
    """Equations 5 to 7 as they are read: differences at every voxel, a quadratic form each."""
    centres = (torch.arange(side) + 0.5) * (2.0 / side) - 1.0
    axes = torch.meshgrid(*[centres] * DIMS, indexing="ij")
    voxels = torch.stack([axis.flatten() for axis in axes], dim=-1)  # (V, n)
    covariance = covariances(mixture)
    difference = voxels - mixture.mu[:, :, None, :]  # (B, K, V, n)
    solved = difference @ torch.linalg.inv(covariance)
    square = (solved * difference).sum(-1)
    log_norm = 0.5 * (torch.logdet(covariance) + DIMS * math.log(2.0 * math.pi))
    log_density = mixture.log_alpha[..., None] - log_norm[..., None] - 0.5 * square
    density: Tensor = log_density.exp().sum(1)
    return density


WAYS: dict[str, Callable[[Mixture, int], Tensor]] = {
    "one matrix product": evaluate_density,
    "broadcasting": broadcast_density,
}


def heads() -> list[Tensor]:
    """What the dense heads would put out, as leaves of the graph."""
    made = torch.Generator().manual_seed(0)
    sizes = [(BATCH, COMPONENTS), *[(BATCH, COMPONENTS, DIMS)] * 3]
    return [torch.randn(size, generator=made).requires_grad_() for size in sizes]


def run(way: str, leaves: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Density and gradients."""
    mixture = make_mixture(*leaves, min_sigma=min_sigma(SIDE))
    density = WAYS[way](mixture, SIDE)
    return density, list(torch.autograd.grad(density.square().mean(), leaves))


def status(name: str) -> float:
    """A line of this process's memory statistics, in megabytes."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) / 1024


def peak_memory(way: str, answer: Connection) -> None:
    """In a process of its own: megabytes above what it had before."""
    torch.set_num_threads(1)
    leaves = heads()
    run(way, [leaf[:1].detach().requires_grad_() for leaf in leaves])  # loads what torch loads late
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here (Linux)
    before = status("VmRSS")
    run(way, leaves)
    answer.send(status("VmHWM") - before)


def measure_memory(way: str) -> float:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=peak_memory, args=(way, theirs))
    process.start()
    megabytes = float(ours.recv())
    process.join()
    return megabytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = Path(__file__).parent / "results" / "density.json"
    parser.add_argument("--out", type=Path, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    leaves = heads()
    results = {way: run(way, leaves) for way in WAYS}  # warm-up, and the check that they agree
    (density, gradients), (expected, expected_gradients) = results.values()
    torch.testing.assert_close(density, expected, rtol=1e-3, atol=1e-3)
    for one, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2 * float(other.abs().max()))
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(ROUNDS):
        for way in list(WAYS)[:: -1 if number % 2 else 1]:
            began = time.perf_counter()
            run(way, leaves)
            seconds[way].append(time.perf_counter() - began)
    megabytes = {way: measure_memory(way) for way in WAYS}
    times = [b / a for a, b in zip(*seconds.values(), strict=True)]
    product, broadcast = megabytes.values()
    found = {
        "times faster": {
            "median": statistics.median(times),
            "low": min(times),
            "high": max(times),
            "rounds": ROUNDS,
        },
        "peak memory against broadcasting": product / broadcast,
        "seconds": seconds,
        "megabytes": megabytes,
        "torch": torch.__version__,
    }
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"times faster: {statistics.median(times):.1f} ({min(times):.1f} to {max(times):.1f})")
    print(f"peak memory: {product:.0f} MB against {broadcast:.0f} MB, {product / broadcast:.2f}")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
