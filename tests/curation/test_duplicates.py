"""Near-duplicates: what is proposed by features, and what the pixels decide."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from samepath.curation.duplicates import all_but_one, near_pairs, show_the_same

Images = NDArray[np.uint8]


def photos(number: int, side: int = 32) -> Images:
    """Smooth pictures with edges, all of one kind, as photographs of one class are."""
    draws = np.random.default_rng(1)
    coarse = draws.uniform(40, 200, (number, side // 4, side // 4, 3))
    fine = np.repeat(np.repeat(coarse, 4, axis=1), 4, axis=2)
    light = np.linspace(0, 50, side)[None, :, None, None]
    return (fine + light + draws.normal(0, 4, fine.shape)).clip(0, 255).astype(np.uint8)


def shifted(images: Images) -> Images:
    return np.pad(images, ((0, 0), (3, 0), (0, 2), (0, 0)), mode="edge")[:, :-3, 2:]


CHANGES: dict[str, Callable[[Images], Images]] = {
    "nothing": lambda images: images,
    "shift": shifted,
    "mirror": lambda images: images[:, :, ::-1],
    "brightness": lambda images: (0.7 * images.astype(float) + 30).astype(np.uint8),
    "all of it": lambda images: (0.8 * shifted(images)[:, :, ::-1].astype(float)).astype(np.uint8),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("grey", [False, True])
def test_the_same_photo_is_known_again(change: str, grey: bool) -> None:
    images = photos(40)
    other = CHANGES[change](images)
    if grey:
        images, other = images[..., 0], other[..., 0]
    assert show_the_same(images, other).all()
    assert not show_the_same(images, np.roll(other, 1, axis=0)).any()
    assert not show_the_same(images, np.zeros_like(images)).any()


def neighbours(number: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    rows = np.arange(number)
    return np.stack([np.roll(rows, -1), np.roll(rows, 1)], axis=1), np.ones((number, 2))


def no_rows(rows: NDArray[np.int64]) -> NDArray[np.float32]:
    raise AssertionError("pictures are not compared as rows of numbers")


def test_pictures_need_only_be_near_in_features() -> None:
    images = photos(40)
    images[1] = shifted(images[:1])[0]
    near, distances = neighbours(40)
    distances[0, 0] = distances[1, 1] = 0.4
    one = np.zeros(40, dtype=np.int64)
    told: list[tuple[int, int]] = []

    def found(groups: NDArray[np.int64]) -> list[list[int]]:
        pairs = near_pairs(near, distances, groups, images, no_rows,
                           told=lambda done, total: told.append((done, total)))  # fmt: skip
        return [[int(a), int(b)] for a, b in pairs]

    assert found(one) == [[0, 1]]
    assert told[-1][0] == told[-1][1] > 0
    assert found(np.arange(40)) == [], "of other classes"
    distances[0, 0] = distances[1, 1] = 40.0
    assert [0, 1] not in found(one), "the features are far from one another"


def test_what_is_no_picture_must_be_close_as_it_is() -> None:
    draws = np.random.default_rng(0)
    inputs = draws.normal(size=(40, 20)).astype(np.float32)
    inputs[1] = inputs[0] + 0.001
    inputs[2] = inputs[0] - 0.001
    near, distances = neighbours(40)
    distances[[0, 1]] = 0.01  # 0 to 1, 1 to 2
    distances[9] = 0.01  # 9 and 10: alike to the network only
    one = np.zeros(40, dtype=np.int64)
    pairs = near_pairs(near, distances, one, None, lambda rows: inputs[rows])
    assert pairs.tolist() == [[0, 1], [1, 2]]
    centre = np.arange(40.0)
    centre[2] = -1.0
    everything = np.ones(40, dtype=bool)
    dropped = all_but_one(pairs, centre, everything)
    assert np.flatnonzero(dropped).tolist() == [0, 1], "2 is nearest to its cluster's centre"
    everything[1] = False
    assert not all_but_one(pairs, centre, everything).any()
