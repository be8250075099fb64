"""When a parameter server may hand out work, and which gradients it may apply.

In: how far behind the outstanding gradients are (handed out, or arrived and not yet applied), in
the order they were handed out; a bound. Out: yes or no. Guaranteed, if both answers are obeyed: no
gradient is applied that is further behind than the bound, none is thrown away, and nothing waits
forever: the one in front may always be applied.

A gradient is behind by the updates made since the weights it was computed with. Each update puts
all that are still outstanding one further behind. So if they were applied in the order they were
handed out, number i (from 0) would be applied when it is behind by i more than now. That order is
the best there is, because no gradient is further behind than those in front: the bound can be kept
if, and only if, that order keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence


def keeps(behind: Sequence[int], bound: int | None) -> bool:
    """Whether all can be applied, in some order, within the bound (None: there is no bound)."""
    return bound is None or all(now + wait <= bound for wait, now in enumerate(behind))


def may_apply(behind: Sequence[int], number: int, bound: int | None) -> bool:
    """Whether the gradient of that number may be applied now: the others can keep the bound."""
    left = [now + 1 for place, now in enumerate(behind) if place != number]
    return keeps(left, bound)


def may_hand_out(behind: Sequence[int], bound: int | None) -> bool:
    """Whether one more gradient, of the newest weights, can keep the bound too."""
    return keeps([*behind, 0], bound)
