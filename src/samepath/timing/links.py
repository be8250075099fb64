"""Links and clusters: what joins workers, and what a reduction of gradients costs there.

In: a name, a measured link, or timed reductions. Out: NetworkFacts (one link), a Cluster
(workers in nodes, nodes in racks, a link at each level), and by number of workers the cost of a
reduction. Guaranteed: no torch and no engine; the traffic is the engine's own
(`engine.comm.network.NetworkBucket`), counted from the plan's tree; workers fill one node after
another; a level no message passes costs nothing.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from samepath.errors import UserError
from samepath.plan import LinkSpeed, parse_speed, reduction, whole_bytes
from samepath.plan.link import EXAMPLE, MESSAGE_LATENCIES, empty_seconds, is_speed

HERE: Literal["here"] = "here"
NODE = "node"
Known = TypeVar("Known")
Algorithm: TypeAlias = Literal["samepath", "ring", "tree"]
"""Our all_to_all and all_gather of the plan's tree (`traffic`); a ring all-reduce (Patarasuk and
Yuan 2009); NCCL's double binary tree (Sanders, Speck and Träff 2009)."""


@dataclass(frozen=True, kw_only=True)
class NetworkFacts:
    """A link between workers, or between nodes."""

    name: str
    how: Literal["preset", "measured", "given"]
    bytes_per_second: float
    """Bytes per second in each direction."""
    latency_seconds: float
    """The latency of one message."""
    cores_taken: float = 0.0
    """The share of a core of each worker while something travels: what computing loses where no
    core is idle. Known of measured links only."""


def _link(
    name: str,
    bytes_per_second: float,
    latency_seconds: float,
    how: Literal["preset", "given"] = "preset",
) -> NetworkFacts:
    return NetworkFacts(
        name=name, how=how, bytes_per_second=bytes_per_second, latency_seconds=latency_seconds
    )


PRESETS: dict[str, NetworkFacts] = {
    network.name: network
    for network in (
        # Of every 1538 bytes on the wire (a frame of 1500 with its preamble and gap) TCP carries
        # 1448: 94.1% of 125 MB/s. A message takes some 50 us through two kernels and a switch.
        # The cluster of Cunha et al. 2018.
        _link("1GbE", 117e6, 50e-6),
        # The same share of ten times the rate; cards that wait less before they interrupt.
        _link("10GbE", 1.17e9, 25e-6),
        # 92% of 12.5 GB/s: what InfiniBand EDR and RoCE give large messages. 14 us is what NCCL's
        # own model (src/graph/tuning.cc: hwLat, ring, Simple) counts for a step over a network.
        _link("100Gb", 11.5e9, 14e-6),
        # NVLink 3 (A100): of 300 GB/s in each direction nccl-tests finds about 230 GB/s; 3.4 us
        # is NCCL's model again, for a step over NVLink.
        _link("NVLink", 230e9, 3.4e-6),
    )
}
"""Links by name: what one worker gets in each direction, and what one message costs."""


def parse_network(text: str) -> NetworkFacts | Literal["here"]:
    """Find a preset by name, "here", or a measured link such as "940Mbit/s:60us"."""
    return _find(text, {**PRESETS, HERE: HERE})


def _find(text: str, known: Mapping[str, Known]) -> Known | NetworkFacts:
    """What has this name, whatever its case, or a link as typed."""
    text = text.strip()
    names = {name.lower(): name for name in known}
    if text.lower() in names:
        return known[names[text.lower()]]
    if is_speed(text):
        return _given(text)
    near = difflib.get_close_matches(text.lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {names[near[0]]}?" if near else "use " + ", ".join(known)
    raise UserError(
        f"--network {text}: there is no such network; {hint} (or a link you measured, such as "
        f"{EXAMPLE})"
    )


def _given(text: str) -> NetworkFacts:
    """A bandwidth and a latency, as typed."""
    speed = parse_speed(text, "--network ")
    return _link(text, speed.bytes_per_second, speed.latency_seconds, how="given")


# ---- clusters


@dataclass(frozen=True, kw_only=True)
class Level:
    """Groups of workers, and the link that joins the members of one."""

    name: str
    """What such a group is called: "node" (workers of one computer), "rack", "machine"."""
    workers: int | None
    """Workers in one group; None: however many there are (the outermost level only)."""
    network: NetworkFacts
    """Latency of a message between members; bandwidth, in each direction, at the door of one
    member: of a worker at the innermost level, of a whole node between nodes."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Workers in groups of groups, with a link at each level."""

    name: str
    levels: tuple[Level, ...]
    """Levels from the innermost to the outermost."""
    is_here: bool = False
    """It is this computer, of which was measured how much its workers slow each other down. (That
    those of a node elsewhere do not is assumed.)"""
    is_like_here: bool = False
    """Its nodes are computers like this one: their workers slow each other down as they do here."""

    def __post_init__(self) -> None:
        *inner, outer = self.levels
        assert outer.workers is None, "the outermost level holds any number of workers"
        door = 1
        for level in inner:
            assert level.workers is not None
            assert level.workers > door, "a group holds more than one member"
            assert level.workers % door == 0, "a group holds whole members"
            door = level.workers

    @property
    def cores_taken(self) -> float:
        """What a reduction takes from computing (`NetworkFacts.cores_taken`)."""
        return max(level.network.cores_taken for level in self.levels)

    @property
    def workers_per_node(self) -> int | None:
        """None: all workers are in one node."""
        first = self.levels[0]
        return first.workers if first.name == NODE else 1

    def side_by_side(self, workers: int) -> int:
        """How many of these workers share this computer's memory and caches."""
        if self.is_here or not self.is_like_here:
            return workers if self.is_here else 1
        return min(workers, self.workers_per_node or workers)


def flat(network: NetworkFacts, *, name: str = "machine") -> Cluster:
    """Every worker at the same link: each a computer of its own, or, named "node", all in this."""
    level = Level(name=name, workers=None, network=network)
    return Cluster(name=network.name, levels=(level,), is_here=name == NODE)


def in_nodes(cluster: Cluster, workers: int, here: NetworkFacts) -> Cluster:
    """The cluster with so many workers in each node. Where it has nodes of several already, their
    link stays; where every worker is a computer of its own, nodes are computers like this one,
    whose workers talk over `here`. As many nodes are in a rack as before."""
    first = cluster.levels[0]
    has_nodes = first.name == NODE
    before = (first.workers or 1) if has_nodes else 1
    outer = tuple(
        level if level.workers is None
        else replace(level, workers=level.workers // before * workers)
        for level in cluster.levels[has_nodes:]
    )  # fmt: skip
    if workers == 1:
        return replace(cluster, levels=outer)
    node = Level(name=NODE, workers=workers, network=first.network if has_nodes else here)
    return replace(cluster, levels=(node, *outer), is_like_here=not has_nodes)


def _nested(name: str, *levels: tuple[str, int | None, NetworkFacts]) -> Cluster:
    return Cluster(
        name=name,
        levels=tuple(Level(name=what, workers=n, network=link) for what, n, link in levels),
    )


# What follows is from data sheets, not measured: a link of one's own is better than any preset.
# Messages between processes of one computer, through its kernel.
_LOOPBACK = _link("loopback", 2e9, 30e-6)
# V100s of a Summit node: NVLink 2 with 50 GB/s between neighbours, of which four fifths.
_NVLINK2 = _link("NVLink 2", 40e9, 3.4e-6)
# Two EDR ports a node, as two of the "100Gb" preset; a fat tree, so that racks do not count.
_TWO_EDR = _link("2 x EDR", 23e9, 14e-6)
# Eight HDR ports a node, each as two of the "100Gb" preset.
_EIGHT_HDR = _link("8 x HDR", 184e9, 14e-6)
# A rack of forty nodes of 10GbE with four uplinks of 40 Gbit/s: 2.5 times oversubscribed.
_UPLINKS = _link("4 x 40GbE", 18.7e9, 35e-6)

CLUSTERS: dict[str, Cluster] = {
    cluster.name: cluster
    for cluster in (
        *map(flat, PRESETS.values()),
        # Cunha et al. 2018: at most two workers a node, Gigabit Ethernet between nodes.
        _nested("1GbE-pairs", (NODE, 2, _LOOPBACK), ("machine", None, PRESETS["1GbE"])),
        _nested(
            "10GbE-racks",
            (NODE, 4, _LOOPBACK),
            ("rack", 160, PRESETS["10GbE"]),
            ("machine", None, _UPLINKS),
        ),
        # Gahlot et al. 2020: six V100 a node.
        _nested("summit", (NODE, 6, _NVLINK2), ("machine", None, _TWO_EDR)),
        _nested("dgx-a100", (NODE, 8, PRESETS["NVLink"]), ("machine", None, _EIGHT_HDR)),
    )
}
"""Clusters by name: first a worker at each end of every preset link, then nodes and racks."""


def find_cluster(text: str, here: NetworkFacts | None = None) -> Cluster:
    """Find a preset by name, a link such as "940Mbit/s:60us", or "here": the link measured here."""
    known = CLUSTERS if here is None else {**CLUSTERS, HERE: flat(here, name=NODE)}
    found = _find(text, known)
    return flat(found) if isinstance(found, NetworkFacts) else found


def check_cluster(text: str) -> None:
    """Refuse an unknown name before anything is measured ("here" is known, though not yet)."""
    find_cluster(text, here=PRESETS["1GbE"])


# ---- what a reduction costs


class Traffic(NamedTuple):
    """What one reduction puts on the busiest worker's link."""

    rounds: int
    """Exchanges one after another, each of which costs a latency."""
    further: int
    """Messages beyond the first of each exchange, which travel together with it."""
    gradients: float
    """Bytes in the busier direction, in gradients of the whole model."""


def traffic(
    workers: int,
    num_grains: int,
    num_bytes: float = math.inf,
    speed: LinkSpeed | None = None,
) -> Traffic:
    """Count the messages and bytes of one reduction of so many bytes, as `NetworkBucket` sends
    them.

    With N workers that have grains (those beyond the number of grains are idle), worker w with
    s_w sums (whole subtrees of the plan's tree; S in all) and a gradient of G bytes:

    - out (all_to_all): it sends s_w (N - 1)/N G and receives (S - s_w)/N G;
    - back: it sends and receives (N - 1)/N G of totals.

    Links carry both directions at once, so the larger one counts, and the slowest worker. With one
    sum each that is 2(N - 1)/N G in 2(N - 1) messages: a ring all-reduce (Patarasuk and Yuan 2009,
    section 3), which two workers with one sum each really do. A ring's messages wait for one
    another; those of an all_to_all do not. Few bytes go whole, in one exchange: s_w (N - 1) G out
    and (S - s_w) G in.
    """
    n = min(workers, num_grains)
    if n == 1:
        return Traffic(0, 0, 0.0)
    sums = reduction(num_grains, n).num_sums
    whole = float(max(max(mine * (n - 1), sum(sums) - mine) for mine in sums))
    if num_bytes <= whole_bytes(sums, speed):
        return Traffic(1, n - 2, whole)
    out = whole / n
    return Traffic(2, 2 * (n - 2), out + (n - 1) / n)


class Cost(NamedTuple):
    """Seconds to reduce some bytes."""

    fixed_seconds: float
    """Seconds that do not depend on the number of messages; nothing else travels in that time."""
    seconds_per_byte: float
    latency_seconds: float = 0.0
    """Seconds on the way, while the next may start."""
    record_seconds: float = 0.0
    """Seconds for what workers tell each other at the end of a step beside: small records, from all
    to all."""
    few: tuple[float, Cost] | None = None
    """What at most so many bytes cost instead."""

    def of(self, num_bytes: float) -> Cost:
        """What so many bytes cost."""
        return self if self.few is None or num_bytes > self.few[0] else self.few[1]

    def occupied(self, num_bytes: float) -> float:
        """Seconds until the next reduction may start (of what these bytes cost: see `of`)."""
        return self.fixed_seconds + num_bytes * self.seconds_per_byte

    def __call__(self, num_bytes: float) -> float:
        """Seconds until the total is there."""
        cost = self.of(num_bytes)
        return cost.occupied(num_bytes) + cost.latency_seconds


class _Passed(NamedTuple):
    """A level that messages between some workers pass."""

    network: NetworkFacts
    door: int
    """Workers behind one door."""
    largest: int
    """Workers in the largest group."""
    links: int
    """Links of this level in a chain through all workers."""

    @property
    def depth(self) -> int:
        """Depth of a binary tree over the members of the largest group."""
        return math.ceil(math.log2(-(-self.largest // self.door)))


def _passed(cluster: Cluster, workers: int) -> Iterator[_Passed]:
    door = 1
    for level in cluster.levels:
        size = workers if level.workers is None else level.workers
        links = -(-workers // door) - -(-workers // size)
        if links > 0:
            yield _Passed(level.network, door, min(size, workers), links)
        door = size


def reduction_cost(
    cluster: Cluster, workers: int, algorithm: Algorithm, *, num_grains: int = 0
) -> Cost:
    """What it takes until every worker has the total. `num_grains` are those of the batch, which
    decide how many sums our own reduction ships (0: one from each worker).

    A ring passes every door once in each direction and a tree's halves balance, so both run at the
    narrowest door's rate, and (on NCCL's one stream) one reduction after another; an all_to_all
    takes everything its workers have for others through the door, its messages travel together, and
    the next bucket need not wait for the last one's latency. (Our own was tried on Gigabit Ethernet
    emulated with tc, 25 MiB: two workers with a sum each took 221 ms, modelled as 224; with two
    sums each 368, modelled as 336; three workers 308, as 299; four, on two cores, 390, as 336.)"""
    if workers == 1:
        return Cost(0.0, 0.0)
    levels = list(_passed(cluster, workers))
    narrowest = min(level.network.bytes_per_second for level in levels)
    if algorithm == "ring":
        fixed = 2.0 * sum(level.links * level.network.latency_seconds for level in levels)
        return Cost(fixed, 2.0 * (workers - 1) / workers / narrowest)
    if algorithm == "tree":
        return Cost(tree_seconds(cluster, workers), 2.0 / narrowest)
    grains = num_grains or workers
    speed = speed_seen(cluster, workers)
    few = whole_bytes(reduction(grains, min(workers, grains)).num_sums, speed)
    cost = _exchange_cost(levels, workers, traffic(workers, grains))
    whole = _exchange_cost(levels, workers, traffic(workers, grains, few, speed))
    record = whole.fixed_seconds + whole.latency_seconds
    return cost._replace(few=(few, whole), record_seconds=record)


def speed_seen(cluster: Cluster, workers: int) -> LinkSpeed | None:
    """The speed that so many workers measure when they start (engine/comm/speed.py); None in one
    node, where they share memory."""
    first = cluster.levels[0]
    if first.name == NODE and (first.workers is None or workers <= first.workers):
        return None
    cost = _exchange_cost(list(_passed(cluster, workers)), workers, Traffic(1, 0, 1.0))
    empty = cost.fixed_seconds + cost.latency_seconds
    return LinkSpeed(empty / empty_seconds(workers, 1.0), 1.0 / cost.seconds_per_byte)


def _exchange_cost(levels: Sequence[_Passed], workers: int, sent: Traffic) -> Cost:
    """What exchanges between all workers cost."""
    fixed = latency = per_byte = 0.0
    for level in levels:
        latency = max(latency, level.network.latency_seconds)
        messages = sent.rounds * (level.largest - level.door)
        fixed += messages * MESSAGE_LATENCIES * level.network.latency_seconds
        outside = level.door * (workers - level.door) / (workers - 1)
        per_byte = max(per_byte, sent.gradients * outside / level.network.bytes_per_second)
    latency *= sent.rounds * (1.0 - MESSAGE_LATENCIES)  # the first of each exchange is in `fixed`
    return Cost(fixed, per_byte, latency)


def tree_seconds(cluster: Cluster, workers: int) -> float:
    """Seconds of an empty message up a binary tree and down again: what any agreement costs at
    least."""
    return 2.0 * sum(
        level.depth * level.network.latency_seconds for level in _passed(cluster, workers)
    )


# ---- a link from timed reductions


class Sample(NamedTuple):
    """One size of reductions, timed."""

    rounds: int
    num_bytes: float
    seconds: float
    core_seconds: float
    """What a worker's cores did meanwhile."""


def link_of(samples: Sequence[Sample], name: str) -> NetworkFacts:
    """Fit the latency and bandwidth, both above zero, that explain the samples.

    Ratios of modelled to measured times are made small (soft L1 of their logarithms): small
    messages, which tell the latency, count as much as large ones, which tell the bandwidth, and
    one bad time does not count for much."""
    from scipy.optimize import least_squares

    messages, num_bytes, seconds, core_seconds = np.array(samples, dtype=np.float64).T

    def errors(logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
        latency, per_byte = np.exp(logarithms)
        return np.asarray(np.log((messages * latency + num_bytes * per_byte) / seconds))

    first = np.log([np.min(seconds / messages), np.min(seconds / num_bytes)])
    fitted = least_squares(errors, first, loss="soft_l1", f_scale=0.1).x
    return NetworkFacts(
        name=name,
        how="measured",
        bytes_per_second=float(np.exp(-fitted[1])),
        latency_seconds=float(np.exp(fitted[0])),
        cores_taken=float(np.median(core_seconds / seconds)),
    )
