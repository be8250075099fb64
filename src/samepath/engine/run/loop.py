"""The whole run on one worker: epochs of steps, evaluation, metrics, checkpoints, stopping.

In: a recipe, options, a session, a run folder. Out: a RunResult, the same on every worker apart
from times. Guaranteed: a run stopped anywhere and resumed at any worker count continues the same
path and writes the same metrics.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from samepath.console import SilentWatcher, Watcher, count
from samepath.data import Source, seed_everything
from samepath.engine.elastic import heartbeat
from samepath.engine.elastic.recover import recover
from samepath.engine.elastic.step_memory import StepMemory
from samepath.engine.run.fewer_workers import STEPS, FewerWorkers
from samepath.engine.run.hooks import Hooks
from samepath.engine.run.loggers import Loggers
from samepath.engine.run.measure import measure
from samepath.engine.run.optimizers import replaced, with_decay, with_rate
from samepath.engine.run.options import Options
from samepath.engine.run.session import Session
from samepath.engine.run.strategy_schedule import StrategySchedule
from samepath.engine.run.trainer import Trainer
from samepath.engine.state.checkpoint import BEST, epochs_of, kept_weights
from samepath.engine.state.progress import Progress, RunResult
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.state.state import state_of
from samepath.engine.step.settings import StepResult
from samepath.errors import CheckpointDamaged, Diverged, NotSaved
from samepath.faults import fault_point
from samepath.keys import key
from samepath.recipe import Recipe, TrainingSettings

CHECKPOINT_SECONDS = 60.0
TIMED_STEPS = 1000
"""Steps whose times are remembered: a long run must not take more and more memory."""


def make_trainer(
    recipe: Recipe,
    options: Options,
    session: Session,
    *,
    follow_speed: bool = True,
    compare_workers: bool = True,
    other_hardware: bool = False,
) -> Trainer:
    """A trainer at step 0."""
    seed_everything(key("model", options.seed))
    model = recipe.model().to(session.device)
    optimizer = recipe.optimizer(p for p in model.parameters() if p.requires_grad)
    if options.learning_rate is not None:
        with_rate(optimizer, options.learning_rate)
    if options.weight_decay is not None:
        with_decay(optimizer, options.weight_decay)
    strategy = StrategySchedule(options)
    if strategy.optimizer is not None:
        optimizer = replaced(optimizer, strategy.optimizer)
    settings = {name: getattr(recipe, name) for name in TrainingSettings.__dataclass_fields__}
    settings |= {
        "batch_size": strategy.plan(0, ()).batch_size,
        "grain_size": options.grain_size,
        "max_workers": None,
        "loader_workers": options.loader_workers,
        "drop_last": options.drop_last,
        "factors": options.factors,
        "compile": options.compile,
        "i_know": options.i_know,
    }
    return session.prepare(
        model,
        optimizer,
        recipe.loss,
        **settings,
        schedule=None if recipe.schedule is None else recipe.schedule(optimizer),
        name="",
        exact=options.exact,
        metrics=recipe.evaluate,
        follow_speed=follow_speed,
        compare_workers=compare_workers,
        other_hardware=other_hardware,
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
        display: Watcher | None = None,
        stop_asked: Callable[[], int] = lambda: 0,
        after_step: Callable[[Trainer, Sequence[StepResult]], None] | None = None,
        checkpoint_steps: int | None = None,
        log: Sequence[str] = (),
        memory: StepMemory | None = None,
        elastic: bool = False,
        others_go_on: bool = False,
        compare_workers: bool = True,
        other_hardware: bool = False,
        says_gain: bool = False,
    ) -> None:
        """`says_gain`: of larger grains, in the first steps of a run that begins."""
        self.recipe = recipe
        self.options = options
        self.session = session
        self.folder = folder
        self.writes = folder if session.is_first else None
        self.display: Watcher = display or SilentWatcher()
        self.stop_asked = stop_asked
        self.after_step = after_step
        self.checkpoint_steps = checkpoint_steps
        self.elastic = elastic
        self.others_go_on = others_go_on
        """True if other machines go on should this one stop or be lost: one step in memory is
        enough."""
        self._log_to = log
        self._loggers: Loggers | None = None
        self.strategy = StrategySchedule(options)
        session.share(recipe.train, recipe.valid)
        self.trainer = make_trainer(
            recipe,
            options,
            session,
            compare_workers=compare_workers,
            other_hardware=other_hardware,
        )
        self.trainer.warn = self.display.note
        self.hooks = Hooks(recipe, self.trainer)
        self.memory = memory
        hooks = (recipe.after_step, recipe.after_batch)
        self._only_updates = hooks == (None, None) and self.trainer.scaling is None
        """A step's gradient is all that leads to the next: no hook changes anything besides."""
        if memory is not None and self._only_updates:
            self.trainer.around_update = partial(memory.around_update, self.trainer)
        self._fewer = FewerWorkers(self.trainer) if says_gain and session.is_first else None
        self.progress = Progress()
        self._step_seconds: deque[float] = deque(maxlen=TIMED_STEPS)
        self._all_seconds = 0.0
        self._batch_size: int | None = None
        """The batch size of the steps taken last."""
        self._examples = 0
        self._saved_step = -1

    def resume(self) -> bool:
        """Continue from the newest complete step there is, in memory or in the folder."""
        assert self.folder is not None
        fault_point("joined")
        found = recover(
            self.trainer,
            self.folder.run_id(),
            self.folder.checkpoints,
            self.display.note,
            num_lines=self.folder.num_lines,
            is_on_disk=self._is_on_disk,
        )
        fault_point("recovered")
        if found is None:
            return False  # stopped before there was any
        self._saved_step = found.step if found.from_disk else -1
        try:
            self.progress = Progress(**found.progress)
        except TypeError as error:
            raise CheckpointDamaged(
                f"{self.folder.path} is of another samepath ({error}); to start again, give "
                "another --out"
            ) from None
        return True

    def _is_on_disk(self, progress: dict[str, Any]) -> bool:
        """Whether all that was logged and kept up to there is on disk. (What a full disk did not
        take waited in the memory of the process that was killed; then the run goes on from a
        checkpoint.)"""
        assert self.folder is not None
        epochs, there = int(progress["epoch"]), kept_weights(self.folder.weights)
        wanted = {epoch for epoch in self.recipe.keep_weights if epoch <= epochs}
        best = int(progress.get("best_epochs", 0))  # later ones are written again
        return (
            self.folder.num_lines() >= int(progress.get("lines", 0))
            and wanted <= set(there)
            and (not best or (BEST in there and epochs_of(there[BEST]) >= best))
        )

    def go(self) -> RunResult:
        """Train until something ends it."""
        try:
            result = self._go()
        except BaseException as error:
            if self._loggers is not None:
                stopped = isinstance(error, KeyboardInterrupt)
                self._loggers.end("interrupted" if stopped else "failed")
            raise
        if self._loggers is not None:
            self._loggers.end(result.status, result.digest)
        return result

    def _go(self) -> RunResult:
        self._started = self._last_save = time.perf_counter()
        if self.writes is not None:
            if self.elastic:
                self.writes.write_status("running")  # it may have stopped for a machine that left
            self.writes.open_metrics(self.trainer.step_number, eager=self.others_go_on)
            if self._log_to:
                self._loggers = Loggers(self.writes.path, self._log_to, self.display.note)
        if self.trainer.step_number == 0:
            self._keep_weights(0)
        if self.options.compile:
            self.display.note("the first steps compile the model; a minute, unless it is cached")
        status, message = "finished", ""
        try:
            status = self._steps()
            message = self._why_early() if status == "early" else ""
        except Diverged as error:
            status, message = "diverged", str(error)
        finally:
            self.display.close()
            if self.writes is not None:
                self.writes.close_metrics()
        self.trainer.compare_replicas("at the end of the run")
        others_go_on = status == "interrupted" and self.others_go_on and not self._all_stop()
        if others_go_on:
            self._keep(is_one_update=False)
        self._save(warn=self.display.note if others_go_on else None)
        self._final_evaluation(status)
        timed = list(self._step_seconds)
        noise = self.progress.noise_scale
        result = RunResult(
            status=status,
            steps=self.trainer.step_number,
            epochs=self._epochs(),
            train_loss=self.progress.train_loss,
            valid_loss=self.progress.metrics.get("loss"),
            metrics=self.progress.metrics,
            train_metrics=self.progress.train_metrics,
            digest=self.trainer.digest(),
            num_workers=self.session.num_workers,
            step_seconds=statistics.median(timed[1:] or timed) if timed else None,
            examples_per_second=self._examples / self._all_seconds if timed else None,
            seconds=self._seconds(),
            message=message,
            best_epoch=self.progress.best_epochs or None,
            best=self.progress.best_loss,
            noise_scale=noise.value,
            noise_low=noise.interval[0],
            noise_high=noise.interval[1],
            staleness_mean=self.progress.staleness_mean if self.options.server else None,
            staleness_max=self.progress.staleness_max if self.options.server else None,
            batch_size=self._batch_size,
            signal=(self.stop_asked() or None) if status == "interrupted" else None,
        )
        if self.writes is not None:
            with suppress(NotSaved) if others_go_on else nullcontext():
                self.writes.write_result(result)
        return result

    def _all_stop(self) -> bool:
        """Whether all workers were asked to stop, so that no machine goes on."""
        self.trainer.settle()
        return self.session.collective.agree(self.stop_asked() != 0)

    def _steps(self) -> str:
        if self._target_reached():
            return "target"
        if self._at_epochs_end() and self.progress.has_not_moved(self.options.patience):
            return "stuck"
        if self.progress.is_stopped or (self._at_epochs_end() and self._out_of_patience()):
            return "early"
        source = self.trainer.training_source(self.recipe.train)
        while self.progress.epoch < self.options.epochs and self._steps_left() != 0:
            ended = self._stretch(source)
            if ended is not None:
                return ended
        return "finished"

    def _stretch(self, source: Source) -> str | None:
        """Epochs with one batch size; why the run ends in them, if it does."""
        trainer, progress, strategy = self.trainer, self.progress, self.strategy
        plan = strategy.plan(progress.epoch, progress.history)
        per_epoch, self._batch_size = plan.steps_per_epoch, plan.batch_size
        first = progress.epoch * per_epoch + trainer.step_number - progress.epoch_began
        stop = strategy.epochs_alike(progress.epoch, progress.history) * per_epoch
        left = self._steps_left()
        stop = stop if left is None else min(stop, first + left)
        shares = trainer.stream(
            source, first, stop, batch_size=plan.batch_size, begin=trainer.step_number
        )
        for share in shares:
            place = trainer.step_number - progress.epoch_began
            if place == 0:
                progress.begin_epoch()
            choice = strategy.for_step(
                progress.epoch,
                place * plan.batch_size,
                len(share.batch.examples),
                progress.history,
            )
            began = time.perf_counter()
            fault_point("step", step=share.batch.step)
            results = trainer.advance(share, choice, stop=self.stop_asked() != 0)
            self._step_seconds.append(time.perf_counter() - began)
            if self._fewer is not None and len(self._step_seconds) == STEPS:
                if words := self._fewer.words(list(self._step_seconds)):
                    self.display.note(words)
                self._fewer = None
            self._all_seconds += self._step_seconds[-1]
            self._examples += len(share.batch.examples)
            for result in results:
                self._note(result)
            progress.is_stopped |= self.hooks.after_step(results)
            ended = "early" if progress.is_stopped else None
            if place + 1 == per_epoch:
                ended = self._end_epoch(plan.batch_size) or ended
            if self.after_step is not None:
                self.after_step(trainer, results)
            if ended is not None:
                return ended
            if place + 1 == per_epoch and strategy.measures:
                progress.history.append(measure(trainer, source, strategy.measures))
                epoch, measured = progress.epoch - 1, progress.history[-1]
                self._log(step=trainer.step_number, epoch=epoch, measured=measured)
            if any(result.stop for result in results):
                return "interrupted"
            self._save_if_due()
            is_one_update = len(results) == 1 and not trainer.pending and place + 1 < per_epoch
            self._keep(is_one_update=is_one_update and self._only_updates)
        return None

    def _keep(self, *, is_one_update: bool) -> None:
        """The step is complete: it is never lost from here on."""
        if self.elastic:
            self.trainer.settle()  # on all workers, or on none
        if self.memory is not None:
            self.memory.keep(self.trainer, vars(self.progress), is_one_update=is_one_update)
        heartbeat.completed(self.trainer.step_number)

    def _note(self, result: StepResult) -> None:
        """Log an update, and show it."""
        self.progress.add(result)
        self._log(
            step=self.trainer.step_number,
            epoch=result.epoch,
            train_loss=result.loss,
            **{f"train_{name}": value for name, value in result.metrics.items()},
            learning_rate=result.learning_rate,
            gradient_norm=result.gradient_norm,
            **self.progress.noise_scale.fields(),
            **({"staleness": result.staleness} if self.options.server else {}),
            **self._scaling_fields(result),
        )
        facts = "  ".join(self._facts(result))
        name = Path(self.options.recipe).name
        self.display.progress(name, self._epochs(), self.options.epochs, facts)

    def _facts(self, result: StepResult) -> Iterator[str]:
        """What is shown of an update, the most important first."""
        metrics, target = self.progress.metrics, self.options.target
        if "loss" in metrics:
            yield f"valid loss {metrics['loss']:.4g}"
        if target is not None:
            yield f"target {target:.4g}"
        yield from (f"valid {name} {v:.4g}" for name, v in metrics.items() if name != "loss")
        yield f"epoch {self._epochs():.1f}/{self.options.epochs}"
        yield f"loss {result.loss:.4g}"
        yield from (f"{name} {value:.4g}" for name, value in result.metrics.items())
        rate = self._examples / max(time.perf_counter() - self._started, 1e-9)
        yield f"{rate:.0f} examples/s"
        yield f"step {self.trainer.step_number}"
        yield count(self.session.num_workers, "worker")
        if self.options.server:
            yield f"staleness {self.progress.staleness_mean:.2f}"

    def _scaling_fields(self, result: StepResult) -> dict[str, float]:
        """Fields of a line with float16: the loss's scale, and how many updates were left out."""
        if result.loss_scale is None:
            return {}
        return {"loss_scale": result.loss_scale, "skipped_updates": self.progress.skipped}

    def _steps_left(self) -> int | None:
        """Steps until the run ends for their number; None where it does not."""
        steps = self.options.steps
        return None if steps is None else max(0, steps - self.trainer.step_number)

    def _epochs(self) -> float:
        progress = self.progress
        per_epoch = self.strategy.plan(progress.epoch, progress.history).steps_per_epoch
        return progress.epoch + (self.trainer.step_number - progress.epoch_began) / per_epoch

    def _end_epoch(self, batch_size: int) -> str | None:
        """Evaluate, advance the schedule; why the run ends here, if it does."""
        trainer, progress = self.trainer, self.progress
        if trainer.collective.num_workers > 1:  # a parameter server need not wait for its workers
            trainer.settle()
        if self.recipe.valid is not None:
            self._evaluate()
        else:
            progress.metrics = {}
        trainer.end_epoch(progress.metrics.get("loss"))
        progress.is_stopped |= self.hooks.after_epoch(progress.epoch, progress.metrics)
        self._log(
            step=trainer.step_number,
            epoch=progress.epoch,
            batch_size=batch_size,
            epoch_train_loss=progress.train_loss,
            **{f"epoch_train_{name}": value for name, value in progress.train_metrics.items()},
            **{f"valid_{name}": value for name, value in progress.metrics.items()},
        )
        progress.epoch += 1
        progress.epoch_began = trainer.step_number
        self._keep_weights(progress.epoch)
        options = self.options
        keeps_best = self.recipe.keep_weights or options.keep_best or options.stop_patience
        if progress.note_best(options.monitor) and keeps_best:
            progress.best_epochs = progress.epoch
            self._keep_weights(progress.epoch, best=True)
        self._note_recent()
        if self._target_reached():
            return "target"
        if progress.is_stopped or self._out_of_patience():
            return "early"
        return "stuck" if progress.has_not_moved(options.patience) else None

    def _out_of_patience(self) -> bool:
        """Whether what is monitored has not been better for as many epochs as there is patience."""
        patience = self.options.stop_patience
        return patience is not None and self.progress.since_best >= patience

    def _why_early(self) -> str:
        if self.progress.is_stopped:
            return "ended by run.stop() of the recipe"
        name, best = self.options.monitor.partition(":")[0], self.progress.best_loss
        if best is None:
            return f"ended early: valid {name} was never a number"
        epochs = self.progress.best_epochs
        return f"ended early: valid {name} was best after epoch {epochs} ({best:.6g})"

    def _note_recent(self) -> None:
        """Note one more validation loss, if any end of the run looks at more than the last."""
        patience, hold = self.options.patience, self.options.hold
        loss = self.progress.metrics.get("loss")
        if loss is not None and (patience is not None or hold > 1):
            looked_at = max(0 if patience is None else patience + 1, hold)
            self.progress.recent = [*self.progress.recent, loss][-looked_at:]

    def _keep_weights(self, epochs: int, *, best: bool = False) -> None:
        """Keep the weights if the recipe wants them. A resumed run writes the same again."""
        if self.writes is not None and (best or epochs in self.recipe.keep_weights):
            self.writes.keep_weights(epochs, self.trainer.model, self.display.note, best=best)

    def _evaluate(self) -> None:
        assert self.recipe.valid is not None
        self.progress.metrics = self.trainer.evaluate(self.recipe.valid)
        self.progress.metrics_step = self.trainer.step_number

    def _target_reached(self) -> bool:
        target, hold = self.options.target, self.options.hold
        loss = self.progress.metrics.get("loss")
        if target is None or loss is None or not self._at_epochs_end():
            return False
        return loss <= target if hold == 1 else self.progress.stays_within(target, hold)

    def _at_epochs_end(self) -> bool:
        return self.trainer.step_number == self.progress.epoch_began

    def _final_evaluation(self, status: str) -> None:
        """A run that ends inside an epoch: how good is what it ends with? (Not a metrics line, and
        not in the checkpoint: an uninterrupted run would not have it.)"""
        stale = self.progress.metrics_step != self.trainer.step_number
        if self.recipe.valid is not None and stale and status != "interrupted":
            self._evaluate()

    def _log(self, **fields: Any) -> None:
        self.progress.lines += 1
        if self.writes is not None:
            fields["seconds"] = round(self._seconds(), 6)
            self.writes.log(self.display.note, **fields)
            if self._loggers is not None:
                self._loggers.write(fields)

    def _seconds(self) -> float:
        """Seconds of training, those of earlier starts included, which worker 0 knows."""
        before = 0.0 if self.writes is None else self.writes.seconds_before
        return before + time.perf_counter() - self._started

    def _save_if_due(self) -> None:
        steps, trainer = self.checkpoint_steps, self.trainer
        if steps:
            due = trainer.step_number % steps == 0
        else:
            due = time.perf_counter() - self._last_save > CHECKPOINT_SECONDS
            # clocks differ between workers, and gradients under way are waited for together
            several = trainer.collective.num_workers > 1
            if several and trainer.pending and trainer.step_number != self.progress.epoch_began:
                due = False
        if due:
            self._save(warn=self.display.note)

    def _save(self, warn: Callable[[str], None] | None = None) -> None:
        """Have worker 0 write; all workers have the same state, so no other needs to. Where the
        disk does not take it `warn` is told, and the run goes on; without one it is an error."""
        self.trainer.settle()
        step = self.trainer.step_number
        if self.writes is not None and self._saved_step != step:
            saved = self.writes.save(state_of(self.trainer), vars(self.progress), warn)
            self._saved_step = self._saved_step if saved is None else step
        self._last_save = time.perf_counter()
