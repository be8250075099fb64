"""PyTorch constructs that people use, each with what samepath makes of it.

A construct is a small training: 44 examples in batches of 14 (7 grains of 2, no power of two) and a
last batch of 2, in which most workers have no grain. `train` runs it through the engine and
`plain_loop` as anyone would write it. `docs/promise.md` shows one row for each.
"""

from __future__ import annotations

import copy
import inspect
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
)

from samepath import Draws, WeightedSampler
from samepath.data import seed_everything
from samepath.engine.run.session import Session
from samepath.engine.run.trainer import Trainer
from samepath.engine.state.state import digest, state_of
from samepath.engine.step.loss_metrics import loss_alone
from samepath.errors import ReplicasDiffer, UserError
from samepath.keys import key
from samepath.plan import epoch_order
from samepath.recipe import WholeBatchLoss

NUM_EXAMPLES, BATCH, GRAIN, EPOCHS = 44, 14, 2, 2

Verdict = Literal["same bits", "refused", "yours to keep"]
Batch = tuple[Tensor, Tensor]


@dataclass(kw_only=True)
class Training:
    """What a construct makes."""

    model: Any
    data: Any
    loss: Callable[[Any, Any], Tensor]
    optimizer: torch.optim.Optimizer
    schedule: Any = None
    settings: dict[str, Any] = field(default_factory=dict)
    before_step: Callable[[int], None] = lambda step: None
    valid: Any = None
    """Evaluated after every epoch."""
    epochs: int = EPOCHS

    def prepare(self, session: Session, grain_size: int = GRAIN) -> Trainer:
        return session.prepare(
            self.model, self.optimizer, self.loss, batch_size=BATCH, grain_size=grain_size,
            schedule=self.schedule, **{"name": "", **self.settings},
        )  # fmt: skip


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

    def begin(self) -> Training:
        seed_everything(1)
        return self.make()


CONSTRUCTS: dict[str, Construct] = {}


def _add(
    verdict: Verdict,
    words: str,
    says: str = "",
    *,
    plain: bool = True,
    gradient: bool = True,
    only_workers: bool = False,
    parts: dict[str, Any] = {},  # noqa: B006
    model: Callable[[], Any] = lambda: dense(),
    **settings: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put a function into the table: one that makes a training; or a loss; or the `forward` of a
    model that has a dense one inside, and other parts (whose settings are given here)."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        def make() -> Training:
            match list(inspect.signature(function).parameters):
                case []:
                    made: Training = function()
                    return made
                case ["model", "batch"]:
                    return training(model(), loss=function, **settings)
                case _:
                    return training(around(function, **copy.deepcopy(parts)), **settings)

        name = function.__name__
        assert name not in CONSTRUCTS
        CONSTRUCTS[name] = Construct(
            name=name, verdict=verdict, words=words, make=make, says=says, plain=plain,
            gradient=gradient, only_workers=only_workers,
        )  # fmt: skip
        return function

    return add


same = partial(_add, "same bits")
refused = partial(_add, "refused")
yours = partial(_add, "yours to keep", plain=False)


# ---- running one


def train(made: Training, session: Session, *, grain_size: int = GRAIN) -> dict[str, Any]:
    """Through the engine; everything that must not depend on the worker count, or the refusal."""
    try:
        trainer = made.prepare(session, grain_size)
        losses: list[str] = []
        gradient = {}
        for epoch in range(made.epochs):
            for share in trainer.batches(made.data, epoch):
                made.before_step(trainer.step_number)
                result = trainer.step(share)
                losses += [result.loss.hex(), *(v.hex() for v in result.metrics.values())]
                if trainer.step_number == 1:
                    gradient = _gradient(made.model)
            if made.valid is not None:
                losses.append(trainer.evaluate(made.valid)["loss"].hex())
            if made.schedule is not None:
                trainer.end_epoch()
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
        name: (torch.view_as_real(p.grad) if p.grad.is_complex() else p.grad).flatten().tolist()
        for name, p in model.named_parameters()
        if p.grad is not None
    }


def plain_loop(made: Training) -> dict[str, list[float]]:
    """Train in plain PyTorch; the first gradient. Random numbers are those the engine gives a batch
    of one grain."""
    step, gradient = 0, {}
    parts = made.data if isinstance(made.data, tuple) else (made.data,)
    weight = made.settings.get("weight")
    by_step = made.settings.get("schedule_every") == "step"
    for epoch in range(made.epochs):
        order = torch.from_numpy(epoch_order(len(parts[0]), 7, epoch).copy())
        for examples in torch.split(order, BATCH):
            made.before_step(step)
            batch = tuple(part[examples] for part in parts)
            made.optimizer.zero_grad()
            seed_everything(key("grain", 7, step, 0))
            given = batch if isinstance(made.data, tuple) else batch[0]
            loss = loss_alone(made.loss(made.model, given))
            if weight is None or weight(batch):
                loss.backward()
                if "clip_norm" in made.settings:
                    nn.utils.clip_grad_norm_(made.model.parameters(), made.settings["clip_norm"])
                if step == 0:
                    gradient = _gradient(made.model)
                seed_everything(key("update", 7, step))
                made.optimizer.step()
            if made.schedule is not None and by_step:
                made.schedule.step()
            step += 1
            seed_everything(key("between steps", 7, step))
        if made.schedule is not None and not by_step:
            made.schedule.step()
    return gradient


def bits_of(made: Training) -> dict[str, Any]:
    """Weights, buffers and the optimizer's state, as bytes: 0.0 is not -0.0."""
    found = {**dict(made.model.named_parameters()), **dict(made.model.named_buffers())}
    optimizer = made.optimizer.state_dict()
    for number, state in optimizer["state"].items():
        found |= {f"{number} {name}": v for name, v in state.items() if isinstance(v, Tensor)}
    raw = {name: (v.dtype, v.shape, _bytes_of(v)) for name, v in found.items()}
    return raw | {"groups": optimizer["param_groups"]}


def _bytes_of(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


# ---- data and pieces


def vectors(width: int = 8) -> Batch:
    made = torch.Generator().manual_seed(3)
    return (
        torch.randn(NUM_EXAMPLES, width, generator=made),
        torch.randint(0, 4, (NUM_EXAMPLES,), generator=made),
    )


def tokens(length: int = 5) -> Batch:
    made = torch.Generator().manual_seed(2)
    words = torch.randint(0, 12, (NUM_EXAMPLES, length), generator=made)
    return words, words.sum(1) % 4


def dense() -> Any:
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))


def with_batch_norm(**settings: Any) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6, **settings), nn.Linear(6, 4))


def classify(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]).float(), batch[1])


def classify_valid(model: nn.Module, batch: Batch) -> Tensor:
    """Labels of -1 do not count."""
    return F.cross_entropy(model(batch[0]), batch[1], ignore_index=-1)


def num_valid(batch: Batch) -> float:
    return float((batch[1] >= 0).sum())


SGD = torch.optim.SGD
sgd = partial(SGD, lr=0.05, momentum=0.9, weight_decay=0.01)


def training(
    model: Any = None,
    *,
    loss: Callable[[Any, Any], Tensor] = classify,
    data: Any = None,
    optimizer: Callable[[Any], torch.optim.Optimizer] = sgd,
    schedule: Callable[[Any], Any] = lambda optimizer: None,
    before_step: Callable[[int], None] = lambda step: None,
    valid: Any = None,
    epochs: int = EPOCHS,
    **settings: Any,
) -> Training:
    model = dense() if model is None else model
    made = optimizer(model.parameters())
    return Training(
        model=model, data=vectors() if data is None else data, loss=loss, optimizer=made,
        schedule=schedule(made), settings=settings, before_step=before_step, valid=valid,
        epochs=epochs,
    )  # fmt: skip


class Model(nn.Module):
    """Modules, parameters and buffers by name, and what `forward` does with them."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], **parts: Any) -> None:
        super().__init__()
        self.compute = forward
        for name, part in parts.items():
            if isinstance(part, nn.Module | nn.Parameter):
                setattr(self, name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, inputs: Tensor) -> Any:
        return self.compute(self, inputs)


def around(forward: Callable[[Any, Tensor], Any], **parts: Any) -> Any:
    """A dense model, and more."""
    return Model(forward, dense=dense(), **parts)


# ---- gradients


@same("`checkpoint(use_reentrant=True)`, also around one module in several segments")
def reentrant_checkpoint() -> Training:
    def forward(model: Any, inputs: Tensor) -> Any:
        hidden = model.first(inputs)
        for _ in range(3):
            hidden = checkpoint(lambda h: model.shared(h).tanh(), hidden, use_reentrant=True)
        return model.head(hidden)

    parts = {"first": nn.Linear(8, 8), "shared": nn.Linear(8, 8), "head": nn.Linear(8, 4)}
    return training(Model(forward, **parts))


@same("gradient penalties (`torch.autograd.grad(..., create_graph=True)` in the loss)")
def gradient_penalty(model: nn.Module, batch: Batch) -> Tensor:
    inputs = batch[0].clone().requires_grad_()
    scores = model(inputs)
    (slope,) = torch.autograd.grad(scores.square().sum(), inputs, create_graph=True)
    return F.cross_entropy(scores, batch[1]) + 0.1 * slope.square().sum(1).mean()


@same("penalties on parameters in the loss")
def parameter_penalty(model: nn.Module, batch: Batch) -> Tensor:
    return classify(model, batch) + 0.01 * sum(p.abs().sum() for p in model.parameters())


@same("`Tensor.register_hook` on a parameter: it sees a grain's gradient, scaled to its share")
def tensor_hook() -> Training:
    model = dense()
    model[0].weight.register_hook(lambda gradient: 2 * gradient)
    return training(model)


@same("`register_full_backward_hook`")
def module_backward_hook() -> Training:
    model = dense()
    model[2].register_full_backward_hook(lambda module, inputs, outputs: (3 * inputs[0],))
    return training(model)


class Reverse(torch.autograd.Function):
    """The identity, whose gradient is turned round."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return -gradients[0]


@same("a `torch.autograd.Function` of your own")
def own_function(model: Any, inputs: Tensor) -> Any:
    hidden = Reverse.apply(model.dense[0](inputs))  # type: ignore[no-untyped-call]
    return model.dense[2](hidden.tanh())


@same("a loss in bfloat16, whatever its share of the batch")
def bfloat16_loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]).bfloat16(), batch[1])


@same("a loss that returns `(loss, metrics)`: they are averaged and logged like it")
def loss_with_metrics(model: nn.Module, batch: Batch) -> Any:
    scores = model(batch[0])
    right = (scores.argmax(1) == batch[1]).double().mean()
    return F.cross_entropy(scores, batch[1]), {"accuracy": right, "third": 1 / 3}


@same("averaged weights (`AveragedModel`) as `extra` state: in the digest and in checkpoints")
def averaged_weights() -> Training:
    made = training()
    average = AveragedModel(made.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    made.settings["extra"] = {"ema": lambda model: average}
    made.optimizer.register_step_post_hook(lambda *_: average.update_parameters(made.model))
    return made


@same("float16 autocast: the loss is scaled as `torch.amp.GradScaler` does it; an update whose "
      "gradient is not finite is left out", plain=False, gradient=False)  # fmt: skip
def float16_autocast() -> Training:
    return training(autocast=torch.float16, clip_norm=1.0)


@same("complex, empty and scalar parameters")
def odd_parameters() -> Training:
    def forward(model: Any, inputs: Tensor) -> Any:
        turned = (model.dense(inputs) * model.phase).real
        return turned * model.scale + model.nothing.sum()

    return training(
        Model(
            forward,
            dense=dense(),
            phase=nn.Parameter(torch.randn(4, dtype=torch.complex64)),
            nothing=nn.Parameter(torch.zeros(0)),
            scale=nn.Parameter(torch.tensor(1.5)),
        )
    )


@same("a loss of shape (1,)")
def loss_with_one_value(model: nn.Module, batch: Batch) -> Tensor:
    return classify(model, batch).reshape(1)


@same("`torch.func.functional_call` in the loss")
def functional_call(model: nn.Module, batch: Batch) -> Tensor:
    doubled = {name: 2 * p for name, p in model.named_parameters()}
    return F.cross_entropy(torch.func.functional_call(model, doubled, (batch[0],)), batch[1])


@same(
    "`torch.compile` of your own (here with its aot_eager backend; with inductor in "
    "`tests/parity/test_compiled.py`)"
)
def compiled() -> Training:
    return training(torch.compile(dense(), backend="aot_eager"))


@refused("`register_post_accumulate_grad_hook` of your own", "register_post_accumulate_grad_hook")
def post_accumulate_hook() -> Training:
    model = dense()
    model[0].weight.register_post_accumulate_grad_hook(lambda p: None)
    return training(model)


@refused("a backward pass inside `loss`", "backward pass of its own")
def backward_in_loss(model: nn.Module, batch: Batch) -> Tensor:
    classify(model, batch).backward()
    return classify(model, batch)


@refused("sparse gradients (`nn.Embedding(sparse=True)`, `F.embedding(sparse=True)`)", "sparse")
def sparse_gradients() -> Training:
    model = nn.Sequential(nn.EmbeddingBag(12, 4, sparse=True, mode="sum"))
    return training(model, data=tokens(), optimizer=partial(SGD, lr=0.1))


@refused("a loss that is not one number", "has shape")
def loss_of_many(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


# ---- freezing


@same("freezing and thawing between steps, with momentum, weight decay and clipping")
def freezing() -> Training:
    model = dense()
    return training(
        model,
        before_step=lambda step: model[0].requires_grad_(step < 2 or step >= 5),
        clip_norm=0.5,
    )


@same("`requires_grad_(False)` inside `forward`")
def freezing_in_forward(model: Any, inputs: Tensor) -> Any:
    model.dense[0].requires_grad_(False)
    return model.dense(inputs)


@same("batch norm kept in evaluation mode (fine-tuning)")
def frozen_batch_norm() -> Training:
    model = with_batch_norm()
    model[1].eval()
    return training(model)


@refused("no parameter that requires a gradient", "no parameter of the model requires")
def all_frozen() -> Training:
    made = training()
    made.model.requires_grad_(False)
    return made


# ---- weights that something other than the optimizer changes


@same("a weight clamp in `forward`")
def weight_clamp(model: Any, inputs: Tensor) -> Any:
    model.dense[0].weight.data.clamp_(-0.2, 0.2)
    return model.dense(inputs)


@same("a weight clamp in `forward` that bites only later",
      optimizer=partial(SGD, lr=0.3))  # fmt: skip
def late_weight_clamp(model: Any, inputs: Tensor) -> Any:
    with torch.no_grad():
        model.dense[0].weight.clamp_(-0.36, 0.36)
    return model.dense(inputs)


def with_teacher() -> Any:
    """A student, and a teacher that is to follow it."""
    student = dense()
    teacher = copy.deepcopy(student).requires_grad_(False)
    return Model(lambda model, inputs: model.student(inputs), student=student, teacher=teacher)


def follow(model: Any) -> None:
    for slow, quick in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
        slow.data.mul_(0.9).add_(quick.data, alpha=0.1)


def consistency(model: Any, batch: Batch) -> Tensor:
    away: Tensor = (model(batch[0]) - model.teacher(batch[0])).square().mean()
    return classify(model, batch) + away


@same("a teacher that follows the student in the loss (mean teacher): it moves once a step",
      model=with_teacher)  # fmt: skip
def teacher_in_loss(model: Any, batch: Batch) -> Tensor:
    follow(model)
    return consistency(model, batch)


@same("a teacher that follows in `optimizer.register_step_post_hook`")
def teacher_in_optimizer_hook() -> Training:
    model = with_teacher()
    optimizer = SGD(model.student.parameters(), lr=0.05, momentum=0.9)
    optimizer.register_step_post_hook(lambda *_: follow(model))
    return training(model, loss=consistency, optimizer=lambda _: optimizer)


@same("a teacher in buffers")
def teacher_in_buffers() -> Training:
    def forward(model: Any, inputs: Tensor) -> Any:
        if model.training:
            model.slow.mul_(0.9).add_(model.dense[0].weight.detach(), alpha=0.1)
        return model.dense(inputs) + F.linear(inputs, model.slow)[:, :4]

    model = around(forward)
    model.register_buffer("slow", model.dense[0].weight.detach().clone())
    return training(model)


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


@same("a teacher that begins as the student's copy (`lerp_`, torch's own EMA)",
      model=with_teacher)  # fmt: skip
def teacher_by_lerp(model: Any, batch: Batch) -> Tensor:
    pairs = zip(model.teacher.parameters(), model.student.parameters(), strict=True)
    with torch.no_grad():
        for slow, quick in pairs:
            slow.lerp_(quick, 0.1)
    return consistency(model, batch)


class Extrapolates(torch.optim.Optimizer):
    """Goes on in the direction in which gradients change."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            previous = state.get("previous", parameter.grad)
            parameter.sub_(0.05 * (1.5 * parameter.grad - 0.5 * previous))
            state["previous"] = parameter.grad


@same("an optimizer that keeps the last gradient (`state['previous'] = p.grad`)")
def kept_gradient() -> Training:
    return training(optimizer=Extrapolates)


@same("a mask or another buffer that you assign between steps (pruning)")
def buffer_between_steps() -> Training:
    model = around(lambda model, inputs: model.dense(inputs) * model.mask, mask=torch.ones(4))

    def turn(step: int) -> None:
        if step in (2, 5):
            model.mask = torch.arange(4.0) * step

    return training(model, before_step=turn)


@same("a layer that is added between steps (progressive growing)", gradient=False)
def layer_added() -> Training:
    made = training(nn.Sequential(nn.Linear(8, 4)))

    def turn(step: int) -> None:
        if step == 1:
            layer = nn.BatchNorm1d(4)
            made.model.append(layer)
            made.optimizer.add_param_group({"params": [*layer.parameters()]})

    made.before_step = turn
    return made


@same("a parameter that only some grains use, by index (versions of gradients differ)",
      parts={"table": nn.Parameter(torch.zeros(3, 4))})  # fmt: skip
def sometimes_indexed(model: Any, inputs: Tensor) -> Any:
    hit = inputs[:, 0] > 1.0
    scores = model.dense(inputs)
    return scores + model.table[hit.long()] * hit[:, None] if hit.any() else scores


@same("a grain whose loss has no gradient (nothing in it to learn from)", plain=False, i_know=True)
def loss_without_graph(model: nn.Module, batch: Batch) -> Tensor:
    keep = batch[0][:, 0] > 0.3
    return classify(model, (batch[0][keep], batch[1][keep])) if keep.any() else torch.zeros(())


class Centred(nn.Module):
    """A loss with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(4))
        self.centre: Tensor

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        scores = model(batch[0])
        self.centre.mul_(0.9).add_(scores.detach().mean(0), alpha=0.1)
        return F.cross_entropy(scores - self.centre, batch[1])


@refused("a module of the loss, outside the model, with buffers or weights that it changes",
         "not in the model")  # fmt: skip
def stateful_loss() -> Training:
    return training(loss=Centred())


@refused("weights that `forward` begins to change after the first steps", "not in the first steps")
def late_teacher() -> Training:
    steps = [0]

    def loss(model: Any, batch: Batch) -> Tensor:
        if steps[-1] == 2:
            with torch.no_grad():
                for slow in model.teacher.parameters():
                    slow.mul_(0.9)
        return consistency(model, batch)

    return training(with_teacher(), loss=loss, before_step=steps.append)


def with_bank() -> Any:
    return around(lambda model, inputs: model.dense(inputs), bank=torch.ones(NUM_EXAMPLES))


@refused("a bank of one value per example in a buffer", "queue or a memory bank",
         model=with_bank, data=(*vectors(), torch.arange(NUM_EXAMPLES)))  # fmt: skip
def loss_bank(model: Any, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    each = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    if model.training:
        model.bank[batch[2]] = each.detach()
    return each.mean()


@refused("`nn.Embedding(max_norm=...)`", "max_norm")
def embedding_max_norm() -> Training:
    return training(nn.Sequential(nn.EmbeddingBag(12, 4, max_norm=1.0)), data=tokens())


@refused("`F.embedding(max_norm=...)`: each grain changes other weights", "in different grains",
      parts={"words": nn.Parameter(torch.ones(12, 4))}, data=tokens())  # fmt: skip
def functional_max_norm(model: Any, words: Tensor) -> Any:
    return F.embedding(words, model.words, max_norm=0.5).mean(1)


@refused("weights initialised from the first data they meet (ActNorm)", "in different grains",
         parts={"shift": nn.Parameter(torch.zeros(8))})  # fmt: skip
def data_dependent_start(model: Any, inputs: Tensor) -> Any:
    if not hasattr(model, "is_ready"):
        model.shift.data.copy_(-inputs.mean(0))
        model.is_ready = True
    return model.dense(inputs + model.shift)


def worker() -> int:
    return int(os.environ.get("RANK", "0"))


@refused("weights that differ between workers before the first step", "before the first step",
         only_workers=True)  # fmt: skip
def other_weights() -> Training:
    model = dense()
    nn.init.constant_(model[0].bias, worker())
    return training(model)


@refused("a learning rate that reads the worker's number", "other settings", only_workers=True)
def other_rate() -> Training:
    return training(optimizer=partial(SGD, lr=0.1 + worker()))


@refused("data drawn anew by every worker", "computes the first grain differently",
         only_workers=True)  # fmt: skip
def other_data() -> Training:
    inputs, labels = vectors()
    return training(data=(inputs + worker(), labels))


@refused("weights changed on some workers only, between steps (found within 16)",
         "differs from worker 0's", only_workers=True)  # fmt: skip
def drift() -> Training:
    model = dense()

    def turn(step: int) -> None:
        if step == 2 and worker() == 1:
            model[0].bias.data[1] += 1e-6

    return training(model, before_step=turn)


# ---- buffers


@same("a counter in a float buffer: counted once a step",
      parts={"calls": torch.zeros(())})  # fmt: skip
def float_counter(model: Any, inputs: Tensor) -> Any:
    if model.training:
        model.calls += 1
    return model.dense(inputs) * (1 + 0.01 * model.calls)


@same("buffers of int16, bool, float8 and other types that gloo does not carry",
      parts={"short": torch.zeros(3, dtype=torch.int16), "flag": torch.zeros(2, dtype=torch.bool),
             "eight": torch.ones(2).to(torch.float8_e4m3fn),
             "brief": torch.zeros(2, dtype=torch.float16),
             "wave": torch.zeros(2, dtype=torch.complex64)})  # fmt: skip
def odd_buffers(model: Any, inputs: Tensor) -> Any:
    scores = model.dense(inputs)
    if model.training:
        model.short += 1
        model.flag = ~model.flag
        model.brief += 0.5
        model.wave += scores.detach().mean() * 1j
    return scores


@same("a buffer that changes from 0.0 to -0.0",
      parts={"zero": torch.zeros(2)})  # fmt: skip
def signed_zero_buffer(model: Any, inputs: Tensor) -> Any:
    if model.training:
        model.zero.mul_(-1.0)
    return model.dense(inputs)


@same("a buffer that is given other memory (`buffer.data = ...`)", gradient=False,
      parts={"mean": torch.zeros(4)})  # fmt: skip
def buffer_data_replaced(model: Any, inputs: Tensor) -> Any:
    scores = model.dense(inputs)
    if model.training:
        model.mean.data = 0.9 * model.mean + 0.1 * scores.detach().mean(0)
    return scores - model.mean


@same("spectral norm and weight norm (parametrizations)")
def parametrizations() -> Training:
    model = dense()
    nn.utils.parametrizations.spectral_norm(model[0])
    nn.utils.parametrizations.weight_norm(model[2])
    return training(model)


@same("batch and instance norm with running statistics: each grain's own, averaged",
      gradient=False)  # fmt: skip
def running_statistics() -> Training:
    return training(
        nn.Sequential(
            nn.Unflatten(1, (2, 4)), nn.InstanceNorm1d(2, track_running_stats=True),
            nn.Flatten(), nn.BatchNorm1d(8), nn.Linear(8, 4),
        )
    )  # fmt: skip


@same("a buffer that evaluation changes: it is put back, and that is said", plain=False,
      parts={"asked": torch.zeros(())}, valid=vectors())  # fmt: skip
def buffer_changed_in_evaluation(model: Any, inputs: Tensor) -> Any:
    if not model.training:
        model.asked += 1
    return model.dense(inputs) + 0.001 * model.asked


@same("a batch whose weights are all 0: it changes nothing, not even batch norm's statistics")
def batch_of_no_weight() -> Training:
    inputs, labels = vectors()
    order = epoch_order(NUM_EXAMPLES, 7, 0)
    labels[torch.from_numpy(order[BATCH : 2 * BATCH].copy())] = -1
    return training(data=(inputs, labels), loss=classify_valid, weight=num_valid)


@same("a loss that looks parameters up by themselves (in a dictionary of its own)")
def keyed_by_parameters() -> Training:
    model = dense()
    shares = {parameter: 0.01 * place for place, parameter in enumerate(model.parameters())}

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        penalty = sum(shares[p] * p.square().sum() for p in model.parameters())
        return classify(model, batch) + penalty

    return training(model, loss=loss)


@same("class weights, with `weight=` the sum of the examples' weights")
def class_weights() -> Training:
    by_class = torch.tensor([0.5, 1.0, 2.0, 3.5])
    return training(
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], weight=by_class),
        weight=lambda batch: float(by_class[batch[1]].sum()),
    )


@refused("a queue in a buffer (MoCo), which a pointer indexes", "queue or a memory bank",
         parts={"queue": torch.eye(4, 28), "pointer": torch.tensor([0])})  # fmt: skip
def queue_buffer(model: Any, inputs: Tensor) -> Any:
    scores = model.dense(inputs)
    if model.training:
        place = int(model.pointer)
        model.queue[:, place : place + len(inputs)] = scores.detach().T
        model.pointer[0] = (place + len(inputs)) % 28
    return scores + scores @ model.queue.mean(1, keepdim=True)


@refused("a memory bank in a buffer, indexed by example", "queue or a memory bank",
      parts={"bank": torch.ones(12, 4)}, data=tokens())  # fmt: skip
def memory_bank(model: Any, words: Tensor) -> Any:
    scores = model.dense(F.one_hot(words[:, 0], 12).float()[:, :8])
    if model.training:
        model.bank[words[:, 0]] = scores.detach()
    return scores


@refused("a buffer that is None at first, or made in `forward`", "made during training",
      parts={"seen": None})  # fmt: skip
def buffer_made_late(model: Any, inputs: Tensor) -> Any:
    if model.training:
        model.seen = inputs.mean(0)
    return model.dense(inputs)


@refused("an integer buffer that comes out differently in different grains", "no rule to merge",
      parts={"positive": torch.zeros((), dtype=torch.long)})  # fmt: skip
def integer_buffer(model: Any, inputs: Tensor) -> Any:
    model.positive += (inputs > 0).sum()
    return model.dense(inputs)


@refused("a buffer that changes its shape", "changes its shape",
      parts={"seen": torch.zeros(0)})  # fmt: skip
def growing_buffer(model: Any, inputs: Tensor) -> Any:
    model.seen = torch.cat([model.seen, inputs[:, 0].detach()])
    return model.dense(inputs)


@refused("a sparse buffer", "sparse_coo")
def sparse_buffer() -> Training:
    model = dense()
    model.register_buffer("graph", torch.eye(4).to_sparse())
    return training(model)


@refused("a float8 buffer that grains leave differently", "too coarse",
      parts={"peak": torch.zeros(2).to(torch.float8_e4m3fn)})  # fmt: skip
def float8_statistics(model: Any, inputs: Tensor) -> Any:
    if model.training:
        model.peak = inputs[0, :2].detach().to(torch.float8_e4m3fn)
    return model.dense(inputs)


# ---- randomness


class Langevin(torch.optim.Optimizer):
    """SGD with noise (Welling and Teh 2011)."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            noise = torch.randn_like(parameter) * (0.01 * 0.05) ** 0.5
            parameter.sub_(0.05 * parameter.grad - noise)


@same("an optimizer that draws random numbers (Langevin dynamics)")
def random_optimizer() -> Training:
    return training(optimizer=Langevin)


@same("random numbers drawn between the steps of your own loop")
def random_between_steps() -> Training:
    made = training()

    def turn(step: int) -> None:
        if step:
            other = nn.Linear(6, 4)
            scale = random.random() + float(np.random.rand()) + float(other.weight.mean())
            made.optimizer.param_groups[0]["lr"] = 0.05 * (1 + 0.1 * scale)

    made.before_step = turn
    return made


@same("dropout of every kind, `RReLU`, random depth", gradient=False)
def random_layers(model: Any, inputs: Tensor) -> Any:
    hidden = F.rrelu(model.dense[0](inputs), training=model.training)
    hidden = F.alpha_dropout(hidden, 0.2, training=model.training)
    if random.random() < 0.5:
        hidden = hidden + F.dropout(hidden, 0.5)
    return model.dense[2](hidden)


# ---- optimizers


@same("torch's optimizers, fused and foreach kinds too (shown: AdamW, fused)")
def fused_adamw() -> Training:
    return training(optimizer=partial(torch.optim.AdamW, lr=0.01, fused=True))


@same("Rprop, ASGD, NAdam and others with state of their own (shown: Rprop)")
def rprop() -> Training:
    return training(optimizer=partial(torch.optim.Rprop, lr=0.01))


@same("parameter groups, and a learning rate that you change between steps")
def parameter_groups() -> Training:
    model = dense()
    first = {"params": model[0].parameters(), "lr": 0.01}
    second = {"params": model[2].parameters(), "lr": 0.05, "betas": (0.8, 0.9)}
    optimizer = torch.optim.Adam([first, second])

    def turn(step: int) -> None:
        optimizer.param_groups[1]["lr"] = 0.05 / (1 + step)

    return training(model, optimizer=lambda _: optimizer, before_step=turn)


@refused("`LBFGS` and other optimizers that need a closure (SAM)", "closure")
def needs_closure() -> Training:
    class Twice(SGD):
        def step(self, closure: Any) -> None:  # type: ignore[override]
            closure()
            super().step()

    return training(optimizer=partial(Twice, lr=0.1))


@refused("an optimizer of tensors that are not the model's", "not a parameter of the model")
def foreign_tensor() -> Training:
    loose = nn.Parameter(torch.zeros(2))
    return training(optimizer=lambda parameters: SGD([*parameters, loose], lr=0.1))


@refused("`SyncBatchNorm`, `DistributedDataParallel` and the like", "synchronises workers")
def synchronised_batch_norm() -> Training:
    return training(nn.Sequential(nn.Linear(8, 4), nn.SyncBatchNorm(4)))


@refused("lazy modules that have not seen an example", "no weights before its first forward")
def lazy_module() -> Training:
    return training(nn.Sequential(nn.LazyLinear(4)), optimizer=partial(SGD, lr=0.1))


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
      plain=False, data=Named())  # fmt: skip
def nested_batches(model: nn.Module, batch: Any) -> Tensor:
    return classify(model, batch["pair"])


@same("a loss that writes into its batch")
def loss_changes_batch(model: nn.Module, batch: Batch) -> Tensor:
    batch[0].mul_(0.5)
    return classify(model, batch)


class Stream(IterableDataset[Any]):
    """Examples without numbers."""

    def __init__(self, *, ends: bool) -> None:
        self.ends = ends

    def __iter__(self) -> Any:
        yield from zip(*vectors(), strict=True)
        while not self.ends:
            yield None


@same("an `IterableDataset` that ends: it is read once", plain=False)
def iterable_dataset() -> Training:
    return training(data=Stream(ends=True))


@refused("an `IterableDataset` without an end", "IterableDataset")
def endless_dataset() -> Training:
    return training(data=Stream(ends=False))


class OwnGenerators(Dataset[Any]):
    """A data set whose parts keep generators of every kind, one of them made late."""

    drawn = np.random.RandomState(4)

    def __init__(self) -> None:
        self.inputs, self.labels = vectors()
        self.transforms: list[Any] = [np.random.default_rng(1), {"a": random.Random(2)}]
        self.generator = torch.Generator().manual_seed(3)
        closed = np.random.Generator(np.random.Philox(5))
        self.function: Any = lambda: float(closed.normal())
        self.late: random.Random | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        self.late = self.late or random.Random()
        noise = self.drawn.normal() + self.late.random() + self.function()
        noise += self.transforms[0].normal() + self.transforms[1]["a"].gauss()
        noise += float(torch.rand((), generator=self.generator))
        return self.inputs[index] + noise, self.labels[index]


@same("a data set with generators of its own (numpy's, Python's, torch's)", plain=False)
def generators_in_data() -> Training:
    return training(data=OwnGenerators())


@same("the same with loader processes", plain=False)
def generators_in_loaders() -> Training:
    return training(data=OwnGenerators(), loader_workers=1)


WEIGHTS = torch.arange(NUM_EXAMPLES) % 5


@same("`sampler=WeightedSampler(...)`, longer than the data, with augmentation", plain=False)
def weighted_sampling() -> Training:
    def augment(batch: Batch, draws: Draws) -> Batch:
        return batch[0] + torch.from_numpy(draws.normal(8)), batch[1]

    sampler = WeightedSampler(WEIGHTS.numpy(), 61)
    return training(data=vectors(), sampler=sampler, augment=augment)


@same("a `DataLoader` with a `WeightedRandomSampler`", plain=False)
def given_loader() -> Training:
    sampler = WeightedRandomSampler(WEIGHTS.tolist(), 30, replacement=False)
    loader = DataLoader(OwnGenerators(), BATCH, sampler=sampler, drop_last=True, num_workers=1)
    return training(data=loader, drop_last=True)


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


@refused(
    "a negative `clip_norm`, autocast to another type than bfloat16 or float16, unknown settings",
    "clip_norm",
)
def negative_clip() -> Training:
    return training(clip_norm=-1.0)


@refused("`ReduceLROnPlateau` that goes by steps", "ReduceLROnPlateau")
def plateau_by_step() -> Training:
    return training(schedule=ReduceLROnPlateau, schedule_every="step")


# ---- what samepath cannot see


@yours("a loss over the whole batch as `loss`, with `i_know=True`: the same bits at every count, "
       "but each grain's own loss", i_know=True)  # fmt: skip
def contrastive(model: nn.Module, batch: Batch) -> Tensor:
    codes = F.normalize(model(batch[0]), dim=1)
    return F.cross_entropy(codes @ codes.T / 0.1, torch.arange(len(codes)))


@yours("batch norm, and mixing of examples (MixUp; in the loss with `i_know=True`): over a grain, "
       "at every count alike", model=with_batch_norm, i_know=True)  # fmt: skip
def mixing(model: nn.Module, batch: Batch) -> Tensor:
    return classify(model, (0.7 * batch[0] + 0.3 * batch[0].flip(0), batch[1]))


@refused("a loss over the whole batch (contrastive) as `loss`", "in which examples meet each other")
def contrastive_loss(model: nn.Module, batch: Batch) -> Tensor:
    return contrastive(model, batch)  # type: ignore[no-any-return]


@refused("Dice over the batch as `loss`", "a ratio of sums")
def dice_loss(model: nn.Module, batch: Batch) -> Tensor:
    return batch_dice(model(batch[0]).sigmoid(), batch)


@refused("class weights without `weight=`", "class weights")
def weighted_classes(model: nn.Module, batch: Batch) -> Tensor:
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    return F.cross_entropy(model(batch[0]), batch[1], weight=weight)


@refused("a sum over examples (`reduction='sum'`)", "reduction='mean'")
def summed_loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")


@same("a loss over the whole batch by `encode` and `batch_loss` (InfoNCE, CLIP, SimCLR)")
def contrastive_rows() -> Training:
    def encode(model: nn.Module, batch: Batch) -> Tensor:
        return F.normalize(model(batch[0]), dim=1)

    def batch_loss(codes: Tensor) -> Tensor:
        return F.cross_entropy(codes @ codes.T / 0.1, torch.arange(len(codes)))

    return whole_batch(encode, batch_loss)


@same(
    "Dice over the batch, likewise; with `recompute=True` one grain's graph is in memory at a time"
)
def dice_of_the_batch() -> Training:
    return whole_batch(lambda model, batch: model(batch[0]).sigmoid(), batch_dice, recompute=True)


@same("a queue (MoCo) that `after_batch` fills from the rows of the whole batch", plain=False)
def queue_after_batch() -> Training:
    def encode(model: Any, batch: Batch) -> dict[str, Tensor]:
        codes = F.normalize(model(batch[0]), dim=1)
        return {"codes": codes, "near": codes @ model.queue.clone().T}

    def batch_loss(encoded: dict[str, Tensor]) -> Tensor:
        return encoded["near"].logsumexp(1).mean() - encoded["codes"].std()

    def after_batch(model: Any, encoded: dict[str, Tensor]) -> None:
        model.queue.copy_(torch.cat([encoded["codes"], model.queue])[: len(model.queue)])

    model = around(lambda model, inputs: model.dense(inputs), queue=torch.ones(20, 4) / 2)
    return whole_batch(encode, batch_loss, model, after_batch=after_batch)


def batch_dice(found: Tensor, batch: Batch) -> Tensor:
    wanted = F.one_hot(batch[1], 4).float()
    return 1 - 2 * (found * wanted).sum() / (found.sum() + wanted.sum())


def whole_batch(encode: Any, batch_loss: Any, model: Any = None, **settings: Any) -> Training:
    """A training with a loss of the whole batch; a plain loop calls that as one function."""
    loss = WholeBatchLoss(encode, batch_loss)
    return training(model, loss=loss, encode=encode, batch_loss=batch_loss, **settings)


@yours("sums, maxima and counts of examples in buffers: each grain's from the same start, then "
       "their mean",
      parts={"most": torch.zeros(())})  # fmt: skip
def running_maximum(model: Any, inputs: Tensor) -> Any:
    if model.training:
        model.most = torch.maximum(model.most, inputs.max())
    return model.dense(inputs) / (1 + model.most)


@yours("state in Python (a counter of calls): it counts this worker's grains, and the path depends "
       "on the count; `samepath verify` finds it")  # fmt: skip
def python_state(model: Any, inputs: Tensor) -> Any:
    model.calls = getattr(model, "calls", 0) + 1
    return model.dense(inputs) * (1 + 0.01 * model.calls)


@yours("a generator of your own (`torch.Generator`) in the model: likewise")
def own_generator() -> Training:
    made = torch.Generator().manual_seed(5)

    def forward(model: Any, inputs: Tensor) -> Any:
        return model.dense(inputs + 0.1 * torch.randn(inputs.shape, generator=made))

    return training(around(forward))
