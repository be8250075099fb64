"""A terminal that is closed while a run is shown on it: the step is saved, and the run says so."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from elastic_runs import RECIPE, SAMEPATH, left_behind, lines, num_lines

from samepath.engine.run.request import Request
from samepath.engine.state.checkpoint import list_checkpoints
from samepath.engine.train import train

LIMIT_SECONDS = 300
EPOCHS = 30
ON_TERMINAL = f"""
import fcntl, os, signal, sys, termios
ignores = "IGNORES_HANGUP" in os.environ  # else not, though whoever runs the tests may
signal.signal(signal.SIGHUP, signal.SIG_IGN if ignores else signal.SIG_DFL)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # as a shell has it
os.execv({str(SAMEPATH)!r}, sys.argv)
"""


@contextmanager
def on_terminal(*arguments: str | Path, **variables: str) -> Iterator[tuple[Any, int]]:
    """`samepath` on a terminal of its own, of which we have the other end."""
    there, here = pty.openpty()
    fcntl.ioctl(here, termios.TIOCSWINSZ, b"\x18\0\x50\0\0\0\0\0")
    os.set_blocking(there, False)
    process = subprocess.Popen(
        [sys.executable, "-c", ON_TERMINAL, *arguments],
        stdin=here,
        stdout=here,
        stderr=here,
        env={**os.environ, "SLOW_SECONDS": "0.02", "TERM": "xterm", **variables},
        start_new_session=True,
    )
    os.close(here)
    try:
        yield process, there
    finally:
        with suppress(OSError):
            os.close(there)
        if process.poll() is None:
            process.kill()
        process.wait()


def watch_until(lines_there: int, out: Path, process: Any, terminal: int) -> bytes:
    """Read what is shown, as a terminal does, until so many lines are logged."""
    shown, until = b"", time.monotonic() + 120
    while num_lines(out) < lines_there:
        assert process.poll() is None, shown
        assert time.monotonic() < until, shown
        with suppress(BlockingIOError):
            shown += os.read(terminal, 1 << 16)
        time.sleep(0.01)
    return shown


@pytest.mark.parametrize(  # a shell tells it too, or does not
    ("workers", "more_signals"), [("1", 3), ("2", 0), ("1:2", 3)]
)
def test_it_saves_the_step(
    workers: str, more_signals: int, unhurt: tuple[str, Any], tmp_path: Path
) -> None:
    out, scratch = tmp_path / "run", tmp_path / "scratch"
    scratch.mkdir()
    arguments = ("train", RECIPE, "-n", workers, "--epochs", str(EPOCHS), "--out", out)
    with on_terminal(*arguments, TMPDIR=str(scratch)) as (process, terminal):
        shown = watch_until(12, out, process, terminal)
        assert b" loss " in shown, "it is drawn on"
        os.close(terminal)
        for _ in range(more_signals):
            time.sleep(0.02)
            if process.poll() is None:
                process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 128 + signal.SIGHUP
    record = json.loads((out / "run.json").read_text())
    assert record["status"] == "interrupted"
    assert record["result"]["signal"] in (None, signal.SIGHUP)
    steps = record["result"]["steps"]
    assert steps >= 10
    assert [path.name for path in list_checkpoints(out / "checkpoints")] == [f"step-{steps:08d}"]
    assert left_behind(out) == []
    assert list(scratch.iterdir()) == []
    request = Request(recipe=str(RECIPE), num_workers=1, epochs=EPOCHS, out=out, resume=True)
    assert (train(request)[0].digest, lines(out)) == unhurt


@pytest.mark.parametrize("workers", ["1", "2"])
def test_one_that_is_not_told_goes_on(
    workers: str, unhurt: tuple[str, Any], tmp_path: Path
) -> None:
    """nohup: it trains on, with nothing to write to."""
    out = tmp_path / "run"
    arguments = ("train", RECIPE, "-n", workers, "--epochs", str(EPOCHS), "--out", out)
    with on_terminal(*arguments, SLOW_SECONDS="0.002", IGNORES_HANGUP="1") as (process, terminal):
        watch_until(12, out, process, terminal)
        os.close(terminal)
        assert process.wait(120) == 0
    assert (json.loads((out / "run.json").read_text())["result"]["digest"], lines(out)) == unhurt


def has_fork_server(process: int) -> bool:
    """Whether a launcher has started the process that imports torch for its workers."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return any(b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children)


@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_ctrl_c_while_workers_are_started(seconds: float, tmp_path: Path) -> None:
    """One line, and no traceback of a process that was just importing something."""
    out = tmp_path / "run"
    with on_terminal("train", RECIPE, "-n", "2", "--out", out) as (process, terminal):
        until = time.monotonic() + 60
        while not has_fork_server(process.pid):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.005)
        time.sleep(seconds)
        os.write(terminal, b"\x03")
        assert process.wait(60) == 128 + signal.SIGINT
        time.sleep(1.0)  # for what is still being imported
        shown = b""
        with suppress(BlockingIOError, OSError):
            while piece := os.read(terminal, 1 << 16):
                shown += piece
    first, last = shown.replace(b"^C", b"").decode().split("samepath: stopped")
    assert " ".join(first.split()) == f"samepath: training {RECIPE} on 2 workers, into {out}"
    assert last.strip() == "by SIGINT"
    assert json.loads((out / "run.json").read_text())["status"] == "interrupted"
    assert left_behind(out) == []


def test_ctrl_c_while_verify_starts_a_run_on_one_worker(tmp_path: Path) -> None:
    """Its process does not hear of it, and answers with no traceback."""
    with on_terminal("verify", RECIPE, "-n", "1,2") as (process, terminal):
        until = time.monotonic() + 120
        while not (started := runs_alone(process.pid)):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.005)
        os.write(terminal, b"\x03")
        assert process.wait(60) == 128 + signal.SIGINT
        shown = b""
        with suppress(BlockingIOError, OSError):
            while piece := os.read(terminal, 1 << 16):
                shown += piece
    *_, last = shown.replace(b"^C", b"").decode().strip().splitlines()
    assert last == "samepath: stopped by SIGINT"
    assert b"KeyboardInterrupt" not in shown
    assert not Path(f"/proc/{started[0]}").exists()


def runs_alone(process: int) -> list[str]:
    """Processes that `verify` has started for runs on one worker."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [c for c in children if b"verify.runs" in Path(f"/proc/{c}/cmdline").read_bytes()]


def test_a_reader_that_leaves_ends_nothing(unhurt: tuple[str, Any], tmp_path: Path) -> None:
    """`samepath train ... 2>&1 | head -1`, roughly."""
    out = tmp_path / "run"
    process = subprocess.Popen(
        [SAMEPATH, "train", RECIPE, "-n", "1:2", "--epochs", str(EPOCHS), "--out", out],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "SLOW_SECONDS": "0.002"},
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(120) == 0
    assert (json.loads((out / "run.json").read_text())["result"]["digest"], lines(out)) == unhurt
