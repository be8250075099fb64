"""Which runs a study needs. Pure, apart from asking the strategies.

In: strategies, worker counts, seeds, and the options all runs share. Out: entries (one for each
cell of the tables) and the job that trains each. Guaranteed: entries on one path share one job: all
strong runs of a seed are one, and so is every strategy that does at some k what strong does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from samepath.engine.run.options import Options
from samepath.engine.run.strategy_schedule import Course
from samepath.errors import UserError
from samepath.strategies import BUILT_IN, Choice, Moment, find_strategy

_FRACTIONS = (0.0, 0.25, 0.5, 0.75)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run to be trained."""

    folder: str
    """Inside the study's folder."""
    label: str
    """For people."""
    options: Options


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One strategy at one number of workers with one seed."""

    strategy: str
    workers: int
    seed: int
    options: Options
    """Of its path."""
    job: Job | None
    """None where there is nothing to train."""
    why: str = ""
    """Why there is not."""


def same_as_strong(text: str, k: int, epochs: int) -> bool:
    """Whether a strategy for k workers does what strong does, in every epoch."""
    strategy = find_strategy(text)
    if text.split(":")[0] not in BUILT_IN or strategy.measures(k):
        return False  # what it will do is not known beforehand
    moments = (Moment(epoch=e, fraction=f) for e in range(epochs) for f in _FRACTIONS)
    return all(strategy(k, moment) == Choice() for moment in moments)


def race_entries(
    options: Options, strategies: Sequence[str], workers: Iterable[int], seeds: Iterable[int]
) -> list[Entry]:
    """Every cell of the tables; the sequential runs first."""
    jobs: dict[str, Job] = {}
    entries = []
    for seed in seeds:
        for text in dict.fromkeys(["strong", *strategies]):
            for k in dict.fromkeys([1, *workers]):
                entry = _entry(replace(options, seed=seed), text, k)
                if entry.job is not None:  # one object for one path
                    entry = replace(entry, job=jobs.setdefault(entry.job.folder, entry.job))
                entries.append(entry)
    return entries


def _entry(options: Options, text: str, k: int) -> Entry:
    sequential = same_as_strong(text, k, options.epochs)
    own = replace(
        options,
        strategy="strong" if sequential else text,
        strategy_identity="strong" if sequential else find_strategy(text).identity,
        virtual_workers=1 if sequential else k,
    )
    try:
        Course(own)
    except UserError as error:
        return Entry(strategy=text, workers=k, seed=own.seed, options=own, job=None, why=str(error))
    name = "strong" if sequential else f"{file_name(text)}-k{k}"
    if own.learning_rate is not None:
        name += f"-rate{own.learning_rate:.6g}"
    label = "sequential" if sequential else f"{text} k={k}"
    job = Job(folder=f"runs/{name}-seed{own.seed}", label=f"{label} seed {own.seed}", options=own)
    return Entry(strategy=text, workers=k, seed=own.seed, options=own, job=job)


def file_name(text: str) -> str:
    """A text as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.+]+", "-", text).strip("-")
