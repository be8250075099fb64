"""The wall clock may jump, a day forwards or back: nothing decides by it.

A recipe makes `time.time` jump at every look, in each process that loads it; what the machine's own
clock of elapsed time (`time.monotonic`) says is left alone, as it is when somebody sets the date.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elastic_runs import RECIPE as TINY
from elastic_runs import lines

from samepath.engine.run import loop
from samepath.engine.state import checkpoint
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.train import Request, train

LIMIT_SECONDS = 180
RECIPE = """
import sys, time
from dataclasses import replace

sys.path.insert(0, {PARITY!r})
import tiny_recipe

real, real_ns, looks = time.time, time.time_ns, 0

def jumping():
    global looks
    looks += 1
    return real() + (-86400.0, 0.0, 86400.0, 0.0)[looks % 4]

def recipe():
    if {JUMPS}:
        time.time = jumping
        time.time_ns = lambda: int(jumping() * 1e9)
    return replace(tiny_recipe.recipe(), epochs=3)
"""


def write(folder: Path, *, jumps: bool) -> str:
    file = folder / f"jumps_{jumps}.py"
    parity = repr(str(TINY.parent))
    file.write_text(RECIPE.replace("{PARITY!r}", parity).replace("{JUMPS}", str(jumps)))
    return str(file)


@pytest.fixture(autouse=True)
def clock_put_back() -> Iterator[None]:
    import time

    before = time.time, time.time_ns
    yield
    time.time, time.time_ns = before


def test_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steady = Request(recipe=write(tmp_path, jumps=False), num_workers=1, out=tmp_path / "steady")
    straight, _ = train(steady)
    assert len(lines(tmp_path / "steady")) == 15 + 3

    # Saved when due: at once if it is always due, not before the end if it never is
    saved: list[int] = []
    save = checkpoint.save

    def counted(folder: Path, state: Any, progress: Any) -> str:
        saved.append(state.structure["step"])
        return save(folder, state, progress)

    monkeypatch.setattr(checkpoint, "save", counted)
    recipe = write(tmp_path, jumps=True)
    for seconds, expected in ((0.0, list(range(1, 16))), (1000.0, [15])):
        monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", seconds)
        saved.clear()
        out = tmp_path / f"alone-{seconds}"
        result, _ = train(Request(recipe=recipe, num_workers=1, out=out))
        assert result.digest == straight.digest
        assert lines(out) == lines(tmp_path / "steady")
        assert saved == expected
        assert result.seconds < LIMIT_SECONDS
        times = [line["seconds"] for line in RunFolder(out).read_metrics()]
        assert times == sorted(times)

    out = tmp_path / "two"
    result, _ = train(Request(recipe=recipe, num_workers=2, out=out))
    assert result.digest == straight.digest
    assert lines(out) == lines(tmp_path / "steady")
    assert json.loads((out / "run.json").read_text())["status"] == "finished"
