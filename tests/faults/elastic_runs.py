"""Runs of a range of workers, to be hurt: started as a person would, looked at through /proc and
their metrics, compared with a run that nothing happened to."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from samepath.engine.elastic.machine import MachineOffer, WorkerRange
from samepath.engine.elastic.ring import MEMORY
from samepath.engine.run.loop import Run
from samepath.engine.run.request import Request
from samepath.engine.state.progress import RunResult
from samepath.engine.train import train

SAMEPATH = Path(sys.executable).with_name("samepath")
RECIPE = Path(__file__).parents[1] / "parity" / "tiny_recipe.py"
PATIENCE_SECONDS = 240.0
GOES_ON = "going on from the last completed step"


def children(process: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # a thread, or the process, has just ended
        for file in Path(f"/proc/{process}/task").glob("*/children"):
            with suppress(OSError):
                found += [int(child) for child in file.read_text().split()]
    return found


def command_of(process: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


def workers_of(launcher: int) -> list[int]:
    """A launcher's workers, the first one first: those that its fork server has started."""
    servers = [child for child in children(launcher) if b"forkserver" in command_of(child)]
    # in order of birth as they are; numbers begin anew now and then
    return [worker for server in servers for worker in children(server)]


def lines(out: Path) -> list[dict[str, Any]]:
    """What a run has logged, without times."""
    file = out / "metrics.jsonl"
    read = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [{name: value for name, value in line.items() if name != "seconds"} for line in read]


def num_lines(out: Path) -> int:
    """Of a run that may be writing one."""
    file = out / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


class Started(Protocol):
    """A process that a test has started."""

    def poll(self) -> int | None:
        """Its exit code; None: it has not ended."""

    def communicate(self) -> tuple[str, str]:
        """Wait for its end, and what it said."""


def until(condition: Callable[[], bool], process: Started | None = None) -> float:
    """Wait for something, not forever; how long it took."""
    began = time.monotonic()
    while not condition():
        if process is not None and process.poll() is not None:
            raise AssertionError(f"it ended: {process.communicate()}")
        assert time.monotonic() - began < PATIENCE_SECONDS, "nothing happens"
        time.sleep(0.01)
    return time.monotonic() - began


def start(
    *arguments: str | Path,
    slow_seconds: float = 0.02,
    start_new_session: bool = False,
    **variables: str,
) -> subprocess.Popen[str]:
    """`samepath` with these arguments, its grains slowed down so that there is time to hurt it."""
    return subprocess.Popen(
        [SAMEPATH, *arguments],
        env={**os.environ, "SLOW_SECONDS": str(slow_seconds), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=start_new_session,
    )


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The result that a command with --json printed."""
    stdout, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, stderr
    result: dict[str, Any] = json.loads(stdout)
    return result


def undisturbed(
    folder: Path, epochs: int, recipe: Path = RECIPE
) -> tuple[str, list[dict[str, Any]]]:
    """Digest and metrics of one worker that nothing happens to."""
    out = folder / "undisturbed"
    result, _ = train(Request(recipe=str(recipe), num_workers=1, epochs=epochs, out=out))
    return result.digest, lines(out)


# ---- harm that is done at a chosen place


def harm(
    phase: str,
    worker: int | None,
    step: int = -1,
    how: str = "SIGKILL",
    *,
    times: int = 1,
    after: int = 0,
) -> dict[str, Any]:
    """One worker (None: any) comes to grief in a phase of a step, or of the first one after it that
    has such a phase; `after` so many of them."""
    return locals()


def harmful(
    folder: Path,
    *harms: dict[str, Any],
    link: str = "auto",
    slow_seconds: float = 0.0,
    epochs: int = 4,
) -> Path:
    """A recipe in which these things happen."""
    folder.mkdir(parents=True, exist_ok=True)
    plan = {
        "harms": harms,
        "link": link,
        "slow_seconds": slow_seconds,
        "epochs": epochs,
        "tiny_recipe": str(RECIPE.parent),
    }
    (folder / "harm.json").write_text(json.dumps(plan))
    return Path(shutil.copy(Path(__file__).with_name("killing_recipe.py"), folder))


def harms_done(recipe: Path) -> int:
    return len(list(recipe.parent.glob("harm-*")))


def steps_begun(recipe: Path) -> list[int]:
    """By worker 0, in order."""
    file = recipe.with_name("steps.txt")
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def steps_repeated(recipe: Path) -> int:
    """Nothing was left out; so many were begun more than once."""
    begun = steps_begun(recipe)
    assert set(begun) == set(range(max(begun) + 1))
    return len(begun) - len(set(begun))


class Steps:
    """Counts the steps that a worker in this process takes: a Request's `watch`."""

    taken: list[int]

    def __init__(self, run: Run) -> None:
        Steps.taken = []
        run.after_step = lambda _, results: self.taken.extend(result.step for result in results)

    def __call__(self, result: RunResult) -> None: ...


def elastic(
    recipe: Path, out: Path, workers: int, *, least: int = 1, most: int = 4, **more: Any
) -> RunResult:
    """Train on a range of workers, launched by this process: its fork server has torch at hand."""
    request = Request(
        recipe=str(recipe),
        num_workers=WorkerRange(least=least, most=most),
        machine=MachineOffer(workers=workers),
        out=out,
        **more,
    )
    return train(request)[0]


@contextmanager
def meanwhile(action: Callable[[], None]) -> Iterator[None]:
    """Do something in another thread; what goes wrong there goes wrong here."""
    errors: list[BaseException] = []

    def act() -> None:
        try:
            action()
        except BaseException as error:  # a failed assertion too
            errors.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    yield
    thread.join()
    if errors:
        raise errors[0]


def left_behind(out: Path) -> list[str]:
    """Of a run that has ended: memory, where it met, processes that have its folder open."""
    run_id = json.loads((out / "run.json").read_text())["id"]
    found = [str(file) for file in MEMORY.glob(f"samepath-*/{run_id}*")]
    found += [str(file) for file in out.glob("*meeting*")]
    for place in Path("/proc").glob("[0-9]*"):
        try:
            opened = [os.readlink(link) for link in (place / "fd").iterdir()]
        except OSError:
            continue  # gone meanwhile, or not ours
        found += [f"process {place.name}: {file}" for file in opened if str(out) in file]
    return found + [f"worker {process}" for process in workers_of(os.getpid())]
