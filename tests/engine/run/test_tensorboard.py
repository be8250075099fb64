"""Event files hold what metrics.jsonl holds: read back with TensorBoard's own reader."""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from ui_folders import make_run, step_line

from samepath.cli.tensorboard import tensorboard
from samepath.engine.run.tensorboard import EventWriter, scalars
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.train import Request, train
from samepath.errors import UserError
from samepath.files import lock_folder

pytest.importorskip("tensorboard", reason="tensorboard is not installed")
TAGS = {
    f"{group}/{name}": prefix + name
    for group, prefix, names in (
        ("train", "train_", ("loss",)),
        ("train", "", ("learning_rate", "gradient_norm", "noise_scale", "noise_low", "noise_high")),
        ("valid", "valid_", ("loss", "accuracy")),
        ("epoch", "epoch_", ("train_loss",)),
        ("epoch", "", ("batch_size",)),
    )
    for name in names
}


def events(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it imports, not of us
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return found


def assert_equal(folder: Path, run: Path) -> None:
    """Every value of metrics.jsonl, in order, and nothing else."""
    found = events(folder)
    assert set(found.Tags()["scalars"]) == set(TAGS)
    lines = RunFolder(run).read_metrics()
    for tag, name in TAGS.items():
        logged = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
        values = found.Scalars(tag)
        assert [event.step for event in values] == [step for step, _ in logged]
        assert [event.value for event in values] == [float(np.float32(v)) for _, v in logged]


def num_files(folder: Path) -> int:
    """Event files that hold something."""
    return sum(path.stat().st_size > 0 for path in folder.iterdir())


def test_a_resumed_run_repeats_no_step_and_is_seen_while_it_is_written(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", 30, status="running")
    EventWriter(run).close()
    reader = events(run / "tensorboard")  # a TensorBoard that stays open
    record = json.loads((run / "run.json").read_text())
    record["starts"].append(record["starts"][0] | {"time": 1_700_009_000.0})
    (run / "run.json").write_text(json.dumps(record))
    folder = RunFolder(run)
    folder.open_metrics(12)
    writer = EventWriter(run)
    for step in range(13, 26):
        line = {**step_line(step), "seconds": (step - 12) * 0.01}
        folder.log(**line)
        writer.write(line)
        if step == 20:
            writer.flush()
            assert events(run / "tensorboard").Scalars("train/loss")[-1].step == 20
    writer.close()
    folder.close_metrics()
    assert num_files(run / "tensorboard") == 1
    assert_equal(run / "tensorboard", run)
    fresh = events(run / "tensorboard").Scalars("train/loss")
    assert [event.step for event in fresh] == list(range(1, 26))
    times = [event.wall_time for event in fresh]
    assert times == sorted(times)
    assert times[11:13] == pytest.approx([1_700_000_000.12, 1_700_009_000.01])
    reader.Reload()
    assert [event.step for event in reader.Scalars("train/loss")] == list(range(1, 26))


def test_numbers_that_json_has_no_word_for(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", 1)
    writer = EventWriter(run)
    writer.write({"step": 2, "train_loss": float("nan"), "gradient_norm": "inf", "seconds": 0.2})
    writer.write({"step": 2, "measured": {"rate": 3.0}, "noise_scale": None, "seconds": 0.2})
    writer.close()
    found = events(run / "tensorboard")
    assert np.isnan(found.Scalars("train/loss")[-1].value)
    assert found.Scalars("train/gradient_norm")[-1].value == np.inf
    assert found.Scalars("measured/rate")[-1].value == 3.0
    text = found.Tensors("run/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "samepath train digits" in text
    assert "| batch_size | 32 |" in text


def convert(*arguments: object) -> Any:
    words = [str(a) for a in arguments]
    done = CliRunner().invoke(tensorboard, [*words, "--json"], catch_exceptions=False)
    return json.loads(done.stdout)


def test_one_run_is_converted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", 20)
    for _ in range(4):  # again: in place of the first
        done = convert(run)
        assert list(done["files"]) == ["a"]
        assert_equal(run / "tensorboard", run)
        assert num_files(run / "tensorboard") == 1
    assert len(list((run / "tensorboard").iterdir())) == 2, "empty ones do not gather"


def test_all_runs_of_a_folder_are_converted(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a", 10)
    make_run(tmp_path / "runs" / "s" / "b", 20)
    make_run(tmp_path / "runs" / "broken", 10)
    (tmp_path / "runs" / "broken" / "run.json").write_text("{")
    odd = make_run(tmp_path / "runs" / "odd", 10)
    (odd / "metrics.jsonl").write_text('{"train_loss": 3}\n')
    live = make_run(tmp_path / "runs" / "live", 10, status="running")
    held = lock_folder(live, "held")
    out = tmp_path / "logs"
    done = convert(tmp_path / "runs", "--out", out)
    assert done["logdir"] == str(out)
    assert set(done["files"]) == {"a", "s/b", "live"}
    assert set(done["skipped"]) == {"broken", "odd"}
    assert "damaged" in done["skipped"]["odd"]
    assert list((out / "odd").iterdir()) == []
    assert_equal(out / "s" / "b", tmp_path / "runs" / "s" / "b")
    assert not (tmp_path / "runs" / "a" / "tensorboard").exists()
    done = convert(tmp_path / "runs")
    assert "training now" in done["skipped"]["live"]
    assert not (live / "tensorboard").exists()
    assert_equal(tmp_path / "runs" / "a" / "tensorboard", tmp_path / "runs" / "a")
    os.close(held)


def refused(*arguments: object) -> str:
    with pytest.raises(UserError) as caught:
        convert(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no such folder" in refused(tmp_path / "none")
    assert "holds no run" in refused(tmp_path)
    run = make_run(tmp_path / "a", 3)
    (tmp_path / "file").write_text("")
    assert "is a file" in refused(run, "--out", tmp_path / "file")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert refused(run).endswith("pip install 'samepath[tensorboard]'")
    assert not (run / "tensorboard").exists()


def test_training_writes_them_and_resuming_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told once; a resumed run goes on with them by itself."""
    run = tmp_path / "run"
    request = Request(recipe="digits", num_workers=1, out=run, tensorboard=True)
    train(replace(request, epochs=1))
    train(replace(request, epochs=2, resume=True, tensorboard=False))
    found = events(run / "tensorboard").Scalars("train/loss")
    logged = [line for line in RunFolder(run).read_metrics() if "train_loss" in line]
    assert [(event.step, event.value) for event in found] == [
        (line["step"], float(np.float32(line["train_loss"]))) for line in logged
    ]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match="pip install"):
        train(replace(request, out=tmp_path / "other"))
    assert not (tmp_path / "other").exists()


def test_metrics_of_the_loss_have_tags_beside_it() -> None:
    fields = {"step": 1, "train_dice": 0.5, "epoch_train_dice": 0.25, "loss_scale": 8.0}
    expected = {"train/dice": 0.5, "epoch/train_dice": 0.25, "train/loss_scale": 8.0}
    assert dict(scalars(fields)) == expected
