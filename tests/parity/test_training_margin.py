"""Margins of a training: the same bits at any worker count, and training itself unchanged."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from samepath.curation.training_margin import (
    FOLDER,
    NoteMargins,
    label_margins,
    training_margins,
    why_not,
)
from samepath.data import Draws
from samepath.engine.train import Request, train
from samepath.recipe import Recipe, find_recipe

TINY = str(Path(__file__).with_name("tiny_recipe.py"))
EVERY = np.arange(44)


def margins_of(run: Path) -> bytes:
    found = training_margins([(run, EVERY)], 44)
    assert found is not None
    assert np.isfinite(found).all()
    return found.tobytes()


def test_the_same_bits_at_every_worker_count_and_when_resumed(
    tmp_path: Path, fork_server: None
) -> None:
    listen = NoteMargins(head="4")
    plain, _ = train(Request(recipe=TINY, num_workers=1, out=tmp_path / "plain"))
    assert not (tmp_path / "plain" / FOLDER).exists()
    margins = set()
    for workers in (1, 2, 3):
        out = tmp_path / str(workers)
        result, _ = train(Request(recipe=TINY, num_workers=workers, out=out, listen=listen))
        assert result.digest == plain.digest
        assert len(list((out / FOLDER).iterdir())) == workers
        margins.add(margins_of(out))
    out = tmp_path / "resumed"
    train(Request(recipe=TINY, num_workers=1, epochs=1, out=out, listen=listen))
    assert margins_of(out) not in margins, "one epoch has other margins than two"
    result, _ = train(
        Request(recipe=TINY, num_workers=2, epochs=2, out=out, resume=True, listen=listen)
    )
    assert result.digest == plain.digest
    assert {margins_of(out)} == margins


def standing(recipe: Recipe) -> Recipe:
    """The recipe without whatever makes two passes over an example differ."""
    return replace(
        recipe,
        model=lambda: torch.nn.Linear(8, 4),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
        schedule=None,
        augment=None,
    )


def test_they_are_those_of_plain_pytorch_by_example(tmp_path: Path) -> None:
    """A head that is the whole model; weights that do not move."""
    recipe = standing(find_recipe(TINY))
    inputs, labels = recipe.train  # type: ignore[misc]
    listen, made = NoteMargins(head="model"), []

    def kept(found: Recipe) -> Recipe:
        given = standing(found)

        def model() -> torch.nn.Module:
            made.append(given.model())
            return made[-1]

        return replace(given, model=model)

    train(Request(recipe=TINY, num_workers=1, out=tmp_path / "run", instead=kept, listen=listen))
    with torch.no_grad():
        logits = made[-1](inputs).numpy()
    own = logits[EVERY, labels.numpy()]
    logits[EVERY, labels.numpy()] = -np.inf
    found = np.frombuffer(margins_of(tmp_path / "run"), np.float32)
    assert np.allclose(found, own - logits.max(1), atol=1e-5)


def test_steps_taken_again_count_once_and_torn_notes_do_not(tmp_path: Path) -> None:
    listen = NoteMargins(head="4")
    train(Request(recipe=TINY, num_workers=1, out=tmp_path / "run", listen=listen))
    before = margins_of(tmp_path / "run")
    (file,) = (tmp_path / "run" / FOLDER).iterdir()
    torn = file.read_bytes()[: 16 * 30 + 5]
    file.with_name("again.bin").write_bytes(torn)
    assert margins_of(tmp_path / "run") == before
    found = training_margins([(tmp_path / "run", EVERY + 2)], 50)
    assert found is not None
    assert found[2:46].tobytes() == before
    assert np.isnan(found[[0, 1, 46, 47, 48, 49]]).all()
    assert training_margins([(tmp_path, EVERY)], 44) is None


def mixed(batch: tuple[torch.Tensor, torch.Tensor], draws: Draws) -> Any:
    """Labels that are shares of classes."""
    return batch[0], torch.nn.functional.one_hot(batch[1], 4).float()


def test_labels_that_are_no_classes_have_none(tmp_path: Path) -> None:
    out = tmp_path / "run"
    mix = partial(replace, augment=mixed, schedule=None)
    listen = NoteMargins(head="4")
    train(Request(recipe=TINY, num_workers=1, epochs=1, out=out, instead=mix, listen=listen))
    assert training_margins([(out, EVERY)], 44) is None


def test_an_example_without_a_label_has_none() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]] * 3)
    found = label_margins(logits, torch.tensor([0, -100, 1])).tolist()
    assert found == [-2.0, pytest.approx(np.nan, nan_ok=True), 1.0]


@pytest.mark.parametrize(
    ("changes", "head", "said"),
    [
        ({}, "4", None),
        ({}, None, "no layer of the model"),
        ({"compile": True}, "4", "compiled"),
        (
            {"loss": None, "encode": lambda m, b: m(b[0]), "batch_loss": lambda e: e.sum()},
            "4",
            "whole batch",
        ),
    ],
)
def test_why_they_are_left_out(changes: dict[str, Any], head: str | None, said: str | None) -> None:
    why = why_not(replace(find_recipe(TINY), **changes), head)
    assert (why is None) == (said is None)
    assert (said or "") in (why or "")
