"""A machine of a run whose workers come and go: who leads, who joins, and for how long it tries."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from meetings import Table, until

from samepath.cli import main
from samepath.engine.comm.environment import LOOPBACK, machine_name
from samepath.engine.elastic import signed_store
from samepath.engine.elastic.machine import ENDPOINT_FILE, MachineOffer, WorkerRange, read_endpoint
from samepath.engine.elastic.rendezvous import Rendezvous
from samepath.engine.elastic.signed_store import Endpoint, LeaderLost, answers
from samepath.engine.launch import elastic, leftovers
from samepath.engine.launch.elastic import Agent
from samepath.engine.launch.reports import Interrupted
from samepath.engine.run.request import Request
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.train import train
from samepath.files import LOCK

RECIPE = Path(__file__).parents[2] / "parity" / "tiny_recipe.py"
pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(autouse=True)
def leave_other_tests_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "find", lambda run_id=None: [])


def take_part(folder: RunFolder, tell: Callable[[str], None] = print) -> None:
    range_ = WorkerRange(least=1, most=1)
    elastic.take_part(folder, print, (), range_, MachineOffer(workers=1), 1.0, tell)


def lead_or_join(table: Table, folder: RunFolder, address: str = LOOPBACK) -> Rendezvous:
    machine = MachineOffer(workers=1, wait_seconds=20.0, address=address)
    range_ = WorkerRange(least=1, most=2)
    table.meetings.append(elastic.lead_or_join(folder, range_, machine, table.told.append))
    return table.meetings[-1]


def lead(table: Table, folder: Path) -> Endpoint:
    """Another process leads, and has said where in the folder."""
    endpoint = table.lead("1:2", machine=machine_name()).endpoint
    (folder / ENDPOINT_FILE).write_text(json.dumps(asdict(endpoint)))
    return endpoint


def test_a_signal_while_a_leader_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(20)

    monkeypatch.setattr(elastic, "lead_or_join", look)
    monkeypatch.setattr(RunFolder, "run_id", lambda self: "c" * 32)
    with pytest.raises(Interrupted):
        take_part(RunFolder(tmp_path))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_leader_that_is_lost_before_it_answers_is_looked_for_again(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []

    class Cut(Rendezvous):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            if not lost:
                lost.append("once")
                raise LeaderLost("connection reset")
            super().__init__(*arguments, **more)

    monkeypatch.setattr(elastic, "Rendezvous", Cut)
    monkeypatch.setattr(RunFolder, "try_lock", lambda self: False)
    lead(table, tmp_path)
    assert not lead_or_join(table, RunFolder(tmp_path)).leads
    assert lost


def test_who_answers_leads_also_where_there_are_no_locks(table: Table, tmp_path: Path) -> None:
    endpoint, folder = lead(table, tmp_path), RunFolder(tmp_path)
    assert not lead_or_join(table, folder).leads
    assert not folder.holds_lock
    assert answers(endpoint)
    assert not answers(replace(endpoint, secret="another run's"))


def test_a_leader_whose_disk_is_full_leads_alone_until_it_has_room(
    table: Table, tmp_path: Path
) -> None:
    def full(self: Path, other: Path) -> None:
        raise OSError(28, "No space left on device")

    folder = RunFolder(tmp_path)
    with pytest.MonkeyPatch.context() as whole:
        whole.setattr(Path, "replace", full)
        leading = lead_or_join(table, folder)
        assert leading.leads
        assert table.told == [
            f"{tmp_path / ENDPOINT_FILE} cannot be written (No space left on device): other "
            "machines cannot join until it can"
        ]
        until(lambda: sorted(path.name for path in tmp_path.iterdir()) == [LOCK])
    until((tmp_path / ENDPOINT_FILE).exists)
    assert read_endpoint(folder) == leading.endpoint
    assert len(table.told) == 1
    folder.unlock()


def test_a_leader_that_was_frozen_opens_the_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, endpoints, told = "running", list[Endpoint](), list[str]()

    def lose(agent: Agent, *_: Any) -> None:
        meeting = agent.rendezvous
        for endpoint in endpoints:
            with pytest.raises(ConnectionRefusedError):  # nobody can wait there for ever
                socket.create_connection((LOOPBACK, endpoint.port)).close()
        endpoints.append(meeting.endpoint)
        meeting._lost = "as a frozen one would find"
        meeting.leave()
        if len(endpoints) < 3:
            raise LeaderLost("the run's leader does not answer")
        nonlocal status
        status = "finished"
        raise LeaderLost("it ended meanwhile")

    monkeypatch.setattr(elastic, "_run_until_closed", lose)
    monkeypatch.setattr(RunFolder, "read", lambda self: {"status": status})
    folder = RunFolder(tmp_path)
    take_part(folder, told.append)
    folder.unlock()
    assert len({endpoint.secret for endpoint in endpoints}) == 3
    assert told == ["the run's leader does not answer; opening the run again"] * 2
    assert not (tmp_path / ENDPOINT_FILE).exists()


def test_two_who_come_to_lead_where_locks_are_not_seen(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elastic, "SETTLE_SECONDS", 0.5)
    both = threading.Barrier(2)
    monkeypatch.setattr(RunFolder, "try_lock", lambda self: both.wait(20) >= 0)

    def meet(folder: RunFolder) -> Rendezvous:
        return lead_or_join(table, folder, "127.0.0.2")

    met = [*table.threads.map(meet, [RunFolder(tmp_path), RunFolder(tmp_path)], timeout=30)]
    assert sorted(meeting.leads for meeting in met) == [False, True]
    assert met[0].endpoint == met[1].endpoint
    assert table.told == ["another machine leads the run too, where locks are not seen; joining it"]


@contextmanager
def _refusing() -> Iterator[int]:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        yield probe.getsockname()[1]


@contextmanager
def _dropping() -> Iterator[int]:
    """A firewall: packets to it vanish (here because too many others wait)."""
    with socket.socket() as listener, ExitStack() as waiting:
        listener.bind((LOOPBACK, 0))
        listener.listen(0)
        for _ in range(4):
            other = waiting.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@contextmanager
def _silent() -> Iterator[int]:
    """Somebody who takes connections, and says nothing."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        listener.listen(64)
        yield listener.getsockname()[1]


@pytest.mark.parametrize("there", [_refusing, _dropping, _silent])
def test_a_leader_that_cannot_be_reached(
    there: Callable[[], AbstractContextManager[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It lives, as its lock shows; `join` does not wait for it for ever."""
    monkeypatch.setattr(elastic, "REACH_SECONDS", 1.0)
    monkeypatch.setattr(signed_store, "STORE_SECONDS", 0.5)
    out = tmp_path / "run"
    train(Request(recipe=str(RECIPE), num_workers=1, steps=1, out=out))
    record = json.loads((out / "run.json").read_text()) | {"status": "running", "result": None}
    record["starts"][-1]["crew"] = [1, 2]
    (out / "run.json").write_text(json.dumps(record))
    leader = RunFolder(out)
    assert leader.try_lock()
    with there() as port:
        endpoint = Endpoint(address=LOOPBACK, port=port, secret="s", machine=machine_name())
        (out / ENDPOINT_FILE).write_text(json.dumps(asdict(endpoint)))
        began = time.monotonic()
        with pytest.raises(SystemExit) as ended:
            main(["join", str(out), "--here", "1"])
    leader.unlock()
    assert ended.value.code == 1
    assert 1 < time.monotonic() - began < 20
    *_, last = capfd.readouterr().err.splitlines()
    assert re.match(
        rf"samepath: the leader of the run in {out} could not be reached for 1 s: no answer "
        rf"at 127\.0\.0\.1:{port} \(.+\); look for a firewall .* \(this one has no --interface\)$",
        last,
    )
    assert json.loads((out / "run.json").read_text()) == record, "it is the leader's"


def test_who_was_in_the_run_waits_for_its_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time it has a limit of its own; later the one for those who wait."""
    limits: list[float] = []

    def meet(*arguments: Any) -> Any:
        limits.append(arguments[-1])
        return SimpleNamespace(
            leads=False, workers_here=1, endpoint=SimpleNamespace(address=LOOPBACK)
        )

    def lose(*_: Any) -> None:
        if len(limits) < 3:
            raise LeaderLost("the run's leader does not answer")

    monkeypatch.setattr(elastic, "lead_or_join", meet)
    monkeypatch.setattr(elastic, "_run_until_closed", lose)
    monkeypatch.setattr(RunFolder, "read", lambda self: {"status": "running"})
    take_part(RunFolder(tmp_path))
    assert limits == [elastic.REACH_SECONDS, 86400.0, 86400.0]
