"""The whole run on one worker: epochs of steps, evaluation, metrics, checkpoints, stopping.

In: a recipe, options, a session, a run folder. Out: a RunResult, the same on every worker apart
from times. Guaranteed: a run stopped anywhere and resumed at any worker count continues the same
path and writes the same metrics.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from samepath.data import seed_everything
from samepath.engine.checkpoint import list_checkpoints, load_newest
from samepath.engine.options import Options
from samepath.engine.rundir import RunFolder
from samepath.engine.session import Session
from samepath.engine.state import digest, load_state, state_of
from samepath.engine.trainer import StepResult, Trainer
from samepath.engine.weights import BEST, Epoch, keep_weights
from samepath.errors import CheckpointDamaged, Diverged
from samepath.keys import key
from samepath.recipe import Recipe

CHECKPOINT_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended."""

    status: str
    """finished, target, diverged or interrupted"""
    steps: int
    """Completed steps."""
    epochs: float
    train_loss: float | None
    """Mean over the last epoch's steps so far."""
    valid_loss: float | None
    metrics: dict[str, float]
    """Everything the last evaluation found."""
    digest: str
    num_workers: int
    step_seconds: float | None
    """Median over the steps of this process, without the first."""
    examples_per_second: float | None
    seconds: float
    message: str = ""
    signal: int | None = None
    """Which signal interrupted it, where this process was told."""


@dataclass
class Progress:
    """Sums over the epoch under way: part of the state, so that a resumed epoch ends the same."""

    epoch_loss: float = 0.0
    epoch_examples: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    metrics_step: int = -1
    best_loss: float | None = None
    """The lowest validation loss so far."""

    def add(self, result: StepResult) -> None:
        self.epoch_loss += result.loss * result.num_examples
        self.epoch_examples += result.num_examples

    @property
    def train_loss(self) -> float | None:
        return self.epoch_loss / self.epoch_examples if self.epoch_examples else None


class Display(Protocol):
    """What a person sees while it runs."""

    def step(self, result: StepResult, steps: int) -> None: ...

    def epoch(self, epoch: int, train_loss: float | None, metrics: dict[str, float]) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


class Silent:
    """Shows nothing."""

    def step(self, result: StepResult, steps: int) -> None: ...

    def epoch(self, epoch: int, train_loss: float | None, metrics: dict[str, float]) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


def make_trainer(recipe: Recipe, options: Options, session: Session) -> Trainer:
    """A trainer at step 0."""
    seed_everything(key("model", options.seed))
    model = recipe.model().to(session.device)
    optimizer = recipe.optimizer(p for p in model.parameters() if p.requires_grad)
    return session.prepare(
        model,
        optimizer,
        recipe.loss,
        batch_size=options.batch_size,
        grain_size=options.grain_size,
        schedule=None if recipe.schedule is None else recipe.schedule(optimizer),
        schedule_every=recipe.schedule_every,
        exact=options.exact,
        clip_norm=recipe.clip_norm,
        weight=recipe.weight,
        augment=recipe.augment,
        metrics=recipe.evaluate,
        autocast=recipe.autocast,
        collate=recipe.collate,
        loader_workers=options.loader_workers,
    )


class Run:
    """One worker's part of a run."""

    def __init__(
        self,
        recipe: Recipe,
        options: Options,
        session: Session,
        folder: RunFolder | None,
        *,
        display: Display | None = None,
        stop_asked: Callable[[], int] = lambda: 0,
        after_step: Callable[[Trainer], None] | None = None,
        checkpoint_steps: int | None = None,
    ) -> None:
        self.recipe = recipe
        self.options = options
        self.session = session
        self.folder = folder
        self.writes = folder if session.is_first else None
        self.display: Display = display or Silent()
        self.stop_asked = stop_asked
        self.after_step = after_step
        self.checkpoint_steps = checkpoint_steps
        self.trainer = make_trainer(recipe, options, session)
        self.progress = Progress()
        self._step_seconds: list[float] = []
        self._examples = 0
        self._saved_step = -1

    def resume(self) -> bool:
        """Continue from the newest good checkpoint in the folder, if there is one."""
        assert self.folder is not None
        checkpoint = load_newest(self.folder.checkpoints, self.display.note)
        if checkpoint is None:
            if list_checkpoints(self.folder.checkpoints):
                raise CheckpointDamaged(
                    f"no checkpoint in {self.folder.checkpoints} can be read; to start again, "
                    "give another --out"
                )
            return False  # stopped before the first one was written
        load_state(self.trainer, checkpoint.state)
        if self.trainer.digest() != checkpoint.digest:
            raise CheckpointDamaged(
                f"{checkpoint.path}: the model and optimizer do not take this state unchanged"
            )
        self.progress = Progress(**checkpoint.progress)
        self._saved_step = self.trainer.step_number
        return True

    def go(self) -> RunResult:
        """Train until something ends it."""
        started = self._started = self._last_save = time.perf_counter()
        if self.writes is not None:
            self.writes.open_metrics(self.trainer.step_number)
        if self.trainer.step_number == 0:
            self._keep_weights(0)
        status, message = "finished", ""
        try:
            status = self._steps()
        except Diverged as error:
            status, message = "diverged", str(error)
        finally:
            self.display.close()
            if self.writes is not None:
                self.writes.close_metrics()
        self._save()
        self._final_evaluation(status)
        seconds = time.perf_counter() - started
        timed = self._step_seconds[1:] or self._step_seconds
        result = RunResult(
            status=status,
            steps=self.trainer.step_number,
            epochs=self.trainer.step_number / self.options.plan.steps_per_epoch,
            train_loss=self.progress.train_loss,
            valid_loss=self.progress.metrics.get("loss"),
            metrics=self.progress.metrics,
            digest=digest(state_of(self.trainer)),
            num_workers=self.session.num_workers,
            step_seconds=statistics.median(timed) if timed else None,
            examples_per_second=self._examples / sum(self._step_seconds)
            if self._step_seconds
            else None,
            seconds=seconds,
            message=message,
            signal=(self.stop_asked() or None) if status == "interrupted" else None,
        )
        if self.writes is not None:
            self.writes.write_result(result)
        return result

    def _steps(self) -> str:
        trainer, options = self.trainer, self.options
        per_epoch = options.plan.steps_per_epoch
        if self._target_reached():
            return "target"
        source = trainer.source(self.recipe.train)
        for share in trainer.stream(source, trainer.step_number, options.last_step):
            if trainer.step_number % per_epoch == 0:
                self.progress.epoch_loss, self.progress.epoch_examples = 0.0, 0
            began = time.perf_counter()
            result = trainer.step(share, stop=self.stop_asked() != 0)
            self._step_seconds.append(time.perf_counter() - began)
            self._examples += result.num_examples
            self.progress.add(result)
            self._log(
                step=trainer.step_number,
                epoch=result.epoch,
                train_loss=result.loss,
                learning_rate=result.learning_rate,
                gradient_norm=result.gradient_norm,
            )
            self.display.step(result, trainer.step_number)
            if self.after_step is not None:
                self.after_step(trainer)
            if trainer.step_number % per_epoch == 0 and self._end_epoch(result.epoch):
                return "target"
            if result.stop:
                return "interrupted"
            self._save_if_due()
        return "finished"

    def _end_epoch(self, epoch: int) -> bool:
        """Evaluate and advance the schedule; True when the target is reached."""
        if self.recipe.valid is not None:
            self._evaluate()
        self.trainer.end_epoch(self.progress.metrics.get("loss"))
        self._log(
            step=self.trainer.step_number,
            epoch=epoch,
            epoch_train_loss=self.progress.train_loss,
            **{f"valid_{name}": value for name, value in self.progress.metrics.items()},
        )
        self.display.epoch(epoch, self.progress.train_loss, self.progress.metrics)
        self._keep_weights(epoch + 1)
        loss, best = self.progress.metrics.get("loss"), self.progress.best_loss
        if loss is not None and (best is None or loss < best):
            self.progress.best_loss = loss
            if self.recipe.keep_weights:
                self._keep_weights("best")
        return self._target_reached()

    def _keep_weights(self, epoch: Epoch) -> None:
        """If the recipe wants them. A resumed run writes the same again."""
        if self.writes is not None and (epoch == BEST or epoch in self.recipe.keep_weights):
            keep_weights(self.writes.weights, epoch, self.trainer.model)

    def _evaluate(self) -> None:
        assert self.recipe.valid is not None
        self.progress.metrics = self.trainer.evaluate(self.recipe.valid)
        self.progress.metrics_step = self.trainer.step_number

    def _target_reached(self) -> bool:
        loss = self.progress.metrics.get("loss")
        target = self.options.target
        on_epoch_end = self.trainer.step_number % self.options.plan.steps_per_epoch == 0
        return target is not None and loss is not None and on_epoch_end and loss <= target

    def _final_evaluation(self, status: str) -> None:
        """A run that ends inside an epoch: how good is what it ends with? (Not a metrics line, and
        not in the checkpoint: an uninterrupted run would not have it.)"""
        stale = self.progress.metrics_step != self.trainer.step_number
        if self.recipe.valid is not None and stale and status != "interrupted":
            self._evaluate()

    def _log(self, **fields: Any) -> None:
        if self.writes is not None:
            self.writes.log(**fields, seconds=round(time.perf_counter() - self._started, 6))

    def _save_if_due(self) -> None:
        steps = self.checkpoint_steps
        due = (
            self.trainer.step_number % steps == 0
            if steps
            else time.perf_counter() - self._last_save > CHECKPOINT_SECONDS
        )
        if due:
            self._save()

    def _save(self) -> None:
        """Worker 0 writes; everybody has the same state, so nobody else needs to."""
        if self.writes is not None and self._saved_step != self.trainer.step_number:
            self.writes.save(state_of(self.trainer), vars(self.progress))
            self._saved_step = self.trainer.step_number
        self._last_save = time.perf_counter()
