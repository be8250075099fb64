"""Does a person's own script do the same at every worker count, and if not, where does it part?

In: a script that calls samepath.start(), its arguments, worker counts. Out: a ScriptVerdict. At
every count the script runs as `samepath run` runs it (on one worker: as `python` does), in a new,
empty folder. Compared are, for every trainer, weights, buffers, optimizer state and losses before
and after every step, metrics, and at the end what the first worker printed and the files that were
written. Guaranteed: nothing is left on disk, and nothing of the script's earlier runs is met.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from samepath.console import count
from samepath.engine.comm.environment import read_place
from samepath.engine.launch.launch import launch_script, lone_process
from samepath.engine.launch.reports import WorkerReport, read_reports
from samepath.engine.state import checkpoint
from samepath.engine.verify.compare import (
    Parting,
    Values,
    compare_tensors,
    first_event,
    first_name,
)
from samepath.engine.verify.explain import OF_SCRIPTS, Cause, Evidence, explain_script
from samepath.engine.verify.script_trace import CloseLook, Event, ScriptJob, ScriptTrace
from samepath.engine.verify.trace import Grains, state_path
from samepath.errors import SamepathError, UserError, WorkerFailed
from samepath.files import content_hash
from samepath.owners import owned_folder

COUNTS = (1, 2, 3)
"""Tried when none are given."""


@dataclass(frozen=True, kw_only=True)
class ScriptRequest:
    """What a person asked for."""

    script: str
    arguments: Sequence[str] = ()
    counts: Sequence[int] = COUNTS
    """Worker counts; the first is what the others are compared with."""
    links: Sequence[str] = ()
    """Files and folders that the script finds in its folder."""
    tell: Callable[[str], None] = lambda text: None
    """Told what begins."""


@dataclass(frozen=True, kw_only=True)
class ScriptRun:
    """One run that was compared."""

    num_workers: int
    steps: list[int]
    """Steps of every trainer."""
    digests: list[str]
    """Digests of every trainer in the end."""
    num_lines: int
    """Printed by the first worker."""
    num_files: int
    parts: bool
    """It is not the first run's path, or does not say or write the same."""


@dataclass(frozen=True, kw_only=True)
class ScriptDifference:
    """Where and why two runs part."""

    num_workers: tuple[int, int]
    worker: int
    trainer: int | None
    """None where no trainer shows it: something that is printed or written."""
    kind: str
    step: int | None
    """Completed steps of that trainer."""
    name: str
    """The first tensor, setting, loss, metric, printed line or file that differs."""
    values: Values | None
    cause: Cause


@dataclass(frozen=True, kw_only=True)
class ScriptVerdict:
    """What came out."""

    script: str
    runs: list[ScriptRun]
    difference: ScriptDifference | None
    unsteady: list[str]
    """Printed lines and files that change from run to run at one worker count too (times, say)."""

    @property
    def equal(self) -> bool:
        return self.difference is None


class _Parting(NamedTuple):
    """The first event that differs."""

    worker: int
    place: int
    mine: Event | None
    yours: Event | None
    name: str | None
    """The name of the fact that differs; None where the events are of another kind."""


@dataclass(frozen=True, kw_only=True)
class _Ran:
    """A run that was made."""

    num_workers: int
    job: ScriptJob
    traces: list[ScriptTrace]
    lines: list[str]
    files: dict[str, str]
    """Their hashes by path."""

    @property
    def first(self) -> ScriptTrace:
        return self.traces[0]


@dataclass
class _Runner:
    """Runs a script, each time in a folder of its own."""

    request: ScriptRequest
    folder: Path
    _number: int = field(default=0)

    def run(self, num_workers: int, look: CloseLook | None = None) -> _Ran:
        """Run it once."""
        self._number += 1
        job = ScriptJob(folder=str(self.folder / f"run-{self._number}"), look=look)
        job.make_folders()
        for name in self.request.links:
            (job.files / Path(name).name).symlink_to(Path(name).resolve())
        what = "running" if look is None else f"looking into step {look.step} of"
        self.request.tell(f"{what} {self.request.script} on {count(num_workers, 'worker')}")
        about = json.dumps({"folder": job.folder, "look": look})
        script = str(Path(self.request.script).resolve())
        command = ["-P", "-m", "samepath.engine.verify.script_trace", about, script]
        try:
            _start([*command, *self.request.arguments], num_workers)
        except SamepathError as error:
            raise self._failure(job, num_workers, error) from None
        files = {
            str(path.relative_to(job.files)): content_hash(path)
            for path in sorted(job.files.rglob("*"))
            if path.is_file() and not path.is_symlink()
        }
        return _Ran(
            num_workers=num_workers,
            job=job,
            traces=[ScriptTrace.read(job.trace_of(worker)) for worker in range(num_workers)],
            lines=job.output_of(0).read_text(errors="replace").splitlines(),
            files=files,
        )

    def _failure(self, job: ScriptJob, num_workers: int, error: SamepathError) -> SamepathError:
        """The first worker's own words, where it has left some."""
        reports = read_reports(job.reports).values()
        own = [report for report in reports if not report.secondary] or [*reports]
        if not own or error.exit_code > 128:  # interrupted
            return error
        found = min(own, key=lambda report: report.time).error()
        where = f"{self.request.script} on {count(num_workers, 'worker')}: "
        hint = ""
        if "FileNotFoundError" in str(found):
            hint = "\nIt is verified in an empty folder: --link PATH puts a file or folder there."
        found.args = (f"{where}{found}{hint}",)
        return found


def _start(command: Sequence[str], num_workers: int) -> None:
    if num_workers > 1:
        launch_script(command, num_workers)
        return
    with lone_process([sys.executable, "-u", *command]) as process:
        process.wait()
    if process.returncode:
        raise WorkerFailed(WorkerReport.of_exit(0, process.returncode, process.pid).message)


def verify_script(request: ScriptRequest) -> ScriptVerdict:
    """Run a script at every count and compare all that it does."""
    if read_place(os.environ).launcher != "alone":
        raise UserError(
            "verify starts its own workers at every count; run it without torchrun, mpirun or srun"
        )
    for name in request.links:
        if not Path(name).exists():
            raise UserError(f"--link {name}: there is no such file or folder; check the path")
    counts = request.counts
    if len(counts) < 2:
        instead = "1,2" if list(counts) == [1] else f"1,{counts[0]}"
        raise UserError(f"-n {counts[0]}: one run has nothing to agree with; try -n {instead}")
    with owned_folder("verify-") as folder:
        runner = _Runner(request, Path(folder))
        runs = [runner.run(counts[0])]
        if not any(event.kind == "step" for event in runs[0].first.events):
            raise UserError(
                f"{request.script} took no step with a trainer of samepath, so there is nothing to "
                "compare; check its arguments, and that it calls trainer.step()"
            )
        runs += [runner.run(count) for count in counts[1:]]
        partings = [_first_parting(runs[0].first, run) for run in runs]
        found = [(p, run) for p, run in zip(partings, runs, strict=True) if p is not None]
        if found:
            parting, run = min(found, key=lambda each: each[0].place)
            unsteady: list[str] = []
            parting_runs = [run for _, run in found]
            difference: ScriptDifference | None = _look_into(parting, runner, runs[0], run)
        else:
            difference, unsteady, parting_runs = _compare_results(runner, runs)
        return ScriptVerdict(
            script=request.script,
            runs=[_counted(run, parts=any(run is one for one in parting_runs)) for run in runs],
            difference=difference,
            unsteady=unsteady,
        )


def _counted(run: _Ran, *, parts: bool) -> ScriptRun:
    steps = [0] * len(run.first.digests)
    for event in run.first.events:
        steps[event.trainer] = event.step
    return ScriptRun(
        num_workers=run.num_workers,
        steps=steps,
        digests=run.first.digests,
        num_lines=len(run.lines),
        num_files=len(run.files),
        parts=parts,
    )


def _first_parting(reference: ScriptTrace, run: _Ran) -> _Parting | None:
    """Find where a run leaves another one. All workers of a run hold the whole state."""
    found = []
    for worker, trace in enumerate(run.traces):
        for place, (mine, yours) in enumerate(zip_longest(reference.events, trace.events)):
            if mine == yours:
                continue
            name = None
            if mine is not None and yours is not None and mine[:3] == yours[:3]:
                name = first_name(mine.facts, yours.facts)
            found.append(_Parting(worker, place, mine, yours, name))
            break
    return min(found, key=lambda each: (each.place, each.worker), default=None)


def _look_into(parting: _Parting, runner: _Runner, one: _Ran, other: _Ran) -> ScriptDifference:
    """Find the likely cause; for a difference within a step, repeat both runs and look inside."""
    mine, yours, name = parting.mine, parting.yours, parting.name
    event = mine or yours
    assert event is not None
    values = None
    if mine is None or yours is None or name is None:
        words = {"mine": _doing(mine), "yours": _doing(yours)}
        cause, name = _filled(OF_SCRIPTS["other"], words), "what is done"
    elif event.kind in ("begin", "end", "resume"):
        cause = OF_SCRIPTS["between"]
    else:
        cause, values = _cause_in_step(runner, one, other, parting.worker, event, name)
    return ScriptDifference(
        num_workers=(one.num_workers, other.num_workers),
        worker=parting.worker,
        trainer=event.trainer,
        kind=event.kind,
        step=event.step,
        name=name,
        values=values,
        cause=cause,
    )


def _cause_in_step(
    runner: _Runner, one: _Ran, other: _Ran, worker: int, event: Event, name: str
) -> tuple[Cause, Values | None]:
    """Explain a difference that a step or an evaluation makes, or that is there when a trainer is
    prepared."""
    look = CloseLook(event.trainer, event.step, worker)
    mine = runner.run(one.num_workers, look._replace(worker=0))
    yours = runner.run(other.num_workers, look)
    again = _first_parting(mine.first, yours)
    repeated = [
        _first_parting(before.first, now) is None for before, now in ((one, mine), (other, yours))
    ]
    validation = event.kind == "evaluate"
    grains: list[Grains] = [
        {grain: events for trace in run.traces for grain, events in trace.grains.items()}
        for run in (mine, yours)
    ]
    gradients = mine.first.batch_gradient, yours.traces[worker].batch_gradient
    evidence = Evidence(
        parting=Parting(0 if event.kind == "prepare" else event.step, name),
        event=first_event(grains[0], grains[1], validation=validation),
        repeatable=all(repeated),
        reproduced=again is not None,
        same_batch_gradient=gradients[0] == gradients[1],
        kinds=mine.first.kinds,
    )
    states = [checkpoint.list_checkpoints(state_path(Path(r.job.folder))) for r in (mine, yours)]
    values = None
    if all(states):
        ours, theirs = (checkpoint.load(s[-1]).state.tensors.get(name) for s in states)
        values = None if ours is None or theirs is None else compare_tensors(ours, theirs)
    return explain_script(evidence), values


def _doing(event: Event | None) -> str:
    if event is None:
        return "nothing more"
    return f"{event.kind} of trainer {event.trainer} after {count(event.step, 'step')}"


def _filled(cause: Cause, words: dict[str, str]) -> Cause:
    return Cause(
        where=cause.where,
        found=cause.found.format_map(words),
        likely=cause.likely,
        remedy=cause.remedy,
    )


def _compare_results(
    runner: _Runner, runs: Sequence[_Ran]
) -> tuple[ScriptDifference | None, list[str], list[_Ran]]:
    """Compare what was printed and written, where the trainers agree: the first difference, what
    changes without another worker count too, and the runs that differ."""
    reference = runs[0]
    if all((run.lines, run.files) == (reference.lines, reference.files) for run in runs):
        return None, [], []
    again = runner.run(reference.num_workers)
    unsteady_lines = {
        place
        for place, pair in enumerate(zip_longest(reference.lines, again.lines))
        if pair[0] != pair[1]
    }
    unsteady_files = {
        path
        for path in reference.files.keys() | again.files.keys()
        if reference.files.get(path) != again.files.get(path)
    }
    difference, parts = None, []
    for run in runs[1:]:
        found: tuple[str, str, dict[str, str]] | None = None
        for place, (mine, yours) in enumerate(zip_longest(reference.lines, run.lines)):
            if mine != yours and place not in unsteady_lines:
                shown = {"mine": mine or "nothing", "yours": yours or "nothing"}
                found = "printed", f"line {place + 1} of what is printed", shown
                break
        else:
            for path in sorted(reference.files.keys() | run.files.keys()):
                same = reference.files.get(path) == run.files.get(path)
                if not same and path not in unsteady_files:
                    found = "written", f"the file {path}", {"mine": path}
                    break
        if found is None:
            continue
        parts.append(run)
        kind, name, words = found
        difference = difference or ScriptDifference(
            num_workers=(reference.num_workers, run.num_workers),
            worker=0,
            trainer=None,
            kind=kind,
            step=None,
            name=name,
            values=None,
            cause=_filled(OF_SCRIPTS[kind], words),
        )
    lines = [f"printed line {place + 1}" for place in sorted(unsteady_lines)]
    return difference, lines + [f"file {path}" for path in sorted(unsteady_files)], parts
