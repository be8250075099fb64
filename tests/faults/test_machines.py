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
from braked_runs import EPOCHS, RECIPE, Braked, Outcome, undisturbed
from elastic_runs import lines

from samepath.cli import main
from samepath.engine.train import Request, train

LIMIT_SECONDS = 600


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return undisturbed(tmp_path_factory.mktemp("alone"))


def test_one_joins_from_another_folder(run: Braked, expected: Outcome) -> None:
    """The recipe's path was typed relative to where the run was started."""
    first = run.start(
        "train", RECIPE.name, "--epochs", str(EPOCHS), "--out", run.out, "-n", "1:2", "--here", "1",
        before=["env", "-C", str(RECIPE.parent)],
    )  # fmt: skip
    second = run.join("--here", "1", before=["env", "-C", "/"])
    run.await_workers(2, first, second)
    run.let_go()
    assert first.outcome() == expected


def test_machines_come_and_go(run: Braked, expected: Outcome) -> None:
    first = run.train("-n", "2:3", "--here", "1")
    first.await_words(r"waiting for at least 2 workers \(1 there on 1 machine\(s\)\)")
    second = run.join("--here", "2")
    run.await_workers(3, first, second)
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

    third.kill()
    run.await_workers(3, first, fourth, fifth)
    first.kill()  # the leader
    run.await_workers(2, fourth, fifth)
    leader, other = (fourth, fifth) if fourth.leads() else (fifth, fourth)
    assert not other.leads()
    assert "the machine that led the run is gone; looking for another" in other.words()
    run.await_steps()

    last = run.join("--here", "2")
    run.await_workers(3, leader, other, last)
    leader.send(signal.SIGTERM)
    assert leader.exit_code() == 143
    run.await_steps()
    run.let_go()
    for machine in (other, last):
        assert machine.outcome() == expected
    said = "".join(machine.words() for machine in run.started)
    assert "SIGINT" not in said, "those who stay were not told to stop"
    assert json.loads((run.out / "run.json").read_text())["status"] == "finished"
    assert not (run.out / "meeting.json").exists()


def test_machines_leave_while_the_disk_is_full(run: Braked, expected: Outcome) -> None:
    """What they have done is in the memory of those who stay."""
    first = run.train("-n", "1:3", "--here", "1", "--checkpoint-steps", "2")
    second, third = run.join("--here", "1"), run.join("--here", "1")
    run.await_workers(3, first, second, third)
    run.await_steps(4)
    (run.folder / "full").touch()
    run.await_steps(3)
    step = lines(run.out)[-1]["step"]
    for leaving, staying in ((second, (first, third)), (first, (third,))):
        leaving.send(signal.SIGTERM)
        assert leaving.exit_code() == 143
        run.await_workers(len(staying), *staying)
        run.await_steps()
        assert lines(run.out)[-1]["step"] > step
        step = lines(run.out)[-1]["step"]
    (run.folder / "full").unlink()
    run.let_go()
    assert third.outcome() == expected
    assert "could not be saved" in first.words()
    assert "(No space left on device)" in first.words()


def test_a_machine_that_cannot_work_ends_nobody_elses_run(run: Braked, expected: Outcome) -> None:
    first = run.train("-n", "1:3", "--here", "1")
    run.await_workers(1, first)
    broken = run.join("--here", "1", BROKEN="yes")
    assert broken.exit_code() == 1
    assert "RuntimeError: the scanner is on fire" in broken.words()
    run.await_workers(1, first)
    run.await_steps()
    run.let_go()
    assert first.outcome() == expected


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
        assert len(said.err.splitlines()) == 1
        assert re.search(words, said.err)
