"""Gahlot et al. 2020, figure 8, modelled: ResNet-50, weak scaling on Summit, to 1536 workers.

Static buckets against Horovod's queue, both around NCCL's tree; and our own buckets, whose messages
go from every worker to every other. Everything is modelled; the step's 80 ms and the coordinator's
time for an announcement are assumed. Prints a table, writes JSON and a figure.

    python benchmarks/figure_8.py FOLDER
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, replace
from pathlib import Path
from statistics import NormalDist

from samepath.timing.links import CLUSTERS
from samepath.timing.model import (
    DDP,
    Buckets,
    Policy,
    Queue,
    Simulated,
    Workload,
    simulate,
)

HERE = Path(__file__).parent
WORKERS = [1, 6, 24, 96, 384, 768, 1152, 1536]
STATIC = replace(DDP, algorithm="tree")  # NCCL's choice for many nodes
QUEUE = Queue(algorithm="tree", waits=False)
HOROVOD_TODAY = Queue(cycle_seconds=1e-3, fusion_bytes=128 << 20, message_seconds=0.0)
"""0.21 and later, with its cache."""
FORWARD = 1.0 / 3.0
"""Of a grain's time: a backward pass does two products for each one of the forward pass."""
POLICIES: dict[str, Policy] = {
    "static buckets, tree": STATIC,
    "queue, tree": QUEUE,
    "samepath": Buckets(),
    "samepath, 2 MiB buckets": Buckets(bucket_bytes=2 << 20),
}


def assumed_ready(num_tensors: int) -> tuple[float, ...]:
    """Ready times where none were measured: evenly over the backward pass."""
    return tuple(FORWARD + (1 - FORWARD) * (i + 1) / num_tensors for i in range(num_tensors))


def lognormal(deviation: float, number: int = 20_000) -> tuple[float, ...]:
    """Factors of a lognormal distribution with median 1, evenly over its quantiles."""
    normal = NormalDist()
    quantiles = ((place + 0.5) / number for place in range(number))
    return tuple(math.exp(deviation * normal.inv_cdf(quantile)) for quantile in quantiles)


def resnet50() -> list[int]:
    """Parameters of ResNet-50 for CIFAR-10, from the first to the last: 161 tensors."""
    sizes: list[int] = []

    def convolution(inputs: int, outputs: int, width: int) -> None:
        sizes.extend((inputs * outputs * width * width, outputs, outputs))  # with its batch norm

    convolution(3, 64, 3)
    inputs = 64
    for blocks, width in zip((3, 4, 6, 3), (64, 128, 256, 512), strict=True):
        for block in range(blocks):
            convolution(inputs, width, 1)
            convolution(width, width, 3)
            convolution(width, 4 * width, 1)
            if block == 0:
                convolution(inputs, 4 * width, 1)
            inputs = 4 * width
    return [*sizes, 20480, 10]


def on_summit(
    policy: Policy, workers: list[int], step_seconds: float = 0.08
) -> tuple[Simulated, ...]:
    """Weak scaling. Assumed, as the paper does not say: 80 ms a step (128 CIFAR-10
    images on a V100), of which a third is forward; times spread by 2%."""
    backward = tuple(4 * size for size in reversed(resnet50()))
    workload = Workload(
        name="ResNet-50",
        batch_size=128,
        grain_size=128,
        grain_fixed=True,
        grain_seconds={128: step_seconds},
        serial_seconds=2e-3,
        tensor_bytes=backward,
        tensor_ready=assumed_ready(len(backward)),
        grain_factors=lognormal(0.02),
    )
    machine = CLUSTERS["summit"]
    return simulate(workload, machine, workers, policy=policy, scaling="weak", trials=100)


def main(folder: Path) -> None:
    from samepath.report.simulate import draw_simulated_scaling

    curves = {name: on_summit(policy, WORKERS) for name, policy in POLICIES.items()}
    print(f"{'efficiency, modelled':<26}" + "".join(f"{number:>7}" for number in WORKERS))
    for name, points in curves.items():
        print(f"{name:<26}" + "".join(f"{point.efficiency:>7.1%}" for point in points))
    content = {name: [asdict(point) for point in points] for name, points in curves.items()}
    (HERE / "results" / "figure_8.json").write_text(json.dumps(content, indent=1) + "\n")
    title = "ResNet-50, 128 images for each worker, Summit: simulated"
    draw_simulated_scaling(title, curves, {}, folder / "simulated_scaling.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
