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
from typing import Any, NamedTuple

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
FIRST_JOBS = ("nodules", "nodules16", "digits", "resnet18")
"""Of the README's table."""
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
SMALL = "small grains are small kernels: a plain loop in the same grains loses as much (below)"
ASKED: dict[str, tuple[dict[str, float], str]] = {
    "over 1 Gbit/s against DDP": (
        {"nodules": 1.3, "nodules8": 1.3, "nodules16": 1.5, "digits": 1.0, "resnet18": 1.05},
        "nodules: small grains are small kernels; ResNet-18: no dense layer is large enough for "
        "factors, so that as many bytes travel as DDP's",
    ),
    "2 workers against DDP": (
        {"nodules": 1.05, "nodules8": 1.05, "nodules16": 1.1, "digits": 1.05, "resnet18": 1.0},
        SMALL,
    ),
    "1 worker against a plain loop": (
        {"nodules": 0.88, "nodules8": 0.88, "nodules2": 0.6, "digits": 0.92},
        SMALL,
    ),
    "1 worker, compiled, against a plain loop": (
        {"nodules": 1.0, "nodules8": 1.0, "digits": 1.0},
        "the same, and compiled grains do without factors",
    ),
}
"""Throughputs that were asked for, by job, and why they are not reached where they are not."""
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
    jobs = _measured(jobs)
    if not jobs:
        return NOT_YET.format("engine")
    lines = [[words, *(_cell(_ratio(job, name)) for job in jobs)] for name, words in rows.items()]
    return table(["throughput", *(JOBS[job] for job in jobs)], lines)


def _measured(jobs: Sequence[str]) -> list[str]:
    """The jobs of which there are any data."""
    parts = [_found("engine").get(part, {}) for part in ("link", "throughput")]
    return [job for job in jobs if any(job in part for part in parts)]


def _ratio(job: str, name: str) -> dict[str, float] | None:
    """A job's throughput against another's, from whichever part has it."""
    parts = [_found("engine").get(part, {}) for part in ("link", "throughput")]
    rows = (part.get(job, {}).get("ratios", {}).get(name) for part in parts)
    return next((row for row in rows if row), None)


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
    ways = dict.fromkeys(way for row in found.values() for way in row)
    rows = [
        [way, *(f"{row[way]:.2f}" if way in row else "" for row in found.values())] for way in ways
    ]
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
    return table(["workers", *PHASES, "step (median)", "MB", "hidden"], rows)


def scaling() -> str:
    """The paper's Table I beside the model's, and the model's error where it was checked."""
    found = _found("strong_scaling")
    if not found:
        return NOT_YET.format("strong_scaling")
    workers = [str(n) for n in found["workers"]]
    parts = []
    paper = ("100%", "105%", "87%", "90%", "58%", "46%")
    rows = [["Cunha et al. 2018, Table I (measured)", *paper]]
    for name, row in found["modelled"].items():
        for way in ("samepath", "samepath without factors", "DDP"):
            cells = [f"{value:.0%}" for value in row[way]]
            step = _duration(row["step_seconds"])
            rows.append([f"{name}, {step} a step: {way} (modelled)", *cells])
    parts.append(table(["efficiency", *workers], rows))
    if "pays" in found:
        pays = found["pays"]
        lines = [
            [way, f"{row['ratio']:.1f}", _duration(row["step_seconds"])]
            for way, row in pays["ways"].items()
        ]
        head = (
            f"{pays['efficiency']:.0%} efficient with {pays['workers']} workers",
            f"compute / network (the gradient once over the link: "
            f"{_duration(pays['gradient_seconds'])})",
            "a step of one worker alone, over 1 Gbit/s",
        )
        parts.append(
            table(head, [[way, f"from {ratio}", f"from {step}"] for way, ratio, step in lines])
        )
    checks = [
        f"{n} worker{'s' * (n != '1')} {1e3 * row['measured_seconds']:.0f} ms measured, "
        f"{1e3 * row['modelled_seconds']:.0f} ms modelled ({row['error']:+.0%})"
        for n, row in found.get("check", {}).items()
    ]
    if checks:
        parts.append("The check: " + "; ".join(checks) + ".")
    return "\n\n".join(parts)


def _duration(seconds: float) -> str:
    """'104 s', '52 ms', '2.6 ms'."""
    number, unit = (seconds, "s") if seconds >= 1.0 else (1e3 * seconds, "ms")
    return f"{number:.0f} {unit}" if number >= 10.0 else f"{number:.1f} {unit}"


def speed() -> str:
    """The README's table: medians only, in the recipes' own grains."""
    jobs = _measured(FIRST_JOBS)
    if not jobs:
        return NOT_YET.format("engine")

    def cell(job: str, name: str) -> str:
        row = _ratio(job, name)
        return "" if row is None else f"{row['median']:.2f}"

    rows = list(FIRST_ROWS.items())[:3]
    lines = [[words, *(cell(job, name) for job in jobs)] for name, words in rows]
    return table(["throughput", *(JOBS[job] for job in jobs)], lines)


def grains() -> str:
    """What small grains cost on one worker."""
    found = _found("grain_cost").get("jobs")
    if not found:
        return NOT_YET.format("grain_cost")
    rows = []
    for job, row in found.items():
        name = re.sub(r",.*", "", JOBS[job])
        for grain, seconds in row["seconds"].items():
            loop, ours = 1e3 * seconds["loop"], 1e3 * seconds["samepath"]
            size = f"{grain} (the whole batch)" if int(grain) == row["batch"] else grain
            rows.append([name, size, f"{loop:.0f} ms", f"{ours:.0f} ms", f"{ours / loop - 1:+.0%}"])
    lines = [
        f"{re.sub(',.*', '', JOBS[job])} "
        + ", ".join(f"{name} {share:.0%}" for name, share in row["parts"].items())
        for job, row in found.items()
    ]
    text = table(["job", "grains of", "a loop, same grains", "samepath", "more"], rows)
    size = next(iter(found.values()))["parts_grain"]
    return f"{text}\n\nOf samepath's own, in grains of {size}, by cProfile: {'; '.join(lines)}."


class Target(NamedTuple):
    """Something that was asked for."""

    what: str
    asked: float | None
    """None: that it is stated."""
    reached: float | None
    """None: not measured."""
    at_most: bool
    why_not: str
    percent: bool = False

    @property
    def is_met(self) -> bool:
        if self.reached is None or self.asked is None:
            return self.reached is not None
        low, high = (self.reached, self.asked) if self.at_most else (self.asked, self.reached)
        return round(low, 3) <= round(high, 3)

    def row(self) -> list[str]:
        def words(value: float) -> str:
            return (
                f"{value:.1%}"
                if self.percent and value < 0.1
                else (f"{value:.0%}" if self.percent else f"{value:.2f}")
            )

        asked = "stated"
        if self.asked is not None:
            asked = f"at {'most' if self.at_most else 'least'} {words(self.asked)}"
        if self.reached is None:
            return [self.what, asked, "not measured", ""]
        verdict = "" if self.is_met else self.why_not
        return [self.what, asked, words(self.reached), verdict]


def targets() -> str:
    """What was asked for, what is reached, and why where it is not."""
    found = [
        Target(f"{_said(name)}: {JOBS[job]}", least, _median(job, name), False,
               why)
        for name, (jobs, why) in ASKED.items()
        for job, least in jobs.items()
        if job in _measured(list(jobs)) or job in FIRST_JOBS
    ]  # fmt: skip
    found += [*_asked_bytes(), *_asked_of_model(), *_asked_memory()]
    rows = [target.row() for target in found]
    return table(["what", "asked", "reached", "why not"], rows)


def _median(job: str, name: str) -> float | None:
    row = _ratio(job, name)
    return None if row is None else row["median"]


def _said(name: str) -> str:
    """A comparison in words that stand alone."""
    words = FIRST_ROWS[name]
    return name if words.startswith("the same") else words


def _asked_bytes() -> list[Target]:
    sent = _found("engine").get("bytes", {})

    def most(workers: str, words: str = "") -> float | None:
        found = [sent.get(n, {}).get(f"samepath, 8 grains{words}") for n in workers]
        known = [value for value in found if value is not None]
        return max(known) if len(known) == len(workers) else None

    return [
        Target("bytes of nodules against a ring's, 2, 4, 8 workers", 0.25, most("248"), True, ""),
        Target("the same without factors, 3, 5, 6, 7 workers", 1.3,
               most("3567", ", without factors"), True,
               "sums of three grains are no subtree; no exchange comes below 1.25 at 3 workers, "
               "and that one needs up to five rounds (above)"),
    ]  # fmt: skip


def _asked_of_model() -> list[Target]:
    scaling, curves = _found("strong_scaling"), _found("figure_8")
    row = scaling.get("modelled", {}).get("this CPU, one core", {}).get("samepath", [])
    modelled = dict(zip(scaling.get("workers", []), row, strict=False))
    errors = [abs(each["error"]) for each in scaling.get("check", {}).values()]
    many = {point["workers"]: point["efficiency"] for point in curves.get("samepath", [])}
    why = "the first layers' gradients go as sums, and each smaller grain costs more per example"
    return [
        *(
            Target(f"efficiency over 1 Gbit/s, nodules on this CPU, {n} workers (modelled)", least,
                   modelled.get(n), False, why, True)
            for n, least in {2: 0.8, 4: 0.6, 8: 0.35, 16: 0.2}.items()
        ),
        Target("error of that model against 1, 2 and 4 namespaces", None,
               max(errors, default=None), True, "", True),
        Target("simulated ResNet-50 at 1,536 workers (modelled)", 0.75, many.get(1536), False,
               "a message from every worker to every other", True),
    ]  # fmt: skip


def _asked_memory() -> list[Target]:
    rows = _found("engine").get("throughput", {})
    peaks = {job: row["peak_mb"]["ratio"] for job, row in rows.items()}
    most = max(peaks, key=peaks.__getitem__, default="")
    keeping = _found("recovery").get("keeping", {}).values()
    shares = [row["share of the step time"] for row in keeping]
    return [
        Target(f"peak memory against DDP's, 2 workers, the most: {JOBS.get(most, '')}", 1.1,
               peaks.get(most), True, "freed memory is kept for the next step (setting "
               "MALLOC_TRIM_THRESHOLD_ prevents it)"),
        Target("keeping the last step in memory, part of a step, 1 and 2 workers", 0.02,
               max(shares, default=None), True,
               "it is copied once a step, and steps of two workers are short", True),
    ]  # fmt: skip


PARTS: dict[str, Callable[[], str]] = {
    "diff": diff,
    "tutorial": lambda: diff("tutorial/before", "tutorial/after"),
    "throughput": throughput,
    "bytes": sent,
    "bound": bound,
    "phases": phases,
    "scaling": scaling,
    "speed": speed,
    "grains": grains,
    "targets": targets,
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
