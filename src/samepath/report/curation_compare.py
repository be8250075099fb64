"""What a comparison found: table, picture, two sentences, one page.

In: a Comparison. Out: `comparison.json`, `comparison.png`, `comparison.html` in its folder.
Guaranteed: a difference is called one only where the seeds lie apart, and if they are so few that
they often would by chance, the verdict says how often.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from samepath.curation.compare import FILTERED, FULL, RANDOM, ComparedRun, Comparison, to_json
from samepath.engine.state.run_folder import finite
from samepath.files import write_atomically
from samepath.report.page import Section, write_page
from samepath.report.sheet import save_figure
from samepath.report.study_style import (
    cross_key,
    key,
    legend_beside,
    new_figure,
    powers_axis,
    side_by_side,
    spread_key,
    tidy,
)
from samepath.report.study_tables import (
    Rows,
    data_facts,
    final_metric,
    metric_better,
    metric_text,
    origin_facts,
)
from samepath.report.study_words import listed, number
from samepath.study.results import Interval

CHANCE = 0.05
_LOOKS = {FULL: ("#0072B2", "o"), FILTERED: ("#D55E00", "s"), RANDOM: ("#7F7F7F", "^")}
_CALLED = {
    FULL: "all examples",
    FILTERED: "filtered",
    RANDOM: "as many, kept at random",
}


def finish_comparison(comparison: Comparison, folder: Path) -> tuple[Comparison, Path]:
    """Write everything; the comparison with its verdict, and the page's path."""
    comparison = replace(comparison, verdict=verdict(comparison))
    content = json.dumps(finite(to_json(comparison)), indent=1)
    write_atomically(folder / "comparison.json", content + "\n")
    page = folder / "comparison.html"
    title = f"{Path(comparison.recipe).stem}: did curation help?"
    write_page(page, title, list(_sections(comparison, folder)))
    return comparison, page


def comparison_table(comparison: Comparison) -> Rows:
    """The metric at the end by weight decay and batch size, a column for each kind of data."""
    names = [f"{_CALLED[v.name]} ({v.num_examples})" for v in comparison.variants]
    rows = [["weight decay", "batch size", *names]]
    for decay in comparison.weight_decays:
        for batch in comparison.batch_sizes:
            cells = [
                metric_text(comparison, _runs(comparison, variant.name, batch, decay))
                for variant in comparison.variants
            ]
            rows.append([number(decay), str(batch), *cells])
    return rows


def verdict(comparison: Comparison) -> str:
    """Filtered against all, and against as many at random, over every batch size and decay; and how
    far to believe it."""
    seeds = len(comparison.seeds)
    if seeds == 1:
        return "One seed cannot tell a difference from chance. Add --seeds 4 and run it again."
    places = [(b, d) for d in comparison.weight_decays for b in comparison.batch_sizes]
    against = [
        f"{_balance(comparison, places, FULL)} than all of it",
        f"{_balance(comparison, places, RANDOM)} than as much kept at random",
    ]
    kept = {v.name: v.num_examples for v in comparison.variants}
    share = 100.0 * kept[FILTERED] / kept[FULL]
    words = (
        f"Trained on the {share:.1f}% of the data that curation kept, {comparison.metric} after "
        f"{comparison.epochs} epochs is {against[0]}. It is {against[1]}."
    )
    by_chance = 2.0 / math.comb(2 * seeds, seeds)
    if by_chance > CHANCE:
        words += (
            f" With {seeds} seeds, two kinds of data that do not differ would seem to at "
            f"{100.0 * by_chance:.0f}% of the places: add --seeds 4 before believing it."
        )
    return words


def _balance(comparison: Comparison, places: Sequence[tuple[int, float]], other: str) -> str:
    """ "better at batch 64 and 256, the same within seeds at 1024 and worse nowhere"."""
    found: dict[str, list[str]] = {"better": [], "no different": [], "worse": []}
    unknown = 0
    for batch, decay in places:
        mine = interval(comparison, FILTERED, batch, decay)
        theirs = interval(comparison, other, batch, decay)
        if mine is None or theirs is None:
            unknown += 1
            continue
        sign = -1.0 if comparison.metric == "loss" else 1.0
        apart = mine.low > theirs.high or mine.high < theirs.low
        apart = apart and mine.median != theirs.median
        word = "no different" if not apart else "worse"
        if apart and sign * mine.median > sign * theirs.median:
            word = "better"
        several = len(comparison.weight_decays) > 1
        found[word].append(f"{batch}" + (f" (decay {number(decay)})" if several else ""))
    parts = [f"{word} at batch {listed(where)}" for word, where in found.items() if where]
    if unknown:
        parts.append(f"not known at {unknown} {'place' if unknown == 1 else 'places'}")
    return listed(parts)


def interval(comparison: Comparison, variant: str, batch: int, decay: float) -> Interval | None:
    """The metric over seeds; None unless more than half came through."""
    runs = _runs(comparison, variant, batch, decay)
    values = [v for v in (final_metric(comparison, run) for run in runs) if not math.isnan(v)]
    if 2 * len(values) <= len(runs):
        return None
    return Interval(median=statistics.median(values), low=min(values), high=max(values))


def draw_comparison(comparison: Comparison, out: Path) -> None:
    """A panel per weight decay: the metric against batch size, a line for each kind of data."""
    decays = comparison.weight_decays
    columns = min(len(decays), 3)
    rows = -(-len(decays) // columns)
    title = f"{Path(comparison.recipe).stem}: {comparison.metric} after {comparison.epochs} epochs"
    figure = new_figure(4.9 * columns + 2.8, 3.9 * rows + 0.4, title)
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    beside = side_by_side(list(_LOOKS), comparison.batch_sizes)
    lost = False
    for axes, decay in zip(panels, decays, strict=False):
        for name, (colour, marker) in _LOOKS.items():
            found = {b: interval(comparison, name, b, decay) for b in comparison.batch_sizes}
            there = {b: v for b, v in found.items() if v is not None}
            lost = lost or len(there) < len(found)
            missing = [b * beside[name] for b in found if b not in there]
            across = axes.get_xaxis_transform()
            axes.plot(missing, [0.02] * len(missing), "x", color=colour, transform=across, mew=1.8)
            medians = [v.median for v in there.values()]
            spread = [
                [v.median - v.low for v in there.values()],
                [v.high - v.median for v in there.values()],
            ]
            axes.errorbar(
                [b * beside[name] for b in there],
                medians,
                spread if len(comparison.seeds) > 1 else None,
                color=colour,
                marker=marker,
                linewidth=1.6,
                markersize=5.5,
                elinewidth=1.1,
                capsize=2.5,
            )
        powers_axis(axes, comparison.batch_sizes, "batch size")
        if len(decays) > 1:
            axes.set_title(f"weight decay {number(decay)}", fontsize=10, loc="left")
        tidy(axes)
    for axes in panels[len(decays) :]:
        axes.set_visible(False)
    for axes in panels[::columns]:
        axes.set_ylabel(f"{comparison.metric} ({metric_better(comparison)} is better)")
    counts = {v.name: v.num_examples for v in comparison.variants}
    handles = [
        key(f"{_CALLED[name]} ({counts[name]})", color=colour, marker=marker)
        for name, (colour, marker) in _LOOKS.items()
    ]
    if len(comparison.seeds) > 1:
        handles.append(spread_key())
    if lost:
        handles.append(cross_key("did not come through"))
    legend_beside(figure, handles)
    save_figure(figure, out)


def _sections(comparison: Comparison, folder: Path) -> Iterator[Section]:
    yield Section(heading="Verdict", words=comparison.verdict)
    picture = folder / "comparison.png"
    draw_comparison(comparison, picture)
    yield Section(heading=f"{comparison.metric.capitalize()} by batch size", picture=picture)
    note = (
        f"At the end of each run; {metric_better(comparison)} is better. With several seeds: "
        "median (lowest to highest). All runs have the same epochs, so runs on fewer examples "
        "take fewer steps. A difference is called one where the seeds do not overlap."
    )
    yield Section(heading="In numbers", table=comparison_table(comparison), note=note)
    yield Section(heading="The comparison", table=_facts(comparison))


def _facts(comparison: Comparison) -> Rows:
    lists = [
        [f"{_CALLED[v.name]}", f"{v.num_examples} examples" + (f", {v.keep}" if v.keep else "")]
        for v in comparison.variants
    ]
    return [
        ["", ""],
        *data_facts(comparison),
        *lists,
        ["optimizer", comparison.optimizer],
        ["seeds", ", ".join(map(str, comparison.seeds))],
        ["grain", str(comparison.grain_size)],
        *origin_facts(comparison),
    ]


def _runs(comparison: Comparison, variant: str, batch: int, decay: float) -> list[ComparedRun]:
    wanted = (variant, batch, decay)
    return [r for r in comparison.runs if (r.variant, r.batch_size, r.weight_decay) == wanted]
