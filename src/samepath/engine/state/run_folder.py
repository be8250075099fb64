"""A run's folder: `run.json`, `metrics.jsonl`, `checkpoints/`, `weights/`.

In: options, metrics, states, a result. Out: files. Guaranteed: another run is never overwritten;
`run.json` is replaced whole; metrics of steps that a resumed run repeats are written once; what a
disk does not take now (it is full, it has become read-only) waits in memory, in order; a checkpoint
is written after all that came before it, and a result after everything.
"""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from samepath import files
from samepath.engine.checks.fingerprints import versions
from samepath.engine.state import checkpoint
from samepath.engine.state.checkpoint import BEST, Epoch, weights_of, write_weights
from samepath.engine.state.metrics_log import Lines, count_lines, number, read_lines
from samepath.engine.state.state import State
from samepath.errors import NotSaved, UserError, no_run
from samepath.files import (
    LOCK,
    brief,
    finite,
    is_empty,
    is_locked,
    lock_folder,
    make_folder,
    read_object,
)

if TYPE_CHECKING:
    from samepath.engine.state.progress import RunResult

ENDED = ("finished", "target", "early", "diverged", "stuck")
"""Statuses of a run that has nothing left to do."""
LOGGERS_FILE = "loggers.json"
"""Names the runs that trackers have of this one (`engine/run/loggers.py`)."""
_FOLDERS = ("checkpoints", "weights", "tensorboard", "wandb", "show")
"""Folders that a run, or what draws it, makes in its own."""
WARN_SECONDS = 60.0
"""How often it is said that something still cannot be written."""

Warn = Callable[[str], None]


def next_free(recipe: str) -> Path:
    """The first of runs/digits-1, runs/digits-2, ... that is not there."""
    paths = (Path("runs", f"{Path(recipe).stem}-{number}") for number in itertools.count(1))
    return next(path for path in paths if not path.exists())


def claim_next(recipe: str) -> Path:
    """Make that folder: of several processes that begin at once, each has one of its own."""
    while True:
        path = next_free(recipe)
        with suppress(FileExistsError):
            make_folder(path, is_new=True)
            return path


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.weights = path / "weights"
        self._metrics_file = path / "metrics.jsonl"
        self._metrics: Lines | None = None
        self.seconds_before = 0.0
        """Seconds of training in earlier starts: what the last line says that was there when the
        metrics were opened."""
        self._unwritten: dict[Epoch, tuple[dict[str, Tensor], int]] = {}
        """Weights that wait for a disk that takes them."""
        self._warned: dict[str, float] = {}
        self._lock: int | None = None

    # ---- run.json

    @property
    def holds_run(self) -> bool:
        return (self.path / "run.json").is_file()

    @property
    def has_steps(self) -> bool:
        """Whether the run here has completed a step."""
        saved = checkpoint.list_checkpoints(self.checkpoints)
        return self.num_lines() > 0 or any(map(checkpoint.step_of, saved))

    def refuse_if_used(self, *, overwrite: bool = False) -> None:
        """Raise unless a new run can begin here: in the place of one without a step or, to
        `overwrite` it, of any other."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--out {self.path} is a file; give a folder")
        if self.holds_run:
            self.read()  # what is no run of ours is not replaced
            if self.has_steps and not overwrite:
                raise UserError(
                    f"--out {self.path} holds another run; add --resume to continue it or "
                    "--overwrite to delete it, or give another folder"
                )
        elif self.path.is_dir() and not is_empty(self.path):
            raise UserError(f"--out {self.path} is not empty; give a new folder")

    def run_id(self) -> str | None:
        """The run's name in memory; None for one of an older samepath."""
        name = self.read().get("id")
        return name if isinstance(name, str) and re.fullmatch("[0-9a-f]{32}", name) else None

    def try_lock(self) -> bool:
        """Keep other processes from writing here; False if one of them has done so already."""
        if self._lock is None:
            self._lock = files.take_lock(self.path)
        return self._lock is not None

    @property
    def holds_lock(self) -> bool:
        return self._lock is not None

    def unlock(self) -> None:
        """Let others write here again."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read(self) -> dict[str, Any]:
        """Read run.json."""
        file = self.path / "run.json"
        content = None
        try:
            if self.holds_run:
                content = read_object(file)
                _check_run(content)
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = brief(f"it has no {error}" if isinstance(error, KeyError) else error)
            raise UserError(f"{file} cannot be read ({why}); it is not a run of ours") from None
        if content is None:
            raise no_run(self.path)
        return content

    def write(
        self,
        config: Mapping[str, Any],
        command: list[str],
        earlier: dict[str, Any] | None,
        num_workers: int = 1,
        code: Mapping[str, Any] | None = None,
        *,
        overwrite: bool = False,
        **for_others: Any,
    ) -> None:
        """Begin or continue a run, and keep other processes from writing here. `code` is where its
        Python files are (`reopen.code_of`). A run that is begun in the place of another deletes
        what that left."""
        make_folder(self.path)
        self._lock = lock_folder(self.path, f"the run in {self.path} is being trained")
        if earlier is None:
            try:
                # another run may have begun, and ended, while we looked
                self.refuse_if_used(overwrite=overwrite)
                self._refuse_if_unlocked()
            except UserError:
                self.unlock()
                raise
        before = earlier or {}
        began = {"command": command, "versions": versions(), "time": time.time()}
        began |= {"host": socket.gethostname(), "num_workers": num_workers, **for_others}
        content = {
            "status": "running",
            "id": before.get("id") or uuid.uuid4().hex,
            "config": dict(config),
            "code": dict(code or {}),
            "starts": [*before.get("starts", []), began],
            "result": None,
        }
        try:
            if earlier is None:
                self._clear()
            self._write_json(content)
        except OSError as error:
            if earlier is None:
                with suppress(OSError):
                    (self.path / LOCK).unlink()
            self.unlock()
            raise UserError(
                f"--out {self.path} cannot be written to ({error.strerror}); free space or make it "
                "writable, or give another folder"
            ) from None

    def write_config(self, flags: Mapping[str, Any]) -> None:
        """Write what the run is, for `samepath train --config`. A disk that is full ends no run."""
        with suppress(OSError):
            files.write_atomically(self.path / "config.toml", files.toml(flags))

    def _refuse_if_unlocked(self) -> None:
        """Raise where a run is said to be under way, and the file system has no locks to tell."""
        if self.holds_run and self.read()["status"] == "running" and not is_locked(self.path):
            raise UserError(
                f"--out {self.path} holds a run that may be under way, and its file system has no "
                "locks to tell; give another folder"
            )

    def _clear(self) -> None:
        """Delete what an earlier run has left here, apart from run.json, which is replaced; files
        of others stay."""
        self._metrics_file.unlink(missing_ok=True)
        (self.path / LOGGERS_FILE).unlink(missing_ok=True)
        for name in _FOLDERS:
            with suppress(FileNotFoundError):
                shutil.rmtree(self.path / name)

    def note_other_hardware(self) -> None:
        """Add to the last start that the run goes on with machines, or a torch, of another kind."""
        content = self.read()
        if not content["starts"][-1].get("other_hardware"):
            content["starts"][-1]["other_hardware"] = True
            with suppress(OSError):  # a full disk ends no run; it is tried again when workers meet
                self._write_json(content)

    def write_status(self, status: str) -> None:
        """The run ended without a result (one that had ended when it was stopped has one). If that
        cannot be written either, run.json goes on saying that it is running: the error that ended
        it is the one to tell."""
        with suppress(OSError, UserError):
            content = self.read()
            if status == "running" or content["status"] not in ENDED:
                self._write_json(content | {"status": status})

    def write_result(self, result: RunResult) -> None:
        """The run ended; everything is on disk, or it is no result."""
        try:
            self._write_waiting()
            self._write_json(self.read() | {"status": result.status, "result": asdict(result)})
        except OSError as error:
            raise self._not_saved("the result", error) from error
        finally:
            self.close_metrics()

    def _write_json(self, content: dict[str, Any]) -> None:
        text = json.dumps(finite(content), indent=2)  # JSON has no word for NaN and infinity
        files.write_atomically(self.path / "run.json", text + "\n")

    # ---- metrics.jsonl

    def open_metrics(self, step: int, *, eager: bool = False) -> int:
        """Get ready to log what follows a step; what an earlier start wrote beyond it goes. The
        last step of which there is a line. `eager`: other machines are to see it, should this one
        be lost."""
        end = last = 0
        self.seconds_before = 0.0
        for line, place in read_lines(self._metrics_file):
            here = line.get("step")
            if isinstance(here, int) and here <= step:
                end, last = place, here
                self.seconds_before = number(line.get("seconds", self.seconds_before))
        self._metrics = Lines(self._metrics_file, end, eager=eager)
        with suppress(OSError):  # it is tried again, and told, with the first line
            self._metrics.flush()
        return last

    def num_lines(self) -> int:
        """Count the whole lines of metrics."""
        return count_lines(self._metrics_file)

    def log(self, warn: Warn | None = None, /, **fields: Any) -> None:
        """Add a line. When this returns the kernel has it, and the end of this process does not
        lose it; or it waits for a disk that takes it, and `warn` is told."""
        assert self._metrics is not None
        self._metrics.add(json.dumps(finite(fields)))
        try:
            self._metrics.flush()
        except OSError as error:
            text = f"metrics.jsonl cannot be written ({error.strerror}); its lines wait in memory"
            self._tell(warn, "metrics", text)

    def close_metrics(self) -> None:
        """Write no more lines. Those that the disk does not take wait for `save` or
        `write_result`."""
        if self._metrics is not None and self._metrics.close():
            self._metrics = None

    def read_metrics(self) -> list[dict[str, Any]]:
        """Read all lines, also of a run under way."""
        return [fields for fields, _ in read_lines(self._metrics_file)]

    # ---- weights and checkpoints

    def keep_weights(
        self, epochs: int, model: nn.Module, warn: Warn | None = None, *, best: bool = False
    ) -> None:
        """Write the weights a model has after so many epochs, perhaps as its best."""
        self._unwritten[BEST if best else epochs] = weights_of(model), epochs
        try:
            self._write_weights()
        except OSError as error:
            names = (f"epoch {e}" if isinstance(e, int) else e for e in self._unwritten)
            what = f"the weights of {', '.join(names)}"
            self._tell(
                warn, what, f"{what} cannot be written ({error.strerror}); they wait in memory"
            )

    def save(self, state: State, progress: dict[str, Any], warn: Warn | None = None) -> str | None:
        """Write a checkpoint, and before it all that waits: what it counts as done is on disk. The
        state's digest; or None if that is impossible now and `warn` was told."""
        what = f"step {state.structure['step']}"
        try:
            self._write_waiting()
            saved = checkpoint.save(self.checkpoints, state, progress)
        except OSError as error:
            if warn is None:
                raise self._not_saved(what, error) from error
            again = "it is tried again when the next one is due"
            self._tell(warn, "checkpoint", f"{self._unsaved(what, error)}; {again}")
            return None
        if self._warned and warn is not None:
            warn(f"{what} is saved, and all that waited before it")
        self._warned.clear()
        return saved

    # ---- disks that are full or read-only

    def _write_waiting(self) -> None:
        if not self.holds_run:  # the folder was removed: do not make half of one
            raise FileNotFoundError(errno.ENOENT, "run.json is gone")
        if self._metrics is not None:
            self._metrics.sync()
        self._write_weights()

    def _write_weights(self) -> None:
        for epoch, (tensors, after) in list(self._unwritten.items()):
            write_weights(self.weights, epoch, tensors, after)
            del self._unwritten[epoch]

    def _unsaved(self, what: str, error: OSError) -> str:
        safe = "no checkpoint is there"
        with suppress(OSError):  # a folder that cannot be listed either
            for path in checkpoint.list_checkpoints(self.checkpoints)[-1:]:
                safe = f"the newest checkpoint is of step {checkpoint.step_of(path)}"
        return f"{what} could not be saved in {self.path} ({error.strerror}); {safe}"

    def _not_saved(self, what: str, error: OSError) -> NotSaved:
        return NotSaved(
            f"{self._unsaved(what, error)}; free space or make it writable, then continue with "
            f"--out {self.path} --resume"
        )

    def _tell(self, warn: Warn | None, about: str, text: str) -> None:
        """Say it, unless the same has been said of late."""
        now = time.monotonic()
        if warn is not None and now - self._warned.get(about, -math.inf) > WARN_SECONDS:
            self._warned[about] = now
            warn(text)


def _check_run(content: Mapping[str, Any]) -> None:
    """Raise unless run.json has the form of one of ours."""
    if not isinstance(content["config"]["recipe"], str):
        raise ValueError("its recipe is no text")
    threads = content["config"].get("threads", 1)
    if type(threads) is not int or threads < 1:
        raise ValueError("its threads are no number above 0")
    if not isinstance(content.get("result"), (dict, type(None))):
        raise ValueError("its result is no object")
    for start in content.get("starts", []):
        start["command"]
        if not isinstance(start["versions"], dict):
            raise ValueError("the versions of a start are no object")
