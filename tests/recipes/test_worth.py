"""What generated nodules are worth: how they are split, augmented and compared. (Real runs:
tests/parity/test_worth.py.)"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from samepath.data import Draws
from samepath.errors import UserError
from samepath.recipe import find_recipe
from samepath.recipes.nodules.classifier import SmallResNet, augment_flagged
from samepath.recipes.nodules.recipe import categories
from samepath.recipes.nodules.worth.compare import (
    RESAMPLES,
    ArmSetting,
    Scored,
    compare,
    verdict,
)
from samepath.recipes.nodules.worth.data import (
    RealNodules,
    generator_rows,
    load_real,
    split_real,
    write_classifier_data,
    write_generator_data,
)
from samepath.recipes.nodules.worth.runs import WorthRequest, measure_worth
from samepath.study.opening import StudyRequest

SIDE = 8


def write_nodules(path: Path, number: int = 120, **more: Any) -> Path:
    random = np.random.default_rng(0)
    arrays = {
        "volume": random.integers(0, 256, (number, SIDE, SIDE, SIDE)).astype(np.uint8),
        "mask": np.ones((number, SIDE, SIDE, SIDE), np.bool_),
        "label": np.arange(number) % 2,
        "patient": np.arange(number) // 4,
    }
    np.savez(path, **arrays | more)
    return path


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> RealNodules:
    return load_real(write_nodules(tmp_path_factory.mktemp("worth") / "a.npz"))


def test_a_generator_sees_nothing_that_is_held_out(real: RealNodules, tmp_path: Path) -> None:
    folds = split_real(real, folds=3, percents=(50, 100), seed=0, generates=False)
    held_out = np.concatenate([fold.held_out for fold in folds])
    assert np.sort(held_out).tolist() == list(range(len(real)))
    for fold in folds:
        assert set(fold.train[50]) < set(fold.train[100])
        assert 0.4 < len(fold.train[50]) / len(fold.train[100]) < 0.7
        for rows in fold.train.values():
            assert not set(real.groups[rows]) & set(real.groups[fold.held_out])
            train, valid = generator_rows(real, rows)
            assert not set(real.groups[train]) & set(real.groups[valid])
            assert sorted([*train, *valid]) == rows.tolist()
    write_generator_data(tmp_path / "g.npz", real, folds[0].train[50])
    written = np.load(tmp_path / "g.npz")
    known = {cube.tobytes() for cube in real.cubes[folds[0].train[50]]}
    assert {cube.tobytes() for cube in written["volume"]} == known
    assert written["mask"].shape == written["volume"].shape


@pytest.mark.parametrize("generator", ["nodules-small", "nodules-ct"])
@pytest.mark.parametrize(
    "more", [{"category": np.repeat(["a", "b", "c"], 40)}, {"malignancy": np.arange(120) % 5 + 1}]
)
def test_classes_are_those_of_label_whatever_else_names_some(
    tmp_path: Path, generator: str, more: dict[str, Any]
) -> None:
    """A generator's training nodules of one label have one category, so that it can make some."""
    known = load_real(write_nodules(tmp_path / "a.npz", **more))
    (fold, *_) = split_real(known, folds=2, percents=(100,), seed=0, generates=False)
    write_generator_data(tmp_path / "g.npz", known, fold.train[100])
    facts = find_recipe(generator, str(tmp_path / "g.npz")).train_facts
    names = categories(facts)
    assert names is not None
    pairs = set(zip(facts["label"].tolist(), names.tolist(), strict=True))
    assert len(pairs) == len(set(names)) == 2


def test_the_data_of_a_classifier(real: RealNodules, tmp_path: Path) -> None:
    (fold, *_) = split_real(real, folds=3, percents=(100,), seed=0, generates=False)
    made = np.full((5, SIDE, SIDE, SIDE), 7, np.uint8), np.array([0, 0, 1, 1, 1])
    path, rows = tmp_path / "c.npz", fold.train[100]
    write_classifier_data(path, real, rows, fold.held_out, made, augment=True)
    recipe = find_recipe("nodules-classifier", str(path))
    cubes, labels, flags = recipe.train  # type: ignore[misc]
    assert len(cubes) == len(rows) + 5
    assert labels[-5:].tolist() == made[1].tolist()
    assert flags.all()
    judged, judged_labels, judged_flags = recipe.valid  # type: ignore[misc]
    assert np.array_equal(judged, real.cubes[fold.held_out])
    assert judged_labels.tolist() == real.label[fold.held_out].tolist()
    assert not judged_flags.any()


def test_augmentation_is_of_flagged_examples_alone() -> None:
    random = np.random.default_rng(1)
    volumes = torch.from_numpy(random.integers(0, 256, (6, SIDE, SIDE, SIDE)).astype(np.uint8))
    flags, labels = torch.tensor([0, 1, 0, 1, 1, 1]), torch.arange(6)

    def draws(*examples: int) -> Draws:
        return Draws(seed=0, epoch=0, examples=np.array(examples))

    changed, same_labels, _ = augment_flagged((volumes, labels, flags), draws(*range(6)))
    plain = volumes.float() / 255
    is_same = (changed - plain).abs().amax((1, 2, 3)) == 0
    assert is_same.tolist() == [True, False, True, False, False, False]
    assert torch.equal(same_labels, labels)
    assert changed.min() >= 0
    assert changed.max() <= 1
    alone, _, _ = augment_flagged((volumes[3:4], labels[3:4], flags[3:4]), draws(3))
    assert torch.equal(alone[0], changed[3])  # whatever else is in the grain


def test_the_classifier_answers_two_numbers() -> None:
    assert SmallResNet()(torch.rand(3, 1, 32, 32, 32)).shape == (3, 2)


# ---- refusals


def refused(path: Path, **more: Any) -> str:
    asked = WorthRequest(generator="nodules-small", **more)
    request = StudyRequest(recipe="nodules-classifier", data=str(path), out=path.parent / "out")
    with pytest.raises(UserError) as raised:
        measure_worth(request, asked, None)  # type: ignore[arg-type]
    assert not (path.parent / "out").exists()
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_what_cannot_be_compared_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    few = np.zeros(120, int)
    few[:3] = 1
    write_nodules(path, label=few, patient=np.arange(120))
    assert "class 1 has 3 nodules, fewer than there are folds" in refused(path)
    write_nodules(path, mask=np.ones((120, SIDE, SIDE, 4), np.bool_))
    assert "mask has the shape (120, 8, 8, 4)" in refused(path)
    masks = np.ones((120, SIDE, SIDE, SIDE), np.bool_)
    masks[7] = False
    write_nodules(path, mask=masks)
    assert "the mask of row 7 is empty" in refused(path)
    write_nodules(path, label=np.arange(120) % 3)
    assert "has 3 classes" in refused(path)
    write_nodules(path, volume=np.full((120, SIDE, SIDE, SIDE), 1.5, np.float32))
    assert "values reach from 1.5 to 1.5, not from 0 to 1" in refused(path)
    write_nodules(path)
    assert "and 20 are needed" in refused(path, percents=(25,))
    assert "there are 30 groups" in refused(path, folds=31, percents=(100,))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"arms": ("real", "fake")}, "there is no arm 'fake'"),
        ({"percents": (0,)}, "--percents 0"),
        ({"seeds": 0}, "--seeds 0"),
        ({"times": 0.0}, "--times 0"),
    ],
)
def test_what_is_asked_for_is_checked(more: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        WorthRequest(generator="nodules-small", **more)


def test_a_classifier_must_score_both_classes(tmp_path: Path) -> None:
    path = write_nodules(tmp_path / "a.npz")
    recipe = tmp_path / "mine.py"
    recipe.write_text(
        "from dataclasses import replace\n"
        "from samepath.recipes.nodules.classifier import nodules_classifier\n"
        "def recipe(data):\n"
        "    return replace(nodules_classifier(data), predict=lambda m, b: b[1].float())\n",
        encoding="utf-8",
    )
    request = StudyRequest(recipe=str(recipe), data=str(path), out=tmp_path / "out")
    asked = WorthRequest(generator="nodules-small", folds=2, percents=(100,))
    with pytest.raises(UserError, match=r"returns \(2,\) for two nodules"):
        measure_worth(request, asked, None)  # type: ignore[arg-type]


# ---- comparison


def scored(gain: float, *, seeds: int = 3, number: int = 200) -> Scored:
    """Scores that a second arm makes better by a gain."""
    random = np.random.default_rng(2)
    label = np.arange(number) % 2
    noise = random.standard_normal((2, seeds, number))
    return Scored(
        scores={
            ArmSetting("real", 100): noise[0] + (label - 0.5),
            ArmSetting("generated", 100): noise[0] + 0.1 * noise[1] + (1 + gain) * (label - 0.5),
        },
        label=label,
        fold=np.arange(number) // 2 % 4 + 1,
        groups=[str(n) for n in range(number)],
    )


SIZES = {ArmSetting("real", 100): (100, 0), ArmSetting("generated", 100): (100, 100)}


def test_auc_is_sklearns_mean_over_folds() -> None:
    given = scored(0.0)
    arms, _ = compare(given, SIZES)
    scores = given.scores[ArmSetting("real", 100)]
    expected = [
        roc_auc_score(given.label[given.fold == fold], each[given.fold == fold])
        for each in scores
        for fold in range(1, 5)
    ]
    assert arms[0].auc.mean == pytest.approx(np.mean(expected))
    assert arms[0].accuracy.mean == pytest.approx(((scores > 0) == given.label).mean())
    assert arms[0].auc.low < arms[0].auc.mean < arms[0].auc.high


def test_a_gain_is_found_and_its_absence_too() -> None:
    for gain, helped in ((1.5, True), (0.0, False)):
        _, pairs = compare(scored(gain), SIZES)
        (pair,) = pairs
        assert (pair.p < 0.01) == helped
        assert (pair.p_folds < 0.05) == helped
        assert pair.p_corrected == pair.p
        assert verdict(pairs, 3).startswith("They helped" if helped else "It did not help")
    _, (worse,) = compare(scored(-1.0), SIZES)
    assert verdict([worse], 3).startswith("They did not help, they hurt")


def test_a_verdict_is_certain_where_both_tests_agree() -> None:
    """Two folds that differ: resamples of nodules are sure, the test over folds is not."""
    _, (pair,) = compare(scored(1.5), SIZES)
    apart = replace(pair, p_corrected=0.0085, p_folds=0.48)
    said = verdict([apart], 5)
    assert said.startswith("Not certain, the test over folds does not agree: beside real ones")
    assert said.endswith("p 0.0085, over folds 0.48).")
    assert verdict([apart, replace(pair, percent=50)], 5).startswith("They helped: beside real ")
    assert "In 1 of 2 comparisons no certain" in verdict([apart, replace(pair, percent=50)], 5)
    assert verdict([pair], 2).startswith("Not certain, with 2 seeds (give at least 3): beside")
    _, (nothing,) = compare(scored(0.0), SIZES)
    assert "1 seed may be too few to see any." in verdict([nothing], 1)
    assert "too few" not in verdict([nothing], 3)


def test_the_same_numbers_every_time_and_whole_groups() -> None:
    given = scored(0.3)
    assert compare(given, SIZES) == compare(given, SIZES)
    # every nodule four times, as one patient's: no more certain than it was alone
    times = 4
    copied = Scored(
        scores={each: np.repeat(values, times, axis=1) for each, values in given.scores.items()},
        label=np.repeat(given.label, times),
        fold=np.repeat(given.fold, times),
        groups=[name for name in given.groups for _ in range(times)],
    )
    one, many = (compare(each, SIZES)[0][0].auc for each in (given, copied))
    assert many.high - many.low == pytest.approx(one.high - one.low, rel=0.15)
    assert RESAMPLES >= 1000


def test_holms_correction_is_over_the_questions() -> None:
    given = scored(0.5)
    more = dict(given.scores)
    for arm in ("augmented", "both", "synthetic"):
        more[ArmSetting(arm, 100)] = more[ArmSetting("real", 100)] * 1.0
    sizes = dict.fromkeys(more, (1, 1))
    _, pairs = compare(given._replace(scores=more), sizes)
    found = {(pair.arm, pair.against): pair for pair in pairs}
    asked = found["generated", "real"], found["both", "augmented"]
    assert asked[0].p_corrected == pytest.approx(min(1.0, 2 * asked[0].p))
    assert asked[1].p_corrected == 1.0
    assert found["synthetic", "real"].p_corrected is None
    assert json.loads(json.dumps(verdict(pairs, 3)))
