"""A strategy bound to a run: what it means for each epoch and each step.

In: options, and what has been measured so far. Out: plans and choices. Guaranteed: the answers
depend on the options and the moment only, so a resumed run gets the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from samepath.engine.run.options import Options
from samepath.errors import UserError
from samepath.plan import Plan
from samepath.strategies import Choice, Measure, Moment, find_strategy

History = Sequence[Mapping[str, float]]
LOOK_AHEAD = 1000
"""Epochs that are looked through at once: a million would delay every restart."""


class StrategySchedule:
    """A strategy bound to one run: its batch sizes and choices, epoch by epoch."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._strategy = find_strategy(options.strategy)
        self.measures: tuple[Measure, ...] = self._strategy.measures(options.virtual_workers)
        first = self.choice(0, ())
        self.optimizer = first.optimizer
        if self._size(first) > options.num_examples:
            raise UserError(
                f"strategy {options.strategy!r} for {options.virtual_workers} workers: a batch of "
                f"{self._size(first)} is larger than the data ({options.num_examples} examples); "
                "use fewer workers or a smaller --batch-size"
            )

    def choice(self, epoch: int, history: History, fraction: float = 0.0) -> Choice:
        """The strategy's own answer."""
        moment = Moment(
            epoch=epoch,
            fraction=fraction,
            batch_size=self._options.batch_size,
            most_batch=self._options.num_examples / self._options.batch_size,
            history=tuple(history),
        )
        try:
            choice = self._strategy(self._options.virtual_workers, moment)
        except UserError:
            raise
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise UserError(f"strategy {self._options.strategy!r} raised {what}") from error
        if not isinstance(choice, Choice) or not (
            0 < choice.batch < math.inf and 0 <= choice.learning_rate < math.inf
        ):
            raise UserError(
                f"strategy {self._options.strategy!r} answered {choice}; return a samepath.Choice "
                "with a batch above 0 and a learning rate of at least 0"
            )
        return choice

    def _size(self, choice: Choice) -> int:
        return max(1, round(choice.batch * self._options.batch_size))

    def plan(self, epoch: int, history: History) -> Plan:
        """The plan with an epoch's batch size, at most the whole data."""
        options = self._options
        size = min(self._size(self.choice(epoch, history)), options.num_examples)
        return Plan(
            num_examples=options.num_examples,
            batch_size=size,
            grain_size=min(options.grain_size, size),
            seed=options.seed,
            drop_last=options.drop_last,
        )

    def epochs_alike(self, epoch: int, history: History) -> int:
        """The first epoch after this one that may have another batch size, or the run's end."""
        if self.measures:
            return epoch + 1
        plan, end = self.plan(epoch, history), epoch + 1
        last = min(self._options.epochs, epoch + LOOK_AHEAD)
        while end < last and self.plan(end, history) == plan:
            end += 1
        return end

    def for_step(self, epoch: int, seen: int, coming: int, history: History) -> Choice:
        """The strategy's answer for a step, after so many examples of the epoch, on so many
        more."""
        options = self._options
        choice = self.choice(epoch, history, seen / options.num_examples)

        def steps(examples: int) -> int:
            """Count the recipe's steps: schedules go by what has been seen, whatever the batch."""
            return -(-examples // options.batch_size)

        return replace(choice, schedule_steps=steps(seen + coming) - steps(seen))
