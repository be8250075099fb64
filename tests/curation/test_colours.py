"""Colours of classes."""

from __future__ import annotations

import pytest

from samepath.curation.colours import class_colours


@pytest.mark.parametrize("number", [1, 12, 13, 200])
def test_every_class_has_colours_of_its_own(number: int) -> None:
    found = class_colours(number)
    for side in (0, 1):
        assert len({pair[side] for pair in found}) == number
        assert all(len(pair[side]) == 7 and int(pair[side][1:], 16) >= 0 for pair in found)
