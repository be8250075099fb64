"""What a training run looked like from inside, written down so that two runs can be compared.

In: a run, and perhaps one step to look into. Out: in a folder, for every worker, a WorkerTrace:
fingerprints of everything the promise covers after every step; for the step to look into also of
every grain's data, module inputs and outputs, loss and gradients, and one worker's state as a
checkpoint. Guaranteed: looking changes no bits; states whose digests differ have a fingerprint that
differs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from samepath.engine.checks.refuse import OwnHook
from samepath.engine.comm.rows import tensors_in
from samepath.engine.comm.tensors import fingerprint
from samepath.engine.run.loop import Run
from samepath.engine.run.trainer import Trainer
from samepath.engine.state import checkpoint
from samepath.engine.state.progress import RunResult
from samepath.engine.state.state import State, state_of
from samepath.engine.step.settings import StepResult


@dataclass(frozen=True, kw_only=True)
class TraceJob:
    """A run to be recorded: a Request's `watch`."""

    folder: Path
    look_into: int | None = None
    """A step, counted from 1; 0 looks at the state before the first."""
    keep_worker: int = 0
    """Whose state after that step is kept, if the run ends there."""

    def __call__(self, run: Run) -> Callable[[RunResult], None]:
        """Begin to record on one worker."""
        return TraceRecorder(self, run).end


class GrainEvent(NamedTuple):
    """One thing that happened to a grain."""

    point: str
    """loaded, weight, augmented, input, output, loss (or encoded), buffer, backward, gradient or
    metrics"""
    name: str
    """The name of the module (input, output; backward: the gradient at its output), parameter
    (gradient) or buffer."""
    inside: str | None
    """The module whose forward was running; None outside the model."""
    fingerprint: str


Grains = dict[str, list[GrainEvent]]
"""Traces by grain: "train 0", or "valid 0" for validation."""


@dataclass
class WorkerTrace:
    """What one worker saw."""

    steps: list[dict[str, str]] = field(default_factory=list)
    """Fingerprints of every step (the first: before any) by name, in the order in which a
    difference is reported: model, optimizer, settings, losses, metrics."""
    first_step: int = 0
    """Completed when this process began: above 0 where it continued a run."""
    end: dict[str, str] = field(default_factory=dict)
    """The state once more, after the run's last evaluation."""
    grains: Grains = field(default_factory=dict)
    """This worker's grains of the step that was looked into."""
    batch_gradient: dict[str, str] = field(default_factory=dict)
    """After that step, by parameter."""
    kinds: dict[str, str] = field(default_factory=dict)
    """Class names by module name."""
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def last_step(self) -> int:
        return self.first_step + len(self.steps) - 1

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(path: Path) -> WorkerTrace:
        trace = WorkerTrace(**json.loads(path.read_text()))
        trace.grains = {g: [GrainEvent(*e) for e in events] for g, events in trace.grains.items()}
        return trace


def trace_path(folder: Path, worker: int) -> Path:
    return folder / f"worker-{worker}.json"


def state_path(folder: Path) -> Path:
    """Where the kept state is, as the only checkpoint."""
    return folder / "state"


class TraceRecorder:
    """Takes fingerprints after every step."""

    def __init__(self, job: TraceJob, run: Run) -> None:
        self._job = job
        self._run = run
        self._trainer = trainer = run.trainer
        self._trace = WorkerTrace(first_step=trainer.step_number)
        self._trace.kinds = {n: type(m).__name__ for n, m in trainer.model.named_modules()}
        if job.look_into is not None:
            GrainWatch(trainer, job.look_into, self._trace.grains)
        run.after_step = self._after_step
        self._trace.steps.append(self._state())

    def _state(self) -> dict[str, str]:
        self._trainer.settle()  # on all workers between the same steps
        return state_fingerprints(state_of(self._trainer))

    def _after_step(self, trainer: Trainer, results: Sequence[StepResult]) -> None:
        facts = self._state() | step_facts(results)
        progress = self._run.progress
        if trainer.step_number == progress.epoch_began:  # an epoch has ended
            if progress.train_loss is not None:
                facts["epoch loss"] = progress.train_loss.hex()
            facts |= metric_facts(progress.metrics)
        self._trace.steps.append(facts)
        if trainer.step_number == self._job.look_into:
            self._trace.batch_gradient = gradient_facts(trainer)

    def end(self, result: RunResult) -> None:
        """Leave the trace in the folder."""
        job, trace, worker = self._job, self._trace, self._run.session.worker
        trace.steps[-1] |= metric_facts(result.metrics)
        trace.end = self._state()
        trace.result = asdict(result)
        if worker == job.keep_worker and self._trainer.step_number == job.look_into:
            checkpoint.save(state_path(job.folder), state_of(self._trainer), {})
        trace.write(trace_path(job.folder, worker))


def step_facts(results: Sequence[StepResult]) -> dict[str, str]:
    """What a step says of itself: one update a step; with a lag none at first."""
    metrics = [result.metrics for result in results]
    return {
        "loss": " ".join(result.loss.hex() for result in results),
        **({"metrics of the loss": fingerprint(metrics)} if any(metrics) else {}),
        "grain losses": fingerprint([result.grain_losses for result in results]),
        "gradient norm": " ".join(result.gradient_norm.hex() for result in results),
        "learning rate": " ".join(result.learning_rate.hex() for result in results),
        "noise scale": json.dumps([r.noise and asdict(r.noise) for r in results]),
    }


def metric_facts(metrics: Mapping[str, float]) -> dict[str, str]:
    return {f"valid {name}": float(value).hex() for name, value in metrics.items()}


def gradient_facts(trainer: Trainer) -> dict[str, str]:
    """Fingerprints of the batch's gradient by parameter."""
    return {n: fingerprint(parameter.grad) for n, parameter in trainer.model.named_parameters()}


def state_fingerprints(state: State) -> dict[str, str]:
    """A fingerprint by name of everything that the digest covers."""
    facts = {name: fingerprint(tensor) for name, tensor in state.tensors.items()}
    values = {name: value for name, value in state.structure.items() if name != "step"}
    return facts | {name: json.dumps(value, sort_keys=True) for name, value in values.items()}


class GrainWatch:
    """Takes down the events of every grain of one step, and of the validation that follows it."""

    def __init__(self, trainer: Trainer, step: int, grains: Grains) -> None:
        self._trainer = trainer
        self._step = step
        self._grains = grains
        self._events: list[GrainEvent] | None = None
        self._running: list[str] = []
        self._last_output: Any = None
        trainer.watch = self._watch
        for name, module in trainer.model.named_modules():
            # a script takes no hooks, and compiled code would be other code with them
            if not (isinstance(module, torch.jit.ScriptModule) or trainer.settings.compile):
                module.register_forward_pre_hook(partial(self._before, name), with_kwargs=True)
                module.register_forward_hook(partial(self._after, name))
        for name, parameter in trainer.model.named_parameters():
            if parameter.requires_grad:
                # sees this grain's gradient alone, before autograd adds it to another's
                parameter.register_hook(OwnHook(partial(self._add, "gradient", name)))

    def _watch(self, point: str, grain: int, value: Any) -> None:
        """The trainer's own points; a grain begins with its data and ends with `done`."""
        if point == "examples":  # those of the plan, which all workers have
            return
        if point in ("loaded", "valid"):
            phase, when = ("train", self._step - 1) if point == "loaded" else (point, self._step)
            if self._trainer.step_number != when:
                return
            self._events = self._grains[f"{phase} {grain}"] = []
            self._running = []
            point = "loaded"
        if point == "resumed":  # the backward pass of a whole batch's grain
            if self._trainer.step_number == self._step - 1:
                self._events = self._grains[f"train {grain}"]
            return
        if point == "factors":  # in place of a weight's gradient
            for name, rows in value:
                self._add("gradient", name, rows)
            return
        if point == "done":
            self._events = self._last_output = None
            return
        self._add(point, "", value)
        if point in ("loss", "encoded"):
            for name, buffer in self._trainer.model.named_buffers():
                self._add("buffer", name, buffer)

    def _add(self, point: str, name: str, value: Any) -> None:
        if self._events is not None:
            inside = self._running[-1] if self._running else None
            self._events.append(GrainEvent(point, name, inside, fingerprint(value)))

    def _before(self, name: str, _: nn.Module, positional: Any, named: Any) -> None:
        if self._events is not None:
            self._add("input", name, (positional, named))
            self._running.append(name)

    def _after(self, name: str, _: nn.Module, inputs: Any, output: Any) -> None:
        if self._events is not None:
            while self._running and self._running.pop() != name:
                pass  # a forward that raised, and whose caller went on, never came here
            self._add("output", name, output)
            # a container mostly hands on what its last module made: that one's gradient it is
            if output is not self._last_output:
                for tensor in tensors_in(output):
                    if tensor.requires_grad:
                        tensor.register_hook(partial(self._add, "backward", name))
            self._last_output = output
