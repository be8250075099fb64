"""Losses that are no mean over examples: which are noticed, and what is left alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import samepath
from samepath.data import GrainRequest, as_source
from samepath.engine.checks.mean_loss import refuse_not_a_mean
from samepath.engine.run.trainer import Trainer
from samepath.errors import Diverged, UserError
from samepath.recipe import find_recipe

Batch = tuple[Tensor, Tensor]


def data(dtype: torch.dtype = torch.float32) -> Batch:
    made = torch.Generator().manual_seed(1)
    return torch.randn(64, 8, generator=made).to(dtype), torch.arange(64) % 4


def cross_entropy(model: Any, batch: Batch, **more: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]).float(), batch[1], **more)


def summed(model: Any, batch: Batch) -> Tensor:
    return cross_entropy(model, batch, reduction="sum")


def begin(
    session: Any, loss: Callable[..., Any], model: nn.Module | None = None, **settings: Any
) -> Trainer:
    torch.manual_seed(0)
    made = model or nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    given = {"batch_size": 32, "grain_size": 8, "name": "", **settings}
    found: Trainer = session.prepare(made, optimizer, loss, **given)
    return found


def step(trainer: Trainer, examples: Batch | None = None) -> None:
    trainer.step(next(trainer.batches(examples or data(), 0)))


def test_what_is_noticed_and_silenced() -> None:
    with samepath.start(seed=1) as session:
        with pytest.raises(UserError, match=r"sum over examples.*--i-know, or i_know=True"):
            step(begin(session, summed))
        step(begin(session, summed, i_know=True))
        step(begin(session, summed, grain_size=32))  # a grain is the batch


def test_it_is_looked_for_once_in_a_run() -> None:
    """A run that goes on was let through, or silenced, when it began."""
    with samepath.start(seed=1) as session:
        trainer = begin(session, summed)
        _, second, *_ = trainer.batches(data(), 0)
        trainer.step(second)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_means_of_any_precision_pass(dtype: torch.dtype, offset: float) -> None:
    """Also where large numbers cancel."""

    def loss(model: Any, batch: Batch) -> Tensor:
        scores: Tensor = model(batch[0])
        return cross_entropy(model, batch) + (scores + offset).mean() - offset

    with samepath.start(seed=1) as session:
        step(begin(session, loss, nn.Linear(8, 4).to(dtype)), data(dtype))


def test_a_mean_passes_where_the_model_has_no_loss_in_evaluation_mode() -> None:
    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5))

        def forward(self, inputs: Tensor) -> Any:
            return self.layers(inputs) if self.training else ["boxes"]

    with samepath.start(seed=1) as session:
        step(begin(session, cross_entropy, Detector()))
        with pytest.raises(UserError, match="reduction='mean'"):
            step(begin(session, summed, Detector()))


def ragged_items() -> list[Any]:
    return list(zip(*data(), strict=True))


def pad(items: list[Any]) -> Any:
    """As long as its longest, which differs between grains."""
    width = 8 + int(items[0][1])
    inputs = torch.stack([item[0] for item in items])
    return (
        F.pad(inputs, (0, width - 8))[:, :8].contiguous(),
        torch.tensor([int(item[1]) for item in items]),
        torch.zeros(len(items), width),
    )


def warnings_of(loss: Callable[..., Any], *, items: Any = None, **settings: Any) -> list[str]:
    """What a step of a training with this loss warns of."""
    said: list[str] = []
    with samepath.start(seed=1) as session:
        trainer = begin(session, loss, nn.Linear(8, 4), **settings)
        trainer.warn = said.append
        trainer.step(next(trainer.batches(items or data(), 0)))
    return said


def test_what_cannot_be_told_is_said_and_silenced() -> None:
    def permuted(model: Any, batch: Batch) -> Tensor:
        """Mixes each example with another of its grain."""
        inputs = batch[0] + 0.1 * batch[0][torch.randperm(len(batch[0]))]
        return cross_entropy(model, (inputs, batch[1]))

    def of_few(model: Any, batch: Batch) -> Tensor:
        chosen = random.sample(range(len(batch[1])), 3)
        return cross_entropy(model, (batch[0][chosen], batch[1][chosen]))

    def by_numpy(model: Any, batch: Batch) -> Tensor:
        noise = torch.from_numpy(np.random.rand(*batch[0].shape)).float()
        return cross_entropy(model, (batch[0] + noise, batch[1]))

    own = random.Random(1)
    own_noise = lambda model, batch: cross_entropy(model, batch) * own.random()  # noqa: E731

    for loss in (permuted, of_few, by_numpy, own_noise):
        (said,) = warnings_of(loss)
        assert "it changes from call to call, by more than random numbers" in said
        assert "give encode= and batch_loss=" in said
        assert "i_know=True" in said
        assert warnings_of(loss, i_know=True) == []
    (said,) = warnings_of(cross_entropy, items=ragged_items(), collate=pad)
    assert "cannot be put together row by row" in said


def test_a_loss_that_fails_on_a_copy_is_said() -> None:
    def of_its_gradient(model: Any, batch: Batch) -> Tensor:
        inputs = batch[0].clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
        return cross_entropy(model, batch) + slope.square().sum(1).mean()

    assert warnings_of(of_its_gradient) == []
    by_parameter: dict[int, float] = {}

    def of_one_model(model: Any, batch: Batch) -> Tensor:
        return cross_entropy(model, batch) * by_parameter[id(model)]

    with samepath.start(seed=1) as session:
        model = nn.Linear(8, 4)
        by_parameter[id(model)] = 1.0
        said: list[str] = []
        trainer = begin(session, of_one_model, model)
        trainer.warn = said.append
        step(trainer)
    assert ["on a copy of the model it raises KeyError" in words for words in said] == [True]


def scaled_by_chance(model: Any, batch: Batch) -> Tensor:
    return cross_entropy(model, batch) * (1 + torch.rand(()) + random.random() + np.random.rand())


def always_dropout(model: Any, batch: Batch) -> Tensor:
    return cross_entropy(lambda x: model(F.dropout(x, 0.3)), batch)


def two_views_in_one_call(model: Any, batch: Batch) -> Tensor:
    """The batch's rows twice, one batch after the other."""
    views = batch[0].repeat(2, 1)
    return cross_entropy(model, (views + torch.randn_like(views), batch[1].repeat(2)))


def interleaved(model: Any, batch: Batch) -> Tensor:
    inputs = batch[0].repeat_interleave(3, 0)
    return cross_entropy(model, (F.dropout(inputs, 0.5), batch[1].repeat_interleave(3)))


def denoised(model: Any, batch: Batch) -> Tensor:
    """As a diffusion model is trained: times and noise for each example."""
    times = torch.randint(0, 50, (len(batch[0]), 1))
    noise = torch.randn_like(batch[0])
    found = model(batch[0] * (1 - times / 50) + noise * times / 50)
    return F.mse_loss(found, noise[:, :4])


def variational(model: Any, batch: Batch) -> Tensor:
    means = model(batch[0])
    drawn = torch.distributions.Normal(means, 0.1 + means.abs()).rsample()
    chosen = torch.bernoulli(torch.sigmoid(means)) + F.gumbel_softmax(means)
    kind = torch.distributions.Categorical(logits=means).sample()
    return F.mse_loss(drawn, chosen) + F.cross_entropy(means, kind)


def with_own_generator(model: Any, batch: Batch) -> Tensor:
    noise = torch.randn(batch[0].shape, generator=OWN)
    return cross_entropy(model, (batch[0] + noise, batch[1]))


def of_random_depth(model: Any, batch: Batch) -> Tensor:
    inputs = F.alpha_dropout(batch[0], 0.2, training=True)
    if random.random() < 0.5:
        inputs = F.rrelu(inputs, training=True)
    return cross_entropy(model, (inputs, batch[1]))


OWN = torch.Generator().manual_seed(3)
RANDOM_MEANS = [
    *(scaled_by_chance, always_dropout, two_views_in_one_call, interleaved, denoised, variational),
    *(with_own_generator, of_random_depth),
]


@pytest.mark.parametrize("loss", RANDOM_MEANS, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("seed", range(3))
def test_random_means_pass_without_a_word(loss: Callable[..., Any], seed: int) -> None:
    assert warnings_of(loss, batch_size=28, name=f"seed {seed}") == []


@pytest.mark.parametrize("name", ["digits", "nodules-small", "nodules-classifier"])
def test_built_in_recipes_are_judged_without_a_word(name: str) -> None:
    recipe = find_recipe(name)
    source = as_source(recipe.train, seed=0, collate=recipe.collate)
    rows = [np.arange(8 * n, 8 * n + 8) for n in range(4)]
    grains = list(source.load(iter([GrainRequest(0, each) for each in rows])))
    seen: list[int] = []

    def loss(model: nn.Module, batch: Any) -> Any:
        found = recipe.loss(model, batch)
        seen.append(len(found) if isinstance(found, tuple) else found.numel())
        return found

    torch.manual_seed(0)
    assert refuse_not_a_mean(loss, recipe.model(), grains, None, [8] * 4, nullcontext) is None
    assert len(seen) >= 3 * 5, "three pairs, each alone and together"


def info_nce(first: Tensor, second: Tensor) -> Tensor:
    scores = F.normalize(first) @ F.normalize(second).T
    return F.cross_entropy(scores / 0.1, torch.arange(len(scores)))


def with_views(model: Any, batch: Batch) -> Tensor:
    one, other = (batch[0] + 0.1 * torch.randn_like(batch[0]) for _ in range(2))
    return info_nce(model(one), model(other))


def with_dropout(model: Any, batch: Batch) -> Tensor:
    return info_nce(*(model(F.dropout(batch[0], 0.1)) for _ in range(2)))


def of_both_views(model: Any, batch: Batch) -> Tensor:
    """Both views in one call, as SimCLR has them."""
    both = F.dropout(batch[0].repeat(2, 1), 0.1)
    return info_nce(*model(both).chunk(2))


@pytest.mark.parametrize("loss", [with_views, with_dropout, of_both_views])
@pytest.mark.parametrize("seed", range(3))
def test_random_losses_of_the_whole_batch_are_noticed(loss: Callable[..., Any], seed: int) -> None:
    with pytest.raises(UserError, match=r"examples meet each other.*give encode="):
        warnings_of(loss, name=f"seed {seed}")


def auc(model: Any, batch: Batch) -> Tensor:
    """A stand-in for the area under the curve: all pairs of a positive and a negative."""
    scores, positive = model(batch[0])[:, 0], batch[1] == 1
    return F.softplus(scores[~positive] - scores[positive][:, None]).mean()


@pytest.mark.parametrize("grain_size", [2, 8, 16])
def test_pairs_of_examples_are_noticed_at_any_grain(grain_size: int) -> None:
    """Also where a grain alone has no pair."""
    labels = (torch.arange(64) % 5 == 0).long()
    with pytest.raises(UserError, match="It looks like a loss in which examples meet"):
        warnings_of(auc, items=(data()[0], labels), grain_size=grain_size)


def test_a_grain_whose_labels_are_all_ignored() -> None:
    """Alone it has no loss (0 / 0)."""

    def loss(model: Any, batch: Batch) -> Tensor:
        return cross_entropy(model, batch, ignore_index=3)

    def count(batch: Batch) -> float:
        return float((batch[1] != 3).sum())

    inputs, labels = data()
    with samepath.start(seed=1) as session:
        first = next(begin(session, loss).batches((inputs, labels), 0)).batch
    for grain in (0, 2):
        ignored = labels.index_fill(0, torch.tensor(first.grain(grain)), 3)
        with pytest.raises(UserError, match=r"alone (\d.* and nan|nan and \d).*count diff"):
            warnings_of(loss, items=(inputs, ignored))
        assert warnings_of(loss, items=(inputs, ignored), weight=count) == []


def test_a_grain_without_a_loss_later_in_a_run() -> None:
    """It is not among the first ones; the error says what it is."""
    labels = torch.arange(64) % 4
    loss = lambda model, batch: cross_entropy(model, batch, ignore_index=3)  # noqa: E731
    with samepath.start(seed=1) as session:
        trainer = begin(session, loss, batch_size=64, i_know=True)
        labels[trainer_grain(trainer, labels, 5)] = 3
        with pytest.raises(Diverged, match=r"1 of its 8 grains.* have a loss of nan.*give weight="):
            step(trainer, (data()[0], labels))


def trainer_grain(trainer: Trainer, labels: Tensor, number: int) -> Tensor:
    first = next(trainer.batches((data()[0], labels), 0)).batch
    return torch.tensor(first.grain(number))


def test_generators_and_the_model_are_left_alone() -> None:
    seen = []

    def loss(model: Any, batch: Batch) -> Tensor:
        model.count += 1  # of the copy
        seen.append((torch.rand(()), np.random.rand(), random.random()))
        return cross_entropy(model, batch)

    class Counting(nn.Sequential):
        count: Tensor

        def __init__(self) -> None:
            super().__init__(nn.Linear(8, 4))
            self.register_buffer("count", torch.zeros(()))

    with samepath.start(seed=1) as session:
        found = []
        for i_know in (False, True):
            seen.clear()
            torch.manual_seed(2)
            trainer = begin(session, loss, Counting(), i_know=i_know)
            step(trainer)
            found.append((trainer.digest(), seen[-4:]))  # of the step's four grains
        assert len(seen) == 4
        assert found[0] == found[1]


def test_weights_of_classes() -> None:
    weight = torch.tensor([1.0, 5.0, 2.0, 9.0])

    def loss(model: Any, batch: Batch) -> Tensor:
        return cross_entropy(model, batch, weight=weight)

    made = torch.Generator().manual_seed(4)
    examples = data()[0], torch.randint(0, 4, (64,), generator=made)
    with samepath.start(seed=1) as session:
        with pytest.raises(UserError, match="give weight="):
            step(begin(session, loss), examples)
        step(begin(session, loss, weight=lambda batch: float(weight[batch[1]].sum())), examples)


def test_weights_of_classes_that_the_first_grains_do_not_show() -> None:
    """A rare class is in no grain of the first batch, or in its fourth alone."""
    weight = torch.tensor([1.0, 5.0, 5.0, 5.0])

    def loss(model: Any, batch: Batch) -> Tensor:
        return cross_entropy(model, batch, weight=weight)

    def own(model: Any, batch: Batch) -> Tensor:
        each = cross_entropy(model, batch, reduction="none") * weight[batch[1]]
        return each.sum() / weight[batch[1]].sum()

    def by_example(model: Any, batch: Batch) -> Tensor:
        pairs = zip(model(batch[0]), batch[1], strict=True)
        each = [F.cross_entropy(out[None], label[None], weight=weight) for out, label in pairs]
        return torch.stack(each).mean()

    def divided(model: Any, batch: Batch) -> Tensor:
        return loss(model, batch) * weight[batch[1]].mean()

    inputs, common = data()[0], torch.zeros(64, dtype=torch.long)
    with samepath.start(seed=1) as session:
        with pytest.raises(UserError, match=r"cross entropy with class weights.*give weight="):
            step(begin(session, loss), (inputs, common))
        step(begin(session, loss, weight=lambda batch: float(len(batch[1]))), (inputs, common))
        step(begin(session, loss, i_know=True), (inputs, common))
        step(begin(session, by_example), (inputs, common))
        first = next(begin(session, own).batches((inputs, common), 0)).batch
        rare = common.index_fill(0, torch.tensor(first.grain(3)[:2]), 2)
        with pytest.raises(UserError, match="examples count differently"):
            step(begin(session, own), (inputs, rare))
        step(begin(session, divided), (inputs, rare))
