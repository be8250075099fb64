"""Before the first step: do the workers have the same model, and do they compute the same?

In: a trainer, and the first batch. Out: nothing, or an error that says which worker differs. A
model that was made without the seed, settings that read the worker's number, data that are drawn
anew in every process, a processor with other kernels: each would make the path depend on who
computes what, so each is refused here.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from samepath.data import Draws, GrainRequest, seed_everything
from samepath.engine.checks.hardware import describe_cpu
from samepath.engine.checks.replicas import LeftAlone
from samepath.engine.comm.collective import Collective, Record
from samepath.engine.comm.tensors import fingerprint, tensor_sums
from samepath.engine.run.evaluation import to_device
from samepath.engine.step.grain_loader import Feed
from samepath.errors import UserError
from samepath.keys import key
from samepath.plan import Batch

if TYPE_CHECKING:
    from samepath.engine.step.trainer import Trainer

_WORDS_BYTES = 256


def refuse_other_start(trainer: Trainer) -> None:
    """Raise unless every worker begins with the same weights, buffers and settings."""
    collective, model = trainer.collective, trainer.model
    if collective.num_workers == 1:
        return
    tensors: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    form = [(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]
    other = _first_other(collective, _hash(repr(form)))
    if other is not None:
        raise UserError(
            f"worker {other} has a model of other parameters or buffers than worker 0; make the "
            "same model on every worker, whatever its number"
        )
    sums = tensor_sums(list(tensors.values()))
    rows = np.stack([r.view(np.int64) for r in collective.gather(sums.view(np.uint8))])
    differs = rows != rows[0]
    if differs.any():
        place = int(np.flatnonzero(differs.any(axis=0))[0])
        worker = int(np.flatnonzero(differs[:, place])[0])
        what = f"{list(tensors)[place]!r} of worker {worker} is not that of worker 0"
        if not _explained(trainer, worker, f"{what} before the first step"):
            raise UserError(
                f"{what} before the first step; make the model after samepath.start(), which sets "
                "the generators from the seed (torch.rand and the like), or load its weights from "
                "a file"
            )
        for tensor in tensors.values():  # one model, as one kind of machine makes it
            collective.broadcast(tensor.detach())
    settings = [
        sorted((name, value) for name, value in group.items() if _is_plain(value))
        for group in trainer.optimizer.param_groups
    ]
    other = _first_other(collective, _hash(repr([settings, _shaping(trainer)])))
    if other is not None:
        raise UserError(
            f"worker {other} has other settings than worker 0 (learning rate, batch size, seed, "
            "...); give every worker the same: samepath keeps the batch, so they need not change "
            "with workers"
        )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, tuple))


def _shaping(trainer: Trainer) -> list[Any]:
    given = trainer.settings
    numbers = [given.batch_size, given.grain_size, given.seed, given.exact, given.clip_norm]
    return [*numbers, str(given.autocast), given.schedule_every, torch.get_num_threads()]


def compare_workers(trainer: Trainer, batch: Batch, feed: Feed) -> None:
    """Have every worker compute the first grain of a batch, on a copy of the model, and raise where
    results differ."""
    collective = trainer.collective
    if collective.num_workers == 1:
        return
    other = _first_other(collective, _hash(_first_grain(trainer, batch, feed)))
    if other is None:
        return
    what = f"worker {other} computes the first grain differently from worker 0"
    if not _explained(trainer, other, what):
        raise UserError(
            f"{what}, on the same kind of processor: its data or its model are not the same, or "
            "draw from a generator that the seed does not set; run `samepath verify` to see where"
        )


def _explained(trainer: Trainer, worker: int, what: str) -> bool:
    """Whether that is another kind of machine, which is said; an error unless it may be."""
    mine = np.frombuffer(describe_cpu().encode()[:_WORDS_BYTES].ljust(_WORDS_BYTES), np.uint8)
    found = trainer.collective.gather(mine.copy())
    machines = [record.tobytes().decode(errors="replace").strip() for record in found]
    if machines[worker] == machines[0]:
        return False
    text = (
        f"{what}: its processor is {machines[worker]}, worker 0's is {machines[0]}, and their "
        "kernels differ"
    )
    if not trainer.settings.other_hardware:
        raise UserError(
            f"{text}; use machines of one kind, or add --other-hardware (in your own loop: "
            "prepare(..., other_hardware=True))"
        )
    trainer.doubt(f"{text}, so that the path depends on which of them computes what")
    return True


def _first_grain(trainer: Trainer, batch: Batch, feed: Feed) -> list[Any]:
    """The loss and gradients of the first grain."""
    settings, examples = trainer.settings, batch.grain(0)
    as_it_is = LeftAlone(trainer.model)  # a loss may use another way to it than its argument
    try:
        (data,) = feed.load([GrainRequest(batch.epoch, examples)])
        data = to_device(data, trainer.collective.device)
        seed_everything(key("grain", settings.seed, batch.step, 0))
        if settings.augment is not None:
            draws = Draws(seed=settings.seed, epoch=batch.epoch, examples=examples)
            data = settings.augment(data, draws)
        model = _copy(trainer.model)
        if model is None:
            return [data]
        with trainer.forward_context():
            loss = trainer.loss(model, data)
        if isinstance(loss, Tensor) and loss.requires_grad and loss.numel() == 1:
            loss.backward(torch.ones_like(loss))
        return [data, loss, *(p.grad for p in model.parameters())]
    finally:
        as_it_is.put_back()


def _copy(model: nn.Module) -> nn.Module | None:
    """A model that may be changed; None where it cannot be copied (it holds tensors that are
    results, say)."""
    plain = getattr(model, "_orig_mod", model)  # of a compiled one: its copy would be compiled too
    try:
        return copy.deepcopy(plain)
    except Exception:  # whatever it holds
        return None


def _hash(value: Any) -> Record:
    return np.frombuffer(bytes.fromhex(fingerprint(value)), np.uint8).copy()


def _first_other(collective: Collective, record: Record) -> int | None:
    """The first worker whose record is not worker 0's."""
    records = collective.gather(record)
    return next((w for w, r in enumerate(records) if not np.array_equal(r, records[0])), None)
