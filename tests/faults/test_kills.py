"""Workers that are killed anywhere, or raise: the run ends as the one that nothing happened to."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from elastic_runs import (
    GOES_ON,
    Steps,
    elastic,
    harm,
    harmful,
    harms_done,
    left_behind,
    lines,
    meanwhile,
    num_lines,
    start,
    steps_begun,
    steps_repeated,
    until,
    workers_of,
)

from samepath.engine.elastic.ring import MEMORY
from samepath.engine.run.request import Request
from samepath.engine.state.checkpoint import list_checkpoints
from samepath.engine.train import train
from samepath.errors import UserError, WorkerFailed

LIMIT_SECONDS = 300
EPOCHS = 6
STEPS = 5 * EPOCHS

WHERE_WORKERS_MEET = ("forward", "backward", "reduction", "optimizer", "evaluation")
ON_WORKER_0 = (
    "metrics",
    "checkpoint, tensors",
    "checkpoint, text",
    "checkpoint, renamed",
    "keep",
    "kept",
    "run.json",
)


# ---- killed by themselves, at a chosen place


@pytest.mark.parametrize(("link", "workers"), [("auto", 2), ("network", 3)])
def test_in_every_phase(
    link: str,
    workers: int,
    unhurt: tuple[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One run, in which everybody is killed everywhere, one after another."""
    places = [(phase, worker) for phase in WHERE_WORKERS_MEET for worker in (0, workers - 1)]
    if link == "auto":
        places += [(phase, 0) for phase in ON_WORKER_0]
    harms = [harm(phase, worker, step) for step, (phase, worker) in enumerate(places)]
    for number, phase in enumerate(["recipe", "model", "joined", "recovered"]):
        harms += [harm(phase, number % workers), harm(phase, (number + 1) % workers, 5 + number)]
    harms.append(harm("result", 0) if link == "auto" else harm("end", workers - 1))
    recipe, out = harmful(tmp_path, *harms, link=link, epochs=EPOCHS), tmp_path / "run"
    result = elastic(recipe, out, workers, checkpoint_steps=1)
    assert harms_done(recipe) == len(harms)
    assert (result.digest, lines(out)) == unhurt
    assert (result.steps, result.num_workers) == (STEPS, workers)
    restarts = capsys.readouterr().err.count(GOES_ON)
    assert len(harms) / 2 < restarts <= len(harms)  # two may happen at once
    assert steps_repeated(recipe) <= restarts
    assert left_behind(out) == []


@pytest.mark.parametrize("worker", [0, 1])
def test_at_the_ends_of_epochs(
    worker: int, unhurt: tuple[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such a step changes more than an update does. The other worker is further when it happens:
    it may have kept its share and noted the step, or wait for this one's. The last two are killed
    in one step: what the first left of it is there when the second dies."""
    phases = ["before writing", "partly written", "taken back", "written", "evaluation"]
    harms = [
        harm(phase, worker, 5 * epoch + 4, "late SIGKILL") for epoch, phase in enumerate(phases)
    ]
    harms.append(harm("before writing", worker, 5 * len(phases) - 1, "late SIGKILL"))
    recipe, out = harmful(tmp_path, *harms, epochs=EPOCHS), tmp_path / "run"
    result = elastic(recipe, out, 2)
    assert (result.digest, lines(out)) == unhurt
    assert harms_done(recipe) == len(harms)
    assert capsys.readouterr().err.count(GOES_ON) == len(harms)
    assert steps_repeated(recipe) <= len(harms)
    assert left_behind(out) == []


@pytest.mark.parametrize("phase", ["recipe", "model", "joined", "recovered"])
def test_at_the_start_nobody_else_is_blamed(
    phase: str, unhurt: tuple[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others lose it while they connect, or while they are sent something."""
    recipe = harmful(tmp_path, harm(phase, 1, times=3), link="network", epochs=EPOCHS)
    result = elastic(recipe, tmp_path / "run", 3)
    assert (result.digest, lines(tmp_path / "run")) == unhurt
    assert result.num_workers == 3
    said = capsys.readouterr().err.splitlines()
    assert len(said) == harms_done(recipe) == 3
    assert all("worker 1 was ended by SIGKILL" in line for line in said)


# ---- killed from outside


def test_several_at_once(
    unhurt: tuple[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of three in one second, one right after a restart, then all: memory is enough."""
    pause = harm("forward", 0, 13, "linger 60")  # until all are killed, of whom it is one
    recipe = harmful(tmp_path, pause, slow_seconds=0.03, epochs=EPOCHS)
    out = tmp_path / "run"

    def workers() -> list[int]:
        return workers_of(os.getpid())

    def kill(*victims: int) -> None:
        for victim in victims:
            os.kill(victim, signal.SIGKILL)

    def harm_them() -> None:
        until(lambda: num_lines(out) > 3)
        kill(*workers()[:2])
        until(lambda: max(steps_begun(recipe)) > 7)
        before = workers()
        kill(before[2])
        until(lambda: len(set(workers()) - set(before)) == 3)
        time.sleep(0.1)
        kill(workers()[0])
        until(lambda: harms_done(recipe) == 1)
        kill(*workers())

    with meanwhile(harm_them):
        result = elastic(recipe, out, 3)
    assert (result.digest, lines(out)) == unhurt
    restarts = capsys.readouterr().err.count(GOES_ON)
    assert 4 <= restarts <= 6
    assert steps_repeated(recipe) <= restarts
    assert [path.name for path in list_checkpoints(out / "checkpoints")] == ["step-00000030"]
    assert left_behind(out) == []


@pytest.fixture(scope="module")
def launcher_killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A recipe and its run, of which nobody lives; 10 steps were complete, 8 are saved."""
    folder = tmp_path_factory.mktemp("killed")
    recipe = harmful(folder, harm("forward", 0, 10, "linger 60"), epochs=EPOCHS)
    out = folder / "run"
    run = start(
        "train", recipe, "-n", "1:4", "--here", "2", "--checkpoint-steps", "4", "--out", out
    )
    until(lambda: harms_done(recipe) == 1, run)
    workers = workers_of(run.pid)
    assert len(workers) == 2
    run.kill()
    until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
    run.communicate()
    for file in memory_of(out):
        shutil.move(file, folder)
    return recipe, out


def memory_of(out: Path) -> list[Path]:
    name = json.loads((out / "run.json").read_text())["id"]
    return list(MEMORY.glob(f"samepath-*/{name}.*"))


@pytest.mark.parametrize(
    ("workers", "memory", "moved"),
    [
        (3, True, False),
        (1, True, False),
        (2, False, False),
        # any other run that begins would take what is of a folder that is gone for nobody's
        pytest.param(2, True, True, marks=pytest.mark.alone),
    ],
)
def test_the_launcher_too(
    workers: int,
    memory: bool,
    moved: bool,
    launcher_killed: tuple[Path, Path],
    unhurt: tuple[str, Any],
    tmp_path: Path,
) -> None:
    """With what is in memory no step is lost, also if the folder is elsewhere now; without it,
    those since the checkpoint."""
    recipe, before = launcher_killed
    out = shutil.copytree(before, tmp_path / "run")
    if moved:
        shutil.rmtree(before)
    kept = [file for file in recipe.parent.iterdir() if file.name.count(".") == 3]
    assert len(kept) == 6  # each worker's part, whole and changes, and its notes
    for file in kept if memory else ():
        part = Path(shutil.copy(file, MEMORY))  # half a file belongs to no run, and goes
        part.replace(MEMORY / f"samepath-{os.getuid()}" / file.name)
    if workers == 1:
        request = Request(recipe=str(recipe), num_workers=1, out=out, resume=True, watch=Steps)
        result, _ = train(request)
        steps = Steps.taken
    else:
        recipe.with_name("steps.txt").unlink(missing_ok=True)
        result = elastic(recipe, out, workers, resume=True)
        steps = steps_begun(recipe)
    assert (result.digest, lines(out)) == unhurt
    assert steps == list(range(10 if memory else 8, STEPS))
    assert left_behind(out) == []


def edit_and_kill(out: Path, file: Path, text: str) -> None:
    """A worker begins anew, of a recipe in which something has changed."""
    until(lambda: num_lines(out) > 3)
    file.write_text(text)
    os.kill(workers_of(os.getpid())[1], signal.SIGKILL)


def test_a_recipe_that_is_edited_meanwhile(unhurt: tuple[str, Any], tmp_path: Path) -> None:
    """For the next run: this one goes on with what it began with."""
    recipe, out = harmful(tmp_path, slow_seconds=0.03, epochs=EPOCHS), tmp_path / "run"
    with meanwhile(lambda: edit_and_kill(out, recipe, "def recipe(: half a file")):
        result = elastic(recipe, out, 2)
    assert (result.digest, lines(out)) == unhurt


def test_a_module_that_is_edited_meanwhile(
    unhurt: tuple[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run would go on with other code, of which nothing would tell. Put back as it was, it goes
    on."""
    helper = harmful(tmp_path, slow_seconds=0.03, epochs=EPOCHS)
    recipe, out = tmp_path / "mine.py", tmp_path / "run"
    recipe.write_text("from killing_recipe import recipe\n")
    before = helper.read_text()
    with meanwhile(lambda: edit_and_kill(out, helper, before + "# another\n")):
        refusal = r"^killing_recipe.py has changed since the run began; put it back as it was$"
        with pytest.raises(UserError, match=refusal):
            elastic(recipe, out, 2)
    assert GOES_ON in capsys.readouterr().err
    assert json.loads((out / "run.json").read_text())["status"] == "failed"
    helper.write_text(before)
    assert (elastic(recipe, out, 2, resume=True).digest, lines(out)) == unhurt


@pytest.mark.parametrize("phase", ["result", "end"])
def test_when_all_is_on_disk(
    phase: str, unhurt: tuple[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody is waited for, though there are too few to go on."""
    recipe, out = harmful(tmp_path, harm(phase, 0), epochs=EPOCHS), tmp_path / "run"
    result = elastic(recipe, out, 2, least=2)
    assert (result.digest, lines(out)) == unhurt
    assert harms_done(recipe) == 1
    assert capsys.readouterr().err == ""
    assert left_behind(out) == []


def test_before_a_stuck_run_has_said_so(tmp_path: Path) -> None:
    """It is stuck when it comes back, and trains no further."""
    asked: dict[str, Any] = {"epochs": 12, "patience": 2, "learning_rate": 1e-6}
    alone = harmful(tmp_path / "alone")
    request = Request(recipe=str(alone), num_workers=1, **asked, out=tmp_path / "unhurt")
    unhurt, _ = train(request)
    assert unhurt.status == "stuck"
    recipe = harmful(tmp_path, harm("run.json", 0, unhurt.steps - 1))
    result = elastic(recipe, tmp_path / "run", 2, **asked)
    assert harms_done(recipe) == 1
    assert (result.digest, result.status, result.steps) == (unhurt.digest, "stuck", unhurt.steps)
    assert lines(tmp_path / "run") == lines(tmp_path / "unhurt")


# ---- raising


def test_one_that_calls_exit_is_left_out(
    unhurt: tuple[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = harmful(tmp_path, harm("forward", 1, 3, "exit", times=9), epochs=EPOCHS)
    result = elastic(recipe, tmp_path / "run", 2)
    assert (result.digest, lines(tmp_path / "run")) == unhurt
    assert result.num_workers == 1
    assert capsys.readouterr().err.count("worker 1 raised SystemExit: 0") == 2


@pytest.mark.parametrize("link", ["auto", "network"])
def test_one_that_raises_once_stays_and_again_and_again_is_left_out(
    link: str, unhurt: tuple[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    once, ever = harm("forward", 2, 3, "raise"), harm("backward", 1, 8, "raise", times=9)
    recipe, out = harmful(tmp_path, once, ever, link=link, epochs=EPOCHS), tmp_path / "run"
    result = elastic(recipe, out, 3)
    assert (result.digest, lines(out)) == unhurt
    assert result.num_workers == 2
    assert harms_done(recipe) == 1 + 2
    said = capsys.readouterr().err.splitlines()
    fire = f"raised RuntimeError: the scanner is on fire; {GOES_ON}"
    assert said == [
        f"samepath: worker 2 {fire}",
        f"samepath: worker 1 {fire}",
        f"samepath: worker 1 {fire}",
        "samepath: going on without it: 2 left on this machine",
    ]
    assert steps_repeated(recipe) <= 3


@pytest.mark.parametrize("who", ["everybody", "one that cannot be spared"])
def test_what_always_raises_ends_the_run(who: str, tmp_path: Path) -> None:
    worker = None if who == "everybody" else 1
    recipe = harmful(tmp_path, harm("forward", worker, 3, "raise", times=99), epochs=EPOCHS)
    with pytest.raises(WorkerFailed) as failed:
        elastic(recipe, tmp_path / "run", 2, least=1 if worker is None else 2)
    assert failed.value.exit_code == 1
    assert str(failed.value).endswith("RuntimeError: the scanner is on fire")
    assert "killing_recipe.py" in str(failed.value)
    assert 3 <= harms_done(recipe) <= 6
    assert steps_begun(recipe)[-1] == 3
    assert workers_of(os.getpid()) == []


def test_what_a_person_can_change_ends_it_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = harmful(tmp_path, harm("forward", 1, 3, "misuse"), epochs=EPOCHS)
    with pytest.raises(UserError, match="the scanner needs coal; add coal"):
        elastic(recipe, tmp_path / "run", 2)
    assert GOES_ON not in capsys.readouterr().err
    assert workers_of(os.getpid()) == []
