"""Splits that keep groups together, and fingerprints of data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from samepath.data.content import fingerprint_path
from samepath.data.split import split_by_group

GROUPS = st.lists(st.sampled_from("abcdefgh"), max_size=40)


@given(GROUPS, st.integers(0, 40))
def test_groups_stay_together(groups: list[str], num_valid: int) -> None:
    train, valid = split_by_group(groups, num_valid)
    assert sorted([*train, *valid]) == list(range(len(groups)))
    assert len(valid) <= num_valid
    assert not {groups[i] for i in train} & {groups[i] for i in valid}


@given(GROUPS, st.integers(0, 40), st.permutations(range(40)))
def test_the_order_of_the_rows_does_not_matter(
    groups: list[str], num_valid: int, order: list[int]
) -> None:
    shuffled = [groups[i] for i in order if i < len(groups)]
    _, valid = split_by_group(groups, num_valid)
    _, again = split_by_group(shuffled, num_valid)
    assert {groups[i] for i in valid} == {shuffled[i] for i in again}


def test_single_examples_fill_it_exactly() -> None:
    train, valid = split_by_group([f"row {i}" for i in range(100)], 20)
    assert (len(train), len(valid)) == (80, 20)
    assert np.all(np.diff(valid) > 0)


def test_a_moved_file_is_the_same_and_a_changed_one_is_not(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(bytes(3 << 20))
    before = fingerprint_path(file)
    assert fingerprint_path(file.rename(tmp_path / "b.bin")) == before
    for place in (0, (3 << 20) - 1):
        content = bytearray(3 << 20)
        content[place] = 1
        file.write_bytes(content)
        assert fingerprint_path(file) != before


def test_a_folder_is_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "one").write_text("1")
    before = fingerprint_path(folder)
    assert fingerprint_path(folder.rename(tmp_path / "moved")) == before
    (tmp_path / "moved" / "two").touch()
    assert fingerprint_path(tmp_path / "moved") != before
