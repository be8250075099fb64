"""The picture of loss curves."""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.image import imread

from samepath.report.show import draw_loss_curves


def write_run(folder: Path, factor: float) -> Path:
    folder.mkdir()
    lines = [{"step": s, "train_loss": factor / s} for s in range(1, 30)]
    lines.append({"step": 29, "valid_loss": factor / 20})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_equal_runs_lie_on_each_other_and_others_do_not(tmp_path: Path) -> None:
    """The last run's colour covers the middle of the first's wherever they agree."""
    one, same, other = (
        write_run(tmp_path / name, factor)
        for name, factor in (("one", 1.0), ("same", 1.0), ("other", 3.0))
    )
    shown = {}
    for name, second in (("same", same), ("other", other)):
        out = tmp_path / f"{name}.png"
        draw_loss_curves({"1 worker": one, "2 workers": second}, out, title="test")
        image = imread(out)[:, :, :3]
        pale = abs(image - [158 / 255, 202 / 255, 225 / 255]).max(axis=2) < 0.02
        shown[name] = int(pale.sum())
    assert shown["same"] > 0, "the first run can be seen around the second"
    assert shown["other"] > 1.5 * shown["same"], "runs that differ are drawn apart"
