"""Bring docs/curation.md up to date with two curations of CIFAR-10 and a comparison.

    python scripts/write_curation_docs.py CURATED-18 CURATED-34 COMPARISON

In: two folders of `samepath curate`, one of `samepath curate compare`, and
benchmarks/results/curation.json. Out: the tables between the page's markers, and figures in
docs/images. The words around them are written by hand and must be read again.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from PIL import Image

from doc_figures import place_figure
from samepath.curation.compare import from_json
from samepath.report.curation import classes_table, comparison_table
from samepath.report.page import markdown

ROOT = Path(__file__).parents[1]
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


def planted(errors: dict[str, Any]) -> str:
    rows = [
        [
            "planted in",
            "who",
            "dropped",
            "precision",
            "recall",
            "ranking: recall at cleanlab's precision",
            "average precision",
        ]
    ]
    for case, found in errors.items():
        network = found["cleanlab on the network's predictions"]
        for who in ("samepath", "cleanlab on the network's predictions"):
            rate = found[who]
            own = "its ranking's recall at that precision"
            at = network[own] if who != "samepath" else network["samepath's ranking's"]
            numbers = (rate["precision"], rate["recall"], at, rate["average precision"])
            name = "samepath" if who == "samepath" else "cleanlab"
            cells = [f"{number:.3f}" for number in numbers]
            rows.append([case, name, str(rate["dropped"]), *cells])
    return markdown(rows)


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def main(curated18: Path, curated34: Path, compared: Path) -> None:
    results = read(ROOT / "benchmarks" / "results" / "curation.json")
    comparison = from_json(read(compared / "comparison.json"))
    ratio, features = results["speed"]["pipeline over openTSNE"], results["features"]
    tables = {
        "reductions": reductions({"ResNet-18": curated18, "ResNet-34": curated34}),
        "classes": markdown(classes_table(read(curated18 / "curation.json"))),
        "comparison": markdown(comparison_table(comparison)),
        "verdict": f"> {comparison.verdict}\n",
        "planted": planted(results["errors"]),
        "speed": (
            f"- The pipeline after features, over openTSNE alone: **{ratio['median']:.2f}** "
            f"({ratio['low']:.2f} to {ratio['high']:.2f}).\n"
            f"- Features with two workers against one: **{features['times faster']:.2f}** times "
            "faster, start of the workers included.\n"
        ),
    }
    page = ROOT / "docs" / "curation.md"
    text = page.read_text()
    for marker, content in tables.items():
        before, begin, rest = text.partition(f"<!-- {marker} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        assert begin, f"{marker} has no place in {page}"
        assert end, f"{marker} has no end in {page}"
        text = before + begin + content + end + after
    page.write_text(text)
    images = ROOT / "docs" / "images"
    for name in ("map", "classes", "dropped"):
        picture = Image.open(curated18 / f"{name}.png").convert("RGB")
        picture.quantize(256).save(images / f"curation_{name}.png", optimize=True)
    place_figure(compared / "comparison.svg", "curation_comparison")
    content = (compared / "comparison.json").read_text()
    content = re.sub(r'"/[^"]*/([^"/]+)"', r'"\1"', content)  # where it lay here says nothing
    (ROOT / "benchmarks" / "results" / "curation_comparison.json").write_text(content)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
