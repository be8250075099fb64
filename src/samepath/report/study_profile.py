"""The report over several recipes: performance profiles as a table and a figure.

In: what the studies found, already reported each in its folder. Out: `profiles.json`, `profile.png`
and `report.html`, with every recipe's table.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from samepath.console import count
from samepath.files import finite, write_atomically
from samepath.report import style
from samepath.report.page import Section, write_page
from samepath.report.study import row_name, tables_in_short
from samepath.report.words import Rows, Tables, listed, number, workers_named
from samepath.study.profiles import Profiles, StrategyProfile, profile_height, to_json
from samepath.study.results import Study

PROFILE_NOTE = (
    "Score: mean over factors from 1 to 4 of the part of recipes on which a strategy takes at most "
    "so many times as long as the best at that number of workers (1: always the best; 0: never "
    "within four times it). Own best number: each strategy, on each recipe, with the workers that "
    "bring it to the target soonest."
)


def finish_profiles(
    profiles: Profiles, studies: Sequence[Study], folder: Path
) -> tuple[str, Tables, Path]:
    """Write everything; the verdict, the tables of a terminal, and the report's path."""
    content = json.dumps(finite(to_json(profiles)), indent=1)
    write_atomically(folder / "profiles.json", content + "\n")
    picture = draw_profile(profiles, folder / "profile.png")
    said = profile_verdict(profiles)
    tables: Tables = [("Performance over all recipes: score", score_table(profiles), PROFILE_NOTE)]
    sections = [
        Section(heading="Verdict", words=said),
        Section(
            heading="Performance over all recipes",
            table=score_table(profiles),
            note=PROFILE_NOTE,
            picture=picture,
        ),
    ]
    for study in studies:
        title, table, note = tables_in_short(study)[0]
        title = f"{Path(study.recipe).stem}: {title[0].lower()}{title[1:]}"
        tables.append((title, table, note))
        sections.append(Section(heading=title, words=study.verdict, table=table, note=note))
    page = folder / "report.html"
    write_page(page, f"{_recipes(profiles)}: strategies over several recipes", sections)
    return said, tables, page


def score_table(profiles: Profiles) -> Rows:
    """Scores by strategy and workers."""
    columns = list(dict.fromkeys(each.workers for each in profiles.profiles))
    heads = ["own best number" if k is None else workers_named([k]) for k in columns]
    rows = [["strategy", *heads]]
    scores = {(p.strategy, p.tuned, p.workers): p.score for p in profiles.profiles}
    for strategy, tuned in _lines(profiles):
        row = [f"{scores[strategy, tuned, k]:.2f}" for k in columns]
        rows.append([row_name(strategy, tuned, both=_are_tuned(profiles)), *row])
    return rows


def profile_verdict(profiles: Profiles) -> str:
    """A sentence: who stands first, each strategy at its own best number of workers."""
    own = [each for each in profiles.profiles if each.workers is None]
    best = max(each.score for each in own)
    if not best:
        return "No strategy reached the target of any recipe."
    both = _are_tuned(profiles)
    first = [row_name(p.strategy, p.tuned, both=both) for p in own if p.score == best]
    recipes = count(len(profiles.recipes), "recipe")
    have = "has" if len(first) == 1 else "have"
    return f"Over {recipes}, {listed(first)} {have} the highest score: {number(best, 3)} of 1."


def draw_profile(profiles: Profiles, out: Path) -> Path:
    """Part of the recipes within a factor of the best, each strategy at its own best number of
    workers; what is not tuned is dashed where strategies were."""
    own = [each for each in profiles.profiles if each.workers is None]
    looks = style.strategy_looks(list(dict.fromkeys(each.strategy for each in own)))
    figure = style.new_figure(8.6, 4.8, f"{_recipes(profiles)}: performance profile")
    axes = figure.add_subplot()
    both, handles = _are_tuned(profiles), []
    lift = 0.008  # lines of one height side by side
    for place, each in enumerate(own):
        look = looks[each.strategy]
        is_pale = both and not each.tuned
        how: dict[str, Any] = {
            "color": look.colour,
            "linestyle": (0, (4, 2)) if is_pale else look.line,
            "linewidth": 1.2 if is_pale else 2.0,
            "alpha": 0.75 if is_pale else 1.0,
        }
        taus, heights = _steps(each, profiles.most_ratio)
        raised = [height + lift * (place - (len(own) - 1) / 2) for height in heights]
        axes.step(taus, raised, where="post", **how)
        name = row_name(each.strategy, each.tuned, both=both)
        handles.append(style.key(f"{name}: {each.score:.2f}", **how))
    axes.set(xlim=(1.0, profiles.most_ratio), ylim=(-0.08, 1.08))
    axes.set_xlabel("factor of the best time to target")
    axes.set_ylabel("part of the recipes within it")
    style.tidy(axes)
    handles.append(style.key("numbers: score; lines of one height are shifted", linestyle=""))
    return style.finish(figure, handles, out)


def _steps(profile: StrategyProfile, most: float) -> tuple[list[float], list[float]]:
    """Where the profile rises, and to what."""
    taus = sorted({1.0, *(ratio for ratio in profile.ratios if ratio <= most), most})
    return taus, [profile_height(profile.ratios, tau) for tau in taus]


def _recipes(profiles: Profiles) -> str:
    return listed(Path(recipe).stem for recipe in profiles.recipes)


def _lines(profiles: Profiles) -> list[tuple[str, bool]]:
    """Strategies in their order; where they were tuned, first so and then as prescribed."""
    names = dict.fromkeys(each.strategy for each in profiles.profiles)
    kinds = [True, False] if _are_tuned(profiles) else [False]
    return [(name, tuned) for name in names for tuned in kinds]


def _are_tuned(profiles: Profiles) -> bool:
    return any(each.tuned for each in profiles.profiles)
