"""Bring docs/study.md up to date with two studies of nodules-small.

    python scripts/write_study_docs.py STUDY-AT-THE-RECIPE'S-RATE STUDY-AT-THE-LARGEST-RATE

In: the folders of two finished studies. Out: the tables between the page's markers, the figures in
docs/images, and what every run came to in benchmarks/results. The words around them are written by
hand and must be read again.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from samepath.report.page import markdown
from samepath.report.study import (
    efficiency_table,
    predictions_table,
    rates_table,
    time_table,
)
from samepath.report.words import base_name
from samepath.study.results import Study, from_json

ROOT = Path(__file__).parents[1]
PAPER: dict[str, dict[int, float | None]] = {  # Cunha et al. 2018, Tables I and II, in percent
    "strong": {1: 100.00, 2: 105.17, 4: 86.81, 8: 90.09, 16: 58.08, 32: 46.25},
    "weak": {1: 100.00, 2: 96.96, 4: 63.86, 8: 42.32, 16: 19.65, 32: 9.45},
    "warmup": {1: 100.00, 2: 84.95, 4: 75.49, 8: None, 16: None, 32: None},
    "linear": {1: 100.00, 2: None, 4: None, 8: None, 16: None, 32: None},
}
FIGURES = (
    "time_to_target", "efficiency", "pareto", "generalisation_gap",
    "loss_strong", "loss_weak", "loss_linear", "loss_warmup", "loss_sqrt",
)  # fmt: skip


def load(folder: Path) -> Study:
    found = from_json(json.loads((folder / "study.json").read_text()))
    assert isinstance(found, Study), f"{folder} is not a race"
    return found


def beside_the_paper(study: Study, strategies: list[str]) -> str:
    """Our efficiencies, each followed by the paper's."""
    ours = efficiency_table(study, strategies)
    rows = [["workers"]]
    for name in strategies:
        rows[0] += [name] if name not in PAPER else [name, f"{name}, paper"]
    for line in ours[1:]:
        row = [line[0]]
        for name, text in zip(strategies, line[1:], strict=True):
            row.append(text)
            if name in PAPER:
                value = PAPER[name].get(int(line[0]))
                row.append("NaN" if value is None else f"{value:.2f}")
        rows.append(row)
    return markdown(rows)


def tables(name: str, study: Study) -> dict[str, str]:
    strong = [strategy for strategy in study.strategies if base_name(strategy) == "strong"]
    others = [strategy for strategy in study.strategies if strategy not in strong]
    found = {
        f"{name}-strong": beside_the_paper(study, strong),
        f"{name}-others": beside_the_paper(study, others),
        f"{name}-times": markdown(time_table(study)),
        f"{name}-predictions": markdown(predictions_table(study)),
        f"{name}-verdict": f"> {study.verdict}\n",
    }
    if study.rate.tried:
        found[f"{name}-rates"] = markdown(rates_table(study))
    return found


def main(recipe_rate: Path, largest_rate: Path) -> None:
    page = ROOT / "docs" / "study.md"
    text = page.read_text()
    for name, folder in (("recipe", recipe_rate), ("largest", largest_rate)):
        for marker, content in tables(name, load(folder)).items():
            before, begin, rest = text.partition(f"<!-- {marker} -->\n")
            _, end, after = rest.partition("<!-- end -->")
            if not begin or not end:
                print(f"{marker} has no place in {page}", file=sys.stderr)
                continue
            text = before + begin + content + end + after
        for figure in FIGURES:
            if f"study_{name}_{figure}.png" in text:
                target = ROOT / "docs" / "images" / f"study_{name}_{figure}.png"
                shutil.copy(folder / f"{figure}.png", target)
        results = ROOT / "benchmarks" / "results"
        shutil.copy(folder / "study.csv", results / f"study_nodules_small_{name}.csv")
        shutil.copy(folder / "clock.json", results / f"study_nodules_small_{name}_clock.json")
    page.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
