"""What is timed, and what is made of the times: arithmetic only, no worker is started."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from measured_steps import made
from torch import nn

from samepath.engine.run.fewer_workers import normalises_over_grains
from samepath.engine.run.options import Options, resolve
from samepath.errors import UserError
from samepath.recipe import find_recipe
from samepath.timing.links import Sample, link_of
from samepath.timing.measured import read_measured, write_measured
from samepath.timing.stopwatch import (
    Launched,
    Steps,
    TimingJob,
    Turn,
    all_turns,
    assemble,
    doubts,
    joined,
    measure_step,
    plan_rounds,
    shared_seconds,
    side_by_side_counts,
    sizes_to_time,
    turns_for,
)


def options_of() -> Options:
    return resolve(find_recipe("digits"))


def samples(latency: float, bandwidth: float) -> list[Sample]:
    sizes = [1 << power for power in (14, 18, 22)]
    times = [2 * latency + size / bandwidth for size in sizes]
    return [Sample(2, size, t, 0.25 * t) for size, t in zip(sizes, times, strict=True)]


# ---- what is timed


def test_workers_are_started_in_doubling_numbers_up_to_the_cores() -> None:
    counts = {n: side_by_side_counts(n) for n in (1, 2, 3, 6, 8, 64)}
    assert counts == {1: [1], 2: [2], 3: [2, 3], 6: [2, 4, 6], 8: [2, 4, 8], 64: [2, 4, 8, 16]}


def test_grain_sizes_go_to_the_batch_unless_batch_norm_fixes_them() -> None:
    options = replace(options_of(), batch_size=48, grain_size=12)
    assert sizes_to_time(options, fixed=True) == [12]
    assert sizes_to_time(options, fixed=False) == [1, 2, 4, 8, 12, 24, 48]
    five_grains = replace(options, batch_size=50, grain_size=10)
    assert sizes_to_time(five_grains, fixed=False) == [1, 2, 4, 8, 10, 13, 25, 50]
    assert normalises_over_grains(nn.Sequential(nn.Linear(1, 1), nn.BatchNorm3d(1)))
    assert normalises_over_grains(nn.SyncBatchNorm(1))
    assert not normalises_over_grains(nn.Sequential(nn.GroupNorm(1, 1), nn.InstanceNorm2d(1)))


def test_turns() -> None:
    options = replace(options_of(), batch_size=32, grain_size=8, num_examples=100)
    assert turns_for(options, 2, [4, 8, 32], fixed=False) == (
        Turn("alone", 32, 8),
        Turn("alone", 16, 4),
        Turn("alone", 96, 32),  # there are not 128 examples
        Turn("ready", 32, 8),
        Turn("beside", 32, 8),
        Turn("together", 32, 8),
    )
    one_grain = replace(options, batch_size=8)
    assert turns_for(one_grain, 2, [8], fixed=True) == (
        Turn("alone", 8, 8),
        Turn("alone", 32, 8),  # a grain's time needs another grain before it
        Turn("ready", 32, 8),
        Turn("beside", 32, 8),  # two workers cannot share one grain
    )
    assert turns_for(one_grain, 2, [8], fixed=False)[-1] == Turn("together", 8, 4)
    more_workers = turns_for(one_grain, 4, [], fixed=True)  # also where grains were timed before
    assert more_workers[1:] == (Turn("alone", 32, 8), Turn("beside", 32, 8))
    odd = replace(options, batch_size=20)
    assert Turn("alone", 32, 8) in turns_for(odd, 1, [8], fixed=True)
    assert [turn.how for turn in turns_for(options, 1, [8], fixed=True)] == ["alone", "ready"]


def job(*turns: Turn, seconds: float) -> TimingJob:
    return TimingJob(
        options=options_of(),
        turns=shared_seconds(turns, seconds, grain_size=32),
        asked_seconds=2 * seconds,
    )


def test_rounds_fill_the_seconds() -> None:
    own, other = Turn("alone", 256, 32), Turn("alone", 64, 16)
    rounds, counts = plan_rounds([0.1, 0.01], job(own, other, seconds=12.0))
    assert rounds == 8
    assert counts == [10, 50]  # a second of the recipe's own size, half a one of the other
    assert plan_rounds([1e-6, 1e-6], job(own, other, seconds=12.0)) == (8, [1000, 1000])
    assert plan_rounds([5.0, 1.0], job(own, other, seconds=12.0)) == (2, [1, 2])


def test_what_is_too_slow_says_how_many_seconds_it_needs() -> None:
    own = Turn("alone", 256, 32)
    with pytest.raises(UserError) as raised:
        plan_rounds([20.0], job(own, seconds=12.0))
    assert str(raised.value) == (
        "digits is too slow to be timed in 24 s: one step of each kind takes 20.0 s here; "
        "give --seconds 80"
    )
    assert plan_rounds([20.0], job(own, seconds=40.0))[0] == 2


def test_a_study_times_what_is_slow_all_the_same() -> None:
    own = Turn("together", 256, 32)
    study = replace(job(own, seconds=1.0), asked_seconds=None, least_steps=4)
    assert plan_rounds([20.0], study) == (2, [2])
    assert plan_rounds([0.25], study) == (4, [1])
    assert plan_rounds([0.001], study) == (8, [125])


def test_too_few_seconds_are_refused_before_anything_starts() -> None:
    with pytest.raises(UserError, match=r"--seconds 0\.5: give at least 2"):
        measure_step(options_of(), seconds=0.5, tell=lambda _: None)


# ---- what is found


def launched(turns: dict[Turn, list[list[Steps]]]) -> Launched:
    """From what two workers return."""
    found = []
    for worker in range(2):
        links = {"shared": True, "local": samples(1e-4, 1e9), "network": samples(1e-3, 1e8)}
        content = {
            "turns": [each[worker] for each in turns.values()],
            "ready": {"a.weight": [0.8, 0.7, 0.9], "b.weight": [0.5]},
            "rows": {"b.weight": 10.0},
            "others": 0.25,
            "device": "cpu",
            "links": links,
        }
        found.append(content)
    return all_turns(found, turns)


def test_a_step_is_put_together() -> None:
    grain = 32
    alone, other = Turn("alone", 256, grain), Turn("alone", 64, 16)
    beside = Turn("beside", 128, grain)
    together = Turn("together", 256, grain)

    def steps(first: float, grains: float, number: int) -> Steps:
        """A step whose grains take so long, and the first and the update `first`."""
        return Steps([first + grains * (number - 1)], [[grains] * (number - 1)])

    idle = [Steps([], []), Steps([], [])]
    found = launched(
        {
            alone: [[steps(0.15, 0.1, 8), steps(0.35, 0.3, 8)], idle],  # the machine became slow
            other: [[steps(0.04, 0.03, 4), steps(0.04, 0.03, 4)], idle],
            beside: [
                [steps(0.2, 0.12, 4), steps(0.5, 0.36, 4)],
                [steps(0.2, 0.14, 4), steps(0.5, 0.42, 4)],
            ],
            together: [[steps(0.1, 0.1, 4), steps(0.1, 0.12, 4)]] * 2,
        }
    )
    assert found.grain_times() == {"16": (0.03,) * 6, "32": pytest.approx((0.1,) * 7 + (0.3,) * 7)}
    assert found.update_seconds(grain) == pytest.approx(0.05)
    assert found.crowding(grain) == pytest.approx(1.3)  # in both rounds, though times tripled
    assert found.steps_of(together) == pytest.approx([0.4, 0.46])
    assert found.steps_of(Turn("together", 512, grain)) == []
    measured = assemble(options_of(), {2: found})
    assert measured.crowding == {"2": pytest.approx(1.3)}
    assert measured.step_seconds == {"1": pytest.approx(1.65), "2": pytest.approx(0.43)}
    assert measured.grain_fixed
    assert sum(measured.tensor_bytes) == 233_896
    assert measured.local.bytes_per_second == pytest.approx(1e9)
    assert measured.local.cores_taken == 1.0  # workers add by themselves
    assert measured.network.latency_seconds == pytest.approx(1e-3)
    assert measured.network.cores_taken == pytest.approx(0.25)
    assert measured.busy_cores == 0.25


def test_steps_of_one_grain_count_as_grains_where_data_is_too_small_for_two() -> None:
    alone, beside = (Turn(how, 32, 32) for how in ("alone", "beside"))
    idle, single = [Steps([], [])], [Steps([0.1, 0.1], [[], []])]
    slow = [Steps([0.2, 0.2], [[], []])]
    found = launched({alone: [single, idle], beside: [slow, slow]})
    assert found.grain_times() == {"32": (0.1, 0.1)}
    assert (found.update_seconds(32), found.crowding(32)) == (0.0, 2.0)


def test_several_starts_of_the_same_workers_are_one() -> None:
    alone = Turn("alone", 64, 32)
    once = launched({alone: [[Steps([0.2], [[0.1]])], [Steps([], [])]]})
    both = joined([once, replace(once, busy_cores=0.5)])
    assert both.steps_of(alone) == [0.2, 0.2]
    assert both.grain_times() == {"32": (0.1, 0.1)}
    assert both.busy_cores == 0.5


def test_gradients_in_the_order_they_come() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 1), "b": nn.Linear(3, 1)})
    model["b"].bias.requires_grad_(False)
    found = launched({}).tensors(model)
    assert found == {
        "tensor_names": ("b.weight", "a.weight", "a.bias"),  # a.bias: in no grain
        "tensor_bytes": (12, 8, 4),
        "tensor_ready": (0.5, pytest.approx(0.8), 1.0),
        "row_bytes": (10.0, 0.0, 0.0),
    }


def test_a_measured_step_is_read_as_it_was_written(tmp_path: Path) -> None:
    link = link_of(samples(1e-4, 1e9), "x")
    write_measured(tmp_path, made(local=link))
    assert read_measured(tmp_path) == made(local=link)
    content = json.loads((tmp_path / "measured.json").read_text())
    del content["local"]["cores_taken"]  # an older one
    (tmp_path / "measured.json").write_text(json.dumps(content))
    assert read_measured(tmp_path).local.cores_taken == 0.0
    del content["machine"]
    (tmp_path / "measured.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"measured.json cannot be read .*; measure again"):
        read_measured(tmp_path)


def test_doubts_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    many = {"4": (0.010,) * 50}
    assert doubts(made(grain_times=many)) == []
    (few,) = doubts(made())
    assert few.startswith("only 9 grains were timed")
    (fast,) = doubts(made(grain_times={"4": (1e-4,) * 3000}))
    assert fast.startswith("a grain of made up takes 100 us, too little to be timed well: 3,000")
    (busy,) = doubts(made(grain_times=many, busy_cores=0.4))
    assert busy.startswith("other processes used 0.4 cores")
    assert doubts(made(grain_times=many, busy_cores=0.4, crowding={})) == []  # one core is enough
