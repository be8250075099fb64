"""The report of a run: losses, the noise scale, and what was found out about its recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.image import imread
from report_runs import count_pixels, epoch_lines, write_run
from ui_folders import make_run

from samepath.insight.folder import Kind, write_finding
from samepath.report.show import (
    compared_runs,
    draw_loss_curves,
    draw_losses,
    draw_metrics,
    draw_noise,
    finding_sections,
    metric_names,
    noise_lines,
)

NOISE: list[dict[str, Any]] = [
    {"step": 1, "train_loss": 2.0},  # of a batch of one grain
    {"step": 2, "noise_scale": None, "noise_low": None, "noise_high": None},
    {"step": 3, "noise_scale": 50.0, "noise_low": None, "noise_high": None},
    *(
        {"step": s, "noise_scale": 10.0 * s, "noise_low": 5.0 * s, "noise_high": None}
        for s in range(4, 8)
    ),
    *(
        {"step": s, "noise_scale": 10.0 * s, "noise_low": 5.0 * s, "noise_high": 20.0 * s}
        for s in range(8, 40)
    ),
]


def test_equal_runs_lie_on_each_other_and_others_do_not(tmp_path: Path) -> None:
    """The last run's colour covers the middle of the first's wherever they agree."""
    folders = {}
    for name, factor in (("one", 1.0), ("same", 1.0), ("other", 3.0)):
        lines = [{"step": s, "train_loss": factor / s} for s in range(1, 30)]
        lines.append({"step": 29, "valid_loss": factor / 20})
        folders[name] = write_run(tmp_path / name, lines)
    shown = {}
    for name in ("same", "other"):
        out = tmp_path / f"{name}.png"
        runs = {"1 worker": folders["one"], "2 workers": folders[name]}
        draw_loss_curves(runs, out, title="test")
        shown[name] = count_pixels(imread(out), "#9ecae1")
    assert shown["same"] > 0, "the first run can be seen around the second"
    assert shown["other"] > 1.5 * shown["same"], "runs that differ are drawn apart"


def test_a_resumed_run_goes_on_in_time(tmp_path: Path) -> None:
    """Stopped after the third of five epochs and started again: `seconds` begin at 0 again."""
    lines = epoch_lines(5, 10.0)
    whole = write_run(tmp_path / "whole", lines)
    resumed = write_run(
        tmp_path / "resumed",
        [{**line, "seconds": line["seconds"] - 30.0 * (line["epoch"] > 2)} for line in lines],
    )
    slower = write_run(tmp_path / "slower", epoch_lines(5, 17.0))
    drawn = {}
    for folder in (whole, resumed, slower):
        out = tmp_path / f"{folder.name}.png"
        draw_losses({"a run": whole, "another": folder}, out, title="test")
        drawn[folder.name] = imread(out)
    assert np.array_equal(drawn["whole"], drawn["resumed"])
    left, right = np.s_[:480, :500], np.s_[:480, 560:1000]
    assert np.array_equal(drawn["whole"][left], drawn["slower"][left]), "the same path by epoch"
    assert not np.array_equal(drawn["whole"][right], drawn["slower"][right])


def test_curves_on_each_other_can_both_be_seen(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", epoch_lines(40, 100.0))
    draw_losses({"1 worker": run, "2 workers": run}, tmp_path / "a.png", title="test")
    image = imread(tmp_path / "a.png")[:460]  # without the legend
    for colour in ("#afd1e7", "#08306b", "#fdbe85", "#7f2704"):
        assert count_pixels(image, colour) > 300, colour


def test_metrics_of_training_and_validation(tmp_path: Path) -> None:
    lines = [
        {**line, "epoch_train_dice": 0.1, "valid_dice": "NaN", "valid_ema_loss": 2.0}
        for line in epoch_lines(3, 1.0)
    ]
    assert metric_names(lines) == ["dice", "ema_loss"]
    assert metric_names(epoch_lines(3, 1.0)) == []
    image = imread(draw_metrics(lines, tmp_path / "a.png", "test"))
    for colour in ("#d95f02", "#08519c"):
        assert count_pixels(image, colour) > 100, colour


def test_losses_of_odd_runs(tmp_path: Path) -> None:
    """No epoch yet, no validation, a loss that is no number."""
    unfinished = write_run(
        tmp_path / "unfinished", [{"step": 1, "epoch": 0, "train_loss": 1.0, "seconds": 0.1}]
    )
    lines = epoch_lines(3, 5000.0)
    blind = write_run(
        tmp_path / "blind", [{k: v for k, v in line.items() if k != "valid_loss"} for line in lines]
    )
    strange = write_run(
        tmp_path / "strange", [lines[0], {**lines[1], "valid_loss": "inf"}, lines[2]]
    )
    runs = {"unfinished": unfinished, "blind": blind, "strange": strange}
    draw_losses({"unfinished": unfinished}, tmp_path / "one.png", title="test")
    draw_losses(runs, tmp_path / "all.png", title="test")
    assert imread(tmp_path / "all.png").shape[1] == 1300


def test_runs_are_compared_in_a_table(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", 60)
    two = make_run(tmp_path / "two", 60, seconds=0.02)
    other = make_run(tmp_path / "other", 30, digest="e" * 64, seed=7)
    begun = make_run(tmp_path / "begun", 0, status="running")
    words, table = compared_runs([one, two, other, begun])
    assert words == "one and two ended with the same bits: the same path."
    head, *lines = table
    found = [dict(zip(head, line, strict=True)) for line in lines]
    assert [line["run"] for line in found] == ["one", "two", "other", "begun"]
    assert [line["digest"] for line in found] == ["d4bc0797d4bc"] * 2 + ["e" * 12, ""]
    assert [line["seed"] for line in found] == ["0", "0", "7", "0"]
    assert found[0]["time"] != found[1]["time"]
    assert found[0]["training loss"] == "0.5"
    assert found[3]["validation loss"] == found[3]["time"] == ""
    assert compared_runs([one, other])[0] == "No two of these runs ended with the same bits."


def test_draws_what_is_there(tmp_path: Path) -> None:
    assert [line["step"] for line in noise_lines(NOISE)] == list(range(3, 40))
    draw_noise(NOISE, 64, tmp_path / "noise.png", "digits: 5$ of noise$")
    image = imread(tmp_path / "noise.png")
    for colour in ("#08519c", "#d95f02"):  # the scale, the batch size
        assert count_pixels(image, colour, within=0.05) > 200


def write_found(folder: Path, kind: Kind, recipe: str = "digits", **content: Any) -> Path:
    write_finding(folder, kind, recipe=recipe, command=["samepath", kind], content=content)
    figure = Figure((1, 1))
    figure.savefig(folder / "a_picture.png")
    return folder


def test_the_newest_of_each_kind_about_this_run(tmp_path: Path) -> None:
    run, other = tmp_path / "runs/digits-1", tmp_path / "runs/digits-2"
    run.mkdir(parents=True)
    insight = tmp_path / "insight"
    write_found(insight / "digits-profile-1", "profile", verdict="old")
    write_found(insight / "digits-profile-2", "profile", verdict="new")
    write_found(
        insight / "nodules-profile-1", "profile", recipe="nodules", verdict="another recipe's"
    )
    write_found(insight / "a-curvature-1", "curvature", runs=[{"path": str(run)}], verdict="flat")
    write_found(
        insight / "a-curvature-2", "curvature", runs=[{"path": str(other)}], verdict="sharp"
    )
    write_found(run / "advice", "advice", verdict="take two")
    sections = finding_sections(run, "digits")
    words = {section.heading: section.words for section in sections if section.picture is None}
    assert words == {"Advice": "take two", "Curvature": "flat", "Profile": "new"}
    pictures = [section for section in sections if section.picture is not None]
    assert [p.heading.split(":")[1] for p in pictures] == [" a picture"] * 3


def test_a_damaged_one_is_named(tmp_path: Path) -> None:
    run = tmp_path / "runs/digits-1"
    write_found(run / "advice", "advice")
    (run / "advice/advice.json").write_text(json.dumps({"format": 1}))
    (section,) = finding_sections(run, "digits")
    assert "cannot be read" in section.words
