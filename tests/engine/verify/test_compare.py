"""Where two runs part, and by how many units in the last place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samepath.engine.verify.compare import (
    GrainParting,
    Parting,
    compare_tensors,
    first_event,
    first_parting,
    ulps,
)
from samepath.engine.verify.trace import GrainEvent, Grains, WorkerTrace

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def distance(a: float, b: float, dtype: torch.dtype) -> int:
    return int(ulps(torch.tensor([a], dtype=dtype), torch.tensor([b], dtype=dtype))[0])


@pytest.mark.parametrize("dtype", FLOATS)
def test_neighbours_are_one_unit_apart(dtype: torch.dtype) -> None:
    step = torch.finfo(dtype).eps
    assert distance(1.0, 1.0 + step, dtype) == 1
    assert distance(-1.0, -1.0 - step, dtype) == 1
    assert distance(1.0, 1.0 - step, dtype) == 2, "below a power of two values are twice as dense"
    assert distance(1.0, 2.0, dtype) == round(1 / step)
    assert distance(3.0, 3.0, dtype) == 0


@pytest.mark.parametrize("dtype", FLOATS)
def test_distance_crosses_zero(dtype: torch.dtype) -> None:
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    assert distance(0.0, -0.0, dtype) == 0
    assert distance(smallest, -smallest, dtype) == 2
    largest = torch.finfo(dtype).max
    bits = torch.finfo(dtype).bits
    assert 2 ** (bits - 1) < distance(-largest, largest, dtype) < 2**bits


@given(st.floats(width=32, allow_nan=False), st.integers(0, 50))
def test_distance_counts_representable_values(value: float, count: int) -> None:
    other, largest = np.float32(value), np.finfo(np.float32).max
    steps = 0
    while steps < count and other < largest:  # beyond it is infinity
        other = np.nextafter(other, largest)
        steps += 1
    assert distance(value, float(other), torch.float32) == steps


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.uint8])
def test_whole_numbers_differ_by_plain_units(dtype: torch.dtype) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    a, b = torch.tensor([3, low], dtype=dtype), torch.tensor([7, high], dtype=dtype)
    assert [int(d) for d in ulps(a, b)] == [4, high - low]


def test_tensors_are_compared_by_bits() -> None:
    a = torch.tensor([[0.0, 1.0, math.nan], [2.0, 3.0, 4.0]])
    b = torch.tensor([[-0.0, 1.0, math.nan], [2.0, 3.0, 4.0000005]])
    values = compare_tensors(a, b)
    assert values is not None
    assert (values.num_values, values.num_different, values.max_ulps) == (6, 2, 1)
    assert values.first_index == (0, 0)
    for same in (a.clone(), a.double(), a[:1]):  # of another type or shape: no distance
        assert compare_tensors(a, same) is None


@pytest.mark.parametrize(
    ("ours", "theirs", "num_different", "max_ulps"),
    [
        ([1.0, 2.0], [1.0, math.nan], 1, None),  # there is no distance to NaN
        ([1.0, 2.0], [1.0000001, math.nan], 2, 1),
        ([True, False], [True, True], 1, 1),
        ([1 + 2j], [1 + 3j], 1, 1 << 22),
        (1.0, 2.0, 1, 1 << 23),
    ],
)
def test_numbers_of_all_kinds_compare(
    ours: Any, theirs: Any, num_different: int, max_ulps: int | None
) -> None:
    values = compare_tensors(torch.tensor(ours), torch.tensor(theirs))
    assert values is not None
    assert (values.num_different, values.max_ulps) == (num_different, max_ulps)


def traced(*steps: dict[str, str], first: int = 0, end: str = "") -> WorkerTrace:
    return WorkerTrace(steps=list(steps), first_step=first, end={"a": end})


def test_first_parting_keeps_the_order_of_names() -> None:
    same = {"model/a": "1", "optimizer/a": "1", "loss": "1"}
    one = traced(same, same | {"optimizer/a": "2", "loss": "2"}, same)
    other = traced(same, same, same)
    assert first_parting(other, one) == Parting(1, "optimizer/a")
    assert first_parting(one, one) is None
    assert first_parting(other, one, last_step=0) is None


def test_a_shorter_path_is_another_path() -> None:
    assert first_parting(traced({}, {}), traced({}, {}, {})) == Parting(2, "status")
    assert first_parting(traced({}, {}), traced({}, {}, {}), last_step=1) is None


def test_an_evaluation_only_one_run_made_is_no_difference() -> None:
    """One that ends at a step evaluates there; a longer one need not."""
    plain, valid = {"loss": "1"}, {"loss": "1", "valid loss": "1"}
    ended, longer = traced(valid), traced(plain, {"loss": "2"})
    assert first_parting(ended, longer, 0) is None
    assert first_parting(ended, traced(valid | {"valid loss": "2"})) == Parting(0, "valid loss")
    assert first_parting(ended, traced(plain)) == Parting(0, "valid loss")
    assert first_parting(longer, traced(valid, valid)) is not None


def test_a_run_that_was_continued_is_compared_from_there() -> None:
    whole = traced(*({"a": str(n), "loss": "1", "valid loss": "1"} for n in range(4)))
    read_back, later = {"a": "2"}, {"a": "3", "loss": "1", "valid loss": "1"}
    assert first_parting(whole, traced(read_back, later, first=2)) is None
    assert first_parting(whole, traced({}, later, first=2)) == Parting(2, "a")
    moved = traced(read_back, later | {"loss": "2"}, first=2)
    assert first_parting(whole, moved) == Parting(3, "loss")
    assert first_parting(whole, traced(read_back, first=2)) == Parting(3, "status")
    assert first_parting(whole, traced(read_back, first=2), 2) is None


def test_the_state_after_the_last_evaluation_counts() -> None:
    one, other = traced({}, {}, end="1"), traced({}, {}, end="2")
    assert first_parting(one, other) == Parting(1, "a")
    assert first_parting(one, other, 0) is None
    assert first_parting(one, traced({}, {}, {}, end="2"), 1) is None


def grains(**events: list[GrainEvent]) -> Grains:
    return {name.replace("_", " "): found for name, found in events.items()}


def test_data_of_any_grain_come_before_weights_of_all() -> None:
    a, b, c = (GrainEvent("loaded", "", None, x) for x in "abc")
    weight, other = GrainEvent("weight", "", None, "1"), GrainEvent("weight", "", None, "2")
    found = first_event(
        grains(train_0=[a, weight], train_1=[b, weight]),
        grains(train_0=[a, other], train_1=[c, other]),
        validation=False,
    )
    assert found == GrainParting(1, False, b, [])


def test_a_module_that_is_not_called_is_found() -> None:
    load = GrainEvent("loaded", "", None, "1")
    call, end = GrainEvent("input", "side", "", "1"), GrainEvent("output", "", None, "1")
    longer = grains(train_2=[load, call, end])
    for one, other in ((longer, grains(train_2=[load, end])), (longer, grains(train_2=[load]))):
        for pair in ((one, other), (other, one)):
            found = first_event(*pair, validation=False)
            assert found is not None
            assert found.event[:3] == ("call", "side", "")
    assert first_event(longer, longer, validation=False) is None
    assert first_event(longer, grains(train_2=[]), validation=True) is None
