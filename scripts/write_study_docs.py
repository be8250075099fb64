"""Bring docs/study.md up to date with studies of nodules-small.

    python scripts/write_study_docs.py STUDY-AT-THE-RECIPE'S-RATE STUDY-AT-THE-LARGEST-RATE
    python scripts/write_study_docs.py --tuned STUDY

In: the folders of finished studies. Out: the tables between the page's markers, the figures in
docs/images, and what every run came to in benchmarks/results. The words around them are written by
hand and must be read again.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from doc_figures import place_figure
from samepath.report.page import markdown
from samepath.report.study import (
    efficiency_table,
    predictions_table,
    rates_table,
    summary_table,
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


def put_in_place(text: str, marker: str, content: str) -> str:
    """A page's text with what is between a marker and its end replaced."""
    before, begin, rest = text.partition(f"<!-- {marker} -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not begin or not end:
        print(f"{marker} has no place in the page", file=sys.stderr)
        return text
    return before + begin + content + end + after


def main(recipe_rate: Path, largest_rate: Path) -> None:
    page = ROOT / "docs" / "study.md"
    text = page.read_text()
    for name, folder in (("recipe", recipe_rate), ("largest", largest_rate)):
        for marker, content in tables(name, load(folder)).items():
            text = put_in_place(text, marker, content)
        results = ROOT / "benchmarks" / "results"
        shutil.copy(folder / "study.csv", results / f"study_nodules_small_{name}.csv")
        shutil.copy(folder / "clock.json", results / f"study_nodules_small_{name}_clock.json")
    page.write_text(text)
    for name, folder in (("recipe", recipe_rate), ("largest", largest_rate)):
        for figure in FIGURES:
            if f"images/study_{name}_{figure}." in text:
                place_figure(folder / f"{figure}.svg", f"study_{name}_{figure}", ROOT)


def write_tuned(folder: Path) -> None:
    """The tuned part of the page."""
    study, page = load(folder), ROOT / "docs" / "study.md"
    figures = ("time_to_target", "time_to_target_prescribed")
    pictures = [f"![{name.replace('_', ' ')}](images/study_tuned_{name}.svg)" for name in figures]
    text = page.read_text()
    for marker, content in {
        "tuned-verdict": f"> {study.verdict}\n\n" + "\n".join(pictures) + "\n",
        "tuned-times": markdown(summary_table(study)),
        "tuned-efficiency": markdown(efficiency_table(study, study.strategies)),
    }.items():
        text = put_in_place(text, marker, content)
    page.write_text(text)
    for name in figures:
        place_figure(folder / f"{name}.svg", f"study_tuned_{name}", ROOT)
    results = ROOT / "benchmarks" / "results"
    shutil.copy(folder / "study.csv", results / "study_nodules_small_tuned.csv")


if __name__ == "__main__":
    if sys.argv[1] == "--tuned":
        write_tuned(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
