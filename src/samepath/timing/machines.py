"""A machine: workers in nodes, nodes in racks, the link at each level, and what a reduction takes.

In: a name or a link. Out: a Machine, and by number of workers the cost of reducing gradients.
Guaranteed: workers fill one node after another; a level no message passes costs nothing; where
every worker is a node of its own the cost of our own reduction is `study.network`'s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from samepath.errors import UserError
from samepath.study.results import NetworkFacts
from samepath.timing.links import HERE, MESSAGE_LATENCIES, PRESETS, parse_network, traffic

Algorithm: TypeAlias = Literal["samepath", "ring", "tree"]
"""Our all_to_all and all_gather of the plan's tree (`study.network.traffic`); a ring all-reduce
(Patarasuk and Yuan 2009); NCCL's double binary tree (Sanders, Speck and Träff 2009)."""
NODE = "node"


@dataclass(frozen=True, kw_only=True)
class Level:
    """Groups of workers, and the link that joins the members of one."""

    name: str
    """What such a group is called: "node" (workers of one computer), "rack", "machine"."""
    workers: int | None
    """In one group; None: however many there are (the outermost level only)."""
    network: NetworkFacts
    """Latency of a message between members; bandwidth, in each direction, at the door of one
    member: of a worker at the innermost level, of a whole node between nodes."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    name: str
    levels: tuple[Level, ...]
    """From the innermost to the outermost."""
    is_here: bool = False
    """It is this computer, of which was measured how much its workers slow each other down. (That
    those of a node elsewhere do not is assumed.)"""

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

    def side_by_side(self, workers: int) -> int:
        """How many of these workers share this computer's memory and caches."""
        return workers if self.is_here else 1


class Cost(NamedTuple):
    """Of reducing some bytes."""

    fixed_seconds: float
    """However many they are, and nothing else travels meanwhile."""
    seconds_per_byte: float
    latency_seconds: float = 0.0
    """On the way, while the next may start."""
    record_seconds: float = 0.0
    """Of what workers tell each other at the end of a step beside: a ring of small records."""

    def occupied(self, num_bytes: float) -> float:
        """Until the next reduction may start."""
        return self.fixed_seconds + num_bytes * self.seconds_per_byte

    def __call__(self, num_bytes: float) -> float:
        """Until the total is there."""
        return self.occupied(num_bytes) + self.latency_seconds


class _Passed(NamedTuple):
    """A level that messages between some workers pass."""

    network: NetworkFacts
    door: int
    """Workers behind one door."""
    largest: int
    """Workers in the largest group."""
    links: int
    """Of a chain through all workers, those of this level."""

    @property
    def depth(self) -> int:
        """Of a binary tree over the members of the largest group."""
        return math.ceil(math.log2(-(-self.largest // self.door)))


def _passed(machine: Machine, workers: int) -> Iterator[_Passed]:
    door = 1
    for level in machine.levels:
        size = workers if level.workers is None else level.workers
        links = -(-workers // door) - -(-workers // size)
        if links > 0:
            yield _Passed(level.network, door, min(size, workers), links)
        door = size


def reduction_cost(
    machine: Machine, workers: int, algorithm: Algorithm, *, num_grains: int = 0
) -> Cost:
    """What it takes until every worker has the total. `num_grains` are those of the batch, which
    decide how many sums our own reduction ships (0: one from each worker).

    A ring passes every door once in each direction and a tree's halves balance, so both run at the
    narrowest door's rate, and (on NCCL's one stream) one reduction after another; an all_to_all
    takes everything its workers have for others through the door, its messages travel together, and
    the next bucket need not wait for the last one's latency."""
    if workers == 1:
        return Cost(0.0, 0.0)
    levels = list(_passed(machine, workers))
    narrowest = min(level.network.bytes_per_second for level in levels)
    if algorithm == "ring":
        fixed = 2.0 * sum(level.links * level.network.latency_seconds for level in levels)
        return Cost(fixed, 2.0 * (workers - 1) / workers / narrowest)
    if algorithm == "tree":
        return Cost(tree_seconds(machine, workers), 2.0 / narrowest)
    rounds, _, gradients = traffic(workers, num_grains or workers)
    fixed = latency = per_byte = 0.0
    for level in levels:
        latency = max(latency, level.network.latency_seconds)
        messages = rounds * (level.largest - level.door)
        fixed += messages * MESSAGE_LATENCIES * level.network.latency_seconds
        outside = level.door * (workers - level.door) / (workers - 1)
        per_byte = max(per_byte, gradients * outside / level.network.bytes_per_second)
    latency *= rounds * (1.0 - MESSAGE_LATENCIES)  # the first of each exchange is counted above
    record = sum(level.links * level.network.latency_seconds for level in levels)
    return Cost(fixed, per_byte, latency, record)


def tree_seconds(machine: Machine, workers: int) -> float:
    """Of an empty message up a binary tree and down again: what any agreement costs at least."""
    return 2.0 * sum(
        level.depth * level.network.latency_seconds for level in _passed(machine, workers)
    )


# ---- machines by name


def flat(network: NetworkFacts, *, name: str = "machine") -> Machine:
    """Every worker at the same link: each a computer of its own, or, named "node", all in this."""
    level = Level(name=name, workers=None, network=network)
    return Machine(name=network.name, levels=(level,), is_here=name == NODE)


def _link(name: str, bytes_per_second: float, latency_seconds: float) -> NetworkFacts:
    return NetworkFacts(
        name=name,
        how="preset",
        bytes_per_second=bytes_per_second,
        latency_seconds=latency_seconds,
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


def _machine(name: str, *levels: tuple[str, int | None, NetworkFacts]) -> Machine:
    return Machine(
        name=name,
        levels=tuple(Level(name=what, workers=n, network=link) for what, n, link in levels),
    )


MACHINES: dict[str, Machine] = {
    machine.name: machine
    for machine in (
        *map(flat, PRESETS.values()),
        # Cunha et al. 2018: at most two workers a node, Gigabit Ethernet between nodes.
        _machine("1GbE-pairs", (NODE, 2, _LOOPBACK), ("machine", None, PRESETS["1GbE"])),
        _machine(
            "10GbE-racks",
            (NODE, 4, _LOOPBACK),
            ("rack", 160, PRESETS["10GbE"]),
            ("machine", None, _UPLINKS),
        ),
        # Gahlot et al. 2020: six V100 a node.
        _machine("summit", (NODE, 6, _NVLINK2), ("machine", None, _TWO_EDR)),
        _machine("dgx-a100", (NODE, 8, PRESETS["NVLink"]), ("machine", None, _EIGHT_HDR)),
    )
}
"""The presets: first `study.network`'s, every worker a node of its own."""


def find_machine(text: str, here: NetworkFacts | None = None) -> Machine:
    """A preset by name, a link such as "940Mbit/s:60us", or "here": the link measured here."""
    text = text.strip()
    names = {name.lower(): name for name in MACHINES}
    if text.lower() in names:
        return MACHINES[names[text.lower()]]
    if text.lower() == HERE and here is not None:
        return flat(here, name=NODE)
    if ":" in text:
        link = parse_network(text)
        assert link != HERE
        return flat(link)
    known = [*MACHINES, *([HERE] if here is not None else [])]
    raise UserError(
        f"--network {text}: there is no such preset; use one of {', '.join(known)}, or a link you "
        "measured, such as 940Mbit/s:60us"
    )
