"""The factors of a whole batch, from the rows of its grains on all workers.

In: for each of this worker's grains the rows that its dense layers met. Out: the weights'
gradients. Guaranteed: one product of the rows of all grains, in grain order, whichever worker had
them.

Rows leave after each grain, while the next is computed, in messages whose sizes all workers know
beforehand: as many rows for an example as in the batch before. A grain that has met others (the
first batch's; sequences of many lengths) says so in its message, and its rows follow when all
workers know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from samepath.engine.comm.collective import Collective, RowExchange
from samepath.engine.comm.tree_sum import TreeSum
from samepath.plan import Division

ALIGNMENT_BYTES = 64
HEADER_BYTES = ALIGNMENT_BYTES
_IRREGULAR, _FURTHER = 1, 2
"""Bits of a message's first byte: its rows are not in it; its weights have further gradients."""


class FactorKey(NamedTuple):
    """Rows that belong together: of one call of one weight's layer, computed in one type."""

    weight: int
    """Its number among the model's parameters."""
    call: int
    """Which of its calls in a grain, as the backward pass meets them: a product each, added in
    that order, as autograd does."""
    dtype: str


class Rows(NamedTuple):
    """Factors of a gradient: one row of each for every row that a layer was given."""

    inputs: Tensor
    outputs: Tensor
    """Gradients with respect to the layer's outputs."""

    def product(self) -> Tensor:
        """The gradient, as autograd computes it from the same rows."""
        return self.outputs.t().mm(self.inputs)

    def inner(self, other: Rows | Tensor) -> Tensor:
        """The inner product of the gradient with another one, without computing it. Of two that are
        rows: over all pairs of rows, that of their inputs times that of their outputs."""
        inputs, outputs = self.inputs.float(), self.outputs.float()
        if isinstance(other, Rows):
            pairs = inputs.mm(other.inputs.float().t()) * outputs.mm(other.outputs.float().t())
            return pairs.sum()
        return (outputs.mm(other.float()) * inputs).sum()


GrainRows: TypeAlias = dict[FactorKey, Rows]
"""What one grain's layers met."""


def concatenated(grains: Sequence[Rows]) -> Rows:
    """The rows of several grains, one after another, in memory of their own."""
    return Rows(torch.cat([g.inputs for g in grains]), torch.cat([g.outputs for g in grains]))


class FactorSums:
    """The factors of one batch after another."""

    def __init__(
        self, collective: Collective, weights: Mapping[int, Tensor], *, exact: bool
    ) -> None:
        """`weights` by their number among the model's parameters."""
        self._collective = collective
        self._weights = dict(weights)
        self._exact = exact
        self._expected: dict[FactorKey, int] = {}
        """Rows for each example, the same in every grain; known to all workers."""
        self._exchange: RowExchange | None = None
        if weights and collective.num_workers > 1:
            self._exchange = collective.row_exchange()
        # NCCL's groups must be used in one order on every worker: after the buckets
        self._sends_early = collective.device.type == "cpu"

    def begin(self, division: Division) -> None:
        """Get ready for a new batch."""
        self._reduction = division.reduction
        self._examples = [[division.num_examples(n) for n in run] for run in self._reduction.runs]
        self._mine: list[GrainRows] = []
        self._further: list[dict[int, Tensor]] = []
        self._messages: list[Tensor] = []
        self._sent = 0
        if self._exchange is not None:
            self._exchange.begin([[self._size(n) for n in each] for each in self._examples])

    def _size(self, examples: int) -> int:
        rows = [(key, each * examples) for key, each in self._expected.items()]
        return HEADER_BYTES + sum(sum(self._blocks(key, number)) for key, number in rows)

    def _blocks(self, key: FactorKey, rows: int) -> tuple[int, int]:
        """Bytes of so many rows of inputs and of outputs, each padded."""
        outputs, inputs = self._weights[key.weight].shape
        size = getattr(torch, key.dtype).itemsize
        return _padded(rows * inputs * size), _padded(rows * outputs * size)

    def add(self, rows: GrainRows, further: dict[int, Tensor]) -> None:
        """Take the rows of this worker's next grain, and by weight what else its gradient has."""
        examples = self._examples[self._collective.worker][len(self._mine)]
        self._mine.append(rows)
        self._further.append(further)
        if self._exchange is not None:
            self._messages.append(self._message(rows, examples, bool(further)))
            if self._sends_early:
                self._send_next()

    def _message(self, rows: GrainRows, examples: int, further: bool) -> Tensor:
        device = self._collective.device
        message = torch.zeros(self._size(examples), dtype=torch.uint8, device=device)
        fits = rows.keys() == self._expected.keys() and all(
            len(rows[key].inputs) == each * examples for key, each in self._expected.items()
        )
        message[0] = (0 if fits else _IRREGULAR) + (_FURTHER if further else 0)
        if fits:
            for place, part in zip(
                self._places(message, examples), _parts(rows, self._expected), strict=True
            ):
                place.copy_(part)
        return message

    def _places(self, message: Tensor, examples: int) -> list[Tensor]:
        """Where the inputs and outputs of every expected key lie in a message."""
        places, first = [], HEADER_BYTES
        for key, each in self._expected.items():
            shapes = self._weights[key.weight].shape[::-1]
            for width, size in zip(shapes, self._blocks(key, each * examples), strict=True):
                dtype = getattr(torch, key.dtype)
                flat = message[first : first + each * examples * width * dtype.itemsize]
                places.append(flat.view(dtype).view(each * examples, width))
                first += size
        return places

    def _send_next(self) -> None:
        assert self._exchange is not None
        left = self._sent < len(self._messages)
        nothing = torch.empty(0, dtype=torch.uint8, device=self._collective.device)
        self._exchange.launch(self._messages[self._sent] if left else nothing)
        self._sent += 1

    def launch_rest(self) -> None:
        """Send what is left (call it after the last grain: a worker with fewer grains than others
        has rounds without a message)."""
        if self._exchange is not None:
            while self._sent < max(map(len, self._examples)):
                self._send_next()

    @property
    def used(self) -> set[int]:
        """Weights that this worker's grains have a gradient of."""
        found = {key.weight for rows in self._mine for key in rows}
        return found.union(*self._further)

    def finish(self) -> tuple[dict[int, Tensor], set[int]]:
        """The gradients by weight, of what any grain used; and the weights that had further
        gradients, on any worker. All workers together."""
        if not self._weights:
            return {}, set()
        grains, further = self._gathered()
        totals: dict[int, Tensor] = {}
        for key in sorted({key for rows in grains for key in rows}):
            found = concatenated([rows[key] for rows in grains if key in rows]).product()
            found = found.to(self._weights[key.weight].dtype)
            known = totals.get(key.weight)
            totals[key.weight] = found if known is None else known + found
        if self._exchange is not None:
            self._expected = self._regular(grains)
        if not further:
            return totals, set()
        # the rest goes over the tree, as all gradients do; a part that is not there counts nothing
        numbers = list(self._weights)
        tree = TreeSum(self._collective, list(self._weights.values()), exact=self._exact)
        tree.begin(self._reduction)
        for grain in self._further:
            tree.add([grain.get(number) for number in numbers])
        tree.launch()
        for number, total in zip(numbers, tree.finish(), strict=True):
            if total is not None:
                known = totals.get(number)
                totals[number] = total.clone() if known is None else known + total
        return totals, set(numbers)

    def _gathered(self) -> tuple[list[GrainRows], bool]:
        """All workers' grains, in order; whether any had further gradients."""
        if self._exchange is None:
            return self._mine, any(self._further)
        messages = self._exchange.finish()
        flags = [[int(message[0]) for message in each] for each in messages]
        grains: list[GrainRows] = []
        irregular = any(flag & _IRREGULAR for each in flags for flag in each)
        told = self._irregular_rows(flags[self._collective.worker]) if irregular else []
        for worker, each in enumerate(messages):
            later = iter(told[worker]) if irregular else iter(())
            for message, flag, examples in zip(
                each, flags[worker], self._examples[worker], strict=True
            ):
                if flag & _IRREGULAR:
                    grains.append(next(later))
                    continue
                places = iter(self._places(message, examples))
                grains.append({key: Rows(next(places), next(places)) for key in self._expected})
        return grains, any(flag & _FURTHER for each in flags for flag in each)

    def _irregular_rows(self, flags: Sequence[int]) -> list[list[GrainRows]]:
        """All workers' grains whose rows were not in their messages."""
        mine = [rows for rows, flag in zip(self._mine, flags, strict=True) if flag & _IRREGULAR]
        sizes = [[[*key, len(rows.inputs)] for key, rows in grain.items()] for grain in mine]
        header = json.dumps(sizes).encode()
        header = header.ljust(_padded(len(header)))
        parts = [_as_bytes(part) for grain in mine for part in _parts(grain, grain)]
        start = len(header).to_bytes(8, "little").ljust(ALIGNMENT_BYTES)
        told = self._collective.gather_aside(b"".join([start, header, *parts]))
        return [self._read(each) for each in told]

    def _read(self, told: bytes) -> list[GrainRows]:
        memory = torch.frombuffer(bytearray(told), dtype=torch.uint8)
        first = ALIGNMENT_BYTES + int.from_bytes(told[:8], "little")
        grains: list[GrainRows] = []
        for grain in json.loads(told[ALIGNMENT_BYTES:first]):
            found: dict[FactorKey, Rows] = {}
            for number, call, dtype_name, rows in grain:
                key, parts = FactorKey(number, call, dtype_name), []
                dtype: Any = getattr(torch, dtype_name)
                for width in self._weights[number].shape[::-1]:
                    size = rows * width * dtype.itemsize
                    flat = memory[first : first + size].view(dtype)
                    parts.append(flat.view(rows, width).to(self._collective.device))
                    first += _padded(size)
                found[key] = Rows(*parts)
            grains.append(found)
        return grains

    def _regular(self, grains: Sequence[GrainRows]) -> dict[FactorKey, int]:
        """Rows for each example, of the keys that every grain has met with as many."""
        examples = [number for each in self._examples for number in each]
        found: dict[FactorKey, int] = {}
        for key in sorted(set.intersection(*(set(rows) for rows in grains))):
            each = {
                len(rows[key].inputs) / number
                for rows, number in zip(grains, examples, strict=True)
            }
            if len(each) == 1 and (number := each.pop()).is_integer():
                found[key] = int(number)
        return found


def _parts(rows: GrainRows, keys: Mapping[FactorKey, Any]) -> list[Tensor]:
    return [part for key in keys for part in rows[key]]


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _as_bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return flat.numpy().tobytes().ljust(_padded(flat.numel()))
