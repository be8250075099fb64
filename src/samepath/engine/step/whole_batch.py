"""A loss of the whole batch: contrastive, Dice over the batch, anything that is no mean.

In: this worker's grains. Out: the batch's loss, and every grain's gradient on its way. Guaranteed:
every worker computes the loss from the rows of all grains, in grain order (one shape, one result);
its gradient with respect to a grain's rows goes back through that grain's graph. With one grain it
is what a plain loop computes, to the bit (of tensors that fill their memory, which expanded ones do
not); `recompute` changes no bit.

Without `recompute` the graphs of all of a worker's grains are in memory until the loss is known;
with it every grain is encoded twice, and one graph is there at a time (GradCache: Gao et al. 2021).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from samepath.data import seed_everything
from samepath.data.randomness import random_state, set_random_state
from samepath.engine.checks.replicas import Replicas
from samepath.engine.comm.collective import Collective
from samepath.engine.comm.rows import gather_grains, joined, settled, tensors_in, with_tensors
from samepath.engine.step.balance import Stopwatch
from samepath.engine.step.buffers import BufferMerge
from samepath.engine.step.compiled import compiled
from samepath.engine.step.gradients import GradientSum
from samepath.engine.step.settings import Settings
from samepath.errors import UserError
from samepath.keys import key
from samepath.recipe import WholeBatchLoss


class ReadyGrain(NamedTuple):
    """A grain of this worker, loaded and augmented."""

    number: int
    num_examples: int
    data: Any
    scale: float
    """Its share of the batch."""


@dataclass
class _Encoded:
    """A grain between its forward and its backward pass."""

    grain: ReadyGrain
    outputs: list[Tensor]
    """The outputs with their graphs; none where it will be encoded again."""
    random_state: tuple[Any, ...] | None
    """Before it was encoded, where it will be again."""


class GrainRows(NamedTuple):
    """What all workers get of a grain."""

    encoded: Any
    needs_gradient: list[bool]
    """Flags of its tensors, in order."""
    data: Any
    """None where the loss does not ask for it."""


class WholeBatch:
    """The steps of one model whose loss is one of the whole batch."""

    def __init__(
        self,
        collective: Collective,
        model: nn.Module,
        loss: WholeBatchLoss,
        settings: Settings,
        buffers: BufferMerge,
        replicas: Replicas,
        forward_context: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._collective = collective
        self._model = model
        self._loss = loss
        self._settings = settings
        self._buffers = buffers
        self._replicas = replicas
        self._forward_context = forward_context
        self._encode = compiled(loss.encode) if settings.compile else loss.encode

    def compute(
        self,
        step: int,
        num_examples: int,
        grains: Iterator[ReadyGrain],
        gradients: GradientSum,
        *,
        counts: bool,
        busy: Stopwatch,
        watch: Callable[[str, int, Any], None],
    ) -> tuple[Tensor, Any]:
        """Encode this worker's grains, compute the loss of the batch, and run the grains' backward
        passes. The loss, and the rows of the batch. A batch that does not count has no gradient."""
        mine: list[_Encoded] = []
        rows: list[GrainRows] = []
        with busy:
            for grain in grains:
                gradients.before_forward()
                with gradients.factors.of_grain(grain.num_examples, num_examples):
                    encoded, of_grain = self._first_pass(grain)
                gradients.refuse_own_backward()
                watch("encoded", grain.number, encoded)
                watch("done", grain.number, None)
                self._buffers.after_grain(grain.scale)
                self._replicas.after_grain()
                mine.append(of_grain)
                rows.append(rows_of(encoded, grain.data, self._loss))
                del encoded
        batch, needs, starts = whole_rows(gather_grains(self._collective, rows))
        with busy:
            loss, of_rows = self._batch_loss(step, batch, needs, counts=counts)
            for place, known in enumerate(mine):
                grain = known.grain
                watch("resumed", grain.number, None)
                gradients.before_forward()
                first = starts[grain.number]
                with gradients.factors.of_grain(grain.num_examples, num_examples):
                    outputs = known.outputs if known.random_state is None else self._again(known)
                    with self._explained():
                        gradients.backward_rows(*_pairs(outputs, of_rows, first))
                gradients.after_backward()
                watch("factors", grain.number, gradients.rows)
                watch("done", grain.number, None)
                if known.random_state is not None:
                    self._buffers.put_back()
                    self._replicas.after_grain()
                mine[place].outputs = []  # with it goes the graph
        return loss, batch.encoded

    def _first_pass(self, grain: ReadyGrain) -> tuple[Any, _Encoded]:
        """Encode a grain; its graph is kept unless it is to be encoded again."""
        again = self._settings.recompute
        kept = grain._replace(data=copy.deepcopy(grain.data)) if again else grain
        state = random_state() if again else None
        encoded = self.encode(self._model, grain.data, grain.num_examples)
        return encoded, _Encoded(kept, [] if again else tensors_in(encoded), state)

    def _again(self, known: _Encoded) -> list[Tensor]:
        """Encode a grain once more, with the same weights, buffers and random numbers."""
        assert known.random_state is not None
        self._replicas.before_grain()
        set_random_state(known.random_state)
        return tensors_in(self.encode(self._model, known.grain.data, known.grain.num_examples))

    def encode(self, model: nn.Module, data: Any, num_examples: int) -> Any:
        """What encode() returns for a grain: nothing but tensors with a row for each example."""
        with self._forward_context():
            encoded = self._encode(model, data)
        tensors = tensors_in(encoded)
        if not tensors or any(not t.dim() or len(t) != num_examples for t in tensors):
            found = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
            shapes = f"tensors of shapes {found}" if tensors else type(encoded).__name__
            raise UserError(
                f"encode() returned {shapes} for {num_examples} examples; return a tensor with a "
                "row for each example, or a tuple or dict of such tensors (two views of the "
                "examples: two tensors)"
            )
        return encoded

    def _batch_loss(
        self, step: int, batch: GrainRows, needs: Sequence[bool], *, counts: bool
    ) -> tuple[Tensor, list[Tensor | None]]:
        """The loss of the whole batch, and its gradient with respect to each tensor of rows."""
        leaves = [
            tensor.detach().requires_grad_(need)
            for tensor, need in zip(tensors_in(batch.encoded), needs, strict=True)
        ]
        # copies: what a loss does to its arguments in place does not matter
        given = with_tensors(batch.encoded, [leaf.clone() for leaf in leaves])
        seed_everything(key("batch loss", self._settings.seed, step))
        with self._forward_context():
            loss = self._loss.of_rows(given, batch.data)
        refuse_other_loss(loss, "batch_loss()")
        self._refuse_parameters(loss, leaves)
        asked = [leaf for leaf in leaves if leaf.requires_grad]
        found: Iterator[Tensor | None] = iter(())
        if counts and asked and loss.requires_grad:
            ones = torch.ones_like(loss)
            found = iter(torch.autograd.grad(loss, asked, ones, allow_unused=True))
        return loss.detach(), [next(found, None) if x.requires_grad else None for x in leaves]

    def _refuse_parameters(self, loss: Tensor, leaves: Sequence[Tensor]) -> None:
        """Raise for a loss that depends on tensors with gradients which are not rows: theirs would
        be lost."""
        rows = {id(leaf) for leaf in leaves}
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        todo, seen = [loss.grad_fn], set()
        while todo:
            node = todo.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            variable = getattr(node, "variable", None)
            if variable is not None and id(variable) not in rows:
                name = names.get(id(variable))
                what = "a tensor of its own" if name is None else f"{name!r}"
                raise UserError(
                    f"batch_loss() learns {what}, and not only what encode() returned; return it "
                    "from encode(), once for each example (model.scale.repeat(len(inputs))), and "
                    "use its mean in batch_loss()"
                )
            todo += [following for following, _ in node.next_functions]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say what to do where autograd finds that a graph's weights or buffers have changed."""
        try:
            yield
        except RuntimeError as error:
            if self._settings.recompute or "inplace operation" not in str(error):
                raise
            raise UserError(
                "encode() changes weights or buffers that its own backward pass needs, and they "
                "are put back for the next grain; use recompute=True, which computes one grain "
                "after another"
            ) from error


def rows_of(encoded: Any, data: Any, loss: WholeBatchLoss) -> GrainRows:
    """What other workers get of a grain."""
    needs = [tensor.requires_grad for tensor in tensors_in(encoded)]
    return GrainRows(settled(encoded), needs, settled(data) if loss.takes_batch else None)


def whole_rows(grains: Sequence[GrainRows]) -> tuple[GrainRows, list[bool], list[int]]:
    """The rows of a batch, which of its tensors need a gradient, and where each grain starts."""
    encoded = joined([grain.encoded for grain in grains], "what encode() returns")
    data = joined([grain.data for grain in grains], "the batch that batch_loss() takes")
    needs = [any(of) for of in zip(*(grain.needs_gradient for grain in grains), strict=True)]
    starts = [0]
    for grain in grains:
        starts.append(starts[-1] + len(tensors_in(grain.encoded)[0]))
    return GrainRows(encoded, needs, data), needs, starts


def _pairs(
    outputs: Sequence[Tensor], of_rows: Sequence[Tensor | None], first: int
) -> tuple[list[Tensor], list[Tensor]]:
    """A grain's outputs that have a gradient, and the gradients, in memory of their own."""
    found = [
        (output, gradient[first : first + len(output)].clone())
        for output, gradient in zip(outputs, of_rows, strict=True)
        if gradient is not None and output.requires_grad
    ]
    return [output for output, _ in found], [gradient for _, gradient in found]


def refuse_other_loss(loss: Any, what: str) -> None:
    """Raise for a loss that is not one number."""
    if not isinstance(loss, Tensor) or loss.numel() != 1 or loss.is_complex():
        shape = f"has shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"is {loss!r}"
        raise UserError(
            f"{what} {shape}; return a tensor with one number, the mean over its examples"
        )
