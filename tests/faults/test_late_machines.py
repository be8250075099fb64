"""Launchers that srun or mpirun started, and whose leader is not there: they wait, not for ever."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from elastic_runs import RECIPE as TINY

from samepath.console import WaitedTooLong
from samepath.engine import train as training
from samepath.engine.comm.environment import Place
from samepath.engine.elastic.machine import WorkerRange
from samepath.engine.run.request import Request
from samepath.engine.train import train
from samepath.errors import WorkerFailed
from samepath.recipe import find_recipe

LIMIT_SECONDS = 180
RECIPE = str(TINY)
SECOND = Place(worker=1, num_workers=2, launcher="srun")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "LEADER_SECONDS", 1.0)


def come_second(out: Path) -> str:
    request = Request(recipe=RECIPE, num_workers=WorkerRange(least=1, most=4), out=out)
    result, _ = training._train_with_others(request, SECOND, find_recipe(RECIPE))
    return result.digest


def test_a_leader_that_has_refused_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(WaitedTooLong, match="waited 1 s for the launcher that leads the run in "):
        come_second(tmp_path / "none")


def test_a_run_that_has_ended_needs_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    result, _ = train(Request(recipe=RECIPE, num_workers=1, epochs=1, out=out))
    with pytest.raises(WaitedTooLong):
        come_second(out)  # it may still be continued
    monkeypatch.setattr(training, "LATE_SECONDS", 0.2)
    assert come_second(out) == result.digest


def test_a_run_without_a_result_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    train(Request(recipe=RECIPE, num_workers=1, epochs=1, out=out))
    content = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps(content | {"result": None}))
    monkeypatch.setattr(training, "LATE_SECONDS", 0.0)
    with pytest.raises(WorkerFailed, match="has left no result; it can be resumed"):
        come_second(out)
