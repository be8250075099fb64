"""Loader processes that never begin, never deliver, or are left behind: each has a limit."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from samepath.data import GrainRequest, Loaders, as_source, loaders
from samepath.errors import SamepathError

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


def stop_at_start(monkeypatch: pytest.MonkeyPatch, folder: Path, *which: int) -> None:
    """Those of all that are forked stay where they were."""
    run = loaders._Loader.run

    def stuck(self: loaders._Loader) -> None:
        (folder / str(os.getpid())).touch()
        while len(list(folder.iterdir())) - 1 in which:
            signal.pause()
        run(self)

    monkeypatch.setattr(loaders, "START_SECONDS", 2.0)
    monkeypatch.setattr(loaders._Loader, "run", stuck)


@pytest.mark.parametrize("which", [0, 1])
def test_a_loader_that_does_not_begin_is_forked_again(
    which: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stop_at_start(monkeypatch, tmp_path, which)
    assert torch.equal(torch.cat(grains(Numbers(), 2)), torch.arange(24))
    tried = [int(file.name) for file in tmp_path.iterdir()]
    assert len(tried) >= 3
    assert not multiprocessing.active_children()
    assert not [process for process in tried if Path(f"/proc/{process}").exists()]


def test_loaders_that_never_begin_are_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stop_at_start(monkeypatch, tmp_path, *range(9))
    with pytest.raises(SamepathError, match="did not begin within 2 s, 3 times; give --loader-wor"):
        grains(Numbers(), 2)
    assert len(list(tmp_path.iterdir())) == 3
    assert not multiprocessing.active_children()


def test_a_loader_that_does_not_deliver_is_an_error_and_is_ended() -> None:
    began = time.monotonic()
    with pytest.raises(SamepathError, match="delivered a grain for 2 s; give --timeout"):
        grains(Numbers(stuck_at=13), 2, timeout_seconds=2)
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


def run_script(text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "script.py"
    file.write_text(text)
    return subprocess.run(
        [sys.executable, file], capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )


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


def test_loaders_with_several_threads_of_a_worker_that_has_used_its_own(tmp_path: Path) -> None:
    """OpenMP's threads do not survive a fork; a loader's first parallel operation waited."""
    ended = run_script(THREADS, tmp_path)
    assert ended.stdout == "True True\n", ended.stderr


ORPHAN = """
import os, signal
import numpy as np
import torch
from samepath.data import GrainRequest, Loaders, as_source, loaders

def stuck(self):
    print(os.getpid(), flush=True)
    while True:
        signal.pause()

loaders._Loader.run = stuck
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


@pytest.mark.parametrize(("end", "code"), [("break", 0), ("raise ValueError", 1)])
def test_a_script_may_end_in_the_middle_of_an_epoch(end: str, code: int, tmp_path: Path) -> None:
    """Loaders do not hear SIGTERM, which is what Python ends them by: it waited for ever."""
    ended = run_script(SCRIPT.replace("{END}", end), tmp_path)
    assert ended.returncode == code, ended.stderr
    assert ("after three steps" in ended.stdout) == (code == 0)
    assert ("ValueError" in ended.stderr) == (code == 1)
    assert "DataLoader" not in ended.stderr


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
    samepath = str(Path(sys.executable).with_name("samepath"))
    command = [samepath, "train", "mine.py", "-n", "2", "--timeout", "4"]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_SECONDS, cwd=tmp_path
    )
    assert ended.returncode == 1, ended.stderr
    assert "no loader process has delivered a grain for 4 s" in ended.stderr, ended.stderr
