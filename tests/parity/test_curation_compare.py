"""Did curation help? The comparison with real runs: what it finds is what the runs did."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from samepath.console import SilentWatcher
from samepath.curation.compare import Comparison, Wanted, compare, from_json
from samepath.data.keep_list import KeepList, write_keep_list
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.train import Request, train
from samepath.errors import UserError
from samepath.recipe import find_recipe
from samepath.report.curation import comparison_table, finish_comparison, verdict
from samepath.study.opening import StudyRequest, look_into
from samepath.study.runner import PlannedRun, request_for

RECIPE = str(Path(__file__).with_name("tiny_recipe.py"))
SIZES, DECAYS = (10, 20), (0.01, 0.1)


class Counting(SilentWatcher):
    """Counts what is trained."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def end(self, what: str, said: str | None = None) -> None:
        self.ended.append(what)


def keep_list(path: Path, dropped: Sequence[int], relabelled: Sequence[int] = ()) -> Path:
    labels = find_recipe(RECIPE).train[1].numpy()  # type: ignore[index]
    kept = ~np.isin(np.arange(len(labels)), dropped)
    write_keep_list(
        path,
        KeepList(
            labels=labels,
            positions=np.zeros((len(labels), 2), np.float32),
            clusters=np.zeros(len(labels), np.int64),
            kept=kept,
            reasons=["" if each else "noise" for each in kept],
            relabelled=np.isin(np.arange(len(labels)), relabelled) if relabelled else None,
            suggested=(labels + 1) % 2 if relabelled else None,
        ),
    )
    return path


def request(folder: Path, seeds: int = 2) -> StudyRequest:
    return StudyRequest(recipe=RECIPE, seeds=seeds, max_epochs=2, out=folder / "compare")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Comparison]:
    folder = tmp_path_factory.mktemp("compared")
    wanted = Wanted(
        filtered=keep_list(folder / "keep.csv", [1, 5, 9, 40]),
        random=keep_list(folder / "random.csv", [0, 2, 4, 6]),
        batch_sizes=SIZES,
        weight_decays=DECAYS,
    )
    watcher = Counting()
    comparison = compare(request(folder), wanted, watcher)
    assert len(watcher.ended) == len(comparison.runs) == 3 * 2 * 2 * 2
    watcher = Counting()
    again = compare(request(folder), wanted, watcher)
    assert watcher.ended == [], "nothing is trained twice"
    assert again == comparison
    return folder, comparison


@pytest.mark.parametrize("variant", ["full", "filtered", "random"])
def test_a_run_is_what_train_does(
    variant: str, found: tuple[Path, Comparison], tmp_path: Path
) -> None:
    folder, comparison = found
    assert {v.name: v.num_examples for v in comparison.variants} == {
        "full": 44,
        "filtered": 40,
        "random": 40,
    }
    keep = {"full": None, "filtered": "keep.csv", "random": "random.csv"}[variant]
    result, _ = train(
        Request(
            recipe=RECIPE,
            keep=None if keep is None else str(folder / keep),
            num_workers=1,
            epochs=2,
            batch_size=20,
            weight_decay=0.1,
            seed=1,
            target="none",
            out=tmp_path / "run",
        )
    )
    run = RunFolder(folder / "compare" / f"runs/{variant}-batch20-decay0.1-seed1").read()
    assert run["result"]["digest"] == result.digest
    other = RunFolder(folder / "compare" / f"runs/{variant}-batch20-decay0.01-seed1").read()
    assert other["result"]["digest"] != result.digest, "the decay is used"


def test_a_study_takes_a_keep_list(found: tuple[Path, Comparison]) -> None:
    folder, _ = found
    asked = StudyRequest(recipe=RECIPE, keep=str(folder / "keep.csv"), out=folder / "study")
    opened = look_into(asked)
    assert opened.options.num_examples == 40
    run = PlannedRun(folder="runs/a", label="a", options=opened.options)
    assert request_for(run, opened, asked, 1).keep == str(folder / "keep.csv")


def test_everything_is_written(found: tuple[Path, Comparison]) -> None:
    folder, comparison = found
    comparison, page = finish_comparison(comparison, folder / "compare")
    content = json.loads((folder / "compare" / "comparison.json").read_text())
    assert from_json(content) == comparison
    assert "data:image/svg+xml;base64," in page.read_text()
    table = comparison_table(comparison)
    assert len(table) == 1 + len(SIZES) * len(DECAYS)
    assert table[0][2:] == ["all examples (44)", "filtered (40)", "as many, kept at random (40)"]


def test_the_verdict_counts_only_what_seeds_agree_on(found: tuple[Path, Comparison]) -> None:
    _, comparison = found

    def judged(variant: str, seed: int) -> float:
        return {"full": 0.8, "filtered": 0.9, "random": 0.85}[variant] + 0.04 * seed

    runs = tuple(
        replace(
            run,
            curve=(replace(run.curve[-1], metrics={"accuracy": judged(run.variant, run.seed)}),),
        )
        for run in comparison.runs
        if run.weight_decay == DECAYS[0]
    )
    words = verdict(replace(comparison, runs=runs, weight_decays=DECAYS[:1]))
    assert "90.9% of the data" in words
    assert words.endswith("at 33% of the places: add --seeds 4 before believing it.")
    assert "cannot tell" in verdict(replace(comparison, seeds=(0,)))
    assert "better at batch 10 and 20 than all of it" in words
    assert "better at batch 10 and 20 than as much kept at random" in words
    near = tuple(
        replace(run, curve=(replace(run.curve[-1], metrics={"accuracy": 0.9 + 0.01 * run.seed}),))
        if run.variant == "random"
        else run
        for run in runs
    )
    words = verdict(replace(comparison, runs=near, weight_decays=DECAYS[:1]))
    assert "no different at batch 10 and 20 than as much kept at random" in words


def test_what_cannot_be_compared(found: tuple[Path, Comparison], tmp_path: Path) -> None:
    folder, _ = found
    wanted = Wanted(filtered=folder / "keep.csv", random=folder / "random.csv")
    unequal = keep_list(tmp_path / "unequal.csv", [0])
    everything = keep_list(tmp_path / "all.csv", [])
    for given, words in (
        (replace(wanted, random=unequal), "keeps 43 examples"),
        (replace(wanted, filtered=everything), "nothing to compare"),
        (replace(wanted, random=tmp_path / "absent.csv"), "absent.csv"),
        (replace(wanted, batch_sizes=(41,)), "--batch-sizes 41 is larger than the data"),
    ):
        with pytest.raises(UserError, match=words):
            compare(request(tmp_path), given, Counting())
    assert not (tmp_path / "compare").exists()


def test_a_list_that_only_relabels_can_be_compared(tmp_path: Path) -> None:
    wanted = Wanted(
        filtered=keep_list(tmp_path / "keep-2.csv", [], relabelled=[3, 4]),
        random=keep_list(tmp_path / "random-2.csv", []),
    )
    compare(replace(request(tmp_path, seeds=1), max_epochs=1), wanted, Counting())
    runs = (tmp_path / "compare" / "runs").iterdir()
    ends = {run.name.split("-")[0]: RunFolder(run).read()["result"]["digest"] for run in runs}
    assert ends["full"] == ends["random"] != ends["filtered"]


def test_the_folder_of_another_comparison(found: tuple[Path, Comparison]) -> None:
    folder, _ = found
    other = Wanted(filtered=folder / "random.csv", random=folder / "keep.csv")
    with pytest.raises(UserError, match="holds another study"):
        compare(request(folder), other, Counting())
