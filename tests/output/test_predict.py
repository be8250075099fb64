"""Predictions: a plain PyTorch loop's, in order, the same bytes at every worker count."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import error_line
from torch import nn

from samepath.cli import main
from samepath.engine.state.reopen import reopen
from samepath.engine.train import Request, train
from samepath.errors import UserError
from samepath.output.predict import predict, predict_to
from samepath.threads import limited_threads

TINY = Path(__file__).parents[1] / "parity" / "tiny_recipe.py"
ANY_MODEL = """
import torch
from torch import nn
from samepath import Recipe

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(()))
    def forward(self, x, scale=1.0):
        self.seen += len(x)  # which must not reach the next grain's answer
        return {ANSWER}

def loss(model, batch):
    {LOSS}

def recipe():
    torch.manual_seed(0)
    x = torch.randn(20, 4)
    return Recipe(model=Net, train={DATA}, loss=loss, batch_size=8, grain_size=2, epochs=1,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.01){MORE})
"""


def trained(tmp_path: Path, recipe: Path = TINY, **more: Any) -> Path:
    return train(Request(recipe=str(recipe), num_workers=1, out=tmp_path / "run", **more))[1]


def written(
    tmp_path: Path,
    answer: str = "self.inner(x) + self.seen",
    loss: str = "return model(batch[0]).mean()",
    data: str = "(x, x.sum(1))",
    more: str = "",
) -> Path:
    """A run of one step of a recipe with such parts."""
    text = ANY_MODEL.replace("{ANSWER}", answer).replace("{LOSS}", loss)
    file = tmp_path / "any.py"
    file.write_text(text.replace("{DATA}", data).replace("{MORE}", more))
    return trained(tmp_path, file, steps=1)


def test_a_plain_loop_says_the_same(tmp_path: Path) -> None:
    run = reopen(trained(tmp_path))
    model, _ = run.model()
    inputs, _ = run.recipe.valid  # type: ignore[misc]
    with torch.no_grad(), limited_threads(1):  # as the run's
        plain = torch.cat([model(inputs[row : row + 2]) for row in range(0, len(inputs), 2)])
    found = predict(run.folder.path, num_workers=1)
    assert found.keys() == {"output"}
    assert torch.equal(torch.from_numpy(found["output"]), plain)


def test_same_bytes_at_every_worker_count(tmp_path: Path) -> None:
    run = trained(tmp_path)
    inputs = np.random.default_rng(0).normal(size=(37, 8)).astype(np.float32)
    np.save(tmp_path / "new.npy", inputs)
    made = [
        predict_to(tmp_path / f"{n}.npz", run, tmp_path / "new.npy", num_workers=n)
        for n in (1, 2, 3)
    ]
    assert [each.num_workers for each in made] == [1, 2, 3]
    assert made[0].shapes == {"output": (37, 4)}
    assert len({(tmp_path / f"{n}.npz").read_bytes() for n in (1, 2, 3)}) == 1
    model = reopen(run).model()[0]
    with torch.no_grad():
        expected = model(torch.from_numpy(inputs))
    found = np.load(tmp_path / "1.npz")["output"]
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)


def test_a_csv_file_has_the_same_bits(tmp_path: Path) -> None:
    run = trained(tmp_path)
    predict_to(tmp_path / "train.csv", run, "train", num_workers=1)
    with (tmp_path / "train.csv").open() as file:
        head, *rows = list(csv.reader(file))
    assert head == ["example", *(f"output_{n}" for n in range(4))]
    assert [int(row[0]) for row in rows] == list(range(44))
    read = np.array([row[1:] for row in rows], dtype=np.float32)
    assert np.array_equal(read, predict(run, "train", num_workers=1)["output"])


def test_each_grain_meets_the_model_as_training_left_it(tmp_path: Path) -> None:
    run = written(tmp_path)
    model = reopen(run).model()[0]
    weights, before = model.inner, float(model.seen)  # type: ignore[arg-type]
    assert isinstance(weights, nn.Linear)
    inputs = reopen(run).recipe.train[0]  # type: ignore[index]
    with torch.no_grad(), limited_threads(1):  # as the run's
        expected = torch.cat([weights(inputs[row : row + 2]) for row in range(0, 20, 2)])
    found = predict(run, "train", num_workers=1)["output"]
    assert np.array_equal(found, (expected + (before + 2)).numpy())


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ({"answer": "(self.inner(x), x.mean())"}, {"output_0"}),
        ({"answer": "(self.inner(x), x)"}, {"output_0", "output_1"}),
    ],
    ids=["a number beside it", "two"],
)
def test_several_answers(parts: dict[str, str], names: set[str], tmp_path: Path) -> None:
    run = written(tmp_path, loss="return model(batch[0])[0].mean()", **parts)
    assert predict(run, "train", num_workers=1).keys() == names


def test_named_parts_of_a_batch(tmp_path: Path) -> None:
    """A dict batch, a model called by names, inputs by the same names from a file."""
    data = "[{'x': row, 'y': row.sum()} for row in x]"
    run = written(
        tmp_path,
        data=data,
        answer="{'logits': self.inner(x), 'loss': x.sum()}",
        loss="return (model(x=batch['x'], scale=2.0)['logits'].sum(1) - batch['y']).mean()",
    )
    inputs = np.stack([row["x"].numpy() for row in reopen(run).recipe.train])  # type: ignore[union-attr]
    np.savez(tmp_path / "some.npz", x=inputs[:5].astype(np.float64))
    own = predict(run, "train", num_workers=1)
    assert own.keys() == {"logits"}
    found = predict(run, tmp_path / "some.npz", num_workers=1)["logits"]
    assert np.array_equal(found[:4], own["logits"][:4]), "floats are cast to the training data's"


def test_predict_of_the_recipe(tmp_path: Path) -> None:
    run = written(
        tmp_path,
        loss="return model(2.0 * batch[0]).mean()",
        more=", predict=lambda model, batch: {'three': 3.0 * batch[0]}",
    )
    inputs = reopen(run).recipe.train[0]  # type: ignore[index]
    found = predict(run, "train", num_workers=1)
    assert np.array_equal(found["three"], (3.0 * inputs).numpy())


def test_forward_answers_where_the_loss_calls_parts_of_the_model(tmp_path: Path) -> None:
    run = written(
        tmp_path, answer="2.0 * self.inner(x)", loss="return model.inner(batch[0]).mean()"
    )
    opened = reopen(run)
    model, inputs = opened.model()[0], opened.recipe.train[0]  # type: ignore[index]
    with torch.no_grad(), limited_threads(1):
        expected = torch.cat([model(inputs[row : row + 2]) for row in range(0, len(inputs), 2)])
    assert np.array_equal(predict(run, "train", num_workers=1)["output"], expected.numpy())


def test_another_recipe_files_data(tmp_path: Path) -> None:
    run = trained(tmp_path)
    other = tmp_path / "other.py"
    other.write_text(
        TINY.read_text().replace("inputs[44:]", "inputs[50:]").replace("labels[44:]", "labels[50:]")
    )
    found = predict(run, f"{other}:valid", num_workers=1)["output"]
    assert len(found) == 10
    assert np.array_equal(found, predict(run, num_workers=1)["output"][6:])


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"loss": "return model(2.0 * batch[0]).mean()"}, "makes of a batch.*add predict="),
        ({"loss": "return (model(batch[0]) + model(batch[0])).mean()"}, "2 times"),
        (
            {"loss": "return model.inner(batch['x']).mean()", "data": "[{'x': row} for row in x]"},
            "never calls",
        ),
        (
            {"loss": "return model.inner(batch[0]).mean()", "answer": "x @ torch.ones(9)"},
            "never calls.*forward.. does not take the first part of a batch",
        ),
        ({"answer": "self.inner(x).mean(0)"}, "one row per example"),
        ({"answer": "self.inner(x).mean()"}, "without a tensor"),
    ],
    ids=["changed inputs", "two calls", "no call", "no forward", "no rows", "a number"],
)
def test_what_cannot_be_known_is_refused(parts: dict[str, str], says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says):
        predict(written(tmp_path, **parts), "train", num_workers=1)


def _save(array: Any) -> Callable[[Path], str]:
    def save(folder: Path) -> str:
        np.save(folder / "new.npy", array)
        return str(folder / "new.npy")

    return save


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (lambda folder: "none.npy", "no such file"),
        (lambda folder: "test", "give train or valid"),
        (lambda folder: "valid", "has no valid data"),
        (_save(np.zeros((3, 4), np.uint8)), "torch.uint8 where"),
        (_save(np.zeros((0, 4), np.float32)), "no examples"),
    ],
    ids=["no file", "no kind", "no set", "type", "empty"],
)
def test_bad_data_is_one_line(
    data: Callable[[Path], str], says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, out = written(tmp_path), tmp_path / "p.npz"
    with pytest.raises(SystemExit) as ended:
        main(["predict", str(run), "--data", data(tmp_path), "--out", str(out), "-n", "1"])
    assert ended.value.code == 2
    assert says in error_line(capfd.readouterr().err)
    assert not out.exists()


def test_no_file_is_written_over(tmp_path: Path) -> None:
    run, out = written(tmp_path), tmp_path / "p.npz"
    out.write_text("mine")
    with pytest.raises(UserError, match="is there already"):
        predict_to(out, run, "train", num_workers=1)
    assert out.read_text() == "mine"
