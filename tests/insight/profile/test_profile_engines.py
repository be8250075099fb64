"""What the plain loop says of losses that DDP does not take, and clocks of several machines."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from samepath.engine.comm.collective import Alone, Record
from samepath.engine.run.options import resolve
from samepath.engine.run.session import Session
from samepath.errors import UserError
from samepath.insight.profile import profile as profile_module
from samepath.insight.profile.engines import PlainLoop, Reducer
from samepath.insight.profile.profile import ONE_CLOCK, set_clock
from samepath.insight.profile.recorder import PhaseRecorder
from samepath.recipe import Recipe


class Wrapped(Reducer):
    """Hides the model as DDP does."""

    def __init__(self, model: nn.Module) -> None:
        self.module = nn.Sequential(model)

    def backward(self, loss: Tensor, scale: float) -> None:
        loss.backward(torch.full_like(loss, scale))


def loop(recipe: Recipe) -> PlainLoop:
    options = resolve(recipe)
    session = Session(Alone(torch.device("cpu")), seed=0)
    return PlainLoop(recipe, options, session, PhaseRecorder(0), Wrapped)


def recipe(loss: object) -> Recipe:
    return Recipe(
        model=lambda: nn.Linear(3, 1),
        train=torch.ones(12, 3),
        loss=loss,  # type: ignore[arg-type]
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=5,
        grain_size=5,
        epochs=1,
    )


def test_only_whole_batches_are_trained_on() -> None:
    engine = loop(recipe(lambda model, batch: model(batch).square().mean()))
    seen = [next(engine.shares).batch for _ in range(5)]
    assert [len(batch.examples) for batch in seen] == [5] * 5
    assert [batch.epoch for batch in seen] == [0, 0, 1, 1, 2]


def test_a_loss_that_reaches_into_the_model_is_told() -> None:
    engine = loop(recipe(lambda model, batch: model.weight.sum()))
    with pytest.raises(UserError, match=r"ddp: the recipe's loss uses model\.weight"):
        engine.step()


def test_other_attribute_errors_are_the_recipes_own() -> None:
    engine = loop(recipe(lambda model, batch: batch.no_such_thing))
    with pytest.raises(AttributeError, match="no_such_thing"):
        engine.step()


def test_parameters_without_gradients_are_told() -> None:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        raise RuntimeError("Expected to have finished reduction in the prior iteration before ...")

    with pytest.raises(UserError, match="profile without ddp"):
        loop(recipe(loss)).step()


class Threads(Alone):
    """Workers that are threads of this process."""

    def __init__(self, worker: int, barrier: threading.Barrier, table: list[Record]) -> None:
        super().__init__(torch.device("cpu"))
        self.worker, self.num_workers = worker, barrier.parties
        self._barrier, self._table = barrier, table

    def gather(self, record: Record) -> list[Record]:
        self._table[self.worker] = record.copy()
        self._barrier.wait()
        records = list(self._table)
        self._barrier.wait()
        return records


@pytest.mark.parametrize("machines", [1, 3])
def test_clocks_of_several_machines_are_set(machines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = [0.0, 1234.5, -60.0]
    barrier = threading.Barrier(3, timeout=20.0)
    table = [np.zeros(0, np.uint8)] * 3
    here = threading.local()
    monkeypatch.setattr(profile_module, "machine_name", lambda: f"host {here.worker % machines}")

    def worker(number: int) -> tuple[float, str]:
        here.worker = number
        clock = ahead[number]
        return set_clock(Threads(number, barrier, table), lambda: time.perf_counter() + clock)

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(worker, range(3)))
    if machines == 1:
        assert found == [(0.0, ONE_CLOCK)] * 3
        return
    assert [offset for offset, _ in found] == pytest.approx(ahead, abs=0.05)
    assert all(words.startswith("3 machines: clocks set by") for _, words in found)
