"""A batch whose grains are computed, and whose gradient is being added.

In: sums that have been launched. Out, when it is asked for: what all workers know of the step, and
the batch's gradient. Guaranteed: a settled one depends on no other worker any more and can be
written to disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from samepath.engine.checks.refuse import refuse_hooks
from samepath.engine.comm.collective import Collective, Record
from samepath.engine.comm.tree_sum import Sums
from samepath.engine.step.balance import Balance
from samepath.engine.step.factors import Factors
from samepath.engine.step.gradients import GradientSum
from samepath.engine.step.record import StepFacts, unpack
from samepath.engine.step.settings import Settings
from samepath.errors import UserError
from samepath.plan import Division


@dataclass(kw_only=True)
class PendingBatch:
    """One batch between its backward passes and its update."""

    step: int
    epoch: int
    num_examples: int
    weight: float
    """What its loss counts for in the epoch's: its examples, or what weight() says. A batch of
    weight 0 changes nothing."""
    facts: StepFacts | None = None
    totals: Sums = field(default_factory=list)
    """The gradient of all of the model's parameters, once it is settled."""
    buffers_merged: bool = False
    is_compared: bool = False
    """Workers' models around its grains were compared."""
    behind: int = 0
    """Updates made since the weights it was computed with."""
    gradients: GradientSum | None = None
    """Adds it; None once it is settled."""
    division: Division | None = None
    end_gather: Callable[[], list[Record]] | None = None
    buffers_bytes: int = 0
    """Length of a worker's record of its buffers."""
    metric_names: tuple[str, ...] = ()
    """Names of what loss() returned beside the loss."""
    is_whole: bool = False
    """Its loss is one of the whole batch, computed from all its rows."""
    rows: Any = None
    """Results of encode() for such a batch, for after_batch()."""
    is_learnt: bool = False
    """The balance has learnt from its times."""

    @property
    def some_are_idle(self) -> bool:
        """Whether some worker has no grain of it."""
        return self.division is not None and not all(self.division.reduction.runs)

    def know(self) -> StepFacts:
        """Learn what all workers say of the step. One gather travels at a time: the next may
        begin only after this."""
        if self.facts is None:
            assert self.gradients is not None
            assert self.division is not None
            assert self.end_gather is not None
            records = self.end_gather()
            self.facts = unpack(
                self.division,
                records,
                len(self.gradients.parameters),
                self.buffers_bytes,
                self.metric_names,
                whole=self.is_whole,
            )
        return self.facts

    def teach(self, balance: Balance) -> None:
        """Tell the balance the workers' times, once (on all workers between the same steps)."""
        facts = self.know()
        if not self.is_learnt:
            self.is_learnt = True
            balance.learn(facts.times, len(facts.grain_losses))

    def gradient(self) -> Sums:
        """The batch's gradient, None where no grain used a parameter. It is memory that the next
        batch may use again."""
        if self.gradients is None:
            return self.totals
        used = self.know().used
        totals = self.gradients.finish()
        return [total if use else None for total, use in zip(totals, used, strict=True)]

    def suspects(self) -> tuple[list[int], bool]:
        """Name, of a batch whose loss or gradient came out NaN or infinite, the workers that may
        have computed it wrongly (broken memory, a failing processor), and whether it is known that
        they did: a gradient does not say whose grain it comes from, so that all are suspected."""
        assert self.division is not None
        runs, losses = self.division.reduction.runs, self.know().grain_losses
        busy = [worker for worker, run in enumerate(runs) if run]
        found = [w for w in busy if not all(math.isfinite(losses[grain]) for grain in runs[w])]
        return found or busy, bool(found)

    def settle(self) -> None:
        """Wait for the gradient, and keep it in memory of its own (all workers together)."""
        if self.gradients is not None:
            self.totals = [None if g is None else g.clone() for g in self.gradient()]
            self.gradients = self.division = self.end_gather = None

    def assign(self, parameters: Sequence[nn.Parameter]) -> None:
        """Give every used parameter its gradient as `.grad`, and the others none: an optimizer
        applies what it finds there. One that was frozen since the batch was computed stays as it
        is."""
        for parameter, gradient in zip(parameters, self.gradient(), strict=True):
            parameter.grad = gradient if parameter.requires_grad else None


class GradientSums:
    """Gradient sums of a model: one for each of the batches that are pending at once."""

    def __init__(self, collective: Collective, settings: Settings) -> None:
        self._collective = collective
        self._settings = settings
        self._sums: list[GradientSum] = []
        self._also_in_tree: set[str] = set()
        """Weights with factors that were found to have other gradients too."""

    def free(self, model: nn.Module, pending: Collection[PendingBatch]) -> GradientSum:
        """Get a sum that no pending batch uses, over the parameters as they are now (people
        freeze and unfreeze)."""
        parameters = dict(model.named_parameters())
        if not any(parameter.requires_grad for parameter in parameters.values()):
            raise UserError("no parameter of the model requires a gradient; unfreeze some")
        refuse_hooks(parameters)
        if not all(known.fits(parameters) for known in self._sums):
            for batch in pending:
                batch.settle()
            for sums in self._sums:
                sums.close()
            self._sums = []
        busy = [id(batch.gradients) for batch in pending]
        for sums in self._sums:
            if id(sums) not in busy:
                return sums
        settings = self._settings
        use = "never" if settings.compile else settings.factors
        factors = Factors(model, parameters, use, settings.batch_size)
        self._sums.append(
            GradientSum(
                self._collective,
                parameters,
                factors,
                self._also_in_tree,
                exact=settings.exact,
            )
        )
        return self._sums[-1]
