"""DataLoaders, taken apart, or refused by the argument in the way; streams, read once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from samepath import Recipe, WeightedSampler, start
from samepath.data import given
from samepath.data.given import read_once, take_apart
from samepath.errors import UserError

DATA = TensorDataset(torch.arange(20.0).reshape(10, 2))


def recipe(train: Any = DATA, **more: Any) -> Recipe:
    return Recipe(
        model=lambda: nn.Linear(2, 1), train=train, epochs=2,
        loss=lambda model, batch: model(batch[0]).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), **more,
    )  # fmt: skip


def first_of(items: list[Any]) -> Any:
    return torch.stack([item[0] for item in items])


def test_a_recipe_takes_what_a_loader_holds() -> None:
    loader = DataLoader(DATA, 4, shuffle=True, collate_fn=first_of, num_workers=2, drop_last=True)
    made = recipe(loader, valid=DataLoader(DATA, 3, collate_fn=first_of), max_workers=2)
    assert (made.train, made.valid, made.collate) == (DATA, DATA, first_of)
    assert (made.batch_size, made.drop_last, made.loader_workers) == (4, True, 2)
    assert made.sampler is None
    assert made.grain_size == 2
    assert recipe(DataLoader(DATA, 4, shuffle=True)).collate is None, "torch's default"


def test_samplers_of_torch() -> None:
    weights = [0.0, 1.0] * 5
    found = recipe(DataLoader(DATA, 4, sampler=WeightedRandomSampler(weights, 7))).sampler
    assert isinstance(found, WeightedSampler)
    assert (np.asarray(found.weights).tolist(), found.num_examples) == (weights, 7)
    assert found.replacement
    found = recipe(DataLoader(DATA, 4, sampler=RandomSampler(DATA, num_samples=6))).sampler
    assert found is not None
    assert (found.num_examples, found.replacement) == (6, False)
    parts = take_apart(DataLoader(DATA, 4, sampler=SubsetRandomSampler([3, 1, 5])), "train")
    assert isinstance(parts.data, tuple)
    assert parts.data[0][:, 0].tolist() == [6, 2, 10]
    assert parts.sampling is None
    shuffled = take_apart(DataLoader(DATA, 4, shuffle=True), "valid")
    assert shuffled.data is DATA


class Own(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))

    def __len__(self) -> int:
        return 10


class OwnLoader(DataLoader[Any]):
    def __iter__(self) -> Any:
        return super().__iter__()


GENERATOR = torch.Generator()
REFUSED: dict[str, tuple[Any, str]] = {
    "batch_sampler": (
        lambda: DataLoader(DATA, batch_sampler=BatchSampler(Own(), 2, False)),
        "batch_sampler makes batches of its own",
    ),
    "no batches": (lambda: DataLoader(DATA, batch_size=None), "batch_size=None"),
    "no shuffling": (lambda: DataLoader(DATA, 4), "shuffle=False .*use shuffle=True"),
    "generator": (
        lambda: DataLoader(DATA, 4, shuffle=True, generator=GENERATOR),
        "generator draws the order",
    ),
    "the sampler's generator": (
        lambda: DataLoader(DATA, 4, sampler=RandomSampler(DATA, generator=GENERATOR)),
        r"sampler=RandomSampler\(generator=\.\.\.\)",
    ),
    "worker_init_fn": (
        lambda: DataLoader(DATA, 4, shuffle=True, worker_init_fn=random.seed),
        "worker_init_fn runs in loader processes",
    ),
    "a sampler of one's own": (
        lambda: DataLoader(DATA, 4, sampler=Own()),
        "sampler=Own .*WeightedSampler",
    ),
    "DistributedSampler": (
        lambda: DataLoader(DATA, 4, sampler=DistributedSampler(DATA, 2, 0)),
        "DistributedSampler gives each worker its own part",
    ),
    "a loader of one's own": (lambda: OwnLoader(DATA, 4, shuffle=True), "OwnLoader has an __iter_"),
    "a sampler that is too long": (
        lambda: DataLoader(DATA, 4, sampler=RandomSampler(DATA, num_samples=11)),
        "num_examples is 11, and 10 examples",
    ),
    "weights of other data": (
        lambda: DataLoader(DATA, 4, sampler=WeightedRandomSampler([-1.0], 3)),
        "weight of example 0 is -1",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_loaders_that_are_refused(what: str) -> None:
    make, says = REFUSED[what]
    with pytest.raises(UserError, match=says) as error:
        recipe(make())
    assert "\n" not in str(error.value)


def test_validation_loaders_that_are_refused() -> None:
    for loader, says in (
        (DataLoader(DATA, 4, drop_last=True), "of `valid`: drop_last leaves out"),
        (DataLoader(DATA, 4, sampler=WeightedRandomSampler([1.0] * 10, 4)), "WeightedRandomSam"),
        (DataLoader(DATA, 4, collate_fn=first_of), "another collate_fn than `train`"),
    ):
        with pytest.raises(UserError, match=says):
            recipe(batch_size=4, valid=loader)


def test_what_is_said_twice_must_agree() -> None:
    loader = DataLoader(DATA, 4, shuffle=True)
    assert recipe(loader, batch_size=4).batch_size == 4
    with pytest.raises(UserError, match="batch_size is 5, and the DataLoader of `train` has 4"):
        recipe(loader, batch_size=5)
    with pytest.raises(UserError, match="batch_size is None; it must be a whole number"):
        recipe()
    with pytest.raises(UserError, match=r"sampler is Own; give samepath\.WeightedSampler"):
        recipe(batch_size=4, sampler=Own())


def test_loaders_in_own_loops() -> None:
    with start() as session:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def loss(model: nn.Module, batch: Any) -> Any:
            return model(batch[0]).square().mean()

        trainer = session.prepare(model, optimizer, loss, batch_size=4, max_workers=2)
        batches = list(trainer.batches(DataLoader(DATA, 4, shuffle=True), 0))
        assert [len(share.batch.examples) for share in batches] == [4, 4, 2]
        assert trainer.evaluate(DataLoader(DATA, 7)) == trainer.evaluate(DATA)
        for settings, says in (
            ({"batch_size": 5}, "given batch_size=4, and the DataLoader has 5"),
            ({"batch_size": 4, "drop_last": True}, "given drop_last=False, and the DataLoader"),
        ):
            with pytest.raises(UserError, match=says):
                next(trainer.batches(DataLoader(DATA, shuffle=True, **settings), 0))  # type: ignore[arg-type]
        trainer = session.prepare(
            model, optimizer, loss, batch_size=4, sampler=WeightedSampler([1.0] * 3)
        )
        with pytest.raises(UserError, match="3 weights for 10 training examples"):
            next(trainer.batches(DATA, 0))
        sampler = WeightedRandomSampler([1.0] * 10, 4)
        with pytest.raises(UserError, match="have a sampler each"):
            next(trainer.batches(DataLoader(DATA, 4, sampler=sampler), 0))


# ---- streams


class Stream(IterableDataset[Any]):
    def __init__(self, number: int | None) -> None:
        self.number = number
        self.rng = random.Random()
        self.times = 0

    def __iter__(self) -> Iterator[Any]:
        self.times += 1
        row = 0
        while row != self.number:
            yield torch.tensor([float(row), self.rng.random(), random.random()])
            row += 1


def test_a_stream_is_read_once_and_alike_everywhere() -> None:
    first, second = read_once(Stream(5)), read_once(Stream(5))
    assert len(first) == 5
    assert all(torch.equal(first[row], second[row]) for row in range(5))
    made = recipe(Stream(8), valid=Stream(3), batch_size=4)
    assert isinstance(made.train, Dataset)
    assert not isinstance(made.train, IterableDataset)
    loader = DataLoader(Stream(8), batch_size=4)
    assert len(recipe(loader).train) == 8  # type: ignore[arg-type]


def test_an_own_loop_reads_a_stream_in_its_first_epoch_only() -> None:
    stream = Stream(8)
    with start() as session:
        model = nn.Linear(3, 1)
        trainer = session.prepare(
            model,
            torch.optim.SGD(model.parameters(), lr=0.01),
            lambda model, batch: model(batch).square().mean(),
            batch_size=4,
        )
        for epoch in range(2):
            assert len(list(trainer.batches(stream, epoch))) == 2
    assert stream.times == 1


def test_an_endless_stream_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given, "MOST_WITHOUT_LENGTH", 10)
    says = "Stream is an IterableDataset that has given 10 examples and has not ended; give it a"
    with pytest.raises(UserError, match=says):
        read_once(Stream(None))
    monkeypatch.setattr(Stream, "__len__", lambda self: 20, raising=False)
    assert len(read_once(Stream(20))) == 20, "it says that it ends"


def test_sequential_validation_is_used() -> None:
    parts = take_apart(DataLoader(DATA, 2, sampler=SequentialSampler(DATA)), "valid")
    assert parts.data is DATA
