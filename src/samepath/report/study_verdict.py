"""What a study showed, in two sentences.

In: the cells of a race, or a grid. Out: plain words, derived from these alone. The first sentence
on a race says which strategy reaches the target soonest (and whether that time was measured or
modelled), the second what became of the rest.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from samepath.report.words import (
    ENDED,
    duration,
    endings,
    listed,
    number,
    percent,
    sentence,
    spread,
    two_digits,
    workers_named,
)
from samepath.study.results import BatchRun, BatchStudy, Cell, GridStudy, Interval

TIE = 0.01
"""Times that differ by no more than this fraction are called equal."""

Tried = Mapping[str, Mapping[int, Cell]]
"""Cells by strategy and workers."""

_ONE = {"es": "es", "s": "s", "is": "is", "has": "has"}
_SEVERAL = {"es": "", "s": "", "is": "are", "has": "have"}
"""Endings and verbs of a phrase such as "reach{es} it", of one strategy or of several."""


def verdict(cells: Sequence[Cell], target_loss: float, rate_how: str) -> str:
    """Two sentences on a race; `rate_how` is `Rate.how`."""
    tried: dict[str, dict[int, Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.workers):
        tried.setdefault(cell.strategy, {})[cell.workers] = cell
    counts = sorted({cell.workers for cell in cells})
    loss = number(target_loss)
    winners = {k: found for k in counts if (found := _winners(tried, k))}
    contested = [k for k in winners if k > 1]
    if not cells:
        return f"Nothing was raced to {loss}. There is nothing to compare."
    if not winners:
        first = _nothing(cells, counts, loss)
        second = sentence(_clauses({name: _fate(tried[name]) for name in tried}))
    elif not contested:
        first, second = _only_one_worker(tried, counts, winners[1], loss)
    else:
        leaders = [name for name in tried if all(name in winners[k] for k in contested)]
        if leaders:
            first = _led(tried, counts, contested, leaders, loss)
        else:
            first = _divided(tried, winners, contested, loss)
        second = _rest(tried, counts, winners, contested, leaders)
    return f"{first}. {second}{_caveats(cells, rate_how)}."


def _winners(tried: Tried, workers: int) -> list[str]:
    """The strategies that are soonest at a worker count, in the order of the study."""
    times = {name: _seconds(found.get(workers)) for name, found in tried.items()}
    best = min(times.values(), default=math.inf)
    return [name for name, time in times.items() if math.isfinite(time) and _ties(time, best)]


def _ties(time: float, best: float) -> bool:
    return time <= best * (1.0 + TIE)


def _seconds(cell: Cell | None) -> float:
    """Infinite where the target was not reached."""
    return math.inf if cell is None or cell.seconds is None else cell.seconds.median


def _nothing(cells: Sequence[Cell], counts: Sequence[int], loss: str) -> str:
    yet = " yet" if any("unfinished" in cell.ended for cell in cells) else ""
    most = " on more than half of the seeds" if any(cell.reached for cell in cells) else ""
    where = f"at any worker count tried ({listed(map(str, counts))})"
    return f"No strategy reaches {loss}{yet}{most} {where}"


def _only_one_worker(
    tried: Tried, counts: Sequence[int], best: Sequence[str], loss: str
) -> tuple[str, str]:
    cell = tried[best[0]][1]
    known = f"{duration(_seconds(cell))} ({cell.how})"
    fates = {name: _fate(tried[name]) for name in tried if _failed(tried[name])}
    if len(counts) > 1:
        return f"Only one worker reaches {loss}: {known}", sentence(_clauses(fates))
    who = _subject(best, len(tried))
    soonest = " soonest" if len(best) < len(tried) else ""
    first = f"With one worker, {who} {_reach(best)} {loss}{soonest}: {known}"
    later = [name for name in tried if name not in best and name not in fates]
    fates |= dict.fromkeys(later, "reach{es} it later")
    alone = "No larger worker count was tried, so nothing is known about scaling"
    return first, f"{alone}; {_clauses(fates)}" if fates else alone


def _led(
    tried: Tried,
    counts: Sequence[int],
    contested: Sequence[int],
    leaders: Sequence[str],
    loss: str,
) -> str:
    more = [k for k in counts if k > 1]
    everywhere = f"at every worker count tried from {more[0]} on"
    named = f"with {workers_named(contested)}"
    place = everywhere if list(contested) == more and len(more) > 1 else named
    who = _subject(leaders, len(tried))
    verb = f"{who} {_reach(leaders)} {loss}"
    name, workers = _best(tried, leaders, contested)
    cell = tried[name][workers]
    if len(tried) == len(leaders):
        together = "" if len(tried) == 1 else " equally soon"
        if len(contested) == 1:
            return sentence(f"{verb}{together} {place} in {_quoted(tried, cell)}")
        where = f"soonest with {workers}, in"
        return sentence(f"{verb}{together} {place}, {where} {_quoted(tried, cell)}")
    tie = ", in a tie," if len(leaders) > 1 else ""
    quoted = _quoted(tried, cell, "" if len(contested) == 1 else f" with {workers} workers")
    return sentence(f"{verb} soonest{tie} {place}: {quoted}")


def _divided(
    tried: Tried, winners: Mapping[int, list[str]], contested: Sequence[int], loss: str
) -> str:
    groups: dict[tuple[str, ...], list[int]] = {}
    for k in contested:
        groups.setdefault(tuple(winners[k]), []).append(k)
    parts = [
        f"{listed(group)} {'does' if len(group) == 1 else 'tie'} with {workers_named(counts)}"
        for group, counts in groups.items()
    ]
    name, workers = _best(tried, list(tried), contested)
    quoted = _quoted(tried, tried[name][workers], f" by {name} with {workers} workers")
    start = f"No strategy reaches {loss} soonest at every worker count"
    return f"{start}: {'; '.join(parts)}; the best time is {quoted}"


def _best(tried: Tried, names: Iterable[str], counts: Iterable[int]) -> tuple[str, int]:
    """The strategy and worker count with the shortest time; fewer workers if equal."""
    pairs = [(name, k) for k in counts for name in names]
    return min(pairs, key=lambda pair: _seconds(tried[pair[0]].get(pair[1])))


def _quoted(tried: Tried, cell: Cell, place: str = "") -> str:
    """A time, how it is known, and what it is against one worker's."""
    text = f"{duration(_seconds(cell))}{place} ({cell.how})"
    one = min(_seconds(found.get(1)) for found in tried.values())
    speed = one / _seconds(cell) if math.isfinite(one) else math.nan
    if cell.efficiency is not None and math.isfinite(cell.efficiency.median):
        speed = cell.workers * cell.efficiency.median  # the same number as in the table
    if math.isnan(speed):
        return text
    if speed >= 1.1:
        return f"{text}, {two_digits(speed)} times as fast as one worker"
    if speed >= 0.95:
        return f"{text}, about as fast as one worker"
    return f"{text}, slower than one worker"


def _rest(
    tried: Tried,
    counts: Sequence[int],
    winners: Mapping[int, list[str]],
    contested: Sequence[int],
    leaders: Sequence[str],
) -> str:
    own = {name: _fate(tried[name]) for name in leaders if _failed(tried[name])}
    others: dict[str, str] = {}
    for name in tried:
        if name in leaders:
            continue
        if _failed(tried[name]):
            others[name] = _fate(tried[name])
        elif leaders:
            others[name] = _second_to(tried, name, leaders[0], counts, winners)
        elif not any(name in winners[k] for k in contested):
            at = _everywhere(tried[name], counts)
            others[name] = f"reach{{es}} it {at} but {{is}} never soonest"
    parts = [_clauses(own)] if own else []
    if others:
        parts.append(("of the others, " if leaders else "") + _clauses(others))
    if parts:
        return sentence("; ".join(parts))
    if leaders:
        return _efficiencies(tried, leaders, contested)
    where = "tried" if all(list(found) == list(counts) for found in tried.values()) else "run"
    return f"All strategies reach it at every worker count {where}"


def _second_to(
    tried: Tried,
    name: str,
    leader: str,
    counts: Sequence[int],
    winners: Mapping[int, list[str]],
) -> str:
    """A strategy that reaches the target wherever it was run, but does not lead."""
    tied = [k for k in winners if k > 1 and name in winners[k]]
    as_soon = f", as soon with {workers_named(tied)}," if tied else ""
    mine, other = (_seconds(tried[each].get(1)) for each in (name, leader))
    never = " but never sooner"
    if math.isfinite(other) and not _ties(other, mine):
        never = " but sooner only with one worker"
    return f"reach{{es}} it {_everywhere(tried[name], counts)}{as_soon}{never}"


def _everywhere(found: Mapping[int, Cell], counts: Sequence[int]) -> str:
    return "at every count" if list(found) == list(counts) else "at every count that was run"


def _failed(found: Mapping[int, Cell]) -> list[int]:
    return [k for k, cell in found.items() if cell.seconds is None]


def _fate(found: Mapping[int, Cell]) -> str:
    """Where a strategy fails, and how."""
    failed, counts = _failed(found), list(found)
    ended = {name for k in failed for name in found[k].ended if name != "target"}
    reasons = ", ".join(words for name, words in ENDED.items() if name in ended)
    why = f" ({reasons})" if reasons else ""
    if failed == counts:
        where = ""
    elif failed == counts[1:] and counts[0] == 1:
        where = " with more than one worker"
    elif len(failed) > 1 and failed == counts[-len(failed) :]:
        where = f" from {failed[0]} workers on"
    else:
        where = f" with {workers_named(failed)}"
    if ended == {"unfinished"}:
        return f"{{has}} not reached it yet{where}{why}"
    return f"fail{{s}}{where}{why}" if where else f"never reach{{es}} it{why}"


def _efficiencies(tried: Tried, leaders: Sequence[str], contested: Sequence[int]) -> str:
    """Sentences for strategies that have no others to be held against."""
    found = tried[leaders[0]]
    known = {k: e.median for k in contested if (e := found[k].efficiency) is not None}
    if not known:
        return "How efficient that is cannot be said, as no run with one worker reached it"
    ends = dict.fromkeys((min(known), max(known)))
    shares = [f"{percent(known[k])} % with {workers_named([k])}" for k in ends]
    owner = "The efficiency of each" if len(leaders) > 1 else "Its efficiency"
    return f"{owner}, T1 / (n Tn), is {listed(shares)}"


def _caveats(cells: Sequence[Cell], rate_how: str) -> str:
    lost = {
        cell.workers > 1
        for cell in cells
        if cell.seconds is None and not {"diverged", "stuck"}.isdisjoint(cell.ended)
    }
    text = ""
    if rate_how == "largest" and lost == {True}:  # not if one worker itself fails
        text = "; the base rate is already the largest at which one worker converges"
    if any(cell.seconds is not None and cell.reached < cell.seeds for cell in cells):
        text += "; a count is taken as reached where more than half of its seeds reached it"
    return text


def _clauses(phrases: Mapping[str, str]) -> str:
    """One clause for all strategies of which the same is to be said."""
    groups: dict[str, list[str]] = {}
    for name, phrase in phrases.items():
        groups.setdefault(phrase, []).append(name)
    return "; ".join(
        f"{listed(names)} {phrase.format(**(_SEVERAL if len(names) > 1 else _ONE))}"
        for phrase, names in groups.items()
    )


def _reach(subjects: Sequence[str]) -> str:
    return "reach" if len(subjects) > 1 else "reaches"


def _subject(names: Sequence[str], of: int) -> str:
    if len(names) == of and of > 1:
        return "both strategies" if of == 2 else f"all {of} strategies"
    return listed(f"{name} scaling" if name in ("strong", "weak") else name for name in names)


# ---------------------------------------------------------------------------- grids and metrics


def grid_verdict(study: GridStudy) -> str:
    """Two sentences: the best of all, and how the preferred batch moves with the rate."""
    metrics = {place: interval.median for place, interval in grid_metrics(study).items()}
    if not metrics:
        return (
            f"No batch size ends with a finite {study.metric} at any rate tried. "
            "Try lower learning rates."
        )
    pick, word = (min, "lowest") if metric_better(study) == "lower" else (max, "highest")
    (size, rate), best = pick(metrics.items(), key=lambda item: item[1])
    first = (
        f"The {word} {study.metric} after {study.epochs} epochs is {best:.4g}, "
        f"with a batch of {size} at rate {rate:.3g}."
    )
    preferred = {r: batch for r, (batch, _, _) in sorted(preferred_batches(study).items())}
    if len(preferred) < 2:
        return first + " Give several --learning-rates to see how the preferred batch moves."
    (low, small), *_, (high, large) = preferred.items()
    if large == small:
        return f"{first} The preferred batch stays at {small} from rate {low:.3g} to {high:.3g}."
    moved = "grows" if large > small else "shrinks"
    to = f"from {small} at rate {low:.3g} to {large} at rate {high:.3g}"
    return f"{first} The preferred batch {moved} {to}."


def final_metric(study: BatchStudy, run: BatchRun) -> float:
    """What a run is judged by, at its end; NaN if it has no finite result."""
    if not run.curve or run.ended in ("diverged", "impossible", "unfinished"):
        return math.nan
    last = run.curve[-1]
    value = last.valid_loss if study.metric == "loss" else last.metrics.get(study.metric)
    return value if value is not None and math.isfinite(value) else math.nan


def metric_better(study: BatchStudy) -> str:
    """ "lower" or "higher"."""
    return "lower" if study.metric == "loss" else "higher"


def metric_interval(study: BatchStudy, runs: Sequence[BatchRun]) -> Interval | None:
    """The metric over seeds; None unless more than half of the runs have a result."""
    values = [v for v in (final_metric(study, run) for run in runs) if not math.isnan(v)]
    if 2 * len(values) <= len(runs):
        return None
    return Interval(median=statistics.median(values), low=min(values), high=max(values))


def metric_text(study: BatchStudy, runs: Sequence[BatchRun]) -> str:
    """What runs with several seeds ended with: median (lowest to highest), or how they ended."""
    if not runs:
        return "not run"
    values = [v for v in (final_metric(study, run) for run in runs) if not math.isnan(v)]
    if not values:
        ended = [run.ended for run in runs]
        return endings({name: ended.count(name) for name in dict.fromkeys(ended)})
    text = spread(*map(number, (min(values), statistics.median(values), max(values))))
    return text if len(values) == len(runs) else f"{text}, {len(values)} of {len(runs)} seeds"


def grid_metrics(study: GridStudy) -> dict[tuple[int, float], Interval]:
    """The metric by batch size and learning rate, where there is one."""
    runs: dict[tuple[int, float], list[BatchRun]] = {}
    for run in study.runs:
        runs.setdefault((run.batch_size, run.learning_rate), []).append(run)
    places = itertools.product(study.batch_sizes, study.learning_rates)
    found = {place: metric_interval(study, runs.get(place, [])) for place in places}
    return {place: interval for place, interval in found.items() if interval is not None}


def preferred_batches(study: GridStudy) -> dict[float, tuple[int, int, int]]:
    """Find by learning rate the batch with the best median, and the smallest and largest as good.

    As good: the median is inside the spread of the best one's seeds. Of equal ones the smallest.
    """
    found, sign = grid_metrics(study), -1.0 if metric_better(study) == "lower" else 1.0
    preferred = {}
    for rate in study.learning_rates:
        mine = {b: found[b, rate] for b in sorted(study.batch_sizes) if (b, rate) in found}
        if mine:
            best = max(mine, key=lambda b: sign * mine[b].median)
            low, high = mine[best].low, mine[best].high
            good = [b for b, v in mine.items() if low <= v.median <= high]
            preferred[rate] = best, min(good), max(good)
    return preferred
