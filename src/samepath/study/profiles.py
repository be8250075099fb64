"""Several recipes: a study of each, and how strategies stand over all of them.

In: a StudyRequest and recipes; then what their studies found. Out: a request for each, in a folder
of its own; then performance profiles, the content of `profiles.json`. Guaranteed: bad input raises
before anything is written, whichever recipe it is about.

A profile (Dolan and More 2002; AlgoPerf: Dahl et al. 2023, arXiv:2306.07179) says of a strategy on
what part of the recipes it takes at most tau times as long as the best does there. Its score is the
profile's mean height from 1 to 4: 1 is the best on all recipes, 0 never within four times it. A
target that is not reached takes infinitely long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from samepath.errors import UserError
from samepath.strategies import find_strategy
from samepath.study.opening import SETTINGS, StudyRequest, look_into
from samepath.study.results import FORMAT, Study

MOST = 4.0
"""The factor at which a profile ends (AlgoPerf's)."""
FILES = ("profiles.json", "profile.png", "report.html")


@dataclass(frozen=True, kw_only=True)
class StrategyProfile:
    """One strategy among all at the same number of workers."""

    strategy: str
    tuned: bool
    workers: int | None
    """None: on each recipe the number with which it reaches the target soonest, as for all that it
    is compared with."""
    ratios: tuple[float, ...]
    """The strategy's time by recipe to target over the best; infinite where it does not reach
    it."""
    score: float


@dataclass(frozen=True, kw_only=True)
class Profiles:
    """How strategies stand over several recipes."""

    format: int
    command: tuple[str, ...]
    versions: dict[str, str]
    recipes: tuple[str, ...]
    most_ratio: float
    profiles: tuple[StrategyProfile, ...]


def requests_for(request: StudyRequest, recipes: Sequence[str]) -> list[StudyRequest]:
    """A request for each recipe, in a folder inside the request's, after looking into all."""
    names = [Path(recipe).stem for recipe in recipes]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"two recipes are called {twice!r}; give each once, by a name of its own")
    parent = request.out or Path("studies") / "+".join(names)
    if parent.exists() and not parent.is_dir():
        raise UserError(f"--out {parent} is a file; give a folder")
    for entry in sorted(parent.iterdir()) if parent.is_dir() else ():
        if entry.name not in FILES and not (entry / SETTINGS).is_file():
            raise UserError(
                f"--out {parent} holds {entry.name}, which is no study of a recipe; give another "
                "folder"
            )
    for text in request.strategies:
        find_strategy(text)
    requests = [
        replace(request, recipe=recipe, out=parent / name)
        for recipe, name in zip(recipes, names, strict=True)
    ]
    for each in requests:
        look_into(each)
    return requests


def profile_height(ratios: Sequence[float], tau: float) -> float:
    """Part of the recipes on which a strategy takes at most tau times as long as the best."""
    return sum(ratio <= tau for ratio in ratios) / len(ratios)


def profile_score(ratios: Sequence[float]) -> float:
    """Mean height of the profile from 1 to MOST: each recipe adds what is right of its ratio."""
    return sum(max(0.0, MOST - ratio) / (MOST - 1.0) for ratio in ratios) / len(ratios)


def profiles_of(studies: Sequence[Study], command: tuple[str, ...]) -> Profiles:
    """Compare strategies at each number of workers, and each at its own best number."""
    first = studies[0]
    profiles = [profile for k in (None, *first.workers) for profile in _profiles(studies, k)]
    return Profiles(
        format=FORMAT,
        command=command,
        versions=first.versions,
        recipes=tuple(study.recipe for study in studies),
        most_ratio=MOST,
        profiles=tuple(profiles),
    )


def _profiles(studies: Sequence[Study], workers: int | None) -> list[StrategyProfile]:
    lines = dict.fromkeys((cell.strategy, cell.tuned) for cell in studies[0].cells)
    times = {line: [_seconds(study, *line, workers) for study in studies] for line in lines}
    best = [min(each) for each in zip(*times.values(), strict=True)]
    found = []
    for (strategy, tuned), mine in times.items():
        # where none reaches the target, none is the best
        ratios = tuple(
            time / least if math.isfinite(time) else math.inf
            for time, least in zip(mine, best, strict=True)
        )
        score = profile_score(ratios)
        found.append(
            StrategyProfile(
                strategy=strategy, tuned=tuned, workers=workers, ratios=ratios, score=score
            )
        )
    return found


def _seconds(study: Study, strategy: str, tuned: bool, workers: int | None) -> float:
    """Median time to target; infinite where it is not reached."""
    return min(
        cell.seconds.median if cell.seconds is not None else math.inf
        for cell in study.cells
        if (cell.strategy, cell.tuned) == (strategy, tuned) and workers in (None, cell.workers)
    )


def to_json(profiles: Profiles) -> dict[str, Any]:
    """Plain values; infinities become text where it is written."""
    return {"kind": "profiles", **asdict(profiles)}
