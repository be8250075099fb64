"""PyTorch constructs that people use, each with what samepath makes of it.

A construct is a small training: 44 examples in batches of 14 (7 grains of 2, no power of two) and a
last batch of 2, in which most workers have no grain. `train` runs it through the engine and
`plain_loop` as anyone would write it. `docs/promise.md` shows one row for each.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from samepath.data import seed_everything
from samepath.engine.run.session import Session
from samepath.engine.state.state import digest, state_of
from samepath.errors import ReplicasDiffer, UserError
from samepath.keys import key
from samepath.plan import epoch_order

NUM_EXAMPLES, BATCH, GRAIN, EPOCHS = 44, 14, 2, 2

Verdict = Literal["same bits", "refused", "yours to keep"]
Loss = Callable[[nn.Module, Any], Tensor]


@dataclass(kw_only=True)
class Training:
    """What a construct makes."""

    model: nn.Module
    data: Any
    loss: Loss
    optimizer: torch.optim.Optimizer
    settings: dict[str, Any] = field(default_factory=dict)
    before_step: Callable[[int], None] = lambda step: None
    valid: Any = None
    """Evaluated after every epoch."""


@dataclass(frozen=True, kw_only=True)
class Construct:
    """One row of the table."""

    name: str
    verdict: Verdict
    words: str
    make: Callable[[], Training]
    says: str = ""
    """Of a refusal: a part of the message."""
    plain: bool = True
    """With one grain per batch it is a plain loop, bit for bit; and the gradient of small grains is
    that of a plain backward pass, up to rounding."""
    gradient: bool = True
    """The latter."""
    only_workers: bool = False
    """There is something to refuse only where there are several workers."""


CONSTRUCTS: dict[str, Construct] = {}


def _add(verdict: Verdict, words: str, **more: Any) -> Callable[[Any], Any]:
    def add(make: Callable[[], Training]) -> Callable[[], Training]:
        name = make.__name__
        assert name not in CONSTRUCTS
        CONSTRUCTS[name] = Construct(name=name, verdict=verdict, words=words, make=make, **more)
        return make

    return add


def same(words: str, **more: Any) -> Callable[[Any], Any]:
    return _add("same bits", words, **more)


def refused(words: str, says: str, **more: Any) -> Callable[[Any], Any]:
    return _add("refused", words, says=says, **more)


def yours(words: str, **more: Any) -> Callable[[Any], Any]:
    return _add("yours to keep", words, **more)


# ---- running one


def train(construct: Construct, session: Session, *, grain_size: int = GRAIN) -> dict[str, Any]:
    """Through the engine; everything that must not depend on the worker count, or the refusal."""
    seed_everything(1)
    try:
        made = construct.make()
        trainer = session.prepare(
            made.model,
            made.optimizer,
            made.loss,
            batch_size=BATCH,
            grain_size=grain_size,
            **made.settings,
        )
        losses: list[str] = []
        gradient = {}
        for epoch in range(EPOCHS):
            for share in trainer.batches(made.data, epoch):
                made.before_step(trainer.step_number)
                result = trainer.step(share)
                losses.append(result.loss.hex())
                if trainer.step_number == 1:
                    gradient = _gradient(made.model)
            if made.valid is not None:
                losses.append(trainer.evaluate(made.valid)["loss"].hex())
        trainer.compare_replicas("at the end")
    except (UserError, ReplicasDiffer) as error:
        return {"refused": str(error), "kind": type(error).__name__}
    return {
        "digest": digest(state_of(trainer)),
        "losses": losses,
        "gradient": gradient,
        "between": random.random().hex(),
    }


def _gradient(model: nn.Module) -> dict[str, list[float]]:
    return {
        name: torch.view_as_real(p.grad).flatten().tolist()
        if p.grad.is_complex()
        else p.grad.flatten().tolist()
        for name, p in model.named_parameters()
        if p.grad is not None
    }


def plain_loop(construct: Construct) -> dict[str, Any]:
    """Plain PyTorch. Random numbers are those the engine gives a batch of one grain."""
    seed_everything(1)
    made = construct.make()
    step, gradient = 0, {}
    parts = made.data if isinstance(made.data, tuple) else (made.data,)
    for epoch in range(EPOCHS):
        for examples in torch.split(
            torch.from_numpy(epoch_order(NUM_EXAMPLES, 7, epoch).copy()), BATCH
        ):
            made.before_step(step)
            batch = tuple(part[examples] for part in parts)
            made.optimizer.zero_grad()
            seed_everything(key("grain", 7, step, 0))
            weight = made.settings.get("weight")
            loss = made.loss(made.model, batch if isinstance(made.data, tuple) else batch[0])
            if weight is None or weight(batch):
                loss.backward()
                if "clip_norm" in made.settings:
                    nn.utils.clip_grad_norm_(made.model.parameters(), made.settings["clip_norm"])
                if step == 0:
                    gradient = _gradient(made.model)
                seed_everything(key("update", 7, step))
                made.optimizer.step()
            step += 1
            seed_everything(key("between steps", 7, step))
    tensors = {**dict(made.model.named_parameters()), **dict(made.model.named_buffers())}
    return {"tensors": tensors, "gradient": gradient}


# ---- data and pieces


def vectors(width: int = 8) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(3)
    return (
        torch.randn(NUM_EXAMPLES, width, generator=made),
        torch.randint(0, 4, (NUM_EXAMPLES,), generator=made),
    )


def tokens(length: int = 5) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(2)
    words = torch.randint(0, 12, (NUM_EXAMPLES, length), generator=made)
    return words, words.sum(1) % 4


def dense() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))


def classify(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]).float(), batch[1])


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def training(
    model: nn.Module | None = None,
    *,
    loss: Loss = classify,
    data: Any = None,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
    before_step: Callable[[int], None] = lambda step: None,
    valid: Any = None,
    **settings: Any,
) -> Training:
    model = dense() if model is None else model
    return Training(
        model=model,
        data=vectors() if data is None else data,
        loss=loss,
        optimizer=optimizer(model),
        settings=settings,
        before_step=before_step,
        valid=valid,
    )


def first(model: nn.Sequential) -> nn.Linear:
    layer = model[0]
    assert isinstance(layer, nn.Linear)
    return layer


class Around(nn.Module):
    """A model around a dense one; subclasses say what else happens."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = dense()

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.dense(inputs)
        return scores


# ---- gradients


@same("`checkpoint(use_reentrant=True)`, also around one module in several segments")
def reentrant_checkpoint() -> Training:
    class Segments(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.shared = nn.Linear(8, 8), nn.Linear(8, 8)
            self.head = nn.Linear(8, 4)

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = self.first(inputs)
            for _ in range(3):
                hidden = checkpoint(lambda h: self.shared(h).tanh(), hidden, use_reentrant=True)
            scores: Tensor = self.head(hidden)
            return scores

    return training(Segments())


@same("gradient penalties (`torch.autograd.grad(..., create_graph=True)` in the loss)")
def gradient_penalty() -> Training:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs = batch[0].clone().requires_grad_()
        scores = model(inputs)
        (slope,) = torch.autograd.grad(scores.square().sum(), inputs, create_graph=True)
        return F.cross_entropy(scores, batch[1]) + 0.1 * slope.square().sum(1).mean()

    return training(loss=loss)


@same("penalties on parameters in the loss")
def parameter_penalty() -> Training:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return classify(model, batch) + 0.01 * sum(p.abs().sum() for p in model.parameters())

    return training(loss=loss)


@same("`Tensor.register_hook` on a parameter: it sees a grain's gradient, scaled to its share")
def tensor_hook() -> Training:
    model = dense()
    first(model).weight.register_hook(lambda gradient: 2 * gradient)
    return training(model)


def _three_times(module: nn.Module, inputs: Any, outputs: Any) -> tuple[Tensor]:
    return (3 * inputs[0],)


@same("`register_full_backward_hook`")
def module_backward_hook() -> Training:
    model = dense()
    model[2].register_full_backward_hook(_three_times)
    return training(model)


@same("a `torch.autograd.Function` of your own")
def own_function() -> Training:
    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, inputs: Tensor) -> Tensor:
            return inputs.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return -gradients[0]

    class Model(Around):
        def forward(self, inputs: Tensor) -> Tensor:
            hidden = Reverse.apply(self.dense[0](inputs))  # type: ignore[no-untyped-call]
            scores: Tensor = self.dense[2](hidden.tanh())
            return scores

    return training(Model())


@same("a loss in bfloat16, whatever its share of the batch")
def bfloat16_loss() -> Training:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]).bfloat16(), batch[1])

    return training(loss=loss)


@same("complex, empty and scalar parameters")
def odd_parameters() -> Training:
    class Model(Around):
        def __init__(self) -> None:
            super().__init__()
            self.phase = nn.Parameter(torch.randn(4, dtype=torch.complex64))
            self.nothing = nn.Parameter(torch.zeros(0))
            self.scale = nn.Parameter(torch.tensor(1.5))

        def forward(self, inputs: Tensor) -> Tensor:
            turned: Tensor = (self.dense(inputs) * self.phase).real
            return turned * self.scale + self.nothing.sum()

    return training(Model())


@same("a loss of shape (1,)")
def loss_with_one_value() -> Training:
    return training(loss=lambda model, batch: classify(model, batch).reshape(1))


@same("`torch.func.functional_call` in the loss")
def functional_call() -> Training:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        doubled = {name: 2 * p for name, p in model.named_parameters()}
        return F.cross_entropy(torch.func.functional_call(model, doubled, (batch[0],)), batch[1])

    return training(loss=loss)


@same("`torch.compile` (tested with its aot_eager backend; inductor tried by hand)")
def compiled() -> Training:
    model = dense()
    return training(torch.compile(model, backend="aot_eager"))  # type: ignore[arg-type]


@refused("`register_post_accumulate_grad_hook` of your own", "register_post_accumulate_grad_hook")
def post_accumulate_hook() -> Training:
    model = dense()
    first(model).weight.register_post_accumulate_grad_hook(lambda p: None)
    return training(model)


@refused("a backward pass inside `loss`", "backward pass of its own")
def backward_in_loss() -> Training:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        classify(model, batch).backward()
        return classify(model, batch)

    return training(loss=loss)


@refused("sparse gradients (`nn.Embedding(sparse=True)`, `F.embedding(sparse=True)`)", "sparse")
def sparse_gradients() -> Training:
    model = nn.Sequential(nn.EmbeddingBag(12, 4, sparse=True, mode="sum"))
    return training(
        model, data=tokens(), optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1)
    )


@refused("a loss that is not one number", "has shape")
def loss_of_many() -> Training:
    return training(
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    )


# ---- freezing


@same("freezing and thawing between steps, with momentum, weight decay and clipping")
def freezing() -> Training:
    model = dense()

    def turn(step: int) -> None:
        model[0].requires_grad_(step < 2 or step >= 5)

    return training(model, before_step=turn, clip_norm=0.5)


@same("`requires_grad_(False)` inside `forward`")
def freezing_in_forward() -> Training:
    class Model(Around):
        def forward(self, inputs: Tensor) -> Tensor:
            self.dense[0].requires_grad_(False)
            return super().forward(inputs)

    return training(Model())


@same("batch norm kept in evaluation mode (fine-tuning)")
def frozen_batch_norm() -> Training:
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))
    model[1].eval()
    return training(model)


@refused("no parameter that requires a gradient", "no parameter of the model requires")
def all_frozen() -> Training:
    model = dense()
    optimizer = sgd(model)
    model.requires_grad_(False)
    return training(model, optimizer=lambda _: optimizer)


# ---- weights that something other than the optimizer changes


@same("a weight clamp in `forward`")
def weight_clamp() -> Training:
    class Model(Around):
        def forward(self, inputs: Tensor) -> Tensor:
            first(self.dense).weight.data.clamp_(-0.2, 0.2)
            return super().forward(inputs)

    return training(Model())


@same("a weight clamp in `forward` that bites only later")
def late_weight_clamp() -> Training:
    class Model(Around):
        def forward(self, inputs: Tensor) -> Tensor:
            with torch.no_grad():
                first(self.dense).weight.clamp_(-0.36, 0.36)
            return super().forward(inputs)

    return training(Model(), optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.3))


class Teacher(nn.Module):
    """A student, and a teacher that follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.student = dense()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.student(inputs)
        return scores

    def follow(self) -> None:
        for slow, quick in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            slow.data.mul_(0.9).add_(quick.data, alpha=0.1)


def consistency(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    assert isinstance(model, Teacher)
    away: Tensor = (model(batch[0]) - model.teacher(batch[0])).square().mean()
    return classify(model, batch) + away


@same("a teacher that follows the student in the loss (mean teacher): it moves once a step")
def teacher_in_loss() -> Training:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        assert isinstance(model, Teacher)
        model.follow()
        return consistency(model, batch)

    return training(Teacher(), loss=loss)


@same("a teacher that follows in `optimizer.register_step_post_hook`")
def teacher_in_optimizer_hook() -> Training:
    model = Teacher()
    optimizer = torch.optim.SGD(model.student.parameters(), lr=0.05, momentum=0.9)
    optimizer.register_step_post_hook(lambda *_: model.follow())
    return training(model, loss=consistency, optimizer=lambda _: optimizer)


@same("a teacher in buffers")
def teacher_in_buffers() -> Training:
    class Model(Around):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("slow", first(self.dense).weight.detach().clone())
            self.slow: Tensor

        def forward(self, inputs: Tensor) -> Tensor:
            if self.training:
                self.slow.mul_(0.9).add_(first(self.dense).weight.detach(), alpha=0.1)
            return super().forward(inputs) + F.linear(inputs, self.slow)[:, :4]

    return training(Model())


@same("`swa_utils.AveragedModel` updated between steps")
def averaged_model() -> Training:
    model = dense()
    averaged = torch.optim.swa_utils.AveragedModel(model)

    def turn(step: int) -> None:
        averaged.update_parameters(model)
        if step == 4:
            with torch.no_grad():
                for p, q in zip(model.parameters(), averaged.module.parameters(), strict=True):
                    p.copy_(q)

    return training(model, before_step=turn)


@same("a teacher that begins as the student's copy (`lerp_`, torch's own EMA)")
def teacher_by_lerp() -> Training:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        assert isinstance(model, Teacher)
        with torch.no_grad():
            for slow, quick in zip(
                model.teacher.parameters(), model.student.parameters(), strict=True
            ):
                slow.lerp_(quick, 0.1)
        return consistency(model, batch)

    return training(Teacher(), loss=loss)


@same("an optimizer that keeps the last gradient (`state['previous'] = p.grad`)")
def kept_gradient() -> Training:
    class Extrapolates(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.05})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for parameter in self.param_groups[0]["params"]:
                state = self.state[parameter]
                previous = state.get("previous", parameter.grad)
                parameter.sub_(0.05 * (1.5 * parameter.grad - 0.5 * previous))
                state["previous"] = parameter.grad

    return training(optimizer=lambda model: Extrapolates(model.parameters()))


@same("a mask or another buffer that you assign between steps (pruning)")
def buffer_between_steps() -> Training:
    class Model(Around):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.ones(4))
            self.mask: Tensor

        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs) * self.mask

    model = Model()

    def turn(step: int) -> None:
        if step in (2, 5):
            model.mask = torch.arange(4.0) * step

    return training(model, before_step=turn)


@same("a layer that is added between steps (progressive growing)", gradient=False)
def layer_added() -> Training:
    model = nn.Sequential(nn.Linear(8, 4))
    optimizer = sgd(model)

    def turn(step: int) -> None:
        if step == 1:
            layer = nn.BatchNorm1d(4)
            model.append(layer)
            optimizer.add_param_group({"params": [*layer.parameters()]})

    return training(model, optimizer=lambda _: optimizer, before_step=turn)


@same("a parameter that only some grains use, by index (versions of gradients differ)")
def sometimes_indexed() -> Training:
    class Model(Around):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.zeros(3, 4))

        def forward(self, inputs: Tensor) -> Tensor:
            hit = inputs[:, 0] > 1.0
            scores = super().forward(inputs)
            return scores + self.table[hit.long()] * hit[:, None] if hit.any() else scores

    return training(Model())


@same("a grain whose loss has no gradient (nothing in it to learn from)", plain=False)
def loss_without_graph() -> Training:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        keep = batch[0][:, 0] > 0.3
        return classify(model, (batch[0][keep], batch[1][keep])) if keep.any() else torch.zeros(())

    return training(loss=loss)


@refused("a module of the loss, outside the model, with buffers or weights that it changes",
         "not in the model")  # fmt: skip
def stateful_loss() -> Training:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("centre", torch.zeros(4))
            self.centre: Tensor

        def forward(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            scores = model(batch[0])
            self.centre.mul_(0.9).add_(scores.detach().mean(0), alpha=0.1)
            return F.cross_entropy(scores - self.centre, batch[1])

    return training(loss=Centred())


@refused("weights that `forward` begins to change after the first steps", "not in the first steps")
def late_teacher() -> Training:
    model = Teacher()
    now = 0

    def turn(step: int) -> None:
        nonlocal now
        now = step

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        assert isinstance(model, Teacher)
        if now == 2:
            with torch.no_grad():
                for slow in model.teacher.parameters():
                    slow.mul_(0.9)
        return consistency(model, batch)

    return training(model, loss=loss, before_step=turn)


@refused("a bank of one value per example in a buffer", "queue or a memory bank")
def loss_bank() -> Training:
    class Model(Around):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("bank", torch.ones(NUM_EXAMPLES))
            self.bank: Tensor

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        assert isinstance(model, Model)
        each = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
        if model.training:
            model.bank[batch[2]] = each.detach()
        return each.mean()

    return training(Model(), data=(*vectors(), torch.arange(NUM_EXAMPLES)), loss=loss)


@refused("`nn.Embedding(max_norm=...)`", "max_norm")
def embedding_max_norm() -> Training:
    return training(nn.Sequential(nn.EmbeddingBag(12, 4, max_norm=1.0)), data=tokens())


@refused("`F.embedding(max_norm=...)`: each grain changes other weights", "in different grains")
def functional_max_norm() -> Training:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Parameter(torch.randn(12, 4))

        def forward(self, words: Tensor) -> Tensor:
            return F.embedding(words, self.words, max_norm=0.5).mean(1)

    return training(Model(), data=tokens())


@refused("weights initialised from the first data they meet (ActNorm)", "in different grains")
def data_dependent_start() -> Training:
    class Model(Around):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(8))
            self.is_ready = False

        def forward(self, inputs: Tensor) -> Tensor:
            if not self.is_ready:
                self.shift.data.copy_(-inputs.mean(0))
                self.is_ready = True
            return super().forward(inputs + self.shift)

    return training(Model())


@refused("weights that differ between workers before the first step", "before the first step",
         only_workers=True)  # fmt: skip
def other_weights() -> Training:
    model = dense()
    with torch.no_grad():
        first(model).bias.fill_(float(_worker()))
    return training(model)


@refused("a learning rate that reads the worker's number", "other settings", only_workers=True)
def other_rate() -> Training:
    rate = 0.1 + _worker()
    return training(optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=rate))


@refused("data drawn anew by every worker", "computes the first grain differently",
         only_workers=True)  # fmt: skip
def other_data() -> Training:
    inputs, labels = vectors()
    return training(data=(inputs + _worker(), labels))


@refused("weights changed on some workers only, between steps (found within 16)",
         "is not that of worker 0", only_workers=True)  # fmt: skip
def drift() -> Training:
    model = dense()

    def turn(step: int) -> None:
        if step == 2 and _worker() == 1:
            with torch.no_grad():
                first(model).bias[1] += 1e-6

    return training(model, before_step=turn)


def _worker() -> int:
    import os

    return int(os.environ.get("RANK", "0"))


# ---- buffers


@same("a counter in a float buffer: counted once a step")
def float_counter() -> Training:
    class Model(Around):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.calls: Tensor

        def forward(self, inputs: Tensor) -> Tensor:
            if self.training:
                self.calls += 1
            return super().forward(inputs) * (1 + 0.01 * self.calls)

    return training(Model())


@same("buffers of int16, bool, float8 and other types that gloo does not carry")
def odd_buffers() -> Training:
    class Model(Around):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("short", torch.zeros(3, dtype=torch.int16))
            self.register_buffer("flag", torch.zeros(2, dtype=torch.bool))
            self.register_buffer("eight", torch.ones(2).to(torch.float8_e4m3fn))
            self.register_buffer("brief", torch.zeros(2, dtype=torch.float16))
            self.register_buffer("wave", torch.zeros(2, dtype=torch.complex64))
            self.short: Tensor
            self.flag: Tensor
            self.brief: Tensor
            self.wave: Tensor

        def forward(self, inputs: Tensor) -> Tensor:
            scores = super().forward(inputs)
            if self.training:
                self.short += 1
                self.flag = ~self.flag
                self.brief += 0.5
                self.wave += scores.detach().mean() * 1j
            return scores

    return training(Model())


@same("a buffer that changes from 0.0 to -0.0")
def signed_zero_buffer() -> Training:
    class Model(Around):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("zero", torch.zeros(2))
            self.zero: Tensor

        def forward(self, inputs: Tensor) -> Tensor:
            if self.training:
                self.zero.mul_(-1.0)
            return super().forward(inputs)

    return training(Model())


@same("a buffer that is given other memory (`buffer.data = ...`)", gradient=False)
def buffer_data_replaced() -> Training:
    class Model(Around):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))
            self.mean: Tensor

        def forward(self, inputs: Tensor) -> Tensor:
            scores = super().forward(inputs)
            if self.training:
                self.mean.data = 0.9 * self.mean + 0.1 * scores.detach().mean(0)
            return scores - self.mean

    return training(Model(), optimizer=sgd)


@same("spectral norm and weight norm (parametrizations)")
def parametrizations() -> Training:
    model = dense()
    nn.utils.parametrizations.spectral_norm(model[0])
    nn.utils.parametrizations.weight_norm(model[2])
    return training(model)


@same("batch and instance norm with running statistics: each grain's own, averaged",
      gradient=False)  # fmt: skip
def running_statistics() -> Training:
    model = nn.Sequential(
        nn.Unflatten(1, (2, 4)),
        nn.InstanceNorm1d(2, track_running_stats=True),
        nn.Flatten(),
        nn.BatchNorm1d(8),
        nn.Linear(8, 4),
    )
    return training(model)


@same("a buffer that evaluation changes: it is put back, and that is said", plain=False)
def buffer_changed_in_evaluation() -> Training:
    class Model(Around):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("asked", torch.zeros(()))
            self.asked: Tensor

        def forward(self, inputs: Tensor) -> Tensor:
            if not self.training:
                self.asked += 1
            return super().forward(inputs) + 0.001 * self.asked

    return training(Model(), valid=vectors())


@same("a batch whose weights are all 0: it changes nothing, not even batch norm's statistics")
def batch_of_no_weight() -> Training:
    inputs, labels = vectors()
    order = epoch_order(NUM_EXAMPLES, 7, 0)
    labels[torch.from_numpy(order[BATCH : 2 * BATCH].copy())] = -1
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], ignore_index=-1)

    return training(
        model,
        data=(inputs, labels),
        loss=loss,
        weight=lambda batch: float((batch[1] >= 0).sum()),
    )


@same("a loss that looks parameters up by themselves (in a dictionary of its own)")
def keyed_by_parameters() -> Training:
    model = dense()
    shares = {parameter: 0.01 * place for place, parameter in enumerate(model.parameters())}

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        penalty = sum(shares[p] * p.square().sum() for p in model.parameters())
        return classify(model, batch) + penalty

    return training(model, loss=loss)


@same("class weights, with `weight=` the sum of the examples' weights")
def class_weights() -> Training:
    by_class = torch.tensor([0.5, 1.0, 2.0, 3.5])

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], weight=by_class)

    return training(loss=loss, weight=lambda batch: float(by_class[batch[1]].sum()))


@refused("a queue in a buffer (MoCo), which a pointer indexes", "queue or a memory bank")
def queue_buffer() -> Training:
    class Model(Around):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("queue", F.normalize(torch.randn(4, 28), dim=0))
            self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))
            self.queue: Tensor
            self.pointer: Tensor

        def forward(self, inputs: Tensor) -> Tensor:
            scores = super().forward(inputs)
            if self.training:
                place = int(self.pointer)
                self.queue[:, place : place + len(inputs)] = scores.detach().T
                self.pointer[0] = (place + len(inputs)) % 28
            return scores + scores @ self.queue.mean(1, keepdim=True)

    return training(Model())


@refused("a memory bank in a buffer, indexed by example", "queue or a memory bank")
def memory_bank() -> Training:
    class Model(Around):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("bank", torch.randn(12, 4))
            self.bank: Tensor

        def forward(self, words: Tensor) -> Tensor:
            scores = super().forward(F.one_hot(words[:, 0], 12).float()[:, :8])
            if self.training:
                self.bank[words[:, 0]] = scores.detach()
            return scores

    return training(Model(), data=tokens())


@refused("a buffer that is None at first, or made in `forward`", "made during training")
def buffer_made_late() -> Training:
    class Model(Around):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", None)

        def forward(self, inputs: Tensor) -> Tensor:
            if self.training:
                self.seen = inputs.mean(0)
            return super().forward(inputs)

    return training(Model())


@refused("an integer buffer that comes out differently in different grains", "no rule to merge")
def integer_buffer() -> Training:
    class Model(Around):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("positive", torch.zeros((), dtype=torch.long))
            self.positive: Tensor

        def forward(self, inputs: Tensor) -> Tensor:
            self.positive += (inputs > 0).sum()
            return super().forward(inputs)

    return training(Model())


@refused("a buffer that changes its shape", "changes its shape")
def growing_buffer() -> Training:
    class Model(Around):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(0))
            self.seen: Tensor

        def forward(self, inputs: Tensor) -> Tensor:
            self.seen = torch.cat([self.seen, inputs[:, 0].detach()])
            return super().forward(inputs)

    return training(Model())


@refused("a sparse buffer", "sparse_coo")
def sparse_buffer() -> Training:
    model = dense()
    model.register_buffer("graph", torch.eye(4).to_sparse())
    return training(model)


@refused("a float8 buffer that grains leave differently", "too coarse")
def float8_statistics() -> Training:
    class Model(Around):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("peak", torch.zeros(2).to(torch.float8_e4m3fn))
            self.peak: Tensor

        def forward(self, inputs: Tensor) -> Tensor:
            if self.training:
                self.peak = inputs[0, :2].detach().to(torch.float8_e4m3fn)
            return super().forward(inputs)

    return training(Model())


# ---- randomness


class Langevin(torch.optim.Optimizer):
    """SGD with noise (Welling and Teh 2011)."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    noise = torch.randn_like(parameter) * (0.01 * group["lr"]) ** 0.5
                    parameter.sub_(group["lr"] * parameter.grad - noise)


@same("an optimizer that draws random numbers (Langevin dynamics)")
def random_optimizer() -> Training:
    return training(optimizer=lambda model: Langevin(model.parameters(), lr=0.05))


@same("random numbers drawn between the steps of your own loop")
def random_between_steps() -> Training:
    model = dense()
    optimizer = sgd(model)

    def turn(step: int) -> None:
        if step:
            other = nn.Linear(6, 4)
            scale = random.random() + float(np.random.rand()) + float(other.weight.mean())
            optimizer.param_groups[0]["lr"] = 0.05 * (1 + 0.1 * scale)

    return training(model, optimizer=lambda _: optimizer, before_step=turn)


@same("dropout of every kind, `RReLU`, random depth", gradient=False)
def random_layers() -> Training:
    class Model(Around):
        def forward(self, inputs: Tensor) -> Tensor:
            hidden = F.rrelu(self.dense[0](inputs), training=self.training)
            hidden = F.alpha_dropout(hidden, 0.2, training=self.training)
            if random.random() < 0.5:
                hidden = hidden + F.dropout(hidden, 0.5)
            scores: Tensor = self.dense[2](hidden)
            return scores

    return training(Model())


# ---- optimizers


@same("torch's optimizers, fused and foreach kinds too (shown: AdamW, fused)")
def fused_adamw() -> Training:
    return training(optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, fused=True))


@same("Rprop, ASGD, NAdam and others with state of their own (shown: Rprop)")
def rprop() -> Training:
    return training(optimizer=lambda m: torch.optim.Rprop(m.parameters(), lr=0.01))


@same("parameter groups, and a learning rate that you change between steps")
def parameter_groups() -> Training:
    model = dense()
    optimizer = torch.optim.Adam(
        [
            {"params": model[0].parameters(), "lr": 0.01},
            {"params": model[2].parameters(), "lr": 0.05, "betas": (0.8, 0.9)},
        ]
    )

    def turn(step: int) -> None:
        optimizer.param_groups[1]["lr"] = 0.05 / (1 + step)

    return training(model, optimizer=lambda _: optimizer, before_step=turn)


@refused("`LBFGS` and other optimizers that need a closure (SAM)", "closure")
def needs_closure() -> Training:
    class Twice(torch.optim.SGD):
        def step(self, closure: Any) -> None:  # type: ignore[override]
            closure()
            super().step()

    return training(optimizer=lambda m: Twice(m.parameters(), lr=0.1))


@refused("an optimizer of tensors that are not the model's", "not a parameter of the model")
def foreign_tensor() -> Training:
    loose = nn.Parameter(torch.zeros(2))
    return training(optimizer=lambda m: torch.optim.SGD([*m.parameters(), loose], lr=0.1))


@refused("`SyncBatchNorm`, `DistributedDataParallel` and the like", "synchronises workers")
def synchronised_batch_norm() -> Training:
    return training(nn.Sequential(nn.Linear(8, 4), nn.SyncBatchNorm(4)))


@refused("lazy modules that have not seen an example", "no weights before its first forward")
def lazy_module() -> Training:
    return training(
        nn.Sequential(nn.LazyLinear(4)), optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1)
    )


# ---- data


class Pair(NamedTuple):
    """A batch with names."""

    inputs: Tensor
    labels: Tensor


class Named(Dataset[Any]):
    """Items of dicts and named tuples, randomly changed."""

    def __len__(self) -> int:
        return NUM_EXAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        inputs, labels = vectors()
        return {
            "pair": Pair(inputs[index] + 0.1 * torch.randn(8), labels[index]),
            "name": str(index),
        }


@same("batches of dicts, named tuples and text, from a Dataset that draws random numbers",
      plain=False)  # fmt: skip
def nested_batches() -> Training:
    return training(
        data=Named(),
        loss=lambda model, batch: classify(model, (batch["pair"][0], batch["pair"][1])),
    )


@same("a loss that writes into its batch")
def loss_changes_batch() -> Training:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        batch[0].mul_(0.5)
        return classify(model, batch)

    return training(loss=loss)


@refused("an `IterableDataset`", "IterableDataset")
def iterable_dataset() -> Training:
    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Any:
            yield from zip(*vectors(), strict=True)

    return training(data=Endless())


class Shifted(TensorDataset):
    """Items that are not the rows of its tensors."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self.tensors[0][index] + 1, self.tensors[1][index]


@same("a subclass of `TensorDataset`: its own `__getitem__` is used", plain=False)
def tensor_dataset_subclass() -> Training:
    return training(data=Shifted(*vectors()))


@refused("a list of tensors that may be columns or examples", "torch.stack")
def list_of_tensors() -> Training:
    return training(data=list(vectors()[0]))


@refused("a negative `clip_norm`, float16 autocast without scaling, unknown settings", "clip_norm")
def negative_clip() -> Training:
    return training(clip_norm=-1.0)


@refused("`ReduceLROnPlateau` that goes by steps", "ReduceLROnPlateau")
def plateau_by_step() -> Training:
    model = dense()
    optimizer = sgd(model)
    return training(
        model,
        optimizer=lambda _: optimizer,
        schedule=torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
        schedule_every="step",
    )


# ---- what samepath cannot see


@yours("a loss over the whole batch (contrastive, batch Dice): the same bits at every count, but "
       "each grain's own loss", plain=False)  # fmt: skip
def contrastive() -> Training:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        codes = F.normalize(model(batch[0]), dim=1)
        return F.cross_entropy(codes @ codes.T / 0.1, torch.arange(len(codes)))

    return training(loss=loss)


@yours("batch norm, and mixing of examples (MixUp): over a grain, at every count alike",
       plain=False)  # fmt: skip
def mixing() -> Training:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return classify(model, (0.7 * batch[0] + 0.3 * batch[0].flip(0), batch[1]))

    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))
    return training(model, loss=loss)


@yours("sums, maxima and counts of examples in buffers: each grain's from the same start, then "
       "their mean", plain=False)  # fmt: skip
def running_maximum() -> Training:
    class Model(Around):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("most", torch.zeros(()))
            self.most: Tensor

        def forward(self, inputs: Tensor) -> Tensor:
            if self.training:
                self.most = torch.maximum(self.most, inputs.max())
            return super().forward(inputs) / (1 + self.most)

    return training(Model())


@yours("state in Python (a counter of calls): it counts this worker's grains, and the path depends "
       "on the count; `samepath verify` finds it", plain=False)  # fmt: skip
def python_state() -> Training:
    class Model(Around):
        calls = 0

        def forward(self, inputs: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(inputs) * (1 + 0.01 * self.calls)

    return training(Model())


@yours("a generator of your own (`torch.Generator`) in the model: likewise", plain=False)
def own_generator() -> Training:
    made = torch.Generator().manual_seed(5)

    class Model(Around):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs + 0.1 * torch.randn(inputs.shape, generator=made))

    return training(Model())
