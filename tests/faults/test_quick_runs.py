"""Quick runs: far more metrics between two checkpoints than is kept in memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from elastic_runs import RECIPE, lines, undisturbed

from samepath.engine.elastic.machine import MachineOffer, WorkerRange
from samepath.engine.state import metrics_log as engine_lines
from samepath.engine.train import Request, train

LIMIT_SECONDS = 300
EPOCHS = 12
QUICK = f"""
import sys
sys.path.insert(0, {str(RECIPE.parent)!r})
from samepath.engine.state import metrics_log as lines
from tiny_recipe import recipe

lines.MOST_UNSYNCED = 1000  # about four steps
"""


@pytest.mark.parametrize("num_workers", [1, 2, WorkerRange(least=1, most=2)], ids=str)
def test_metrics_between_two_checkpoints(
    num_workers: int | WorkerRange,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = engine_lines.MOST_UNSYNCED
    monkeypatch.setattr(engine_lines, "MOST_UNSYNCED", before)  # what the recipe changes goes back
    expected = undisturbed(tmp_path, EPOCHS)
    recipe, out = tmp_path / "quick.py", tmp_path / "run"
    recipe.write_text(QUICK)
    result, _ = train(
        Request(
            recipe=str(recipe),
            num_workers=num_workers,
            machine=MachineOffer(workers=2),
            epochs=EPOCHS,
            out=out,
        )
    )
    assert (result.digest, lines(out)) == expected
    assert len((out / "metrics.jsonl").read_bytes()) > 10_000
    assert json.loads((out / "run.json").read_text())["status"] == "finished"
    assert capfd.readouterr().err == "", "nobody has failed on the way"
