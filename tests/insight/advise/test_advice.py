"""What advice concludes: every branch of the verdict, on facts made up for it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from measured_steps import link
from measured_steps import made as made_up

from samepath.cli.advise import parse_compute
from samepath.engine.run.options import Options
from samepath.errors import UserError
from samepath.insight.advise.advice import (
    Advice,
    Limit,
    NoisePoint,
    RangeTest,
    RateTrial,
    ScalingCurve,
    examples,
    in_nodes,
    span,
    verdict,
)
from samepath.insight.advise.advise import (
    AdviseRequest,
    _measured_elsewhere,
    best_grain,
    curve,
    curves_of,
    in_minutes,
    judged,
    knee,
    most_workers,
    noise_grain,
    plan_runs,
    refuse,
    what_is_left,
    worker_counts,
)
from samepath.insight.advise.runs import ShortRuns, critical_batch, only_training, range_test
from samepath.insight.folder import read_finding
from samepath.recipe import Recipe
from samepath.report import style
from samepath.report.advise import curve_table, draw_advice, tables, tables_in_short, write_advice
from samepath.report.words import step_time
from samepath.timing.links import CLUSTERS, Cluster, find_cluster, flat
from samepath.timing.measured import MeasuredStep, read_measured, write_measured

FREE = flat(link(1e30, 0.0))
EVEN = (0.1, 0.1)
SHARED = link(5e9, 2e-5)
THIS = find_cluster("here", here=SHARED)


def measured(**changes: Any) -> MeasuredStep:
    """32 examples in grains of 4, 0.1 s each: a step of 0.81 s; 4 MB of gradients."""
    step = made_up(
        machine="a processor, 4 cores",
        batch_size=32,
        num_examples=3200,
        grain_times={"1": (0.025, 0.025), "2": (0.05, 0.05), "4": EVEN, "8": (0.2, 0.2)},
        update_seconds=0.01,
        tensor_bytes=(2_000_000, 2_000_000),
        tensor_ready=(0.6, 1.0),
        crowding={"2": 1.0},
        local=SHARED,
        network=SHARED,
        step_seconds={"1": 0.81},
    )
    return replace(step, **changes)


EVENLY = measured(grain_size=1, grain_times={"1": (0.025, 0.025)})
"""Two, three or four workers have nearly equal shares of 32 grains."""


def options(**changes: Any) -> Options:
    made = Options(
        recipe="made up",
        identity="x",
        data=None,
        data_identity=None,
        batch_size=32,
        grain_size=4,
        seed=0,
        threads=1,
        exact=True,
        autocast=None,
        clip_norm=None,
        num_examples=3200,
        epochs=10,
        steps=None,
        target=None,
        loader_workers=0,
    )
    return replace(made, **changes)


def ask(
    step: MeasuredStep,
    cluster: Cluster,
    most: int = 32,
    *,
    floor: float = 0.8,
    end: Limit = "grains",
    here: bool = False,
) -> ScalingCurve:
    request = AdviseRequest(recipe="x", floor=floor, price_per_worker_hour=2.0)
    return curve(request, options(), step, cluster, most, end=end, here=here)


# ---- workers


def test_counts_in_the_table() -> None:
    assert worker_counts(1) == [1]
    assert worker_counts(2) == [1, 2]
    assert worker_counts(8) == [1, 2, 3, 4, 6, 8]
    assert worker_counts(20) == [1, 2, 3, 4, 6, 8, 12, 16, 20]


def test_as_many_workers_as_grains() -> None:
    assert most_workers(measured()) == 32  # of one example
    assert most_workers(measured(grain_fixed=True)) == 8


def test_where_nothing_is_lost_all_workers_pay() -> None:
    found = ask(measured(update_seconds=0.0, step_seconds={"1": 0.8}), FREE, 8)
    assert found.best == 8
    assert found.limit == "grains"
    assert found.row(8).efficiency == pytest.approx(1.0)
    assert found.row(8).step_seconds == pytest.approx(0.1)
    assert found.row(8).cost == pytest.approx(1.0)
    assert found.row(3).efficiency == pytest.approx(8 / 9)  # one of three has 2 grains, not 3
    assert found.law is not None
    assert found.law.parallel_seconds == pytest.approx(0.8, rel=0.05)


def test_a_slow_link_is_the_limit() -> None:
    found = ask(EVENLY, flat(link(100e6, 1e-4)))
    assert found.limit == "link"
    assert 1 < found.best < 8
    assert found.knee is not None
    assert found.knee < 32


def test_a_long_update_is_the_limit() -> None:
    step = measured(update_seconds=0.4, step_seconds={"1": 1.2})
    found = ask(step, FREE)
    assert found.limit == "update"
    assert found.best == 1  # two: 0.8 s, 75%
    assert found.row(2).efficiency == pytest.approx(0.75)
    assert found.knee == 3  # 0.7 s, and 0.6 s with six
    assert (
        "stay with one worker: 2 workers (2 nodes of 1) would keep 75% efficiency, below 80%"
        in (words([found]))
    )


def test_waiting_and_crowding_are_limits() -> None:
    slow_ones = {"4": (0.1,) * 9 + (0.5,)}
    found = ask(measured(grain_times=slow_ones), FREE, floor=0.9)
    assert found.limit == "waiting"
    crowded = measured(crowding={"2": 1.5, "4": 2.0}, local=link(1e12, 0.0))
    here = find_cluster("here", here=crowded.local)
    assert ask(crowded, here, 4, here=True).limit == "crowding"


def test_measured_steps_are_of_this_machine_only() -> None:
    step = measured(step_seconds={"1": 0.9, "2": 0.5})
    here = ask(step, find_cluster("here", here=SHARED), 4, here=True)
    assert [row.how for row in here.rows] == ["measured", "measured", "modelled", "modelled"]
    assert here.row(2).step_seconds == 0.5
    assert here.row(2).speedup == pytest.approx(1.8)
    assert here.network == "here"
    over = ask(step, FREE, 4)
    assert [row.how for row in over.rows] == ["measured", "modelled", "modelled", "modelled"]
    assert over.calibration == pytest.approx(0.9 / 0.81)
    assert over.row(2).step_seconds == pytest.approx(0.41 * 0.9 / 0.81, rel=1e-3)


def test_training_time_and_price() -> None:
    row = ask(measured(), FREE, 8).row(4)
    steps = 10 * 100
    assert row.training_seconds == pytest.approx(steps * row.step_seconds)
    assert row.price == pytest.approx(2.0 * 4 * row.training_seconds / 3600)


def test_nodes_of_several_workers() -> None:
    found = ask(measured(), CLUSTERS["1GbE-pairs"], 6)
    assert [row.nodes for row in found.rows] == [1, 1, 2, 2, 3]
    assert found.workers_per_node == 2
    title, table, _ = curve_table(advice(curves=(found,)), found)
    assert "2 workers each" in title
    assert [line[1] for line in table] == ["nodes", "1", "1", "2", "2", "3"]


def test_the_knee_is_the_first_number_not_worth_doubling() -> None:
    assert knee([1, 2, 3, 4], {1: 8.0, 2: 4.0, 3: 3.5, 4: 3.0, 6: 2.0, 8: 2.9}) == 4
    assert knee([1, 2], {1: 8.0, 2: 6.4, 4: 6.3}) == 2  # exactly a fifth is worth it
    assert knee([1, 2], {1: 8.0, 2: 4.0}) is None  # two cannot be doubled


def test_the_knee_goes_by_what_was_measured() -> None:
    machine = find_cluster("here", here=SHARED)
    for two, knee_at in ((0.8, 1), (0.5, None)):
        step = measured(step_seconds={"1": 0.81, "2": two})
        assert ask(step, machine, 2, end="cores", here=True).knee == knee_at


def test_grains_that_save_time() -> None:
    def fewer(step: MeasuredStep, workers: int, *, here: bool = False) -> int | None:
        return best_grain(step, FREE, workers, here=here)[0]

    assert fewer(measured(), 4) is None  # all the same
    dear = {"1": (0.09, 0.09), "2": (0.1, 0.1), "4": (0.12, 0.12), "8": (0.16, 0.16)}
    coarse = measured(grain_times=dear)
    assert fewer(coarse, 1) == fewer(coarse, 4) == 4  # grains of 8, the largest that were timed
    assert fewer(coarse, 8) is None  # eight of 4 examples; of 8 there are only four
    assert fewer(coarse, 16) == 16
    assert fewer(replace(coarse, grain_fixed=True), 1) is None
    found = ask(coarse, FREE, 4)
    assert (found.grain_size, found.max_workers, found.gain_how) == (8, 4, "modelled")
    assert found.grain_gain > 0.2
    says = f"--max-workers 4 a step of 4 workers would take about {found.grain_gain:.0%} less"
    assert f"With {says} (modelled); it" in curve_table(advice(curves=(found,)), found)[2]


def test_a_gain_that_was_measured_here_goes_before_the_model() -> None:
    machine = find_cluster("here", here=SHARED)
    both = {"step_seconds": {"1": 0.81, "2": 0.44}, "coarsest_step_seconds": {"2": 0.374}}
    found = ask(measured(**both), machine, 2, end="cores", here=True)
    assert (found.max_workers, found.grain_size, found.gain_how) == (2, 16, "measured")
    says = "with --max-workers 2 a step of 2 workers would take about 15% less (measured)"
    assert found.gain_words == says
    assert ask(measured(**both), machine, 2, end="cores").max_workers is None
    no_gain = both | {"coarsest_step_seconds": {"2": 0.436}}
    found = ask(measured(**no_gain), machine, 2, end="cores", here=True)
    assert (found.max_workers, found.grain_size, found.gain_words) == (None, 4, "")


def test_workers_that_would_be_idle_are_left_out() -> None:
    found = ask(measured(), FREE, 32)  # 12 would have 3 examples each: eleven of them
    assert [row.workers for row in found.rows] == [1, 2, 3, 4, 6, 8, 16, 32]
    assert [row.grain_size for row in found.rows] == [4, 4, 4, 4, 4, 4, 2, 1]
    assert found.limit == "update"


# ---- the verdict

RATES = RangeTest(
    recipe_rate=0.1,
    steps=20,
    start_loss=2.0,
    trials=tuple(
        RateTrial(learning_rate=rate, converged=True, end_loss=loss, why="")
        for rate, loss in ((0.1, 1.0), (1.6, 0.4), (6.4, 0.7))
    ),
    largest=0.3,
    failing=0.4,
    note="",
)


PLAIN = ask(measured(), FREE, 4)


def batch_at(scale: float, low: float, high: float, **changes: Any) -> Any:
    point = NoisePoint(step=20, scale=scale, low=low, high=high)
    how: dict[str, Any] = {"batch_size": 32, "floor": 0.8, "steps": 20, "part": 1.0}
    return critical_batch([point], grain_size=4, **(how | changes))


def words(curves: list[ScalingCurve], rates: RangeTest = RATES, batch: Any = None) -> str:
    found = batch or batch_at(1000.0, 100.0, 5000.0)
    return verdict(curves, rates, found, batch_size=32, floor=0.8)


def advice(**changes: Any) -> Advice:
    made = Advice(
        machine="a processor, 4 cores",
        cores=4,
        threads=1,
        batch_size=32,
        grain_size=4,
        grain_fixed=False,
        num_examples=3200,
        epochs=10,
        steps_per_epoch=100,
        floor=0.8,
        price_per_worker_hour=None,
        curves=(),
        rates=RATES,
        batch=batch_at(1000.0, 100.0, 5000.0),
        verdict="Do this. Not that.",
        notes=("others kept 1.0 cores busy",),
        seconds={
            "step_seconds": 1.0,
            "rates_seconds": 2.0,
            "noise_seconds": 3.0,
            "all_seconds": 7.0,
        },
    )
    return replace(made, **changes)


def test_two_sentences_about_this_machine_and_the_first_network() -> None:
    here = ask(measured(step_seconds={"1": 0.81, "2": 0.42}), THIS, 2, here=True)
    here = replace(here, limit="cores", machine="an old processor")
    over = ask(EVENLY, flat(link(100e6, 1e-4)))
    said = words([here, over, ask(measured(), FREE)])
    first, second, last = said.splitlines()
    assert first == (
        "On this machine (an old processor) take 2 workers (1 node): 1.9 times as fast as one, 96% "
        "efficient (training 7 min, alone 14 min); it has no more; measured."
    )
    assert second.startswith(f"Over x take {over.best} workers ({over.best} nodes of 1): ")
    assert over.nodes == over.best
    assert re.search(
        r"; beyond that a doubling saves at most \d+% of the time, because the", second
    )
    assert said.lower().count("over x") == 1  # the third is in the tables only
    assert "learning rate" in last


def test_workers_of_a_node_and_the_last_node() -> None:
    row = PLAIN.row(3)
    for nodes, text in ((1, "1 node"), (3, "3 nodes of 1"), (2, "2 nodes of at most 2")):
        assert in_nodes(replace(row, nodes=nodes)) == f"3 workers ({text})"
    assert in_nodes(replace(row, workers=8, nodes=2)) == "8 workers (2 nodes of 4)"


def test_percentages_that_would_read_alike_get_more_digits() -> None:
    """79.8% is not "80% efficiency, below 80%"."""
    rows = [replace(row, efficiency=0.798) if row.workers > 1 else row for row in PLAIN.rows]
    found = replace(PLAIN, rows=tuple(rows), best=1, limit="link")
    assert "would keep 79.8% efficiency, below 80.0%" in words([found])


def test_doublings_that_save_nothing() -> None:
    rows = [replace(row, step_seconds=1.0) for row in PLAIN.rows]
    found = replace(PLAIN, rows=tuple(rows), best=2, limit="waiting")
    assert "doubling them saves nothing, because workers wait for each other" in words([found])
    last = replace(found, best=4)
    assert "; beyond that workers wait for each other; " in words([last])


def test_workers_per_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of a node crowd each other as here and talk over this machine's link; a preset's
    nodes keep their own link."""
    monkeypatch.setattr("samepath.insight.advise.advise.available_workers", lambda: 2)
    step = measured(crowding={"2": 1.5}, step_seconds={"1": 0.81, "2": 0.65})
    asked = AdviseRequest(recipe="r", networks=("here", "1GbE", "dgx-a100"), workers_per_node=2)
    here, ethernet, dgx = curves_of(asked, options(), step)
    assert [curve.workers_per_node for curve in (here, ethernet, dgx)] == [None, 2, 2]
    assert ethernet.links[0] is SHARED
    assert dgx.links == tuple(level.network for level in CLUSTERS["dgx-a100"].levels)
    assert [row.nodes for row in ethernet.rows[:4]] == [1, 1, 2, 2]
    plain = curves_of(replace(asked, workers_per_node=None), options(), step)
    assert [curve.workers_per_node for curve in plain] == [None, 1, 8]
    assert ethernet.row(2).step_seconds > 1.3 * plain[1].row(2).step_seconds, "they share caches"
    quick = curves_of(replace(asked, compute=10.0), options(), step)[1]
    quick_apart = curves_of(replace(asked, compute=10.0, workers_per_node=1), options(), step)[1]
    assert quick.row(2).step_seconds < quick_apart.row(2).step_seconds, "no crowding is known"


def test_the_verdict_says_whose_computing_it_is_and_how_good_the_model() -> None:
    """And a model that fails its own check is not quoted."""
    over = replace(ask(EVENLY, flat(link(100e6, 1e-4))), machine="an old processor, 2 cores")
    whose = "; computing measured on an old processor, 2 cores"
    assert f"{whose}, network modelled (model not checked)." in words([over])
    quick = words([replace(over, compute=12.0, model_error=0.08)])
    assert f"{whose}, taken 12 times as fast, network modelled (model 8% off where it" in quick
    assert "times as fast as one" in quick
    off = replace(over, model_error=1.23)
    wrong = words([off]).splitlines()[0]
    assert wrong.startswith("Over x nothing can be said of several workers: computing measured on")
    assert wrong.endswith("(model 123% off where it can be checked), too far to go by.")
    assert "as one" not in wrong
    _, table, note = curve_table(advice(curves=(off,)), off)
    assert not any("best" in cell for row in table[2:] for cell in row)
    assert "123% off where it can be checked: not to go by" in note


def test_what_was_measured_here_is_quoted_whatever_the_model_says() -> None:
    here = ask(measured(step_seconds={"1": 0.81, "2": 0.42}), THIS, 4, here=True)
    off = replace(here, model_error=0.5)
    assert "take 2 workers (1 node)" in words([replace(off, best=2)])
    modelled = words([replace(off, best=4)])
    assert "nothing can be said of several workers: modelled (model 50% off where" in modelled


def test_no_line_joins_what_was_measured_and_what_was_modelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = ask(measured(step_seconds={"1": 0.81, "2": 0.42}), flat(SHARED), 8, here=True)
    drawn: list[Any] = []
    monkeypatch.setattr(style, "draw_curve", lambda *how: drawn.append([how[1], set(how[4])]))
    draw_advice("made up", advice(curves=(here,)), tmp_path / "advice.svg")
    assert drawn == 2 * [[[1, 2], {False}], [[3, 4, 6, 8], {True}]]


def test_faster_computers_gain_less_from_workers_on_the_same_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("samepath.insight.advise.advise.available_workers", lambda: 2)
    asked = AdviseRequest(recipe="r", networks=("here", "1GbE"), compute=1.0)
    step = measured(step_seconds={"1": 0.81, "2": 0.42})
    here, slow = curves_of(asked, options(), step)
    faster_here, quick = curves_of(replace(asked, compute=50.0), options(), step)
    assert faster_here == here, "this machine is as fast as it is"
    assert quick.rows[0].step_seconds == pytest.approx(slow.rows[0].step_seconds / 50.0)
    assert quick.best < slow.best
    assert slow.model_error == pytest.approx(abs(here.row(2).modelled_seconds / 0.42 - 1.0))
    assert (here.compute, quick.compute) == (1.0, 50.0)


def test_a_step_that_was_measured_on_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is what other networks are modelled with, and the verdict says whose it is; this machine's
    own curve stays."""
    monkeypatch.setattr("samepath.insight.advise.advise.available_workers", lambda: 2)
    step = measured(step_seconds={"1": 0.81, "2": 0.42})
    quick = {size: tuple(t / 10 for t in times) for size, times in step.grain_times.items()}
    theirs = measured(machine="a fast one, 64 cores", grain_times=quick, update_seconds=0.001)
    write_measured(tmp_path / "theirs", replace(theirs, identity="x", step_seconds={"1": 0.081}))
    folder = parse_compute(f"{tmp_path}/theirs")
    assert isinstance(folder, Path)
    request = AdviseRequest(recipe="r", networks=("here", "1GbE"), compute_from=folder)
    elsewhere = _measured_elsewhere(request, options())
    plain = curves_of(replace(request, compute_from=None), options(), step)
    here, over = curves_of(request, options(), step, elsewhere)
    assert here == plain[0]
    assert over.rows[0].step_seconds == 0.081
    assert over.row(2).step_seconds < 0.2 * plain[1].row(2).step_seconds
    assert f"computing measured on a fast one, 64 cores ({tmp_path}/theirs)" in words([over])
    assert "like that of" in curve_table(advice(curves=(over,)), over)[0]
    with pytest.raises(UserError, match="with --batch-size 32, and here it is 16; add"):
        _measured_elsewhere(request, options(batch_size=16))
    with pytest.raises(UserError, match="is of another recipe"):
        _measured_elsewhere(request, options(identity="y"))


@pytest.mark.parametrize("text", ["gone", "fast", "-", "nan"])
def test_no_factor_and_no_folder(text: str) -> None:
    with pytest.raises(UserError, match="give a factor, such as 12, or a folder"):
        parse_compute(text)


def test_one_worker_where_there_is_only_one() -> None:
    alone = ask(measured(batch_size=4, step_seconds={"1": 0.11}, grain_fixed=True), FREE, 1)
    assert alone.best == 1
    assert "there is only one worker to be had: a batch is a single grain" in words([alone])


@pytest.mark.parametrize(
    ("largest", "failing", "note", "said"),
    [
        (0.3, 0.4, "", "can work for up to 3 (0.4 no longer converges; the recipe has 0.1)"),
        (0.15, 0.19, "", "cannot work, as already 0.19 does not converge (the recipe has 0.1)"),
        (6.4, None, "", "up to 64x the recipe's did not diverge in 20 steps; 16x ended lowest"),
        (0.025, 0.05, "", "0.1 is too high already: 0.025 is the largest that converged"),
        (None, None, "no rate lowered the loss", "is not known (no rate lowered the loss)"),
        (None, None, "", "is not known (none was tried)"),
    ],
)
def test_the_rate_in_words(
    largest: float | None, failing: float | None, note: str, said: str
) -> None:
    rates = replace(RATES, largest=largest, failing=failing, note=note)
    assert words([PLAIN], rates).endswith(said + ".")


@pytest.mark.parametrize(
    ("scale", "low", "high", "said"),
    [
        (9e3, 8e3, 9e3, "A larger batch has room: the critical batch is at least 1,000 against 32"),
        (50.0, 40.0, 60.0, "Keep the batch of 32 and share it: the critical batch is at most 27"),
        (900.0, 100.0, 5e3, "cannot be told yet: the critical batch is between 12 and 2,200"),
        (math.inf, 100.0, math.inf, "cannot be told yet: the critical batch is at least 12"),
        (math.inf, 8e3, math.inf, "A larger batch has room: the critical batch is at least 1,000"),
    ],
)
def test_the_batch_in_words(scale: float, low: float, high: float, said: str) -> None:
    assert said in words([PLAIN], batch=batch_at(scale, low, high))


def test_a_short_run_does_not_say_that_there_will_be_no_room() -> None:
    said = words([PLAIN], batch=batch_at(50.0, 40.0, 60.0, part=0.01))
    assert "has no room at the start, where the critical batch is at most 27 against 32" in said


def test_no_noise_scale_in_words() -> None:
    nothing = critical_batch(
        [], batch_size=32, floor=0.8, steps=3, part=0.1, grain_size=4, note="3 steps are too few"
    )
    assert "cannot be told (3 steps are too few)" in words([PLAIN], batch=nothing)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.5, "0.5 s"),
        (59, "59 s"),
        (125, "2 min 5 s"),
        (3599.6, "1 h"),
        (3590, "60 min"),
        (7260, "2 h 1 min"),
        (61_200, "17 h"),
        (442_800, "5 d 3 h"),
        (86_400 * 3 - 60, "3 d"),
        (86_400 * 40, "40 d"),
    ],
)
def test_spans_of_time(seconds: float, said: str) -> None:
    assert span(seconds) == said


def test_numbers_of_examples_have_two_digits() -> None:
    assert [examples(n) for n in (0.3, 7.4, 12.4, 1234.0, math.inf)] == [
        "0.3", "7", "12", "1,200", "no end",
    ]  # fmt: skip


def test_short_times_have_three_digits() -> None:
    assert [step_time(s) for s in (0.0, 2e-9, 1.5e-5, 0.02, 0.4567, 99.99, 125.0)] == [
        "0", "2 ns", "15.0 µs", "20.0 ms", "457 ms", "100 s", "125 s",
    ]  # fmt: skip


# ---- asking


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"floor": 0.0}, "--floor 0: give a part of 1"),
        ({"floor": 1.5}, "--floor 1.5"),
        ({"minutes": 0.0}, "--minutes 0: give at least 0.1"),
        ({"minutes": math.nan}, "--minutes nan"),
        ({"max_workers": 0}, "--max-workers 0"),
        ({"price_per_worker_hour": -1.0}, "--price -1"),
        ({"workers_per_node": 0}, "--workers-per-node 0: give at least 1"),
        (
            {"workers_per_node": 2, "networks": ("here",)},
            "--workers-per-node 2: this machine is one node; give a --network too",
        ),
        ({"networks": ("here", "2GbE")}, "2GbE: there is no such network; did you mean 1GbE?"),
    ],
)
def test_bad_input(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*$") as caught:
        refuse(AdviseRequest(recipe="digits", **changes))
    assert said in str(caught.value)


def test_this_machine_has_only_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samepath.insight.advise.advise.available_workers", lambda: 3)
    request = AdviseRequest(recipe="x", networks=("Here", "1GbE"), floor=0.01)
    here, over = curves_of(request, options(), measured())
    assert [row.workers for row in here.rows] == [1, 2, 3]
    assert here.limit == "cores"
    assert over.rows[-1].workers == 32
    assert over.limit == "grains"
    fewer = replace(request, max_workers=2)
    here, over = curves_of(fewer, options(), measured())
    assert {curve.rows[-1].workers for curve in (here, over)} == {2}
    assert here.limit == "asked"


SECONDS = {"step": 42.0, "rates": 42.0, "noise": 36.0}


def test_runs_fit_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samepath.insight.advise.advise.available_workers", lambda: 2)
    request = AdviseRequest(recipe="x")
    task = plan_runs(request, options(), measured(), 0.1, SECONDS)
    assert task.workers == 2
    assert task.most_rate_steps == 200
    assert task.noise_options.steps == 1000
    assert task.noise_options.grain_size == 4
    few = plan_runs(replace(request, steps=30), options(), measured(), 0.1, SECONDS)
    assert few.most_rate_steps == few.noise_options.steps == 30
    crowded = measured(step_seconds={"1": 3.0}, crowding={"2": 1.5})
    assert plan_runs(request, options(), crowded, 0.1, SECONDS).most_rate_steps == 0
    assert plan_runs(request, options(), measured(), 0.0, SECONDS).most_rate_steps == 0


def test_seconds_become_minutes() -> None:
    assert in_minutes("too slow; give --seconds 200") == "too slow; give --minutes 10"
    assert in_minutes("more --seconds would help") == "more --minutes would help"
    assert in_minutes("others kept 1.1 cores busy") == "others kept 1.1 cores busy"


def test_what_the_first_part_left() -> None:
    planned = {"step": 40.0, "rates": 40.0, "noise": 20.0}
    assert what_is_left(planned, 40.0) == {"rates": 40.0, "noise": 20.0}
    assert what_is_left(planned, 10.0) == {"rates": 60.0, "noise": 30.0}
    assert what_is_left(planned, 1000.0) == {"rates": 20.0, "noise": 10.0}


def test_the_noise_scale_is_measured_in_finer_grains_where_there_are_few() -> None:
    whole = options(grain_size=32)
    task = plan_runs(AdviseRequest(recipe="x"), whole, measured(), 0.1, SECONDS)
    assert task.noise_options.grain_size == 4
    assert task.options.grain_size == 32
    single = options(batch_size=1, grain_size=1)
    task = plan_runs(AdviseRequest(recipe="x"), single, measured(), 0.1, SECONDS)
    assert task.noise_options.steps == 0
    assert task.workers == 1


def found_with(**changes: Any) -> ShortRuns:
    lines = [
        {"step": i, "learning_rate": 0.1, "noise_scale": 9.0, "noise_low": 8.0, "noise_high": 10.0}
        for i in range(20)
    ]
    made: dict[str, Any] = {
        "losses": {0.1: [2.0, 1.0, 1.0], 0.4: [2.0, 3.0, 4.0]},
        "rate_steps": 3,
        "rates_note": "",
        "rate_seconds": 1.0,
        "lines": lines,
        "noise_status": "finished",
        "noise_steps": 20,
        "noise_seconds": 1.0,
    }
    return ShortRuns(**(made | changes))


def test_what_short_runs_could_not_find_out_is_said() -> None:
    request = AdviseRequest(recipe="x")
    task = plan_runs(request, options(), measured(), 0.1, SECONDS)
    rates, batch = judged(request, options(), task, found_with(), grain_fixed=False)
    assert (rates.largest, rates.failing, rates.note) == (0.1, 0.4, "")
    assert batch.noise_scale == 9.0
    assert batch.note == "after 2% of the training; it grows as the loss falls"
    warming = [{"step": i, "learning_rate": 0.01 * (i + 1)} for i in range(9)]
    rates, batch = judged(
        request, options(), task, found_with(lines=warming, noise_steps=9), grain_fixed=False
    )
    assert rates.note == "in so few steps the schedule goes up to only 30% of a rate"
    assert batch.note == "a run of 9 steps is too short for a noise scale"
    lost = found_with(lines=[], noise_status="diverged", noise_steps=1, rates_note="no time")
    finer = replace(task, noise_options=options(grain_size=2, steps=9))
    rates, batch = judged(request, options(), finer, lost, grain_fixed=True)
    assert rates.note == "no time"
    assert batch.note == (
        "a run of 1 step is too short for a noise scale; the run diverged after 1 step; "
        "measured in grains of 2, over which the model then normalises"
    )
    still = replace(task, recipe_rate=0.0)
    rates, _ = judged(request, options(), still, found_with(losses={}), grain_fixed=False)
    assert (rates.largest, rates.note) == (None, "the recipe's rate is 0")


@pytest.mark.parametrize(
    ("batch", "grain", "examples", "fixed", "finer"),
    [
        (32, 8, 3200, False, 8),  # four grains are enough
        (32, 16, 3200, False, 4),
        (4, 4, 3200, False, 1),
        (4, 4, 3200, True, 2),
        (9, 9, 90, True, 3),  # of 2 the last would be 1
        (9, 9, 94, True, 5),  # of 3 the last batch's last would be 1
        (3, 3, 30, True, 3),
        (1, 1, 30, False, 1),
    ],
)
def test_grains_for_the_noise_scale(
    batch: int, grain: int, examples: int, fixed: bool, finer: int
) -> None:
    asked = options(batch_size=batch, grain_size=grain, num_examples=examples)
    assert noise_grain(asked, fixed=fixed) == finer


def test_short_runs_wait_for_no_validation_loss() -> None:
    found = Recipe(
        model=lambda: torch.nn.Linear(1, 1),
        train=torch.zeros(4, 1),
        valid=torch.zeros(4, 1),
        loss=lambda model, batch: model(batch).mean(),
        optimizer=torch.optim.SGD,
        schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1),
        batch_size=2,
        grain_size=1,
        epochs=1,
    )
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    short = only_training(replace(found, schedule=plateau, target=0.1))
    assert short.valid is None
    assert short.target is None
    assert short.schedule is not None
    schedule = short.schedule(optimizer)
    for _ in range(30):
        optimizer.step()
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.5
    own = only_training(found).schedule
    assert own is not None
    assert isinstance(own(optimizer), torch.optim.lr_scheduler.StepLR)


# ---- the folder


def test_the_folder(tmp_path: Path) -> None:
    step = measured(step_seconds={"1": 0.81, "2": 0.42})
    tried = {0.1: [2.0, 1.0, 0.5], 0.4: [2.0, 1.1, 0.6], 1.6: [2.0, math.nan]}
    points = [
        NoisePoint(step=i, scale=100.0 * i, low=50.0 * i, high=math.inf) for i in range(8, 20)
    ]
    how: dict[str, Any] = {"batch_size": 32, "floor": 0.8, "steps": 20, "part": 0.1}
    found = advice(
        curves=(
            ask(step, find_cluster("here", here=SHARED), 2, here=True),
            ask(step, CLUSTERS["1GbE"]),
        ),
        rates=range_test(0.1, tried, 3),
        batch=critical_batch(points, grain_size=4, **how),
    )
    out = tmp_path / "advice"
    page = write_advice(found, step, out, recipe="a.py", command=("samepath", "advise", "a.py"))
    content = read_finding(out, "advice")
    assert content["rates"]["largest"] == 0.4
    assert content["batch"]["noise_high"] == "inf"
    assert content["curves"][1]["network"] == "1GbE"
    assert read_measured(out) == step
    assert (out / "advice.svg").stat().st_size > 20_000
    text = page.read_text()
    assert "Do this. Not that." in text
    assert len(tables_in_short(found)) == 3, "two machines, and how it was measured"
    for title, table, note in tables(found):
        assert title.split(" (")[0] in text
        assert all(len(row) == len(table[0]) for row in table)
        assert "\n" not in note
    assert "others kept 1.0 cores busy" in text
    assert "10% of the training" in text


def test_nothing_is_left_of_a_folder_that_could_not_be_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("samepath.report.advise.draw_advice", stopped)
    with pytest.raises(KeyboardInterrupt):
        write_advice(advice(), measured(), tmp_path / "new", recipe="x", command=("samepath",))
    assert not (tmp_path / "new").exists()
