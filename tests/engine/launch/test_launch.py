"""A fixed number of workers: how one ended is said; what workers that come and go need is not
loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from commands import error_line

from samepath.engine.launch.reports import WorkerReport

RECIPE = Path(__file__).parents[2] / "parity" / "tiny_recipe.py"
LOOK = """
import json, sys, threading
from pathlib import Path

from samepath.engine.elastic import signed_store
from samepath.engine.launch import launch as launching
from samepath.engine.run.options import Overrides
from samepath.engine.train import Request, train

recipe, out = sys.argv[1:]
opened, threads = [], []
open_store, start = launching.open_store, launching.start_workers


def counted(address):
    opened.append(address)
    return open_store(address)


def started(*arguments, **more):
    workers = start(*arguments, **more)
    threads.extend(thread.name for thread in threading.enumerate())
    return workers


def refuse(*_):
    raise AssertionError("a signed store")


launching.open_store, launching.start_workers = counted, started
signed_store.SignedStore.__init__ = refuse
train(Request(recipe=recipe, num_workers=2, epochs=1, out=Path(out)))
elastic = [name for name in sys.modules if name.startswith("samepath.engine.") and (
    name.endswith((".rendezvous", ".launch.elastic")))]
print(json.dumps([opened, threads, elastic]))
"""


def test_a_fixed_number_opens_no_rendezvous(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LOOK, RECIPE, tmp_path / "run"], capture_output=True, text=True
    )
    assert ended.stdout == '[["127.0.0.1"], ["MainThread"], []]\n', ended.stderr
    assert not (tmp_path / "run" / "meeting.json").exists()


def test_its_workers_do_not_load_one_either(tmp_path: Path) -> None:
    script = tmp_path / "look.py"
    script.write_text(
        "import sys, threading, samepath\n"
        "with samepath.start() as session:\n"
        "    names = [thread.name for thread in threading.enumerate()]\n"
        "    elastic = [m for m in sys.modules if m.startswith('samepath.engine.elastic.')]\n"
        "    session.print(names, elastic)\n"
    )
    ended = subprocess.run(
        [Path(sys.executable).with_name("samepath"), "run", "-n", "2", script],
        capture_output=True,
        text=True,
    )
    assert ended.stdout == "['MainThread'] []\n", ended.stderr


def run_script(tmp_path: Path, source: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(source)
    return subprocess.run(
        [Path(sys.executable).with_name("samepath"), "run", "-n", "3", script],
        capture_output=True,
        text=True,
    )


def test_an_input_error_of_a_script_is_said_once(tmp_path: Path) -> None:
    ended = run_script(
        tmp_path,
        "import torch, samepath\n"
        "model = torch.nn.Linear(2, 1)\n"
        "with samepath.start() as session:\n"
        "    session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1),\n"
        "                    lambda model, batch: model(batch).mean(), batch_size=2)\n",
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert error_line(ended.stderr) == (
        "samepath: 3 workers, but a batch of 2 in grains of 1 has only 2 grains; use at most 2 "
        "workers, or a larger batch"
    )


def test_a_script_that_never_starts_is_warned_of(tmp_path: Path) -> None:
    ended = run_script(tmp_path, "print('trained')\n")
    assert (ended.returncode, ended.stdout.count("trained")) == (0, 3)
    assert "script.py never called samepath.start(): it ran 3 times, each alone" in ended.stderr


def test_a_signal_without_a_name() -> None:
    named, unnamed = (WorkerReport.of_exit(0, -number, 7).message for number in (9, 40))
    assert named == "worker 0 was ended by SIGKILL (process 7)"
    assert unnamed == "worker 0 was ended by signal 40 (process 7)"
