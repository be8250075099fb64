"""Cross-validation with real runs: the same bits at 1, 2 and 3 workers, and as a plain loop."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import samepath

from samepath.console import SilentWatcher
from samepath.data import seed_everything
from samepath.engine.state.reopen import reopen
from samepath.engine.train import Request, train
from samepath.errors import UserError
from samepath.keys import key
from samepath.output.predict import predict, predict_to
from samepath.plan import epoch_order
from samepath.recipe import find_recipe, with_valid_joined
from samepath.report.folds import finish_folds
from samepath.study.folds import Folds, cross_validate, from_json
from samepath.study.opening import StudyRequest
from samepath.study.splits import SplitRequest
from samepath.threads import limited_threads

RECIPE = str(Path(__file__).with_name("folds_recipe.py"))
ASKED = SplitRequest(folds=2, groups="patient", stratify="label")
PLAIN = """
import torch
import torch.nn.functional as F
from torch import nn
from samepath import Recipe

made = torch.Generator().manual_seed(1)
inputs = torch.randn(26, 4, generator=made)
targets = inputs.sum(1, keepdim=True)

def recipe():
    return Recipe(model=lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)),
        train=(inputs, targets), loss=lambda model, batch: F.mse_loss(model(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        batch_size=4, grain_size=4, epochs=2, seed=5)
"""


class Counting(SilentWatcher):
    """Counts what is trained."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def end(self, what: str, said: str | None = None) -> None:
        self.ended += [what] if what.startswith("fold") else []


def validated(out: Path, num_workers: int, watcher: SilentWatcher | None = None) -> Folds:
    request = StudyRequest(recipe=RECIPE, out=out)
    found = cross_validate(request, ASKED, watcher or SilentWatcher(), num_workers=num_workers)
    return finish_folds(found, out)[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both folds, each with one worker."""
    out = tmp_path_factory.mktemp("folds") / "1"
    validated(out, 1)
    return out


@pytest.fixture(scope="module")
def found(folder: Path) -> Folds:
    return from_json(json.loads((folder / "folds.json").read_text()))


def workers_of(out: Path) -> list[int]:
    return [reopen(run).record["result"]["num_workers"] for run in sorted(out.glob("runs/*"))]


def test_same_bits_with_more_workers(folder: Path, found: Folds, tmp_path: Path) -> None:
    """The first fold with two workers, the second with three."""
    out = tmp_path / "more"
    more = validated(out, 5)
    assert (workers_of(folder), workers_of(out)) == ([1, 1], [2, 3])
    assert [run.digest for run in more.runs] == [run.digest for run in found.runs]
    assert [run.metrics for run in more.runs] == [run.metrics for run in found.runs]
    assert (more.metrics, more.pooled) == (found.metrics, found.pooled)
    ours, theirs = ((place / "predictions.npz").read_bytes() for place in (folder, out))
    assert ours == theirs


def test_a_fold_is_what_train_does(folder: Path, found: Folds, tmp_path: Path) -> None:
    keeps = [str(folder / "splits" / f"repeat1-fold{number}.csv") for number in (1, 2)]
    digests = []
    for keep, workers, out in zip(keeps, (3, 2), (tmp_path / "1", tmp_path / "2"), strict=True):
        request = Request(recipe=RECIPE, keep=keep, num_workers=workers, out=out)
        digests.append(train(request)[0].digest)
    assert digests == [run.digest for run in found.runs]
    assert len(set(digests)) == 2
    other = Request(recipe=RECIPE, keep=keeps[0], out=tmp_path / "2", resume=True, epochs=4)
    with pytest.raises(UserError, match=r"the run's keep-list is .*fold2.csv, not .*fold1.csv"):
        train(other)


def test_groups_and_classes(folder: Path, found: Folds) -> None:
    arrays = np.load(folder / "predictions.npz")
    assert arrays["index"].tolist() == list(range(60))
    patients = arrays["index"] // 4
    for patient in range(15):
        assert len(set(arrays["fold"][patients == patient])) == 1
    assert {run.num_train + run.num_held_out for run in found.runs} == {60}


def test_predictions_are_those_of_models_that_have_not_seen_them(
    folder: Path, found: Folds
) -> None:
    arrays = np.load(folder / "predictions.npz")
    data: Any = with_valid_joined(find_recipe(RECIPE)).train
    inputs, labels = data
    assert np.array_equal(arrays["label"], labels)
    for run in found.runs:
        assert run.weights == "best"
        model, _ = reopen(folder / run.folder).model("best")
        rows = np.flatnonzero(arrays["fold"] == run.fold)
        assert len(rows) == run.num_held_out
        with torch.no_grad(), limited_threads(1):
            grains = torch.from_numpy(rows).split(2)
            plain = torch.cat([model(inputs[grain]) for grain in grains])
        assert np.array_equal(arrays["output"][rows], plain.numpy())
        right = plain.argmax(1) == labels[rows]
        assert run.metrics["accuracy"] == pytest.approx(right.double().mean().item(), abs=1e-6)
    right = arrays["output"].argmax(1) == arrays["label"]
    assert found.calibration is not None
    judged = [(part.num_examples, part.accuracy) for part in found.calibration.parts]
    assert sum(number for number, _ in judged) == len(right)
    assert sum(n * share for n, share in judged) == pytest.approx(right.sum())
    weighed = (right * arrays["label"]).sum() / arrays["label"].sum()
    assert found.pooled == {"weighed": pytest.approx(weighed, abs=1e-6)}


def test_nothing_is_trained_twice_and_other_splits_are_refused(folder: Path, found: Folds) -> None:
    watcher, before = Counting(), (folder / "predictions.npz").read_bytes()
    assert replace(validated(folder, 2, watcher), command=found.command) == found
    assert watcher.ended == []
    assert (folder / "predictions.npz").read_bytes() == before
    for changes, seed, words in (
        ({"folds": 3}, None, r"folds \(was 2, now 3\)"),
        ({"stratify": None}, None, "holds another study: stratify"),
        ({}, 4, r"seed \(was 0, now 4\)"),
    ):
        request = StudyRequest(recipe=RECIPE, out=folder)
        with pytest.raises(UserError, match=words):
            cross_validate(request, replace(ASKED, **changes), watcher, seed=seed)


def test_a_plain_loop_says_the_same(tmp_path: Path) -> None:
    """With one grain per batch; the split is of a recipe without validation data, three folds."""
    recipe, out = tmp_path / "plain.py", tmp_path / "out"
    recipe.write_text(PLAIN)
    request = StudyRequest(recipe=str(recipe), out=out)
    found = cross_validate(request, SplitRequest(folds=3), SilentWatcher(), num_workers=2)
    arrays = np.load(out / "predictions.npz")
    data: Any = find_recipe(str(recipe)).train
    inputs, targets = data
    assert np.array_equal(arrays["label"], targets)
    for run in found.runs:
        trained_on = torch.from_numpy(np.flatnonzero(arrays["fold"] != run.fold))
        held_out = torch.from_numpy(np.flatnonzero(arrays["fold"] == run.fold))
        with limited_threads(1):
            made = find_recipe(str(recipe))
            seed_everything(key("model", 5))
            model = made.model()
            optimizer = made.optimizer(model.parameters())
            for epoch in range(2):
                order = torch.from_numpy(epoch_order(len(trained_on), 5, epoch).copy())
                for rows in trained_on[order].split(4):
                    optimizer.zero_grad()
                    made.loss(model, (inputs[rows], targets[rows])).backward()
                    optimizer.step()
            with torch.no_grad():
                plain = torch.cat([model(inputs[rows]) for rows in held_out.split(4)])
        assert np.array_equal(arrays["output"][held_out], plain.numpy())


def test_an_ensemble(folder: Path, found: Folds, tmp_path: Path) -> None:
    """The mean of the folds' probabilities, the same bytes at every worker count, also when the
    folder has been moved."""
    inputs = np.random.default_rng(0).normal(size=(9, 8)).astype(np.float32)
    np.save(tmp_path / "new.npy", inputs)
    ours = predict(folder, tmp_path / "new.npy", num_workers=1)
    each = [
        predict(folder / run.folder, tmp_path / "new.npy", num_workers=1, epoch="best")["output"]
        for run in found.runs
    ]
    scores = torch.from_numpy(np.stack(each)).double()
    assert ours.keys() == {"probability"}
    np.testing.assert_allclose(ours["probability"], scores.softmax(2).mean(0), rtol=1e-6)
    moved = Path(shutil.copytree(folder, tmp_path / "moved" / "here"))
    for number, place in ((1, folder), (2, moved)):
        predict_to(tmp_path / f"{number}.npz", place, tmp_path / "new.npy", num_workers=number)
    assert (tmp_path / "1.npz").read_bytes() == (tmp_path / "2.npz").read_bytes()
    with pytest.raises(UserError, match=r"every fold .* has another.*predictions.npz"):
        predict(folder, "valid")


def test_an_ensemble_of_numbers(tmp_path: Path) -> None:
    """Where there are no classes, the answers themselves are averaged."""
    recipe, out = tmp_path / "plain.py", tmp_path / "out"
    recipe.write_text(PLAIN)
    told: dict[str, Any] = json.loads(
        samepath("folds", recipe, "--folds", 2, "--epochs", 1, "--json", "--out", out)
    )
    assert [run["epochs"] for run in told["runs"]] == [1, 1]
    assert "Mean over 2 folds: loss" in told["verdict"]
    np.save(tmp_path / "new.npy", np.eye(4, dtype=np.float32))
    each = [predict(out / run["folder"], tmp_path / "new.npy")["output"] for run in told["runs"]]
    ours = predict(out, tmp_path / "new.npy")
    assert np.array_equal(ours["output"], np.mean(each, 0, dtype=np.float64).astype(np.float32))
