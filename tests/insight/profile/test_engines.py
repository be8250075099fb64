"""What the plain loop says of losses that DDP does not take."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from samepath.engine.comm.collective import Alone
from samepath.engine.run.options import resolve
from samepath.engine.run.session import Session
from samepath.errors import UserError
from samepath.insight.profile.engines import PlainLoop, Reducer
from samepath.insight.profile.recorder import PhaseRecorder
from samepath.recipe import Recipe


class Wrapped(Reducer):
    """Hides the model as DDP does."""

    def __init__(self, model: nn.Module) -> None:
        self.module = nn.Sequential(model)

    def backward(self, loss: Tensor, scale: float) -> None:
        loss.backward(torch.full_like(loss, scale))


def loop(recipe: Recipe) -> PlainLoop:
    options = resolve(recipe)
    session = Session(Alone(torch.device("cpu")), seed=0)
    return PlainLoop(recipe, options, session, PhaseRecorder(0), Wrapped)


def recipe(loss: object) -> Recipe:
    return Recipe(
        model=lambda: nn.Linear(3, 1),
        train=torch.ones(12, 3),
        loss=loss,  # type: ignore[arg-type]
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=5,
        grain_size=5,
        epochs=1,
    )


def test_only_whole_batches_are_trained_on() -> None:
    engine = loop(recipe(lambda model, batch: model(batch).square().mean()))
    seen = [next(engine.shares).batch for _ in range(5)]
    assert [len(batch.examples) for batch in seen] == [5] * 5
    assert [batch.epoch for batch in seen] == [0, 0, 1, 1, 2]


def unfinished(model: nn.Module, batch: Tensor) -> Tensor:
    raise RuntimeError("Expected to have finished reduction in the prior iteration before ...")


@pytest.mark.parametrize(
    ("loss", "error", "says"),
    [
        (
            lambda model, batch: model.weight.sum(),
            UserError,
            r"ddp: the recipe's loss uses model\.weight",
        ),
        (lambda model, batch: batch.of_its_own, AttributeError, "of_its_own"),
        (unfinished, UserError, "profile without ddp"),
    ],
)
def test_losses_that_ddp_does_not_take(loss: object, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        loop(recipe(loss)).step()
