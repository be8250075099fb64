"""A worker that raises or dies ends the run within seconds, by name; nothing ever hangs.

Three real workers; worker 1 fails in its third step.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from commands import error_line
from elastic_runs import SAMEPATH, harm, harmful, lines

from samepath.engine.train import Request, train
from samepath.errors import WorkerFailed

LIMIT_SECONDS = 180  # far below the minutes that a collective would wait
EPOCHS = 2


@pytest.mark.parametrize("link", ["auto", "network"])
@pytest.mark.parametrize("fail", ["raise", "SIGKILL", "exit 7"])
def test_the_error_names_the_worker(
    fail: str, link: str, unhurt: tuple[str, Any], tmp_path: Path
) -> None:
    recipe, out = harmful(tmp_path, harm("forward", 1, 2, fail), link=link, epochs=EPOCHS), tmp_path
    request = Request(recipe=str(recipe), num_workers=3, out=out / "run", checkpoint_steps=1)
    with pytest.raises(WorkerFailed) as failed:
        train(request)
    text = str(failed.value)
    if fail == "raise":
        assert text.startswith("worker 1 failed:\nTraceback")
        assert re.search(r'killing_recipe.py", line \d+, in loss', text)
        assert text.endswith("RuntimeError: the scanner is on fire")
    elif fail == "SIGKILL":
        assert re.fullmatch(r"worker 1 was ended by SIGKILL \(process \d+\)", text)
    else:
        assert text == "worker 1 ended with exit code 7"
    # what was saved before the fault is good, and goes on as if nothing had happened
    assert json.loads((out / "run" / "run.json").read_text())["status"] == "failed"
    saved = [path.name for path in (out / "run" / "checkpoints").iterdir()]
    assert sorted(saved) == ["step-00000001", "step-00000002"]
    resumed, _ = train(Request(recipe=str(recipe), num_workers=1, out=out / "run", resume=True))
    assert (resumed.digest, lines(out / "run")) == unhurt


def command(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SAMEPATH, *arguments], cwd=folder, capture_output=True, text=True, timeout=LIMIT_SECONDS
    )


def test_the_command_says_it_in_one_line(tmp_path: Path) -> None:
    recipe = harmful(tmp_path, harm("forward", 1, 2))
    ended = command(tmp_path, "train", recipe, "-n", "3", "--out", "run")
    assert ended.returncode == 1
    assert ended.stdout == ""
    pattern = r"samepath: worker 1 was ended by SIGKILL \(process \d+\)"
    assert re.fullmatch(pattern, error_line(ended.stderr)), ended.stderr


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
        [SAMEPATH, "run", "-n", "2", "script.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    workers = [int(launcher.stdout.readline()) for _ in range(2)]
    launcher.kill()
    assert launcher.communicate()[0] == ""  # who else has it is gone
    assert not [worker for worker in workers if Path(f"/proc/{worker}/exe").exists()]
