"""Where machines meet: shares, rounds, places, silence, the end; and who is believed."""

from __future__ import annotations

import pickle
import socket
import time
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meetings import Table, Wire, until
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from samepath.console import WaitedTooLong
from samepath.engine.comm.environment import LOOPBACK
from samepath.engine.comm.network import open_store
from samepath.engine.elastic import machine as machines
from samepath.engine.elastic.machine import MachineOffer, WorkerRange
from samepath.engine.elastic.rendezvous import (
    FINISHED,
    RendezvousClosed,
    RendezvousRound,
    allot_workers,
    change_words,
)
from samepath.engine.elastic.signed_store import Endpoint, LeaderLost, SignedStore, reach_store
from samepath.errors import UserError

pytestmark = pytest.mark.usefixtures("quick")


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


def seen_from(rank: int, **machines: int) -> RendezvousRound:
    """A round as the machine of this rank sees it."""
    first = sum(list(machines.values())[:rank])
    return RendezvousRound(
        number=1,
        rank=rank,
        num_machines=len(machines),
        first=first,
        here=list(machines.values())[rank],
        num_workers=sum(machines.values()),
        machines=tuple(machines.items()),
    )


def test_all_machines_say_who_joined_and_left() -> None:
    alone, both = seen_from(0, a=2), seen_from(0, a=2, b=1)
    assert change_words(None, alone) == ""
    began = "the run has 3 workers on 2 machines (this machine 2, b 1)"
    assert change_words(None, both) == began, "a leader that had waited for others"
    assert change_words(alone, both) == (
        "b joined with 1 worker; the run has 3 workers on 2 machines (this machine 2, b 1)"
    )
    assert change_words(None, seen_from(1, a=2, b=1)) == (
        "this machine joined with 1 worker; the run has 3 workers on 2 machines (a 2, "
        "this machine 1)"
    )
    assert change_words(both, both) == "", "a worker failed, and is back"
    assert change_words(both, alone) == (
        "b left; the run has 2 workers on 1 machine (this machine 2)"
    )


def test_a_round_names_its_machines(table: Table) -> None:
    (round_,) = table.sit_all(table.lead("1:4", 2))
    ((name, workers),) = round_.machines
    assert workers == 2
    assert name.startswith(f"{socket.gethostname()} (process ")


@pytest.mark.parametrize("counted", [True, False])
def test_one_who_fails_calls_everybody(counted: bool, table: Table) -> None:
    """Also where the leader has announced the round, and counts it a moment later."""
    leader, second = table.lead("1:4", expected=2), table.join()
    agree(table.sit_all(leader, second), [1, 1])
    if not counted:
        leader._store.add("rounds", -1)
    again = table.sit(second)
    until(leader.is_next_called)
    rounds = [table.sit(leader).result(20), again.result(20)]
    agree(rounds, [1, 1])
    assert rounds[0].number == 2


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
    leader = table.lead("3:4", wait_seconds=1.0)
    with pytest.raises(WaitedTooLong, match=r"waited 1 s for at least 3 workers \(1 the"):
        table.sit(leader).result(20)
    assert table.told == ["waiting for at least 3 workers (1 there on 1 machine(s))"]


def test_the_end(table: Table) -> None:
    leader, second = table.lead("1:2", expected=2), table.join()
    table.sit_all(leader, second)
    assert not second.is_next_called()
    assert second.goes_on_without_us()
    second.worker_range = WorkerRange(least=2, most=2)
    assert not second.goes_on_without_us()
    leader.close(FINISHED)
    with pytest.raises(RendezvousClosed, match=FINISHED):
        second.is_next_called()
    with pytest.raises(RendezvousClosed, match=FINISHED):
        table.join().next_round()


def test_the_leader_is_gone(table: Table) -> None:
    """Its store is in another process, which is killed; the members find out by themselves."""
    store, port = open_store(LOOPBACK)
    signed = SignedStore(store, "words")
    signed.set("open", True)
    table.lead("1:2")
    endpoint = Endpoint(address=LOOPBACK, port=port, secret="words", machine="")
    waits = table.sit(table.join(endpoint=endpoint))
    time.sleep(0.2)
    assert not waits.done()
    del store, signed
    with pytest.raises(LeaderLost, match="the run's leader does not answer"):
        waits.result(5)
    with pytest.raises(LeaderLost, match=f"no answer at 127.0.0.1:{port}"):
        reach_store(LOOPBACK, port)


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
        with pytest.raises(LeaderLost, match="no answer at"):
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


def test_who_has_finished_waits_for_the_others(table: Table) -> None:
    """Not for ever, nor for a leader that is gone; its heartbeats go on meanwhile."""
    leader, second = table.lead("1:2", expected=2), table.join()
    table.sit_all(leader, second)
    began = time.monotonic()
    second.await_others(1.5)
    assert 1.5 <= time.monotonic() - began < 5.0
    assert not leader.is_next_called(), "it was heard of all the time"
    leader.await_others(20.0)
    assert time.monotonic() - began < 8.0, "all have finished"
    with closing(Wire(leader.endpoint.port)) as wire:
        cut_off = table.join(endpoint=replace(leader.endpoint, port=wire.port))
        cut_off.round = replace(leader.round, number=7)  # type: ignore[type-var]
        wire.is_cut.set()
        table.threads.submit(cut_off.await_others, 20.0).result(10)


# ---- strangers: they reach the port, and do not have the secret


@pytest.fixture
def stranger(table: Table) -> TCPStore:
    """In the store of a meeting of two."""
    leader, second = table.lead("1:2", expected=2), table.join()
    table.sit_all(leader, second)
    return reach_store(leader.endpoint.address, leader.endpoint.port)


def test_a_wrong_secret(table: Table, stranger: TCPStore) -> None:
    endpoint = replace(table.meetings[0].endpoint, secret="guessed")
    with pytest.raises(LeaderLost, match=f":{endpoint.port} belongs to another run"):
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


# ---- what a machine brings


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
