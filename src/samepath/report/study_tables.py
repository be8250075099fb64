"""The tables of a study, as rows of text.

In: a study. Out: rows, the first the header, for a page, a terminal or (through `markdown`) a
document. Guaranteed: every number that rests on a modelled time carries a dagger; what was not
reached is NaN (efficiency) or the reason (time), what was not run is said to be not run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from samepath.report.study_verdict import verdict
from samepath.report.study_words import (
    ENDED,
    MODELLED,
    base_name,
    duration,
    duration_interval,
    endings,
    listed,
    number,
    percent,
    percent_interval,
)
from samepath.study.results import AnyStudy, BatchRun, BatchStudy, Cell, GridStudy, Study

__all__ = [
    "EFFICIENCY_NOTE",
    "TIME_NOTE",
    "Rows",
    "data_facts",
    "efficiency_table",
    "facts_table",
    "final_metric",
    "grid_facts_table",
    "grid_table",
    "markdown",
    "metric_better",
    "metric_text",
    "origin_facts",
    "others_of",
    "predictions_table",
    "rates_table",
    "runs_table",
    "strong_of",
    "time_table",
    "verdict",
]

Rows = list[list[str]]

_NOTE = f"{MODELLED} from a modelled time; no mark: measured with that many real workers."
_SPREAD = " With several seeds: median (lowest to highest)."
TIME_NOTE = _NOTE + _SPREAD
EFFICIENCY_NOTE = (
    "In percent: T1 / (n Tn), with T1 the sequential run's time. NaN: target not reached. "
    + _NOTE
    + _SPREAD
)

_TARGET_HOW = {"given": "given", "recipe": "the recipe's"}
_RATE_HOW = {
    "recipe": "the recipe's",
    "given": "given",
    "largest": "the largest with which one worker converges (range test)",
}


def strong_of(study: Study) -> list[str]:
    """The strategies of the paper's Table I."""
    return [name for name in study.strategies if base_name(name) == "strong"]


def others_of(study: Study) -> list[str]:
    """The strategies of the paper's Table II."""
    return [name for name in study.strategies if base_name(name) != "strong"]


def efficiency_table(study: Study, strategies: Sequence[str]) -> Rows:
    """Percent by workers and strategy: Tables I and II of Cunha et al. 2018."""

    def text(cell: Cell) -> str:
        if cell.efficiency is None or not math.isfinite(cell.efficiency.median):
            return "NaN"
        return _marked(percent_interval(cell.efficiency), cell)

    return _by_workers(study, strategies, text)


def time_table(study: Study, strategies: Sequence[str] | None = None) -> Rows:
    """Time to target by workers and strategy, or why there is none."""

    def text(cell: Cell) -> str:
        if cell.seconds is None:
            return endings(cell.ended)
        return _marked(duration_interval(cell.seconds), cell)

    return _by_workers(study, study.strategies if strategies is None else strategies, text)


def predictions_table(study: Study) -> Rows:
    """The clock's model against measurements."""
    rows = [
        ["strategy", "workers", "measured (%)", "modelled (%)", "error (points)", "relative (%)"]
    ]
    for p in study.predictions:
        error = p.modelled_efficiency - p.measured_efficiency
        relative = error / p.measured_efficiency if p.measured_efficiency else math.nan
        shares = [percent(p.measured_efficiency), percent(p.modelled_efficiency)]
        errors = [f"{100.0 * x:+.1f}" if math.isfinite(x) else "NaN" for x in (error, relative)]
        rows.append([p.strategy, str(p.workers), *shares, *errors])
    return rows


def rates_table(study: Study) -> Rows:
    """The range test: which rates were tried, and what came of them."""
    rows = [["learning rate", "converged", "loss at the end", "why"]]
    for tried in study.rate.tried:
        chosen = " (chosen)" if tried.converged and tried.learning_rate == study.rate.value else ""
        rate = number(tried.learning_rate) + chosen
        rows.append([rate, "yes" if tried.converged else "no", number(tried.loss), tried.why])
    return rows


def runs_table(study: Study) -> Rows:
    """One line per run."""
    head = ["strategy", "workers", "seed", "batch", "rate", "lag", "ended", "epochs", "best loss"]
    rows = [[*head, "training time", "how"]]
    for run in study.runs:
        words = ENDED[run.ended] + (f": {run.why}" if run.why else "")
        rows.append(
            [
                run.strategy,
                *map(str, (run.workers, run.seed, run.batch_size)),
                number(run.learning_rate),
                str(run.lag),
                words,
                str(run.last.epoch if run.last else 0),
                _loss(run.best_loss),
                duration(run.last.seconds) if run.last else "",
                run.how,
            ]
        )
    return rows


def facts_table(study: Study) -> Rows:
    """What was raced, to what, over what."""
    target, rate, clock = study.target, study.rate, study.clock
    if target.how == "auto" and target.fraction is not None:
        share = f"{100.0 * target.fraction:g} % of the sequential run's epochs"
        target_how = f"the validation loss after {share}"
    else:
        target_how = _TARGET_HOW.get(target.how, target.how)
    threads = "1 thread" if clock.threads == 1 else f"{clock.threads} threads"
    fixed = " (fixed: the model normalises over a grain)" if clock.grain_fixed else ""
    network = clock.network
    link = (
        f"{network.name} ({network.how}): {network.bytes_per_second / 1e6:.4g} MB/s, "
        f"{network.latency_seconds * 1e6:.4g} µs latency"
    )
    return [
        ["", ""],
        *data_facts(study),
        ["batch of one worker", f"{study.batch_size}, in grains of {study.grain_size}{fixed}"],
        ["optimizer", study.optimizer],
        ["strategies", listed(study.strategies) if study.strategies else "none"],
        ["workers", ", ".join(map(str, study.workers))],
        ["seeds", ", ".join(map(str, study.seeds))],
        ["target", f"validation loss {number(target.loss, 6)}: {target_how}"],
        ["best sequential loss", _loss(target.sequential_best)],
        ["epoch limit", str(study.max_epochs)],
        ["learning rate", f"{number(rate.value)}: {_RATE_HOW.get(rate.how, rate.how)}"],
        ["network", link],
        ["gradients", f"{clock.gradient_bytes / 1e6:.4g} MB a step"],
        ["does not shrink with workers", f"{duration(clock.serial_seconds)} a step"],
        ["machine", f"{clock.machine}; {threads} per worker"],
        ["kept busy by others meanwhile", f"{clock.busy_cores:.1f} cores at most"],
        *origin_facts(study),
    ]


def grid_facts_table(study: GridStudy) -> Rows:
    return [
        ["", ""],
        *data_facts(study),
        ["optimizer", study.optimizer],
        ["batch sizes", ", ".join(map(str, study.batch_sizes))],
        ["learning rates", ", ".join(map(number, study.learning_rates))],
        ["seeds", ", ".join(map(str, study.seeds))],
        ["grain", str(study.grain_size)],
        ["epochs", str(study.epochs)],
        ["judged by", f"{study.metric}, {metric_better(study)} is better"],
        *origin_facts(study),
    ]


def grid_table(study: GridStudy) -> Rows:
    """The metric at the end by batch size and learning rate; median (lowest to highest)."""
    rows = [["batch size", *(f"rate {number(rate)}" for rate in study.learning_rates)]]
    for batch in study.batch_sizes:
        row = [str(batch)]
        for rate in study.learning_rates:
            runs = [r for r in study.runs if (r.batch_size, r.learning_rate) == (batch, rate)]
            row.append(metric_text(study, runs))
        rows.append(row)
    return rows


def final_metric(study: BatchStudy, run: BatchRun) -> float:
    """What a run is judged by, at its end; NaN if it did not get there in good health."""
    if not run.curve or run.ended in ("diverged", "impossible", "unfinished"):
        return math.nan
    last = run.curve[-1]
    value = last.valid_loss if study.metric == "loss" else last.metrics.get(study.metric)
    return value if value is not None and math.isfinite(value) else math.nan


def metric_better(study: BatchStudy) -> str:
    """ "lower" or "higher"."""
    return "lower" if study.metric == "loss" else "higher"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table for a document."""
    head, *body = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _by_workers(study: Study, strategies: Sequence[str], text: Callable[[Cell], str]) -> Rows:
    cells = {(cell.strategy, cell.workers): cell for cell in study.cells}
    rows = [["workers", *strategies]]
    for workers in study.workers:
        found = [cells.get((name, workers)) for name in strategies]
        rows.append([str(workers), *("not run" if c is None else text(c) for c in found)])
    return rows


def _marked(text: str, cell: Cell) -> str:
    """With what a reader must know about where a number comes from."""
    if cell.how == "modelled":
        text += f" {MODELLED}"
    return text if cell.reached == cell.seeds else f"{text}, {cell.reached} of {cell.seeds} seeds"


def metric_text(study: BatchStudy, runs: Sequence[BatchRun]) -> str:
    """What runs with several seeds ended with: median (lowest to highest), or how they ended."""
    if not runs:
        return "not run"
    values = [v for v in (final_metric(study, run) for run in runs) if not math.isnan(v)]
    if not values:
        ended = [run.ended for run in runs]
        return endings({name: ended.count(name) for name in dict.fromkeys(ended)})
    low, middle, high = map(number, (min(values), statistics.median(values), max(values)))
    text = middle if low == high else f"{middle} ({low} to {high})"
    return text if len(values) == len(runs) else f"{text}, {len(values)} of {len(runs)} seeds"


def _loss(value: float) -> str:
    return "none" if math.isnan(value) else number(value)


def data_facts(study: AnyStudy) -> Rows:
    data = f"{study.num_examples} to train on, {study.num_valid} to validate on"
    return [["recipe", study.recipe], ["examples", data]]


def origin_facts(study: AnyStudy) -> Rows:
    versions = ", ".join(f"{name} {version}" for name, version in study.versions.items())
    return [["versions", versions], ["command", " ".join(study.command)]]
