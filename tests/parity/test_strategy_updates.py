"""Every built-in strategy, update by update, against a few lines of plain PyTorch.

The references share nothing with the engine but the order of examples: rates, batches, lags,
attacks, noise and curvature are computed anew here. Two levels: bits, where the reference adds the
same pieces of a batch in the same pairs (one piece is a whole batch where the batch is the
recipe's); and a tolerance, where it takes the batch at once and samepath takes small grains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from samepath import Recipe, start
from samepath.engine.run.loop import Run
from samepath.engine.run.options import Overrides, resolve
from samepath.engine.run.session import Session
from samepath.engine.run.trainer import Trainer
from samepath.engine.train import Request, train
from samepath.keys import key
from samepath.plan import epoch_order
from samepath.strategies import BUILT_IN

Data = tuple[Tensor, Tensor]
Weights = list[Tensor]
SEED = 7
NUM_EXAMPLES = 30
BATCH = 8
"""Batches of 8, 8, 8 and 6; of 16 and 14; of 24 and 6."""
RATE = 0.05
UPDATES = 8


# ---- what both train


class Net(nn.Module):
    """Small enough for its whole Hessian. With batch norm, train and eval mode differ."""

    def __init__(self, *, norm: bool = False) -> None:
        super().__init__()
        self.body = nn.Linear(5, 7)
        self.norm = nn.BatchNorm1d(7) if norm else nn.Identity()
        self.head = nn.Linear(7, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.head(self.norm(self.body(inputs)).tanh())
        return scores


def data(dtype: torch.dtype) -> Data:
    made = torch.Generator().manual_seed(1)
    inputs = torch.randn(NUM_EXAMPLES, 5, generator=made, dtype=dtype)
    labels = inputs[:, :3].argmax(1)
    labels[::3] = torch.randint(0, 3, labels[::3].shape, generator=made)  # some noise
    return inputs, labels


Make = Callable[[], Net]


def simple() -> Net:
    torch.manual_seed(3)
    return Net()


def with_norm() -> Net:
    torch.manual_seed(3)
    return Net(norm=True)


def steep() -> Net:
    """Its curvature falls at first."""
    model = simple()
    model.head.weight.data *= 3
    return model


def lopsided() -> Net:
    """All gradients agree at first; then they do not."""
    model = simple()
    model.head.bias.data[0] += 2
    return model


def classify(model: nn.Module, batch: Data) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=RATE, momentum=0.9, weight_decay=0.01)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=RATE, betas=(0.8, 0.99), weight_decay=0.02)


def everything(model: nn.Module) -> Weights:
    """Weights and buffers."""
    return [t.detach().clone() for t in (*model.parameters(), *model.buffers())]


# ---- samepath


def by_samepath(
    session: Session,
    strategy: str,
    k: int,
    *,
    dtype: torch.dtype = torch.float32,
    grain_size: int = BATCH,
    updates: int = UPDATES,
    model: Make = simple,
    optimizer: Callable[[Any], torch.optim.Optimizer] = momentum,
) -> list[Weights]:
    """The weights after every update, as a run on one worker has them."""
    recipe = Recipe(
        model=lambda: model().to(dtype),
        train=data(dtype),
        loss=classify,
        optimizer=optimizer,
        schedule=lambda made: torch.optim.lr_scheduler.StepLR(made, 3, gamma=0.95),
        schedule_every="step",
        batch_size=BATCH,
        grain_size=grain_size,
        epochs=99,
    )
    asked = Overrides(strategy=strategy, virtual_workers=k, seed=SEED, epochs=99)
    path: list[Weights] = []

    def after_step(trainer: Trainer, _: object) -> None:
        now = everything(trainer.model)
        if trainer.step_number > len(trainer.pending):  # an update was made
            path.append(now)
        if len(path) == updates:
            raise Enough

    run = Run(recipe, resolve(recipe, asked), session, None, after_step=after_step)
    with pytest.raises(Enough):
        run.go()
    return path


class Enough(Exception):
    """So many updates were made."""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with start(seed=SEED) as session:
        yield session


# ---- plain PyTorch


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A strategy as the test has worked it out for itself."""

    batch: Callable[[int], int] = lambda epoch: BATCH
    """Examples of a step, by epoch."""
    factor: Callable[[float], float] = lambda epochs: 1.0
    """Of the rate, by passes over the data."""
    lag: int = 0
    reference: Callable[[Any], torch.optim.Optimizer] = momentum
    attack: Callable[[nn.Module, Data], Data] = lambda model, piece: piece


def in_pairs(parts: Sequence[Weights]) -> Weights:
    """Neighbours are added, then neighbouring sums, and so on."""
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [[sum(ts[1:], ts[0]) for ts in zip(*pair, strict=True)] for pair in pairs]
    return parts[0]


def gradient(model: nn.Module, batch: Data, piece_size: int, rule: Rule) -> Weights:
    """Of the batch's mean loss, a piece at a time."""
    parts = []
    total = len(batch[0])
    for piece in zip(*(torch.split(t, piece_size) for t in batch), strict=True):
        moved = rule.attack(model, piece)
        model.zero_grad()
        (classify(model, moved) * (len(piece[0]) / total)).backward()
        parts.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    return in_pairs(parts)


def by_hand(
    rule: Rule,
    *,
    dtype: torch.dtype = torch.float32,
    piece_size: int = BATCH,
    updates: int = UPDATES,
    model: Make = simple,
    end_epoch: Callable[[nn.Module], None] = lambda net: None,
) -> list[Weights]:
    """The weights after every update of a plain loop."""
    net, (inputs, labels) = model().to(dtype), data(dtype)
    optimizer = rule.reference(net.parameters())
    rate = optimizer.param_groups[0]["lr"]
    waiting: list[Weights] = []
    path: list[Weights] = []
    recipe_steps = 0
    for epoch in range(99):
        order = torch.from_numpy(epoch_order(NUM_EXAMPLES, SEED, epoch).copy())
        seen = 0
        for examples in torch.split(order, rule.batch(epoch)):
            batch = inputs[examples], labels[examples]
            waiting.append(gradient(net, batch, piece_size, rule))
            if len(waiting) > rule.lag:
                for parameter, value in zip(net.parameters(), waiting.pop(0), strict=True):
                    parameter.grad = value
                optimizer.param_groups[0]["lr"] = rate * rule.factor(epoch + seen / NUM_EXAMPLES)
                optimizer.step()
                path.append(everything(net))
                if len(path) == updates:
                    return path
                # the recipe's schedule: times 0.95 after every three of the recipe's batches
                batches = math.ceil((seen + len(examples)) / BATCH) - math.ceil(seen / BATCH)
                for _ in range(batches):
                    recipe_steps += 1
                    rate = rate * 0.95 if recipe_steps % 3 == 0 else rate
            seen += len(examples)
        end_epoch(net)
    raise AssertionError("too few updates")


def line(top: float, epochs: float) -> Callable[[float], float]:
    """A warm-up, written another way than the strategy's."""
    return lambda now: top if now >= epochs else 1.0 + (top - 1.0) * (now / epochs)


def lars(parameters: Any) -> torch.optim.Optimizer:
    from pytorch_optimizer import LARS

    made: torch.optim.Optimizer = LARS(parameters, lr=2.0, momentum=0.9, weight_decay=0.01)
    return made


def lamb(parameters: Any) -> torch.optim.Optimizer:
    from pytorch_optimizer import Lamb

    made: torch.optim.Optimizer = Lamb(parameters, lr=RATE, betas=(0.8, 0.99), weight_decay=0.02)
    return made


def fast_gradient_sign(model: nn.Module, piece: Data) -> Data:
    """Goodfellow et al. 2015 by hand: the first half of a piece moves 0.1, in evaluation mode."""
    inputs, labels = piece[0].clone(), piece[1]
    count = math.ceil(0.5 * len(inputs))
    inputs.requires_grad_()
    model.eval()
    classify(model, (inputs, labels)).backward()
    model.train()
    assert inputs.grad is not None
    uphill = torch.sign(inputs.grad)
    uphill[count:] = 0
    return (inputs + 0.1 * uphill).detach(), labels


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A strategy, and what it must be equal to."""

    strategy: str
    k: int
    rule: Rule
    optimizer: Callable[[Any], torch.optim.Optimizer] = momentum
    model: Make = simple


def pair(
    strategy: str, k: int, *, optimizer: Any = momentum, model: Make = simple, **rule: Any
) -> Pair:
    return Pair(strategy=strategy, k=k, rule=Rule(**rule), optimizer=optimizer, model=model)


PAIRS = [
    pair("strong", 8),
    pair("weak", 2, batch=lambda _: 16),
    pair("weak", 3, batch=lambda _: 24),
    pair("linear", 2, batch=lambda _: 16, factor=lambda _: 2.0),
    pair("sqrt", 3, batch=lambda _: 24, factor=lambda _: math.sqrt(3)),
    pair("warmup:epochs=2", 3, batch=lambda _: 24, factor=line(3, 2)),
    pair("sqrt-warmup:epochs=1.5", 2, batch=lambda _: 16, factor=line(math.sqrt(2), 1.5)),
    pair("lars:epochs=2:rate=2", 3, batch=lambda _: 24, factor=line(3, 2), reference=lars),
    pair(
        "lamb:epochs=2", 2, optimizer=adam,
        batch=lambda _: 16, factor=line(math.sqrt(2), 2), reference=lamb,
    ),
    pair(
        "decay:milestones=1+2:factor=2", 3, factor=lambda now: [1.0, 1 / 2, 1 / 4][min(int(now), 2)]
    ),
    pair(  # 8, 16, then 24 instead of 32 and the rest from the rate
        "growth:milestones=1+2:factor=2", 3,
        batch=lambda epoch: [8, 16, 24][min(epoch, 2)],
        factor=lambda now: [1.0, 1.0, 3 / 4][min(int(now), 2)],
    ),
    pair("stale", 2, lag=1),
    pair("stale:lag=3", 2, lag=3),
    pair("asynchronous", 4, lag=3),
    pair("asynchronous:bound=1", 4, lag=1),
    pair(  # until its first measure: the recipe's batch
        "curvature-adversarial:epsilon=0.1:share=0.5", 2, attack=fast_gradient_sign, model=with_norm
    ),
]  # fmt: skip
ADAPTIVE = {"curvature", "curvature-adversarial", "noise"}
"""Also or only further down, over several epochs."""


def names(pair: Pair) -> str:
    return f"{pair.strategy} k={pair.k}"


def test_no_strategy_is_forgotten() -> None:
    assert {pair.strategy.split(":")[0] for pair in PAIRS} | ADAPTIVE == set(BUILT_IN)


def same_bits(found: list[Weights], expected: list[Weights]) -> None:
    assert len(found) == len(expected)
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a, b), f"update {number}"


def close(found: list[Weights], expected: list[Weights]) -> None:
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(
                a.numpy(), b.numpy(), rtol=1e-10, atol=1e-12, err_msg=f"update {number}"
            )


@pytest.mark.parametrize("pair", PAIRS, ids=names)
def test_updates_are_those_of_a_plain_loop_bit_for_bit(pair: Pair, session: Session) -> None:
    """Where the batch is the recipe's, a grain is the batch, and the loop is the simplest there is;
    where it is larger, the loop accumulates pieces of the recipe's size."""
    updates = 4 if pair.strategy.startswith("curvature") else UPDATES
    found = by_samepath(
        session, pair.strategy, pair.k,
        optimizer=pair.optimizer, updates=updates, model=pair.model,
    )  # fmt: skip
    same_bits(found, by_hand(pair.rule, updates=updates, model=pair.model))


@pytest.mark.parametrize("pair", [p for p in PAIRS if p.model is simple], ids=names)
def test_with_small_grains_they_differ_by_rounding_only(pair: Pair, session: Session) -> None:
    """float64, relative 1e-10: grains of 3 (8 examples are 3, 3 and 2) against whole batches."""
    found = by_samepath(
        session,
        pair.strategy,
        pair.k,
        optimizer=pair.optimizer,
        dtype=torch.float64,
        grain_size=3,
    )
    whole = by_hand(pair.rule, dtype=torch.float64, piece_size=NUM_EXAMPLES)
    close(found, whole)
    slower = replace(pair.rule, factor=lambda now: 0.999 * pair.rule.factor(now))
    other = by_hand(slower, dtype=torch.float64, piece_size=NUM_EXAMPLES)
    with pytest.raises(AssertionError):
        close(found, other)  # the tolerance tells rules apart


# ---- rules that measure


def measured_sample(num_pieces: int, piece_size: int) -> list[Tensor]:
    """The examples that measures look at, in pieces."""
    order = epoch_order(NUM_EXAMPLES, key("measure", SEED), 0).copy()
    whole = min(num_pieces, NUM_EXAMPLES // piece_size) * piece_size
    return list(torch.split(torch.from_numpy(order[:whole]), piece_size))


def flat_gradient(model: nn.Module, batch: Data) -> Tensor:
    model.zero_grad()
    classify(model, batch).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def top_eigenvalue(model: nn.Module, batch: Data) -> float:
    """The largest in size, from the whole Hessian."""
    named = dict(model.named_parameters())
    sizes = [p.numel() for p in named.values()]

    def loss(flat: Tensor) -> Tensor:
        parts = zip(named, torch.split(flat, sizes), strict=True)
        given = {name: part.view_as(named[name]) for name, part in parts}
        return F.cross_entropy(functional_call(model, given, (batch[0],)), batch[1])

    flat = torch.cat([p.detach().flatten() for p in named.values()])
    hessian = torch.autograd.functional.hessian(loss, flat)
    assert isinstance(hessian, Tensor)
    return float(torch.linalg.eigvalsh(hessian).abs().max())


def test_noise_chooses_the_batch_that_grain_gradients_say(session: Session) -> None:
    """McCandlish et al. 2018, equation A.2 and A.3, from the gradients of seven pieces of 4."""
    k, dtype, grain = 3, torch.float64, 4
    factors = [1.0]
    parts: list[tuple[float, float]] = []
    inputs, labels = data(dtype)

    def measure(model: nn.Module) -> None:
        pieces = measured_sample(16, grain)
        gradients = [flat_gradient(model, (inputs[piece], labels[piece])) for piece in pieces]
        few, many = grain, grain * len(pieces)
        small = sum(float(g.square().sum()) for g in gradients) / len(pieces)
        big = float((sum(gradients[1:], gradients[0]) / len(pieces)).square().sum())
        parts.append(
            ((small - big) / (1 / few - 1 / many), (many * big - few * small) / (many - few))
        )
        recent = parts[-2:]  # the window
        variance, signal = (sum(column) for column in zip(*recent, strict=True))
        scale = variance / signal / BATCH if signal > 0 else math.inf
        assert scale > k or abs(scale - round(scale)) > 1e-6, "rounding decides nothing here"
        factors.append(math.floor(min(max(scale, 1), k)))

    def slow(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    rule = Rule(
        batch=lambda epoch: round(BATCH * factors[epoch]),
        factor=lambda now: math.sqrt(factors[int(now)]),
        reference=slow,
    )
    expected = by_hand(
        rule, dtype=dtype, piece_size=NUM_EXAMPLES, updates=20, model=lopsided, end_epoch=measure
    )
    found = by_samepath(
        session, "noise:window=2", k,
        dtype=dtype, grain_size=grain, updates=20, model=lopsided, optimizer=slow,
    )  # fmt: skip
    close(found, expected)
    assert factors == sorted(factors)
    assert set(factors) == {1, 2, 3}, f"the batch follows: {factors}"


@pytest.mark.parametrize(("attacked", "fall"), [(False, 1.1), (True, 1.2)])
def test_curvature_grows_when_the_exact_hessian_says(
    attacked: bool, fall: float, session: Session
) -> None:
    """The top eigenvalue of the whole Hessian, and the rule by hand. (The measure may be 2% off: no
    epoch here comes that close to a decision.)"""
    k, dtype, patience = 3, torch.float64, 3
    factors = [1.0]
    reference: list[float] = []
    why: list[str] = []
    waited = 0
    inputs, labels = data(dtype)

    def measure(model: nn.Module) -> None:
        nonlocal waited
        sample = torch.cat(measured_sample(8, BATCH))
        now = top_eigenvalue(model, (inputs[sample], labels[sample]))
        waited += 1
        if not reference:
            reference.append(now)
        ratio = reference[-1] / now
        assert abs(ratio / fall - 1) > 0.03 or waited == patience, f"too close: {ratio}"
        grow = ratio >= fall or waited == patience
        factors.append(min(factors[-1] * 2, k) if grow else factors[-1])
        if grow:
            why.append("fall" if ratio >= fall else "patience")
            reference.append(now)
            waited = 0

    strategy = f"curvature:fall={fall}:patience={patience}"
    rule = Rule(
        batch=lambda epoch: round(BATCH * factors[epoch]), factor=lambda now: factors[int(now)]
    )
    if attacked:
        strategy = strategy.replace("curvature", "curvature-adversarial")
        strategy += ":epsilon=0.1:share=0.5:until=99"
        rule = replace(rule, attack=fast_gradient_sign)
    expected = by_hand(rule, dtype=dtype, updates=28, model=steep, end_epoch=measure)
    found = by_samepath(session, strategy, k, dtype=dtype, updates=28, model=steep)
    same_bits(found, expected)
    assert set(why) == {"fall", "patience"}, f"{why} {factors}"
    assert factors[-1] == 3, factors


# ---- the same mathematics by two names


def test_stale_without_lag_is_synchronous(session: Session) -> None:
    strong = by_samepath(session, "strong", 4)
    same_bits(by_samepath(session, "stale:lag=0", 4), strong)
    late = by_samepath(session, "stale", 4)
    assert torch.equal(late[0][0], strong[0][0]), "the first gradient is of the first weights"
    assert not torch.equal(late[1][0], strong[1][0]), "the second one too"


@pytest.mark.parametrize("name", ["asynchronous", "stale:lag=3", "weak", "warmup", "noise"])
def test_one_worker_is_the_sequential_run(name: str, session: Session) -> None:
    same_bits(by_samepath(session, name, 1), by_samepath(session, "strong", 1))


def test_three_asynchronous_workers_are_a_lag_of_two(session: Session) -> None:
    """Three workers of one speed take turns: between the moment one takes the weights and the
    moment its gradient is applied, the two others have each applied theirs. So every gradient is
    two updates old (the first three are of the first weights), which is what stale:lag=2 says."""
    found = by_samepath(session, "asynchronous", 3)
    same_bits(found, by_samepath(session, "stale:lag=2", 2))
    assert not torch.equal(found[-1][0], by_samepath(session, "stale:lag=1", 2)[-1][0])


def test_growth_is_decay_for_one_worker(session: Session) -> None:
    parameters = ":milestones=1:factor=2"
    found = by_samepath(session, "growth" + parameters, 1)
    same_bits(found, by_samepath(session, "decay" + parameters, 1))
    assert not torch.equal(found[-1][0], by_samepath(session, "strong", 1)[-1][0])


def test_growth_and_decay_take_the_same_examples(tmp_path: Path) -> None:
    counts = {}
    for name in ("growth", "decay"):
        examples: list[int] = []

        def watch(run: Run, examples: list[int] = examples) -> Callable[[object], None]:
            run.after_step = lambda _, results: examples.extend(r.num_examples for r in results)
            return lambda result: None

        request = Request(
            recipe=str(Path(__file__).with_name("tiny_recipe.py")),
            num_workers=1,
            strategy=f"{name}:milestones=1+2:factor=2",
            virtual_workers=4,
            epochs=4,
            out=tmp_path / name,
            watch=watch,
        )
        train(request)
        counts[name] = (sum(examples), len(examples))
    assert counts["decay"] == (4 * 44, 4 * 5)
    assert counts["growth"] == (4 * 44, 5 + 3 + 2 + 2)  # batches of 10, 20, 40 and 40
