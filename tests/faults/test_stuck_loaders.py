"""Loader processes that never begin, never deliver, or are left behind: each has a limit."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from samepath.data import GrainRequest, Loaders, as_source, loaders
from samepath.engine.train import Request, train
from samepath.errors import SamepathError, WorkerFailed
from samepath.faults import set_fault_handler

LIMIT_SECONDS = 120
REQUESTS = [GrainRequest(0, np.arange(4) + 4 * grain) for grain in range(6)]


class Numbers(Dataset[Tensor]):
    """Stops for ever at one of them, if told to."""

    def __init__(self, stuck_at: int = -1) -> None:
        self.stuck_at = stuck_at

    def __len__(self) -> int:
        return 24

    def __getitem__(self, number: int) -> Tensor:
        while number == self.stuck_at:
            signal.pause()
        return torch.tensor(number)


def grains(dataset: Numbers, number: int, timeout_seconds: float = LIMIT_SECONDS) -> list[Tensor]:
    source = as_source(dataset, seed=0, loaders=Loaders(number, 1, timeout_seconds))
    return list(source.load(REQUESTS))


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[set[int]]:
    """Those of all that are forked that stay where they were."""
    which: set[int] = set()

    def stop(name: str, **_: Any) -> None:
        if name == "loader":
            (tmp_path / str(os.getpid())).touch()
            while len(list(tmp_path.iterdir())) - 1 in which:
                signal.pause()

    monkeypatch.setattr(loaders, "START_SECONDS", 1.0)
    set_fault_handler(stop)
    yield which
    set_fault_handler(None)


@pytest.mark.parametrize("which", [0, 1])
def test_a_loader_that_does_not_begin_is_forked_again(
    which: int, stuck: set[int], tmp_path: Path
) -> None:
    stuck.add(which)
    assert torch.equal(torch.cat(grains(Numbers(), 2)), torch.arange(24))
    tried = [int(file.name) for file in tmp_path.iterdir()]
    assert len(tried) >= 3
    assert not multiprocessing.active_children()
    assert not [process for process in tried if Path(f"/proc/{process}").exists()]


def test_loaders_that_never_begin_are_an_error(stuck: set[int], tmp_path: Path) -> None:
    stuck |= {*range(9)}
    with pytest.raises(SamepathError, match="did not begin within 1 s, 3 times; give --loader-wor"):
        grains(Numbers(), 2)
    assert len(list(tmp_path.iterdir())) == 3
    assert not multiprocessing.active_children()


def test_a_loader_that_does_not_deliver_is_an_error_and_is_ended() -> None:
    began = time.monotonic()
    with pytest.raises(SamepathError, match="delivered a grain for 1 s; give --timeout"):
        grains(Numbers(stuck_at=13), 2, timeout_seconds=1)
    assert time.monotonic() - began < 30  # torch waits 5 s for a loader to end by itself
    assert not multiprocessing.active_children()


def test_an_error_in_a_loader_is_its_own() -> None:
    class Broken(Numbers):
        def __getitem__(self, number: int) -> Tensor:
            raise RuntimeError("the scanner is on fire")

    with pytest.raises(RuntimeError, match="the scanner is on fire"):
        grains(Broken(), 1)


def test_a_loader_that_has_gone_is_soon_missed() -> None:
    class Leaves(Numbers):
        def __getitem__(self, number: int) -> Tensor:
            os._exit(0)  # which no signal tells of

    began = time.monotonic()
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        grains(Leaves(), 1)
    assert time.monotonic() - began < 30


# ---- scripts of a process of their own


THREADS = """
import numpy as np
import torch
from samepath.data import GrainRequest, Loaders, as_source

class Sines(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, number):
        return torch.arange(300_000.0).add(number).sin().sum()

def loaded(number):
    source = as_source(Sines(), seed=0, loaders=Loaders(number, 2, 20))
    grains = [GrainRequest(0, np.arange(4)), GrainRequest(0, np.arange(4, 8))]
    return torch.cat(list(source.load(grains)))

torch.set_num_threads(2)
alone = loaded(0)
print(torch.equal(loaded(2), alone), torch.equal(loaded(0), alone))
"""


ORPHAN = """
import os, signal
import numpy as np
from samepath.data import GrainRequest, Loaders, as_source
from samepath.faults import set_fault_handler

def stuck(name, **_):
    print(os.getpid(), flush=True)
    while True:
        signal.pause()

set_fault_handler(stuck)
list(as_source([1.0] * 4, seed=0, loaders=Loaders(1)).load([GrainRequest(0, np.arange(4))]))
"""


def test_a_loader_does_not_outlive_its_worker(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(ORPHAN)
    worker = subprocess.Popen(
        [sys.executable, "script.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    loader = Path("/proc", str(int(worker.stdout.readline())), "stat")
    assert loader.exists()
    worker.kill()
    worker.communicate(timeout=LIMIT_SECONDS)
    until = time.monotonic() + 20
    while loader.exists() and loader.read_text().split()[2] != "Z":  # nobody may be there to reap
        assert time.monotonic() < until, "it is still there"
        time.sleep(0.05)


SCRIPT = """
import sys
import torch
import samepath
from torch.nn import functional as F

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 640
    def __getitem__(self, number):
        return torch.randn(8), torch.tensor(number % 2)

session = samepath.start()
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trainer = session.prepare(
    model, optimizer, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
    batch_size=32, grain_size=8, loader_workers=2,
)
for number, batch in enumerate(trainer.batches(Numbers(), 0)):
    trainer.step(batch)
    if number == 2:
        {END}
print("after three steps")
"""


def test_scripts(tmp_path: Path) -> None:
    """OpenMP's threads do not survive a fork: a loader's first parallel operation waited. A script
    may end in the middle of an epoch: loaders do not hear SIGTERM, by which Python ends them, and
    it waited for ever."""
    ends = [SCRIPT.replace("{END}", end) for end in ("break", "raise ValueError")]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for text in (THREADS, *ends)
    ]
    (threads, _), (stopped, quiet), (raised, error) = (each.communicate() for each in started)
    assert threads == "True True\n"
    assert [each.returncode for each in started] == [0, 0, 1], error
    assert "after three steps" in stopped
    assert (quiet, raised) == ("", "")
    assert "ValueError" in error
    assert "DataLoader" not in error


RECIPE = """
import os, signal
import torch
from torch import nn
from samepath import Recipe

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, number):
        while number == 13 and os.environ.get("RANK") == "1":
            signal.pause()
        return torch.ones(4), torch.zeros(2)

def recipe():
    return Recipe(
        model=lambda: nn.Linear(4, 2),
        train=Data(),
        loss=lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        batch_size=12, grain_size=2, epochs=5, loader_workers=1,
    )
"""


def test_a_stuck_loader_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RECIPE)
    request = Request(
        recipe=str(tmp_path / "mine.py"), num_workers=2, out=tmp_path / "run", timeout_seconds=4.0
    )
    with pytest.raises(WorkerFailed, match="no loader process has delivered a grain for 4 s"):
        train(request)
