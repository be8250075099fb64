"""Metrics of the loss, hooks, extra state and early stopping, with real processes: the same at 1
(in this process), 2, 3 and 5 workers, after a resume, and as in a plain PyTorch loop."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import hooks_recipe
import pytest
import torch
from torch import nn

from samepath import start
from samepath.data import seed_everything
from samepath.engine.run.loop import Run
from samepath.engine.run.options import Overrides, refuse_recipe, resolve
from samepath.engine.state.checkpoint import BEST, kept_weights, load_newest
from samepath.engine.state.progress import RunResult
from samepath.engine.train import Request, train
from samepath.engine.verify.verify import VerifyRequest, verify
from samepath.errors import CheckpointDamaged, ReplicasDiffer, UserError, WorkerFailed
from samepath.keys import key
from samepath.plan import epoch_order
from samepath.recipe import Recipe

RECIPE = str(Path(__file__).with_name("hooks_recipe.py"))


def run(out: Path, num_workers: int, **asked: Any) -> RunResult:
    return train(Request(recipe=RECIPE, num_workers=num_workers, out=out, **asked))[0]


def lines(out: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for line in found:
        del line["seconds"]
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunResult]:
    out = tmp_path_factory.mktemp("hooks") / "alone"
    return out, run(out, 1)


@pytest.mark.parametrize("num_workers", [2, 3, 5])
def test_same_at_every_worker_count(
    num_workers: int, alone: tuple[Path, RunResult], tmp_path: Path
) -> None:
    result = run(tmp_path / "run", num_workers)
    assert result.digest == alone[1].digest
    assert (result.metrics, result.train_metrics) == (alone[1].metrics, alone[1].train_metrics)
    assert lines(tmp_path / "run") == lines(alone[0])


def test_what_is_logged(alone: tuple[Path, RunResult]) -> None:
    steps = [line for line in lines(alone[0]) if "train_loss" in line]
    epochs = [line for line in lines(alone[0]) if "epoch_train_loss" in line]
    assert len(steps) == 15
    assert [line["train_size"] for line in steps[:5]] == [2.0] * 5
    first = [line["train_accuracy"] for line in steps[:5]]
    mean = (10 * sum(first[:4]) + 4 * first[4]) / 44
    assert epochs[0]["epoch_train_accuracy"] == pytest.approx(mean, rel=1e-12)
    assert 0 < epochs[0]["valid_accuracy"] <= 1
    assert len({line["valid_ema_loss"] for line in epochs}) == 3
    assert alone[1].train_metrics.keys() == {"accuracy", "size"}


@pytest.mark.parametrize("stop", [3, 5, 8])
def test_resumed_at_another_count(stop: int, alone: tuple[Path, RunResult], tmp_path: Path) -> None:
    """Within the first epoch, at its end (something has just been unfrozen), and after it."""
    run(tmp_path / "run", 2, steps=stop)
    result = run(tmp_path / "run", 1 if stop == 5 else 3, epochs=3, resume=True)
    assert result.digest == alone[1].digest
    assert lines(tmp_path / "run") == lines(alone[0])


def test_extra_state_is_saved_and_in_the_digest(alone: tuple[Path, RunResult]) -> None:
    found = load_newest(alone[0] / "checkpoints", pytest.fail)
    assert found is not None
    names = [name for name in found.state.tensors if name.startswith("extra/ema/")]
    assert "extra/ema/module.head.weight" in names
    count = found.state.tensors["extra/ema/n_averaged"]
    assert int(count) == 15


# ---- against a plain loop


def plain_loop(recipe: Recipe, seed: int) -> dict[str, torch.Tensor]:
    """The recipe as anyone would write it; random numbers are those of batches of one grain."""
    seed_everything(key("model", seed))
    model = hooks_recipe.Net()
    optimizer = recipe.optimizer(p for p in model.parameters() if p.requires_grad)
    ema = hooks_recipe.average(model)
    assert isinstance(recipe.train, tuple)
    inputs, labels = recipe.train
    step = 0
    for epoch in range(recipe.epochs):
        order = torch.from_numpy(epoch_order(len(inputs), seed, epoch).copy())
        for examples in torch.split(order, recipe.batch_size):
            optimizer.zero_grad()
            seed_everything(key("grain", seed, step, 0))
            loss, _ = hooks_recipe.loss(model, (inputs[examples], labels[examples]))
            loss.backward()
            optimizer.step()
            ema.update_parameters(model)
            step += 1
        if epoch == hooks_recipe.UNFROZEN_AFTER:
            model.body.requires_grad_(True)
            optimizer.add_param_group({"params": list(model.body.parameters()), "lr": 0.003})
    return {**model.state_dict(), **{f"ema {n}": v for n, v in ema.state_dict().items()}}


def in_process(recipe: Recipe, **asked: Any) -> Run:
    with start(seed=0) as session:
        made = Run(recipe, resolve(recipe, Overrides(**asked)), session, None)
        made.result = made.go()  # type: ignore[attr-defined]
    return made


def test_one_grain_a_batch_equals_a_plain_loop() -> None:
    recipe = replace(hooks_recipe.recipe(), grain_size=10)
    ours = in_process(recipe).trainer
    found = {**ours.model.state_dict()}
    found |= {f"ema {n}": v for n, v in ours.extra["ema"].state_dict().items()}
    plain = plain_loop(recipe, seed=0)
    assert found.keys() == plain.keys()
    assert [name for name in plain if not torch.equal(found[name], plain[name])] == []
    assert not torch.equal(found["head.weight"], found["ema module.head.weight"])


# ---- ending early


def stop_on_one(run: Any) -> None:
    hooks_recipe.after_step(run)
    if run.step == 7 and run.is_first:
        run.stop()


def stopping(recipe: Recipe) -> Recipe:
    return replace(recipe, after_step=stop_on_one)


@pytest.mark.parametrize("num_workers", [1, 3])
def test_one_worker_stops_all(num_workers: int, tmp_path: Path) -> None:
    result = run(tmp_path / "run", num_workers, instead=stopping)
    assert (result.status, result.steps) == ("early", 7)
    assert "run.stop()" in result.message
    assert result.digest == run(tmp_path / "other", 2, steps=7).digest
    again = run(tmp_path / "run", 1, resume=True)
    assert (again.status, again.steps, again.digest) == ("early", 7, result.digest)


def test_early_stopping_keeps_the_best_and_is_resumed_right(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"stop_patience": 2, "monitor": "size:max", "epochs": 9}
    whole = run(tmp_path / "whole", 1, **asked)  # `size` is always the same: the first is the best
    assert (whole.status, whole.epochs, whole.best_epoch) == ("early", 3.0, 1)
    assert "was best after epoch 1 (2)" in whole.message
    assert BEST in kept_weights(tmp_path / "whole" / "weights")
    run(tmp_path / "parts", 2, **asked, steps=12)
    parts = run(tmp_path / "parts", 3, resume=True, epochs=9)
    assert (parts.status, parts.epochs, parts.digest) == ("early", 3.0, whole.digest)
    longer = run(tmp_path / "parts", 1, resume=True, stop_patience=3)
    assert (longer.status, longer.epochs) == ("early", 4.0)


def test_best_weights_are_those_of_the_lowest_loss(tmp_path: Path) -> None:
    result = run(tmp_path / "run", 1, keep_best=True)
    losses = [line["valid_loss"] for line in lines(tmp_path / "run") if "valid_loss" in line]
    assert result.best == min(losses)
    assert result.best_epoch == losses.index(min(losses)) + 1


def test_unknown_monitor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"monitor is 'dice:max', and the validation metrics are"):
        run(tmp_path / "run", 1, monitor="dice:max")
    with pytest.raises(UserError, match="monitor is 'dice:best'; give a validation metric"):
        run(tmp_path / "run", 1, monitor="dice:best")


# ---- refusals


def changed(**fields: Any) -> Recipe:
    return replace(hooks_recipe.recipe(), **fields)


def test_metrics_must_have_the_same_names_in_every_grain() -> None:
    def loss(model: nn.Module, batch: hooks_recipe.Batch) -> Any:
        found, metrics = hooks_recipe.loss(model, batch)
        return found, metrics if len(metrics) == 0 or batch[1][0] else {"dice": 1.0, **metrics}

    with pytest.raises(UserError, match="the metric 'dice' for some examples and not for others"):
        in_process(changed(loss=loss))


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        ({"loss": 1.0}, "a metric called 'loss'"),
        ({"dice": torch.ones(3)}, r"a metric 'dice' of shape \(3,\)"),
        ({"dice": "good"}, "a metric 'dice' that is 'good'"),
    ],
)
def test_metrics_that_are_none(metrics: dict[str, Any], says: str) -> None:
    def loss(model: nn.Module, batch: hooks_recipe.Batch) -> Any:
        return hooks_recipe.loss(model, batch)[0], metrics

    with pytest.raises(UserError, match=says):
        in_process(changed(loss=loss))


class Stateless:
    pass


class Unsavable(Stateless):
    def state_dict(self) -> dict[str, Any]:
        return {"what": Stateless()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda model: Stateless(), r"extra\['ema'\] makes Stateless, which has no state_dict"),
        (lambda model: Unsavable(), "extra/ema/what holds a Stateless, which cannot be saved"),
        (nn.Linear(1, 1), r"extra\['ema'\] is Linear; give a function"),
    ],
)
def test_extra_that_cannot_be_saved(made: Any, says: str) -> None:
    recipe = changed(extra={"ema": made}, after_step=None, after_epoch=None)
    with pytest.raises(UserError, match=says):
        in_process(recipe)
    with pytest.raises(UserError, match=says):  # before anything is written
        refuse_recipe(recipe, resolve(recipe), 1)


def test_extra_of_another_name_is_not_resumed(tmp_path: Path) -> None:
    def trainer(session: Any, **given: Any) -> Any:
        torch.manual_seed(1)
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = lambda model, batch: model(batch).mean()  # noqa: E731
        return session.prepare(model, optimizer, loss, batch_size=4, **given)

    with start(seed=7) as session:
        trainer(session, extra={"ema": hooks_recipe.average}).save(tmp_path)
        with pytest.raises(CheckpointDamaged, match="extra state is ema, and here there is none"):
            trainer(session).resume(tmp_path)


def test_asynchronous_updates_refuse_hooks(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="asynchronous updates have no after_step"):
        run(tmp_path / "run", 2, strategy="asynchronous")
    assert not (tmp_path / "run").exists()


def on_one_worker_only(run: Any) -> None:
    if run.is_first:
        run.extra["ema"].update_parameters(run.model)


def average_on_one(recipe: Recipe) -> Recipe:
    return replace(recipe, after_step=on_one_worker_only, after_epoch=None)


def metrics_on_one(recipe: Recipe) -> Recipe:
    return replace(recipe, after_epoch=add_on_one)


def add_on_one(run: Any) -> None:
    if run.is_first:
        run.metrics["mine"] = 1.0


@pytest.mark.parametrize(
    ("instead", "says"),
    [
        (average_on_one, r"extra\['ema'\] of worker 1 differs from worker 0's"),
        (metrics_on_one, "run.metrics of worker 1 differs from worker 0's"),
    ],
)
def test_what_only_one_worker_changes_ends_the_run(instead: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises((ReplicasDiffer, WorkerFailed), match=says):
        run(tmp_path / "run", 2, epochs=1, instead=instead)


# ---- together with the rest


def without_hooks(recipe: Recipe) -> Recipe:
    return replace(recipe, after_step=None, after_epoch=None, extra={})


def test_metrics_through_a_server(tmp_path: Path) -> None:
    """One worker of a server makes the steps of a run without one."""
    run(tmp_path / "server", 1, strategy="asynchronous", instead=without_hooks, epochs=2)
    run(tmp_path / "alone", 1, instead=without_hooks, epochs=2)
    found = [
        [line["train_accuracy"] for line in lines(tmp_path / name) if "train_accuracy" in line]
        for name in ("server", "alone")
    ]
    assert len(found[0]) == 10
    assert found[0] == found[1]


def test_with_a_lag_at_other_counts_and_resumed(tmp_path: Path) -> None:
    """Metrics of batches that wait for their update wait with them."""
    asked: dict[str, Any] = {"strategy": "stale", "virtual_workers": 3}
    whole = run(tmp_path / "whole", 1, **asked)
    run(tmp_path / "parts", 3, **asked, steps=7)
    parts = run(tmp_path / "parts", 2, resume=True, epochs=3)
    assert parts.digest == whole.digest
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")


def count_calls(run: Any) -> None:
    """A hook whose state is nowhere that is saved."""
    count_calls.number = getattr(count_calls, "number", 0) + 1  # type: ignore[attr-defined]
    with torch.no_grad():
        run.model.head.bias.add_(1e-3 * count_calls.number)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("forked")
def test_verify_looks_at_hooks_and_extra_state(tmp_path: Path) -> None:
    assert verify(VerifyRequest(recipe=RECIPE, counts=(1, 2), steps=6)).equal
    broken = tmp_path / "broken.py"
    broken.write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from dataclasses import replace\nimport hooks_recipe, test_hooks\n"
        "def recipe():\n"
        "    return replace(hooks_recipe.recipe(), after_step=test_hooks.count_calls)\n"
    )
    verdict = verify(VerifyRequest(recipe=str(broken), counts=(1, 2), steps=6))
    assert not verdict.equal
