"""`samepath curvature` on real workers: the same bits at 1, 2 and 3, and the whole folder."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from samepath.cli.main import cli
from samepath.engine.train import Request, train
from samepath.insight.curvature.curvature import Curvature, CurvatureRequest, measure_curvature
from samepath.insight.folder import kind_of, read_finding

RECIPE = str(Path(__file__).with_name("tiny_recipe.py"))
ASKED: dict[str, Any] = {"num_examples": 22, "top": 6, "grid": 5}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Small batch and large batch."""
    folder = tmp_path_factory.mktemp("runs")
    for size in (4, 44):
        train(
            Request(
                recipe=RECIPE,
                num_workers=1,
                batch_size=size,
                epochs=3,
                out=folder / f"batch-{size}",
            )
        )
    return folder / "batch-4", folder / "batch-44"


def without_times(found: Curvature) -> dict[str, Any]:
    content = dataclasses.asdict(found)
    del content["num_workers"]
    for run in content["runs"]:
        del run["seconds"]
    return content


def test_the_same_bits_at_every_worker_count(runs: tuple[Path, ...]) -> None:
    """11 grains of a model with batch norm and dropout: no count divides them."""
    found = {
        n: measure_curvature(CurvatureRequest(runs=runs[:1], num_workers=n, **ASKED))
        for n in (1, 2, 3)
    }
    assert [found[n].num_workers for n in (1, 2, 3)] == [1, 2, 3]
    one = without_times(found[1])
    assert one["runs"][0]["eigenvalues"][0] > 0.0
    assert one["runs"][0]["num_sampled"] == 22
    assert without_times(found[2]) == one
    assert without_times(found[3]) == one


def test_the_command_writes_a_folder_that_can_be_read_again(
    runs: tuple[Path, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = ["-n", "1", "--examples", "22", "--top", "3", "--grid", "5", "--save-vectors"]
    arguments = ["curvature", *map(str, runs), *options, "--json", "--out", str(out)]
    cli.main(arguments, standalone_mode=False)
    printed = json.loads(capfd.readouterr().out)
    assert printed["folder"] == str(out)
    assert kind_of(out) == "curvature"
    content = read_finding(out, "curvature")
    assert content["verdict"] == printed["verdict"]
    assert content["verdict"].startswith("batch 44 is ")
    assert {name: content[name] for name in printed if name != "folder"} == {
        name: value for name, value in printed.items() if name != "folder"
    }
    for number, run in enumerate(content["runs"], start=1):
        vectors = load_file(out / f"eigenvectors-{number}.safetensors")
        assert vectors["0.weight"].shape == (3, 12, 8)
        lengths = sum(tensor.flatten(1).square().sum(1) for tensor in vectors.values())
        assert lengths.tolist() == pytest.approx([1.0] * 3, abs=1e-5)  # type: ignore[union-attr]
        assert run["steps"] == (33 if number == 1 else 3)
        assert run["random_line"]["losses"][2] == run["loss"], "the weights are in the middle"
        assert run["eigen_plane"]["losses"][1][1] == run["loss"]
        assert set(run["valid"]) == {"loss", "accuracy"}
    names = {path.name for path in out.iterdir()}
    assert {"curvature.html", "spectrum.svg", "lines.svg", "planes.png"} < names
    assert "data:image/png" in (out / "curvature.html").read_text()
