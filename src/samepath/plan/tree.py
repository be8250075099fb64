"""The order in which partial sums are added: a fixed balanced binary tree over grain numbers.

In: how many grains, and which worker has which. Out: for each worker, how its partial sums merge as
grains finish, and the order in which the remaining sums of all workers are added.
Guaranteed: every addition is the same pair of partial sums whatever the assignment.

Node (level, index) covers grains index * 2**level up to (index + 1) * 2**level; its value is its
left child plus its right child, or its left child alone where no grain is on the right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from samepath.plan.assignment import assign

Node: TypeAlias = tuple[int, int]
"""(level, index)"""


def _climb(node: Node, num_grains: int) -> Node:
    """The topmost node with the same value: a left child whose sibling is empty is its parent."""
    level, index = node
    while index % 2 == 0 and (index + 1) << level >= num_grains and 1 << level < num_grains:
        level, index = level + 1, index // 2
    return level, index


def _push(stack: list[Node], node: Node, num_grains: int) -> int:
    """Put a node on a stack of finished nodes; merge while it completes its sibling's parent."""
    merges = 0
    node = _climb(node, num_grains)
    while stack and node[1] % 2 == 1 and stack[-1] == (node[0], node[1] - 1):
        stack.pop()
        node = _climb((node[0] + 1, node[1] // 2), num_grains)
        merges += 1
    stack.append(node)
    return merges


@dataclass(frozen=True)
class Reduction:
    """How one batch's grains become one sum."""

    runs: tuple[range, ...]
    """The grains of each worker."""
    merges: tuple[tuple[int, ...], ...]
    """The number, for each worker and each of its grains, of sums on its stack that merge after
    it."""
    num_sums: tuple[int, ...]
    """The number, for each worker, of sums (whole subtrees) that are left on its stack at the
    end."""
    additions: tuple[tuple[int, int], ...]
    """The rest of the tree: add sum b into sum a, numbered over all workers in order."""


def settled(merges: Sequence[int]) -> tuple[int, ...]:
    """How many of a worker's sums no later grain of its own changes: before its first grain, after
    it, and so on to its last. (Until then its last sum is not among them.)"""
    depths = [0]
    for number in merges:
        depths.append(depths[-1] - number + 1)
    found = [depths[-1]]
    for depth, number in zip(reversed(depths[:-1]), reversed(merges), strict=True):
        found.append(min(found[-1], depth - number))
    return tuple(reversed(found))


@lru_cache(maxsize=32)
def reduction(num_grains: int, num_workers: int, costs: tuple[int, ...] = ()) -> Reduction:
    """The reduction of `num_grains` grains assigned to `num_workers` workers."""
    return reduction_of(assign(num_grains, num_workers, costs))


def reduction_of(runs: Sequence[range]) -> Reduction:
    """The reduction for any contiguous runs that cover the grains in order."""
    num_grains = sum(len(run) for run in runs)
    merges: list[tuple[int, ...]] = []
    stacks: list[list[Node]] = []
    for run in runs:
        stack: list[Node] = []
        merges.append(tuple(_push(stack, (0, grain), num_grains) for grain in run))
        stacks.append(stack)
    additions: list[tuple[int, int]] = []
    stack, numbers = [], []
    for number, node in enumerate(node for stack_ in stacks for node in stack_):
        numbers.append(number)
        for _ in range(_push(stack, node, num_grains)):
            additions.append((numbers[-2], numbers[-1]))
            numbers.pop()
    assert len(numbers) == 1, "the tree has one root"
    return Reduction(tuple(runs), tuple(merges), tuple(len(s) for s in stacks), tuple(additions))
