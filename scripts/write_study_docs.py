"""Bring docs/study.md up to date with studies of nodules-small, and of several recipes.

    python scripts/write_study_docs.py STUDY-AT-THE-RECIPE'S-RATE STUDY-AT-THE-LARGEST-RATE
    python scripts/write_study_docs.py --tuned STUDY --of 5
    python scripts/write_study_docs.py --profile FOLDER

In: the folders of finished studies. Out: the tables between the page's markers, the figures in
docs/images, and what every run came to in benchmarks/results. The words around them are written by
hand and must be read again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from doc_figures import place_figure
from samepath.files import read_as
from samepath.report.page import markdown
from samepath.report.study import (
    efficiency_table,
    predictions_table,
    rates_table,
    summary_table,
    time_note,
    time_table,
)
from samepath.report.study_profile import PROFILE_NOTE, profile_verdict, score_table
from samepath.report.words import base_name
from samepath.study.profiles import Profiles
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
    """Our efficiencies, each followed by the paper's, which are of strategies as prescribed."""
    ours = efficiency_table(study, strategies)
    heads = len(ours[0]) - len(strategies)  # workers; also which kind, where there are two
    rows = [ours[0][:heads]]
    for name in strategies:
        rows[0] += [name] if name not in PAPER else [name, f"{name}, paper"]
    for line in ours[1:]:
        row, is_tuned = line[:heads], "tuned" in line[:heads]
        for name, text in zip(strategies, line[heads:], strict=True):
            row.append(text)
            if name in PAPER:
                row.append("" if is_tuned else _of_the_paper(name, int(line[0])))
        rows.append(row)
    return markdown(rows)


def _of_the_paper(name: str, workers: int) -> str:
    if workers not in PAPER[name]:
        return ""
    value = PAPER[name][workers]
    return "NaN" if value is None else f"{value:.2f}"


def strong_and_others(study: Study) -> tuple[list[str], list[str]]:
    """The strategies of Table I, and those of Table II."""
    strong = [name for name in study.strategies if base_name(name) == "strong"]
    return strong, [name for name in study.strategies if name not in strong]


def tables(name: str, study: Study) -> dict[str, str]:
    strong, others = strong_and_others(study)
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


def write_tuned(folder: Path, planned: int) -> None:
    """The tuned part of the page, from as many whole studies as there are of those `planned`."""
    study, page = load(folder), ROOT / "docs" / "study.md"
    strong, others = strong_and_others(study)
    figures = ("time_to_target", "time_to_target_prescribed")
    pictures = [f"![{name.replace('_', ' ')}](images/study_tuned_{name}.svg)" for name in figures]
    text = page.read_text()
    for marker, content in {
        "tuned-verdict": f"{how_many(study, planned)}\n\n> {study.verdict}\n\n"
        + "\n".join(pictures)
        + "\n",
        "tuned-times": f"{markdown(summary_table(study))}\n{time_note(study)}\n",
        "tuned-efficiency": "Table I (strong), ours beside the paper's, in percent:\n\n"
        f"{beside_the_paper(study, strong)}\n"
        f"Table II (the others). NaN: the target was not reached.\n\n"
        f"{beside_the_paper(study, others)}",
    }.items():
        text = put_in_place(text, marker, content)
    page.write_text(text)
    for name in figures:
        place_figure(folder / f"{name}.svg", f"study_tuned_{name}", ROOT)
    results = ROOT / "benchmarks" / "results"
    shutil.copy(folder / "study.csv", results / "study_nodules_small_tuned.csv")


def how_many(study: Study, planned: int) -> str:
    """How many of the planned studies are whole, and in how many places all of them, and none,
    reached the target."""
    done = "All" if study.studies == planned else f"{study.studies} of"
    said = [f"{done} {planned} studies are done."]
    for tuned, kind in ((True, "tuned"), (False, "as prescribed")):
        cells = study.only(tuned=tuned).cells
        every = sum(cell.reached == cell.seeds for cell in cells)
        none = sum(not cell.reached for cell in cells)
        said.append(
            f"Of {len(cells)} pairs of strategy and workers, {kind}, {every} reached the target in "
            f"all of them, {none} in none."
        )
    return " ".join(said)


def write_profile(folder: Path) -> None:
    """The part of the page on several recipes."""
    content = json.loads((folder / "profiles.json").read_text())
    profiles: Profiles = read_as(Profiles, content)
    studies = {Path(name).stem: load(folder / Path(name).stem) for name in profiles.recipes}
    page, results = ROOT / "docs" / "study.md", ROOT / "benchmarks" / "results"
    parts = [
        f"{name}, to a validation loss of {study.target.loss:.4g}:\n\n"
        f"{markdown(summary_table(study))}"
        for name, study in studies.items()
    ]
    verdict = f"> {profile_verdict(profiles)}\n\n![profile](images/study_profile.png)\n"
    text = put_in_place(page.read_text(), "profile-verdict", verdict)
    scores = f"{markdown(score_table(profiles))}\n{PROFILE_NOTE}\n"
    text = put_in_place(text, "profile-scores", scores)
    page.write_text(put_in_place(text, "profile-times", "\n".join(parts)))
    place_figure(folder / "profile.png", "study_profile", ROOT)
    for name in studies:
        shutil.copy(folder / name / "study.csv", results / f"profile_study_{name}.csv")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("untuned", type=Path, nargs="*", metavar="STUDY")
    parser.add_argument("--tuned", type=Path, metavar="STUDY")
    parser.add_argument("--profile", type=Path, metavar="FOLDER")
    parser.add_argument("--of", type=int, default=5, metavar="N", help="studies that are planned")
    asked = parser.parse_args()
    if asked.untuned:
        main(*asked.untuned)
    if asked.tuned is not None:
        write_tuned(asked.tuned, asked.of)
    if asked.profile is not None:
        write_profile(asked.profile)
