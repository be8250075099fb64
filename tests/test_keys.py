"""Keys: separate words in, strangers out."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from samepath.keys import key, keys_for, mix

words = st.lists(st.integers(-(2**70), 2**70) | st.text(max_size=5), min_size=1, max_size=5)


@given(words, words)
def test_only_the_same_words_give_the_same_key(
    first: list[int | str], other: list[int | str]
) -> None:
    assert (key(*first) == key(*other)) == (first == other)
    assert 0 <= key(*first) < 2**64


def test_permuted_words_are_strangers() -> None:
    words_: list[int | str] = [1, 2, 3, "grain", "1"]
    orders = list(itertools.permutations(words_))
    assert len({key(*order) for order in orders}) == len(orders)


def test_words_are_not_joined_or_added() -> None:
    assert len({key(1, 23), key(12, 3), key(123), key("1", 23), key(24), key("12", "3")}) == 6


def test_keys_are_pinned() -> None:
    """A change here changes everybody's runs: do it on purpose, and say so."""
    assert key("grain", 7, 3, 0) == 9667414392133018308
    assert keys_for(5, np.array([0, 1], np.int64)).tolist() == [
        13213674757522680073,
        13276149613355208603,
    ]


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**40), min_size=1, max_size=30))
def test_keys_do_not_depend_on_neighbours(base: int, numbers: list[int]) -> None:
    together = keys_for(base, np.array(numbers, np.int64)).tolist()
    assert together == [int(keys_for(base, np.array([n], np.int64))[0]) for n in numbers]


def test_keys_of_many_numbers_are_distinct() -> None:
    numbers = np.arange(50_000, dtype=np.int64)
    found = np.concatenate([keys_for(key("a", seed), numbers) for seed in range(4)])
    assert len(np.unique(found)) == len(found)


def test_mix_changes_half_the_bits() -> None:
    """One bit in, 32 of 64 bits out, on average and for every bit."""
    values = np.arange(1, 2001, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for bit in range(64):
        changed = mix(values) ^ mix(values ^ np.uint64(1 << bit))
        assert abs(float(np.bitwise_count(changed).mean()) - 32) < 1
