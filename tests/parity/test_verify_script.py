"""`samepath verify script.py`: what is the same passes, what is not is named."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from commands import error_line

from samepath.cli import main
from samepath.engine.launch.launch import launch
from samepath.engine.verify import script, script_trace
from samepath.engine.verify.script import ScriptRequest, ScriptVerdict, verify_script
from samepath.engine.verify.what import is_script
from samepath.errors import UserError, WorkerFailed

LOOP = """
import os, sys
import torch
import torch.nn.functional as F
from torch import nn
import samepath

session = samepath.start(seed=0)
worker, num_workers = session.worker, session.num_workers
made = torch.Generator().manual_seed(1)
data = torch.randn(40, 6, generator=made), torch.randint(0, 3, (40,), generator=made)
{model}
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def loss(model, batch):
    {loss}
    return F.cross_entropy(model(batch[0]), batch[1])

trainer = session.prepare(model, optimizer, loss, batch_size=12, grain_size=2)
trainer.resume("checkpoints")
for epoch in range(2):
    for batch in trainer.batches(data, epoch):
        result = trainer.step(batch)
        {after_step}
    session.print(epoch, trainer.evaluate(data)["loss"])
    trainer.save("checkpoints")
{end}
"""
MODEL = "model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 3))"


def write(folder: Path, **parts: str) -> str:
    path = folder / "loop.py"
    path.write_text(
        LOOP.format(**{"model": MODEL, "loss": "pass", "after_step": "pass", "end": ""} | parts)
    )
    return str(path)


def _traced(command: list[str]) -> None:
    sys.argv = command[2:]
    script_trace._main()


@pytest.fixture(autouse=True)
def forked_scripts(fork_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts are run in processes of the launcher's fork server, without seconds of imports."""

    def start(command: Sequence[str], num_workers: int) -> None:
        launch(_traced, (list(command),), num_workers)

    monkeypatch.setattr(script, "_start", start)


def verify(path: str, *counts: int, **more: Any) -> ScriptVerdict:
    return verify_script(ScriptRequest(script=path, counts=counts or (1, 2), **more))


def test_a_script_that_keeps_the_promise(tmp_path: Path) -> None:
    """At every count it begins without the checkpoints of the one before; what changes from run to
    run by itself is said, and no difference. It gets its arguments and files."""
    (tmp_path / "data.txt").write_text("17")
    end = 'print(open("data.txt").read(), sys.argv[1:]); session.print(os.getpid())'
    end += '\nif session.is_first: open("note.txt", "w").write(trainer.digest())'
    path = write(tmp_path, end=end)
    verdict = verify(path, 1, 2, 3, arguments=["--epochs", "2"], links=[str(tmp_path / "data.txt")])
    assert verdict.equal
    assert verdict.unsteady == ["printed line 4"]
    assert [run.num_workers for run in verdict.runs] == [1, 2, 3]
    for run in verdict.runs:
        assert run.steps == [8]
        assert run.num_lines == 4
        assert run.num_files == 1 + 2 * 2
        assert run.digests == verdict.runs[0].digests
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.txt", "loop.py"]


BROKEN = {
    "weights": (
        {"model": f"torch.manual_seed(num_workers); {MODEL}"},
        "prepare",
        "initial weights",
    ),
    "loss": ({"loss": "if num_workers > 1: batch[0].mul_(1.5)"}, "step", "loss"),
    "between": (
        {"after_step": "if num_workers == 2: model[0].weight.data += 1e-3"},
        "begin",
        "between steps",
    ),
    "flow": ({"after_step": "if num_workers == 2: break"}, "begin", "control flow"),
    "print": ({"end": "session.print(num_workers)"}, "printed", "output"),
    "file": ({"end": 'open("note.txt", "w").write(f"{num_workers}")'}, "written", "files"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_differs_is_named(case: str, tmp_path: Path) -> None:
    parts, kind, where = BROKEN[case]
    verdict = verify(write(tmp_path, **parts))
    difference = verdict.difference
    assert difference is not None
    assert not verdict.equal
    assert [run.parts for run in verdict.runs] == [False, True]
    assert (difference.kind, difference.cause.where) == (kind, where)
    if case == "loss":
        assert (difference.step, difference.trainer) == (1, 0)
        assert difference.values is not None
    if case == "between":
        assert (difference.step, difference.name) == (1, "model/0.weight")


def test_the_command_says_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, after_step=BROKEN["between"][0]["after_step"])
    assert exit_code("verify", path, "-n", "1,2") == 1
    said = capfd.readouterr().out
    assert "1 worker and 2 workers part at trainer 0, before step 2." in said
    assert "likely cause  what the script does to the model" in said
    assert exit_code("verify", write(tmp_path), "-n", "1,2", "--json") == 0
    assert json.loads(capfd.readouterr().out)["equal"] is True


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    return int(ended.value.code or 0)


def test_bad_input(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    neither = tmp_path / "neither.py"
    neither.write_text("print('hello')")
    good = write(tmp_path)
    for arguments, words in (
        ([str(neither)], "has neither a recipe() nor a call of samepath.start()"),
        ([good, "--grain", "3"], "--grain is for recipes"),
        ([good, "-n", "2"], "one run has nothing to agree with"),
        ([good, "--link", str(tmp_path / "nothing")], "there is no such file or folder"),
        (["digits", "--", "--epochs"], "only a script takes that, and digits is a recipe"),
    ):
        assert exit_code("verify", *arguments) == 2
        assert words in error_line(capfd.readouterr().err)


def test_a_script_that_fails(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match=r"loop.py on 2 workers: worker \d failed:(.|\n)*oh no"):
        verify(write(tmp_path, end="assert num_workers == 1, 'oh no'"))
    with pytest.raises(WorkerFailed, match="--link PATH puts a file or folder there"):
        verify(write(tmp_path, model=f"open('data.txt'); {MODEL}"))
    path = Path(write(tmp_path))
    path.write_text(path.read_text().replace("batch_size=12", "batch_size=4"))
    with pytest.raises(UserError, match=r"loop.py on 3 workers: 3 workers, but a batch of 4 in"):
        verify(str(path), 1, 3)
    path.write_text(path.read_text().replace("range(2)", "range(0)"))
    with pytest.raises(UserError, match="took no step with a trainer"):
        verify(str(path))


def test_recipes_are_told_from_scripts(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    assert is_script(str(root / "examples" / "own_loop.py"))
    assert not is_script(str(root / "examples" / "broken_recipe.py"))
    assert not is_script("digits")


def test_in_processes_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As people run it: a fresh interpreter at one worker, the launcher's at two."""
    monkeypatch.undo()
    assert verify(write(tmp_path)).equal
