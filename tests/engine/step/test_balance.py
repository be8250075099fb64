"""Following speeds, with made-up workers whose times are known: what is tried, kept, given up."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from samepath.engine.step.balance import EVERY, FIRST, SELDOM, Balance, WorkerTimes
from samepath.plan import assign, reduction

Step = tuple[Sequence[float], float]
"""How long each worker computes, and how long the step takes."""
World = Callable[[int, Sequence[int], random.Random], Step]
"""What a step is like, from its number, everybody's number of grains, and chance."""


@dataclass
class Outcome:
    seconds: float = 0.0
    counts: list[tuple[int, ...]] = field(default_factory=list)
    """Of every step: everybody's grains."""

    @property
    def changes(self) -> int:
        return sum(a != b for a, b in zip(self.counts, self.counts[1:], strict=False))


def live(
    world: World, num_grains: int, num_workers: int, steps: int = 1000, *, follow: bool = True
) -> Outcome:
    chance, speeds, found, before = random.Random(0), Balance(), Outcome(), 0.0
    for step in range(steps):
        counts = tuple(map(len, assign(num_grains, num_workers, speeds.costs)))
        busy, seconds = world(step, counts, chance)
        if follow:
            told = [
                WorkerTimes(time / count, before) for time, count in zip(busy, counts, strict=True)
            ]
            speeds.learn(told, num_grains)
        before = seconds
        found.seconds += seconds
        found.counts.append(counts)
    return found


def apart(*grain_seconds: float, noise: float = 0.0, serial: float = 0.0) -> World:
    """Workers on machines of their own."""

    def world(step: int, counts: Sequence[int], chance: random.Random) -> Step:
        pairs = zip(counts, grain_seconds, strict=True)
        busy = [count * each * chance.lognormvariate(0.0, noise) for count, each in pairs]
        return busy, max(busy) + serial

    return world


def on_cores(num_cores: int, noise: float) -> World:
    """Workers that share cores: the fewer still compute, the faster each of them does."""

    def world(step: int, counts: Sequence[int], chance: random.Random) -> Step:
        work = [count * chance.lognormvariate(0.0, noise) for count in counts]
        busy, done, now = [0.0] * len(work), 0.0, 0.0
        for place, worker in enumerate(sorted(range(len(work)), key=lambda w: work[w])):
            crowd = len(work) - place
            now += (work[worker] - done) * max(1.0, crowd / num_cores)
            busy[worker], done = now, work[worker]
        return busy, now

    return world


def speed_up(world: World, num_grains: int, num_workers: int, steps: int = 1000) -> float:
    even = live(world, num_grains, num_workers, steps, follow=False)
    return even.seconds / live(world, num_grains, num_workers, steps).seconds


@pytest.mark.parametrize(("num_grains", "counts"), [(4, (3, 1)), (8, (6, 2)), (32, (22, 10))])
def test_half_the_speed_half_the_grains(num_grains: int, counts: tuple[int, int]) -> None:
    found = live(apart(1.0, 2.0), num_grains, 2)
    assert found.counts[FIRST - 1] == (num_grains // 2, num_grains // 2)
    assert found.counts[FIRST] == counts
    assert set(found.counts[FIRST:]) == {counts}, "found once, and kept"
    assert speed_up(apart(1.0, 2.0), num_grains, 2) > 1.3


def test_any_worker_may_be_slow_and_several() -> None:
    assert live(apart(3.0, 1.0, 1.0), 28, 3).counts[-1] == (4, 12, 12)
    found = live(apart(1.0, 2.0, 1.0, 4.0), 64, 4).counts[-1]
    ideal = 64 / (1.0 + 1.0 / 2.0 + 1.0 + 1.0 / 4.0)
    assert max(map(operator.mul, found, (1.0, 2.0, 1.0, 4.0))) <= 1.05 * ideal


@pytest.mark.parametrize("noise", [0.05, 0.2, 0.4])
@pytest.mark.parametrize(("num_grains", "num_workers"), [(8, 2), (256, 2), (32, 8), (256, 8)])
def test_equal_workers_stay_even_in_noise(noise: float, num_grains: int, num_workers: int) -> None:
    """Each step's times off by up to a half, independently: the hardest case."""
    world = apart(*[1.0] * num_workers, noise=noise)
    found = live(world, num_grains, num_workers)
    even = tuple(map(len, assign(num_grains, num_workers)))
    assert found.changes <= 6
    assert found.counts.count(even) > 900
    assert speed_up(world, num_grains, num_workers) > 0.995


@pytest.mark.parametrize(("num_workers", "num_grains"), [(4, 64), (8, 256), (32, 64)])
def test_workers_that_share_cores_are_not_told_apart(num_workers: int, num_grains: int) -> None:
    """Who has more grains computes the last of them while others wait, and so looks faster."""
    found = live(on_cores(2, 0.2), num_grains, num_workers)
    assert found.changes <= 6
    assert speed_up(on_cores(2, 0.2), num_grains, num_workers) > 0.99


def test_noise_does_not_hide_a_slow_worker() -> None:
    found = live(apart(1.0, 2.0, noise=0.2), 32, 2)
    assert found.counts[-1][1] in range(8, 13)
    assert found.changes <= 10
    assert speed_up(apart(1.0, 2.0, noise=0.2), 32, 2) > 1.3


def test_a_pause_is_no_reason() -> None:
    def pausing(step: int, counts: Sequence[int], chance: random.Random) -> Step:
        busy = [float(count) for count in counts]
        busy[1] *= 50.0 if step % EVERY in (3, 4) else 1.0
        return busy, max(busy)

    assert live(pausing, 64, 2).changes == 0


def test_a_worker_that_recovers_gets_its_grains_back() -> None:
    def recovering(step: int, counts: Sequence[int], chance: random.Random) -> Step:
        return apart(1.0, 2.0 if step < 100 else 1.0)(step, counts, chance)

    found = live(recovering, 32, 2, 200)
    assert found.counts[99] == (22, 10)
    assert found.counts[100 + 2 * EVERY] == (16, 16)


def test_not_for_a_small_part_of_a_step() -> None:
    """Where updates and messages take most of it, a slow worker hardly matters."""
    assert live(apart(1.0, 1.5, serial=500.0), 32, 2).changes == 0
    assert live(apart(1.0, 1.5, serial=5.0), 32, 2).changes > 0


def test_what_does_not_help_is_given_up_and_tried_ever_less() -> None:
    """Sums that do not lie along the tree have to travel; here that costs more than it saves."""

    def far_apart(step: int, counts: Sequence[int], chance: random.Random) -> Step:
        busy = [counts[0] * 1.0, counts[1] * 1.3]
        sums = max(reduction(32, 2, () if counts[0] == counts[1] else (100, 130)).num_sums)
        return busy, max(busy) + 8.0 * sums

    found = live(far_apart, 32, 2, 4 * SELDOM)
    trials = [n for n in range(1, 4 * SELDOM) if found.counts[n] != found.counts[n - 1]]
    begins, ends = trials[::2], trials[1::2]
    assert len(begins) >= 3
    assert all(end - begin == EVERY for begin, end in zip(begins, ends, strict=True))
    waits = [begin - end for begin, end in zip(begins[1:], ends[:-1], strict=True)]
    assert waits == [min(2 * EVERY << n, SELDOM) for n in range(len(waits))]


def test_nothing_is_known_of_a_worker_without_grains() -> None:
    speeds = Balance()
    for _ in range(100):
        speeds.learn([WorkerTimes(1.0, 1.0), WorkerTimes(0.0, 1.0)], 1)
    assert not speeds.costs


def test_short_batches_among_long_ones_do_not_matter() -> None:
    """A batch of one grain, every other step."""
    speeds = Balance()
    for _ in range(FIRST):
        speeds.learn([WorkerTimes(1.0, 1.0), WorkerTimes(2.0, 1.0)], 8)
        speeds.learn([WorkerTimes(1.0, 1.0), WorkerTimes(0.0, 1.0)], 1)
    assert speeds.costs == (100, 200)


def test_steps_from_a_checkpoint_do_not_count() -> None:
    speeds = Balance()
    for _ in range(FIRST - 1):
        speeds.learn([WorkerTimes(1.0, 1.0), WorkerTimes(2.0, 1.0)], 8)
    speeds.learn([], 8)
    assert not speeds.costs
    speeds.learn([WorkerTimes(1.0, 1.0), WorkerTimes(2.0, 1.0)], 8)
    assert speeds.costs == (100, 200)
