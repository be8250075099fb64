"""Exported models: loaded without samepath, they are the run's model."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import pytest
import torch
from commands import error_line
from safetensors.torch import load_file
from torch import nn

from samepath.cli import main
from samepath.engine.state.reopen import ReopenedRun, reopen
from samepath.engine.train import Request, train
from samepath.errors import UserError
from samepath.output.export import clean_keys, export
from samepath.output.predict import predict
from samepath.threads import limited_threads

TINY = Path(__file__).parents[1] / "parity" / "tiny_recipe.py"
COMPILED = """
_tiny_model = model

def model():
    return torch.compile(_tiny_model(), backend="eager")
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ReopenedRun:
    folder = tmp_path_factory.mktemp("exported")
    recipe = folder / "tiny.py"
    recipe.write_text(TINY.read_text().replace("epochs=2", "epochs=2, keep_weights=(1,)"))
    return reopen(train(Request(recipe=str(recipe), num_workers=1, out=folder / "run"))[1])


def plain_model() -> nn.Module:
    """What a person without samepath has: the model's class."""
    return nn.Sequential(
        nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 4)
    ).eval()


@pytest.mark.parametrize("name", ["weights.safetensors", "state_dict.pt"])
def test_weights_load_into_the_plain_model(run: ReopenedRun, name: str, tmp_path: Path) -> None:
    made = export(run.folder.path, tmp_path / name)
    file = tmp_path / name
    tensors = load_file(file) if file.suffix == ".safetensors" else torch.load(file)
    model = plain_model()
    model.load_state_dict(tensors)
    expected = run.model()[0].state_dict()
    assert all(torch.equal(model.state_dict()[n], tensor) for n, tensor in expected.items())
    assert made.digest == run.record["result"]["digest"]


def test_best_and_an_epoch(run: ReopenedRun, tmp_path: Path) -> None:
    first = export(run.folder.path, tmp_path / "first.pt", epoch=1)
    best = export(run.folder.path, tmp_path / "best.pt", epoch="best")
    last = export(run.folder.path, tmp_path / "last.pt")
    assert first.weights_digest != last.weights_digest
    losses = run.losses_by_epoch()
    expected = first if losses[1] < losses[2] else last
    assert best.weights_digest == expected.weights_digest
    card = json.loads((tmp_path / "first.pt.card.json").read_text())
    assert (card["epochs"], card["steps"], card["metrics"]["valid_loss"]) == (1, 5, losses[1])
    with pytest.raises(UserError, match="--epoch 7"):
        export(run.folder.path, tmp_path / "seventh.pt", epoch=7)
    assert not list(tmp_path.glob("seventh*"))


def test_weights_in_another_memory_order(tmp_path: Path) -> None:
    """A model in channels_last: its weights are kept, exported and predicted with."""
    recipe = tmp_path / "last.py"
    text = (
        TINY.read_text()
        .replace("nn.Linear(8, 12),", "*first(),")
        .replace("epochs=2", "epochs=1, keep_weights=(1,)")
    )
    recipe.write_text(
        text + "\n\ndef first():\n"
        "    image, rows = nn.Unflatten(1, (2, 2, 2)), nn.Flatten()\n"
        "    layer = nn.Conv2d(2, 3, 2, padding=1).to(memory_format=torch.channels_last)\n"
        "    return image, layer, nn.AdaptiveAvgPool2d(2), rows\n"
    )
    folder = train(Request(recipe=str(recipe), num_workers=1, out=tmp_path / "run"))[1]
    kept = export(folder, tmp_path / "w.safetensors", epoch=1)
    assert kept.weights_digest == export(folder, tmp_path / "w.pt").weights_digest
    weight = reopen(folder).model()[0].state_dict()["1.weight"]
    assert not weight.is_contiguous()
    assert torch.equal(load_file(tmp_path / "w.safetensors")["1.weight"], weight)
    assert len(predict(folder, num_workers=1)["output"]) == 16


def test_averaged_weights(tmp_path: Path) -> None:
    """They load into the plain model, without n_averaged and module., and predict uses them."""
    recipe = Path(__file__).parents[2] / "examples" / "bring" / "ema.py"
    folder = train(Request(recipe=str(recipe), num_workers=1, epochs=1, out=tmp_path / "run"))[1]
    averaged = export(folder, tmp_path / "ema.safetensors", extra="ema")
    last = export(folder, tmp_path / "last.safetensors")
    assert averaged.weights_digest != last.weights_digest
    assert json.loads((tmp_path / "ema.safetensors.card.json").read_text())["weights"] == "ema"
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    model.load_state_dict(load_file(tmp_path / "ema.safetensors"))
    inputs = reopen(folder).recipe.valid[0]  # type: ignore[index]
    with torch.no_grad(), limited_threads(1):  # as the run's
        expected = torch.cat([model(inputs[row : row + 10]) for row in range(0, len(inputs), 10)])
    found = predict(folder, extra="ema", num_workers=1)["output"]
    assert torch.equal(torch.from_numpy(found), expected)
    with pytest.raises(UserError, match="extra state is ema; choose"):
        export(folder, tmp_path / "no.pt", extra="swa")
    with pytest.raises(UserError, match="leave --epoch out"):
        export(folder, tmp_path / "no.pt", extra="ema", epoch="best")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("model.onnx", None), ("model.pt", "torchscript"), ("model.ts", None)],
    ids=["onnx", "script", "script by its ending"],
)
def test_programs_say_what_the_model_says(
    run: ReopenedRun, name: str, kind: str | None, tmp_path: Path
) -> None:
    file, inputs = tmp_path / name, torch.randn(7, 8, generator=torch.Generator().manual_seed(0))
    if name == "model.onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
    made = export(run.folder.path, file, format=kind)  # type: ignore[arg-type]
    assert made.largest_difference is not None
    assert made.largest_difference < 1e-6
    if name == "model.onnx":
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        (found,) = session.run(None, {session.get_inputs()[0].name: inputs.numpy()})
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch would rather have us export
            found = torch.jit.load(str(file))(inputs).detach().numpy()
    with torch.no_grad():
        expected = run.model()[0](inputs)
    torch.testing.assert_close(torch.from_numpy(found), expected)


def test_the_card_says_how_it_was_trained(run: ReopenedRun, tmp_path: Path) -> None:
    made = export(run.folder.path, tmp_path / "w.safetensors")
    card = json.loads((tmp_path / "w.safetensors.card.json").read_text())
    assert card["digest"] == run.record["result"]["digest"]
    assert card["data"]["examples"] == {"training": 44, "validation": 16}
    assert card["metrics"].keys() == {"train_loss", "valid_loss", "valid_accuracy"}
    assert (card["epochs"], card["steps"], card["recipe"]) == (2, 10, "tiny.py")
    assert card["model"] == {"class": "Sequential", "tensors": 9, "numbers": 209}
    page = made.card.read_text()
    assert card["digest"] in page
    assert str(tmp_path) not in page + json.dumps(card), "paths of this machine stay here"


def test_the_card_says_what_was_best(tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.py"
    recipe.write_text(TINY.read_text().replace("epochs=2", "epochs=2, monitor='accuracy:max'"))
    request = Request(recipe=str(recipe), num_workers=1, out=tmp_path / "run", keep_best=True)
    made = export(train(request)[1], tmp_path / "w.safetensors", epoch="best")
    assert "those with the highest validation accuracy" in made.card.read_text()


def test_equal_runs_are_equal_files(run: ReopenedRun, tmp_path: Path) -> None:
    other = tmp_path / "again"
    recipe = run.config["recipe"]
    train(Request(recipe=recipe, num_workers=2, out=other))
    for name in ("a.safetensors", "a.pt"):
        (tmp_path / "one").mkdir(exist_ok=True)
        one = export(run.folder.path, tmp_path / "one" / name)
        two = export(other, tmp_path / name)
        assert one.sha256 == two.sha256


def test_keys_are_the_plain_models(tmp_path: Path) -> None:
    x = torch.zeros(1)
    assert clean_keys({"a._orig_mod.b": x, "_orig_mod.c": x}).keys() == {"a.b", "c"}
    assert clean_keys({"module.a": x, "module.b": x}).keys() == {"a", "b"}
    assert clean_keys({"module.a": x, "b": x}).keys() == {"module.a", "b"}
    with pytest.raises(UserError, match="two tensors"):
        clean_keys({"a": x, "_orig_mod.a": x})
    recipe = tmp_path / "compiled.py"
    recipe.write_text(TINY.read_text() + COMPILED)
    folder = train(Request(recipe=str(recipe), num_workers=1, steps=1, out=tmp_path / "run"))[1]
    export(folder, tmp_path / "w.safetensors")
    assert load_file(tmp_path / "w.safetensors").keys() == plain_model().state_dict().keys()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--to", "w.bin"], "what kind of file"),
        (["--to", "w.onnx", "--format", "safetensors"], "ends in .safetensors"),
        (["--to", "no/w.pt"], "there is no folder"),
        (["--to", "mine.pt"], "is there already"),
    ],
    ids=["ending", "format", "folder", "there"],
)
def test_bad_names_are_one_line(
    run: ReopenedRun,
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.pt").write_text("mine")
    with pytest.raises(SystemExit) as ended:
        main(["export", str(run.folder.path.resolve()), *arguments])
    assert ended.value.code == 2
    assert says in error_line(capfd.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.pt"]


def test_without_the_extra_it_is_one_line(
    run: ReopenedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"needs onnxscript.*samepath\[onnx\]"):
        export(run.folder.path, tmp_path / "model.onnx")


def test_a_program_that_says_something_else_is_refused(tmp_path: Path) -> None:
    """TorchScript's tracing takes the way that its example took; other examples take another."""
    recipe = tmp_path / "odd.py"
    recipe.write_text(
        TINY.read_text().replace("return nn.Sequential(", "return Odd(")
        + "\nclass Odd(nn.Sequential):\n    def forward(self, x):\n"
        "        return super().forward(x) * (100.0 if len(x) == 3 else 1.0)\n"
    )
    folder = train(Request(recipe=str(recipe), num_workers=1, steps=1, out=tmp_path / "run"))[1]
    with pytest.raises(UserError, match=r"it is not the same model; export its weights"):
        export(folder, tmp_path / "model.pt", format="torchscript")
    assert not list(tmp_path.glob("model*"))


def test_a_model_that_cannot_be_exported_leaves_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    recipe = tmp_path / "odd.py"
    recipe.write_text(
        TINY.read_text().replace("return nn.Sequential(", "return Odd(")
        + "\nclass Odd(nn.Sequential):\n    def forward(self, x):\n"
        "        return super().forward(x) * (1.0 if x.sum() < 1e9 else 2.0)\n"
    )
    folder = train(Request(recipe=str(recipe), num_workers=1, steps=1, out=tmp_path / "run"))[1]
    with pytest.raises(UserError, match=r"cannot be exported as onnx.*weights instead"):
        export(folder, tmp_path / "model.onnx")
    assert not list(tmp_path.glob("model*"))
    assert capfd.readouterr() == ("", ""), "no pages of graphs"
