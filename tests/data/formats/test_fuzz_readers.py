"""Whatever is in a file that we read: it loads, or ends in one line of ours; no crash, no hang.

Each reader of `tests/helpers/readers.py` has a small valid file, which is truncated, flipped,
spliced, has its numbers and JSON values replaced by hostile ones, or gives way to random bytes.
While a reader works it may take two gigabytes of address space more than before, and ten seconds.

More than CI does: SAMEPATH_FUZZ=5000 SAMEPATH_FUZZ_SEED=7 pytest path/to/this/file
"""

from __future__ import annotations

import json
import os
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st
from little_room import little_room
from readers import FEW, READERS

from samepath.data.formats import cifar10

EXAMPLES = int(os.environ.get("SAMEPATH_FUZZ", "40"))
SEED = os.environ.get("SAMEPATH_FUZZ_SEED")

# ---- what is done to it

HOSTILE = [
    b"", b"\0", b"\xff" * 8, b"\0" * 8, b"\xff\xff\xff\x7f", b"\n", b"\r\n", b'"', b"'", b",", b"=",
    b"-1", b"0", b"1e999", b"NaN", b"-Infinity", b"9" * 25, b"9" * 5000, b"[" * 3000, b"(" * 300,
    b"{", b"}", b"null", b"true", b"\xc3\x28", b"\xef\xbb\xbf", b"../../etc/passwd", b"/dev/zero",
    b"1000000 1000000 1", b"|O", b"<U999999999", b"(999999999999,)", b"LIST", b"a" * 300_000,
]  # fmt: skip
VALUES: list[Any] = [
    None, True, -1, 0, 1.5, 10**30, 10**400, -(10**400), 1e308, "", "x", "nan", "x" * 5000, "a\nb",
    [], {}, [[]], [None], {"a": 1}, [1] * 50, "\ud800", float("nan"), float("inf"),
]  # fmt: skip

Change = tuple[str, float, int, int]
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["cut", "flip", "put", "put over", "splice", "value", "value", "random"]),
        st.floats(0, 1),
        st.integers(0, 2**31 - 1),
        st.integers(1, 64),
    ),
    min_size=1,
    max_size=4,
)


def changed(content: bytes, change: Change) -> bytes:
    """One kind of damage; a part of the file, a choice and a length say which."""
    kind, part, choice, length = change
    place = round(part * len(content))
    hostile = HOSTILE[choice % len(HOSTILE)]
    if kind == "cut":
        return content[:place]
    if kind == "flip":
        flipped = bytes(byte ^ (1 << choice % 8) for byte in content[place : place + 1])
        return content[:place] + flipped + content[place + 1 :]
    if kind == "put":
        return content[:place] + hostile + content[place:]
    if kind == "put over":
        return content[:place] + hostile + content[place + len(hostile) :]
    if kind == "splice":
        other = choice % (len(content) + 1)
        return content[:place] + content[other : other + length] + content[place + length :]
    if kind == "value":
        return with_value(content, part, VALUES[choice % len(VALUES)])
    return content[:place] + random.Random(choice).randbytes(length) + content[place + length :]


def with_value(content: bytes, part: float, value: Any) -> bytes:
    """One value of a JSON file, or of one line of it, replaced."""
    lines = content.split(b"\n")
    whole = [content] if len(lines) > 1 and lines[0].strip() in (b"{", b"[") else lines
    number = min(int(part * len(whole)), len(whole) - 1)
    try:
        found = json.loads(whole[number])
    except (ValueError, RecursionError):
        return content
    places = list(places_in({"": found}))
    holder, name = places[round(part * 1e6) % len(places)]
    if not isinstance(found, (dict, list)) or name == "":
        found = value
    else:
        holder[name] = value
    whole[number] = json.dumps(found).encode()
    return b"\n".join(whole)


def places_in(holder: Any) -> Iterator[tuple[Any, Any]]:
    for name in list(holder) if isinstance(holder, dict) else range(len(holder)):
        yield holder, name
        if isinstance(holder[name], (dict, list)):
            yield from places_in(holder[name])


# ---- what must come of it


@pytest.fixture(autouse=True)
def a_few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10, "NUM_IMAGES", FEW)


@pytest.mark.parametrize("name", READERS)
def test_it_loads_or_ends_in_one_line(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    reader.make(tmp_path)
    file = tmp_path / reader.file
    valid = file.read_bytes()
    beside = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    reader.read(tmp_path)  # what is not damaged is read

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=SEED is None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(CHANGES)
    def attempt(changes: list[Change]) -> None:
        content = valid
        for change in changes:
            content = changed(content, change)
        for path, before in beside.items():
            if path != file and path.read_bytes() != before:
                path.write_bytes(before)
        file.write_bytes(reader.seal(tmp_path, content))
        with little_room(), warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                reader.read(tmp_path)
                return
            except reader.raises as error:
                said = str(error)
        assert said, "it says why"
        assert "\n" not in said, said
        assert len(said) < 2000, said[:2000]

    (attempt if SEED is None else hypothesis_seed(int(SEED))(attempt))()
