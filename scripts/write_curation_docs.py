"""Bring docs/curation.md up to date.

    python scripts/write_curation_docs.py                                     what benchmarks found
    python scripts/write_curation_docs.py --curated CURATED-18 CURATED-34     two curations, too
    python scripts/write_curation_docs.py --compared COMPARISON               a comparison, too

In: benchmarks/results/curation*.json*; folders of `samepath curate` and of `samepath curate
compare`. Out: the tables between the page's markers, and figures in docs/images. The words around
them are written by hand and must be read again.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

from PIL import Image

from doc_figures import place_figure

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from curation import table
from curation_paper import DEPTHS, PARTS, SEEDS, VARIANTS, Part, content, finished
from samepath.curation.compare import from_json
from samepath.report.curation import classes_table, comparison_table
from samepath.report.page import markdown

ROOT = Path(__file__).parents[1]
COMPARED = ROOT / "benchmarks" / "results" / "curation_comparison.json"
PAPER = {  # Gahlot et al. 2020, Table I: percent dropped
    "ResNet-18": 6.21,
    "ResNet-34": 6.55,
    "ResNet-50": 7.34,
    "ResNet-101": 5.12,
    "ResNet-152": 1.24,
}


def reductions(curated: dict[str, Path]) -> str:
    """Table I: what each network drops, and for which reasons."""
    rows = [["network", "kept", "dropped", "of it as noise", "paper: dropped"]]
    for name, folder in curated.items():
        about = read(folder / "curation.json")
        noise = sum(each["reasons"].get("noise", 0) for each in about["classes"])
        number = about["num_examples"]
        rows.append(
            [
                f"{name}, width 8",
                f"{about['num_kept']:,} of {number:,}",
                f"{100 * about['reduction']:.2f}%",
                f"{100 * noise / number:.2f}%",
                f"{PAPER[name]:.2f}%",
            ]
        )
    return markdown(rows)


PAPER_CLAIMS = (
    (
        "Figure 6: at batch 256 the best of filtered data (83.2%, decay 0.005) is above the best "
        "of all (82.6%) and of random (80.9%)",
        ("batch256",),
        "best",
    ),
    (
        "Figure 6: at batches 64 and 128 the best of filtered data is above the best of random",
        ("batch64", "batch128"),
        "best random",
    ),
    (
        "Figure 6: at the smallest decay filtered data is above both",
        ("batch64", "batch128", "batch256"),
        "smallest",
    ),
    (
        "Figure 7: from batch 6272 on filtered data is above all of it (77.5% and 75.2% at 6272)",
        ("batch6272", "batch10368"),
        "full",
    ),
    (
        "Figure 7: below, filtered data is as good as all of it",
        ("batch1024", "batch3136"),
        "same",
    ),
    (
        "Figure 7: filtered data is above random at every batch size",
        ("batch1024", "batch3136", "batch6272", "batch10368"),
        "random",
    ),
)
"""Each claim, the parts of benchmarks/curation_paper.py that answer it, and what is asked."""


def paper() -> str:
    """What benchmarks/curation_paper.py has found: parts, claims, Table I."""
    rows = [["part", "batch size", "epochs", "runs done", "all", "filtered", "random"]]
    ends = {part.name: accuracies(part) for part in PARTS}
    networks = content()["networks"]
    number = networks[str(DEPTHS[0])]["num_examples"] if networks else 0
    for part in PARTS:
        done = sum(map(len, ends[part.name].values()))
        epochs = str(part.epochs(number)) if number else ""
        line = [part.name, f"{part.batch:,}", epochs, f"{done} of {part.num_runs}"]
        rows.append([*line, *(spread(ends[part.name], variant) for variant in VARIANTS)])
    done = sum(map(len, (runs for each in ends.values() for runs in each.values())))
    total = sum(part.num_runs for part in PARTS)
    text = (
        f"{done} of {total} runs and {len(networks)} of {len(DEPTHS)} networks are done. "
        "Accuracy in percent at the best decay that has all seeds: mean (lowest to highest).\n\n"
    )
    text += markdown(rows) + "\n"
    claims = [["claim of the paper", "here"]]
    for words, names, asked in PAPER_CLAIMS:
        parts = [part for part in PARTS if part.name in names]
        missing = sum(p.num_runs - sum(map(len, ends[p.name].values())) for p in parts)
        unknown = f"not known: {missing} of {sum(p.num_runs for p in parts)} runs to go"
        claims.append([words, unknown if missing else holds(parts, ends, asked)])
    filtered = [["network", "kept", "dropped", "of it as noise", "paper: dropped"]]
    for depth in DEPTHS:
        name = f"ResNet-{depth}"
        found = networks.get(str(depth))
        cells = ["not done", "", ""]
        if found is not None:
            kept, of = found["num_kept"], found["num_examples"]
            noise = found["reasons"].get("noise", 0)
            cells = [f"{kept:,} of {of:,}", f"{100 * (1 - kept / of):.2f}%"]
            cells.append(f"{100 * noise / of:.2f}%")
        filtered.append([f"{name}, width 8", *cells, f"{PAPER[name]:.2f}%"])
    return text + markdown(claims) + "\n" + markdown(filtered)


Ends = dict[tuple[str, str], list[float]]
"""Accuracies by variant and decay, one for each seed."""


def accuracies(part: Part) -> Ends:
    found: Ends = {}
    for name, run in finished(part).items():
        variant, _, decay, _ = name.split("-")
        curve = run["epochs"].get("valid_accuracy") or [None]
        if curve[-1] is not None:
            found.setdefault((variant, decay), []).append(100 * curve[-1])
    return found


def best(ends: Ends, variant: str) -> list[float]:
    """Accuracies at the decay with the highest mean, of those with all seeds."""
    whole = [v for (name, _), v in ends.items() if name == variant and len(v) == SEEDS]
    return max(whole, key=statistics.mean, default=[])


def spread(ends: Ends, variant: str) -> str:
    values = best(ends, variant)
    if not values:
        return ""
    return f"{statistics.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def holds(parts: list[Part], ends: dict[str, Ends], asked: str) -> str:
    """Whether a claim holds at every part: where seeds do not overlap."""
    others: dict[str, tuple[str, ...]] = {}
    others |= {"best": ("full", "random"), "smallest": ("full", "random")}
    others |= {"best random": ("random",), "same": ("full",)}
    words = []
    for part in parts:
        for other in others.get(asked, (asked,)):
            if asked == "smallest":
                decay = f"decay{min(part.decays):.6g}"
                mine, theirs = (ends[part.name][variant, decay] for variant in ("filtered", other))
            else:
                mine, theirs = best(ends[part.name], "filtered"), best(ends[part.name], other)
            word = "no different from"
            if min(mine) > max(theirs) or max(mine) < min(theirs):
                word = "above" if min(mine) > max(theirs) else "below"
            words.append(f"{word} {'all' if other == 'full' else other} at {part.batch:,}")
    wanted = "no different" if asked == "same" else "above"
    answer = "holds" if all(word.startswith(wanted) for word in words) else "does not hold"
    return f"{answer}: {'; '.join(words)}"


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def fill(tables: dict[str, str]) -> None:
    """Write tables between their markers."""
    page = ROOT / "docs" / "curation.md"
    text = page.read_text()
    for marker, filled in tables.items():
        before, begin, rest = text.partition(f"<!-- {marker} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        assert begin, f"{marker} has no place in {page}"
        assert end, f"{marker} has no end in {page}"
        text = before + begin + filled + end + after
    page.write_text(text)


def benchmarks() -> dict[str, str]:
    """Tables that benchmarks alone have found."""
    results = read(ROOT / "benchmarks" / "results" / "curation.json")
    ratio, features = results["speed"]["pipeline over openTSNE"], results["features"]
    return {
        "planted": table(results["errors"]) + "\n",
        "paper": paper(),
        "speed": (
            f"- The pipeline after features, over openTSNE alone: **{ratio['median']:.2f}** "
            f"({ratio['low']:.2f} to {ratio['high']:.2f}).\n"
            f"- Features with two workers against one: **{features['times faster']:.2f}** times "
            "faster, start of the workers included.\n"
        ),
    }


def curations(curated18: Path, curated34: Path) -> dict[str, str]:
    """Tables of two curations; their figures go to docs/images."""
    images = ROOT / "docs" / "images"
    for name in ("map", "classes", "dropped"):
        picture = Image.open(curated18 / f"{name}.png").convert("RGB")
        picture.quantize(256).save(images / f"curation_{name}.png", optimize=True)
    return {
        "reductions": reductions({"ResNet-18": curated18, "ResNet-34": curated34}),
        "classes": markdown(classes_table(read(curated18 / "curation.json"))),
    }


def place_comparison(compared: Path) -> None:
    """A comparison goes to benchmarks/results, its figure to docs/images."""
    place_figure(compared / "comparison.svg", "curation_comparison")
    content = (compared / "comparison.json").read_text()
    content = re.sub(r'"/[^"]*/([^"/]+)"', r'"\1"', content)  # where it lay here says nothing
    COMPARED.write_text(content)


def comparison() -> dict[str, str]:
    """Tables of the comparison in benchmarks/results."""
    found = from_json(read(COMPARED))
    return {
        "comparison": markdown(comparison_table(found)),
        "verdict": f"> {found.verdict}\n",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--curated", type=Path, nargs=2, metavar=("CURATED18", "CURATED34"))
    parser.add_argument("--compared", type=Path, metavar="COMPARISON")
    asked = parser.parse_args()
    if asked.compared is not None:
        place_comparison(asked.compared)
    tables = benchmarks() | comparison()
    if asked.curated is not None:
        tables |= curations(*asked.curated)
    fill(tables)


if __name__ == "__main__":
    main()
