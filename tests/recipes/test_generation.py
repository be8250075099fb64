"""Looking at a run and generating from it: a small DeepDensity trained for a moment."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import samepath

from samepath.data.formats.images import read_image
from samepath.data.formats.volumes import load_volumes
from samepath.engine.state.reopen import reopen
from samepath.engine.train import Request, train
from samepath.errors import CheckpointDamaged, UserError
from samepath.recipes.nodules.deepdensity import DeepDensity, Mixture, evaluate_density
from samepath.recipes.nodules.generation import GenerateRequest, Generator, encode, generate, render
from samepath.report.show import show_run

RECIPE = """
import numpy as np
import torch
from samepath import Recipe
from samepath.recipes.nodules.deepdensity import DeepDensity
from samepath.recipes.nodules.recipe import _show, reconstruction_loss

def blobs(count, seed):
    random = np.random.default_rng(seed)
    category = np.array(["large", "small"])[random.integers(2, size=count)]
    grid = (np.indices((8, 8, 8)) + 0.5) / 4 - 1
    centre = random.uniform(-0.2, 0.2, (count, 3, 1, 1, 1))
    width = np.where(category == "large", 0.45, 0.25) * random.uniform(0.8, 1.2, count)
    square = ((grid - centre) / width[:, None, None, None, None]) ** 2
    volumes = np.exp(-0.5 * square.sum(1)).astype(np.float32)
    return torch.from_numpy(volumes), {"category": category, "side_mm": 20 * width}

def recipe():
    (train, train_facts), (valid, valid_facts) = blobs(120, 0), blobs(60, 1)
    return Recipe(
        model=lambda: DeepDensity(side=8, num_filters=4, num_components=4),
        train=train, valid=valid, train_facts=train_facts, valid_facts=valid_facts,
        loss=reconstruction_loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        batch_size=24, grain_size=8, epochs=20, keep_weights=(0, 1, 20), show=_show,
    )
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blobs")
    (folder / "blobs.py").write_text(RECIPE)
    request = Request(recipe=str(folder / "blobs.py"), num_workers=1, out=folder / "run")
    return train(request)[1]


@pytest.fixture(scope="module")
def generator(run: Path) -> Generator:
    reopened = reopen(run)
    return Generator(reopened.model()[0], reopened.recipe)


# ---- weights along the way


def trained(run: Path, out: Path, num_workers: int = 1, resume: bool = False, **asked: Any) -> Path:
    """The recipe of a run, trained again."""
    recipe = str(run.parent / "blobs.py")
    request = Request(recipe=recipe, num_workers=num_workers, out=out, **asked, resume=resume)
    return train(request)[1]


def test_the_last_weights_kept_are_the_runs_and_the_best_have_the_lowest_loss(run: Path) -> None:
    reopened = reopen(run)
    assert reopened.kept_epochs() == [0, 1, 20]
    newest, kept, first = (reopened.model(epoch)[0].state_dict() for epoch in (None, 20, 0))
    assert all(torch.equal(newest[name], kept[name]) for name in newest)
    assert not torch.equal(first["heads.weight"], newest["heads.weight"])
    valid = reopened.recipe.valid
    assert isinstance(valid, torch.Tensor)
    loss = reopened.recipe.loss(reopened.model("best")[0], valid).item()
    assert loss == pytest.approx(min(reopened.losses_by_epoch().values()), rel=1e-5)


def test_weights_are_the_same_at_another_worker_count(run: Path, tmp_path: Path) -> None:
    other = trained(run, tmp_path / "two", num_workers=2, epochs=1)
    for epochs in (0, 1):
        name = f"weights/epoch-{epochs:05d}.safetensors"
        assert (other / name).read_bytes() == (run / name).read_bytes()


def test_the_best_weights_survive_a_stop(run: Path, tmp_path: Path) -> None:
    """Stopped inside every epoch and resumed, the same weights are the best."""
    for steps in (7, 33, 100):
        trained(run, tmp_path / "run", resume=steps > 7, steps=steps)
    name = "weights/best.safetensors"
    assert (tmp_path / "run" / name).read_bytes() == (run / name).read_bytes()


def test_damaged_weights_are_named(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    (copy / "weights").mkdir(parents=True)
    (copy / "run.json").write_text((run / "run.json").read_text())
    content = bytearray((run / "weights/epoch-00001.safetensors").read_bytes())
    content[-1] ^= 1
    (copy / "weights/epoch-00001.safetensors").write_bytes(content)
    with pytest.raises(CheckpointDamaged, match=r"epoch-00001.*do not match their digest"):
        reopen(copy).model(1)


def test_a_recipe_that_changed_is_refused(run: Path, tmp_path: Path) -> None:
    config = json.loads((run / "run.json").read_text())
    config["config"]["identity"] = "0" * 64
    (tmp_path / "run.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="has changed since the run"):
        reopen(tmp_path)


# ---- show


def test_show_draws_a_page_that_stands_alone_with_other_runs_beside_it(
    run: Path, tmp_path: Path
) -> None:
    page = show_run(run, tmp_path / "alone")
    names = {path.name for path in page.parent.iterdir()}
    nodules = {"reconstructions.png", "ellipsoids.png", "sharpening.png"}
    pictures = {"losses.svg", "noise.svg", *nodules}
    assert names == pictures | {"index.html"}
    text = page.read_text()
    assert len(re.findall(r"data:image/(?:png|svg\+xml);base64,", text)) == len(pictures)
    # which the letters of an image may spell, too
    assert "http" not in re.sub(r"base64,[\w+/=]*|http-equiv", "", text)
    assert json.loads((run / "run.json").read_text())["result"]["digest"] in text

    twin = tmp_path / "elsewhere" / run.name  # another run of the same name is another curve
    twin.mkdir(parents=True)
    for name in ("run.json", "metrics.jsonl"):
        (twin / name).write_text((run / name).read_text())
    both = show_run(run, tmp_path / "both", [twin])
    for name, is_same in (("losses.svg", False), ("ellipsoids.png", True)):
        drawn = [(folder / name).read_bytes() for folder in (page.parent, both.parent)]
        assert (drawn[0] == drawn[1]) == is_same
    with pytest.raises(UserError, match="holds no run"):
        show_run(run, tmp_path / "none", [tmp_path])


# ---- codes and samples


def test_codes_give_the_reconstruction_back(run: Path) -> None:
    reopened = reopen(run)
    model, _ = reopened.model()
    assert isinstance(model, DeepDensity)
    assert isinstance(reopened.recipe.train, torch.Tensor)
    volumes = reopened.recipe.train[:10]
    codes = encode(model, volumes)
    mass = torch.from_numpy(8.0 * np.exp(codes[:, -1])).float()
    with torch.no_grad():
        again = render(model.decode(torch.from_numpy(codes[:, :-1]).float()), mass, 8)
        expected = model(volumes[:, None]).squeeze(1).clamp(0, 1)
    torch.testing.assert_close(torch.from_numpy(again), expected, rtol=1e-4, atol=1e-5)


def test_rendering_in_parts_is_rendering(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = generator.generate(3, "small", side=12, seed=0)
    monkeypatch.setattr("samepath.recipes.nodules.generation._CHUNK", 12 * 12 * 4 * 5)
    again = generator.generate(3, "small", side=12, seed=0)
    np.testing.assert_allclose(again.volumes, made.volumes, rtol=1e-6, atol=1e-7)


def test_planes_are_a_part_of_the_whole() -> None:
    made = torch.Generator().manual_seed(0)
    heads = [torch.randn(2, 3, *shape, generator=made) for shape in ((), (3,), (3,), (3,))]
    mixture = DeepDensity(side=8, num_components=3).decode(
        torch.cat([head.flatten(1) for head in heads], dim=1)
    )
    assert isinstance(mixture, Mixture)
    whole = evaluate_density(mixture, 6).view(2, 6, 36)
    part = evaluate_density(mixture, 6, slice(2, 5)).view(2, 3, 36)
    torch.testing.assert_close(part, whole[:, 2:5], rtol=1e-5, atol=1e-6)


def test_a_nodule_does_not_depend_on_the_count_or_the_resolution(generator: Generator) -> None:
    few, many = (generator.generate(n, "large", side=8, seed=3) for n in (2, 30))
    assert np.array_equal(few.volumes, many.volumes[:2])
    assert np.array_equal(few.keys, many.keys[:2])
    fine = generator.generate(2, "large", side=16, seed=3)
    pooled = fine.volumes.reshape(2, 8, 2, 8, 2, 8, 2).mean((2, 4, 6))
    assert np.abs(pooled - few.volumes).max() < 0.1
    other = generator.generate(2, "large", side=8, seed=4)
    assert not np.array_equal(few.volumes, other.volumes)


def test_categories_differ_as_the_real_ones_do(generator: Generator) -> None:
    large, small = (generator.generate(100, name, side=8, seed=0) for name in ("large", "small"))
    assert large.volumes.mean() > 1.5 * small.volumes.mean()
    assert large.side_mm is not None
    assert small.side_mm is not None
    assert large.side_mm.mean() == pytest.approx(9.0, rel=0.1)
    assert small.side_mm.mean() == pytest.approx(5.0, rel=0.1)
    everything = generator.generate(100, None, side=8, seed=0)
    assert 25 < (everything.category == "large").sum() < 75


# ---- files


def test_one_file_with_seeds_and_provenance(run: Path, tmp_path: Path) -> None:
    request = GenerateRequest(run=run, out=tmp_path / "new.npz", count=40, category="large", seed=5)
    result = generate(request)
    beside = {"new.npz", "new.provenance.json", "new.nodules.png", "new.measures.png"}
    assert {path.name for path in tmp_path.iterdir()} == beside
    with np.load(result.out, allow_pickle=False) as arrays:
        assert arrays["volumes"].shape == (40, 8, 8, 8)
        assert set(arrays["category"]) == {"large"}
        assert len(set(arrays["key"].tolist())) == 40
        provenance = json.loads(str(arrays["provenance"]))
    assert provenance["seed"] == 5
    assert provenance["weights_digest"] == reopen(run).model()[1]
    assert result.judgement is not None
    assert provenance["judgement"]["num_generated"] == 40
    assert len(result.table) > 8
    again = load_volumes(result.out)  # fit to be trained on
    assert again.cubes.shape == (40, 8, 8, 8)
    assert again.facts.keys() == {"category", "key", "side_mm", "mass"}  # one value per nodule
    assert again.facts["key"].tolist() == result.generated.keys.tolist()


def test_a_folder_of_nifti_files(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "new.nii.gz"
    result = generate(GenerateRequest(run=run, out=out, count=3, side=12, epoch=1))
    assert result.out == tmp_path / "new"
    assert result.judgement is None
    assert result.why_not_judged == "3 generated nodules are too few to judge"
    with (result.out / "facts.csv").open() as file:
        facts = list(csv.DictReader(file))
    assert [row["file"] for row in facts] == [f"nodule-{i}.nii.gz" for i in range(3)]
    image = read_image(result.out / "nodule-0.nii.gz")
    assert image.GetSize() == (12, 12, 12)
    assert image.GetSpacing() == pytest.approx([float(facts[0]["side_mm"]) / 12] * 3)
    assert json.loads((result.out / "provenance.json").read_text())["epoch"] == 1
    assert load_volumes(result.out).cubes.shape == (3, 12, 12, 12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 0}, "--count 0: give at least 1"),
        ({"side": 3}, "--side 3: give 4 to 512 voxels"),
        ({"category": "huge"}, r"--category huge: the training nodules are large \(\d+\), small"),
        ({"epoch": 3}, "--epoch 3: .* kept the weights of 0, 1, 20, best"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_written(
    run: Path, tmp_path: Path, changes: dict[str, int | str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        generate(GenerateRequest(run=run, out=tmp_path / "new.npz", **changes))  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_not_overwritten(run: Path, tmp_path: Path) -> None:
    (tmp_path / "new.provenance.json").write_text("mine")
    with pytest.raises(UserError, match=r"new\.provenance\.json exists; give another name"):
        generate(GenerateRequest(run=run, out=tmp_path / "new.npz"))


def test_another_model_is_refused(tmp_path: Path) -> None:
    request = Request(recipe="digits", num_workers=1, out=tmp_path / "run", steps=1)
    run = train(request)[1]
    with pytest.raises(UserError, match="DeepDensity in three dimensions"):
        generate(GenerateRequest(run=run, out=tmp_path / "new.npz"))
    assert {path.name for path in show_run(run).parent.iterdir()} == {"index.html"}


def test_the_commands(run: Path, tmp_path: Path) -> None:
    shown = json.loads(samepath("show", run, "--out", tmp_path / "shown", "--json"))
    assert all(Path(path).stat().st_size > 0 for path in shown["pictures"])
    generate_30 = ("generate", run, "--count", "30", "--out")
    found = json.loads(samepath(*generate_30, tmp_path / "other.npz", "--json"))
    assert all(Path(path).stat().st_size > 0 for path in found["files"])
    assert found["judgement"]["num_generated"] == 30
    out = samepath(*generate_30, tmp_path / "new.npz")
    assert "sphericity" in out
    assert "classifier: generated or held-out, by voxels" in out
    names = ("new.npz", "new.provenance.json", "new.nodules.png", "new.measures.png")
    assert out.splitlines()[-4:] == [str(tmp_path / name) for name in names]
