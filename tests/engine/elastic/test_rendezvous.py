"""Where machines meet: shares, rounds, places, silence, the end; and who is believed."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from samepath import console
from samepath.cli import main
from samepath.console import WaitedTooLong
from samepath.engine.comm import store as comm_store
from samepath.engine.comm.collective import machine_name
from samepath.engine.comm.environment import LOOPBACK
from samepath.engine.comm.store import open_store
from samepath.engine.elastic import machine as machines
from samepath.engine.elastic import rendezvous, signed_store, step_memory
from samepath.engine.elastic.machine import ENDPOINT_FILE, MachineOffer, WorkerRange, read_endpoint
from samepath.engine.elastic.rendezvous import (
    FINISHED,
    Rendezvous,
    RendezvousClosed,
    RendezvousRound,
    allot_workers,
)
from samepath.engine.elastic.signed_store import (
    Endpoint,
    EndpointLost,
    LeaderLost,
    SignedStore,
    answers,
    reach_store,
)
from samepath.engine.launch import elastic, leftovers
from samepath.engine.launch.elastic import Agent, FaultTolerance
from samepath.engine.launch.reports import Interrupted
from samepath.engine.run.request import Request
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.train import train
from samepath.errors import UserError
from samepath.files import LOCK


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(1, 30))
def test_share_out(offers: list[int], most: int) -> None:
    there = {10 - number: offer for number, offer in enumerate(offers)}
    parts = allot_workers(there, most)
    assert list(parts) == list(there)[: len(parts)], "those who came first"
    assert len(parts) == min(most, len(there)), "as many machines as there are places for"
    assert sum(parts.values()) == min(most, sum(offers)), "as many workers as possible"
    assert all(1 <= part <= there[member] for member, part in parts.items())
    short = [part < there[member] for member, part in parts.items()]
    alone = [part == 1 for part in parts.values()]
    assert all(all(alone[n + 1 :]) for n in range(len(parts)) if short[n]), "in order"


# ---- meetings of several members, each in a thread of its own


class Table:
    """Members of one meeting."""

    def __init__(self) -> None:
        self.threads = ThreadPoolExecutor(16)
        self.meetings: list[Rendezvous] = []
        self.told: list[str] = []

    def lead(self, worker_range: str, workers: int = 1, **settings: Any) -> Rendezvous:
        least, most = map(int, worker_range.split(":"))
        range_ = WorkerRange(least=least, most=most)
        return self._add(Rendezvous(range_, workers, **self._with(settings)))

    def join(
        self, workers: int = 1, endpoint: Endpoint | None = None, **settings: Any
    ) -> Rendezvous:
        leader = self.meetings[0]
        settings["endpoint"] = endpoint or leader.endpoint
        return self._add(Rendezvous(leader.worker_range, workers, **self._with(settings)))

    def _with(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {"wait_seconds": 20.0, "tell": self.told.append} | settings

    def _add(self, meeting: Rendezvous) -> Rendezvous:
        self.meetings.append(meeting)
        return meeting

    def sit(self, meeting: Rendezvous) -> Future[RendezvousRound]:
        """Take part in the next round."""

        return self.threads.submit(meeting.next_round)

    def sit_all(self, *meetings: Rendezvous) -> list[RendezvousRound]:
        return [seated.result(20) for seated in [self.sit(meeting) for meeting in meetings]]


def until(condition: Callable[[], Any]) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < 20, "nothing happens"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(rendezvous, "SILENT_SECONDS", 1.5)
    monkeypatch.setattr(console, "QUIET_SECONDS", 0.1)
    monkeypatch.setattr(signed_store, "STORE_SECONDS", 2.0)


@pytest.fixture
def table() -> Iterator[Table]:
    made = Table()
    yield made
    for meeting in reversed(made.meetings):  # the leader has the store
        meeting.leave()
    made.threads.shutdown()


def agree(rounds: list[RendezvousRound], parts: list[int]) -> None:
    """Everybody has the same round, with these parts in it."""
    assert [round_.here for round_ in rounds] == parts
    assert [round_.rank for round_ in rounds] == list(range(len(parts)))
    assert [round_.first for round_ in rounds] == [sum(parts[:n]) for n in range(len(parts))]
    shared = {(round_.number, round_.num_machines, round_.num_workers) for round_ in rounds}
    assert shared == {(rounds[0].number, len(parts), sum(parts))}


def test_rounds(table: Table) -> None:
    leader = table.lead("1:9", 2)
    agree(table.sit_all(leader), [2])
    assert not leader.is_next_called()
    second = table.join(3)
    seated = table.sit(second)
    until(leader.is_next_called)  # which is how torch's agent finds out
    agree([table.sit(leader).result(20), seated.result(20)], [2, 3])
    third, fourth = table.join(1), table.join(9)
    late = [table.sit(third), table.sit(fourth)]
    for meeting in (leader, second):
        until(meeting.is_next_called)
    rounds = table.sit_all(leader, second) + [seated.result(20) for seated in late]
    agree(rounds, [2, 3, 1, 3])
    second.workers_here = 1  # it has lost workers
    agree(table.sit_all(leader, second, third, fourth), [2, 1, 1, 5])


def test_a_round_that_is_not_counted_yet_is_not_called_again(table: Table) -> None:
    """The leader announces it, and counts it a moment later."""
    leader, second = table.lead("1:4", expected=2), table.join()
    table.sit_all(leader, second)
    leader._store.add("rounds", -1)
    again = table.sit(second)
    until(leader.is_next_called)
    rounds = [table.sit(leader).result(20), again.result(20)]
    agree(rounds, [1, 1])
    assert rounds[0].number == 2


def test_nobody_can_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("Network is unreachable\nframe #0: a page of them")

    monkeypatch.setattr(comm_store, "TCPStore", refuse)
    with pytest.raises(UserError, match=r"listen on 127\.0\.0\.1 \(Network is unreachable\); give"):
        open_store(LOOPBACK)


def test_a_signal_while_a_leader_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(20)

    monkeypatch.setattr(elastic, "lead_or_join", look)
    monkeypatch.setattr(RunFolder, "run_id", lambda self: "c" * 32)
    monkeypatch.setattr(step_memory, "forget_strangers", lambda _: None)
    with pytest.raises(Interrupted):
        elastic.take_part(
            RunFolder(tmp_path), print, (), WorkerRange(least=1, most=1), MachineOffer(workers=1),
            FaultTolerance(timeout_seconds=1.0, tell=print),
        )  # fmt: skip
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_one_who_fails_calls_everybody(table: Table) -> None:
    leader, second = table.lead("1:4", expected=2), table.join()
    agree(table.sit_all(leader, second), [1, 1])
    again = table.sit(second)
    until(leader.is_next_called)
    agree([table.sit(leader).result(20), again.result(20)], [1, 1])


def test_those_who_leave_and_those_who_are_silent(table: Table) -> None:
    leader, second, third = table.lead("1:4", expected=3), table.join(), table.join()
    agree(table.sit_all(leader, second, third), [1, 1, 1])
    second.leave()
    began = time.monotonic()
    until(leader.is_next_called)
    assert time.monotonic() - began < 1.4, "who says so is not waited for"
    agree(table.sit_all(leader, third), [1, 1])
    assert not leader.is_next_called()
    third._ended.set()  # dies: no more beats, and no word
    until(leader.is_next_called)
    agree(table.sit_all(leader), [1])


def test_a_full_run_has_spares(table: Table) -> None:
    leader, second = table.lead("1:3", 1, expected=2), table.join(2)
    agree(table.sit_all(leader, second), [1, 2])
    spare = table.join(2)
    waits = table.sit(spare)
    until(lambda: any("the run is full (3 workers)" in text for text in table.told))
    for member in (leader, second):
        assert not member.is_next_called(), "nobody is disturbed"
    second.leave()
    until(leader.is_next_called)
    agree([table.sit(leader).result(20), waits.result(20)], [1, 2])


def test_too_few(table: Table) -> None:
    leader = table.lead("3:4", wait_seconds=3.0)
    with pytest.raises(WaitedTooLong, match=r"waited 3 s for at least 3 workers \(1 the"):
        table.sit(leader).result(20)
    assert table.told == ["waiting for at least 3 workers (1 there on 1 machine(s))"]


def test_the_end(table: Table) -> None:
    leader, second = table.lead("1:2", expected=2), table.join()
    table.sit_all(leader, second)
    assert not second.is_next_called()
    leader.close(FINISHED)
    with pytest.raises(RendezvousClosed, match=FINISHED):
        second.is_next_called()
    with pytest.raises(RendezvousClosed, match=FINISHED):
        table.join().next_round()


def test_the_leader_is_gone(table: Table) -> None:
    """Its store is in another process, which is killed; the members find out by themselves."""
    store, port = open_store("127.0.0.1")
    signed = SignedStore(store, "words")
    signed.set("open", True)
    table.meetings.append(member := Rendezvous(
        WorkerRange(least=1, most=2), 1, tell=table.told.append,
        endpoint=Endpoint(address="127.0.0.1", port=port, secret="words", machine=""),
    ))  # fmt: skip
    waits = table.sit(member)
    time.sleep(0.2)
    assert not waits.done()
    del store, signed
    with pytest.raises(LeaderLost, match="the run's leader does not answer"):
        waits.result(5)
    with pytest.raises(EndpointLost, match=f"no answer at 127.0.0.1:{port}"):
        reach_store("127.0.0.1", port)


class Wire:
    """Between a store and those who reach it: what it carries stops when it is cut, and nobody is
    told, as with a network that drops everything or a leader that is frozen."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._entry = socket.create_server((LOOPBACK, 0))
        self.port = self._entry.getsockname()[1]
        self._ends = [self._entry]
        self.is_cut = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                near, far = (
                    self._entry.accept()[0],
                    socket.create_connection((LOOPBACK, self._port)),
                )
                self._ends += [near, far]
                for here, there in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(here, there), daemon=True).start()

    def _carry(self, here: socket.socket, there: socket.socket) -> None:
        with suppress(OSError):
            while words := here.recv(4096):
                if not self.is_cut.is_set():
                    there.sendall(words)

    def close(self) -> None:
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def test_a_cut_is_no_hang(table: Table) -> None:
    leader = table.lead("1:2", expected=2)
    with closing(Wire(leader.endpoint.port)) as wire:
        cut_off = table.join(endpoint=replace(leader.endpoint, port=wire.port))
        table.sit_all(leader, cut_off)
        assert not cut_off.is_next_called()
        wire.is_cut.set()
        began = time.monotonic()
        with pytest.raises(LeaderLost, match=r"the run's leader does not answer \(no answer for"):
            table.threads.submit(until, cut_off.is_next_called).result(30)
        with pytest.raises(EndpointLost, match="no answer at"):
            table.threads.submit(reach_store, LOOPBACK, wire.port).result(30)
        until(leader.is_next_called)
        agree(table.sit_all(leader), [1])
        cut_off.leave()
        assert time.monotonic() - began < 30


def test_who_has_said_something_was_heard() -> None:
    """A store's set is only sent: whoever asked next, or the next moment's end, came before it."""
    opened, port = open_store(LOOPBACK)
    with closing(Wire(port)) as wire:
        speaker = SignedStore(reach_store(LOOPBACK, wire.port), "secret")
        speaker.set("before", True)
        wire.is_cut.set()
        with pytest.raises(LeaderLost, match="no answer for"):
            speaker.set("closed", FINISHED)
    listener = SignedStore(opened, "secret")
    assert (listener.get("before"), listener.get("closed")) == (True, None)


def test_clocks_that_are_set(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, second = table.lead("1:2", expected=2), table.join()
    table.sit_all(leader, second)
    for jump in (1e6, -2e6):
        now = time.time() + jump
        monkeypatch.setattr(time, "time", lambda now=now: now)
        assert not any(member.is_next_called() for member in (leader, second))
        time.sleep(0.1)
        assert not any(member.is_next_called() for member in (leader, second))
        agree(table.sit_all(leader, second), [1, 1])


# ---- strangers: they reach the port, and do not have the secret


@pytest.fixture
def stranger(table: Table) -> TCPStore:
    """In the store of a meeting of two."""
    leader, second = table.lead("1:2", expected=2), table.join()
    table.sit_all(leader, second)
    return reach_store(leader.endpoint.address, leader.endpoint.port)


def test_a_wrong_secret(table: Table, stranger: TCPStore) -> None:
    endpoint = replace(table.meetings[0].endpoint, secret="guessed")
    with pytest.raises(EndpointLost, match=f":{endpoint.port} belongs to another run"):
        table.join(endpoint=endpoint)
    names = {name.partition("/")[2] for name in stranger.list_keys()}
    assert {"open", "round/1", "call/1"} < names
    assert not any(stranger.check([name]) for name in names), "they have a prefix nobody guesses"


@pytest.mark.parametrize("name", ["closed", "left/1", "call/2"])
def test_what_strangers_write_is_refused(table: Table, stranger: TCPStore, name: str) -> None:
    """Also by one who has read the names, which a store tells to everybody who asks."""
    prefix = stranger.list_keys()[0].partition("/")[0]
    for words in (b"", pickle.dumps(FINISHED), bytes(32) + b"true", b"x" * 100):
        stranger.set(f"{prefix}/{name}", words)  # type: ignore[arg-type]
        assert stranger.check([f"{prefix}/{name}"]), "it has arrived"
        with pytest.raises(LeaderLost, match=rf"without the run's secret wrote.*\({name}\)"):
            table.meetings[0].is_next_called()


def test_a_signature_is_good_for_one_name(table: Table, stranger: TCPStore) -> None:
    prefix = stranger.list_keys()[0].partition("/")[0]
    signed: Any = stranger.get(f"{prefix}/open")
    stranger.set(f"{prefix}/closed", signed)
    assert stranger.check([f"{prefix}/closed"]), "it has arrived"
    with pytest.raises(LeaderLost, match="without the run's secret"):
        table.meetings[1].is_next_called()


def test_a_leader_that_is_lost_before_it_answers_is_looked_for_again(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = table.lead("1:2", machine=machine_name())
    lost: list[str] = []

    class Cut(Rendezvous):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            if not lost:
                lost.append("once")
                raise LeaderLost("connection reset")
            super().__init__(*arguments, **more)

    class Led(RunFolder):
        def try_lock(self) -> bool:
            return False

    monkeypatch.setattr(elastic, "Rendezvous", Cut)
    (tmp_path / ENDPOINT_FILE).write_text(json.dumps(asdict(leader.endpoint)))
    machine = MachineOffer(workers=1, wait_seconds=10.0)
    joined = elastic.lead_or_join(Led(tmp_path), WorkerRange(least=1, most=2), machine, print)
    table.meetings.append(joined)
    assert lost
    assert not joined.leads


def test_who_answers_leads_also_where_there_are_no_locks(table: Table, tmp_path: Path) -> None:
    leader = table.lead("1:2", machine=machine_name())
    (tmp_path / ENDPOINT_FILE).write_text(json.dumps(asdict(leader.endpoint)))
    folder, machine = RunFolder(tmp_path), MachineOffer(workers=1, wait_seconds=10.0)
    joined = elastic.lead_or_join(folder, WorkerRange(least=1, most=2), machine, print)
    table.meetings.append(joined)
    assert not joined.leads
    assert not folder.holds_lock
    assert answers(leader.endpoint)
    assert not answers(replace(leader.endpoint, secret="another run's"))


def test_a_leader_whose_disk_is_full_leads_alone_until_it_has_room(
    table: Table, tmp_path: Path
) -> None:
    def full(self: Path, other: Path) -> None:
        raise OSError(28, "No space left on device")

    whole = pytest.MonkeyPatch()
    whole.setattr(Path, "replace", full)
    folder, machine = RunFolder(tmp_path), MachineOffer(workers=1, wait_seconds=10.0)
    leading = elastic.lead_or_join(folder, WorkerRange(least=1, most=2), machine, table.told.append)
    table.meetings.append(leading)
    assert leading.leads
    assert table.told == [
        f"{tmp_path / ENDPOINT_FILE} cannot be written (No space left on device): other "
        "machines cannot join until it can"
    ]
    until(lambda: sorted(path.name for path in tmp_path.iterdir()) == [LOCK])
    whole.undo()
    until((tmp_path / ENDPOINT_FILE).exists)
    assert read_endpoint(folder) == leading.endpoint
    assert len(table.told) == 1
    folder.unlock()


def test_the_way_to_another_machine() -> None:
    assert machines.address_towards(LOOPBACK) == LOOPBACK
    with pytest.raises(UserError, match=r"there is no way to no such machine .* --interface"):
        machines.address_towards("no such machine")


def test_where_one_who_joins_would_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reached by the others, though nobody has named an interface here."""
    monkeypatch.setattr(machines, "address_towards", lambda other: f"towards {other}")
    machine = MachineOffer(workers=1)
    endpoint = Endpoint(address=LOOPBACK, port=1, secret="", machine="")
    assert machine.reached_from(endpoint) == LOOPBACK
    far = replace(endpoint, address="192.0.2.7")
    assert machine.reached_from(far) == "towards 192.0.2.7"
    named = replace(machine, address="192.0.2.1", interface="eth0")
    assert named.reached_from(far) == "192.0.2.1"


def test_who_has_finished_waits_for_the_others(table: Table) -> None:
    """Not for ever, nor for a leader that is gone; its heartbeats go on meanwhile."""
    leader, second = table.lead("1:2", expected=2), table.join()
    table.sit_all(leader, second)
    began = time.monotonic()
    second.await_others(3.0)
    assert 3.0 <= time.monotonic() - began < 6.0
    assert not leader.is_next_called(), "it was heard of all the time"
    leader.await_others(20.0)
    assert time.monotonic() - began < 8.0, "all have finished"
    with closing(Wire(leader.endpoint.port)) as wire:
        cut_off = table.join(endpoint=replace(leader.endpoint, port=wire.port))
        cut_off.round = replace(leader.round, number=7)  # type: ignore[type-var]
        wire.is_cut.set()
        table.threads.submit(cut_off.await_others, 20.0).result(10)


def test_what_is_wanted_of_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path / "run")
    name = "a" * 32

    def written(status: str) -> bool:
        content: dict[str, Any] = {
            "id": name,
            "status": status,
            "config": {},
            "starts": [],
            "result": None,
        }
        monkeypatch.setattr(RunFolder, "read", lambda self: content)
        return leftovers.is_wanted(name, folder.path)

    assert not written("running"), "no such folder"
    folder.path.mkdir()
    (folder.path / "run.json").touch()
    assert written("running")
    assert written("interrupted")
    assert not written("finished")

    def stale(self: object) -> Any:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(RunFolder, "read", stale)
    assert leftovers.is_wanted(name, folder.path), "who knows"
    monkeypatch.setattr(Path, "is_file", stale)
    assert leftovers.is_wanted(name, folder.path), "who knows"


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
    monkeypatch.setattr(step_memory, "forget_strangers", lambda _: None)  # other tests'
    monkeypatch.setattr(RunFolder, "read", lambda self: {"status": status})
    folder = RunFolder(tmp_path)
    elastic.take_part(
        folder, print, (), WorkerRange(least=1, most=1), MachineOffer(workers=1),
        FaultTolerance(timeout_seconds=1.0, tell=told.append),
    )  # fmt: skip
    folder.unlock()
    assert len({endpoint.secret for endpoint in endpoints}) == 3
    assert told == ["the run's leader does not answer; opening the run again"] * 2
    assert not (tmp_path / ENDPOINT_FILE).exists()


def test_two_who_come_to_lead_where_locks_are_not_seen(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elastic, "SETTLE_SECONDS", 0.5)
    folders = [RunFolder(tmp_path) for _ in range(2)]
    both = threading.Barrier(2)
    for folder in folders:
        monkeypatch.setattr(folder, "try_lock", lambda: both.wait(20) >= 0)
    machine = MachineOffer(workers=1, address="127.0.0.2", wait_seconds=20.0)

    def meet(folder: RunFolder) -> Rendezvous:
        worker_range = WorkerRange(least=1, most=2)
        return elastic.lead_or_join(folder, worker_range, machine, table.told.append)

    met = [meeting.result(30) for meeting in [table.threads.submit(meet, f) for f in folders]]
    table.meetings += met
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
    monkeypatch.setattr(elastic, "REACH_SECONDS", 2.0)
    monkeypatch.setattr(signed_store, "STORE_SECONDS", 1.0)
    monkeypatch.setattr(step_memory, "forget_strangers", lambda _: None)  # other tests'
    recipe = Path(__file__).parents[2] / "parity" / "tiny_recipe.py"
    out = tmp_path / "run"
    train(Request(recipe=str(recipe), num_workers=1, steps=1, out=out))
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
    assert 2 < time.monotonic() - began < 20
    *_, last = capfd.readouterr().err.splitlines()
    assert re.match(
        rf"samepath: the leader of the run in {out} could not be reached for 2 s: no answer "
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
    monkeypatch.setattr(step_memory, "forget_strangers", lambda _: None)
    monkeypatch.setattr(RunFolder, "read", lambda self: {"status": "running"})
    elastic.take_part(
        RunFolder(tmp_path), print, (), WorkerRange(least=1, most=1), MachineOffer(workers=1),
        FaultTolerance(timeout_seconds=1.0, tell=lambda text: None),
    )  # fmt: skip
    assert limits == [elastic.REACH_SECONDS, 86400.0, 86400.0]


def test_who_may_leave_a_run_behind(table: Table) -> None:
    leader, second = table.lead("1:4", expected=2), table.join(2)
    table.sit_all(leader, second)
    assert second.goes_on_without_us()
    second.worker_range = WorkerRange(least=2, most=4)
    assert not second.goes_on_without_us()
