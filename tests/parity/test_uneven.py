"""A slow worker gets fewer grains, and no bit changes: real processes.

Once a worker really is slow. For everything else times are made up, so that what happens when is
known: first worker 1 is said to be slow, then worker 0, and grains move one way and back. The cases
have batch norm, dropout, a short last batch of one grain, weights, loader processes that read
ahead, and gradients that wait for their turn. One launch per worker count runs all of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import CASES
from constructs import Training, training, vectors
from launches import Everything, launch_at
from torch import Tensor, nn

from samepath.engine.run.session import Link, Session, start
from samepath.engine.step.balance import EVERY, FIRST, Balance, WorkerTimes
from samepath.plan import assign
from samepath.strategies.choice import Choice, Synchronisation

SETTINGS: list[tuple[int, Link]] = [(1, "auto"), (2, "network"), (3, "auto")]
TURN = FIRST + EVERY
"""From here on another worker is slow: the first two looks see the same one."""
STEPS = TURN + EVERY + 8
LAG = 2
LOOKS = (7, 25, STEPS - 1)
"""Steps after which the model is evaluated, and a gradient taken."""
SLOW_SECONDS = 0.05


FOLLOWING = {
    name: CASES[name]
    for name in (
        "batch_norm_and_dropout",
        "weighted_by_valid_labels",
        "unused_parameters",
        "dataset_with_loader_processes",
    )
}
LAGGING = {
    f"lagging_{name}": FOLLOWING[name]
    for name in ("batch_norm_and_dropout", "dataset_with_loader_processes")
}
EVEN: dict[str, Callable[[], Training]] = {
    "not_to_follow": partial(training, follow_speed=False),
    "not_exact": partial(training, exact=False),
}


class MadeUp(Balance):
    """What workers say of their times is replaced: one takes three times as long as the others."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self._before = 0.0

    def learn(self, told: Sequence[WorkerTimes], num_grains: int) -> None:
        slow = 1 if self.steps < TURN else 0
        self.steps += 1
        runs = assign(num_grains, len(told), self.costs)
        assert [t.grain_seconds > 0.0 for t in told] == [len(run) > 0 for run in runs]
        seconds = [3.0 if worker == slow else 1.0 for worker in range(len(told))]
        pairs = list(zip(runs, seconds, strict=True))
        said = [WorkerTimes(each if run else 0.0, self._before) for run, each in pairs]
        self._before = max(len(run) * each for run, each in pairs)
        super().learn(said, num_grains)


def train(
    make: Callable[[], Training], session: Session, *, lag: int = 0, steps: int = STEPS
) -> dict[str, Any]:
    """What must be the same everywhere, and who did how much."""
    torch.manual_seed(5)
    ready = make()
    trainer = ready.prepare(session)
    trainer.balance = MadeUp()
    source = trainer.source(ready.data)
    bits: list[str] = []
    costs: list[tuple[int, ...]] = []
    grains: list[int] = []
    points: list[str] = []
    trainer.watch = lambda point, grain, value: points.append(point)
    for share in trainer.stream(source, 0, steps):
        points.clear()
        costs.append(trainer.balance.costs)
        ready.before_step(trainer.step_number)
        for result in trainer.advance(
            share, Choice(synchronisation=Synchronisation(kind="stale", lag=lag))
        ):
            bits += [result.loss.hex(), *(loss.hex() for loss in result.grain_losses)]
            bits += [result.gradient_norm.hex(), str(result.noise)]
        grains.append(points.count("loss"))
        if share.batch.step in LOOKS:
            bits += [value.hex() for value in trainer.evaluate(ready.data).values()]
            bits.append(trainer.gradient(source, share.batch).hex())
    return {"bits": bits, "digest": trainer.digest(), "costs": costs, "grains": grains}


def slowed(session: Session, folder: Path) -> dict[str, Any]:
    """Worker 1 is slow, and what is saved meanwhile is taken up again by a new trainer."""
    torch.manual_seed(5)
    first, second = training().prepare(session), training().prepare(session)
    plain, slow = first.loss, session.worker == 1

    def loss(model: nn.Module, batch: Any) -> Tensor:
        time.sleep(SLOW_SECONDS if slow else 0.0)
        found: Tensor = plain(model, batch)
        return found

    first.grain_loss = loss
    costs = []
    for share in first.stream(first.source(vectors()), 0, TURN):
        first.step(share)
        costs.append(first.balance.costs)
    first.save(folder)
    assert second.resume(folder)
    return {"costs": costs, "digest": second.digest(), "resumed": second.balance.costs}


def run_all(link: Link, folder: str) -> None:
    """The body of every worker."""
    with start(seed=7, link=link) as session:
        found = {name: train(make, session) for name, make in FOLLOWING.items()}
        found |= {name: train(make, session, lag=LAG) for name, make in LAGGING.items()}
        found |= {name: train(make, session, steps=TURN + 1) for name, make in EVEN.items()}
        found["slowed"] = slowed(session, Path(folder, "saved"))
        Path(folder, f"worker-{session.worker}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Everything:
    return launch_at(SETTINGS, run_all, tmp_path_factory)


def several(found: Everything) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for (num_workers, link), workers in found.items():
        if num_workers > 1:
            yield f"{num_workers} workers, {link}", workers


@pytest.mark.parametrize("name", FOLLOWING | LAGGING)
def test_grains_move_there_and_back_and_bits_do_not(name: str, found: Everything) -> None:
    (alone,) = found[1, "auto"]
    for where, workers in several(found):
        for worker in workers:
            assert worker[name]["bits"] == alone[name]["bits"], where
            assert worker[name]["digest"] == alone[name]["digest"], where
        costs = workers[0][name]["costs"]
        others = [100] * (len(workers) - 2)
        late = int(name == "lagging_dataset_with_loader_processes")  # it knows a step's facts later
        there, back = FIRST + late, TURN + EVERY + late
        assert costs[:there] == [[]] * there, where
        assert costs[there:back] == [[100, 300, *others]] * EVERY * 2, where
        assert costs[back:] == [[300, 100, *others]] * (STEPS - back), where
        grains = [worker[name]["grains"] for worker in workers]
        assert [sum(step) for step in zip(*grains, strict=True)] == alone[name]["grains"], where
        shares = [[sum(counts[n : n + 4]) for counts in grains] for n in (0, there, back)]
        assert shares[0][1] > shares[1][1] < shares[2][1], f"{where}: {shares}"
        assert shares[0][0] < shares[1][0] > shares[2][0], f"{where}: {shares}"


@pytest.mark.parametrize("name", EVEN)
def test_who_does_not_follow_stays_even(name: str, found: Everything) -> None:
    for where, workers in several(found):
        assert not any(cost for worker in workers for cost in worker[name]["costs"]), where


def test_a_worker_that_is_slow_is_found(found: Everything) -> None:
    """At the latest by the second look; and a resumed run begins even."""
    (alone,) = found[1, "auto"]
    for where, workers in several(found):
        for worker in workers:
            assert worker["slowed"]["costs"] == workers[0]["slowed"]["costs"], where
            assert worker["slowed"]["digest"] == alone["slowed"]["digest"], where
            assert not worker["slowed"]["resumed"], where
        tried = [cost for cost in workers[0]["slowed"]["costs"] if cost]
        assert tried, where
        assert tried[0][1] == max(tried[0]), where
