"""A worker that raises or dies ends the run within seconds, by name; nothing ever hangs.

Three real workers; worker 1 fails in its third step.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from samepath.engine.train import Request, train
from samepath.errors import WorkerFailed

LIMIT_SECONDS = 180  # far below the minutes that a collective would wait
RECIPE = """
import os, signal
import torch
import torch.nn.functional as F
from torch import nn
from samepath import Recipe

FAIL, LINK = "{FAIL}", "{LINK}"
launched = "RANK" in os.environ
calls = 0
if launched:
    os.environ["SAMEPATH_LINK"] = LINK

def loss(model, batch):
    global calls
    calls += 1
    # one grain before the first step, to compare workers; then two a step
    if launched and calls == 6 and os.environ["RANK"] == "1":
        if FAIL == "raise":
            raise RuntimeError("the scanner is on fire")
        if FAIL == "exit":
            os._exit(7)
        os.kill(os.getpid(), getattr(signal, FAIL))
    return F.mse_loss(model(batch[0]), batch[1])

def recipe():
    return Recipe(
        model=lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 2)),
        train=(torch.arange(96.0).view(24, 4) / 96, torch.zeros(24, 2)),
        loss=loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        batch_size=12,
        grain_size=2,
        epochs=5,
    )
"""


def write(folder: Path, fail: str, link: str = "auto") -> str:
    file = folder / "mine.py"
    file.write_text(RECIPE.replace("{FAIL}", fail).replace("{LINK}", link))
    return str(file)


def check_resume(recipe: str, out: Path) -> None:
    """What was saved before the fault is good, and goes on as if nothing had happened."""
    assert json.loads((out / "run.json").read_text())["status"] == "failed"
    saved = [path.name for path in (out / "checkpoints").iterdir()]
    assert sorted(saved) == ["step-00000001", "step-00000002"]
    resumed, _ = train(Request(recipe=recipe, num_workers=1, out=out, resume=True))
    straight, _ = train(Request(recipe=recipe, num_workers=1, out=out.with_name("straight")))
    assert resumed.steps == straight.steps == 10
    assert resumed.digest == straight.digest


@pytest.mark.parametrize("link", ["auto", "network"])
@pytest.mark.parametrize("fail", ["raise", "SIGKILL", "exit"])
def test_the_error_names_the_worker(fail: str, link: str, tmp_path: Path) -> None:
    recipe = write(tmp_path, fail, link)
    request = Request(recipe=recipe, num_workers=3, out=tmp_path / "run", checkpoint_steps=1)
    with pytest.raises(WorkerFailed) as failed:
        train(request)
    text = str(failed.value)
    if fail == "raise":
        assert text.startswith("worker 1 failed:\nTraceback")
        assert 'mine.py", line 20, in loss' in text
        assert text.endswith("RuntimeError: the scanner is on fire")
    elif fail == "SIGKILL":
        assert re.fullmatch(r"worker 1 was ended by SIGKILL \(process \d+\)", text)
    else:
        assert text == "worker 1 ended with exit code 7"
    check_resume(recipe, tmp_path / "run")


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("samepath"), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


def test_the_command_says_it_in_one_line(tmp_path: Path) -> None:
    recipe = write(tmp_path, "SIGKILL")
    ended = command(tmp_path, "train", recipe, "-n", "3", "--out", "run")
    assert ended.returncode == 1
    assert ended.stdout == ""
    pattern = r"samepath: worker 1 was ended by SIGKILL \(process \d+\)\n"
    assert re.fullmatch(pattern, ended.stderr), ended.stderr


SCRIPT = """
import os
import sys
import time
import samepath

session = samepath.start(link="network")
before = len(os.listdir("/proc/self/task"))
session.close()
until = time.monotonic() + 10
while (now := len(os.listdir("/proc/self/task"))) > 1 and time.monotonic() < until:
    time.sleep(0.01)  # one that has ended is still seen for a moment
os.write(1, f"{before > 1} {now}{os.linesep}".encode())  # in one piece
session = samepath.start()
if session.worker == 1:
    sys.exit(5)
session.collective.agree(True)
"""


def test_a_script_of_ones_own(tmp_path: Path) -> None:
    """`samepath run` ends with its workers and says which one failed. A session that was closed
    leaves no thread: gloo's would meet an interpreter that is half gone, and abort the process."""
    (tmp_path / "script.py").write_text(SCRIPT)
    ended = command(tmp_path, "run", "-n", "2", "script.py")
    assert ended.returncode == 1
    assert ended.stdout.splitlines() == ["True 1", "True 1"]
    assert ended.stderr.rstrip().endswith("samepath: worker 1 ended with exit code 5")


WAITS = """
import os
import signal
import samepath

samepath.start()
os.write(1, f"{os.getpid()}{os.linesep}".encode())
while True:
    signal.pause()
"""


def test_a_script_of_ones_own_ends_with_its_launcher(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WAITS)
    launcher = subprocess.Popen(
        [Path(sys.executable).with_name("samepath"), "run", "-n", "2", "script.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    workers = [int(launcher.stdout.readline()) for _ in range(2)]
    launcher.kill()
    assert launcher.communicate()[0] == ""  # who else has it is gone
    assert not [worker for worker in workers if Path(f"/proc/{worker}/exe").exists()]
