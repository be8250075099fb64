"""The critical batch from branches: on losses made up for it, and with real runs."""

from __future__ import annotations

import math
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import samepath

from samepath.console import SilentWatcher
from samepath.engine.run.options import Options, Overrides, resolve
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.train import Request, train
from samepath.errors import UserError
from samepath.insight.advise import branches
from samepath.insight.advise.advice import of_measured
from samepath.insight.advise.branches import (
    BranchPlan,
    BranchRequest,
    judge,
    measure_batch,
    plan_branches,
    reaches,
    smoothed,
)
from samepath.insight.folder import choose_folder
from samepath.recipe import Recipe, find_recipe
from samepath.report.branches import branches_table, draw_branches
from samepath.study.opening import StudyRequest
from samepath.study.results import MeasuredBatch

RECIPE = str(Path(__file__).parents[2] / "parity" / "tiny_recipe.py")
N, B = 1024, 16
PLAN = BranchPlan(at=5, epochs=4, batch_sizes=(32, 64, 128, 256), seeds=(0, 1, 2))


def options(**changes: Any) -> Options:
    made = resolve(find_recipe(RECIPE), Overrides(epochs=40))
    return replace(made, batch_size=B, num_examples=N, **changes)


def losses(batch: int, critical: float, epochs: int, delay: float = 1.0) -> list[tuple[int, float]]:
    """A loss that falls exponentially, by (1 + B / B_crit) more slowly with a batch of B."""
    slower = delay * (1.0 + batch / critical)
    return [(e, 2.0 * math.exp(-e / (slower * 2.0 * N))) for e in range(0, epochs * N, batch)]


def made_up(critical: float, delays: tuple[float, ...] = (1.0, 1.0, 1.0), **more: Any) -> Any:
    """Branches of a training with this B_crit; larger batches take `delays` longer, by seed."""
    found = {
        (size, seed): losses(size, critical, 9, 1.0 if size == B else delays[seed])
        for size in (B, *PLAN.batch_sizes)
        for seed in PLAN.seeds
    }
    ended = dict.fromkeys(found, "finished")
    return judge(PLAN, options(), "sqrt", found, ended, base_steps=320, **more)


def test_smoothing_knows_no_batch_size() -> None:
    """The same fall of the loss, seen every 16 examples or every 256."""
    fine = smoothed([(e, 5.0 - e / 1000.0) for e in range(0, 4096, 16)], 1000)
    rough = smoothed([(e, 5.0 - e / 1000.0) for e in range(0, 4096, 256)], 1000)
    for places, values in (fine, rough):
        assert places[0] == 500.0
        assert np.allclose(values, 5.0 - places / 1000.0)
    assert smoothed([(0, 1.0), (500, 1.0)], 1000)[0].size == 0, "less than a window"


def test_where_a_loss_is_reached() -> None:
    places, values = np.array([10.0, 20.0, 30.0]), np.array([3.0, 1.0, 2.0])
    assert reaches(places, values, 2.0) == pytest.approx(15.0)
    assert reaches(places, values, 3.5) == 10.0
    assert reaches(places, values, 0.5) is None


def test_the_critical_batch_and_the_fit_of_a_known_training() -> None:
    """E(B) / E(16) = (1 + B / 500) / (1 + 16 / 500): 1.03, 1.09, 1.22 and 1.47."""
    found = made_up(500.0)
    assert (found.critical, found.low, found.high) == (64, 64, 128)
    assert found.fitted == pytest.approx(500.0, rel=0.02)
    assert {b.ratio for b in found.of(B)} == {1.0}
    ratio = found.of(128)[0].ratio
    assert ratio == pytest.approx((1.0 + 128 / 500) / (1.0 + 16 / 500), rel=0.01)
    assert all(b.loss > found.of(B)[0].loss for b in found.of(256))


def test_orders_that_disagree_widen_the_interval() -> None:
    found = made_up(500.0, (0.9, 1.0, 1.08))
    assert (found.low, found.critical, found.high) == (16, 64, 256)
    assert found.fitted_low < found.fitted < found.fitted_high
    even = made_up(500.0)
    assert even.fitted_low == pytest.approx(even.fitted_high)


def test_orders_that_need_more_examples_do_not_bend_the_fit() -> None:
    """One order comes to its loss in half the examples, and alone does so with large batches."""
    base_loss = losses(B, 500.0, PLAN.epochs)[-1][1]
    found = {}
    for size in (B, *PLAN.batch_sizes):
        for seed, pace in zip(PLAN.seeds, (0.5, 1.0, 1.0), strict=True):
            fall = losses(size, 500.0, 4 if seed and size > 64 else 9, pace)
            found[size, seed] = [(e, max(loss, base_loss)) for e, loss in fall]
    judged = judge(PLAN, options(), "sqrt", found, dict.fromkeys(found, "finished"), base_steps=320)
    assert [branch.examples is None for branch in judged.of(256)] == [False, True, True]
    assert judged.fitted_low is not None
    assert judged.fitted is not None
    assert judged.fitted_high is not None
    assert judged.fitted_low <= judged.fitted <= judged.fitted_high
    assert judged.fitted == pytest.approx(500.0, rel=0.15)


def test_no_end_where_the_largest_is_still_within() -> None:
    found = made_up(1e9)
    assert (found.critical, found.low, found.high) == (256, 256, None)
    assert "at 256 or more, the largest that was tried" in of_measured(found)


def test_a_branch_that_diverged_or_never_gets_there_is_none() -> None:
    found = made_up(10.0)
    assert (found.critical, found.low, found.high) == (16, 16, 32)
    far = found.of(256)[0]
    assert (far.examples, far.ratio) == (None, None)
    few = {
        (size, seed): losses(size, 500.0, 9)[: 3 if size == 64 else None]
        for size in (B, *PLAN.batch_sizes)
        for seed in PLAN.seeds
    }
    ended = {key: "diverged" if key[0] == 64 else "finished" for key in few}
    found = judge(PLAN, options(), "linear", few, ended, base_steps=320)
    assert (found.critical, found.high) == (32, 64), "larger ones do not count after a failure"
    assert found.of(64)[0].loss is None
    assert [b.rate_factor for b in found.of(64)] == [4.0] * 3
    rows = branches_table(found)[1]
    assert rows[3] == ["64", "4x", "", "not reached", rows[3][4]]


@pytest.mark.parametrize(
    ("noise", "said"),
    [
        ((200.0, 160.0, 240.0), "between 20 and 110, which does not contradict it"),
        ((20.0, 16.0, 24.0), "which is too low"),
        ((8000.0, 4000.0, None), "at least 500, which is too high"),
        ((None, None, None), "no noise scale there to compare with"),
    ],
)
def test_the_noise_scale_beside_it(noise: tuple[float | None, ...], said: str) -> None:
    words = of_measured(made_up(500.0, noise=noise))
    assert said in words
    assert words.startswith(
        "branches after epoch 5 (3 orders of the data) put the critical batch at 64"
    )
    assert "64 (at least 64, below 128); " in words


@pytest.mark.parametrize(
    ("changes", "asked", "said"),
    [
        ({}, {"batch_sizes": (2048,)}, "2048 is larger than the data"),
        ({}, {"batch_sizes": (24,)}, "24 is no multiple of the batch of 16"),
        ({}, {"batch_sizes": (8,)}, "8 is no multiple"),
        ({"epochs": 4}, {}, "has 4 epochs: too few"),
        ({}, {"at": 37}, "too few for branches after 37"),
        ({}, {"at": 0}, "--branch-at 0"),
        ({}, {"epochs": 0}, "--branch-epochs 0"),
        ({}, {"seeds": 0}, "--branch-seeds 0"),
        ({"num_examples": 100}, {"epochs": 2}, "fewer than 10 steps"),
    ],
)
def test_bad_input(changes: dict[str, Any], asked: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        plan_branches(BranchRequest(**asked), replace(options(), **changes))


def test_what_is_chosen_where_nothing_is_said() -> None:
    plan = plan_branches(BranchRequest(), options())
    assert (plan.at, plan.epochs, plan.seeds) == (20, 4, (0, 1, 2))
    assert plan.batch_sizes == (32, 64, 128, 256), "at least ten steps in four epochs"
    assert plan_branches(BranchRequest(), options(epochs=5)).at == 1


def test_a_folder_that_was_begun_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = choose_folder("advice", "a", None, begun="branches")
    (first / "branches").mkdir(parents=True)
    assert choose_folder("advice", "a", None, begun="branches") == first
    assert choose_folder("advice", "a", first, begun="branches") == first
    with pytest.raises(UserError, match="not empty"):
        choose_folder("advice", "a", first)
    (first / "advice.json").write_text("{}")
    assert choose_folder("advice", "a", None, begun="branches") != first


def test_where_branches_are_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where: list[str] = []

    def begin(runs: Any, opened: Any, request: StudyRequest, *rest: Any) -> None:
        where.append(request.on)
        raise KeyboardInterrupt

    monkeypatch.setattr(branches, "train_runs", begin)
    for on in ("ray", "local"):
        with pytest.raises(KeyboardInterrupt):
            measure(tmp_path / on, Counting(), on)
    assert where == ["ray", "local"]


def test_a_cluster_is_connected_to_before_anything_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "advice"
    said = samepath("advise", RECIPE, "--on", "ray", "--out", out, code=2)
    assert "--on needs --critical-batch measured" in said
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    asked = ("--critical-batch", "measured", "--on", f"dask:tcp://{address}", "--out", out)
    said = samepath("advise", RECIPE, *asked, code=2)
    assert f"nothing answers at {address}" in said
    assert not out.exists()


# ---- with real runs


class Counting(SilentWatcher):
    """Counts what is trained, and stops it after so many runs."""

    def __init__(self, stop_after: int = 100) -> None:
        self.ended: list[str] = []
        self.stop_after = stop_after

    def end(self, what: str, said: str | None = None) -> None:
        self.ended.append(what)
        if len(self.ended) == self.stop_after:
            raise KeyboardInterrupt


def measure(folder: Path, watcher: Counting, on: str = "local") -> MeasuredBatch:
    recipe: Recipe = find_recipe(RECIPE)
    asked = replace(resolve(recipe, Overrides(epochs=6, seed=4)), target=None)
    request = BranchRequest(at=2, epochs=2, batch_sizes=(20, 40), seeds=2, on=on)
    plan = plan_branches(request, asked)
    return measure_batch(plan, recipe, asked, folder, 0.001, watcher)


def test_branches_of_a_real_run(tmp_path: Path) -> None:
    folder = tmp_path / "branches"
    with pytest.raises(KeyboardInterrupt):
        measure(folder, Counting(stop_after=2))
    watcher = Counting()
    found = measure(folder, watcher)
    assert "base run, batch 10" not in watcher.ended
    assert 0 < len(watcher.ended) < 3 * 2, "what had finished is not trained again"
    assert found.batch_sizes == [10, 20, 40]
    assert (found.base_steps, found.base_epochs, found.window) == (10, 2, 44)
    assert all(branch.ended == "finished" for branch in found.branches)
    assert found.rule == "sqrt", "AdamW"
    # the base's own batch and seed: the run that never branched
    whole, _ = train(
        Request(recipe=RECIPE, epochs=5, seed=4, num_workers=1, out=tmp_path / "whole")
    )
    same = RunFolder(folder / "runs" / "batch10-seed4").read()
    other = RunFolder(folder / "runs" / "batch10-seed5").read()
    assert same["result"]["digest"] == whole.digest != other["result"]["digest"]
    assert same["config"]["start_from"] == other["config"]["start_from"]
    watcher = Counting()
    assert measure(folder, watcher) == found
    assert watcher.ended == []
    assert draw_branches("tiny", found, tmp_path / "a.png").stat().st_size > 10_000
    _, rows, note = branches_table(found)
    assert [row[0] for row in rows[1:4]] == ["10", "20", "40"]
    assert "after step 10 (epoch 2)" in note
