"""nodules-ct: data, frames, surroundings, and new nodules, on cubes made here."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from samepath.cli.generate import generate
from samepath.cli.pairs import pairs
from samepath.data import Draws
from samepath.data.formats.images import simpleitk
from samepath.data.formats.pairs import write_pairs
from samepath.engine.state.reopen import reopen
from samepath.engine.train import Request, train
from samepath.errors import UserError
from samepath.recipe import find_recipe
from samepath.recipes.nodules import ct
from samepath.recipes.nodules.ct_files import CubesRequest, write_cubes
from samepath.recipes.nodules.ct_generation import (
    CubeGenerator,
    Surroundings,
    generate_cubes,
)
from samepath.recipes.nodules.surroundings import with_nodule, without_nodule
from samepath.recipes.nodules.worth.data import load_real

SIDE = 16
Arrays = dict[str, Any]


def made_nodules(count: int = 60, seed: int = 0) -> Arrays:
    """Balls, grey or bright by class, before noise, some beside a wall."""
    random = np.random.default_rng(seed)
    label = random.integers(0, 2, count)
    grid = np.indices((SIDE,) * 3) - (SIDE - 1) / 2
    radius = random.uniform(2.0, 5.0, count)
    axes = random.uniform(0.8, 1.2, (count, 3))
    away = np.sqrt(((grid / axes[..., None, None, None]) ** 2).sum(1))
    masks = away <= radius[:, None, None, None]
    volumes = 0.15 + 0.03 * random.standard_normal(masks.shape)
    volumes[::3, :, :, 14:] = 0.8
    volumes = np.where(masks, np.where(label, 0.7, 0.4)[:, None, None, None], volumes)
    volumes += 0.02 * random.standard_normal(masks.shape)
    return {
        "volume": (255 * volumes.clip(0, 1)).astype(np.uint8),
        "mask": masks,
        "label": label,
        "texture": radius * 10.0,
        "rating": 2 * label + 1,
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ct") / "cubes.npz"
    np.savez(path, **made_nodules())
    return path


RECIPE = """
from samepath.recipes.nodules.ct import nodules_ct

def recipe(data):
    return nodules_ct(data, side=8, num_filters=4, num_components=6, epochs=16)
"""


def trained(data: Path, out: Path, num_workers: int = 1, **asked: Any) -> Path:
    recipe = data.parent / "small.py"
    recipe.write_text(RECIPE, encoding="utf-8")
    request = Request(recipe=str(recipe), data=str(data), num_workers=num_workers, out=out, **asked)
    return train(request)[1]


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    return trained(data, data.parent / "run")


@pytest.fixture(scope="module")
def generator(run: Path) -> CubeGenerator:
    opened = reopen(run)
    return CubeGenerator(opened.model()[0], opened.recipe)


# ---- generation


def test_new_nodules_are_of_the_class_and_the_size_that_were_asked_for(
    generator: CubeGenerator,
) -> None:
    made = generator.generate(12, category="1", wish={"diameter": (6.0, 8.0)}, seed=1)
    assert made.volumes.shape == made.masks.shape == (12, SIDE, SIDE, SIDE)
    assert set(made.category) == {"1"}
    diameters = ct.sphere_diameter(made.masks.sum((1, 2, 3)))
    assert ((diameters >= 6.0) & (diameters <= 8.0)).all()
    np.testing.assert_allclose(made.facts["diameter"], diameters)
    assert (made.hosts != made.parents[:, 0]).all()
    row_of = {int(row): number for number, row in enumerate(generator.file_rows)}
    parents = [row_of[int(row)] for row in made.parents.ravel()]
    assert (generator.category[parents] == "1").all()
    inside = [volume[mask].mean() for volume, mask in zip(made.volumes, made.masks, strict=True)]
    grey = generator.generate(12, category="0", seed=1)
    of_grey = [volume[mask].mean() for volume, mask in zip(grey.volumes, grey.masks, strict=True)]
    assert np.mean(inside) > np.mean(of_grey) + 0.1


def test_a_rating_is_a_whole_number_of_a_parent(generator: CubeGenerator) -> None:
    made = generator.generate(3, wish={"rating": (3, 3)}, seed=1)
    assert made.facts["rating"].tolist() == [3.0] * 3
    assert set(made.category) == {"1"}


def test_a_cube_does_not_depend_on_the_count_and_depends_on_the_seed(
    run: Path, generator: CubeGenerator
) -> None:
    few, many = (generator.generate(n, category="0", seed=3) for n in (2, 5))
    assert np.array_equal(few.volumes, many.volumes[:2])
    assert np.array_equal(few.masks, many.masks[:2])
    cubes, masks, names = generate_cubes(run, 2, category=0, seed=3)
    assert np.array_equal(cubes, few.volumes)
    assert np.array_equal(masks, few.masks)
    assert names.tolist() == ["0", "0"]
    other = generator.generate(2, category="0", seed=4)
    assert not np.array_equal(few.volumes, other.volumes)


# ---- data


def test_a_nodule_is_in_one_part_and_patients_are_kept_together() -> None:
    groups = [f"patient {row // 3}" for row in range(90)]
    parts = ct.three_parts(groups)
    assert sorted(np.concatenate(parts).tolist()) == list(range(90))
    patients = [{groups[row] for row in part} for part in parts]
    assert len(set.union(*patients)) == sum(map(len, patients)) == 30
    assert len(parts[2]) == 18
    again = ct.three_parts(groups[:60] + [f"new {row}" for row in range(30)])
    old = [set(part[part < 60].tolist()) for part in (parts[2], again[2])]
    assert old[0] & old[1], "a patient's part goes by the name"


def test_the_recipe_sees_no_test_nodule_and_measures_facts(data: Path) -> None:
    nodules = ct.load_ct_nodules(data)
    recipe = ct.nodules_ct(data, side=8)
    assert isinstance(recipe.train, tuple)
    assert isinstance(recipe.valid, tuple)
    used = {bytes(cube.numpy()) for part in (recipe.train, recipe.valid) for cube in part[1]}
    assert len(used) == len(nodules.train) + len(nodules.valid)
    assert not any(bytes(nodules.volumes[row]) in used for row in nodules.test)
    row = nodules.train[0]
    inside = nodules.volumes[row][nodules.masks[row]] / 255
    assert recipe.train_facts["intensity"][0] == pytest.approx(inside.mean())
    assert recipe.train_facts["category"][0] == str(nodules.facts["label"][row])


def test_a_frame_holds_the_nodule_at_one_scale() -> None:
    """Two balls, one twice the other: the same frame, with intensities under the mask."""
    grid = np.indices((32, 32, 32)) - np.array([15.5, 14.5, 15.5])[:, None, None, None]
    away = np.sqrt((grid**2).sum(0))
    masks = np.stack([away <= 4.5, away <= 9.5])
    volumes = np.where(masks, 0.6, 0.1).astype(np.float32)
    seen = ct.frames(volumes, masks, 16)
    assert np.abs(seen[0] - seen[1]).mean() < 0.08
    middle = seen[:, :, 6:10, 6:10, 6:10]
    np.testing.assert_allclose(middle[:, 0], 1.0, atol=2e-3)
    np.testing.assert_allclose(middle[:, 1], 0.6, atol=2e-3)
    np.testing.assert_allclose(seen[:, :, 0, 0, 0], 0.0, atol=2e-3)
    place = ct.place_of(masks[0])
    assert place.centre.tolist() == [16.0, 15.0, 16.0]
    assert place.width == 1.25 * 8


@pytest.mark.parametrize("num_dims", [1, 2])
def test_slices_and_lines_train_too(data: Path, num_dims: int) -> None:
    recipe = ct.nodules_ct(data, num_dims=num_dims, side=8, num_filters=2, num_components=3)
    assert isinstance(recipe.train, tuple)
    batch = ct.turn(recipe.train, Draws(seed=0, epoch=0, examples=np.arange(len(recipe.train[0]))))
    loss = recipe.loss(recipe.model(), batch)
    loss.backward()
    assert torch.isfinite(loss)


def test_turned_frames_are_among_the_mirrored(generator: CubeGenerator) -> None:
    seen = torch.from_numpy(generator.frames[:6])
    turned, *_ = ct.turn((seen, seen, seen), Draws(seed=0, epoch=1, examples=np.arange(6)))
    ways = ct.mirrored(generator.frames[:6]).reshape(6, 16, *seen.shape[1:])
    for row in range(6):
        assert any(np.array_equal(turned[row].numpy(), way) for way in ways[row])
    assert not torch.equal(turned, seen)


BAD = [
    ({"mask": np.ones((60, 8, 8, 8), bool)}, r"mask has the shape 60 x 8 x 8 x 8, volume 60 x 16"),
    ({"volume": np.full((60, 16, 16, 16), -900.0)}, r"intensities reach from -900 to -900"),
    ({"volume": np.full((60, 16, 16, 16), np.nan)}, r"volume of row 0 holds NaN"),
    ({"mask": np.zeros((60, 16, 16, 16), bool)}, r"mask of row 0 is empty \(60 of 60 are\)"),
    ({"mask": np.full((60, 16, 16, 16), 3)}, r"mask holds values beside 0 and 1"),
    ({"volume": None}, r"must hold volume; it holds mask \(60, 16, 16, 16\)"),
    ({"mask": None}, r"bad.npz holds no masks; save one with"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_data_that_do_not_fit_are_refused_in_one_line(
    tmp_path: Path, change: Arrays, message: str
) -> None:
    arrays = {name: of for name, of in (made_nodules() | change).items() if of is not None}
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(UserError, match=message) as caught:
        ct.nodules_ct(tmp_path / "bad.npz")
    assert "\n" not in str(caught.value)


def test_a_folder_of_pairs_is_data_and_surroundings(run_in_mm: Path, tmp_path: Path) -> None:
    """What `samepath pairs` writes comes back: voxels, masks, classes and millimetres."""
    folder = tmp_path / "pairs"
    write_pairs(run_in_mm.parent / "cubes.npz", folder)
    given, again = (ct.load_ct_nodules(path) for path in (run_in_mm.parent / "cubes.npz", folder))
    assert np.array_equal(again.masks, given.masks)
    assert np.allclose(again.volumes, given.volumes / 255, atol=1e-5)
    for name in ("label", "side_mm", "diameter", "category"):
        assert again.facts[name].tolist() == given.facts[name].tolist()
    real = load_real(folder)
    assert np.array_equal(real.arrays["mask"], given.masks)
    assert find_recipe("nodules-small", str(folder)).train_facts["label"].size > 0
    asked: Arrays = {"run": run_in_mm, "count": 2, "judge": False, "into": folder}
    write_cubes(CubesRequest(out=tmp_path / "new.npz", **asked))
    with np.load(tmp_path / "new.npz") as made:
        assert np.array_equal(made["side_mm"], SIDES[made["host"]])
    for mask in folder.glob("*-mask.nii.gz"):
        mask.unlink()
    with pytest.raises(UserError, match=r"pairs holds no masks; .* a.nii.gz and a-mask.nii.gz"):
        ct.nodules_ct(folder)


# ---- surroundings


def test_a_nodule_is_taken_out_and_put_in_where_its_mask_is() -> None:
    random = np.random.default_rng(0)
    away = np.sqrt(((np.indices((16, 16, 16)) - 7.5) ** 2).sum(0))
    mask = away <= 3.5
    volume = (0.2 + 0.02 * random.standard_normal(mask.shape)).astype(np.float32)
    volume[:, :, 13:] = 0.8
    with_it = np.where(mask, np.float32(0.7), volume)
    empty = without_nodule(with_it, mask, random)
    assert abs(empty[mask].mean() - 0.2) < 0.05
    assert 0.005 < empty[mask].std() < 0.05, "noise like that around it"
    assert np.array_equal(empty[away > 6], with_it[away > 6])
    again, found = with_nodule(empty, mask, mask, np.full(mask.shape, 0.7, np.float32))
    assert np.array_equal(found, mask)
    np.testing.assert_allclose(again[away <= 1.5], 0.7, atol=0.02)
    assert np.array_equal(again[away > 8], empty[away > 8])
    wide = away <= 6.5  # reaches the wall, which stays, and is no part of the mask
    grey, found = with_nodule(empty, mask, wide, np.full(mask.shape, 0.5, np.float32))
    assert (grey[:, :, 13:] >= 0.79).all()
    assert not found[:, :, 13:].any()


# ---- the command, and workers


def test_the_command_writes_the_same_bytes_again(run: Path, data: Path, tmp_path: Path) -> None:
    asked = {"run": run, "count": 3, "category": "1", "wish": {"diameter": (5.0, 9.0)}, "seed": 2}
    one, other = (
        write_cubes(CubesRequest(out=tmp_path / name, judge=False, **asked))  # type: ignore[arg-type]
        for name in ("one.npz", "other.npz")
    )
    assert one.out.read_bytes() == other.out.read_bytes()
    with np.load(one.out, allow_pickle=False) as arrays:
        assert arrays["volume"].shape == arrays["mask"].shape == (3, SIDE, SIDE, SIDE)
        assert set(arrays["category"]) == {"1"}
        assert (arrays["nearest_training"] > 0).all()
        provenance = json.loads(str(arrays["provenance"]))
    assert provenance["seed"] == 2
    assert provenance["weights_digest"] == reopen(run).model()[1]
    assert one.table[1][0] == "nearest training nodule"


def test_nodules_go_into_cubes_that_had_none(generator: CubeGenerator) -> None:
    random = np.random.default_rng(0)
    empty = (0.1 + 0.02 * random.standard_normal((2, 16, 16, 16))).clip(0, 1).astype(np.float32)
    empty[:, :, :, 9:] = 0.9
    made = generator.generate(4, wish={"diameter": (4.0, 6.0)}, into=Surroundings(empty))
    assert made.masks.any((1, 2, 3)).all()
    for volume, mask in zip(made.volumes, made.masks, strict=True):
        assert (volume > 0.8).sum() >= 0.95 * (empty[0] > 0.8).sum(), "the wall is still there"
        assert volume[mask].mean() > 0.2


def test_cubes_with_nodules_of_another_file_give_their_surroundings(
    generator: CubeGenerator,
) -> None:
    given = made_nodules(6, seed=5)
    cubes = Surroundings(ct.as_intensities(given["volume"]), given["mask"])
    made = generator.generate(4, wish={"diameter": (4.0, 8.0)}, into=cubes)
    for row, volume, mask in zip(made.hosts, made.volumes, made.masks, strict=True):
        before, old = cubes.volumes[row], given["mask"][row]
        away = (np.sort(volume[~mask])[:100] - np.sort(before[~old])[:100]).mean()
        assert abs(away) < 0.05, "the host's own background"
        assert mask.any()
    with pytest.raises(UserError, match=r"--into has side_mm, and the run's nodules know no"):
        generator.generate(1, into=cubes._replace(side_mm=np.full(6, 20.0)))


# ---- millimetres

SIDES = np.where(np.arange(60) % 2, 16.0, 32.0)
"""Voxels of 1 and of 2 mm."""


@pytest.fixture(scope="module")
def run_in_mm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mm") / "cubes.npz"
    np.savez(path, **made_nodules(), side_mm=SIDES)
    return trained(path, path.parent / "run")


def test_sizes_are_the_hosts_millimetres(run_in_mm: Path, tmp_path: Path) -> None:
    """Parents and hosts of other voxels than each other's: what is written is true of the host."""
    asked: Arrays = {"run": run_in_mm, "count": 12, "judge": False, "wish": {"diameter": (7, 12)}}
    write_cubes(CubesRequest(out=tmp_path / "new.npz", **asked))
    with np.load(tmp_path / "new.npz") as made, np.load(run_in_mm.parent / "cubes.npz") as given:
        sides = made["side_mm"]
        assert set(sides) == {16.0, 32.0}
        assert np.array_equal(sides, SIDES[made["host"]]), "rows of the file"
        assert (sides != SIDES[made["parent"]]).any(), "the two are mixed"
        truly = sides / SIDE * ct.sphere_diameter(made["mask"].sum((1, 2, 3)))
        np.testing.assert_allclose(made["diameter"], truly)
        assert ((truly >= 7) & (truly <= 12)).all()
        assert np.array_equal(given["label"][made["parent"]].astype(str), made["category"])
    out = tmp_path / "pairs"
    result = CliRunner().invoke(pairs, [str(tmp_path / "new.npz"), "--out", str(out)])
    assert result.exit_code == 0
    assert "counts as 1 mm" not in result.output
    image = simpleitk().ReadImage(str(out / "nodule-000.nii.gz"))
    assert image.GetSpacing() == (sides[0] / SIDE,) * 3


def test_the_spacing_of_into_is_read(run_in_mm: Path, tmp_path: Path) -> None:
    given = made_nodules(6, seed=5)
    volume = given["volume"]

    def into(**more: Any) -> CubesRequest:
        np.savez(tmp_path / "hosts.npz", volume=volume, **more)
        asked: Arrays = {"run": run_in_mm, "count": 3, "judge": False}
        asked |= {"into": tmp_path / "hosts.npz", "wish": {"diameter": (5, 8)}}
        return CubesRequest(out=tmp_path / "new.npz", **asked)

    with pytest.raises(UserError, match=r"--into has no side_mm, and the run's nodules have mill"):
        write_cubes(into())
    with pytest.raises(UserError, match=r"side_mm must be a number above 0 for every volume"):
        write_cubes(into(side_mm=np.zeros(6)))
    write_cubes(into(side_mm=np.full(6, 12.0), mask=given["mask"]))
    with np.load(tmp_path / "new.npz") as made:
        assert made["side_mm"].tolist() == [12.0] * 3
        truly = 12.0 / SIDE * ct.sphere_diameter(made["mask"].sum((1, 2, 3)))
        np.testing.assert_allclose(made["diameter"], truly)


# ---- what is said of them


def test_they_are_judged_by_nodules_like_them(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out = reopen(run).recipe.valid_facts
    ones = int((held_out["category"] == "1").sum())
    assert 0 < ones < len(held_out["category"])
    few = write_cubes(CubesRequest(run=run, out=tmp_path / "a.npz", count=3, category="1"))
    assert few.num_held_out == ones
    assert few.table[0][2] == f"{ones} held out"
    assert few.told is None
    assert few.table[1][2] == few.table[2][1] == ""
    assert few.notes == (
        f"{ones} held-out nodules of this class and in these ranges: too few to judge by (at least "
        "20)",
    )
    monkeypatch.setattr("samepath.recipes.nodules.ct_files.MIN_JUDGED", ones)
    told = write_cubes(CubesRequest(run=run, out=tmp_path / "b.npz", count=20, category="1")).told
    assert told is not None
    assert told["num_examples"] == 2 * ones
    less = write_cubes(CubesRequest(run=run, out=tmp_path / "c.npz", count=1, category="1"))
    assert less.notes == (f"1 new nodule: too few to judge (at least {ones})",)


def test_few_parents_are_said(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Arrays = {"run": run, "count": 3, "judge": False}
    many = write_cubes(CubesRequest(out=tmp_path / "many.npz", **asked))
    assert not any("variants" in note for note in many.notes)
    sizes = np.sort(reopen(run).recipe.train_facts["diameter"])
    wish = {"diameter": (float(sizes[-4]), float(sizes[-1]))}
    few = write_cubes(CubesRequest(out=tmp_path / "few.npz", wish=wish, **asked))
    assert few.notes[0] == (
        "only 4 training nodules of this class and in these ranges: the 3 new ones are variants of "
        "so few"
    )


def test_what_cannot_be_made_is_said_and_nothing_written(run: Path, tmp_path: Path) -> None:
    for options, message in (
        (("--diameter", "90:99"), "--diameter 90:99: no training nodule is in it; they reach from"),
        (("--diameter", "9"), "'9' is no range; give LOW:HIGH, such as 8:12"),
        (("--category", "7"), "--category 7: the training nodules are 0 ("),
        (("--fact", "size=1:2"), "--fact size: the data know no such number; they know"),
    ):
        result = CliRunner().invoke(
            generate, [str(run), *options, "--out", str(tmp_path / "new.npz")]
        )
        assert isinstance(result.exception, UserError)
        assert message in str(result.exception)
        assert not list(tmp_path.iterdir())


def test_the_names_of_the_issue_say_what_to_type(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["worth", "runs/ct", "--data", "my cubes.npz"], ["turing", "a.npz", "b.npz"]):
        result = CliRunner().invoke(generate, words)
        said = f"{words[0]} is a command of its own; type: samepath {shlex.join(words)}"
        assert str(result.exception) == said
    result = CliRunner().invoke(generate, [str(run), "--count", "1", "--no-judge"])
    assert result.exit_code == 0
    assert result.output.splitlines()[-2:] == ["new.npz", "new.cubes.png"]


def test_the_bits_are_the_same_at_two_and_three_workers(data: Path) -> None:
    runs = [trained(data, data.parent / f"run-{n}", n, epochs=1) for n in (1, 2, 3)]
    assert len({reopen(run).model()[1] for run in runs}) == 1
