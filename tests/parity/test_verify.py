"""`samepath verify` with real workers: what is the same passes, what is broken is located.

Each case is a recipe with one thing wrong; some are met only by a real run of `samepath train`: a
worker that no launcher started, the end of a long epoch, its short last batch, a checkpoint.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samepath.cli import main
from samepath.engine.verify.trace import WorkerTrace
from samepath.engine.verify.verify import Difference, Verdict, VerifyRequest, verify
from samepath.errors import UserError, WorkerFailed

BROKEN = Path(__file__).parents[2] / "examples" / "broken_recipe.py"

# Four steps an epoch; `many` has 1,001 examples, of which verify takes 77 (seven steps)
HEAD = """
import multiprocessing, os
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset
from samepath import Recipe

made = torch.Generator().manual_seed(0)
inputs, labels = torch.randn(1001, 6, generator=made), torch.randint(0, 3, (1001,), generator=made)
outside = lambda: 1e-3 * int.from_bytes(os.urandom(2))
SGD = torch.optim.SGD

class Net(nn.Module):
    def __init__(self, middle):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 5), middle, nn.Linear(5, 3)
    def forward(self, inputs):
        return self.last(self.middle(self.first(inputs)))

class Items(Dataset):
    def __init__(self, noise): self.noise = noise
    def __len__(self): return 40
    def __getitem__(self, i): return inputs[i] + self.noise(), labels[i].clone()

def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])

def make(middle=nn.Tanh, **changes):
    return Recipe(**(dict(
        model=lambda: Net(middle()), train=(inputs[:40], labels[:40]), loss=loss, epochs=3,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        batch_size=12, grain_size=2) | changes))

def many(middle=nn.Tanh, **changes):
    return make(middle, **(dict(
        train=(inputs, labels), valid=(inputs[:505], labels[:505]),
        optimizer=lambda parameters: SGD(parameters, lr=0.01, momentum=0.9)) | changes))
"""
RIGHT = "recipe = many"
OPTIMIZER_DRAWS = """
class Restless(SGD):
    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        for parameter in self.param_groups[0]["params"]:
            parameter += outside()
recipe = lambda: make(optimizer=lambda parameters: Restless(parameters, lr=0.01))
"""
SHORT_GRAIN = """
class Short(nn.Module):
    def forward(self, inputs):
        return inputs * (1 + 1e-6 * os.getpid()) if self.training and len(inputs) == 1 else inputs
recipe = lambda: many(Short)
"""
STATE: dict[str, Any] = {"step": 1, "module": None, "name": "model/first.weight"}
DIFFERENCES: dict[str, tuple[str, dict[str, Any]]] = {
    "a data set that draws": (
        "recipe = lambda: make(train=Items(outside))",
        STATE | {"where": "data", "repeatable": False},
    ),
    "a data set that counts its items": (
        "import itertools\nrecipe = lambda: make(train=Items(itertools.count().__next__))",
        STATE | {"where": "data", "repeatable": True, "found": "; Items.__getitem__ ("},
    ),
    "a transform that escapes": (
        """
class Jitter:
    def __init__(self): self.calls = iter(range(10 ** 6))  # cannot be set from the seed
    def __call__(self, row): return row + 1e-3 * next(self.calls)
class Jittered(Items):
    def __getitem__(self, i): return self.noise(inputs[i]), labels[i].clone()
recipe = lambda: make(train=Jittered(Jitter()))
""",
        STATE | {"where": "data", "found": "; Jitter.__call__ ("},
    ),
    "weights that are drawn": (
        """
def model():
    torch.manual_seed(int.from_bytes(os.urandom(4)))
    return Net(nn.Tanh())
recipe = lambda: make(model=model)
""",
        STATE | {"where": "initial weights", "step": 0, "repeatable": False},
    ),
    "an augmentation that draws": (
        "recipe = lambda: make(augment=lambda batch, draws: (batch[0] + outside(), batch[1]))",
        STATE | {"where": "augment", "repeatable": False},
    ),
    "an optimizer that draws": (OPTIMIZER_DRAWS, STATE | {"where": "update", "repeatable": False}),
    "a module that keeps state": (
        """
class Counts(nn.Module):
    calls = 0
    def forward(self, inputs):
        self.calls += 1
        return inputs * (1 + 1e-3 * self.calls)
recipe = lambda: make(Counts)
""",
        {"step": 1, "grain": 3, "repeatable": True, "module": "middle", "module_kind": "Counts",
         "likely": "keeps", "remedy": "buffer"},
    ),
    "a backward pass that draws": (
        """
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs): return inputs.clone()
    @staticmethod
    def backward(ctx, gradient): return gradient * (1 + outside())
class Scaled(nn.Module):
    def forward(self, inputs): return Scale.apply(inputs)
recipe = lambda: make(Scaled)
""",
        {"where": "gradient", "module": "middle", "module_kind": "Scaled"},
    ),
    "settings that read the worker count": (
        """
rate = lambda: 0.01 * int(os.environ["WORLD_SIZE"]) if "WORLD_SIZE" in os.environ else 0.01
recipe = lambda: make(optimizer=lambda parameters: SGD(parameters, lr=rate()))
""",
        {"where": "settings", "step": 0, "name": "groups", "likely": "WORLD_SIZE"},
    ),
    "a worker that no launcher started": (
        """
rate = 0.01 if multiprocessing.parent_process() is None else 0.02
recipe = lambda: many(optimizer=lambda parameters: SGD(parameters, lr=rate))
""",
        {"where": "settings", "step": 0, "name": "groups", "num_workers": (1, 2),
         "repeatable": True, "resumed_at": None},
    ),
    # the launcher makes the model to check it; alone, it then trains in the same process
    "what the launcher has called before": (
        """
times = 0
def model():
    global times
    times += 1
    net = Net(nn.Tanh())
    with torch.no_grad():
        net.first.weight *= times
    return net
recipe = lambda: many(model=model)
""",
        {"where": "initial weights", "step": 0, "name": "model/first.weight"},
    ),
    "a short last grain": (
        SHORT_GRAIN,
        {"step": 7, "module": "middle", "module_kind": "Short", "repeatable": False},
    ),
    "an epoch's end": (
        """
workers = int(os.environ.get("WORLD_SIZE", "1"))
rate = lambda epoch: workers if epoch else 1
recipe = lambda: many(
    schedule=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, rate))
""",
        {"where": "update", "step": 7, "name": "groups"},
    ),
}  # fmt: skip
FRESH = {"a worker that no launcher started", "what the launcher has called before"}
"""Which a forked process would not show: these train in fresh ones, as verify does."""
ONLY_METRICS = {
    "validation": (
        """
class Restless(nn.Module):
    def forward(self, inputs): return inputs if self.training else inputs + outside()
recipe = lambda: make(Restless, valid=(inputs[:40], labels[:40]))
""",
        {"step": 4, "name": "valid loss", "module": "middle"},
    ),
    "another metric": (
        """
def evaluate(model, batch):
    worker = torch.tensor(float(os.environ.get("RANK", "0")))
    return {"loss": loss(model, batch), "worker": worker}
recipe = lambda: many(evaluate=evaluate)
""",
        {"step": 7, "name": "valid worker", "where": "evaluate"},
    ),
}
GLOBAL_GENERATORS = {
    "data": "recipe = lambda: make(train=(torch.from_numpy(np.random.rand(40, 6)).float(),"
    " labels[:40]))",
    "augmentation": """
augment = lambda batch, draws: (batch[0] + torch.randn_like(batch[0]), batch[1])
recipe = lambda: make(augment=augment)
""",
}
LATE = """
class Late(nn.Module):
    calls = 0
    def forward(self, inputs):
        self.calls += 1
        return inputs + (outside() if self.calls > 9 else 0.0)
recipe = lambda: make(Late)
"""
NOT_SAVED = """
class Memory:
    steps = 0
class Slowing(SGD):
    def step(self, closure=None):
        self.memory = getattr(self, "memory", Memory())  # not a number
        self.memory.steps += 1
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.grad /= self.memory.steps
        return super().step(closure)
recipe = lambda: many(optimizer=lambda parameters: Slowing(parameters, lr=0.1))
"""
FAILURES = {
    "do not take the saved state unchanged": """
class Forgets(SGD):
    def load_state_dict(self, state):
        super().load_state_dict(state | {"state": {}})
recipe = lambda: many(optimizer=lambda parameters: Forgets(parameters, lr=0.1, momentum=0.9))
""",
    "this loss is broken": """
def loss(model, batch):
    raise RuntimeError("this loss is broken")
recipe = lambda: many(loss=loss)
""",
    "worker 0 ended with exit code 7": "recipe = lambda: many(loss=lambda *_: os._exit(7))",
}


def recipe_with(code: str, folder: Path) -> str:
    path = folder / "recipe.py"
    path.write_text(HEAD + code)
    return str(path)


def verdict_of(code: str, folder: Path, *counts: int, steps: int = 8, **asked: Any) -> Verdict:
    return verify(
        VerifyRequest(
            recipe=recipe_with(code, folder),
            counts=counts or (1, 2),
            steps=steps,
            **asked,
        )
    )


def check(found: Difference | None, expected: dict[str, Any]) -> None:
    assert found is not None
    for name, value in expected.items():
        if name in ("found", "likely", "remedy"):
            assert value in getattr(found.cause, name)
        else:
            assert (found.cause.where if name == "where" else getattr(found, name)) == value, name


# ---- what is not the same


@pytest.mark.parametrize("case", DIFFERENCES)
def test_a_difference_is_located(case: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    code, expected = DIFFERENCES[case]
    if case not in FRESH:
        request.getfixturevalue("forked")
    verdict = verdict_of(code, tmp_path)
    assert not verdict.equal
    found = verdict.difference
    check(found, expected)
    if found is not None and found.name == "model/first.weight":
        assert found.values is not None
        assert 0 < found.values.num_different <= found.values.num_values == 30
        assert found.values.max_ulps


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("case", ONLY_METRICS)
def test_every_metric_of_an_evaluation_counts(case: str, tmp_path: Path) -> None:
    code, expected = ONLY_METRICS[case]
    verdict = verdict_of(code, tmp_path)
    assert len({run.digest for run in verdict.runs}) == 1
    assert not verdict.equal
    check(verdict.difference, expected)


def test_a_later_step_and_a_later_count_are_located(tmp_path: Path) -> None:
    """The tenth call on one worker of two is in step 4; of three, it is in a later step."""
    verdict = verdict_of(LATE, tmp_path, 3, 2, 3, steps=4)
    assert [run.parts_at for run in verdict.runs[:3]] == [None, 4, None]
    assert verdict.runs[0].digest == verdict.runs[2].digest != verdict.runs[1].digest
    check(verdict.difference, {"num_workers": (3, 2), "step": 4, "module": "middle"})


@pytest.mark.usefixtures("forked")
def test_workers_of_one_run_are_compared_too(tmp_path: Path) -> None:
    verdict = verdict_of(OPTIMIZER_DRAWS, tmp_path, 2, 1)
    check(verdict.difference, {"num_workers": (2, 2), "worker": 1, "where": "update"})


@pytest.mark.usefixtures("forked")
def test_the_broken_example_is_caught_and_located(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["verify", str(BROKEN), "-n", "1,2,3", "--steps", "3"])
    assert end.value.code == 1
    words = " ".join(capfd.readouterr().out.split())
    assert "1 worker and 2 workers part at step 1." in words
    assert "first tensor model/first.weight: " in words
    assert "of 36 values differ, by up to " in words
    assert "units in the last place" in words
    assert "first module noise (ProcessNoise)" in words
    assert "for grain 0 its output differs though its input is the same" in words
    assert "process id" in words
    assert "remedy draw from torch's" in words


@pytest.mark.usefixtures("forked")
def test_what_a_checkpoint_loses_is_found_and_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Runs that were not interrupted agree, at one worker and at two."""
    with pytest.raises(SystemExit) as end:
        main(["verify", recipe_with(NOT_SAVED, tmp_path), "-n", "1,2", "--steps", "8"])
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


@pytest.mark.usefixtures("forked")
def test_a_strategy_without_a_number_goes_by_the_largest_count(tmp_path: Path) -> None:
    found = verdict_of(SHORT_GRAIN, tmp_path, 1, 2, strategy="stale")
    assert found.options.virtual_workers == 2
    # its gradient waits for one step
    check(found.difference, {"step": 7, "name": "underway/0/gradient/0"})


@pytest.mark.usefixtures("forked")
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
    check(verdict.difference, {"name": "digest", "where": "end"})
    assert not replace(verdict, difference=None).equal
    settled = [replace(run, parts_at=None) for run in verdict.runs]
    assert not replace(verdict, difference=None, runs=settled).equal, "whatever was looked at"


@pytest.mark.parametrize("message", FAILURES)
def test_a_worker_alone_that_fails_says_why(message: str, tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match=message):
        verdict_of(FAILURES[message], tmp_path)


# ---- what is the same


def test_what_is_the_same_passes_and_leaves_nothing(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as end:
        main(["verify", "digits", "-n", "1,2,3", "--steps", "7", "--seed", "3", "--json"])
    assert end.value.code == 0
    found = json.loads(capfd.readouterr().out)
    assert found["equal"]
    assert found["difference"] is None
    routes = [[leg["num_workers"] for leg in run["route"]] for run in found["runs"]]
    assert routes == [[1], [2], [3], [2, 1, 3]], "alone, launched, and saved and continued"
    assert {run["steps"] for run in found["runs"]} == {7}
    assert found["trained"]["resumed_at"] == [3, 6]
    assert len({run["digest"] for run in found["runs"]}) == 1
    assert not list(tmp_path.glob("samepath-*"))


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("code", GLOBAL_GENERATORS.values(), ids=GLOBAL_GENERATORS)
def test_global_generators_are_keyed_in_recipes_and_augmentation(code: str, tmp_path: Path) -> None:
    assert verdict_of(code, tmp_path).equal


@pytest.mark.usefixtures("forked")
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


@pytest.mark.usefixtures("forked")
def test_loader_processes_take_part(tmp_path: Path) -> None:
    code = "recipe = lambda: many(train=Items(lambda: torch.rand(())), loader_workers=1)"
    verdict = verdict_of(code, tmp_path)
    assert verdict.equal
    assert verdict.trained.loader_workers == 1


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("strategy", ["stale:lag=2", "asynchronous"])
def test_strategies_are_verified_too(strategy: str, tmp_path: Path) -> None:
    """With a lag, a step may have no update, and gradients are under way when a run is saved."""
    verdict = verdict_of(RIGHT, tmp_path, 1, 2, strategy=strategy, virtual_workers=3)
    assert verdict.equal
    assert verdict.options.virtual_workers == 3


# ---- what is refused


@pytest.mark.parametrize(
    ("counts", "changes", "message"),
    [
        (
            (1, 9),
            {},
            "9 workers, but a batch of 128 in grains of 16 has only 8 grains; use at "
            "most 8 workers, or --max-workers 9",
        ),
        ((2,), {}, "try -n 1,2"),
        (None, {"grain_size": 128}, "add --max-workers 2"),
        ((1, 2), {"grain_size": 129}, "grain of 129"),
        ((1, 2), {"steps": 0}, "at least one step"),
    ],
)
def test_bad_input_is_refused_before_training(
    counts: tuple[int, ...] | None, changes: dict[str, int], message: str
) -> None:
    told: list[str] = []
    asked: dict[str, Any] = {"steps": 2, "batch_size": 128, "grain_size": 16, **changes}
    with pytest.raises(UserError, match=message):
        verify(VerifyRequest(recipe="digits", counts=counts, **asked, tell=told.append))
    assert not told


def test_under_a_launcher_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(UserError, match="without torchrun"):
        verify(VerifyRequest(recipe="digits", counts=(1, 2)))
