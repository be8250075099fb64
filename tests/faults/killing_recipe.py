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
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samepath import Recipe
from samepath.errors import UserError
from samepath.faults import set_fault_handler
from samepath.files import PART

HERE = Path(__file__).parent
PLAN: dict[str, Any] = json.loads((HERE / "harm.json").read_text())
sys.path.insert(0, PLAN["tiny_recipe"])
import tiny_recipe  # noqa: E402

WORKER = int(os.environ["LOCAL_RANK"]) if "LOCAL_RANK" in os.environ else None
"""Which it is, also when others have been left out."""
STEPS = HERE / "steps.txt"


def steps_begun() -> list[int]:
    return [int(line) for line in STEPS.read_text().split()] if STEPS.exists() else []


now = max(steps_begun(), default=-1)
calls = Counter[str]()


def marked(number: int, times: int) -> bool:
    """This harm is done now, and never again."""
    for time_ in range(times):
        with suppress(FileExistsError):
            os.close(os.open(HERE / f"harm-{number}-{time_}", os.O_CREAT | os.O_EXCL))
            return True
    return False


def point(phase: str, first: Callable[[], object] = lambda: None) -> None:
    """Here somebody may be harmed; `first` makes it worse."""
    calls[phase] += 1
    for number, harm in enumerate(PLAN["harms"]):
        here = harm["phase"] == phase and harm["worker"] in (WORKER, None)
        due = now >= harm["step"] and calls[phase] > harm["after"]
        if here and due and marked(number, harm["times"]):
            first()
            do(harm["how"])


def do(how: str) -> None:
    if how.startswith("late "):  # others come further first
        time.sleep(0.3)
        how = how.removeprefix("late ")
    if how == "raise":
        raise RuntimeError("the scanner is on fire")
    if how == "exit":
        sys.exit(0)
    if how == "exit 7":
        os._exit(7)
    if how == "misuse":
        raise UserError("the scanner needs coal; add coal")
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


def damage(name: str, facts: dict[str, Any]) -> None:
    """Leave half of what is being written, as a process does that is killed meanwhile."""
    if name == "metrics":
        os.write(facts["file"], facts["waiting"][: len(facts["waiting"]) // 2])
    elif name == "write":
        part: Path = facts["path"].with_name(facts["path"].name + PART)
        part.write_bytes(facts["data"][: len(facts["data"]) // 2])
    elif name == "tensors":
        os.truncate(facts["path"], facts["path"].stat().st_size // 2)
    elif name == "keep":
        facts["data"][len(facts["data"]) // 2 :].fill_(170)


PHASES = {
    ("write", "run.json"): "run.json",
    ("write", "checkpoint.json"): "checkpoint, text",
    ("tensors", "state.safetensors"): "checkpoint, tensors",
    ("rename", "checkpoints"): "checkpoint, renamed",
}
"""What a plan calls fault points of the engine that are at many files."""


def at_fault_point(name: str, **facts: Any) -> None:
    global now
    if name == "step":
        now = facts["step"]
        if os.environ["RANK"] == "0":
            with STEPS.open("a") as file:
                file.write(f"{now}\n")
    phase = name
    if name in ("write", "tensors", "rename"):
        phase = PHASES.get((name, (facts.get("path") or facts["folder"]).name), "")
    if name != "metrics" or facts["waiting"]:
        point(phase, lambda: damage(name, facts))


if WORKER is not None:
    os.environ["SAMEPATH_LINK"] = PLAN["link"]
    set_fault_handler(at_fault_point)


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
        i_know=True,  # no further calls of the loss: they are counted
    )
