"""A branch begins with another run's exact state: with its settings it is that run, gone on."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from samepath.engine.state.checkpoint import list_checkpoints, load
from samepath.engine.state.progress import RunResult
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.train import Request, train
from samepath.errors import UserError
from samepath.plan import epoch_order

RECIPE = str(Path(__file__).with_name("tiny_recipe.py"))
AT, EPOCHS, PER_EPOCH = 2, 4, 5


def run(out: Path, recipe: str = RECIPE, workers: int = 1, **asked: Any) -> RunResult:
    return train(Request(recipe=recipe, num_workers=workers, out=out, **asked))[0]


def lines(out: Path) -> list[dict[str, Any]]:
    return [{**line, "seconds": 0} for line in RunFolder(out).read_metrics()]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    run(folder / "base", epochs=AT)
    return folder / "base"


@pytest.mark.parametrize("workers", [1, 2])
def test_with_its_own_settings_it_is_the_run_that_never_stopped(
    workers: int, base: Path, tmp_path: Path
) -> None:
    whole = run(tmp_path / "whole", epochs=EPOCHS)
    branch = run(
        tmp_path / "branch", workers=workers, epochs=EPOCHS, start_from=base,
        strategy="sqrt", virtual_workers=1,
    )  # fmt: skip
    assert branch.digest == whole.digest
    assert branch.metrics == whole.metrics
    later = [line for line in lines(tmp_path / "whole") if line["step"] > AT * PER_EPOCH]
    assert lines(tmp_path / "branch") == later


def test_another_batch_size_from_the_same_state_at_any_number_of_workers(
    base: Path, tmp_path: Path
) -> None:
    said: dict[str, Any] = {"epochs": EPOCHS, "strategy": "sqrt", "virtual_workers": 2}
    found = [
        run(tmp_path / str(workers), workers=workers, start_from=base, **said)
        for workers in (1, 2, 3)
    ]
    assert len({result.digest for result in found}) == 1
    assert found[0].steps == AT * PER_EPOCH + 3 * (EPOCHS - AT), "batches of 20 of 44 examples"
    first = next(line for line in lines(tmp_path / "1") if "learning_rate" in line)
    assert first["learning_rate"] == pytest.approx(0.01 * 0.9**AT * math.sqrt(2.0))
    content = json.loads((tmp_path / "1" / "run.json").read_text())
    last = load(list_checkpoints(base / "checkpoints")[-1])
    assert content["config"]["start_from"] == {
        "folder": str(base.resolve()), "step": AT * PER_EPOCH, "digest": last.digest,
    }  # fmt: skip
    assert list_checkpoints(base / "checkpoints")[-1] == last.path, "the base run is as it was"


def test_another_seed_is_another_order_from_the_same_weights(base: Path, tmp_path: Path) -> None:
    ends = [run(tmp_path / str(s), epochs=AT + 1, seed=s, start_from=base) for s in (0, 1)]
    assert ends[0].digest != ends[1].digest
    at = [load(list_checkpoints(tmp_path / str(s) / "checkpoints")[0]).digest for s in (0, 1)]
    assert at[0] == at[1]


def test_a_branch_that_was_killed_before_its_first_step_still_begins_there(
    base: Path, tmp_path: Path
) -> None:
    said: dict[str, Any] = {"epochs": EPOCHS, "seed": 3}
    expected = run(tmp_path / "whole", start_from=base, **said)
    run(tmp_path / "killed", steps=AT * PER_EPOCH, start_from=base, **said)
    shutil.rmtree(tmp_path / "killed" / "checkpoints")
    again = run(tmp_path / "killed", resume=True, epochs=EPOCHS)
    assert again.digest == expected.digest
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")


def test_a_run_begins_once(base: Path, tmp_path: Path) -> None:
    run(tmp_path / "run", epochs=1)
    with pytest.raises(UserError, match="leave start_from out"):
        run(tmp_path / "run", epochs=3, resume=True, start_from=base)


PLAIN = """
import torch
from torch import nn
import samepath

made = torch.Generator().manual_seed(1)
INPUTS = torch.randn(40, 3, generator=made, dtype=torch.float64)
TARGETS = INPUTS.sum(1, keepdim=True) ** 2


def loss(model, batch):
    return ((model(batch[0]) - batch[1]) ** 2).mean()


def recipe():
    return samepath.Recipe(
        model=lambda: nn.Linear(3, 1, dtype=torch.float64),
        train=(INPUTS, TARGETS),
        loss=loss,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
        batch_size=5,
        grain_size=5,
        epochs=4,
    )
"""


def test_it_is_a_plain_loop_that_changes_its_batch(tmp_path: Path) -> None:
    """Two epochs in batches of 5, then two in batches of 10 at twice the rate."""
    file = tmp_path / "plain.py"
    file.write_text(PLAIN)
    run(tmp_path / "base", str(file), epochs=2)
    run(
        tmp_path / "branch", str(file), 2, epochs=4, start_from=tmp_path / "base",
        strategy="linear", virtual_workers=2,
    )  # fmt: skip
    made = torch.Generator().manual_seed(1)
    inputs = torch.randn(40, 3, generator=made, dtype=torch.float64)
    targets = inputs.sum(1, keepdim=True) ** 2
    model = nn.Linear(3, 1, dtype=torch.float64)
    run(tmp_path / "start", str(file), steps=0)
    start = load(list_checkpoints(tmp_path / "start" / "checkpoints")[-1]).state.tensors
    model.load_state_dict({name: start[f"model/{name}"] for name in ("weight", "bias")})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch, size in enumerate((5, 5, 10, 10)):
        optimizer.param_groups[0]["lr"] = 0.01 * size / 5
        for chosen in torch.tensor(epoch_order(40, 0, epoch)).split(size):
            optimizer.zero_grad()
            ((model(inputs[chosen]) - targets[chosen]) ** 2).mean().backward()
            optimizer.step()
    found = load(list_checkpoints(tmp_path / "branch" / "checkpoints")[-1]).state.tensors
    for name, parameter in model.named_parameters():
        assert torch.allclose(found[f"model/{name}"], parameter.detach(), rtol=1e-10, atol=1e-12)


def test_data_that_changed_since(tmp_path: Path) -> None:
    file = tmp_path / "plain.py"
    text = PLAIN.replace("manual_seed(1)", "manual_seed(SEED)")
    seed = "from pathlib import Path\nSEED = int(Path(__file__).with_name('seed').read_text())\n"
    file.write_text(seed + text)
    (tmp_path / "seed").write_text("1")
    run(tmp_path / "base", str(file), epochs=1)
    (tmp_path / "seed").write_text("2")
    with pytest.raises(UserError, match="the training data changed since the run began"):
        run(tmp_path / "branch", str(file), epochs=2, start_from=tmp_path / "base")


def stopped_inside(folder: Path) -> None:
    run(folder / "from", steps=3)


def other_recipe(folder: Path) -> None:
    shutil.copy(RECIPE, folder / "other.py")
    (folder / "other.py").write_text((folder / "other.py").read_text() + "# another\n")
    run(folder / "from", str(folder / "other.py"), epochs=1)


def no_checkpoint(folder: Path) -> None:
    run(folder / "from", epochs=1)
    shutil.rmtree(folder / "from" / "checkpoints")


def finished(folder: Path) -> None:
    run(folder / "from", epochs=1)


@pytest.mark.parametrize(
    ("make", "asked", "said"),
    [
        (stopped_inside, {}, "stopped 3 steps into an epoch"),
        (other_recipe, {}, "has another recipe"),
        (no_checkpoint, {}, "has no checkpoint"),
        (lambda folder: None, {}, "holds no run"),
        (finished, {"strategy": "noise", "virtual_workers": 2}, "needs what it measured"),
    ],
)
def test_what_no_branch_begins_from(
    make: Callable[[Path], None], asked: dict[str, Any], said: str, tmp_path: Path
) -> None:
    make(tmp_path)
    with pytest.raises(UserError, match=said):
        run(tmp_path / "branch", epochs=3, start_from=tmp_path / "from", **asked)
    assert not (tmp_path / "branch").exists()
