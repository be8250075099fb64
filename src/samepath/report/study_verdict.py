"""What a study showed, in two sentences, and what its runs with several batch sizes end with.

In: the cells of a race, or runs with several batch sizes. Out: plain words and medians over seeds,
derived from these alone. The verdict on a race says which strategy reaches the target soonest, with
how many workers, whether that time was measured or modelled and how far the model is off, and what
became of every strategy. Times of a model that fails its check are not quoted.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from samepath.console import sentence
from samepath.report.words import (
    ENDED,
    duration,
    endings,
    listed,
    number,
    spread,
    two_digits,
    workers_named,
)
from samepath.study.results import (
    BatchRun,
    BatchStudy,
    Cell,
    GridStudy,
    Interval,
    Prediction,
    Study,
)
from samepath.timing.measured import MOST_OFF

TIE = 0.01
"""Times that differ by no more than this fraction are called equal."""


def race_verdict(study: Study) -> str:
    """What a race showed; where strategies were tuned, first so and then as they are prescribed."""
    loss, how, counted = study.target.loss, study.rate.how, study.counted
    if study.tuning is None:
        return verdict(study.cells, loss, how, counted, study.predictions)
    tuned, prescribed = study.only(tuned=True).cells, study.only(tuned=False).cells
    said = verdict(tuned, loss, how, counted, study.predictions)
    said = f"Tuned with {study.tuning.num_trials} trials each: {said[0].lower()}{said[1:]}"
    return f"{said} As prescribed: {_fates(prescribed)}."


def verdict(
    cells: Sequence[Cell],
    target_loss: float,
    rate_how: str,
    counted: str = "seeds",
    predictions: Sequence[Prediction] = (),
) -> str:
    """Two sentences on a race; `rate_how` is `Rate.how`, `counted` what cells have several of."""
    loss = number(target_loss)
    if not cells:
        return f"Nothing was raced to {loss}. There is nothing to compare."
    timed = [cell for cell in cells if cell.seconds is not None]
    off, workers = _model_error(predictions)
    checked = "not checked"
    if off is not None:
        checked = f"the model {off:.0%} off with {workers_named([workers])}"
    quoted = [cell for cell in timed if cell.how == "measured" or (off or 0.0) <= MOST_OFF]
    if quoted:
        first = f"A loss of {loss} is reached soonest by {_soonest(quoted, cells, checked)}"
        if len(quoted) < len(timed):
            first += f"; modelled times are not quoted, {checked}"
    elif timed:
        first = f"A loss of {loss} is reached; modelled times are not quoted, {checked}"
    else:
        yet = " yet" if any("unfinished" in cell.ended for cell in cells) else ""
        reached = any(cell.reached for cell in cells)
        most = f" by more than half of the {counted}" if reached else ""
        counts = workers_named(sorted({cell.workers for cell in cells}))
        first = f"A loss of {loss} is not reached{yet}{most} with {counts}"
    return f"{first}. {sentence(_fates(cells))}{_caveats(cells, rate_how, counted)}."


def _model_error(predictions: Sequence[Prediction]) -> tuple[float | None, int]:
    """How far the model is off at most, and with how many workers; None: it was not checked."""
    errors = [
        (abs(p.modelled_efficiency / p.measured_efficiency - 1.0), p.workers)
        for p in predictions
        if p.measured_efficiency > 0.0
    ]
    return max(errors, default=(None, 0))


def _soonest(cells: Sequence[Cell], tried: Sequence[Cell], checked: str) -> str:
    """Name the best of all with its time, and the best at each worker count where several have one,
    of those that may be quoted; `checked` says how good modelled times are.

    Times with one worker count only where no larger count reached the target.
    """
    times = {(c.strategy, c.workers): c.seconds.median for c in cells if c.seconds is not None}
    more = {place: time for place, time in times.items() if place[1] > 1} or times
    winners: dict[int, list[str]] = {}
    for count in sorted({workers for _, workers in more}):
        mine = {name: time for (name, workers), time in more.items() if workers == count}
        tied = min(mine.values()) * (1.0 + TIE)
        winners[count] = [name for name, time in mine.items() if time <= tied]
    name, workers = min(more, key=lambda place: (more[place], place[1]))
    best = next(cell for cell in cells if (cell.strategy, cell.workers) == (name, workers))
    how = "measured" if best.how == "measured" else f"modelled, {checked}"
    time = f"{duration(more[name, workers])} ({how})"
    text = f"{listed(winners[workers])} with {workers_named([workers])}: {time}"
    if workers > 1:
        text += _against_one_worker(best, times)
    elif len({cell.workers for cell in tried}) == 1:
        text += "; no larger worker count was tried"
    if len(winners) > 1:
        groups: dict[str, list[int]] = {}
        for count, names in winners.items():
            groups.setdefault(listed(names), []).append(count)
        parts = [f"{names} ({workers_named(counts)})" for names, counts in groups.items()]
        text += f"; soonest by worker count: {', '.join(parts)}"
    return text


def _against_one_worker(best: Cell, times: dict[tuple[str, int], float]) -> str:
    one = min((time for (_, workers), time in times.items() if workers == 1), default=math.inf)
    speed = one / times[best.strategy, best.workers]
    if best.efficiency is not None and math.isfinite(best.efficiency.median):
        speed = best.workers * best.efficiency.median  # the same number as in the table
    if not math.isfinite(speed):
        return ", with no time of one worker to compare it with"
    if speed >= 1.1:
        return f", {two_digits(speed)} times as fast as one worker"
    return ", about as fast as one worker" if speed >= 0.95 else ", slower than one worker"


def _fates(cells: Sequence[Cell]) -> str:
    """What became of every strategy."""
    fates: dict[str, list[str]] = {}
    for name in dict.fromkeys(cell.strategy for cell in cells):
        fates.setdefault(_fate([c for c in cells if c.strategy == name]), []).append(name)
    return "; ".join(f"{listed(names)}: {fate}" for fate, names in fates.items())


def _fate(cells: Sequence[Cell]) -> str:
    """What became of a strategy: where it does not reach the target, and how its runs ended."""
    failed = [cell for cell in cells if cell.seconds is None]
    if not failed:
        return "reached at every worker count that was run"
    ended = {name for cell in failed for name in cell.ended if name != "target"}
    reasons = ", ".join(words for name, words in ENDED.items() if name in ended)
    counts = workers_named(sorted(cell.workers for cell in failed))
    never = not any(cell.reached for cell in cells) and "unfinished" not in ended
    where = "never reached" if never else f"not reached with {counts}"
    return f"{where} ({reasons})" if reasons else where


def _caveats(cells: Sequence[Cell], rate_how: str, counted: str) -> str:
    lost = {
        cell.workers > 1
        for cell in cells
        if cell.seconds is None and not {"diverged", "stuck"}.isdisjoint(cell.ended)
    }
    text = ""
    if rate_how == "largest" and lost == {True}:  # not if one worker itself fails
        text = "; the base rate is already the largest at which one worker converges"
    if any(cell.seconds is not None and cell.reached < cell.seeds for cell in cells):
        text += f"; a count is taken as reached where more than half of its {counted} reached it"
    return text


# ---------------------------------------------------------------------------- grids and metrics


def grid_verdict(study: GridStudy) -> str:
    """Two sentences: the best of all, and how the preferred batch moves with the rate."""
    metrics = {place: interval.median for place, interval in grid_metrics(study).items()}
    if not metrics:
        none = f"No batch size ends with a finite {study.metric} at any rate tried"
        return f"{none}. Try lower learning rates."
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


def _metrics(study: BatchStudy, runs: Sequence[BatchRun]) -> list[float]:
    found = [final_metric(study, run) for run in runs]
    return [value for value in found if not math.isnan(value)]


def metric_interval(study: BatchStudy, runs: Sequence[BatchRun]) -> Interval | None:
    """The metric over seeds; None unless more than half of the runs have a result."""
    values = _metrics(study, runs)
    if 2 * len(values) <= len(runs):
        return None
    return Interval.of(values)


def metric_text(study: BatchStudy, runs: Sequence[BatchRun]) -> str:
    """What runs with several seeds ended with: median (lowest to highest), or how they ended."""
    values = _metrics(study, runs)
    if not values:
        ended = [run.ended for run in runs]
        return endings({name: ended.count(name) for name in ended}) if runs else "not run"
    text = spread(*map(number, (min(values), statistics.median(values), max(values))))
    return text if len(values) == len(runs) else f"{text}, {len(values)} of {len(runs)} seeds"


def grid_runs(study: GridStudy) -> dict[tuple[int, float], list[BatchRun]]:
    """Runs by batch size and learning rate; an empty list where nothing was run."""
    places = itertools.product(study.batch_sizes, study.learning_rates)
    found: dict[tuple[int, float], list[BatchRun]] = {place: [] for place in places}
    for run in study.runs:
        found[run.batch_size, run.learning_rate].append(run)
    return found


def grid_metrics(study: GridStudy) -> dict[tuple[int, float], Interval]:
    """The metric by batch size and learning rate, where there is one."""
    found = {place: metric_interval(study, runs) for place, runs in grid_runs(study).items()}
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
