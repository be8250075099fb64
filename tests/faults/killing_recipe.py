"""The tiny recipe, whose workers come to grief where a plan says: in the middle of a pass, of a
sum, of a write.

The plan, `harm.json`, lies beside this file (tests copy it to a folder of their own). Each harm is
done so many times as it says, and has left a mark, `harm-<number>-<time>`, just before. Worker 0
writes down the steps it begins, in `steps.txt`. One worker alone, in the process that was started,
is not harmed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samepath import Recipe, files
from samepath.engine.comm.collective import NetworkBucket
from samepath.engine.comm.shared_memory import SharedBucket
from samepath.engine.elastic import ring as copies
from samepath.engine.elastic import step_memory as last_step
from samepath.engine.run import loop
from samepath.engine.run.session import Session
from samepath.engine.run.trainer import Trainer
from samepath.engine.state import checkpoint
from samepath.engine.state.metrics_log import Lines
from samepath.errors import UserError

HERE = Path(__file__).parent
PLAN: dict[str, Any] = json.loads((HERE / "harm.json").read_text())
sys.path.insert(0, PLAN["tiny_recipe"])
import tiny_recipe  # noqa: E402

WORKER = int(os.environ["LOCAL_RANK"]) if "SAMEPATH_STORE" in os.environ else None
"""Which it is, also when others have been left out."""
STEPS = HERE / "steps.txt"


def steps_begun() -> list[int]:
    return [int(line) for line in STEPS.read_text().split()] if STEPS.exists() else []


now = max(steps_begun(), default=-1)


def marked(number: int, times: int) -> bool:
    """This harm is done now, and never again."""
    for time_ in range(times):
        with suppress(FileExistsError):
            os.close(os.open(HERE / f"harm-{number}-{time_}", os.O_CREAT | os.O_EXCL))
            return True
    return False


def point(phase: str, first: Callable[[], object] = lambda: None) -> None:
    """Here somebody may be harmed; `first` makes it worse."""
    for number, harm in enumerate(PLAN["harms"]):
        here = harm["phase"] == phase and harm["worker"] in (WORKER, None) and now >= harm["step"]
        if here and marked(number, harm["times"]):
            first()
            do(harm["how"])


def do(how: str) -> None:
    if how == "raise":
        raise RuntimeError("the scanner is on fire")
    if how == "exit":
        sys.exit(0)
    if how == "misuse":
        raise UserError("the scanner needs coal; add coal")
    if how.startswith("late "):  # others come further first
        time.sleep(0.3)
        how = how.removeprefix("late ")
    if how == "linger until told to stop":
        told = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            around_handler(number, told.set)
        assert told.wait(120)
    elif how.startswith("linger"):
        time.sleep(float(how.removeprefix("linger")))
    elif how == "SIGSTOP soon":
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGSTOP)).start()
    else:
        os.kill(os.getpid(), getattr(signal, how))


def around_handler(number: int, after: Callable[[], None]) -> None:
    original = signal.getsignal(number)
    assert callable(original)

    def wrapped(number: int, frame: Any) -> None:
        original(number, frame)
        after()

    signal.signal(number, wrapped)


def around(
    owner: Any,
    name: str,
    before: Callable[..., object] = lambda *arguments: None,
    after: Callable[..., object] = lambda *arguments: None,
) -> None:
    """Do something before and after a function of the engine."""
    original = getattr(owner, name)

    def wrapped(*arguments: Any, **more: Any) -> Any:
        before(*arguments)
        result = original(*arguments, **more)
        after(*arguments)
        return result

    setattr(owner, name, wrapped)


def note_step(trainer: Trainer, share: Any, *_: Any) -> None:
    global now
    now = share.batch.step
    if os.environ["RANK"] == "0":
        with STEPS.open("a") as file:
            file.write(f"{now}\n")


def write_half_a_line(lines: Lines) -> None:
    if lines._file is not None and lines._waiting:
        waiting, file = lines._waiting, lines._file
        point("metrics", lambda: os.write(file, waiting[: len(waiting) // 2]))


def write_half(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    phase = {"run.json": "run.json", "checkpoint.json": "checkpoint, text"}.get(path.name, "")
    point(phase, lambda: part.write_text(text[: len(text) // 2]))


def cut_off(path: Path, *_: Any) -> None:
    point("checkpoint, tensors", lambda: os.truncate(path, path.stat().st_size // 2))


def renamed(folder: Path) -> None:
    if folder.name == "checkpoints":
        point("checkpoint, renamed")


def half_copied(data: Tensor) -> None:
    point("keep", lambda: data[len(data) // 2 :].fill_(170))


if WORKER is not None:
    os.environ["SAMEPATH_LINK"] = PLAN["link"]
    around(Trainer, "advance", before=note_step)
    around(SharedBucket, "_add_chunk", before=lambda *_: point("reduction"))
    around(NetworkBucket, "return_chunk", before=lambda *_: point("reduction"))
    around(Lines, "flush", before=write_half_a_line)
    around(checkpoint, "write_tensors", after=cut_off)
    around(files, "write_atomically", before=write_half)
    around(files, "sync_folder", before=renamed)
    around(copies, "_page_sums", before=half_copied)
    around(copies.Copies, "take_back", after=lambda *_: point("taken back"))
    around(
        last_step.LastStep,
        "write",
        before=lambda *_: point("before writing"),
        after=lambda *_: point("written"),
    )
    around(last_step.LastStep, "_write", after=lambda *_: point("partly written"))
    around(last_step.LastStep, "keep", after=lambda *_: point("kept"))
    around(loop, "recover", before=lambda *_: point("joined"), after=lambda *_: point("recovered"))
    around(loop.Run, "go", after=lambda *_: point("result"))
    around(Session, "__exit__", after=lambda *_: point("end"))


def loss(model: nn.Module, batch: tiny_recipe.Batch) -> Tensor:
    time.sleep(PLAN["slow_seconds"] if WORKER is not None else 0.0)
    point("forward")
    found = tiny_recipe.loss(model, batch)
    found.register_hook(lambda _gradient: point("backward"))
    return found


def evaluate(model: nn.Module, batch: tiny_recipe.Batch) -> dict[str, Tensor]:
    point("evaluation")
    return tiny_recipe.evaluate(model, batch)


class Optimizer(torch.optim.AdamW):
    """Weights have moved, and the step has not ended."""

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        point("optimizer")
        return result


def model() -> nn.Module:
    point("model")
    return tiny_recipe.model()


def recipe() -> Recipe:
    point("recipe")
    return replace(
        tiny_recipe.recipe(),
        model=model,
        loss=loss,
        evaluate=evaluate,
        optimizer=lambda parameters: Optimizer(parameters, lr=0.01),
        epochs=PLAN["epochs"],
    )
