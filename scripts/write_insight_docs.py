"""Bring docs/advise.md up to date with what benchmarks found.

    python scripts/write_insight_docs.py [ADVICE CURVATURE PROFILE FIGURE-8]

In: benchmarks/results/*.json of advise, noise_scale, critical_batch, curvature, profile_engines,
simulate and figure_8; and, to renew the figures, the folder of benchmarks/advise.py --folders, that
of benchmarks/curvature.py, a profile's and that of benchmarks/figure_8.py. Out: tables between the
page's markers, and figures in docs/images.
The words around them are written by hand and must be read again.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from doc_figures import place_figure
from samepath.report.page import markdown

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"


def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1.0 else f"{seconds:.2f} s"


def truth() -> str:
    """What advice predicted, and what it took."""
    rows = [
        ["recipe", "where", "predicted", "measured", "error", "speed-up: predicted", "measured"]
    ]
    for recipe, found in read("advise").items():
        if recipe == "about":
            continue
        rows += [
            [
                recipe,
                where,
                ms(row["predicted_seconds"]),
                f"{ms(row['true_seconds'])} ({ms(row['low_seconds'])} to "
                f"{ms(row['high_seconds'])})",
                f"{row['error']:+.0%}",
                f"{row['predicted_speedup']:.2f}",
                f"{row['true_speedup']:.2f}",
            ]
            for where, row in found["compared"].items()
        ]
    return markdown(rows)


def verdicts() -> str:
    return "\n".join(
        f"- **{recipe}** ({found['took_seconds']['all_seconds']:.0f} s): "
        f"{' '.join(found['verdict'].splitlines())}"
        for recipe, found in read("advise").items()
        if recipe != "about"
    )


def noise() -> str:
    found = read("noise_scale")
    rows = [["run", "average over the run", "at its end", "published average"]]
    rows += [
        [
            f"{recipe}, {run['epochs']} epochs",
            f"{run['average']:.0f}",
            f"{run['last']:.0f}",
            f"{run['published_for']}: {run['published']}",
        ]
        for recipe, run in found["runs"].items()
    ]
    costs = ", ".join(
        f"{recipe} {cost['ratio']:.4f} ({cost['low']:.4f} to {cost['high']:.4f})"
        for recipe, cost in found["cost"].items()
    )
    direct = found["truth"]
    return (
        f"Step time with it over without (median; half of the rounds): {costs}. At the weights of "
        f"digits after 5 epochs: {direct['direct']:.1f} from the gradients of all single examples, "
        f"{direct['steps']:.1f} ({direct['low']:.1f} to {direct['high']:.1f}) from steps.\n\n"
    ) + markdown(rows)


def curvature() -> str:
    found = read("curvature")
    names = (
        "training loss",
        "validation loss",
        "accuracy",
        "gap",
        "top eigenvalue",
        "trace",
        "rise",
    )
    rows = [["seed", "batch", "steps", *names]]
    for seed, pair in enumerate(found["runs"]):
        rows += [
            [
                str(seed),
                str(run["batch size"]),
                str(run["steps"]),
                *(f"{run[n]:.3g}" for n in names),
            ]
            for run in pair
        ]
    ratios = ", ".join(
        f"{name} {sorted(values)[len(values) // 2]:.2f} ({min(values):.2f} to {max(values):.2f})"
        for name, values in found["batch 1024 over 32"].items()
    )
    return markdown(rows) + f"\nBatch 1024 over batch 32, median over seeds (range): {ratios}."


def profile() -> str:
    parts = []
    for where, found in read("profile_engines").items():
        engines = found["engines"]
        rows = [[where + " workers", *engines]]
        for name in next(iter(engines.values())):
            cells = [each[name] for each in engines.values()]
            rows.append(
                [name, *(f"{c['median']:.3g} ({c['low']:.3g} to {c['high']:.3g})" for c in cells)]
            )
        parts.append(markdown(rows))
    return "\n".join(parts)


def validation() -> str:
    rows = [["recipe", "link", "workers", "predicted", "measured", "error", "passes"]]
    for recipe, found in read("simulate")["steps"].items():
        rows += [
            [
                Path(recipe).stem,
                row["link"],
                str(row["workers"]),
                ms(row["predicted_seconds"]),
                ms(row["measured_seconds"]),
                f"{row['error']:+.1%}",
                f"{row['low']:+.0%} to {row['high']:+.0%}",
            ]
            for row in found["rows"]
        ]
    return markdown(rows)


def scaling() -> str:
    curves = read("figure_8")
    rows = [["modelled", *(str(point["workers"]) for point in next(iter(curves.values())))]]
    rows += [
        [name, *(f"{point['efficiency']:.0%}" for point in points)]
        for name, points in curves.items()
    ]
    return markdown(rows)


def critical() -> str:
    """The critical batch by branches, and what the noise scale says."""
    rows: list[list[str]] = []
    for job, found in read("critical_batch").items():
        if job == "about":
            continue
        measured = found["measured_batch"]
        ratios: dict[int, list[float]] = {}
        for branch in measured["branches"]:
            ratio = branch["ratio"]
            ratios.setdefault(branch["batch_size"], []).append(math.inf if ratio is None else ratio)
        base, *larger = sorted(ratios)
        times = {size // base: statistics.median(ratios[size]) for size in larger}
        if not rows:
            head = ["recipe", "after epoch", "batch", "critical batch", "fitted B_crit"]
            rows = [[*head, "noise scale says", *(f"{n} times" for n in times)]]
        rows.append(
            [
                job.rpartition("-")[0],
                str(measured["base_epochs"]),
                str(base),
                _range(measured["critical"], measured["low"], measured["high"]),
                _range(*(measured[f"fitted{end}"] for end in ("", "_low", "_high"))),
                _noise(measured["noise_low"], measured["noise_high"]),
                *("never" if math.isinf(t) else f"{t:.2f}" for t in times.values()),
            ]
        )
    return markdown(rows)


def _range(middle: float | None, low: float | None, high: float | str | None) -> str:
    if middle is None:
        return "not known"
    if low is None:
        return f"{middle:.0f}"
    if high is None or math.isinf(float(high)):
        return f"{middle:.0f} (at least {low:.0f})"
    return f"{middle:.0f} ({low:.0f} to {float(high):.0f})"


def _noise(low: float | None, high: float | str | None) -> str:
    if low is None or high is None:
        return "not known"
    ends = [f"{x:.0f}" if x >= 10 else f"{x:.2g}" for x in (low, float(high))]
    return f"at least {ends[0]}" if math.isinf(float(high)) else " to ".join(ends)


PARTS: dict[str, Callable[[], str]] = {
    "critical": critical,
    "verdicts": verdicts,
    "truth": truth,
    "noise": noise,
    "curvature": curvature,
    "profile": profile,
    "validation": validation,
    "scaling": scaling,
}


def render(text: str) -> str:
    """The page with its parts filled in."""
    for name, part in PARTS.items():
        before, begin, rest = text.partition(f"<!-- {name} -->")
        _, end, after = rest.partition("<!-- end -->")
        assert end, f"docs/advise.md has no place for {name}"
        text = f"{before}{begin}\n{part().strip()}\n{end}{after}"
    return text


def place_figures(advice: Path, curvature: Path, profile: Path, simulation: Path) -> None:
    for recipe in ("nodules", "digits", "cifar10"):
        place_figure(advice / recipe / "advice.svg", f"advise_{recipe}")
    for name in ("spectrum.svg", "lines.svg", "planes.png"):
        place_figure(curvature / name, f"curvature_{Path(name).stem}")
    place_figure(profile / "profile.png", "profile_engines")
    place_figure(simulation / "simulated_scaling.png", "simulated_scaling")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        place_figures(*map(Path, sys.argv[1:]))
    page = ROOT / "docs" / "advise.md"
    page.write_text(render(page.read_text()))
