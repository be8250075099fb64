"""Recipes that init writes: each kind is trained at 1 and 2 workers to one digest."""

from __future__ import annotations

import csv
import json
import locale
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from samepath.cli import main
from samepath.engine.train import Request, train
from samepath.errors import UserError
from samepath.init.init import KINDS, guess_kind, write_recipe
from samepath.init.script import recipe_of_script
from samepath.recipe import find_recipe

RANDOM = np.random.default_rng(0)
SHRUNK = {"SIDE = 64": "SIDE = 16", "SIDE = 32": "SIDE = 8"}
"""As a person would, for a quick try."""


def images(folder: Path) -> str:
    for name in ("cat", "dog", "owl"):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(6):
            pixels = RANDOM.integers(0, 256, (20, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / name / f"{number}.png")
    return str(folder / "photos")


def images_in_two_parts(folder: Path) -> str:
    whole = Path(images(folder))
    for part in ("train", "val"):
        for name in ("cat", "dog"):
            (whole / part / name).mkdir(parents=True)
            Image.new("L", (9, 9), 7).save(whole / part / name / "1.png")
            Image.new("L", (9, 9), 90).save(whole / part / name / "2.png")
    return str(whole)


def table(folder: Path, target: Callable[[int], object]) -> str:
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "name", "size", "outcome"])
        for row in range(60):
            size = "" if row % 10 == 3 else f"{RANDOM.normal():.3f}"
            writer.writerow([row % 50, f"patient {row}", size, target(row)])
    return str(folder / "table.csv")


def arrays(folder: Path, **more: np.ndarray) -> str:
    more["images"] = RANDOM.random((50, 6, 6), dtype=np.float32)
    np.savez(folder / "data.npz", **more)  # type: ignore[arg-type]
    return str(folder / "data.npz")


def inputs_alone(folder: Path) -> str:
    np.save(folder / "data.npy", RANDOM.random((50, 7)))
    return str(folder / "data.npy")


def nifti(path: Path, mask: bool = False) -> None:
    sitk = pytest.importorskip("SimpleITK")
    path.parent.mkdir(parents=True, exist_ok=True)
    volume = RANDOM.normal(0, 300, (10, 9, 8)).astype(np.float32)
    sitk.WriteImage(sitk.GetImageFromArray((volume > 0).astype(np.uint8) if mask else volume), path)


def volumes(folder: Path) -> str:
    for name in ("benign", "malignant"):
        for number in range(6):
            nifti(folder / "scans" / name / f"{number}.nii.gz")
    return str(folder / "scans")


def dicom(folder: Path) -> str:
    sitk = pytest.importorskip("SimpleITK")
    before = locale.setlocale(locale.LC_ALL)
    for name in ("benign", "malignant"):
        for number in range(4):
            series = folder / "scans" / name / f"scan{number}"
            series.mkdir(parents=True)
            for place in range(3):
                slice_ = RANDOM.integers(-900, 300, (1, 8, 8)).astype(np.int16)
                image = sitk.GetImageFromArray(slice_)
                image.SetMetaData("0020|000e", f"1.2.3.{len(name)}.{number}")
                image.SetMetaData("0020|0032", f"0\\0\\{place}")
                image.SetMetaData("0020|0013", str(place))
                writer = sitk.ImageFileWriter()
                writer.KeepOriginalImageUIDOn()
                writer.SetFileName(str(series / f"{place}.dcm"))
                writer.Execute(image)
    locale.setlocale(locale.LC_ALL, before)  # ITK leaves "C", in which UTF-8 cannot be read
    return str(folder / "scans")


def masks(folder: Path) -> str:
    for number in range(6):
        nifti(folder / "scans" / "images" / f"{number}.nii.gz")
        nifti(folder / "scans" / "labels" / f"{number}.nii.gz", mask=True)
    return str(folder / "scans")


def monai(folder: Path) -> str:
    pytest.importorskip("monai")
    pytest.importorskip("nibabel", reason="MONAI reads NIfTI with it")
    masks(folder)
    items = [
        {"image": f"scans/images/{n}.nii.gz", "label": f"scans/labels/{n}.nii.gz"} for n in range(6)
    ]
    (folder / "dataset.json").write_text(json.dumps({"training": items}))
    return str(folder / "dataset.json")


def bundle(folder: Path) -> str:
    """Its config has its data: two dimensions, made by an expression."""
    pytest.importorskip("monai")
    (folder / "lungs" / "configs").mkdir(parents=True)
    images = "$[{'image': torch.rand(1, 16, 16), 'label': torch.ones(1, 16, 16)} for _ in range(8)]"
    config = {
        "imports": ["$import torch"],
        "network_def": {
            "_target_": "UNet",
            "spatial_dims": 2,
            "in_channels": 1,
            "out_channels": 1,
            "channels": [4, 8],
            "strides": [2],
        },
        "network": "@network_def",
        "loss": {"_target_": "monai.losses.DiceLoss", "sigmoid": True},
        "optimizer": {"_target_": "torch.optim.Adam", "params": "$@network.parameters()"},
        "train": {
            "dataset": {"_target_": "Dataset", "data": images},
            "dataloader": {
                "_target_": "DataLoader",
                "dataset": "@train#dataset",
                "batch_size": 4,
                "shuffle": True,
            },
            "trainer": {
                "_target_": "SupervisedTrainer",
                "max_epochs": 1,
                "network": "@network",
                "loss_function": "@loss",
                "optimizer": "@optimizer",
            },
        },
    }
    (folder / "lungs" / "configs" / "train.json").write_text(json.dumps(config))
    return str(folder / "lungs")


def bundle_config(folder: Path) -> str:
    """The same in YAML."""
    config = Path(bundle(folder)) / "configs" / "train.json"
    other = config.with_suffix(".yaml")
    other.write_text(yaml.safe_dump(json.loads(config.read_text())))
    config.unlink()
    return str(other)


def script(folder: Path) -> str:
    path = Path(__file__).parent / "plain_script.txt"
    (folder / "plain_script.py").write_text(path.read_text())
    return str(folder / "plain_script.py")


CASES: dict[str, tuple[str, Callable[[Path], str]]] = {
    "images": ("images", images),
    "images in two parts": ("images", images_in_two_parts),
    "csv of classes": ("csv", lambda folder: table(folder, lambda row: ("ill", "well")[row % 2])),
    "csv of numbers": ("csv", lambda folder: table(folder, lambda row: row / 7)),
    "numpy of classes": ("numpy", lambda folder: arrays(folder, labels=np.arange(50) % 3)),
    "numpy of numbers": ("numpy", lambda folder: arrays(folder, y=RANDOM.random((50, 2)))),
    "numpy alone": ("numpy", inputs_alone),
    "volumes": ("volumes", volumes),
    "dicom": ("volumes", dicom),
    "masks": ("volumes", masks),
    "monai": ("monai", monai),
    "monai bundle": ("monai", bundle),
    "monai bundle's config": ("monai", bundle_config),
    "script": ("script", script),
}


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("name", CASES)
def test_what_is_written_trains_to_one_digest(name: str, tmp_path: Path) -> None:
    kind, make = CASES[name]
    data, out = make(tmp_path), tmp_path / "written.py"
    written = write_recipe(data, out)
    assert (written.kind, written.out) == (kind, out)
    text = out.read_text()
    assert "@" not in text.replace("@staticmethod", ""), "every word is filled in"
    for before, after in SHRUNK.items():
        text = text.replace(before, after)
    out.write_text(text)
    results = [
        train(Request(recipe=str(out), num_workers=n, epochs=1, steps=3, out=tmp_path / f"{n}"))[0]
        for n in (1, 2)
    ]
    assert [result.num_workers for result in results] == [1, 2]
    assert results[0].digest == results[1].digest
    assert results[0].steps >= 1


@pytest.mark.usefixtures("forked")
def test_a_hugging_face_data_set(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    transformers = pytest.importorskip("transformers")
    words = [f"word{n}" for n in range(20)]
    texts = [" ".join(RANDOM.choice(words, 5)) for _ in range(40)]
    made = datasets.Dataset.from_dict({"text": texts, "label": [n % 2 for n in range(40)]})
    made.save_to_disk(str(tmp_path / "texts"))
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words]))
    transformers.BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "bert")
    config = transformers.BertConfig(
        vocab_size=24, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=16,
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    out = tmp_path / "written.py"
    assert write_recipe(str(tmp_path / "texts"), out).kind == "huggingface"
    text = out.read_text().replace('"distilbert-base-uncased"', repr(str(tmp_path / "bert")))
    out.write_text(text.replace("MOST_WORDS = 128", "MOST_WORDS = 12"))
    digests = {
        train(Request(recipe=str(out), num_workers=n, steps=2, out=tmp_path / f"{n}"))[0].digest
        for n in (1, 2)
    }
    assert len(digests) == 1


def test_the_command_prints_three_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table(tmp_path, lambda row: row % 2)
    with pytest.raises(SystemExit) as ended:
        main(["init", "table.csv", "--target", "outcome"])
    out = capfd.readouterr().out
    assert ended.value.code == 0
    assert out.splitlines()[-3:] == [
        f"  samepath {words}"
        for words in ("train my_recipe.py", "verify my_recipe.py -n 1,2,3", "advise my_recipe.py")
    ]
    assert "2 classes" in out
    assert "look at: columns that are not used, because they hold text: name" in out


def test_it_asks_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from samepath.cli.init import init

    monkeypatch.chdir(tmp_path)
    table(tmp_path, lambda row: row % 2)
    runner = CliRunner()
    monkeypatch.setattr("samepath.cli.init.is_interactive", lambda: True)
    result = runner.invoke(init, [], input="2\ntable.csv\nmine.py\n")
    assert result.exit_code == 0, result.output
    assert all(name in result.output for name in KINDS)
    assert (tmp_path / "mine.py").is_file()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "samepath init PATH"),
        (["nothing"], "no such file"),
        (["empty"], "add --kind"),
        (["empty", "--kind", "images"], "0 folders"),
        (["table.csv", "--target", "height"], "age, name, size, outcome"),
        (["table.csv", "--out", "mine.py"], "is there already"),
        (["table.csv", "--out", "mine.txt"], "ends in .py"),
        (["broken.py"], "cannot be read as Python"),
        (["broken.json"], "no data list"),
        (["broken.npz"], "cannot be read as a NumPy file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    table(tmp_path, lambda row: row % 2)
    for name in ("broken.py", "broken.json", "broken.npz"):
        Path(name).write_text("{ this is (")
    Path("mine.py").write_text("mine")
    Path("empty").mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(SystemExit) as ended:
        main(["init", *arguments])
    err = capfd.readouterr().err
    assert ended.value.code == 2, err
    assert says in err
    assert err.count("\n") == 1, err
    assert sorted(tmp_path.iterdir()) == before
    assert Path("mine.py").read_text() == "mine"


def test_kinds_are_seen(tmp_path: Path) -> None:
    assert guess_kind(images(tmp_path)) == "images"
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "dataset_dict.json").write_text("{}")
    assert guess_kind(str(tmp_path / "set")) == "huggingface"
    with pytest.raises(UserError, match="no such file"):
        guess_kind(str(tmp_path / "gone"))


def test_a_script_is_not_run_and_its_numbers_are_kept(tmp_path: Path) -> None:
    """The recipe's path is the script's: the same data, start, loss and updates."""
    source = Path(script(tmp_path))
    source.write_text("open('ran', 'w').close()\n" + source.read_text())
    text = (tmp_path / "r.py", write_recipe(str(source), tmp_path / "r.py"))[0].read_text()
    assert not Path("ran").exists()
    assert "DDP(" not in text
    assert ".to(device)" not in text
    for line in (
        "args = argparse.Namespace(lr=0.01, batch_size=16, epochs=2, quick=False)",
        "torch.manual_seed(0)",
        "optimizer=lambda parameters: torch.optim.Adam(parameters, lr=args.lr)",
        "schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)",
        "clip_norm=1.0",
        "drop_last=True",
        "valid=val_set",
        "return loss",
        "# what the layers are",
        "\nCLASSES = 3\n",
    ):
        assert line in text, line


def test_a_function_that_reads_the_command_line(tmp_path: Path) -> None:
    source = tmp_path / "own.py"
    source.write_text(
        "import argparse, torch\n"
        "from torch.utils.data import DataLoader\n"
        "def options():\n"
        "    parser = argparse.ArgumentParser()\n"
        "    parser.add_argument('-n', '--rows', default=40)\n"
        "    return parser.parse_args()\n"
        "args = options()\n"
        "net = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(net.parameters(), 0.1)\n"
        "loader = DataLoader(torch.rand(args.rows, 2), batch_size=4)\n"
        "for epoch in range(3):\n"
        "    for x in loader:\n"
        "        net(x).mean().backward()\n"
        "        optimizer.step()\n"
    )
    out = tmp_path / "r.py"
    write_recipe(str(source), out)
    recipe = find_recipe(str(out))
    assert (recipe.epochs, recipe.batch_size, len(recipe.train)) == (3, 4, 40)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("loss.backward()", "pass", "no loop with loss.backward()"),
        ("torch.optim.Adam(model.parameters()", "make(model", "no optimizer"),
        ("DataLoader(train_set, ", "Loader(train_set, ", "no DataLoader"),
        ("range(args.epochs)", "epochs()", "no loop over epochs"),
        ("shuffle=True", "sampler=rare", "sampler=rare is left out"),
        ("optimizer.step()", "if i % 4 == 0: optimizer.step()", "gradient accumulation"),
    ],
    ids=["loss", "optimizer", "data", "epochs", "sampler", "accumulation"],
)
def test_what_is_not_found_in_a_script_is_said(
    before: str, after: str, says: str, tmp_path: Path
) -> None:
    source = Path(script(tmp_path))
    assert before in source.read_text()
    source.write_text(source.read_text().replace(before, after))
    written = write_recipe(str(source), tmp_path / "r.py")
    assert any(says in words for words in written.look), written.look
    compile((tmp_path / "r.py").read_text(), "r.py", "exec")


def test_an_argument_is_no_global_variable(tmp_path: Path) -> None:
    """`x`, drawn after the script's seed, is not moved above it for a forward(self, x)."""
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nfrom torch import nn\nSIZE = 3\n"
        "torch.manual_seed(3)\nx = torch.randn(20, SIZE)\n"
        "class Net(nn.Linear):\n"
        "    def __init__(self):\n        super().__init__(SIZE, 1)\n"
        "    def forward(self, x):\n        return super().forward(x)\n"
        "model = Net()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for epoch in range(2):\n"
        "    loss = model(x).square().mean()\n    loss.backward()\n    optimizer.step()\n"
    )
    text, _ = recipe_of_script(script)
    assert "\nSIZE = 3" in text  # read by the class
    assert "\nx = " not in text
