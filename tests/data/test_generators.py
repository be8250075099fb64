"""Generators that data sets keep for themselves: found wherever they are, and set."""

from __future__ import annotations

import random
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from samepath.data.generators import Generators, find_generators, seed_generator

MODULE_RNG = np.random.default_rng(1)
MODULE_OBJECT = SimpleNamespace(rng=random.Random(1))

KINDS: dict[str, tuple[Any, Any]] = {
    "RandomState": (np.random.RandomState(), lambda g: (g.normal(), g.randint(1 << 30))),
    "RandomState of PCG64": (np.random.RandomState(np.random.PCG64(1)), lambda g: g.normal()),
    "default_rng": (np.random.default_rng(), lambda g: (g.normal(), g.integers(9, dtype="u1"))),
    "MT19937": (np.random.Generator(np.random.MT19937(1)), lambda g: g.normal()),
    "Philox": (np.random.Generator(np.random.Philox(1)), lambda g: g.normal()),
    "a bit generator": (np.random.SFC64(), lambda g: g.random_raw()),
    "random.Random": (random.Random(), lambda g: (g.gauss(), g.random())),
    "torch.Generator": (torch.Generator(), lambda g: float(torch.rand((), generator=g))),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_decides_what_is_drawn(kind: str) -> None:
    generator, draw = KINDS[kind]
    drawn = []
    for word in (5, (1 << 64) - 1, 5):
        seed_generator(generator, word)
        drawn.append(draw(generator))
        draw(generator)  # leaves half of a pair of normal numbers behind
    assert drawn[0] == drawn[2] != drawn[1]


def test_seeds_of_default_rng_give_uniform_numbers() -> None:
    """The quick way of setting PCG64 is no worse than numpy's."""
    generator, firsts = np.random.default_rng(), []
    for word in range(4000):
        seed_generator(generator, word * 0x9E3779B97F4A7C15 % (1 << 64))
        firsts.append(generator.random())
    counts, _ = np.histogram(firsts, bins=16, range=(0, 1))
    assert abs(counts - 250).max() < 75  # 5 standard deviations
    assert abs(np.corrcoef(firsts[:-1], firsts[1:])[0, 1]) < 0.08


class Slotted:
    __slots__ = ("rng",)

    def __init__(self) -> None:
        self.rng = random.Random()


class Transform:
    """Keeps them everywhere."""

    of_class = np.random.RandomState()

    def __init__(self) -> None:
        closed = random.Random()
        default = random.Random()
        self.own = np.random.default_rng()
        self.listed = [(0, torch.Generator()), {"name": random.Random()}]
        self.slots = Slotted()
        self.closure = lambda value=default: closed.random() + value.random()
        self.bound = np.random.default_rng().normal
        self.part = partial(print, random.Random(), file=SimpleNamespace(rng=random.Random()))
        self.itself = self

    def __call__(self) -> Any:
        return _helper() + MODULE_RNG.normal()


def _helper() -> Any:
    return MODULE_OBJECT.rng.random()


def test_generators_are_found_by_their_paths() -> None:
    found = {place.path for place in find_generators(data=Transform())}
    assert found == {
        "data.own",
        "data.Transform.of_class",
        "data.listed[0][1]",
        "data.listed[1]['name']",
        "data.slots.rng",
        "data.closure.closed",
        "data.closure.__defaults__[0]",
        "data.bound.__self__",
        "data.part.args[0]",
        "data.part.keywords['file'].rng",
        f"{__name__}.MODULE_RNG",
        f"{__name__}.MODULE_OBJECT.rng",
    }


def test_global_generators_are_left_to_their_own_keys() -> None:
    held = SimpleNamespace(a=np.random.mtrand._rand, b=random._inst, c=torch.default_generator)
    assert find_generators(data=held) == []


def test_large_containers_are_data() -> None:
    many: list[Any] = [random.Random()] * 1001
    assert find_generators(data=many) == []
    assert len(find_generators(data=many[:1000])) == 1, "the same generator once"


def test_each_is_set_differently_and_a_replaced_one_too() -> None:
    held = SimpleNamespace(a=random.Random(), b=random.Random())
    generators = Generators(data=held)
    generators.seed(1)
    before = held.a.random(), held.b.random()
    assert before[0] != before[1]
    held.a = random.Random()
    generators.seed(1)
    assert (held.a.random(), held.b.random()) == before
    del held.a
    generators.seed(1)
    assert held.b.random() == before[1]


def test_one_that_is_made_late_is_noticed_once() -> None:
    held = SimpleNamespace(a=random.Random())
    generators = Generators(data=held)
    held.late = random.Random()
    assert generators.grew()
    assert [place.path for place in generators.places] == ["data.a", "data.late"]
    assert not generators.grew()
