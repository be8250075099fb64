"""Advice as tables: the same on the terminal and on the page.

In: an Advice. Out: titles, tables and notes. Guaranteed: a modelled time is marked; nothing heavy
is imported.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from samepath.insight.advise.advice import Advice, Row, ScalingCurve, examples, span
from samepath.report.study_words import MODELLED, listed, number, workers_named
from samepath.timing.links import HERE, NetworkFacts

Rows = list[list[str]]
Tables = list[tuple[str, Rows, str]]


def tables_in_short(advice: Advice) -> Tables:
    """What fits a terminal: titles, tables, and a note below each."""
    return [
        *(curve_table(advice, curve) for curve in advice.curves),
        rates_table(advice),
        batch_table(advice),
        ("What was measured and what modelled", sources_table(advice), ""),
    ]


def curve_table(advice: Advice, curve: ScalingCurve) -> tuple[str, Rows, str]:
    """Numbers of workers over one link."""
    several = curve.workers_per_node not in (None, 1)
    priced = advice.price_per_worker_hour is not None
    head = ["workers", "nodes", "step", "speed-up", "efficiency", "cost", "training", "price"]
    rows = [[*head, "grain", ""]]
    for row in curve.rows:
        seconds = duration_short(row.step_seconds) + (MODELLED if row.how == "modelled" else "")
        rows.append(
            [
                str(row.workers),
                str(row.nodes),
                seconds,
                f"{row.speedup:.2f}",
                f"{row.efficiency:.0%}",
                f"{row.cost:.2f}",
                span(row.training_seconds),
                "" if row.price is None else f"{row.price:,.2f}",
                str(row.grain_size),
                _marks(curve, row),
            ]
        )
    dropped = {name for name, there in (("nodes", several), ("price", priced)) if not there}
    places = [place for place, name in enumerate(rows[0]) if name not in dropped]
    return (
        _title(advice, curve),
        [[row[place] for place in places] for row in rows],
        _note(advice, curve),
    )


def _marks(curve: ScalingCurve, row: Row) -> str:
    marks = ["best"] * (row.workers == curve.best) + ["knee"] * (row.workers == curve.knee)
    return ", ".join(marks)


def _title(advice: Advice, curve: ScalingCurve) -> str:
    if curve.network == HERE:
        return f"On this machine ({advice.machine})"
    joined = ", then ".join(map(link_words, curve.links))
    per_node = curve.workers_per_node
    where = "one worker each" if per_node == 1 else f"{per_node} workers each"
    return f"Computers like this one, {where}, over {curve.network} ({joined})"


def link_words(link: NetworkFacts) -> str:
    rate = link.bytes_per_second
    speed = f"{rate / 1e9:.3g} GB/s" if rate >= 1e9 else f"{rate / 1e6:.3g} MB/s"
    return f"{speed}, {1e6 * link.latency_seconds:.3g} µs"


def _note(advice: Advice, curve: ScalingCurve) -> str:
    words = []
    if any(row.how == "modelled" for row in curve.rows):
        words.append(f"{MODELLED} modelled.")
    words.append("Cost: worker-hours, in those of one worker.")
    knee = "not in this table" if curve.knee is None else f"at {workers_named([curve.knee])}"
    words.append(f"Knee (doubling saves less than a fifth of the time): {knee}.")
    words.append(_grain(advice, curve))
    if curve.law is not None:
        law = curve.law
        words.append(
            f"T(n) = {duration_short(law.serial_seconds)} + "
            f"{duration_short(law.parallel_seconds)} / n + "
            f"{duration_short(law.doubling_seconds)} log2 n, within {law.largest_error:.0%}."
        )
    return " ".join(words)


def _grain(advice: Advice, curve: ScalingCurve) -> str:
    """Which size to use, and why."""
    best = workers_named([curve.best])
    if curve.grain_gain > 0.0:
        return (
            f"Use --grain {curve.grain_size}: with {best} it saves {curve.grain_gain:.0%} of a "
            "step (and changes the path by rounding)."
        )
    if advice.grain_fixed:
        return f"Keep grains of {curve.grain_size}: the model normalises over each."
    if curve.grain_size != advice.grain_size:
        return f"Use --grain {curve.grain_size}: {best} need that many pieces of a batch."
    return f"Keep grains of {curve.grain_size}: no size that was timed is quicker with {best}."


def rates_table(advice: Advice) -> tuple[str, Rows, str]:
    """The range test."""
    rates = advice.rates
    rows = [["learning rate", "of the recipe's", "loss at the end", "converges"]]
    for trial in rates.trials:
        rows.append(
            [
                number(trial.learning_rate, 3),
                f"{trial.learning_rate / rates.recipe_rate:.3g}",
                number(trial.end_loss),
                "yes" if trial.converged else f"no: {trial.why}",
            ]
        )
    start = "" if rates.start_loss is None else f"; the first loss is {number(rates.start_loss)}"
    words = f"Short runs of {rates.steps} steps on the same batches{start}." if rates.trials else ""
    if rates.note:
        words += f" {rates.note[0].upper()}{rates.note[1:]}."
    return "Which learning rates converge", rows, words.strip()


def batch_table(advice: Advice) -> tuple[str, Rows, str]:
    """The noise scale and what follows from it."""
    batch = advice.batch
    room = {"yes": "yes", "no": "no", "unknown": "cannot be told"}[batch.room]
    rows = [
        ["", "examples", "from", "to"],
        ["batch", f"{advice.batch_size:,}", "", ""],
        ["noise scale", *map(_examples, (batch.noise_scale, batch.noise_low, batch.noise_high))],
        ["critical batch", "", _examples(batch.critical_low), _examples(batch.critical_high)],
        ["room for a larger batch", room, "", ""],
    ]
    words = (
        f"Along {batch.steps} steps of training, with an interval of 95 %." if batch.points else ""
    )
    if batch.note:
        words += f" {batch.note[0].upper()}{batch.note[1:]}."
    if batch.critical_low is not None:
        words += " Published critical batches are an eighth to a half of the noise scale."
    return "Whether a larger batch has room", rows, words.strip()


def _examples(value: float | None) -> str:
    return "unknown" if value is None else "no end" if math.isinf(value) else examples(value)


def sources_table(advice: Advice) -> Rows:
    """Where every number is from."""
    return [["what", "how"], *map(list, _sources(advice))]


def _sources(advice: Advice) -> Iterator[tuple[str, str]]:
    counts = sorted({r.workers for c in advice.curves for r in c.rows if r.how == "measured"})
    yield "grains, update, reductions", f"measured here ({advice.machine})"
    yield f"steps of {workers_named(counts)}", "measured here"
    yield "other steps", "modelled from these: grains drawn from the times measured, links as given"
    off = [abs(row.modelled_seconds / row.step_seconds - 1.0) for row in _both(advice)]
    if off:
        yield "the model where it can be checked", f"{max(off):.0%} off ({_checked(advice)})"
    rates, batch = advice.rates, advice.batch
    runs = f"{len(rates.trials)} short runs of {rates.steps} steps, real ones"
    yield "learning rates", runs if rates.trials else "none was tried"
    yield "noise scale", f"a run of {batch.steps} steps, a real one" if batch.steps else "no run"
    seconds = advice.seconds
    parts = [f"{seconds[f'{part}_seconds']:.0f} s {what}" for part, what in _PARTS.items()]
    yield "time it took", f"{seconds['all_seconds']:.0f} s: {listed(parts)}"
    for note in advice.notes:
        yield "to be kept in mind", note


_PARTS = {"step": "for times", "rates": "for rates", "noise": "for the noise scale"}


def _both(advice: Advice) -> list[Row]:
    """Rows of several workers that are both measured and modelled."""
    return [r for c in advice.curves for r in c.rows if r.how == "measured" and r.workers > 1]


def _checked(advice: Advice) -> str:
    return listed(
        f"{row.workers} workers: {duration_short(row.modelled_seconds)} modelled, "
        f"{duration_short(row.step_seconds)} measured"
        for row in _both(advice)
    )


def duration_short(seconds: float) -> str:
    """Three digits, in the unit a step needs."""
    if seconds == 0.0:
        return "0"
    for unit, length in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= length:
            value = seconds / length
            return f"{value:.0f} {unit}" if value >= 99.95 else f"{value:#.3g} {unit}"
    return f"{seconds / 1e-9:.2g} ns"
