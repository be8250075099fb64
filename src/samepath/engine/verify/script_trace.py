"""What a person's own script did, written down so that two runs can be compared.

    python -P -m samepath.engine.verify.script_trace JOB SCRIPT [ARGUMENTS]

In: a ScriptJob, as JSON, and a script that calls samepath.start(). Out: the script has run as
`python SCRIPT ARGUMENTS` runs it, in a folder of its own; beside it, for every worker, a
ScriptTrace, what it printed, and how it failed if it did. Guaranteed: looking changes no bits.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from samepath.engine.comm.environment import read_place
from samepath.engine.launch.reports import WorkerReport
from samepath.engine.run import session
from samepath.engine.run.trainer import Trainer
from samepath.engine.state import checkpoint
from samepath.engine.state.state import state_of
from samepath.engine.verify.trace import (
    GrainEvent,
    Grains,
    GrainWatch,
    gradient_facts,
    metric_facts,
    state_fingerprints,
    state_path,
    step_facts,
)
from samepath.owners import die_with_parent


class CloseLook(NamedTuple):
    """A step to look into."""

    trainer: int
    step: int
    """Counted from 1."""
    worker: int = 0
    """Whose state after it is kept."""


@dataclass(frozen=True, kw_only=True)
class ScriptJob:
    """A run of a script."""

    folder: str
    """Where files/ (in which the script runs), traces/, reports/ and output/ are."""
    look: CloseLook | None = None

    @property
    def files(self) -> Path:
        return Path(self.folder) / "files"

    @property
    def reports(self) -> Path:
        return Path(self.folder) / "reports"

    def make_folders(self) -> None:
        for name in ("files", "traces", "reports", "output"):
            (Path(self.folder) / name).mkdir(parents=True)

    def trace_of(self, worker: int) -> Path:
        return Path(self.folder) / "traces" / f"worker-{worker}.json"

    def output_of(self, worker: int) -> Path:
        return Path(self.folder) / "output" / f"worker-{worker}.txt"


class Event(NamedTuple):
    """One thing that a script did with one of its trainers."""

    trainer: int
    """The trainer's number, in the order in which they were prepared."""
    kind: str
    """prepare, resume, begin (of a step), step, evaluate, end (of the script)"""
    step: int
    """Completed steps of that trainer."""
    facts: dict[str, str]
    """Fingerprints by name, in the order in which a difference is reported."""


@dataclass
class ScriptTrace:
    """What one worker saw."""

    events: list[Event] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    """Digests of every trainer, when the script had ended."""
    grains: Grains = field(default_factory=dict)
    """This worker's grains of the step that was looked into."""
    batch_gradient: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    """Class names by module name, of the trainer that was looked into."""

    @staticmethod
    def read(path: Path) -> ScriptTrace:
        trace = ScriptTrace(**json.loads(path.read_text()))
        trace.events = [Event(*event) for event in trace.events]
        trace.grains = {g: [GrainEvent(*e) for e in events] for g, events in trace.grains.items()}
        return trace


class ScriptRecorder:
    """Takes down what happens to every trainer that the script prepares."""

    def __init__(self, job: ScriptJob, worker: int) -> None:
        self._job = job
        self._worker = worker
        self._trainers: list[Trainer] = []
        self._trace = ScriptTrace()

    def watch(self, trainer: Trainer) -> None:
        """Begin with a trainer."""
        number, look = len(self._trainers), self._job.look
        self._trainers.append(trainer)
        trainer.observe = partial(self._observe, number)
        if look is not None and look.trainer == number:
            modules = trainer.model.named_modules()
            self._trace.kinds = {name: type(module).__name__ for name, module in modules}
            GrainWatch(trainer, look.step, self._trace.grains)
        self._observe(number, "prepare", None)

    def _observe(self, number: int, kind: str, value: Any) -> None:
        trainer, look = self._trainers[number], self._job.look
        trainer.settle()  # on all workers between the same steps
        facts = state_fingerprints(state_of(trainer))
        if kind == "step":
            facts |= step_facts([value])
        elif kind == "evaluate":
            facts |= metric_facts(value)
        self._trace.events.append(Event(number, kind, trainer.step_number, facts))
        if kind == "step" and look is not None and look[:2] == (number, trainer.step_number):
            self._trace.batch_gradient = gradient_facts(trainer)
            if look.worker == self._worker:
                checkpoint.save(state_path(Path(self._job.folder)), state_of(trainer), {})

    def end(self) -> None:
        """Leave the trace in the folder."""
        for number, trainer in enumerate(self._trainers):
            self._observe(number, "end", None)
            self._trace.digests.append(trainer.digest())
        self._job.trace_of(self._worker).write_text(json.dumps(asdict(self._trace)))


def _main() -> None:
    die_with_parent()
    given = json.loads(sys.argv[1])
    job = ScriptJob(folder=given["folder"], look=given["look"] and CloseLook(*given["look"]))
    script, worker = sys.argv[2], read_place(os.environ).worker
    recorder = ScriptRecorder(job, worker)
    session.watch_trainers.append(recorder.watch)
    sys.argv = sys.argv[2:]
    sys.path.insert(0, str(Path(script).parent))  # as when it is run by itself
    os.chdir(job.files)
    with job.output_of(worker).open("wb") as output:
        os.dup2(output.fileno(), 1)  # what processes of its own print, too
    try:
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
        recorder.end()
    except BaseException as error:
        WorkerReport.of_error(worker, error).write(job.reports)
        sys.stdout.flush()
        raise SystemExit(1) from None
    sys.stdout.flush()


if __name__ == "__main__":
    _main()
