r"""Horovod itself, where it is installed: profile's plain loop, on workers that Horovod starts.

In: a ProfileRequest. Out: the Timeline of an engine `horovod`, beside those of `samepath profile`
(`benchmarks/profile_engines.py --engines samepath,queue,horovod`). Gradients are given to
`allreduce_async_` as they come and synchronised before the update, which is what its
DistributedOptimizer does. When its buffers travelled is in Horovod's own timeline, which worker 0
writes: all workers are taken to reduce at those times.

It is not a part of samepath, because pip alone cannot install it beside this torch. What it took:

    HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_TENSORFLOW=1 \
    HOROVOD_WITHOUT_MXNET=1 pip install --no-build-isolation --no-deps horovod==0.28.1

with CXX a script that calls g++ with -std=gnu++20 for -std=c++14 and
-Wl,--allow-multiple-definition.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samepath.engine.comm.collective import Alone, Record
from samepath.engine.run.options import Options, recipe_of, resolve
from samepath.engine.run.session import Session, settle_in
from samepath.insight.profile.engines import PlainLoop, Reducer, ring_bytes
from samepath.insight.profile.profile import ProfileRequest, take_step, turns
from samepath.insight.profile.recorder import PhaseRecorder
from samepath.insight.profile.timeline import Timeline, TimelineEvent, union
from samepath.recipe import find_recipe

START_SECONDS = 120


def profile_horovod(request: ProfileRequest) -> Timeline:
    """All steps of the request, on workers that Horovod starts on this machine."""
    run = importlib.import_module("horovod").run
    assert isinstance(request.num_workers, int)
    workers = request.num_workers
    options = resolve(find_recipe(request.recipe, request.data, request.keep), request)
    with TemporaryDirectory() as scratch:
        timeline = Path(scratch) / "horovod.json"
        os.environ |= {  # Horovod gives its workers this environment
            "HOROVOD_TIMELINE": str(timeline),
            "HOROVOD_CYCLE_TIME": f"{1e3 * request.queue.cycle_seconds:g}",
            "HOROVOD_FUSION_THRESHOLD": str(request.queue.fusion_bytes),
        }
        texts = run(
            _work,
            args=(options, request.timed_steps),
            num_proc=workers,
            use_gloo=True,
            network_interfaces=["lo"],
            start_timeout=START_SECONDS,
        )
        told = json.loads(timeline.read_text())
    events: list[TimelineEvent] = []
    for worker, text in enumerate(texts):
        found = json.loads(text)
        mine = [TimelineEvent(*row) for row in found["events"]]
        events += [*mine, *reductions(told, found["sizes"], mine, worker, workers)]
    events.sort(key=lambda e: (e.begin, -e.end, e.worker))
    return Timeline(engine="horovod", num_workers=workers, events=tuple(events))


class HorovodCollective(Alone):
    """Horovod's workers, for what the plain loop asks of a session."""

    def __init__(self, hvd: Any) -> None:
        super().__init__(torch.device("cpu"))
        self._hvd = hvd
        self.worker, self.num_workers = hvd.rank(), hvd.size()

    def gather_begin(self, record: Record) -> Callable[[], list[Record]]:
        rows = self._hvd.allgather(torch.from_numpy(np.array(record))[None])
        return lambda: list(rows.numpy())


class Horovod(Reducer):
    """Gives gradients, as they come, to Horovod's queue."""

    def __init__(self, hvd: Any, model: nn.Module, recorder: PhaseRecorder) -> None:
        self.module = model
        self._hvd = hvd
        self._recorder = recorder
        self._parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._handles: dict[str, int] = {}
        for name, parameter in self._parameters.items():
            parameter.register_post_accumulate_grad_hook(partial(self._announce, name))

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


def _work(options: Options, steps: int) -> str:
    """One worker's whole life, in a process of Horovod's: its events and tensors, as JSON."""
    hvd = importlib.import_module("horovod.torch")
    hvd.init()
    settle_in(torch.device("cpu"), seed=options.seed, threads=options.threads)
    recorder = PhaseRecorder(hvd.rank())
    session = Session(HorovodCollective(hvd), seed=options.seed)
    recipe = recipe_of(options)
    engine = PlainLoop(
        recipe, options, session, recorder, lambda model: Horovod(hvd, model, recorder)
    )
    for step in turns(steps, several=False)[0]:
        take_step(engine, recorder, step)
    hvd.shutdown()
    sizes = {name: p.nbytes for name, p in engine.model.named_parameters()}
    return json.dumps({"events": recorder.events, "sizes": sizes})


def reductions(
    rows: Sequence[Mapping[str, Any]],
    tensor_bytes: Mapping[str, int],
    events: Sequence[TimelineEvent],
    worker: int,
    num_workers: int,
) -> list[TimelineEvent]:
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
            name, sent = (
                f"{members[0]} ({len(members)} tensors)",
                ring_bytes(num_bytes, num_workers),
            )
            found.append(TimelineEvent(worker, step, "reduction", name, begin, end, sent))
    return found
