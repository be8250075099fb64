"""Runs with a weighted sampler: the same path at every count and resumed; a plain loop's bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from constructs import BATCH, bits_of, classify, dense, sgd, train, training, vectors
from torch import Tensor

from samepath import WeightedSampler, start
from samepath.data import seed_everything
from samepath.engine.run.request import Request
from samepath.engine.state.progress import RunResult
from samepath.engine.train import train as train_request
from samepath.engine.verify.verify import VerifyRequest, verify
from samepath.errors import UserError
from samepath.plan import epoch_order

TINY = Path(__file__).with_name("tiny_recipe.py").read_text()
SAMPLER = "samepath.WeightedSampler([1.0, 3.0] * 22, 56)"


def go(folder: Path, out: str, num_workers: int, **more: Any) -> RunResult:
    recipe = str(folder / "recipe.py")
    request = Request(recipe=recipe, num_workers=num_workers, out=folder / out, **more)
    return train_request(request)[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the tiny recipe: 56 draws from 44 examples, in batches of 10."""
    text = TINY.replace("epochs=2,", f"epochs=2, sampler={SAMPLER},")
    (tmp_path / "recipe.py").write_text("import samepath\n" + text.split("annotations\n")[-1])
    return tmp_path


def test_the_same_at_every_count_and_resumed(folder: Path) -> None:
    alone = go(folder, "1", 1)
    assert alone.steps == 12, "six batches an epoch"
    assert go(folder, "3", 3).digest == alone.digest
    go(folder, "resumed", 2, steps=8)
    resumed = go(folder, "resumed", 1, resume=True, epochs=2)
    assert resumed.digest == alone.digest
    (folder / "recipe.py").write_text(TINY)
    assert go(folder, "without", 1).digest != alone.digest


def test_verify_cuts_the_epoch_and_not_the_data(folder: Path) -> None:
    verdict = verify(VerifyRequest(recipe=str(folder / "recipe.py"), counts=(1, 2), steps=4))
    assert verdict.equal
    assert verdict.trained.num_examples < verdict.trained.all_examples == 56


@pytest.mark.parametrize("replacement", [True, False])
def test_one_grain_is_a_plain_loop(replacement: bool) -> None:
    weights = torch.arange(44.0) % 5
    sampler = WeightedSampler(weights, 33, replacement)

    def begin() -> Any:
        seed_everything(1)
        return training(dense(), optimizer=sgd, sampler=sampler)

    plain = begin()
    inputs, labels = vectors()
    seen: list[Tensor] = []
    for epoch in range(plain.epochs):
        drawn = sampler.order(7, epoch)[epoch_order(33, 7, epoch)]
        for examples in torch.from_numpy(drawn).split(BATCH):
            plain.optimizer.zero_grad()
            classify(plain.model, (inputs[examples], labels[examples])).backward()
            plain.optimizer.step()
            seen.append(examples)
    assert (torch.cat(seen) % 5 > 0).all(), "a weight of 0 is never drawn"
    ours = begin()
    with start(seed=7) as session:
        assert "digest" in train(ours, session, grain_size=BATCH)
    assert bits_of(ours) == bits_of(plain)


def test_an_own_loop_cannot_go_on_with_other_weights(tmp_path: Path) -> None:
    with start(seed=7) as session:
        for weights, says in (([1.0] * 44, None), ([2.0, 1.0] * 22, "cannot resume: sampler")):
            made = training(sampler=WeightedSampler(weights))
            trainer = made.prepare(session)
            if says is None:
                trainer.step(next(trainer.batches(made.data, 0)))
                trainer.save(tmp_path)
            else:
                with pytest.raises(UserError, match=says):
                    trainer.resume(tmp_path)


def test_weights_for_other_data_are_refused(folder: Path) -> None:
    text = (folder / "recipe.py").read_text()
    (folder / "recipe.py").write_text(text.replace("* 22", "* 21"))
    with pytest.raises(UserError, match="42 weights for 44 training examples; give one for each"):
        go(folder, "run", 1)
