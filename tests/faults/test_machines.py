"""Machines come, leave and die while a run is under way: the run goes on, on the same path.

The machines are launchers on this host that see one folder; workers, meetings and what is kept in
memory are real.
"""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
from braked_runs import RECIPE, Braked, undisturbed
from commands import error_line
from elastic_runs import lines

from samepath.cli import main
from samepath.engine.train import Request, train

LIMIT_SECONDS = 600


def test_machines_come_and_go(run: Braked) -> None:
    first = run.train("-n", "2:3", "--here", "1", "--checkpoint-steps", "2")
    first.await_words(r"waiting for at least 2 workers \(1 there on 1 machine\(s\)\)")
    second = run.join("--here", "2")
    run.await_workers(3, first, second)
    second.await_words(r"joining the run of \S+ in \S+ with up to 2 workers")
    second.await_words(
        r"this machine joined with 2 workers; the run has 3 workers on 2 machines \("
    )
    first.await_words(
        r"the run has 3 workers on 2 machines \(this machine 1, \S+ \(process \d+\) 2"
    )
    os.kill(second.workers()[0], signal.SIGKILL)
    second.await_words(r"worker \d was ended by SIGKILL .*going on from the last completed step")
    run.await_workers(3, first, second)

    there = run.workers()
    third, fourth = run.join("--here", "1"), run.join("--here", "1")
    for spare in (third, fourth):
        spare.await_words(r"waiting for a free place: the run is full \(3 workers\)")
    run.await_steps()
    assert run.workers() == there, "those who find no place disturb nobody"
    second.send(signal.SIGTERM)
    assert second.exit_code() == 143
    assert "this machine has left the run" in second.words()
    fifth = run.join("--here", "1")
    run.await_workers(3, first, third, fourth)
    first.await_words(r"joined with 1 worker, \S+ \(process \d+\) left; the run has 3 workers")

    third.kill()
    run.await_workers(3, first, fourth, fifth)
    first.kill()  # the leader
    run.await_workers(2, fourth, fifth)
    leader, other = (fourth, fifth) if fourth.leads() else (fifth, fourth)
    assert not other.leads()
    assert "the machine that led the run is gone; looking for another" in other.words()
    run.await_steps()

    broken = run.join("--here", "1", BROKEN="yes")
    assert broken.exit_code() == 1, "it ends nobody else's run"
    assert "RuntimeError: the scanner is on fire" in broken.words()
    last = run.join("--here", "2")
    run.await_workers(3, leader, other, last)

    # those who leave while the disk is full: what they have done is in the memory of the others
    run.await_steps(3)
    (run.folder / "full").touch()
    run.await_steps(3)
    step = lines(run.out)[-1]["step"]
    for leaving, num_left, staying in ((other, 3, (leader, last)), (leader, 2, (last,))):
        leaving.send(signal.SIGTERM)
        assert leaving.exit_code() == 143
        run.await_workers(num_left, *staying)
        run.await_steps()
        assert lines(run.out)[-1]["step"] > step
        step = lines(run.out)[-1]["step"]
    (run.folder / "full").unlink()
    run.let_go()
    assert last.outcome() == undisturbed(run.folder)
    said = "".join(machine.words() for machine in run.started)
    assert re.search(r"could not be saved .*\(No space left on device\)", said)
    assert "SIGINT" not in said, "those who stay were not told to stop"
    assert json.loads((run.out / "run.json").read_text())["status"] == "finished"
    assert not (run.out / "meeting.json").exists()


def test_nothing_to_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("BRAKE_FOLDER", raising=False)
    train(Request(recipe=str(RECIPE), num_workers=1, steps=1, out=tmp_path / "fixed"))
    content = json.loads((tmp_path / "fixed" / "run.json").read_text())
    content["starts"][-1]["crew"] = [1, 4]
    (tmp_path / "finished").mkdir()
    (tmp_path / "finished" / "run.json").write_text(json.dumps(content))
    for name, words in (
        ("fixed", r"cannot be joined: it has a fixed number of workers \(start it with -n MIN:MAX"),
        ("finished", r"is not under way \(finished\)"),
        (".", r"holds no run \(there is no run.json\); check the path"),
        ("nowhere", r"holds no run \(there is no run.json\); check the path"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["join", str(tmp_path / name)])
        said = capfd.readouterr()
        assert (ended.value.code, said.out) == (2, "")
        assert re.search(words, error_line(said.err))
