"""Settings of a training, and the input and result of one step.

The settings are those that recipes and own loops share (`recipe.TrainingSettings`), and the run's.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from samepath.engine.noise_scale import NoiseSample
from samepath.errors import UserError
from samepath.plan import Batch
from samepath.recipe import TrainingSettings

_SHAPE_THE_PATH = (
    "batch_size",
    "grain_size",
    "seed",
    "exact",
    "clip_norm",
    "autocast",
    "schedule_every",
    "drop_last",
    "sampler",
    "factors",
    "compile",
)


@dataclass(frozen=True, kw_only=True)
class Settings(TrainingSettings):
    """Settings by which a model is trained, apart from its data."""

    seed: int = 0
    """Decides order, dropout and augmentation."""
    exact: bool = True
    """Same bits at every worker count; otherwise each worker computes its whole share at once and
    the path is the same up to rounding."""
    metrics: Callable[[nn.Module, Any], Mapping[str, Tensor]] | None = None
    """Means by name for validation; the loss alone when not given."""
    compare_workers: bool = True
    """Workers compare their models before the first step, on the way and at the end (`verify`,
    which looks for differences itself, goes on where they differ)."""
    other_hardware: bool = False
    """Workers may have different kinds of processors; the path then depends on which of them
    computes what."""
    follow_speed: bool = True
    """A slow worker gets fewer grains, which changes no bits (with `exact`; without it, shares stay
    even)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.metrics, Mapping) or is_metric(self.metrics):  # torchmetrics' own
            object.__setattr__(self, "evaluate_all", self.metrics)
            object.__setattr__(self, "metrics", None)
        together = self.evaluate_all
        if isinstance(together, Mapping):
            odd = [name for name, metric in together.items() if not is_metric(metric)]
            if odd:
                raise UserError(f"evaluate_all[{odd[0]!r}] is no torchmetrics Metric; give one")
        elif together is not None and not callable(together):
            raise UserError(
                f"evaluate_all is {type(together).__name__}; give a function of outputs and "
                "targets, or torchmetrics objects"
            )

    def shaping(self) -> dict[str, Any]:
        """Settings that a resumed trainer must have again, as a checkpoint holds them."""
        values = {name: getattr(self, name) for name in _SHAPE_THE_PATH}
        return values | {
            "clip_norm": None if self.clip_norm is None else float(self.clip_norm),
            "autocast": None if self.autocast is None else str(self.autocast),
            "sampler": None if self.sampler is None else self.sampler.describe(),
        }

    def refuse_changes(self, before: Mapping[str, Any]) -> None:
        """Raise unless a checkpoint with these `shaping` settings goes on with the same path.
        (What an older samepath did not write is not compared; it knew no factors.)"""
        before = {"factors": "never", **before} if before else before
        changed = [
            f"{name} (was {before[name]!r}, now {value!r})"
            for name, value in self.shaping().items()
            if name in before and before[name] != value
        ]
        if changed:
            raise UserError(
                "cannot resume: " + ", ".join(changed) + " would change the path; prepare the "
                "trainer as it was, or resume from another folder"
            )


def is_metric(value: Any) -> bool:
    """Whether it is a torchmetrics Metric or MetricCollection, or works as one."""
    return all(hasattr(value, name) for name in ("update", "compute", "reset"))


def refuse_names(given: Mapping[str, Any]) -> None:
    """Raise for a setting of `prepare` that there is none of."""
    known = [
        "schedule",
        "name",
        *(name for name in Settings.__dataclass_fields__ if name != "seed"),
    ]
    for name in given:
        if name == "seed":
            raise UserError("prepare() takes no seed; give it to samepath.start(seed=...)")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else "there are: " + ", ".join(known)
            raise UserError(f"prepare() has no setting {name!r}; {hint}")


def refuse_plateau_by_step(
    schedule: torch.optim.lr_scheduler.LRScheduler | None, schedule_every: str
) -> None:
    """Raise for a schedule that needs a validation loss where there is none yet."""
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    if isinstance(schedule, plateau) and schedule_every == "step":
        raise UserError(
            "ReduceLROnPlateau goes by the validation loss, which there is once an epoch; use "
            "schedule_every='epoch'"
        )


@dataclass(frozen=True)
class WorkerBatch:
    """A batch, and this worker's grains of it as they are needed."""

    batch: Batch
    grains: Iterator[Any]
    """The grains of an even assignment; or a GrainLoader, which has whichever are asked for."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """Result of a step; the same on every worker."""

    step: int
    epoch: int
    loss: float
    grain_losses: tuple[float, ...]
    gradient_norm: float
    """The norm of the whole batch's gradient, before clipping."""
    noise: NoiseSample | None
    """What it says of the gradient noise scale; None where the batch is one grain."""
    learning_rate: float
    num_examples: int
    weight: float
    """What the loss counts for in the epoch's: the examples, or what weight() says of them."""
    stop: bool
    """Some worker was asked to stop."""
    staleness: int
    """Updates made between the weights the gradient was computed with and this update."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The batch's means of what loss() returned beside the loss."""
    loss_scale: float | None = None
    """The factor on the loss, with float16."""
    skipped: bool = False
    """True if, with float16, the gradient was not finite and no update was made."""
