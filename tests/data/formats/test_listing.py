"""Splits that keep groups together. (Tables and the rules of volumes are in test_volumes.py.)"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from samepath.data.formats.listing import split_by_group


@given(
    st.lists(st.sampled_from("abcdefgh"), max_size=40),
    st.integers(0, 40),
    st.permutations(range(40)),
)
def test_groups_stay_together_in_any_order(
    groups: list[str], num_valid: int, order: list[int]
) -> None:
    train, valid = split_by_group(groups, num_valid)
    assert sorted([*train, *valid]) == list(range(len(groups)))
    assert len(valid) <= num_valid
    assert not {groups[i] for i in train} & {groups[i] for i in valid}
    shuffled = [groups[i] for i in order if i < len(groups)]
    _, again = split_by_group(shuffled, num_valid)
    assert {groups[i] for i in valid} == {shuffled[i] for i in again}


def test_single_examples_fill_it_exactly() -> None:
    train, valid = split_by_group([f"row {i}" for i in range(100)], 20)
    assert (len(train), len(valid)) == (80, 20)
    assert np.all(np.diff(valid) > 0)
