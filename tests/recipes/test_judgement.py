"""Judging generated nodules: measures of known shapes, and verdicts whose truth is known."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.ndimage import gaussian_filter
from scipy.spatial.transform import Rotation

from samepath.data.formats.lidc import load_lidc_shapes, split_by_patient
from samepath.errors import UserError
from samepath.recipes.nodules.judgement import (
    LEVEL,
    MEASURES,
    Judgement,
    Volumes,
    judge,
    measure,
    nearest_distances,
    surface_area,
    table,
    two_sample,
)

NUM = 128


def solids(
    semi_axes: tuple[float, float, float], power: float = 2.0, side: int = 16, num: int = 24
) -> npt.NDArray[np.bool_]:
    """Ellipsoids (power 2) or boxes (power inf), turned and shifted in `num` ways."""
    generator = np.random.default_rng(0)
    turns = Rotation.random(num, rng=generator).as_matrix()
    centres = side / 2 + generator.uniform(-0.5, 0.5, (num, 1, 3))
    places = np.indices((side,) * 3).reshape(3, -1).T + 0.5 - centres
    lengths = np.linalg.norm((places @ turns) / np.array(semi_axes), ord=power, axis=2)
    return np.asarray(lengths <= 1.0).reshape(num, side, side, side)


def area_of_ellipsoid(a: float, b: float, c: float) -> float:
    """Integral of the cross product of the parametrisation's derivatives."""
    polar, azimuth = np.meshgrid(
        (np.arange(400) + 0.5) * math.pi / 400, (np.arange(800) + 0.5) * math.pi / 400
    )
    x = b * c * np.sin(polar) ** 2 * np.cos(azimuth)
    y = a * c * np.sin(polar) ** 2 * np.sin(azimuth)
    z = a * b * np.sin(polar) * np.cos(polar)
    return float(np.sqrt(x**2 + y**2 + z**2).sum() * (math.pi / 400) ** 2)


@pytest.fixture(scope="module")
def real() -> tuple[Volumes, Volumes]:
    """Training and held-out nodules, of different patients, in no order."""
    shapes = load_lidc_shapes()
    volumes = shapes.volumes.astype(np.float32) / np.float32(255.0)
    train, valid = split_by_patient(shapes.patient)
    generator = np.random.default_rng(0)  # nodules of one patient are beside each other
    return volumes[generator.permutation(train)], volumes[generator.permutation(valid)]


def blurred(volumes: Volumes, sigma: float) -> Volumes:
    return np.asarray(gaussian_filter(volumes, sigma, axes=(1, 2, 3)))


@pytest.fixture(scope="module")
def honest(real: tuple[Volumes, Volumes]) -> Judgement:
    """The best possible generator: it hands over real nodules of other patients."""
    train, held_out = real
    return judge(train[:NUM], held_out[:NUM], train[NUM : 4 * NUM])


@pytest.fixture(scope="module")
def blurry(real: tuple[Volumes, Volumes]) -> Judgement:
    """A perfect sampler behind a decoder that blurs."""
    train, held_out = real
    generated, reconstructed = blurred(train[:NUM], 0.8), blurred(held_out[:NUM], 0.8)
    return judge(generated, held_out[:NUM], train[NUM : 4 * NUM], reconstructed)


@pytest.mark.parametrize(
    ("semi_axes", "tolerance"),
    [
        ((5, 5, 5), 0.015),
        ((3, 3, 3), 0.03),
        ((6, 4, 3), 0.02),
        ((6, 6, 2), 0.03),
        ((6, 2, 2), 0.04),
    ],
)
def test_area_of_turned_ellipsoids(semi_axes: tuple[float, float, float], tolerance: float) -> None:
    areas = surface_area(solids(semi_axes)) / area_of_ellipsoid(*semi_axes)
    assert 1.0 - tolerance < areas.mean() < 1.005
    assert areas.std() < 0.025, "area depends little on orientation"


def test_area_of_cubes_is_known_to_be_small_and_closed_at_the_border() -> None:
    turned = surface_area(solids((4, 4, 4), power=np.inf)) / (6 * 8**2)
    assert 0.9 < turned.mean() < 0.96
    cube = np.ones((1, 8, 8, 8), bool)
    for room in (0, 4):
        aligned = np.pad(cube, ((0, 0), (room, room), (room, room), (room, room)))
        assert surface_area(aligned)[0] / (6 * 8**2) == pytest.approx(0.86, abs=0.01)


@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_measures_of_a_ball(sigma: float) -> None:
    balls = blurred(solids((5, 5, 5)).astype(np.float32), sigma)
    volume, extent, sphericity, elongation = measure(balls).T
    assert volume == pytest.approx(4 / 3 * math.pi * 5**3 / 16**3, rel=0.03)
    assert extent == pytest.approx(10 / 16, abs=0.6 / 16)
    assert np.all((sphericity > 0.95) & (sphericity < 1.02))
    assert elongation == pytest.approx(1.0, abs=0.05)


def test_measures_of_an_ellipsoid() -> None:
    _, _, sphericity, elongation = measure(solids((6, 3, 3)).astype(np.float32)).T
    ball = math.pi ** (1 / 3) * (6 * 4 / 3 * math.pi * 54) ** (2 / 3)
    assert sphericity.mean() == pytest.approx(ball / area_of_ellipsoid(6, 3, 3), rel=0.03)
    assert elongation == pytest.approx(2.0, rel=0.06)


def test_extent_lies_between_voxels() -> None:
    volume = np.zeros((2, 8, 8, 8), np.float32)
    volume[:, 2:5, 4, 4] = 1.0
    volume[1, 5, 4, 4] = 0.25  # LEVEL is reached two thirds of the way down from 1 to 0.25
    assert measure(volume)[:, 1] * 8 == pytest.approx([3.0, 2 + 0.5 + 2 / 3])


def test_measures_do_not_depend_on_the_number_of_voxels() -> None:
    coarse = measure(solids((6, 4, 3)).astype(np.float32)).mean(0)
    fine = measure(solids((12, 8, 6), side=32).astype(np.float32)).mean(0)
    assert coarse == pytest.approx(fine, rel=0.03)


def test_one_voxel_and_none() -> None:
    volumes = np.zeros((3, 8, 8, 8), np.float32)
    volumes[0, 3, 3, 3] = 1.0
    volumes[1] = LEVEL - 0.01
    measures = measure(volumes)
    assert np.isfinite(measures).all()
    assert measures[0, [1, 3]] == pytest.approx([1 / 8, 1.0])
    assert measures[1] == pytest.approx([LEVEL - 0.01, 0, 0, 0])
    assert not measures[2].any()


def test_distance_is_that_of_the_nearest_in_any_position(real: tuple[Volumes, Volumes]) -> None:
    train, held_out = real[0][:60], real[1][:8]
    spun = [np.rot90(way, turns, (2, 3)) for way in (train, train[:, ::-1]) for turns in range(4)]
    tilts = [(0, (1, 2)), (1, (1, 2)), (2, (1, 2)), (3, (1, 2)), (1, (1, 3)), (3, (1, 3))]
    positions = [np.rot90(way, turns, axes) for way in spun for turns, axes in tilts]
    assert len(positions) == 48
    everywhere = np.stack(positions)
    exact = [np.sqrt(np.square(everywhere - one).mean((2, 3, 4)).min()) for one in held_out]
    found = nearest_distances(held_out, train)
    assert np.all(found >= np.array(exact) * (1 - 1e-5))
    assert found == pytest.approx(exact, rel=0.1), "the search on a coarse grid is nearly exact"


def test_distances_without_a_coarse_grid() -> None:
    volumes = np.random.default_rng(0).random((6, 5, 5, 5), np.float32)
    assert nearest_distances(volumes[:3], volumes).tolist() == [0.0, 0.0, 0.0]
    apart = np.sqrt(np.square(volumes[:1] - 0.5).mean())
    assert nearest_distances(volumes[:1], np.full((1, 5, 5, 5), 0.5)) == pytest.approx(apart)


def test_real_nodules_of_other_patients_pass(honest: Judgement) -> None:
    for name in ("measures", "voxels", "training"):
        test = honest.two_sample[name]
        assert abs(test.accuracy - 0.5) < 2 * test.standard_error, name
        assert test.p_value > 0.05, name
        assert test.num_examples == 2 * NUM
    assert all(spread.p_value > 0.01 for spread in honest.spreads.values())
    assert honest.nearest.copies < 0.05
    assert honest.nearest.generated[2] == pytest.approx(honest.nearest.held_out[2], rel=0.1)


def test_blur_is_told_apart_and_put_down_to_the_decoder(blurry: Judgement) -> None:
    tests = blurry.two_sample
    for name in ("measures", "voxels", "decoder"):
        assert tests[name].accuracy > 0.7, name
        assert tests[name].p_value == 0.001, name  # none of 999 shuffles
    assert abs(tests["sampler"].accuracy - 0.5) < 2 * tests["sampler"].standard_error
    assert blurry.spreads["sphericity"].ks > 3 * blurry.spreads["sphericity"].ks_real
    near = blurry.nearest
    assert near.reconstructed is not None
    assert near.reconstructed[2] < near.held_out[2], "blur comes closer, without copying"


def test_a_false_sampler_is_told_apart(real: tuple[Volumes, Volumes]) -> None:
    small = np.pad(real[0][:NUM, ::2, ::2, ::2], ((0, 0), (4, 4), (4, 4), (4, 4)))
    assert two_sample(measure(small), measure(real[1])).accuracy > 0.95


@pytest.mark.parametrize(("noise", "turned"), [(0.0, False), (0.02, True)])
def test_copies_are_found(real: tuple[Volumes, Volumes], noise: float, turned: bool) -> None:
    train, held_out = real[0][:200], real[1][:80]
    copies = train[:40].transpose(0, 3, 1, 2)[:, ::-1] if turned else train[:40]
    shaken = copies + np.random.default_rng(0).normal(0, noise, copies.shape)
    judgement = judge(np.clip(shaken, 0, 1).astype(np.float32), held_out, train)
    assert judgement.nearest.copies > 0.95
    assert "copies" in next(row[-1] for row in table(judgement) if row[0] == "copies of training")


def test_chance_is_what_chance_is() -> None:
    """Of many pairs of sets of one distribution, about one in twenty has p <= 0.05."""
    generator = np.random.default_rng(0)
    sets = generator.normal(size=(40, 2, 30, len(MEASURES)))
    tests = [two_sample(first, second) for first, second in sets]
    assert sum(test.p_value <= 0.05 for test in tests) <= 5  # more once in 70 times
    accuracies = np.array([test.accuracy for test in tests])
    assert accuracies.mean() == pytest.approx(0.5, abs=0.03)
    assert accuracies.std() == pytest.approx(tests[0].standard_error, rel=0.3)


def test_twins_in_different_folds_would_mislead() -> None:
    one = np.random.default_rng(0).normal(size=(100, len(MEASURES)))
    assert two_sample(one, one).accuracy < 0.4
    assert two_sample(one, one + 1e-6, paired=True).accuracy == pytest.approx(0.5, abs=0.1)


def test_the_same_seed_gives_the_same_judgement(real: tuple[Volumes, Volumes]) -> None:
    few = real[0][:40], real[1][:20], real[0][40:60]
    one = judge(*few, seed=3)
    assert one == judge(*few, seed=3)
    assert one.two_sample != judge(*few, seed=4).two_sample


def test_empty_volumes_count_against_the_generator(real: tuple[Volumes, Volumes]) -> None:
    generated = real[0][:40].copy()
    generated[::2] = 0.0
    judgement = judge(generated, real[1][:40], real[0][40:80])
    assert judgement.num_empty == 20
    assert judgement.spreads["sphericity"].ks == pytest.approx(0.5, abs=0.1)
    assert judgement.two_sample["measures"].accuracy > 0.65
    assert ["empty", "20"] in [row[:2] for row in table(judgement)]


def test_as_dict_is_json_and_nothing_else(honest: Judgement, blurry: Judgement) -> None:
    def leaves(value: Any) -> list[Any]:
        if isinstance(value, dict):
            value = tuple(value.values())
        return [x for part in value for x in leaves(part)] if type(value) is tuple else [value]

    for judgement in (honest, blurry):
        plain = judgement.as_dict()
        assert {type(leaf) for leaf in leaves(plain)} == {int, float}
        again = json.loads(json.dumps(plain, allow_nan=False))
        assert list(again["spreads"]) == list(MEASURES)
        assert ("reconstructed" in again["nearest"]) == (judgement is blurry)
        assert again["two_sample"]["voxels"] == plain["two_sample"]["voxels"]


def test_the_table_reads_in_plain_words(honest: Judgement, blurry: Judgement) -> None:
    for judgement, num_rows in ((honest, 9), (blurry, 11)):
        rows = table(judgement)
        assert {len(row) for row in rows} == {len(rows[0])}
        assert len(rows) == num_rows
        assert all(row[0] and row[-1] for row in rows[1:])
    reading = {row[0]: row[-1] for row in table(honest)}
    assert reading["classifier: generated or held-out, by voxels"] == "no better than chance (0.5)"
    assert reading["copies of training"] == "no more than among real ones"
    reading = {row[0]: row[-1] for row in table(blurry)}
    assert "classifier accuracy" in reading["classifier: generated or held-out, by voxels"]
    assert reading["sphericity"].startswith("differs: mean +")
    assert reading["classifier: generated or reconstructed"] == "no better than chance (0.5)"


def test_what_cannot_be_judged_is_refused() -> None:
    good = np.zeros((20, 8, 8, 8), np.float32)
    with pytest.raises(UserError, match="same s"):
        judge(np.zeros((20, 1, 8, 8, 8), np.float32), good, good)
    with pytest.raises(UserError, match="generated has 3 volumes"):
        judge(good[:3], good, good)
    for wrong in (1.5, -0.1, np.nan):
        with pytest.raises(UserError, match=r"training.*np\.clip"):
            judge(good, good, np.full_like(good, wrong))
    with pytest.raises(UserError, match="one each"):
        judge(good, good, good, good[:12])


def test_torch_is_not_needed() -> None:
    code = "import sys, samepath.recipes.nodules.judgement; print('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"
