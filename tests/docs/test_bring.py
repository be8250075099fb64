"""What people bring: every example of docs/bring/ on one worker and several, and against the plain
loop it came from. To add one: a row in scripts/write_bring_docs.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from write_bring_docs import EXAMPLES, FOLDER, largest_difference, page_of, render, run


def need(name: str) -> None:
    """Skip an example whose packages are not installed."""
    if missing := EXAMPLES[name].missing:
        pytest.skip(f"{name} needs {', '.join(missing)}")


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_same_on_every_number_of_workers(name: str) -> None:
    need(name)
    alone, *several = (run(FOLDER / f"{name}.py", count) for count in (1, 2, 3))
    assert alone.digests
    assert [each.output for each in several] == [alone.output] * 2


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_the_plain_loop_computes(name: str) -> None:
    need(name)
    assert largest_difference(name) <= EXAMPLES[name].tolerance


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_page_shows_its_example(name: str) -> None:
    text = page_of(name).read_text()
    assert text == render(name, text, ("lines", "script")), (
        "run: python scripts/write_bring_docs.py"
    )
    shown = re.findall(r"^\| (\d) \| (.*`) \|$", text, re.M)
    assert [int(count) for count, _ in shown] == [1, 2, 3, 5]
    assert len({digests for _, digests in shown}) == 1
    assert "Largest difference of a weight to the loop above, in float64: " in text


def test_every_example_is_run() -> None:
    def names(folder: Path) -> set[str]:
        return {path.stem for path in folder.glob("*.py")}

    assert names(FOLDER) == EXAMPLES.keys()
    assert names(FOLDER / "before") == EXAMPLES.keys()
