"""Fill in docs/promise.md: the table of PyTorch constructs, one row for each that is tested, and
what benchmarks found of the fuzzer and of the comparison of replicas.

A test checks that it is up to date, so that the page says what tests and benchmarks show.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "promise.md"
sys.path.insert(0, str(ROOT / "tests" / "parity"))
from cases import CASES  # noqa: E402
from constructs import CONSTRUCTS  # noqa: E402

END = "<!-- end -->"


def rows() -> list[tuple[str, str, str]]:
    """What, the verdict, the test."""
    found = [(c.words, c.verdict, f"`{name}`") for name, c in CONSTRUCTS.items()]
    more = [(name.replace("_", " "), "same bits", f"`{name}`") for name in CASES]
    order = ("same bits", "refused", "yours to keep")
    return sorted(found + more, key=lambda row: order.index(row[1]))


def constructs() -> str:
    table = ["| construct | | test |", "| --- | --- | --- |"]
    table += [f"| {words} | {verdict} | {test} |" for words, verdict, test in rows()]
    return "\n".join(table)


def results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())
    return found


def fuzz() -> str:
    found = results("fuzz_promise")
    return (
        f"`benchmarks/fuzz_promise.py`: {found['trainings']:,} random trainings in "
        f"{found['minutes']:.0f} minutes, {len(found['failures'])} that did not keep the promise."
    )


def replicas() -> str:
    found = results("replica_check")["results"]
    said = [
        f"{name.split(',')[0]} at {name.split()[-1]} worker{'s' if name[-1] != '1' else ''} "
        f"{part['share of the step time']:.2%} (ratio of step times {part['ratio']:.3f}, quartiles "
        f"{part['low']:.3f} to {part['high']:.3f})"
        for name, part in found.items()
    ]
    return f"What that takes of a step (`benchmarks/replica_check.py`): {'; '.join(said)}."


def render(text: str) -> str:
    for name, content in (("constructs", constructs), ("fuzz", fuzz), ("replicas", replicas)):
        begin = f"<!-- {name} -->\n"
        before, rest = text.split(begin)
        _, after = rest.split(END, 1)
        text = before + begin + content() + "\n" + END + after
    return text


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
