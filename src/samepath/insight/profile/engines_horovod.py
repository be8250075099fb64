"""Horovod itself, where it is installed: the same plain loop, on workers that it starts.

In: a Job. Out: a Timeline. Gradients are given to `allreduce_async_` as they come and synchronised
before the update, which is what its DistributedOptimizer does. When its buffers travelled is in
Horovod's own timeline, which worker 0 writes: all workers are taken to reduce at those times.
Guaranteed: nothing of Horovod is imported unless it is asked for.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samepath.engine.run.options import recipe_of
from samepath.engine.run.session import settle_in
from samepath.errors import UserError, WorkerFailed
from samepath.insight.profile.engines_plain import PlainLoop, Reducer
from samepath.insight.profile.recorder import Recorder
from samepath.insight.profile.timeline import Event, Timeline, union
from samepath.insight.profile.worker import (
    ONE_CLOCK,
    Found,
    Job,
    event_of,
    in_order,
    take_step,
    turns,
)

START_SECONDS = 120


def refuse_horovod() -> None:
    """Raise unless it can be used."""
    try:
        importlib.import_module("horovod.torch")
    except Exception as error:
        raise UserError(
            f"--engine horovod: Horovod cannot be used here ({error}); use --engine queue, which "
            "goes the same way, or build it: HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 "
            "HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1 pip install --no-build-isolation --no-deps"
            " horovod==0.28.1, with CXX a script that calls g++ with -std=gnu++20 for -std=c++14 "
            "and -Wl,--allow-multiple-definition"
        ) from error


def run_horovod(job: Job, num_workers: int, scratch: Path) -> Found:
    """All steps of the job, on workers that Horovod starts on this machine."""
    horovod = importlib.import_module("horovod")
    timeline = scratch / "horovod.json"
    settings = {
        "HOROVOD_TIMELINE": str(timeline),
        "HOROVOD_CYCLE_TIME": f"{1e3 * job.queue.cycle_seconds:g}",
        "HOROVOD_FUSION_THRESHOLD": str(job.queue.fusion_bytes),
    }
    try:
        with _environment(settings):
            texts = horovod.run(
                _work,
                args=(job,),
                num_proc=num_workers,
                use_gloo=True,
                network_interfaces=["lo"],
                start_timeout=START_SECONDS,
            )
    except RuntimeError as error:
        raise WorkerFailed(f"horovod: {error}") from error
    told = json.loads(timeline.read_text())
    events: list[Event] = []
    for worker, text in enumerate(texts):
        found = json.loads(text)
        mine = [event_of(row) for row in found["events"]]
        events += [*mine, *reductions(told, found["sizes"], mine, worker, num_workers)]
    return Found(
        timelines=(Timeline(engine="horovod", num_workers=num_workers, events=in_order(events)),),
        clock=ONE_CLOCK,
        busy_cores=0.0,
    )


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Horovod(Reducer):
    """Gradients as they come, to Horovod's queue."""

    def __init__(self, hvd: Any, model: nn.Module, recorder: Recorder) -> None:
        self.module = model
        self._hvd = hvd
        self._recorder = recorder
        self._parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._handles: dict[str, int] = {}
        for name, parameter in self._parameters.items():
            parameter.register_post_accumulate_grad_hook(self._hook(name))

    def _hook(self, name: str) -> Callable[[Tensor], None]:
        def ready(parameter: Tensor) -> None:
            self._announce(name, parameter)

        return ready

    def _announce(self, name: str, parameter: Tensor) -> None:
        self._handles[name] = self._hvd.allreduce_async_(
            parameter.grad, name=name, op=self._hvd.Sum
        )

    def backward(self, loss: Tensor, scale: float) -> None:
        recorder = self._recorder
        self._handles = {}
        began = recorder.now()
        loss.backward(torch.full_like(loss, scale))
        for name, parameter in self._parameters.items():
            if name not in self._handles:
                parameter.grad = torch.zeros_like(parameter)
                self._announce(name, parameter)
        recorder.note("backward", began, recorder.now())
        recorder.timed("wait", self._synchronise)()

    def _synchronise(self) -> None:
        for handle in self._handles.values():
            self._hvd.synchronize(handle)


def _work(job: Job) -> str:
    """One worker's whole life, in a process of Horovod's: its events and tensors, as JSON."""
    hvd = importlib.import_module("horovod.torch")
    hvd.init()
    settle_in(torch.device("cpu"), seed=job.options.seed, threads=job.options.threads)
    recorder = Recorder(hvd.rank())
    recipe = recipe_of(job.options).recipe

    def total(weight: float) -> float:
        return float(hvd.allreduce(torch.tensor([weight], dtype=torch.float64), op=hvd.Sum))

    engine = PlainLoop(
        recipe,
        job.options,
        recorder,
        lambda model: Horovod(hvd, model, recorder),
        worker=hvd.rank(),
        workers=hvd.size(),
        total=recorder.timed("wait", total, "weights"),
    )
    for step in turns(job.steps, several=False)[0]:
        take_step(engine, recorder, step)
    hvd.shutdown()
    sizes = {name: p.nbytes for name, p in engine.model.named_parameters()}
    return json.dumps({"events": [astuple(e) for e in recorder.events], "sizes": sizes})


def reductions(
    rows: Sequence[Mapping[str, Any]],
    tensor_bytes: Mapping[str, int],
    events: Sequence[Event],
    worker: int,
    num_workers: int,
) -> list[Event]:
    """The ALLREDUCE spans of Horovod's timeline as events of a worker, on its clock.

    Tensors are processes there; the spans of those in one fused buffer overlap, and buffers follow
    one another. Times are microseconds from a start that is given as time of day."""
    start, names = 0.0, {}
    open_at: dict[int, list[tuple[str, float]]] = {}
    spans: list[tuple[float, float, str]] = []
    for row in rows:
        if row.get("name") == "process_name":
            start = row["args"].get("start_time_since_epoch_in_micros", start)
            names[row["pid"]] = str(row["args"].get("name", "")).removeprefix("allreduce.")
        elif row["ph"] == "B":
            open_at.setdefault(row["pid"], []).append((row["name"], row["ts"]))
        elif row["ph"] == "E" and open_at.get(row["pid"]):
            what, began = open_at[row["pid"]].pop()
            if what == "ALLREDUCE":
                spans.append((began, row["ts"], names[row["pid"]]))
    ahead = time.time() - time.perf_counter()
    steps = [event for event in events if event.phase == "step"]
    found = []
    for first, last in union((begin, end) for begin, end, _ in spans):
        begin, end = ((start + micros) / 1e6 - ahead for micros in (first, last))
        members = [name for began, _, name in sorted(spans) if first <= began <= last]
        step = next((e.step for e in steps if e.begin <= begin <= e.end), None)
        if step is not None:
            num_bytes = sum(tensor_bytes.get(name, 0) for name in members)
            found.append(
                Event(
                    worker=worker,
                    step=step,
                    phase="reduction",
                    name=f"{members[0]} ({len(members)} tensors)",
                    begin=begin,
                    end=end,
                    bytes_sent=round(2 * (num_workers - 1) / num_workers * num_bytes),
                )
            )
    return found
