"""Against plain PyTorch: bits with one grain per batch, a tolerance with smaller grains.

The reference is `plain_loop`, a loop anyone would write; it shares nothing with the engine but the
order of examples and, where dropout is on, the key that the engine seeds a grain with.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cases import images
from constructs import (
    BATCH,
    NUM_EXAMPLES,
    Batch,
    Model,
    Training,
    bits_of,
    classify_valid,
    num_valid,
    plain_loop,
    train,
    training,
    vectors,
)
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR, StepLR

from samepath import start
from samepath.engine.launch.launch import launch
from samepath.engine.run.session import Session
from samepath.plan import epoch_order

SEED, EPOCHS = 7, 3
momentum = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
adam = partial(torch.optim.Adam, lr=0.01)
halve = partial(StepLR, step_size=1, gamma=0.5)
WAYS: dict[str, dict[str, Any]] = {
    "momentum": {"optimizer": momentum},
    "adam": {"optimizer": adam},
    "adamw": {"optimizer": partial(torch.optim.AdamW, lr=0.01, amsgrad=True)},
    "clipping": {"optimizer": adam, "clip_norm": 0.1},
    "schedule": {"optimizer": partial(momentum, weight_decay=0.01), "schedule": halve},
    "schedule_per_step": {
        "optimizer": momentum,
        "schedule": partial(OneCycleLR, max_lr=0.1, total_steps=4 * EPOCHS),
        "schedule_every": "step",
    },
    "dropout": {"optimizer": adam, "schedule": halve, "clip_norm": 0.5},
}


def image_training(way: str) -> Training:
    """Batch norm, a layer no example uses, a parameter whose gradient is -0.0; perhaps dropout."""
    torch.manual_seed(3)
    dropout = nn.Dropout(0.3 if way == "dropout" else 0.0)
    layers = (nn.Conv2d(1, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), dropout, nn.Flatten())
    model = Model(
        lambda model, inputs: model.head(model.features(inputs)),
        features=nn.Sequential(*layers),
        head=nn.Linear(6 * 16, 4),
        unused=nn.Linear(3, 3),
        nothing=nn.Parameter(torch.zeros(3)),
    )

    def loss(model: Any, batch: Batch) -> Any:
        return F.cross_entropy(model(batch[0]), batch[1]) + model.nothing.sum() * -0.0

    return training(model, data=images(), loss=loss, epochs=EPOCHS, **WAYS[way])


@pytest.fixture
def session() -> Iterator[Session]:
    with start(seed=SEED) as session:
        yield session


@pytest.mark.parametrize("way", WAYS)
def test_one_grain_per_batch_is_a_plain_loop_bit_for_bit(way: str, session: Session) -> None:
    plain, ours = image_training(way), image_training(way)
    initial = bits_of(ours)
    plain_loop(plain)
    train(ours, session, grain_size=BATCH)
    expected, found = bits_of(plain), bits_of(ours)
    assert found == expected
    still = {name for name, value in initial.items() if found[name] == value}
    assert still - {"groups"} == {"nothing", "unused.weight", "unused.bias"}


def test_the_sign_of_zero_is_compared() -> None:
    """The momentum of `nothing` is -0.0 in the plain loop: the comparison above sees it."""
    made = image_training("momentum")
    plain_loop(made)
    before, zero = bits_of(made), made.optimizer.state[made.model.nothing]["momentum_buffer"]
    assert zero.signbit().all()
    assert zero.eq(0).all()
    zero.abs_()
    assert bits_of(made) != before


# ---- smaller grains, and shares instead of grains: the same up to the order of additions


def double_training(*, weighted: bool, **settings: Any) -> Training:
    """A model whose examples do not interact. Perhaps some labels do not count: six of the first
    batch, a quarter of the others; the last batch of 2 is too small for three workers."""
    torch.manual_seed(4)
    inputs, labels = vectors()
    if weighted:
        labels[1::4] = -1
        labels[torch.from_numpy(epoch_order(NUM_EXAMPLES, SEED, 0)[:6].copy())] = -1
        for epoch in range(EPOCHS):  # a batch of none would have no mean to compare
            order = torch.from_numpy(epoch_order(NUM_EXAMPLES, SEED, epoch).copy())
            assert all((labels[examples] >= 0).any() for examples in torch.split(order, BATCH))
        settings["weight"] = num_valid
    return training(
        nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 4)).double(),
        data=(inputs.double(), labels),
        loss=classify_valid if weighted else double_classify,
        optimizer=momentum, schedule=halve, clip_norm=1.0, epochs=EPOCHS, **settings,
    )  # fmt: skip


def double_classify(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def weights_of(made: Training) -> dict[str, np.ndarray[Any, Any]]:
    return {name: value.detach().numpy() for name, value in made.model.named_parameters()}


def plain_weights(*, weighted: bool) -> dict[str, np.ndarray[Any, Any]]:
    made = double_training(weighted=weighted)
    plain_loop(made)
    return weights_of(made)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("grain_size", [1, 3, 4])
def test_small_grains_differ_from_a_plain_loop_by_rounding_only(
    grain_size: int, weighted: bool, session: Session
) -> None:
    made = double_training(weighted=weighted)
    train(made, session, grain_size=grain_size)
    expected = plain_weights(weighted=weighted)
    for name, value in weights_of(made).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-10, atol=1e-13, err_msg=name)


def run_inexact(folder: str) -> None:
    """The body of every worker."""
    with start(seed=SEED) as session:
        for weighted in (False, True):
            made = double_training(weighted=weighted, exact=False)
            assert "digest" in train(made, session, grain_size=7)
            np.savez(Path(folder, f"{session.worker}-{weighted}"), **weights_of(made))  # type: ignore[arg-type]


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_inexact_is_a_plain_loop_up_to_rounding(num_workers: int, tmp_path: Path) -> None:
    """14 examples on three workers are shares of 4, 5 and 5; two are shares of 1, 1 and none."""
    launch(run_inexact, (str(tmp_path),), num_workers)
    for weighted in (False, True):
        expected = plain_weights(weighted=weighted)
        workers = [np.load(tmp_path / f"{w}-{weighted}.npz") for w in range(num_workers)]
        for name, value in expected.items():
            for worker in workers:
                np.testing.assert_array_equal(worker[name], workers[0][name])
            np.testing.assert_allclose(workers[0][name], value, rtol=1e-10, atol=1e-13)
            if num_workers == 1:
                np.testing.assert_array_equal(workers[0][name], value)
