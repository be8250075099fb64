"""What a training run looked like from inside, written down so that two runs can be compared.

In: a Job (options, a folder, and perhaps one step to look into). Out: in the folder, for every
worker, a Trace: fingerprints of everything the promise covers after every step; for the step to
look into also of every grain's data, module inputs and outputs, loss and gradients, and one
worker's state as a checkpoint. Guaranteed: looking changes no bits.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from samepath.engine import checkpoint
from samepath.engine.bits import fingerprint
from samepath.engine.loop import Run
from samepath.engine.options import Options, recipe_of
from samepath.engine.progress import Display, RunResult, Silent
from samepath.engine.reports import Interrupted
from samepath.engine.session import start
from samepath.engine.settings import StepResult
from samepath.engine.state import state_of
from samepath.engine.trainer import Trainer
from samepath.engine.work import stop_signals


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run to be recorded; crosses a process border."""

    options: Options
    folder: Path
    look_into: int | None = None
    """A step, counted from 1; 0 looks at the state before the first."""
    keep_worker: int = 0
    """Whose state after that step is kept."""
    display: Callable[[Options, int], Display] | None = None
    """Makes what worker 0 shows."""


class Event(NamedTuple):
    """One thing that happened to a grain."""

    point: str
    """loaded, weight, augmented, input, output, loss, buffer, backward, gradient or metrics"""
    name: str
    """Of the module (input, output; backward: the gradient at its output), parameter (gradient) or
    buffer."""
    inside: str | None
    """The module whose forward was running; None outside the model."""
    fingerprint: str


Grains = dict[str, list[Event]]
"""By grain: "train 0", or "valid 0" for validation."""


@dataclass
class Trace:
    """What one worker saw."""

    steps: list[dict[str, str]] = field(default_factory=list)
    """For every step (0: before the first) a fingerprint by name, in the order in which a
    difference is reported: model, optimizer, settings, losses, metrics."""
    grains: Grains = field(default_factory=dict)
    """This worker's grains of the step that was looked into."""
    batch_gradient: dict[str, str] = field(default_factory=dict)
    """After that step, by parameter."""
    kinds: dict[str, str] = field(default_factory=dict)
    """Class names by module name."""
    result: dict[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(path: Path) -> Trace:
        trace = Trace(**json.loads(path.read_text()))
        trace.grains = {g: [Event(*e) for e in events] for g, events in trace.grains.items()}
        return trace


def record(job: Job) -> None:
    """One worker's whole life."""
    options = job.options
    recipe = recipe_of(options).recipe
    with start(seed=options.seed, threads=options.threads) as session, stop_signals() as asked:
        display: Display = Silent()
        if job.display is not None and session.is_first:
            display = job.display(options, session.num_workers)
        recorder = Recorder(job, session.worker, display)
        run = Run(recipe, options, session, None, display=recorder, stop_asked=asked)
        recorder.begin(run)
        result = run.go()
        recorder.end(result).write(trace_path(job.folder, session.worker))
    if result.status == "interrupted":  # see `_launched` in train: it must not return
        raise Interrupted(result.signal or signal.SIGINT)


def trace_path(folder: Path, worker: int) -> Path:
    return folder / f"worker-{worker}.json"


def state_path(folder: Path) -> Path:
    """Where the kept state lies, as the only checkpoint."""
    return folder / "state"


class Recorder(Display):
    """Fingerprints after every step. Stands in for the display, which is told the losses."""

    def __init__(self, job: Job, worker: int, display: Display) -> None:
        self._job = job
        self._keeps = worker == job.keep_worker
        self._display = display
        self._trace = Trace()

    def begin(self, run: Run) -> None:
        model = run.trainer.model
        self._trace.kinds = {name: type(m).__name__ for name, m in model.named_modules()}
        if self._job.look_into is not None:
            GrainWatch(run.trainer, self._job.look_into, self._trace.grains)
        run.after_step = self._after_step
        self._facts(run.trainer)

    def _after_step(self, trainer: Trainer) -> None:
        facts = self._facts(trainer)
        facts["loss"] = self._result.loss.hex()
        facts["grain losses"] = fingerprint(self._result.grain_losses)
        facts["noise scale"] = json.dumps(self._result.noise and asdict(self._result.noise))
        if trainer.step_number == self._job.look_into:
            self._trace.batch_gradient = {
                name: fingerprint(parameter.grad)
                for name, parameter in trainer.model.named_parameters()
            }

    def _facts(self, trainer: Trainer) -> dict[str, str]:
        """Take down the state."""
        state = state_of(trainer)
        facts = {name: fingerprint(tensor) for name, tensor in state.tensors.items()}
        for name in ("groups", "schedule"):
            facts[name] = json.dumps(state.structure[name])
        self._trace.steps.append(facts)
        if self._keeps and trainer.step_number == self._job.look_into:
            checkpoint.save(state_path(self._job.folder), state, {})
        return facts

    def end(self, result: RunResult) -> Trace:
        self._metrics(result.metrics)
        self._trace.result = asdict(result)
        return self._trace

    def _metrics(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._trace.steps[-1][f"valid {name}"] = float(value).hex()

    # ---- what the loop tells a display

    def step(self, result: StepResult, steps: int, epochs: float) -> None:
        self._result = result
        self._display.step(result, steps, epochs)

    def epoch(self, epoch: int, train_loss: float | None, metrics: dict[str, float]) -> None:
        self._metrics(metrics)
        self._display.epoch(epoch, train_loss, metrics)

    def note(self, text: str) -> None:
        self._display.note(text)

    def close(self) -> None:
        self._display.close()


class GrainWatch:
    """Takes down the events of every grain of one step, and of the validation that follows it."""

    def __init__(self, trainer: Trainer, step: int, grains: Grains) -> None:
        self._trainer = trainer
        self._step = step
        self._grains = grains
        self._events: list[Event] | None = None
        self._running: list[str] = []
        self._last_output: Any = None
        trainer.watch = self._watch
        for name, module in trainer.model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):  # which takes no hooks
                module.register_forward_pre_hook(partial(self._before, name), with_kwargs=True)
                module.register_forward_hook(partial(self._after, name))
        for name, parameter in trainer.model.named_parameters():
            if parameter.requires_grad:
                # sees this grain's gradient alone, before autograd adds it to another's
                parameter.register_hook(partial(self._add, "gradient", name))

    def _watch(self, point: str, grain: int, value: Any) -> None:
        """The trainer's own points; a grain begins with its data and ends with `done`."""
        if point in ("loaded", "valid"):
            phase, when = ("train", self._step - 1) if point == "loaded" else (point, self._step)
            if self._trainer.step_number != when:
                return
            self._events = self._grains[f"{phase} {grain}"] = []
            self._running = []
            point = "loaded"
        if point == "done":
            self._events = self._last_output = None
            return
        self._add(point, "", value)
        if point == "loss":
            for name, buffer in self._trainer.model.named_buffers():
                self._add("buffer", name, buffer)

    def _add(self, point: str, name: str, value: Any) -> None:
        if self._events is not None:
            inside = self._running[-1] if self._running else None
            self._events.append(Event(point, name, inside, fingerprint(value)))

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
                for tensor in _tensors(output):
                    if tensor.requires_grad:
                        tensor.register_hook(partial(self._add, "backward", name))
            self._last_output = output


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (Mapping, tuple, list)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(inner)
