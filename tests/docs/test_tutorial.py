"""The tutorial's script runs as it is; that its bits do not depend on the number of workers is
tested with the scripts of examples/bring/."""

from __future__ import annotations

from pathlib import Path

from write_bring_docs import run

SCRIPT = Path(__file__).parents[2] / "examples" / "tutorial" / "after.py"


def test_the_script_runs_on_two_workers() -> None:
    ran = run(SCRIPT, 2)
    assert [line.split()[0] for line in ran.output.splitlines()] == [*map(str, range(10)), "digest"]
    first, last = (float(ran.output.splitlines()[k].split()[1]) for k in (0, 9))
    assert last < 0.7 * first
