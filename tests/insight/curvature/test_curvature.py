"""What `samepath curvature` refuses, and what it says about runs."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from samepath.engine.train import Request, train
from samepath.errors import UserError
from samepath.files import finite
from samepath.insight.curvature.curvature import (
    Curvature,
    CurvatureRequest,
    RunCurvature,
    measure_curvature,
)
from samepath.insight.curvature.landscape import Line, Plane, Rise
from samepath.insight.folder import read_finding
from samepath.report.curvature import facts_table, verdict, write_curvature

RECIPE = """
import torch
import torch.nn.functional as F
from torch import nn
from samepath import Recipe

def recipe():
    inputs = torch.linspace(-1, 1, 24).reshape(12, 2)
    return Recipe(
        model=lambda: nn.Linear(2, 1), train=(inputs, inputs.sum(1, keepdim=True)),
        loss=lambda m, b: LOSS,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1), batch_size=4, grain_size=2, epochs=1,
        keep_weights=(0, 1))
"""


def run_of(folder: Path, loss: str = "F.mse_loss(m(b[0]), b[1])", name: str = "mine") -> Path:
    file = folder / f"{name}.py"
    file.write_text(RECIPE.replace("LOSS", loss))
    out = folder / f"run-{name}"
    train(Request(recipe=str(file), num_workers=1, epochs=1, out=out))
    return out


def measure(*runs: Path, **asked: Any) -> Curvature:
    small: dict[str, Any] = {"num_workers": 1, "top": 2, "grid": 5, **asked}
    return measure_curvature(CurvatureRequest(runs=runs, **small))


def test_a_linear_models_hessian_is_known(tmp_path: Path) -> None:
    """Three parameters: all eigenvalues, and a note that there are no more."""
    run = run_of(tmp_path)
    found = measure(run, top=20)
    inputs = torch.linspace(-1, 1, 24).reshape(12, 2)
    rows = torch.cat([inputs, torch.ones(12, 1)], 1).double()
    expected = torch.linalg.eigvalsh(2.0 / 12.0 * rows.T @ rows)
    (one,) = found.runs
    assert sorted(one.eigenvalues) == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-5)
    assert one.trace == pytest.approx(sum(expected.tolist()), rel=1e-4)
    assert one.trace_error == 0.0
    assert found.notes == ["run-mine has 3 parameters, so there are only 3 eigenvalues"]
    assert (one.steps, one.learning_rate, one.num_sampled, one.gap) == (3, 0.1, 12, None)
    assert "None of the eigenvalues looked at is negative" in verdict(found)
    first = measure(run, epoch=0, num_examples=5).runs[0]
    assert (first.steps, first.num_sampled) == (0, 4)
    assert first.loss > one.loss


def test_a_loss_without_curvature_is_no_error(tmp_path: Path) -> None:
    run = run_of(tmp_path, "(m(b[0]) - b[1]).abs().mean()")
    found = measure(run)
    assert found.runs[0].eigenvalues == [0.0, 0.0]
    assert found.runs[0].trace == 0.0
    assert "It is flat" in verdict(found)


def test_what_is_refused_is_refused_in_one_line(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    other = run_of(tmp_path, "(m(b[0]) - b[1]).abs().mean()", "other")
    nan = "F.mse_loss(m(b[0]), b[1]) * (1.0 if m.training else float('nan'))"
    bad = run_of(tmp_path, nan, "nan")
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, asked, words in (
        ((empty,), {}, "holds no run"),
        ((run, other), {}, rf"{other} is a run of the recipe .*other.py, and {run} of .*mine.py"),
        ((bad,), {}, "the loss of run-nan on 12 training examples is nan"),
        ((run,), {"num_workers": 7}, "are 6 grains; use at most 6 workers"),
        ((run,), {"epoch": 5}, "--epoch 5"),
        ((run,), {"top": 0}, "--top 0: it must be at least 1"),
        ((run,), {"grid": 4}, "--grid 4"),
        ((run,), {"radius": math.nan}, "--radius nan"),
        ((run,), {"num_examples": 0}, "--examples 0"),
        ((), {}, "no run was named"),
    ):
        with pytest.raises(UserError, match=words) as error:
            measure(*arguments, **asked)
        assert "\n" not in str(error.value)


# ---- what is said


def found_run(name: str, batch: int, *, top: float, gap: float = 0.1, **also: Any) -> RunCurvature:
    line, plane = partial(Line, places=[-1.0, 0.0, 1.0]), partial(Plane, places=[-1.0, 0.0, 1.0])
    run = RunCurvature(
        name=name,
        path=name,
        digest="",
        epoch=None,
        batch_size=batch,
        learning_rate=0.1,
        steps=10,
        num_parameters=100,
        num_examples=60,
        num_sampled=40,
        loss=0.2,
        valid={"loss": 0.2 + gap, "accuracy": 0.9},
        eigenvalues=[top, -0.1 * top],
        residuals=[0.0, 0.0],
        tolerance=1e-3,
        trace=3.0 * top,
        trace_error=0.1,
        num_products=30,
        rise=Rise(distance=0.5, mean=0.5 * top, standard_error=0.01, num_directions=10),
        random_line=line(losses=[1.0, 0.2, 40.0]),
        eigen_line=line(losses=[math.inf, 0.2, math.nan]),
        random_plane=plane(losses=[[2.0, 1.0, 3.0]] * 3),
        eigen_plane=plane(losses=[[2.0, math.nan, 300.0]] * 3),
        seconds=1.0,
    )
    return dataclasses.replace(run, **also)


def found_runs(*runs: RunCurvature) -> Curvature:
    return Curvature(
        recipe="mine", seed=0, grain_size=4, num_workers=1, radius=1.0, runs=list(runs), notes=[]
    )


def test_verdicts_follow_the_numbers() -> None:
    small = found_run("a", 8, top=2.0)

    def said(**large: Any) -> str:
        return verdict(found_runs(found_run("b", 64, **large), small))

    sharper = said(top=6.0, gap=0.3)
    assert "batch 64 is sharper than batch 8: top eigenvalue 6 against 2" in sharper
    assert "the gap goes along with sharpness" in sharper
    assert "does not go along" in said(top=6.0, gap=0.02)
    assert "does not go along" in said(top=6.0, gap=0.1)
    assert "is flatter than" in said(top=0.5, gap=0.02)
    assert "the gap goes along with sharpness" in said(top=0.5, gap=0.02)
    assert "Keskar and others (2017) found of large batches" in sharper
    assert "small batch that is sharper, unlike what Keskar" in said(top=0.5, gap=0.02)
    for not_two_minima in (said(top=6.0, gap=0.3, loss=2.0), said(top=0.5, gap=0.02, loss=2.0)):
        assert "Keskar" not in not_two_minima, "it is said that these are stages of training"
    assert "is about as sharp as" in said(top=2.1)
    assert "which such curvature does not explain" in said(top=2.1, gap=0.5)
    mixed = said(top=6.0, rise=dataclasses.replace(small.rise, mean=0.1))
    assert "sharper by some measures and flatter by others" in mixed
    unsure = said(top=6.0, rise=dataclasses.replace(small.rise, mean=3.0, standard_error=1.5))
    assert "is sharper (by top eigenvalue and trace; the rest is not clear) than" in unsure
    assert "different stages of training" in said(top=6.0, loss=2.0)
    assert "different stages" not in sharper
    assert "no validation data" in said(top=6.0, valid={})
    same = verdict(found_runs(small, found_run("b", 8, top=6.0, gap=0.4)))
    assert same.startswith("b is sharper than a")
    assert "Keskar" not in same
    alone = verdict(found_runs(small))
    assert "1 of the 2 eigenvalues largest in size are negative, down to -0.2" in alone
    assert all(text.count(". ") == 1 for text in (sharper, mixed, alone))


def test_figures_and_page_with_holes_in_the_landscape(tmp_path: Path) -> None:
    """Losses that are no numbers, a run without a second eigenvector, odd names."""
    found = found_runs(
        found_run("a $very$ long_name " * 4, 8, top=2.0),
        found_run("b", 64, top=6.0, eigen_plane=None, valid={}),
    )
    assert [len(row) for row in facts_table(found)] == [3] * len(facts_table(found))
    write_curvature(tmp_path / "out", found, ["samepath", "curvature"])
    content = read_finding(tmp_path / "out", "curvature")
    assert content["runs"] == finite(dataclasses.asdict(found)["runs"])
    for name in ("spectrum.svg", "lines.svg", "planes.png"):
        assert (tmp_path / "out" / name).stat().st_size > 10_000
