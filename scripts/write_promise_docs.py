"""Fill in the table of PyTorch constructs in docs/promise.md, one row for each that is tested.

A test checks that it is up to date, so that the page says what the tests show.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "promise.md"
sys.path.insert(0, str(ROOT / "tests" / "parity"))
from cases import CASES  # noqa: E402
from constructs import CONSTRUCTS  # noqa: E402

BEGIN, END = "<!-- constructs -->\n", "<!-- end -->"


def rows() -> list[tuple[str, str, str]]:
    """What, the verdict, the test."""
    found = [(c.words, c.verdict, f"`{name}`") for name, c in CONSTRUCTS.items()]
    more = [(name.replace("_", " "), "same bits", f"`{name}`") for name in CASES]
    order = ("same bits", "refused", "yours to keep")
    return sorted(found + more, key=lambda row: order.index(row[1]))


def render(text: str) -> str:
    before, rest = text.split(BEGIN)
    _, after = rest.split(END, 1)
    table = ["| construct | | test |", "| --- | --- | --- |"]
    table += [f"| {words} | {verdict} | {test} |" for words, verdict, test in rows()]
    return before + BEGIN + "\n".join(table) + "\n" + END + after


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
