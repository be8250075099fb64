"""Compiled grains, with real processes and torch's own compiler: the bits of 1 worker (in this
process) at 5, on 2 and then 3, and as a plain loop with the same compiled loss. Every process that
compiles takes seconds, so no more are started than show that."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import error_line
from compiled_recipe import loss, model
from constructs import BATCH, bits_of, classify, dense, plain_loop, training
from constructs import train as train_construct
from torch import Tensor, nn
from torch._dynamo.utils import counters

from samepath import start
from samepath.data import seed_everything
from samepath.engine.state.progress import RunResult
from samepath.engine.step import compiled
from samepath.engine.train import Request, train
from samepath.errors import UserError

RECIPE = str(Path(__file__).with_name("compiled_recipe.py"))
OWN = str(Path(__file__).with_name("own_compiled_recipe.py"))
pytestmark = [
    pytest.mark.skipif(
        not (shutil.which("g++") or shutil.which("clang++")), reason="there is no C++ compiler"
    ),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),  # of its own parts
]


@pytest.fixture(autouse=True)
def _compile_anew() -> None:
    compile_anew()


def compile_anew() -> None:
    torch._dynamo.reset()
    counters.clear()


def run(out: Path, num_workers: int, recipe: str = RECIPE, **asked: Any) -> RunResult:
    return train(Request(recipe=recipe, num_workers=num_workers, out=out, **asked))[0]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """One worker, in this process; its code is in the compiler's cache from then on."""
    compile_anew()
    folder = tmp_path_factory.mktemp("alone")
    eager = run(folder / "eager", 1)
    found = run(folder / "compiled", 1, compile=True)
    assert counters["stats"]["unique_graphs"] == 2, "a whole grain, a short one"
    assert found.digest != eager.digest
    assert found.train_loss == pytest.approx(eager.train_loss, rel=1e-3), "the same dropout"
    return found


def same(found: RunResult, expected: RunResult) -> None:
    assert found.digest == expected.digest
    assert found.metrics == expected.metrics
    assert found.train_loss == expected.train_loss


def test_same_bits_on_five_workers(alone: RunResult, tmp_path: Path) -> None:
    same(run(tmp_path, 5, compile=True), alone)


def test_cached_between_runs(alone: RunResult, tmp_path: Path) -> None:
    """A second process takes all of its code from the cache that the first one left."""
    program = (
        "import sys; from pathlib import Path; from torch._dynamo.utils import counters;"
        "from samepath.engine.train import Request, train;"
        "asked = Request(recipe=sys.argv[1], num_workers=1, out=Path(sys.argv[2]), compile=True);"
        "print(train(asked)[0].digest);"
        "found = [counters['inductor'][f'fxgraph_cache_{what}'] for what in ('hit', 'miss')];"
        "print(*found)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, RECIPE, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    digest, found = ended.stdout.splitlines()[-2:]
    hits, misses = map(int, found.split())
    assert (digest, misses) == (alone.digest, 0)
    assert hits >= 2, "a whole grain, a short one"


def test_resumed_on_other_workers_and_refused_without(alone: RunResult, tmp_path: Path) -> None:
    """Two steps on two workers, the rest on three."""
    run(tmp_path, 2, compile=True, steps=2)
    with pytest.raises(UserError, match=r"cannot resume: compile \(was True, now False\)"):
        run(tmp_path, 1, compile=False, steps=6, resume=True)
    same(run(tmp_path, 3, steps=6, resume=True), alone)


def test_a_model_that_a_person_has_compiled(tmp_path: Path) -> None:
    expected = run(tmp_path / "1", 1, OWN)
    assert counters["stats"]["unique_graphs"] == 3, "and one of validation"
    same(run(tmp_path / "2", 2, OWN), expected)


def test_one_grain_a_batch_equals_a_plain_loop() -> None:
    with start(seed=7) as session:
        ours, plain = training(dense(), compile=True), training(dense())
        plain.model.load_state_dict(ours.model.state_dict())
        train_construct(ours, session, grain_size=BATCH)
        plain.loss = torch.compile(classify, dynamic=False)
        plain_loop(plain)
    assert bits_of(ours) == bits_of(plain)


def test_code_does_not_depend_on_the_order_of_shapes() -> None:
    """With torch's defaults the second shape gets code for any shape."""
    found = []
    for order in ((4, 2), (2, 4)):
        compile_anew()
        compute = compiled.compiled(loss)
        seed_everything(3)
        trained, gradients = model(), {}
        for rows in order:
            seed_everything(rows)
            found_loss = compute(trained, (torch.randn(rows, 8), torch.arange(rows)))
            gradients[rows] = torch.autograd.grad(found_loss, list(trained.parameters()))
        assert counters["stats"]["unique_graphs"] == 2
        found.append(gradients[2] + gradients[4])
    assert all(map(torch.equal, *found))


def test_what_is_compiled_again_and_again_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "MOST_VERSIONS", 2)
    factor = [1.0]

    def changing(model: nn.Module, batch: Tensor) -> Tensor:
        factor[0] += 0.5
        found: Tensor = model(batch).mean() * factor[0]
        return found

    compute = compiled.compiled(changing)
    layer, data = nn.Linear(3, 2), torch.ones(4, 3)
    with pytest.raises(UserError, match="was compiled 2 times"):
        [compute(layer, data) for _ in range(4)]


def test_no_compiler_is_said_in_one_line_before_anything_starts(tmp_path: Path) -> None:
    ended = subprocess.run(
        [Path(sys.executable).with_name("samepath"), "train", RECIPE, "--compile", "--out", "run"],
        env={**os.environ, "CXX": "/nowhere/g++", "PATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 2
    assert "compile needs a C++ compiler" in error_line(ended.stderr)
    assert not (tmp_path / "run").exists()
