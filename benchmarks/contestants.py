"""What is compared: three models, and five ways to take one training step with them.

All ways get the same data in memory, the same optimizer and the same global batch. Each way is a
function that takes one step; nothing is shared between them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from samepath.data import TensorSource
from samepath.engine.comm.collective import Collective
from samepath.engine.run.trainer import Trainer
from samepath.engine.step.settings import Settings
from samepath.recipe import find_recipe
from samepath.recipes.cifar10 import ResNet

Step = Callable[[], None]


@dataclass(frozen=True)
class Job:
    """A model with its data and settings."""

    model: Callable[[], nn.Module]
    data: Any
    loss: Callable[[nn.Module, Any], Tensor]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    batch_size: int
    grain_size: int


def job(name: str) -> Job:
    """nodules, digits (both without augmentation, which DDP's loop would not have) or resnet18;
    with a number of examples behind it (nodules16, digits128, resnet32) it is the same in grains
    of so many."""
    if (found := re.fullmatch(r"(nodules|digits|resnet)(\d+)", name)) and name != "resnet18":
        many = "resnet18" if found[1] == "resnet" else found[1]
        return replace(job(many), grain_size=int(found[2]))
    if name == "resnet18":
        made = torch.Generator().manual_seed(0)
        images = torch.randn(512, 3, 32, 32, generator=made)
        labels = torch.randint(0, 10, (512,), generator=made)
        return Job(
            ResNet,
            (images, labels),
            lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
            lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
            batch_size=64,
            grain_size=16,
        )
    recipe = find_recipe(name)
    return Job(
        recipe.model,
        recipe.train,
        recipe.loss,
        recipe.optimizer,
        recipe.batch_size,
        recipe.grain_size,
    )


def samepath_step(
    the_job: Job, collective: Collective, *, grain: int | None = None, **asked: Any
) -> Step:
    """samepath's trainer."""
    torch.manual_seed(0)
    model = the_job.model()
    settings = Settings(
        batch_size=the_job.batch_size, grain_size=grain or the_job.grain_size, **asked
    )
    optimizer = the_job.optimizer(model.parameters())
    trainer = Trainer(collective, model, optimizer, the_job.loss, settings)
    # whole batches only, as the other ways have: a short one would also be compiled
    source = trainer.source(_whole_batches(the_job))
    shares = trainer.stream(source, 0, 1 << 40)

    def step() -> None:
        trainer.step(next(shares))

    return step


def _whole_batches(the_job: Job) -> Any:
    data, size = the_job.data, the_job.batch_size
    if isinstance(data, Tensor):
        return data[: len(data) // size * size]
    return tuple(each[: len(each) // size * size] for each in data)


def plain_step(the_job: Job, grain: int | None = None) -> Step:
    """The loop that people write: the whole batch at once, or adding up pieces of so many
    examples."""
    return _loop(the_job, the_job.model, grain=grain)


def ddp_step(the_job: Job) -> Step:
    """DistributedDataParallel, an even share per worker."""
    dist.init_process_group("gloo")

    def wrapped() -> nn.Module:
        return DistributedDataParallel(the_job.model(), gradient_as_bucket_view=True)

    return _loop(the_job, wrapped)


def all_reduce_step(the_job: Job) -> Step:
    """gloo by hand: the gradient is added in one piece, after the backward pass."""
    dist.init_process_group("gloo")

    def add(model: nn.Module) -> None:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for gradient, part in zip(
            gradients, flat.split([g.numel() for g in gradients]), strict=True
        ):
            gradient.copy_(part.view_as(gradient))

    return _loop(the_job, the_job.model, add)


def _loop(
    the_job: Job,
    make: Callable[[], nn.Module],
    reduce: Callable[[nn.Module], None] | None = None,
    grain: int | None = None,
) -> Step:
    in_group = dist.is_initialized()
    worker, num_workers = (dist.get_rank(), dist.get_world_size()) if in_group else (0, 1)
    torch.manual_seed(0)
    model = make()
    optimizer = the_job.optimizer(model.parameters())
    source = TensorSource(the_job.data)
    size = the_job.batch_size
    tensors = source._tensors
    order = torch.randperm(len(source))
    positions = itertools.cycle(range(0, len(source) - size + 1, size))

    def step() -> None:
        place = next(positions)
        index = order[place : place + size].tensor_split(num_workers)[worker]
        optimizer.zero_grad(set_to_none=True)
        for part in index.split(grain or len(index)):
            piece = tuple(tensor.index_select(0, part) for tensor in tensors)
            loss = the_job.loss(model, piece[0] if source._single else piece)
            loss.backward(torch.full_like(loss, len(part) / len(index)))
        if reduce is not None:
            reduce(model)
        optimizer.step()
        loss.item()  # people look at the loss

    return step
