"""What a run is made of changes while it goes on: a worker that begins later refuses it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

from elastic_runs import (
    GOES_ON,
    PATIENCE_SECONDS,
    RECIPE,
    num_lines,
    start,
    until,
    workers_of,
)

LIMIT_SECONDS = 400


def test_a_module_that_is_edited_before_a_worker_is_started_anew(tmp_path: Path) -> None:
    """The run would go on with other code, of which nothing would tell. Put back as it was, it goes
    on."""
    helper = Path(shutil.copy(RECIPE, tmp_path / "edited_meanwhile.py"))
    recipe, out = tmp_path / "mine.py", tmp_path / "run"
    recipe.write_text("from edited_meanwhile import recipe\n")
    begin = ("train", recipe, "-n", "1:2", "--here", "2", "--out", out, "--json")
    process = start(*begin, "--epochs", "1000")
    until(lambda: num_lines(out) > 2, process)
    before = helper.read_text()
    helper.write_text(before + "# another\n")
    os.kill(workers_of(process.pid)[0], signal.SIGKILL)
    _, said = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 2, said
    assert GOES_ON in said
    last = said.splitlines()[-1]
    assert last == (
        "samepath: edited_meanwhile.py has changed since the run began; put it back as it was"
    )
    content = json.loads((out / "run.json").read_text())
    assert content["status"] == "failed"
    helper.write_text(before)
    steps = str(num_lines(out) + 3)
    again = start(*begin, "--steps", steps, "--resume", slow_seconds=0)
    _, said = again.communicate(timeout=PATIENCE_SECONDS)
    assert again.returncode == 0, said
