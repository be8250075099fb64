"""Machines of a run that is slow until it is let go: who computes, what each has said."""

from __future__ import annotations

import os
import re
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import elastic_runs
from elastic_runs import SAMEPATH, children, ended, lines, num_lines, workers_of

from samepath.files import LOCK

RECIPE = Path(__file__).parent / "braked_recipe.py"
PATIENCE_SECONDS = 120.0
EPOCHS = 60  # with the brake on that takes two minutes, without it two seconds


Outcome = tuple[str, list[dict[str, Any]]]
"""A run's digest and metrics."""


def undisturbed(folder: Path) -> Outcome:
    """What one worker comes to that nothing happens to."""
    return elastic_runs.undisturbed(folder, EPOCHS, RECIPE)


class Braked:
    """One run, and the folder it happens in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "run"
        self.started: list[Machine] = []
        (folder / "seen").mkdir()
        (folder / "brake").touch()

    def train(self, *arguments: str, **more: Any) -> Machine:
        return self.start(
            "train", RECIPE, "--epochs", str(EPOCHS), "--out", self.out, *arguments, **more
        )

    def join(self, *arguments: str, **more: Any) -> Machine:
        self.await_((self.out / "run.json").exists)
        return self.start("join", self.out, *arguments, **more)

    def start(
        self,
        *arguments: str | Path,
        before: Sequence[str] = (),
        as_json: bool = True,
        **variables: str,
    ) -> Machine:
        """`samepath` with these arguments; `before` is what starts it on another machine."""
        number = len(self.started)
        words = self.folder / f"words-{number}"
        with words.open("w") as stderr:
            process = subprocess.Popen(
                [*before, SAMEPATH, *arguments, *["--json"] * as_json],
                env={**os.environ, "BRAKE_FOLDER": str(self.folder), **variables},
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        self.started.append(Machine(self, process, words))
        return self.started[-1]

    def seen(self, num_workers: int) -> list[int]:
        """Processes that have computed as one of so many, by number of worker."""
        files = (self.folder / "seen").glob(f"*-of-{num_workers}.*")
        return [int(f.suffix[1:]) for f in sorted(files, key=lambda f: int(f.name.split("-")[0]))]

    def computing(self, num_workers: int) -> list[int]:
        """Those of them that live."""
        return [pid for pid in self.seen(num_workers) if Path(f"/proc/{pid}/exe").exists()]

    def await_workers(self, num_workers: int, *machines: Machine) -> None:
        """Until so many workers compute, all of them of these machines and some of each."""

        def there() -> bool:
            computing = set(self.seen(num_workers))
            here = [computing & set(machine.workers()) for machine in machines]
            return all(here) and sum(map(len, here)) == num_workers

        self.await_(there)

    def workers(self) -> set[int]:
        """All processes that compute now."""
        return {worker for machine in self.started for worker in machine.workers()}

    def await_steps(self, num: int = 2) -> None:
        """Until so many steps more are done."""
        before = num_lines(self.out)
        self.await_(lambda: num_lines(self.out) >= before + num)

    def await_(self, condition: Callable[[], Any]) -> None:
        """Until something holds: not forever, and not when one of them ends meanwhile."""
        began = time.monotonic()
        codes = [machine.process.poll() for machine in self.started]
        while not condition():
            now = [machine.process.poll() for machine in self.started]
            if now != codes or time.monotonic() - began > PATIENCE_SECONDS:
                said = [
                    f"--- {m.process.args!r} {code}\n{m.words()}"
                    for m, code in zip(self.started, now, strict=True)
                ]
                raise AssertionError("\n".join(["nothing happens", *said]))
            time.sleep(0.01)

    def let_go(self) -> None:
        (self.folder / "brake").unlink()

    def end(self) -> None:
        """After a test: nothing is left of it."""
        for machine in self.started:
            if machine.process.poll() is None:
                for process in family(machine.process.pid):
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
            machine.process.communicate()


class Machine:
    """A launcher, and its workers."""

    def __init__(self, run: Braked, process: subprocess.Popen[str], words: Path) -> None:
        self.process = process
        self._run = run
        self._words = words

    def words(self) -> str:
        """What it has said so far."""
        return self._words.read_text()

    def await_words(self, pattern: str) -> None:
        self._run.await_(lambda: re.search(pattern, self.words()) is not None)

    def workers(self) -> list[int]:
        return workers_of(self.process.pid)

    def leads(self) -> bool:
        """It holds the folder's lock."""
        return str(self._run.out / LOCK) in opened_by(self.process.pid)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """The launcher; its workers go with it."""
        self.process.kill()
        self.process.wait()

    def exit_code(self) -> int:
        return self.process.wait(PATIENCE_SECONDS)

    def outcome(self) -> Outcome:
        """Digest and metrics, when it has ended well."""
        return self.result()["digest"], lines(self._run.out)

    def result(self) -> dict[str, Any]:
        """What it printed, when it has ended well."""
        try:
            return ended(self.process)
        except AssertionError:
            raise AssertionError(self.words()) from None


def opened_by(process: int) -> set[str]:
    """Files and sockets."""
    found = set()
    with suppress(OSError):  # it has ended, or has closed what we look at
        for file in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                found.add(os.readlink(file))
    return found


def family(process: int) -> list[int]:
    """A process and all that it has started, and they."""
    return [process, *(p for child in children(process) for p in family(child))]


def listening(launcher: int) -> set[str]:
    """The addresses at which a process, or one that it has started, waits for connections."""
    sockets = {name for process in family(launcher) for name in opened_by(process)}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{launcher}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                number = words[1].partition(":")[0]
                parts = [number[at : at + 8] for at in range(0, len(number), 8)]
                packed = b"".join(struct.pack("=I", int(part, 16)) for part in parts)
                found.add(str(ip_address(packed)))
    return found
