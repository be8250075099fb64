"""The link between workers, and how long a reduction takes over it.

In: a name, a link somebody measured, or nothing (then it is measured here, with two real workers).
Out: NetworkFacts, and the seconds one reduction of gradients takes at any number of workers.
Guaranteed: the traffic is the engine's own (`engine.collective.NetworkBucket`), counted from the
plan's tree; nothing is assumed to hide behind computing, so modelled times are on the slow side.
"""

from __future__ import annotations

import difflib
import json
import re
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import least_squares

from samepath.engine.comm.collective import Bucket, Collective
from samepath.engine.comm.tree_sum import BUCKET_BYTES
from samepath.engine.launch.launch import launch
from samepath.engine.launch.owners import owned_folder
from samepath.engine.run.session import start
from samepath.errors import UserError
from samepath.plan import Reduction, reduction
from samepath.study.results import NetworkFacts

HERE: Literal["here"] = "here"


def _preset(name: str, bytes_per_second: float, latency_seconds: float) -> NetworkFacts:
    return NetworkFacts(
        name=name,
        how="preset",
        bytes_per_second=bytes_per_second,
        latency_seconds=latency_seconds,
    )


PRESETS: dict[str, NetworkFacts] = {
    network.name: network
    for network in (
        # Of every 1538 bytes on the wire (a frame of 1500 with its preamble and gap) TCP carries
        # 1448: 94.1% of 125 MB/s. A message takes some 50 us through two kernels and a switch.
        # The cluster of Cunha et al. 2018.
        _preset("1GbE", 117e6, 50e-6),
        # The same share of ten times the rate; cards that wait less before they interrupt.
        _preset("10GbE", 1.17e9, 25e-6),
        # 92% of 12.5 GB/s: what InfiniBand EDR and RoCE give large messages. 14 us is what NCCL's
        # own model (src/graph/tuning.cc: hwLat, ring, Simple) counts for a step over a network.
        _preset("100Gb", 11.5e9, 14e-6),
        # NVLink 3 (A100): of 300 GB/s in each direction nccl-tests finds about 230 GB/s; 3.4 us
        # is NCCL's model again, for a step over NVLink.
        _preset("NVLink", 230e9, 3.4e-6),
    )
}
"""Links by name: what one worker gets in each direction, and what one message costs."""

_RATE = re.compile(r"([0-9.]+)\s*([kMGT]?)(i?)(bit|b|byte|B)(?:/s|ps)")
_TIME = re.compile(r"([0-9.]+)\s*(s|ms|us|µs|ns)")
_PREFIX = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_EXAMPLE = "940Mbit/s:60us"


def parse_network(text: str) -> NetworkFacts | Literal["here"]:
    """A preset's name, "here", or a measured link such as "940Mbit/s:60us" or "11.6GB/s:2us"."""
    text = text.strip()
    names = {name.lower(): name for name in (*PRESETS, HERE)}
    if text.lower() in names:
        name = names[text.lower()]
        return HERE if name == HERE else PRESETS[name]
    if ":" in text or _RATE.fullmatch(text):
        return _given(text)
    near = difflib.get_close_matches(text.lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {names[near[0]]}?" if near else "use " + ", ".join(names.values())
    raise UserError(
        f"--network {text}: there is no such network; {hint} (or a link you measured, such as "
        f"{_EXAMPLE})"
    )


def _given(text: str) -> NetworkFacts:
    """A bandwidth and a latency, as typed."""
    first, _, second = text.partition(":")
    rate, latency = _RATE.fullmatch(first.strip()), _TIME.fullmatch(second.strip())
    if rate is None:
        raise UserError(
            f"--network {text}: {first!r} is not a bandwidth; write it like 940Mbit/s or 11.6GB/s "
            f"({_EXAMPLE})"
        )
    if latency is None:
        what = f"{second!r} is not a time" if second else "the latency is missing"
        raise UserError(f"--network {text}: {what}; write it like {first}:60us")
    base = 1024.0 if rate[3] else 1000.0
    bits = 8.0 if rate[4] in ("bit", "b") else 1.0
    bytes_per_second = _number(text, rate[1]) * base ** _PREFIX[rate[2]] / bits
    if bytes_per_second == 0:
        raise UserError(f"--network {text}: a bandwidth of 0 carries nothing; try {_EXAMPLE}")
    return NetworkFacts(
        name=text,
        how="given",
        bytes_per_second=bytes_per_second,
        latency_seconds=_number(text, latency[1]) * _SECONDS[latency[2]],
    )


def _number(text: str, digits: str) -> float:
    try:
        return float(digits)
    except ValueError:
        raise UserError(
            f"--network {text}: {digits!r} is not a number; write it like {_EXAMPLE}"
        ) from None


MESSAGE_LATENCIES = 0.125
"""What every further message of an all_to_all costs, in latencies: gloo hands them all to the
kernel before it waits for any (gloo/alltoallv.cc), so they travel together, but each takes the
processor some time. Measured here at 2 to 16 workers (`benchmarks/simulate.py --only messages`); on
other links it is reasoned to be the same part, as both are what a processor does for a message."""


class Traffic(NamedTuple):
    """What one reduction puts on the busiest worker's link."""

    rounds: int
    """Exchanges one after another, each of which costs a latency."""
    further: int
    """Messages beyond the first of each exchange, which travel together with it."""
    gradients: float
    """Bytes in the busier direction, in gradients of the whole model."""


def traffic(workers: int, num_grains: int) -> Traffic:
    """The messages and bytes of one reduction, as `NetworkBucket` sends them.

    With N workers that have grains (those beyond the number of grains are idle), worker w with
    s_w sums (whole subtrees of the plan's tree; S in all) and a gradient of G bytes:

    - out (all_to_all): it sends s_w (N - 1)/N G and receives (S - s_w)/N G;
    - back: it sends and receives (N - 1)/N G of totals.

    Links carry both directions at once, so the larger one counts, and the slowest worker. With one
    sum each that is 2(N - 1)/N G in 2(N - 1) messages: a ring all-reduce (Patarasuk and Yuan 2009,
    section 3), which two workers with one sum each really do. A ring's messages wait for one
    another; those of an all_to_all do not.
    """
    n = min(workers, num_grains)
    if n == 1:
        return Traffic(0, 0, 0.0)
    sums = reduction(num_grains, n).num_sums
    out = max(max(mine * (n - 1), sum(sums) - mine) for mine in sums) / n
    return Traffic(2, 2 * (n - 2), out + (n - 1) / n)


def reduction_seconds(
    network: NetworkFacts, gradient_bytes: int, workers: int, num_grains: int
) -> float:
    """How long a batch's gradients take to become one sum on every worker: exchanges x latency +
    further messages x their part of one + bytes / bandwidth, for the counts of `traffic`.

    It starts when the last grain is done: the engine sends most of it during that grain's backward
    pass, so this is pessimistic. (Tried on Gigabit Ethernet emulated with tc, 25 MiB: two workers
    with a sum each took 221 ms, modelled as 224; with two sums each 368, modelled as 336; three
    workers 308, as 299; four, on two cores, 390, as 336.)
    """
    rounds, further, gradients = traffic(workers, num_grains)
    latencies = rounds + further * MESSAGE_LATENCIES
    return latencies * network.latency_seconds + transfer_seconds(
        network, gradients * gradient_bytes
    )


def transfer_seconds(network: NetworkFacts, num_bytes: float) -> float:
    """The time on the wire, without the latency."""
    return num_bytes / network.bytes_per_second


# ---- measuring it

SIZES = tuple(1 << power for power in (14, 16, 18, 20, 22, 24))
"""Bytes of gradients."""
GRAINS = (2, 6)
"""Two workers with one sum each (a plain all-reduce), and with two each (all_to_all)."""
WARM_UP, REPEATS = 3, 15


def measure_network() -> NetworkFacts:
    """The link between two workers of this machine, through the engine's network collective (gloo
    over the loopback; NCCL between GPUs)."""
    with owned_folder("network-") as folder:
        path = Path(folder) / "samples.json"
        launch(_work, (path,), 2)
        return link_of([Sample(*sample) for sample in json.loads(path.read_text())], HERE)


class Sample(NamedTuple):
    """One size of reductions."""

    rounds: int
    num_bytes: float
    seconds: float
    core_seconds: float
    """What a worker's cores did meanwhile."""


def link_of(samples: Sequence[Sample], name: str) -> NetworkFacts:
    """The link that explains them."""
    latency_seconds, bytes_per_second = fit_link([sample[:3] for sample in samples])
    return NetworkFacts(
        name=name,
        how="measured",
        bytes_per_second=bytes_per_second,
        latency_seconds=latency_seconds,
        cores_taken=statistics.median(s.core_seconds / s.seconds for s in samples),
    )


def fit_link(samples: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Latency and bandwidth from (messages, bytes, seconds), both above zero.

    Ratios of modelled to measured times are made small (soft L1 of their logarithms): small
    messages, which tell the latency, count as much as large ones, which tell the bandwidth, and
    one bad time does not count for much."""
    messages, num_bytes, seconds = np.array(samples, dtype=np.float64).T

    def errors(logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
        latency, per_byte = np.exp(logarithms)
        return np.asarray(np.log((messages * latency + num_bytes * per_byte) / seconds))

    first = np.log([np.min(seconds / messages), np.min(seconds / num_bytes)])
    fitted = least_squares(errors, first, loss="soft_l1", f_scale=0.1).x
    return float(np.exp(fitted[0])), float(np.exp(-fitted[1]))


def _work(path: Path) -> None:
    """Run by each of two workers: the first writes what it measured."""
    # two processes cannot share one GPU in NCCL
    device = "cpu" if torch.cuda.device_count() < 2 else None
    with start(link="network", device=device, timeout_seconds=120.0) as session:
        samples = time_reductions(session.collective)
        if session.is_first:
            path.write_text(json.dumps(samples))


def time_reductions(collective: Collective, repeats: int = REPEATS) -> list[Sample]:
    """Median seconds of reductions of several sizes between two workers (run by both)."""
    kinds = [(reduction(grains, 2), traffic(2, grains)) for grains in GRAINS]
    cases = [(how, what, size, _buckets(collective, size)) for how, what in kinds for size in SIZES]
    times: list[list[tuple[float, float]]] = [[] for _ in cases]
    for _ in range(WARM_UP + repeats):  # all cases in turn: noise comes and goes
        for case, (how, _, _, buckets) in enumerate(cases):
            times[case].append(_reduce_once(collective, how, buckets))
    return [
        Sample(
            what.rounds,
            what.gradients * size,
            *map(statistics.median, zip(*taken[WARM_UP:], strict=True)),
        )
        for (_, what, size, _), taken in zip(cases, times, strict=True)
    ]


def _buckets(collective: Collective, size: int) -> list[Bucket]:
    """Room for so many bytes, in buckets as the engine fills them."""
    lengths = [min(BUCKET_BYTES, size - first) // 4 for first in range(0, size, BUCKET_BYTES)]
    return [collective.bucket(length, torch.float32, exact=True) for length in lengths]


def _reduce_once(
    collective: Collective, how: Reduction, buckets: Sequence[Bucket]
) -> tuple[float, float]:
    """Seconds one reduction takes, and seconds of this worker's cores."""
    for bucket in buckets:
        bucket.begin(how)
        bucket.rows.fill_(1.0)  # the others' caches do not have it yet, as after a backward pass
    collective.agree(True)  # both are ready
    began, cores = time.perf_counter(), time.process_time()
    for bucket in buckets:
        bucket.launch()
    for bucket in buckets:
        bucket.settle()
    for bucket in buckets:
        bucket.finish()
    if collective.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began, time.process_time() - cores
