"""Trackers are sent what metrics.jsonl holds, each line once, and never change or end a run."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from ui_folders import make_run, step_line

from samepath.cli.main import cli
from samepath.console import SilentWatcher
from samepath.engine.run.loggers import Loggers, loggers_of, numbers, parse_loggers
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.train import Request, train
from samepath.errors import UserError

REQUEST = Request(recipe="digits", num_workers=1, steps=4)


class FakeTrackio(ModuleType):
    """A module with the calls that trackio's documentation has; it disturbs what it can."""

    def __init__(self) -> None:
        super().__init__("trackio")
        self.__spec__ = ModuleSpec("trackio", None, origin="fake")
        self.runs: dict[str, list[tuple[int | None, dict[str, Any]]]] = {}
        self.configs: list[dict[str, Any]] = []
        self.finished = 0
        self.fails_at: int | None = None
        self._name = ""

    def init(
        self,
        project: str,
        name: str | None = None,
        config: dict[str, Any] | None = None,
        resume: str = "never",
    ) -> None:
        print("a tracker greets on stdout")
        assert (project, resume) == ("samepath", "allow")
        assert name is not None
        assert config is not None
        self._name = name
        self.runs.setdefault(name, [])
        self.configs.append(config)
        self._disturb()

    def log(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self._disturb()
        if step is not None and step == self.fails_at:
            raise ConnectionError("no\nnetwork")
        self.runs[self._name].append((step, metrics))

    def finish(self) -> None:
        self._disturb()
        self.finished += 1

    def _disturb(self) -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        torch.rand(3)


@pytest.fixture
def trackio(monkeypatch: pytest.MonkeyPatch) -> FakeTrackio:
    fake = FakeTrackio()
    monkeypatch.setitem(sys.modules, "trackio", fake)
    return fake


def lines_of(run: Path) -> list[tuple[int | None, dict[str, Any]]]:
    return [(line["step"], dict(numbers(line))) for line in RunFolder(run).read_metrics()]


def test_a_tracker_is_sent_each_line_once_and_the_bits_stay(
    tmp_path: Path, trackio: FakeTrackio, capfd: pytest.CaptureFixture[str]
) -> None:
    """Dropout and augmentation draw random numbers where a recipe has them; and the generators
    stand, after all calls, where they stood."""
    plain, _ = train(replace(REQUEST, out=tmp_path / "plain", steps=7))
    expected = torch.rand(1), random.random(), np.random.rand()
    run = tmp_path / "run"
    train(replace(REQUEST, out=run, log="trackio"))
    result, _ = train(replace(REQUEST, out=run, steps=7, resume=True))  # remembered
    assert result.digest == plain.digest
    assert (torch.rand(1), random.random(), np.random.rand()) == expected
    record = RunFolder(run).read()
    ((name, sent),) = trackio.runs.items()
    assert name == f"run-{record['id'][:8]}"
    first_end = sent.pop(4)
    assert first_end[1]["status"] == "finished"
    assert sent.pop() == (None, {"status": "finished", "digest": plain.digest})
    assert sent == lines_of(run)
    assert [step for step, _ in sent] == [1, 2, 3, 4, 5, 6, 6, 7]  # an epoch has 6
    assert {"train_loss", "learning_rate", "noise_scale"} <= sent[5][1].keys()
    assert {"epoch_train_loss", "valid_loss", "valid_accuracy"} <= sent[6][1].keys()
    assert trackio.configs[-1] == record["config"]
    assert trackio.finished == 2
    assert "greets" not in capfd.readouterr().out, "stdout is the command's own"


def test_what_was_sent_before_a_kill_is_not_sent_again(
    tmp_path: Path, trackio: FakeTrackio
) -> None:
    run = make_run(tmp_path / "a", 12, status="running")
    record = json.loads((run / "run.json").read_text(encoding="utf-8")) | {"id": "0" * 32}
    (run / "run.json").write_text(json.dumps(record), encoding="utf-8")
    num_lines = RunFolder(run).num_lines()
    told = list[str]()
    loggers = Loggers(run, ("trackio",), told.append)  # a run that began without it
    (sent,) = trackio.runs.values()
    assert sent == lines_of(run)
    del loggers  # killed
    folder = RunFolder(run)
    folder.open_metrics(5)  # its checkpoint was of step 5
    loggers = Loggers(run, ("trackio",), told.append)
    repeated = num_lines - folder.num_lines()
    for step in range(repeated + 1):
        loggers.write(step_line(100 + step))
    assert len(sent) == num_lines + 1
    assert sent[-1][0] == 100 + repeated
    assert told == []
    assert loggers_of(run) == ("trackio",)
    (run / "loggers.json").write_text("{ torn and longer than what is written" + " " * 99)
    assert loggers_of(run) == ()
    Loggers(run, ("trackio",), told.append).end("failed")
    assert sent[-1] == (None, {"status": "failed", "digest": None})
    assert loggers_of(run) == ("trackio",)


NOTES: list[str] = []


class NotingWatcher(SilentWatcher):
    def note(self, text: str) -> None:
        NOTES.append(text)


def test_a_tracker_that_fails_says_so_once_and_the_run_goes_on(
    tmp_path: Path, trackio: FakeTrackio
) -> None:
    NOTES.clear()
    trackio.fails_at = 2
    request = replace(REQUEST, log="trackio", display=NotingWatcher)
    result, run = train(replace(request, out=tmp_path / "a"))
    assert (result.status, result.steps) == ("finished", 4)
    (note,) = [note for note in NOTES if "trackio" in note]
    assert note.startswith("trackio is sent nothing from here on (ConnectionError: no network)")
    assert [step for sent in trackio.runs.values() for step, _ in sent] == [1]
    trackio.fails_at = None
    train(replace(REQUEST, out=run, steps=5, resume=True))  # what failed is left out, not the rest
    (sent,) = trackio.runs.values()
    assert [step for step, _ in sent] == [1, 3, 4, 5, None]


def test_the_run_of_a_tracker_ends_with_a_run_that_fails(
    tmp_path: Path, trackio: FakeTrackio, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("a step fails")

    monkeypatch.setattr("samepath.engine.run.loop.Run._steps", fail)
    with pytest.raises(OSError, match="a step fails"):
        train(replace(REQUEST, out=tmp_path / "a", log="trackio"))
    (sent,) = trackio.runs.values()
    assert sent == [(None, {"status": "failed", "digest": None})]


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_missing_client_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    words = ["train", "digits", "-n", "1", "--out", str(tmp_path / "a"), "--log", name]
    done = CliRunner().invoke(cli, words)
    assert isinstance(done.exception, UserError) or done.exit_code == 2
    said = str(done.exception) if isinstance(done.exception, UserError) else done.stderr
    assert f"pip install 'samepath[{name}]'" in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "a").exists()


def test_names() -> None:
    assert parse_loggers("wandb, mlflow,wandb") == ("wandb", "mlflow")
    with pytest.raises(UserError, match="no logger 'comet'; it takes tensorboard, wandb"):
        parse_loggers("wandb,comet")
    assert replace(REQUEST, tensorboard=True, log="trackio").loggers == ("tensorboard", "trackio")


@pytest.fixture
def wandb_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("wandb_offline")
def test_wandb_offline_on_two_workers(tmp_path: Path) -> None:
    """Worker 0 alone has a W&B run."""
    plain, _ = train(replace(REQUEST, out=tmp_path / "plain"))
    run = tmp_path / "run"
    # a process of its own: an earlier fork server's workers have the variables of its start
    asked = ("train", "digits", "-n", "2", "--steps", "4", "--log", "wandb", "--out", str(run))
    command = [sys.executable, "-c", "from samepath.cli import main; main()", *asked, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    digest = json.loads(ended.stdout)["digest"]
    assert digest == plain.digest
    identity = RunFolder(run).run_id()
    ((_, known),) = json.loads((run / "loggers.json").read_text(encoding="utf-8")).items()
    assert known == {"id": identity, "lines": RunFolder(run).num_lines()}
    (file,) = run.glob(f"wandb/offline-run-*/run-{identity}.wandb")
    content = file.read_bytes()
    for word in ("train_loss", "learning_rate", "grain_size", "finished", digest):
        assert word.encode() in content


def test_wandb_without_a_login_does_not_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setattr(wandb, "login", lambda *, prompt, verify: prompt or verify)
    monkeypatch.setattr(wandb, "init", lambda **_: pytest.fail("it would ask"))
    told = list[str]()
    Loggers(make_run(tmp_path / "a", 2), ("wandb",), told.append).end("finished", "digest")
    (note,) = told
    assert "(not logged in; type wandb login, or set WANDB_MODE=offline)" in note


def test_mlflow_with_a_file_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    plain, _ = train(replace(REQUEST, out=tmp_path / "plain", steps=6))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        monkeypatch.setenv(name, uri)
    run = tmp_path / "run"
    train(replace(REQUEST, out=run, log="mlflow"))
    result, _ = train(replace(REQUEST, out=run, steps=6, resume=True))
    (known,) = json.loads((run / "loggers.json").read_text(encoding="utf-8")).values()
    client = mlflow.MlflowClient()
    found = client.get_run(known["id"])
    assert found.info.status == "FINISHED"
    assert found.data.tags["digest"] == result.digest == plain.digest
    assert found.data.params["seed"] == str(RunFolder(run).read()["config"]["seed"])
    history = client.get_metric_history(known["id"], "train_loss")
    assert [(each.step, each.value) for each in history] == [
        (line["step"], line["train_loss"])
        for line in RunFolder(run).read_metrics()
        if "train_loss" in line
    ]
