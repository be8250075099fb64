"""A run's numbers sent to experiment trackers: Weights & Biases, MLflow, trackio, TensorBoard.

In: the run's folder, then the lines of its metrics as they are logged, then how it ended. Out: what
each tracker makes of that, and RUN/loggers.json, which names the trackers' runs. Guaranteed: a
tracker is sent the lines of metrics.jsonl in order and none twice, also by a run that is resumed or
that began without it; its client's failure is said in one line, ends the sending and not the run;
the global random generators are as they were after each call, whatever a client draws.

Clients are those of the trackers' own packages; each says in its documentation where it sends to
(WANDB_MODE, WANDB_PROJECT, MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, TRACKIO_PROJECT).
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from samepath.data.randomness import random_state_kept
from samepath.engine.run.tensorboard import FOLDER, EventWriter, require_tensorboard
from samepath.engine.state.run_folder import LOGGERS_FILE, RunFolder, Warn
from samepath.engine.state.state import one_line
from samepath.errors import UserError
from samepath.files import read_object

PROJECT = "samepath"
"""The project, or experiment, of runs whose user has named none."""
TENSORBOARD = "tensorboard"
_MOST_PARAMETER = 500
"""Characters of an MLflow parameter that every version and store of it takes."""
_FINISHED = ("finished", "target", "early", "stuck")


class Tracker(ABC):
    """One tracker's run, through its client. Any method may raise what the client raises."""

    title: str
    module: str

    @abstractmethod
    def begin(self, folder: Path, record: Mapping[str, Any], known: str | None) -> str:
        """Begin a run, or go on with the `known` one; its id."""

    @abstractmethod
    def send(self, values: Mapping[str, float], step: int) -> None:
        """Send a line's numbers."""

    @abstractmethod
    def end(self, status: str, digest: str | None) -> None:
        """End the run; it may be gone on with later."""


class WandbTracker(Tracker):
    """Weights & Biases, in the mode that WANDB_MODE says."""

    title, module = "Weights & Biases", "wandb"

    def begin(self, folder: Path, record: Mapping[str, Any], known: str | None) -> str:
        import wandb

        mode = os.environ.get("WANDB_MODE") or wandb.setup().settings.mode
        offline = mode in ("offline", "dryrun", "disabled")
        if not offline and not wandb.login(prompt=False, verify=False):  # init would ask, and wait
            raise UserError("not logged in; type wandb login, or set WANDB_MODE=offline")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=known or record["id"],
            name=folder.resolve().name,
            resume="allow",
            dir=os.environ.get("WANDB_DIR", str(folder)),
            settings=wandb.Settings(console="off", silent=True, reinit="create_new"),
        )
        self._run.config.update(dict(record["config"]), allow_val_change=True)
        return str(self._run.id)

    def send(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def end(self, status: str, digest: str | None) -> None:
        self._run.summary.update({"status": status, "digest": digest})
        self._run.finish(exit_code=0 if status in (*_FINISHED, "interrupted") else 1)


class MlflowTracker(Tracker):
    """MLflow, at MLFLOW_TRACKING_URI."""

    title, module = "MLflow", "mlflow"

    def begin(self, folder: Path, record: Mapping[str, Any], known: str | None) -> str:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient()
        if known is not None:
            self._id = known
            self._client.update_run(known, status="RUNNING")
            return known
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if found is None else found.experiment_id
        run = self._client.create_run(experiment, run_name=folder.resolve().name)
        self._id = str(run.info.run_id)
        parameters = [
            Param(key, json.dumps(value)[:_MOST_PARAMETER])
            for key, value in record["config"].items()
        ]
        self._client.log_batch(self._id, params=parameters)
        return self._id

    def send(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(key, value, now, step) for key, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def end(self, status: str, digest: str | None) -> None:
        self._client.set_tag(self._id, "status", status)
        if digest is not None:
            self._client.set_tag(self._id, "digest", digest)
        ended = "FINISHED" if status in _FINISHED else "FAILED"
        self._client.set_terminated(self._id, "KILLED" if status == "interrupted" else ended)


class TrackioTracker(Tracker):
    """trackio, which knows a run by its name."""

    title, module = "trackio", "trackio"

    def begin(self, folder: Path, record: Mapping[str, Any], known: str | None) -> str:
        import trackio

        self._client = trackio
        name = known or f"{folder.resolve().name}-{record['id'][:8]}"
        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        trackio.init(project=project, name=name, config=dict(record["config"]), resume="allow")
        return name

    def send(self, values: Mapping[str, float], step: int) -> None:
        self._client.log(dict(values), step=step)

    def end(self, status: str, digest: str | None) -> None:
        self._client.log({"status": status, "digest": digest})
        self._client.finish()


TRACKERS: dict[str, type[Tracker]] = {
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
    "trackio": TrackioTracker,
}
NAMES = (TENSORBOARD, *TRACKERS)


def parse_loggers(text: str) -> tuple[str, ...]:
    """Read names with commas between them."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in NAMES:
            raise UserError(f"--log {text}: no logger {name!r}; it takes {', '.join(NAMES)}")
    return names


def require_loggers(names: Sequence[str]) -> None:
    """Raise unless the packages are installed: before anything is written."""
    for name in names:
        if name == TENSORBOARD:
            require_tensorboard()
            continue
        found = find_spec(TRACKERS[name].module)  # importing it takes seconds
        if found is None or found.origin is None:  # a folder of that name, as wandb makes them
            raise UserError(f"--log {name} needs its client: pip install 'samepath[{name}]'")


def loggers_of(run: Path) -> tuple[str, ...]:
    """Loggers that a run had: it goes on with them when it is resumed."""
    known = (name for name in _read(run) if name in TRACKERS)
    return (*((TENSORBOARD,) if (run / FOLDER).is_dir() else ()), *known)


def _read(run: Path) -> dict[str, Any]:
    """What loggers.json says; nothing if it is not there or damaged (the run does not need it)."""
    try:
        return read_object(run / LOGGERS_FILE)
    except (OSError, ValueError):
        return {}


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep the random generators as they are, stdout to the command's own output, and a client's
    warnings out of the display."""
    with random_state_kept(), redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Loggers:
    """All loggers of a run, on worker 0. Those that fail are left out from there on."""

    def __init__(self, run: Path, names: Sequence[str], warn: Warn) -> None:
        """Begin with what metrics.jsonl holds: the loop makes them when the run's metrics have been
        opened, so that what an earlier start logged beyond the checkpoint has gone."""
        self._run, self._warn = run, warn
        self._lines = 0
        self._trackers: dict[str, Tracker] = {}
        self._events = EventWriter(run, warn=warn) if TENSORBOARD in names else None
        others = [name for name in names if name in TRACKERS]
        if not others:
            return
        folder = RunFolder(run)
        record, read = folder.read(), _read(run)
        self._known: dict[str, dict[str, Any]] = {
            name: dict(each) for name, each in read.items() if isinstance(each, dict)
        }
        for name in others:
            self._try(name, partial(self._begin, name, record))
        for fields in folder.read_metrics():
            self._send(fields)

    def _begin(self, name: str, record: Mapping[str, Any]) -> None:
        known, tracker = self._known.get(name, {}), TRACKERS[name]()
        found = tracker.begin(self._run, record, known.get("id"))
        self._known[name] = {"id": found, "lines": int(known.get("lines", 0))}
        self._trackers[name] = tracker
        self._write()

    def write(self, fields: Mapping[str, Any]) -> None:
        """Send one line of metrics.jsonl."""
        if self._events is not None:
            self._events.write(fields)
        self._send(fields)

    def _send(self, fields: Mapping[str, Any]) -> None:
        self._lines += 1
        behind = [name for name in self._trackers if self._known[name]["lines"] < self._lines]
        values = dict(numbers(fields)) if behind else {}
        for name in behind:
            self._known[name]["lines"] = self._lines
            self._try(name, partial(self._send_one, name, values, int(fields["step"])))

    def _send_one(self, name: str, values: Mapping[str, float], step: int) -> None:
        self._write()  # first: a process that is killed here does not send the line again
        self._trackers[name].send(values, step)

    def end(self, status: str, digest: str | None = None) -> None:
        """End the runs. Again: nothing."""
        if self._events is not None:
            if digest is not None:
                self._events.end(status, digest)
            self._events.close()
            self._events = None
        for name, tracker in list(self._trackers.items()):
            self._try(name, partial(tracker.end, status, digest))
        self._trackers.clear()

    def _try(self, name: str, call: Callable[[], None]) -> None:
        """Call a client, which may raise anything."""
        try:
            with _undisturbed():
                call()
        except Exception as error:
            self._trackers.pop(name, None)
            why = str(error) if isinstance(error, UserError) else one_line(error)
            self._warn(
                f"{TRACKERS[name].title} is sent nothing from here on ({why}); the run goes on, "
                "and metrics.jsonl holds everything"
            )

    def _write(self) -> None:
        """Write loggers.json in place, at every step; only a power cut can tear it."""
        text = (json.dumps(self._known, indent=2) + "\n").encode()
        file = os.open(self._run / LOGGERS_FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            os.pwrite(file, text, 0)
            os.ftruncate(file, len(text))
        finally:
            os.close(file)


def numbers(fields: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """A line's numbers by their names in metrics.jsonl; measured/... for what is in groups."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}/{inner}", float(each)) for inner, each in value.items())
        elif name != "step" and value is not None:
            yield name, float(value)  # NaN and infinities are text in metrics.jsonl
