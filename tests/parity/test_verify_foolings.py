"""What once fooled `samepath verify`: differences that only a real run of `samepath train` meets.

A worker that no launcher started, the end of a long epoch, its short last batch, a checkpoint.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samepath.cli import main
from samepath.engine.verify.trace import WorkerTrace
from samepath.engine.verify.verify import Difference, Verdict, VerifyRequest, verify
from samepath.errors import SamepathError, WorkerFailed

HEAD = """
import multiprocessing, os
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset
from samepath import Recipe

made = torch.Generator().manual_seed(0)
inputs, labels = torch.randn(1001, 6, generator=made), torch.randint(0, 3, (1001,), generator=made)

class Net(nn.Module):
    def __init__(self, middle):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 5), middle, nn.Linear(5, 3)
    def forward(self, inputs):
        return self.last(self.middle(self.first(inputs)))

def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])

def make(middle=nn.Tanh, **changes):
    return Recipe(**(dict(
        model=lambda: Net(middle()), train=(inputs, labels), valid=(inputs[:505], labels[:505]),
        loss=loss, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        batch_size=12, grain_size=2, epochs=3) | changes))
"""

RIGHT = "recipe = make"
LOADED = """
class Items(Dataset):
    def __len__(self): return 1001
    def __getitem__(self, i): return inputs[i] + torch.rand(()), labels[i]
recipe = lambda: make(train=Items(), loader_workers=1)
"""
STARTED_BY_SOMEBODY = """
rate = 0.01 if multiprocessing.parent_process() is None else 0.02
recipe = lambda: make(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate))
"""
MADE_TWICE = """
times = 0
def model():
    global times
    times += 1
    net = Net(nn.Tanh())
    with torch.no_grad():
        net.first.weight *= times
    return net
recipe = lambda: make(model=model)
"""
SHORT_GRAIN = """
class Short(nn.Module):
    def forward(self, inputs):
        return inputs * (1 + 1e-6 * os.getpid()) if self.training and len(inputs) == 1 else inputs
recipe = lambda: make(Short)
"""
EPOCHS_END = """
workers = int(os.environ.get("WORLD_SIZE", "1"))
rate = lambda epoch: workers if epoch else 1
recipe = lambda: make(
    schedule=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, rate))
"""
EVALUATION = """
def evaluate(model, batch):
    worker = torch.tensor(float(os.environ.get("RANK", "0")))
    return {"loss": loss(model, batch), "worker": worker}
recipe = lambda: make(evaluate=evaluate)
"""
NOT_SAVED = """
class Slowing(torch.optim.SGD):
    steps = 0
    def step(self, closure=None):
        self.steps += 1
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.grad /= self.steps
        return super().step(closure)
recipe = lambda: make(optimizer=lambda parameters: Slowing(parameters, lr=0.1))
"""
NOT_READ_BACK = """
class Forgets(torch.optim.SGD):
    def load_state_dict(self, state):
        super().load_state_dict(state | {"state": {}})
recipe = lambda: make(optimizer=lambda parameters: Forgets(parameters, lr=0.1, momentum=0.9))
"""
OPTIMIZER_DRAWS = """
class Restless(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        for parameter in self.param_groups[0]["params"]:
            parameter += 1e-3 * int.from_bytes(os.urandom(2))
recipe = lambda: make(optimizer=lambda parameters: Restless(parameters, lr=0.01))
"""
RAISES = """
def loss(model, batch):
    raise RuntimeError("this loss is broken")
recipe = lambda: make(loss=loss)
"""
ENDS = """
def loss(model, batch):
    os._exit(7)
recipe = lambda: make(loss=loss)
"""


def verdict_of(code: str, folder: Path, *counts: int, **asked: Any) -> Verdict:
    path = folder / "recipe.py"
    path.write_text(HEAD + code)
    return verify(
        VerifyRequest(
            recipe=str(path),
            counts=counts or (1, 2),
            **{"steps": 8, **asked},
        )
    )


def difference_of(code: str, folder: Path) -> Difference:
    verdict = verdict_of(code, folder)
    assert not verdict.equal
    assert verdict.difference is not None
    return verdict.difference


def test_a_long_epoch_is_shortened_and_ends_the_same(tmp_path: Path) -> None:
    verdict = verdict_of(RIGHT, tmp_path)
    assert verdict.equal
    trained = verdict.trained
    assert (trained.steps_per_epoch, trained.num_examples, trained.last_batch) == (7, 77, 5)
    assert (trained.all_examples, trained.all_valid) == (1001, 505)
    assert trained.num_valid is not None
    assert trained.num_valid < 100
    assert trained.num_valid % 2 == 1, "as short a last grain"
    assert [[leg.stop for leg in run.route] for run in verdict.runs] == [[8], [8], [3, 7, 8]]
    assert [leg.num_workers for leg in verdict.runs[2].route] == [2, 1, 2]
    assert len({digest for run in verdict.runs for digest in run.worker_digests}) == 1
    assert verdict.runs[0].metrics["loss"] == verdict.runs[2].metrics["loss"] > 0


def test_loader_processes_take_part(tmp_path: Path) -> None:
    verdict = verdict_of(LOADED, tmp_path)
    assert verdict.equal
    assert verdict.trained.loader_workers == 1


def test_a_worker_that_nobody_launched_is_among_them(tmp_path: Path) -> None:
    found = difference_of(STARTED_BY_SOMEBODY, tmp_path)
    assert (found.cause.where, found.step, found.name) == ("settings", 0, "groups")
    assert (found.num_workers, found.repeatable, found.resumed_at) == ((1, 2), True, None)


def test_what_the_launcher_has_called_before_counts(tmp_path: Path) -> None:
    """The launcher makes the model to check it; alone, it then trains in the same process."""
    found = difference_of(MADE_TWICE, tmp_path)
    assert (found.cause.where, found.step) == ("initial weights", 0)
    assert found.name == "model/first.weight"


def test_a_short_last_grain_is_met(tmp_path: Path) -> None:
    found = difference_of(SHORT_GRAIN, tmp_path)
    assert (found.step, found.module, found.module_kind) == (7, "middle", "Short")
    assert not found.repeatable


def test_an_epochs_end_is_met(tmp_path: Path) -> None:
    found = difference_of(EPOCHS_END, tmp_path)
    assert (found.step, found.name, found.cause.where) == (7, "groups", "update")


def test_every_metric_of_an_evaluation_counts(tmp_path: Path) -> None:
    verdict = verdict_of(EVALUATION, tmp_path)
    assert len({run.digest for run in verdict.runs}) == 1
    assert not verdict.equal
    found = verdict.difference
    assert found is not None
    assert (found.step, found.name, found.cause.where) == (7, "valid worker", "evaluate")


def test_what_a_checkpoint_loses_is_found_and_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Runs that were not interrupted agree, at one worker and at two."""
    path = tmp_path / "recipe.py"
    path.write_text(HEAD + NOT_SAVED)
    with pytest.raises(SystemExit) as end:
        main(["verify", str(path), "-n", "1,2", "--steps", "8"])
    assert end.value.code == 1
    words = " ".join(capfd.readouterr().out.split())
    assert "8 steps: one epoch of 77 of 1,001 examples (7 steps, the last batch of 5)" in words
    assert "1 step of the next. One run is saved after steps 3 and 7" in words
    assert re.search(r" 1 8 (\w+) reference 2 8 \1 the same 2 then 1 then 2 8 ", words)
    assert "differs from step 4 on" in words
    assert (
        "a run on 1 worker and one that was saved after step 3 and continued on 1 worker part at "
        "step 4" in words
    )
    assert "first tensor model/first.weight" in words
    assert "repeatable yes" in words
    assert "something is kept from step to step that a checkpoint does not hold" in words
    assert "register_buffer" in words


def test_a_state_that_is_not_read_back_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match="do not take the saved state unchanged"):
        verdict_of(NOT_READ_BACK, tmp_path)


@pytest.mark.parametrize("strategy", ["stale:lag=2", "asynchronous"])
def test_strategies_are_verified_too(strategy: str, tmp_path: Path) -> None:
    """With a lag, a step may have no update, and gradients are under way when a run is saved."""
    verdict = verdict_of(RIGHT, tmp_path, 1, 2, strategy=strategy, virtual_workers=3)
    assert verdict.equal
    assert verdict.options.virtual_workers == 3


def test_a_strategy_without_a_number_goes_by_the_largest_count(tmp_path: Path) -> None:
    found = verdict_of(SHORT_GRAIN, tmp_path, 1, 2, strategy="stale")
    assert found.options.virtual_workers == 2
    assert found.difference is not None
    assert found.difference.step == 7
    assert found.difference.name == "underway/0/gradient/0", "it waits for one step"


def test_forged_traces_do_not_make_runs_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should all fingerprints agree by mistake, digests still do not."""
    read = WorkerTrace.read

    def forged(path: Path) -> WorkerTrace:
        trace = read(path)
        trace.steps = [dict.fromkeys(facts, "same") for facts in trace.steps]
        trace.end = dict.fromkeys(trace.end, "same")
        return trace

    monkeypatch.setattr(WorkerTrace, "read", staticmethod(forged))
    verdict = verdict_of(OPTIMIZER_DRAWS, tmp_path)
    assert not verdict.equal
    assert verdict.difference is not None
    assert (verdict.difference.name, verdict.difference.cause.where) == ("digest", "end")
    assert not replace(verdict, difference=None).equal
    settled = [replace(run, parts_at=None) for run in verdict.runs]
    assert not replace(verdict, difference=None, runs=settled).equal, "whatever was looked at"


@pytest.mark.parametrize(
    ("code", "message"),
    [(RAISES, "this loss is broken"), (ENDS, "worker 0 ended with exit code 7")],
    ids=["raises", "ends"],
)
def test_a_worker_alone_that_fails_says_why(code: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SamepathError, match=message) as raised:
        verdict_of(code, tmp_path)
    assert isinstance(raised.value, WorkerFailed)
