"""A run's folder: `run.json`, `metrics.jsonl`, `checkpoints/`, `weights/`.

In: options, metrics, states, a result. Out: files. Guaranteed: another run is never overwritten;
`run.json` is replaced whole; metrics of steps that a resumed run repeats are written once.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from samepath.engine import checkpoint
from samepath.engine.options import Options, versions
from samepath.engine.state import State
from samepath.errors import UserError

if TYPE_CHECKING:
    from samepath.engine.progress import RunResult

FLUSH_SECONDS = 1.0
LOCK_SECONDS = 5.0
"""How long somebody who is just ending is waited for."""


def make_folder(folder: Path) -> None:
    """Make the folder that --out names, or one in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--out {folder} cannot be made ({error.strerror}); give another folder"
        ) from None


def lock_folder(folder: Path, busy: str) -> int:
    """Lock a folder until the result is closed or this process ends; an error if somebody else has
    it and keeps it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(descriptor)
                raise UserError(f"{busy} by another process; wait for it, or stop it") from None
            time.sleep(0.05)


def next_free(recipe: str, runs: Path = Path("runs")) -> Path:
    """runs/digits-1, runs/digits-2, ..."""
    stem = Path(recipe).stem
    number = 1
    while (runs / f"{stem}-{number}").exists():
        number += 1
    return runs / f"{stem}-{number}"


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.weights = path / "weights"
        self._metrics: IO[str] | None = None
        self._lock: int | None = None
        self._flushed = 0.0

    # ---- run.json

    @property
    def holds_run(self) -> bool:
        return (self.path / "run.json").is_file()

    def refuse_if_used(self) -> None:
        """Raise unless a new run can begin here."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--out {self.path} is a file; give a folder")
        if self.holds_run:
            raise UserError(
                f"--out {self.path} holds another run; add --resume to continue it, "
                "or give another folder"
            )
        if self.path.is_dir() and any(self.path.iterdir()):
            raise UserError(f"--out {self.path} is not empty; give a new folder")

    def unlock(self) -> None:
        """Let others write here again."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read(self) -> dict[str, Any]:
        """What run.json says."""
        file = self.path / "run.json"
        if not file.is_file():
            raise UserError(f"{self.path} holds no run (there is no run.json); check the path")
        try:
            content = json.loads(file.read_text())
            content["config"]["recipe"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{file} cannot be read ({error}); it is not a run of ours") from None
        assert isinstance(content, dict)
        return content

    def write(
        self,
        options: Options,
        command: list[str],
        earlier: dict[str, Any] | None,
        num_workers: int = 1,
    ) -> None:
        """Begin or continue a run, and keep everybody else from writing here."""
        make_folder(self.path)
        self._lock = lock_folder(self.path, f"the run in {self.path} is being trained")
        began = {
            "command": command,
            "versions": versions(),
            "time": time.time(),
            "num_workers": num_workers,
        }
        starts = [*(earlier or {}).get("starts", []), began]
        content = {"status": "running", "config": asdict(options), "starts": starts, "result": None}
        checkpoint.write_atomically(self.path / "run.json", _dumps(content) + "\n")

    def write_status(self, status: str) -> None:
        """The run ended without a result."""
        content = self.read() | {"status": status}
        checkpoint.write_atomically(self.path / "run.json", _dumps(content) + "\n")

    def write_result(self, result: RunResult) -> None:
        content = self.read() | {"status": result.status, "result": asdict(result)}
        checkpoint.write_atomically(self.path / "run.json", _dumps(content) + "\n")

    # ---- metrics.jsonl

    def open_metrics(self, step: int) -> None:
        """Get ready to log what follows a step; what an earlier start wrote beyond it goes."""
        file = self.path / "metrics.jsonl"
        kept = [line for line, fields in self._metrics_lines() if fields["step"] <= step]
        checkpoint.write_atomically(file, "".join(line + "\n" for line in kept))
        self._metrics = file.open("a")

    def log(self, **fields: Any) -> None:
        assert self._metrics is not None
        self._metrics.write(json.dumps(finite(fields)) + "\n")
        now = time.monotonic()
        if now - self._flushed > FLUSH_SECONDS:
            self._flushed = now
            self._metrics.flush()

    def close_metrics(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None

    def read_metrics(self) -> list[dict[str, Any]]:
        """All lines, also of a run under way."""
        return [fields for _, fields in self._metrics_lines()]

    def _metrics_lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        file = self.path / "metrics.jsonl"
        for line in file.read_text().splitlines() if file.exists() else ():
            try:
                yield line, json.loads(line)
            except ValueError:
                return  # the last line of a run that is writing it, or was killed while it was

    # ---- checkpoints

    def save(self, state: State, progress: dict[str, Any]) -> str:
        if self._metrics is not None:
            self._metrics.flush()
        return checkpoint.save(self.checkpoints, state, progress)


def _dumps(content: dict[str, Any]) -> str:
    """JSON for machines: no NaN or infinity, which JSON has no word for."""
    return json.dumps(finite(content), indent=2)


def finite(value: Any) -> Any:
    """The same with NaN and infinities as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return value
