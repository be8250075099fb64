"""A whole curation of digits with planted faults: what is found, what is computed again, what is
refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import curation_recipe as planted
import numpy as np
import pytest
from commands import error_line
from safetensors.numpy import load_file

from samepath.cli import main
from samepath.console import SilentWatcher
from samepath.curation.held_out import train_folds
from samepath.curation.pipeline import curate
from samepath.curation.request import CurateRequest, subject_of
from samepath.curation.training_margin import NoteMargins
from samepath.data.keep_list import KeepList, read_keep_list
from samepath.recipe import find_recipe

RECIPE = planted.__file__
NOTES: list[str] = []


class Noting(SilentWatcher):
    def note(self, text: str) -> None:
        NOTES.append(text)


def request(out: Path, **asked: Any) -> CurateRequest:
    return CurateRequest(recipe=RECIPE, out=out, num_workers=1, watcher=Noting, **asked)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    NOTES.clear()
    folder = tmp_path_factory.mktemp("curation") / "first"
    curate(request(folder))
    return folder


@pytest.fixture
def folder(first: Path, tmp_path: Path) -> Path:
    """A finished curation of one's own."""
    shutil.copytree(first, tmp_path / "mine")
    return tmp_path / "mine"


@pytest.fixture(scope="module")
def kept(first: Path) -> KeepList:
    return read_keep_list(first / "keep.csv")


def about(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "curation.json").read_text())
    return found


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def run_(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["curate", RECIPE, "-n", "1", *arguments])
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capfd.readouterr()

    return run_


def test_planted_faults_are_named(kept: KeepList) -> None:
    wrong = [kept.reasons[row] for row in planted.WRONG]
    assert wrong.count("label error") >= 3
    assert "" not in wrong, "what the quick judge does not see lies outside of its class's clusters"
    assert kept.reasons[planted.COPY] == "duplicate"
    assert {kept.reasons[planted.NEAR], kept.reasons[planted.NEARLY]} >= {"near-duplicate"}
    assert kept.kept[planted.COPIED]
    assert kept.reasons[planted.STRANGE] == "outlier"
    errors = [row for row, reason in enumerate(kept.reasons) if reason == "label error"]
    assert len(errors) <= 10, "and little else is called one"
    assert kept.kept.mean() > 0.8


def test_a_class_of_few_is_kept_and_said_so(kept: KeepList, first: Path) -> None:
    assert kept.kept[list(planted.SMALL)].all()
    assert about(first)["classes"][10]["eps_from"] == "too few points"
    assert any("class 10 has fewer than 10 examples" in note for note in NOTES)


def test_the_folder_is_what_its_form_says(first: Path, kept: KeepList) -> None:
    facts = about(first)
    assert facts["num_examples"] == len(kept) == 406
    assert facts["num_kept"] == kept.kept.sum()
    assert facts["layer"] == "3:input"
    assert facts["class_names"] == [str(label) for label in range(11)]
    for row in facts["classes"]:
        assert row["num_examples"] - row["num_kept"] == sum(row["reasons"].values())
    known = load_file(first / "features.safetensors")
    assert known["features"].shape == (406, 32)
    assert known["probabilities"].shape == (406, 11)
    own = known["probabilities"][np.arange(406), known["labels"]]
    assert np.allclose(-np.log(own), known["losses"], atol=1e-4)
    mapped = load_file(first / "map.safetensors")
    assert np.array_equal(mapped["map"], kept.positions)
    assert load_file(first / "images.safetensors")["images"].shape == (406, 8, 8)


def test_the_control_has_as_many_of_each_class(first: Path, kept: KeepList) -> None:
    control = read_keep_list(first / "random.csv")
    assert kept.labels is not None
    for label in range(11):
        mine = kept.labels == label
        assert control.kept[mine].sum() == kept.kept[mine].sum()
    assert set(control.reasons) == {"", "random"}
    assert not np.array_equal(control.kept, kept.kept)


def stamps(folder: Path) -> dict[str, int]:
    """When each cache was written, by stage."""
    files = (folder / "cache").glob("*.safetensors")
    return {path.name.split("-")[0]: path.stat().st_mtime_ns for path in files}


def test_only_what_is_not_there_is_computed_again(folder: Path) -> None:
    before, keep = stamps(folder), (folder / "keep.csv").read_bytes()
    assert set(before) == {"features", "neighbors", "map", "labels", "inputs", "near"}
    curate(request(folder))
    assert stamps(folder) == before
    assert (folder / "keep.csv").read_bytes() == keep
    curate(request(folder, eps={"": 5.0, "3": 0.2}))
    assert stamps(folder) == before, "clusters come after all of it"
    rows = about(folder)["classes"]
    assert [rows[label]["eps"] for label in (0, 3)] == [5.0, 0.2]
    assert rows[3]["num_kept"] < rows[0]["num_kept"]
    (damaged,) = (folder / "cache").glob("labels-*")
    content = bytearray(damaged.read_bytes())
    content[-10] ^= 1
    damaged.write_bytes(content)
    NOTES.clear()
    curate(request(folder))
    assert [note for note in NOTES if "does not match its checksum; computing it again" in note]
    assert (folder / "keep.csv").read_bytes() == keep


def test_hdbscan_and_grid(folder: Path) -> None:
    assert curate(request(folder, method="hdbscan"))["num_kept"] > 200
    facts = curate(request(folder, method="grid", fraction=0.5))
    for row in facts["classes"]:
        assert row["num_kept"] == round(0.5 * row["num_examples"])
    assert "sampled out" in read_keep_list(folder / "keep.csv").reasons


def test_rounds_drop_more_and_keep_the_reasons(folder: Path, kept: KeepList) -> None:
    facts = curate(request(folder, rounds=2))
    last = read_keep_list(folder / "keep.csv")
    assert len(last) == 406, "over all examples"
    assert (last.kept <= kept.kept).all()
    before = [reason for reason, one in zip(kept.reasons, kept.kept, strict=True) if not one]
    after = [reason for reason, one in zip(last.reasons, kept.kept, strict=True) if not one]
    assert before == after
    assert [row["num_examples"] for row in facts["rounds"]] == [406, kept.kept.sum()]
    assert read_keep_list(folder / "round-1" / "keep.csv").identity == kept.identity
    assert read_keep_list(folder / "round-2" / "keep.csv").identity == last.identity
    assert load_file(folder / "features.safetensors")["features"].shape == (406, 32)
    (folder / "round-2" / "notes.txt").write_text("mine")
    NOTES.clear()
    curate(request(folder))
    assert not (folder / "round-1").exists(), "what is of earlier settings goes"
    assert (folder / "round-2" / "keep.csv").exists()
    assert any("round-2 is of earlier settings and holds files of yours" in n for n in NOTES)


def test_beginning_with_a_keep_list(first: Path, tmp_path: Path, kept: KeepList) -> None:
    run = first / "extractor"
    facts = curate(request(tmp_path / "new", keep=str(first / "keep.csv"), source=run))
    assert facts["rounds"][0]["num_examples"] == kept.kept.sum()
    assert (read_keep_list(tmp_path / "new" / "keep.csv").kept <= kept.kept).all()


def test_a_channels_last_network_and_what_it_leaves(tmp_path: Path) -> None:
    """safetensors takes only rows in order; a crash there would cost all of the training."""
    text = (
        Path(RECIPE)
        .read_text()
        .replace(
            "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32)",
            "    first = nn.Conv2d(1, 4, 3, padding=1).to(memory_format=torch.channels_last)\n"
            "    second = nn.Conv2d(4, 4, 3, padding=1).to(memory_format=torch.channels_last)\n"
            "    return nn.Sequential(first, second, nn.Flatten(), nn.Linear(256, 32)",
        )
    )
    file = tmp_path / "mine.py"
    file.write_text(text)

    def curated(out: str, **asked: Any) -> dict[str, Any]:
        return curate(CurateRequest(recipe=str(file), out=tmp_path / out, num_workers=1,
                                    watcher=Noting, **asked))  # fmt: skip

    facts = curated("out", epochs=1)
    file.write_text(text.replace("batch_size=58", "batch_size=29"))
    for source in ("out", "out/extractor"):
        NOTES.clear()
        again = curated(f"again-{Path(source).name}", source=tmp_path / source)
        assert again["weights"] == facts["weights"]
        (said,) = [note for note in NOTES if "the network is" in note]
        assert "that recipe has changed since; all of its weights fit" in said


def test_a_foreign_network(tmp_path: Path) -> None:
    file = tmp_path / "backbone.py"
    file.write_text(
        "from torch import nn\n"
        "def extractor():\n    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten())\n"
    )
    facts = curate(request(tmp_path / "out", extractor=str(file)))
    known = load_file(tmp_path / "out" / "features.safetensors")
    assert known["features"].shape == (406, 16)
    assert "probabilities" not in known
    assert known["losses"][list(planted.WRONG)].min() > np.median(known["losses"])
    assert facts["layer"] == "model"


def test_the_report_draws_it_all_and_names_the_next_step(folder: Path, run: Run) -> None:
    code, out, _ = run("--out", str(folder))
    assert code == 0
    assert f"samepath explore {folder}" in out
    assert f"--keep {folder}/keep.csv" in out
    text = (folder / "report.html").read_text()
    assert text.count("data:image/png;base64") == 4
    assert "near-duplicate" in text
    assert "Wrong labels</h2>" in text
    noise = about(folder)["label_noise"]
    assert f"An estimated {100 * noise['rate']:.1f}% of the labels are wrong (" in text
    most = noise["confusions"][0]
    assert f"{most['low']:.0f} to {most['high']:.0f}</td>" in text
    assert (folder / "label_noise.svg").exists()
    for name in ("map", "classes", "kdistance", "dropped"):
        assert (folder / f"{name}.png").stat().st_size > 5000
    code, out, _ = run("--out", str(folder), "--json")
    assert code == 0
    assert json.loads(out) | {"command": 0} == about(folder) | {"command": 0}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (("--layer", "resnet.fc"), ("no such layer", "0, 1, 2, 3", ":input")),
        (("--eps", "wide"), ("--eps wide", "CLASS=2.5")),
        (("--eps", "bird=2"), ("no class 'bird'",)),
        (("--eps", "-1"), ("must be above 0",)),
        (("--method", "kmeans"), ("dbscan, hdbscan, grid",)),
        (("--method", "grid", "--fraction", "1.5"), ("--fraction 1.5",)),
        (("--fraction", "0.5"), ("--fraction 0.5", "add --method grid")),
        (("--min-samples", "1"), ("--min-samples 1",)),
        (("--rounds", "0"), ("--rounds 0",)),
        (("--folds", "500"), ("--folds 500", "406 examples")),
        (("--folds", "5"), ("label", "fewer")),
        (("--from", "nowhere"), ("no such run or file",)),
        (("--from", "nowhere", "--epochs", "3"), ("exclude each other",)),
        (("--extractor", "nowhere.py"), ("no such file",)),
        (("--extractor", "broken.py"), ("ZeroDivisionError", "line 2")),
        (("--from", "weights.safetensors"), ("does not fit", "Missing key", "1.bias")),
        (("--from", "other"), ("it is a run of the recipe digits", "does not fit")),
        (("--keep", "short.csv"), ("short.csv", "406")),
    ],
)
def test_bad_input_is_one_line(
    asked: tuple[str, ...], says: tuple[str, ...], run: Run, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from safetensors.numpy import save_file

    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text("def extractor():\n    return 1 / 0\n")
    Path("short.csv").write_text("index,label,x,y,cluster,kept,reason\n0,0,0.0,0.0,0,1,\n")
    save_file({"0.weight": np.zeros((2, 2))}, "weights.safetensors")
    if "other" in asked:
        with pytest.raises(SystemExit):
            main(["train", "digits", "-n", "1", "--steps", "1", "--out", "other"])
        capfd.readouterr()
    code, _, err = run("--out", "out", *asked)
    said = error_line("".join(t for t in err.splitlines(True) if t.startswith("samepath: ")))
    assert code == 2, err
    for words in says:
        assert words in said
    assert not Path("out").exists()


@pytest.mark.parametrize("asked", [{"budget": 0.1}, {"precision": 0.9}, {"folds": 5}])
def test_what_is_about_labels_needs_labels(asked: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "unlabelled.py"
    file.write_text(
        "import torch\nfrom torch import nn\nfrom samepath import Recipe\n"
        "def recipe():\n"
        "    return Recipe(model=lambda: nn.Linear(4, 4), train=torch.randn(40, 4),\n"
        "        loss=lambda model, batch: (model(batch) - batch).square().mean(),\n"
        "        optimizer=lambda p: torch.optim.SGD(p, lr=0.1), batch_size=8, epochs=1)\n"
    )
    option = f"--{next(iter(asked))}"
    with pytest.raises(ValueError, match=f"{option}.*(has no labels|has none); leave it out"):
        curate(CurateRequest(recipe=str(file), out=tmp_path / "out", num_workers=1, **asked))
    assert not (tmp_path / "out").exists()


def test_a_piped_table_does_not_wrap(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line for each class, at any width that the environment claims."""
    monkeypatch.setenv("COLUMNS", "50")
    _, out, _ = run("--out", str(folder), "--eps", "3.5")
    head, *lines = out.splitlines()[:13]
    assert head.startswith("class  examples  kept  dropped  clusters")
    assert "near-duplicate" in head
    assert [line.split()[0] for line in lines] == [*map(str, range(11)), "all"]
    assert all("3.5 (given)" in line for line in lines[:10])


def test_the_folder_of_another_is_refused(folder: Path, tmp_path: Path, run: Run) -> None:
    text = Path(RECIPE).read_text()
    (tmp_path / "other.py").write_text(text + "# another\n")
    with pytest.raises(ValueError, match="another recipe or other data"):
        curate(CurateRequest(recipe=str(tmp_path / "other.py"), out=folder))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("precious")
    assert "not empty" in run("--out", str(tmp_path / "full"))[2]
    assert "is a file" in run("--out", str(tmp_path / "full" / "thesis.txt"))[2]


def test_what_is_there_is_not_written_over(folder: Path, run: Run) -> None:
    assert "was trained for 6" in run("--out", str(folder), "--epochs", "2")[2]
    with (folder / "keep.csv").open("a") as file:
        file.write("\n")
    code, _, err = run("--out", str(folder))
    assert code == 2
    assert "has been changed" in err


def test_features_that_are_no_numbers(tmp_path: Path) -> None:
    text = Path(RECIPE).read_text()
    changed = text.replace(
        "return nn.Sequential(nn.Flatten(),", "return nn.Sequential(Broken(), nn.Flatten(),"
    ) + (
        "\n\nclass Broken(nn.Module):\n"
        "    def forward(self, images):\n"
        "        bad = (images.mean((1, 2, 3)) > images.new_tensor(0.38))[:, None, None, None]\n"
        "        return torch.where(bad, torch.nan, images) if not self.training else images\n"
    )
    assert "Broken(), " in changed
    (tmp_path / "mine.py").write_text(changed)
    with pytest.raises(ValueError, match=r"features of \d+ of 406 .*the first is example \d+"):
        curate(CurateRequest(recipe=str(tmp_path / "mine.py"), out=tmp_path / "out", epochs=1,
                             num_workers=1))  # fmt: skip
    assert not (tmp_path / "out" / "keep.csv").exists()


def test_training_margins_are_those_of_a_network_that_is_trained(first: Path) -> None:
    """Lower where the label is wrong; in keep.csv, and the same when nothing is trained again."""
    margins = read_keep_list(first / "keep.csv").training_margin
    assert margins is not None
    assert np.isfinite(margins).all()
    assert margins[list(planted.WRONG)].max() < np.median(margins)


def test_folds_note_training_margins_too(tmp_path: Path) -> None:
    asked = request(tmp_path, folds=2, epochs=1)
    found = train_folds(asked, subject_of(find_recipe(RECIPE)), NoteMargins(head="3"))
    assert found.training_margins is not None
    assert np.isfinite(found.training_margins).all()
