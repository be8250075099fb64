"""Fill in the parts of README.md that come from elsewhere: the diff and the measured numbers.

A test checks that they are up to date, so that the README shows what examples/ and
benchmarks/results/ hold.
"""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

_ROWS = {
    "2 workers: throughput against DDP": "2 workers, throughput against DDP",
    "1 worker: throughput against a plain loop": "1 worker, throughput against a plain loop",
    "speed-up from 1 to 2 workers": "speed-up from 1 to 2 workers",
    "speed-up against the machine's limit": "of what two independent runs side by side reach",
    "DDP's speed-up against the same limit": "the same for DDP",
    "2 workers, exact off: throughput against DDP": "2 workers, `--exact off`, against DDP",
}


def diff() -> str:
    """Plain PyTorch against the same on any number of workers."""
    plain, own = ((ROOT / "examples" / f"{n}_loop.py").read_text() for n in ("plain", "own"))
    lines = difflib.unified_diff(plain.splitlines(), own.splitlines(), lineterm="", n=1)
    shown = [line for line in list(lines)[2:] if '"""' not in line]
    return "```diff\n" + "\n".join(shown) + "\n```"


def numbers() -> str:
    """A table of medians with their range."""
    found: dict[str, Any] = json.loads((ROOT / "benchmarks/results/engine.json").read_text())
    jobs = {
        "nodules": "nodules",
        "nodules16": "nodules, grains of 16",
        "digits": "digits",
        "resnet18": "ResNet-18, 32x32",
    }
    table = ["| | " + " | ".join(jobs.values()) + " |", "| --- " * (len(jobs) + 1) + "|"]
    for name, words in _ROWS.items():
        cells = [_cell(found["throughput"][job]["ratios"][name]) for job in jobs]
        table.append(f"| {words} | " + " | ".join(cells) + " |")
    if "link" in found:
        over = {job: row["throughput against DDP"] for job, row in found["link"].items()}
        cells = [_cell(over[job]) if job in over else "" for job in jobs]
        table.append("| over 1 Gbit/s, throughput against DDP | " + " | ".join(cells) + " |")
    cells = [f"{found['memory'][job]['ratio']:.2f}" for job in jobs]
    table.append("| peak memory against DDP | " + " | ".join(cells) + " |")
    text = "\n".join(table) + "\n\nMedian (lowest to highest round)."
    if "bytes" in found:
        sent = {n: row["samepath, the busiest worker"] for n, row in found["bytes"].items()}
        words = ", ".join(f"{value:.2f} at {n}" for n, value in sent.items())
        text += " Bytes of nodules on the wire, busiest worker, against a ring's 2(N-1)/N: "
        text += f"{words} workers."
    return text


def _cell(row: dict[str, float]) -> str:
    return f"**{row['median']:.2f}** ({row['low']:.2f} to {row['high']:.2f})"


def render(text: str) -> str:
    """README.md with its parts filled in."""
    for name, part in (("diff", diff()), ("numbers", numbers())):
        pattern = rf"<!-- {name} -->.*?<!-- end -->"
        text = re.sub(pattern, lambda _: f"<!-- {name} -->\n{part}\n<!-- end -->", text, flags=re.S)  # noqa: B023
    return text


if __name__ == "__main__":
    page = ROOT / "README.md"
    page.write_text(render(page.read_text()))
