"""Fill in the parts of pages that come from elsewhere: the README's diff, the tutorial's, and the
measured numbers of docs/speed.md.

A test checks that they are up to date, so that the pages show what examples/ and
benchmarks/results/ hold.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
JOBS = {
    "nodules": "nodules, 8 grains",
    "nodules8": "nodules, 4 grains",
    "nodules16": "nodules, 2 grains",
    "nodules2": "nodules, 16 grains",
    "digits": "digits, 8 grains",
    "digits128": "digits, 2 grains",
    "resnet18": "ResNet-18, 4 grains",
    "resnet32": "ResNet-18, 2 grains",
}
"""Of benchmarks/engine.py, by the grains in which a batch is computed."""
KEPT = ", samepath's memory"
FIRST_ROWS = {
    "2 workers against DDP": "2 workers of one machine, against DDP",
    "over 1 Gbit/s against DDP": "2 machines, 1 Gbit/s, against DDP",
    "1 worker against a plain loop": "1 worker, against a plain loop",
    "1 worker, compiled, against a plain loop": "the same, compiled",
}
MORE_ROWS = {
    f"2 workers against DDP{KEPT}": "2 workers, against DDP with samepath's memory settings",
    "2 workers, exact off, against DDP": "2 workers with `--exact off`, against DDP",
    "2 workers against a plain loop with 2 threads": "2 workers, against 1 process with 2 threads",
    f"1 worker against a plain loop{KEPT}": "1 worker, against a plain loop with those settings",
    f"1 worker, compiled, against a plain loop{KEPT}": "the same, compiled",
    "over 1 Gbit/s against one all_reduce after the backward pass": "2 machines, 1 Gbit/s, against "
    "one `all_reduce` after the backward pass",
    "speed-up from 1 to 2 workers": "speed-up from 1 to 2 workers",
    "speed-up against the machine's limit": "of what two independent runs side by side reach",
    "DDP's speed-up against the same limit": "the same for DDP",
}
NOT_YET = "Not measured with this version yet: `python benchmarks/{}.py`."
PHASES = ("load", "forward", "backward", "reduce", "wait", "update")


def _found(name: str) -> dict[str, Any]:
    """A benchmark's results; none where it was not run yet."""
    file = ROOT / f"benchmarks/results/{name}.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


def diff(before: str = "plain_loop", after: str = "own_loop") -> str:
    """A script of examples/ against the same on any number of workers."""
    plain, own = ((ROOT / "examples" / f"{n}.py").read_text() for n in (before, after))
    lines = difflib.unified_diff(plain.splitlines(), own.splitlines(), lineterm="", n=1)
    shown = "\n".join(line for line in list(lines)[2:] if '"""' not in line)
    hunks = re.split(r"^(?=@@)", shown, flags=re.M)  # of one with other docstrings nothing is left
    changed = (hunk for hunk in hunks if re.search(r"^[+-]", hunk, flags=re.M))
    return "```diff\n" + "".join(changed).rstrip("\n") + "\n```"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    return "\n".join(lines)


def _cell(row: dict[str, float] | None) -> str:
    return "" if row is None else f"{row['median']:.2f} ({row['low']:.2f} to {row['high']:.2f})"


def ratios(rows: dict[str, str], jobs: Sequence[str]) -> str:
    """Medians with their range, a row for each comparison and a column for each job."""
    found = _found("engine")
    parts = [found.get(part, {}) for part in ("throughput", "link")]
    jobs = [job for job in jobs if any(job in part for part in parts)]

    def of_job(job: str, name: str) -> dict[str, float] | None:
        known = [part.get(job, {}).get("ratios", {}).get(name) for part in parts]
        return next((row for row in known if row), None)

    if not jobs:
        return NOT_YET.format("engine")
    lines = [[words, *(_cell(of_job(job, name)) for job in jobs)] for name, words in rows.items()]
    return table(["throughput", *(JOBS[job] for job in jobs)], lines)


def throughput() -> str:
    text = ratios(FIRST_ROWS | MORE_ROWS, tuple(JOBS))
    peaks = {
        job: row["peak_mb"]["ratio"] for job, row in _found("engine").get("throughput", {}).items()
    }
    if not peaks:
        return NOT_YET.format("engine")
    cells = ", ".join(f"{JOBS[job]} {value:.2f}" for job, value in peaks.items())
    return f"{text}\n\nPeak memory of a worker at 2 workers, against DDP's: {cells}."


def sent() -> str:
    """Bytes of the busiest worker, against a ring's."""
    found = _found("engine").get("bytes")
    if not found:
        return NOT_YET.format("engine")
    ways = list(next(iter(found.values())))
    rows = [[way, *(f"{found[n][way]:.2f}" for n in found)] for way in ways]
    return table(["workers", *found], rows)


def bound() -> str:
    """Bytes without factors beside the fewest that the tree's order lets any exchange send."""
    found = _found("bytes_bound")
    if not found:
        return NOT_YET.format("bytes_bound")
    rows = [
        [f"{grains} grains: {way}", *(f"{row[way]:.2f}" for row in by_workers.values())]
        for grains, by_workers in found.items()
        for way in next(iter(by_workers.values()))
    ]
    return table(["workers", *next(iter(found.values()))], rows)


def phases() -> str:
    """Milliseconds of a step, by what they were spent on."""
    rows = []
    found = _found("engine").get("phases")
    if not found:
        return NOT_YET.format("engine")
    for workers, ways in found.items():
        for way, row in ways.items():
            spent = [f"{1e3 * row['phase_seconds'].get(phase, 0.0):.1f}" for phase in PHASES]
            hidden = row["hidden_share"]
            rows.append(
                [
                    f"{workers}, {way}",
                    *spent,
                    f"{1e3 * row['step_seconds']:.1f}",
                    f"{row['bytes_sent'] / 1e6:.2f}",
                    "" if hidden is None else f"{hidden:.0%}",
                ]
            )
    return table(["workers", *PHASES, "step (median)", "MB sent", "hidden"], rows)


def scaling() -> str:
    """The paper's Table I beside the model's, and the model's error where it was checked."""
    found = _found("strong_scaling")
    if not found:
        return NOT_YET.format("strong_scaling")
    workers = [str(n) for n in found["workers"]]
    paper = ("100%", "105%", "87%", "90%", "58%", "46%")
    rows = [["Cunha et al. 2018, Table I (measured)", *paper]]
    for name, row in found["modelled"].items():
        for way in ("samepath", "samepath without factors", "DDP"):
            cells = [f"{value:.0%}" for value in row[way]]
            rows.append([f"{name}, {row['step_seconds']:.2g} s a step: {way} (modelled)", *cells])
    if "check" not in found:
        return table(["efficiency", *workers], rows)
    checks = [
        f"{n} worker{'s' * (n != '1')} {1e3 * row['measured_seconds']:.0f} ms measured, "
        f"{1e3 * row['modelled_seconds']:.0f} ms modelled ({row['error']:+.0%})"
        for n, row in found["check"].items()
    ]
    return table(["efficiency", *workers], rows) + "\n\nThe check: " + "; ".join(checks) + "."


def speed() -> str:
    """The README's table: medians only, in the recipes' own grains."""
    parts = [_found("engine").get(part, {}) for part in ("link", "throughput")]
    jobs = ("nodules", "nodules16", "digits", "resnet18")

    def cell(job: str, name: str) -> str:
        rows = (part.get(job, {}).get("ratios", {}).get(name) for part in parts)
        return next((f"{row['median']:.2f}" for row in rows if row), "")

    rows = list(FIRST_ROWS.items())[:3]
    lines = [[words, *(cell(job, name) for job in jobs)] for name, words in rows]
    return table(["throughput", *(JOBS[job] for job in jobs)], lines)


PARTS: dict[str, Callable[[], str]] = {
    "diff": diff,
    "tutorial": lambda: diff("tutorial/before", "tutorial/after"),
    "throughput": throughput,
    "bytes": sent,
    "bound": bound,
    "phases": phases,
    "scaling": scaling,
    "speed": speed,
}


def render(text: str) -> str:
    """A page with its parts filled in."""

    def fill(found: re.Match[str]) -> str:
        return f"<!-- {found[1]} -->\n{PARTS[found[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->.*?<!-- end -->", fill, text, flags=re.S)


PAGES = ("README.md", "docs/speed.md", "docs/tutorials/gpu-count.md")

if __name__ == "__main__":
    for page in (ROOT / name for name in PAGES):
        page.write_text(render(page.read_text(encoding="utf-8")), encoding="utf-8")
