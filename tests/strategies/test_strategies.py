"""Strategies as arithmetic: what each rule answers, how one is found, what a run makes of it."""

from __future__ import annotations

import itertools
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samepath.engine.run.options import Options
from samepath.engine.run.strategy_schedule import LOOK_AHEAD, StrategySchedule
from samepath.errors import UserError
from samepath.strategies import (
    BUILT_IN,
    Adversarial,
    Choice,
    Moment,
    OtherOptimizer,
    Synchronisation,
    find_strategy,
    register_strategy,
    registry,
)

WORKERS = (1, 2, 8, 32)
START = Moment()


def asked(text: str, k: int, **moment: Any) -> Choice:
    return find_strategy(text)(k, Moment(**moment))


def measured(*values: float) -> tuple[dict[str, float], ...]:
    return tuple({"curvature": value} for value in values)


def noises(*values: tuple[float, float]) -> tuple[dict[str, float], ...]:
    return tuple({"noise_variance": v, "noise_signal": s} for v, s in values)


# ---- how one is found


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that a test registers are forgotten after it."""
    monkeypatch.setattr(registry, "_registered", {})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("warmpu", "did you mean 'warmup'"),
        ("qqqq", "there are: strong, weak"),
        ("strong:epochs=3", "'strong' has no parameter 'epochs=3'; it has none"),
        ("warmup:epoch=3", "'warmup' has no parameter 'epoch=3'; it has epochs"),
        ("warmup:epochs", "has no parameter 'epochs'"),
        ("warmup:epochs=", "'epochs=' is not a number; try epochs=5"),
        ("warmup:epochs=ten", "'epochs=ten' is not a number; try epochs=5"),
        ("warmup:epochs=0", "epochs=0.0: a warm-up must last longer"),
        ("warmup:epochs=nan", "a warm-up must last longer"),
        ("sqrt-warmup:epochs=-1", "a warm-up must last longer"),
        ("stale:lag=-1", "lag=-1: it must be at least 0"),
        ("stale:lag=1.5", "'lag=1.5' is not a whole number"),
        ("asynchronous:bound=-1", "bound=-1: it must be at least 0"),
        ("growth:factor=1", "factor=1.0: it must be above 1"),
        ("decay:milestones=10+x", "'milestones=10+x' is not whole numbers joined by +"),
        ("decay:milestones=0+10", "at least 1, as 10+20"),
        ("curvature:fall=1", "fall=1.0: it must be above 1"),
        ("curvature:patience=0", "patience=0: it must be at least 1 epoch"),
        ("curvature-adversarial:share=0", "share above 0"),
        ("curvature-adversarial:patience=0", "patience=0"),
        ("noise:window=0", "window=0"),
        ("lars:rate=0", "rate=0.0: a learning rate must be above 0"),
        ("lamb:epochs=0", "a warm-up must last longer"),
        ("nowhere/rule.py", "'nowhere/rule.py' does not exist"),
    ],
)
def test_bad_text_says_what_fits(text: str, says: str) -> None:
    with pytest.raises(UserError) as raised:
        find_strategy(text)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("growth:milestones=3+7:factor=2", {"milestones": (3, 7), "factor": 2.0}),
        ("asynchronous:bound=4", {"bound": 4}),
        ("lars:rate=2.5:epochs=1.5", {"rate": 2.5, "epochs": 1.5}),
    ],
)
def test_parameters_arrive(text: str, parameters: dict[str, Any]) -> None:
    """And a built-in rule is known by what was typed."""
    found = find_strategy(text)
    assert vars(found.function) == parameters
    assert (found.name, found.identity) == (text, text)


RULE = """
from __future__ import annotations

from dataclasses import dataclass

from samepath import Choice, Moment


@dataclass(frozen=True)
class Rule:
    power: float = 0.75
    measures = ("noise",)

    def __call__(self, k: int, moment: Moment) -> Choice:
        return Choice(batch=k, learning_rate=k**self.power)


strategy = Rule()
"""


def test_a_file_is_known_by_its_content(tmp_path: Path) -> None:
    first, second = tmp_path / "rule.py", tmp_path / "moved.py"
    first.write_text(RULE)
    second.write_text(RULE)
    found = find_strategy(str(first))
    assert found(16, START) == Choice(batch=16, learning_rate=8.0)
    assert (found.measures(16), found.measures(1)) == (("noise",), ())
    assert find_strategy(str(second)).identity == found.identity
    first.write_text(RULE.replace("0.75", "0.5"))
    changed = find_strategy(str(first))
    assert changed.identity != found.identity
    assert changed(16, START).learning_rate == 4.0


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def strategie(k, moment): ...", "has no strategy(k, moment) function"),
        ("strategy = 3", "has no strategy(k, moment) function"),
        ("1 / 0", "raised ZeroDivisionError"),
        ("def strategy(:", "raised SyntaxError"),
        ("import sys; sys.exit(3)", "raised SystemExit"),
    ],
)
def test_a_file_without_a_strategy(code: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "rule.py"
    file.write_text(code)
    with pytest.raises(UserError, match=r"rule\.py") as raised:
        find_strategy(str(file))
    assert says in str(raised.value)


def third(k: int, moment: Moment) -> Choice:
    return Choice(batch=k, learning_rate=k / 3)


@pytest.mark.usefixtures("registered")
def test_a_registered_one_is_found_by_its_name() -> None:
    register_strategy("my-third", third)
    found = find_strategy("my-third")
    assert found(6, START).learning_rate == 2.0
    assert found.identity == "my-third"
    with pytest.raises(UserError, match="did you mean 'my-third'"):
        find_strategy("my-thirds")
    with pytest.raises(UserError, match="takes no parameters"):
        find_strategy("my-third:power=2")
    for name in ("warmup", "", "a b", "a:b", "rule.py", "3rd"):
        with pytest.raises(UserError, match="not taken"):
            register_strategy(name, third)


def test_only_two_rules_measure_and_only_for_several_workers() -> None:
    wanted = {name: find_strategy(name).measures(2) for name in BUILT_IN}
    assert {name: what for name, what in wanted.items() if what} == {
        "curvature": ("curvature",),
        "curvature-adversarial": ("curvature",),
        "noise": ("noise",),
    }
    assert not any(find_strategy(name).measures(1) for name in BUILT_IN)


# ---- one worker (what fixed rules make of several: parity/test_strategy_updates.py)


SEQUENTIAL = [
    "strong", "weak", "linear", "warmup", "sqrt", "sqrt-warmup", "stale", "stale:lag=7",
    "asynchronous", "asynchronous:bound=3", "curvature", "curvature-adversarial", "noise",
]  # fmt: skip


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_for_one_worker_most_rules_are_the_sequential_run(name: str) -> None:
    for epoch, fraction in itertools.product((0, 1, 4, 20), (0.0, 0.3, 0.9)):
        history = tuple(
            {"curvature": 1.0 / (e + 1) ** 3, "noise_variance": 9.0, "noise_signal": 1e-3}
            for e in range(epoch)
        )
        found = asked(name, 1, epoch=epoch, fraction=fraction, history=history)
        assert found == Choice(), (epoch, fraction)


def test_the_others_for_one_worker() -> None:
    """The rest of the built-in rules: none is forgotten."""
    assert {name.split(":")[0] for name in SEQUENTIAL} | {"lars", "lamb", "decay", "growth"} == set(
        BUILT_IN
    )
    for epoch in range(40):
        assert asked("growth", 1, epoch=epoch) == asked("decay", 1, epoch=epoch)
        for name in ("lars", "lamb"):
            found = asked(name, 1, epoch=epoch, fraction=0.4)
            assert (found.batch, found.learning_rate) == (1, 1.0)
            assert found.optimizer == OtherOptimizer(name=name)


# ---- warm-up


@pytest.mark.parametrize("k", WORKERS)
@pytest.mark.parametrize(
    ("name", "power"), [("warmup", 1.0), ("sqrt-warmup", 0.5), ("lars", 1.0), ("lamb", 0.5)]
)
def test_warmup_is_a_straight_line_over_steps_then_level(name: str, power: float, k: int) -> None:
    steps, top = 7, k**power  # steps per epoch
    found = [
        asked(f"{name}:epochs=2.5", k, epoch=step // steps, fraction=step % steps / steps)
        for step in range(6 * steps)
    ]
    risen = [min(1.0, step / (2.5 * steps)) for step in range(6 * steps)]
    assert [choice.learning_rate for choice in found] == pytest.approx(
        [1 + (top - 1) * part for part in risen]
    )
    assert {choice.batch for choice in found} == {k}


def test_layerwise_rules_name_their_optimizer() -> None:
    assert asked("lars:rate=3", 4).optimizer == OtherOptimizer(name="lars", learning_rate=3.0)
    assert asked("lamb", 4).optimizer == OtherOptimizer(name="lamb", learning_rate=None)


# ---- growth and decay


@given(
    k=st.integers(1, 64),
    milestones=st.lists(st.integers(1, 30), min_size=1, max_size=4).map(sorted),
    factor=st.sampled_from([1.5, 2.0, 5.0, 10.0]),
    epoch=st.integers(0, 40),
    most_batch=st.sampled_from([1.0, 3.7, 20.0, math.inf]),
)
def test_growth_and_decay_have_the_same_noise(
    k: int, milestones: list[int], factor: float, epoch: int, most_batch: float
) -> None:
    """The noise of an update is in proportion to rate / batch (Smith et al. 2018)."""
    text = f":milestones={'+'.join(map(str, milestones))}:factor={factor}"
    moment = {"epoch": epoch, "most_batch": most_batch}
    growth, decay = asked("growth" + text, k, **moment), asked("decay" + text, k, **moment)
    passed = sum(epoch >= milestone for milestone in milestones)
    assert decay.batch == 1.0
    assert decay.learning_rate == pytest.approx(factor**-passed)
    assert growth.learning_rate / growth.batch == pytest.approx(decay.learning_rate / decay.batch)
    assert 1 <= growth.batch <= max(1, min(k, most_batch))
    if factor**passed <= min(k, most_batch):
        assert growth.learning_rate == 1.0, "below its limit the batch alone changes"


# ---- curvature


@pytest.mark.parametrize(
    ("history", "grown"),
    [
        ((), 1),
        ((8.0,), 1),
        ((8.0, 4.1), 1),
        ((8.0, 4.0), 2),
        ((8.0, 4.0, 2.1), 2),  # the new reference is 4
        ((8.0, 4.0, 2.0), 4),
        ((8.0, 16.0, 8.0), 1),  # the first stays the reference
        ((8.0, 4.0, 2.0, 1.0, 0.5), 8),  # k is 8
        ((8.0, 8.0, 8.0), 1),
        ((8.0, 8.0, 8.0, 8.0), 2),  # patience is 4
        ((8.0,) * 8, 4),
        ((8.0, 8.0, 4.0, 4.0, 4.0, 4.0), 2),  # it counts from the last growth
        ((8.0, 8.0, 4.0, 4.0, 4.0, 4.0, 4.0), 4),
        ((math.nan, 8.0, 4.0), 2),  # a measure that failed is no reference
        ((8.0, math.nan, 4.0), 2),
        ((math.inf, math.inf, 8.0, 5.0), 2),  # nor has it fallen; patience goes on
        ((math.inf,), 1),
        ((math.nan,) * 20, 1),
    ],
)
def test_curvature_over_a_history(history: tuple[float, ...], grown: int) -> None:
    found = asked("curvature:patience=4", 8, epoch=len(history), history=measured(*history))
    assert found == Choice(batch=grown, learning_rate=grown)


def test_curvature_grows_no_further_than_the_workers_or_the_data() -> None:
    history = measured(8.0, 4.0, 2.0, 1.0)
    assert asked("curvature", 3, history=history).batch == 3
    found = asked("curvature", 100, history=history, most_batch=5.5)
    assert (found.batch, found.learning_rate) == (5.5, 5.5)


def test_curvature_adversarial_moves_examples_at_first() -> None:
    text = "curvature-adversarial:epsilon=0.1:share=0.5:until=3"
    on = [asked(text, 4, epoch=epoch).adversarial for epoch in range(5)]
    attack = Adversarial(epsilon=0.1, share=0.5)
    assert on == [attack, attack, attack, None, None]
    history = measured(8.0, 4.0)
    assert asked(text, 4, history=history).batch == asked("curvature", 4, history=history).batch


# ---- noise


@pytest.mark.parametrize(
    ("history", "grown"),
    [
        ((), 1),
        (((50.0, 1.0),), 5),  # a noise scale of 50 is five batches of 10
        (((59.0, 1.0),), 5),
        (((9.0, 1.0),), 1),
        (((5000.0, 1.0),), 8),
        (((10.0, 1.0), (90.0, 1.0)), 5),  # parts are averaged apart
        (((90.0, 3.0), (90.0, -1.0)), 8),  # 180 / 2 is nine batches
        (((60.0, 3.0), (60.0, -1.0)), 6),
        (((50.0, -1.0),), 8),  # no signal to be seen: all noise
        (((50.0, 0.0),), 8),
        (((-50.0, 1.0),), 1),  # no noise to be seen
        (((9e9, 1.0), (9e9, 1.0), (30.0, 1.0), (30.0, 1.0), (30.0, 1.0)), 3),  # window is 3
        (((math.nan, 1.0), (30.0, 1.0)), 3),
        (((30.0, math.nan), (30.0, 1.0)), 3),
        (((math.inf, 1.0), (-math.inf, 1.0), (30.0, 1.0)), 3),
        (((math.nan, math.nan),), 1),
    ],
)
def test_noise_over_a_history(history: tuple[tuple[float, float], ...], grown: int) -> None:
    found = asked("noise:window=3", 8, batch_size=10, history=noises(*history))
    assert found == Choice(batch=grown, learning_rate=math.sqrt(grown))


def test_noise_grows_no_further_than_the_data() -> None:
    found = asked("noise", 8, batch_size=10, most_batch=2.5, history=noises((900.0, 1.0)))
    assert found == Choice(batch=2, learning_rate=math.sqrt(2))


# ---- late gradients


@pytest.mark.parametrize("k", WORKERS)
def test_lags(k: int) -> None:
    def lag(text: str) -> int:
        found = asked(text, k, epoch=2, fraction=0.5)
        assert (found.batch, found.learning_rate) == (1.0, 1.0)
        assert (found.synchronisation.kind == "synchronous") == (not found.synchronisation.lag)
        return found.synchronisation.lag

    assert lag("stale") == (k > 1)
    assert lag("stale:lag=0") == 0
    assert lag("stale:lag=3") == 3 * (k > 1)
    assert lag("asynchronous") == k - 1
    assert lag("asynchronous:bound=5") == min(k - 1, 5)
    assert lag("asynchronous:bound=0") == 0


def test_a_lag_that_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        Synchronisation(kind="stale", lag=-1)
    with pytest.raises(ValueError, match="synchronous updates have none"):
        Synchronisation(lag=1)


# ---- a strategy in a run


def options(
    strategy: str, k: int, *, num_examples: int = 44, batch_size: int = 10, epochs: int = 30
) -> Options:
    given: dict[str, Any] = {field.name: None for field in fields(Options)}
    given |= {"recipe": "test", "identity": "test", "seed": 0, "threads": 1, "exact": True}
    given |= {"batch_size": batch_size, "grain_size": 2, "num_examples": num_examples}
    return Options(**given | {"epochs": epochs, "strategy": strategy, "virtual_workers": k})


def test_a_first_batch_larger_than_the_data_is_refused() -> None:
    StrategySchedule(options("weak", 4))
    with pytest.raises(UserError, match=r"a batch of 50 is larger than the data \(44 examples\)"):
        StrategySchedule(options("weak", 5))


def test_a_batch_that_grows_stops_at_the_data_and_keeps_the_noise() -> None:
    """Five times ten are 50 of 44: the batch is the data, and the rate makes up for the rest."""
    course = StrategySchedule(options("growth", 8))
    assert course.plan(9, ()).batch_size == 10
    assert course.plan(10, ()).batch_size == 44
    assert course.plan(10, ()).steps_per_epoch == 1
    assert course.for_step(10, 0, 44, ()).learning_rate == pytest.approx(44 / 50)
    assert course.for_step(20, 0, 44, ()).learning_rate == pytest.approx(44 / 250)


def test_epochs_alike() -> None:
    growth = StrategySchedule(options("growth", 8, num_examples=1000))
    assert [growth.epochs_alike(epoch, ()) for epoch in (0, 5, 9, 10, 19, 20, 29)] == [
        10, 10, 10, 20, 20, 30, 30,
    ]  # fmt: skip
    for name in ("warmup", "decay"):  # a rate is no batch size
        assert StrategySchedule(options(name, 4)).epochs_alike(3, ()) == 30
    assert StrategySchedule(options("noise", 4)).epochs_alike(3, noises((1.0, 1.0))) == 4
    assert StrategySchedule(options("noise", 1)).epochs_alike(3, ()) == 30, "nothing is measured"
    long = StrategySchedule(replace(options("decay", 4), epochs=10**12))
    assert long.epochs_alike(7, ()) == 7 + LOOK_AHEAD, "which is soon known"


@pytest.mark.usefixtures("registered")
@given(
    num_examples=st.integers(1, 500),
    batch_size=st.integers(1, 60),
    factor=st.floats(0.01, 40.0),
    epoch=st.integers(0, 3),
)
def test_a_schedule_goes_as_far_in_an_epoch_whatever_the_batch(
    num_examples: int, batch_size: int, factor: float, epoch: int
) -> None:
    batch_size = min(batch_size, num_examples)
    factor = min(factor, num_examples / batch_size)
    registry._registered["by"] = lambda k, moment: Choice(batch=factor)
    course = StrategySchedule(options("by", 2, num_examples=num_examples, batch_size=batch_size))
    plan = course.plan(epoch, ())
    advanced = []
    for place in range(plan.steps_per_epoch):
        examples = plan.batch(epoch * plan.steps_per_epoch + place).examples
        seen = place * plan.batch_size
        advanced.append(course.for_step(epoch, seen, len(examples), ()).schedule_steps)
    assert sum(advanced) == -(-num_examples // batch_size)
    assert min(advanced) >= 0


def test_paces() -> None:
    """Warm-up over two epochs at k = 4: 40 of 44 examples are 10/11 of the first."""
    course = StrategySchedule(options("warmup:epochs=2", 4))
    assert course.plan(0, ()).batch_size == 40
    first, second = course.for_step(0, 0, 40, ()), course.for_step(0, 40, 4, ())
    assert (first.learning_rate, first.schedule_steps) == (1.0, 4)
    assert (second.learning_rate, second.schedule_steps) == (1 + 3 * (40 / 44) / 2, 1)
    assert course.for_step(2, 0, 40, ()).learning_rate == 4.0
    assert StrategySchedule(options("stale:lag=3", 2)).for_step(0, 0, 10, ()).lag == 3
    attacked = StrategySchedule(options("curvature-adversarial", 2)).for_step(0, 0, 10, ())
    assert attacked.adversarial == Adversarial(epsilon=0.005, share=0.2)


@pytest.mark.usefixtures("registered")
def test_an_answer_that_makes_no_sense() -> None:
    nowhere = [math.nan, math.inf, -1.0]
    wrong = [None, 2.0, Choice(batch=0)]
    wrong += [Choice(batch=value) for value in nowhere]
    wrong += [Choice(learning_rate=value) for value in nowhere]
    for answer in wrong:
        registry._registered["wrong"] = lambda k, moment, answer=answer: answer
        with pytest.raises(UserError, match=r"'wrong' answered .* a batch above 0"):
            StrategySchedule(options("wrong", 2))


@pytest.mark.usefixtures("registered")
def test_a_strategy_that_raises_is_named() -> None:
    register_strategy("mine", lambda k, moment: Choice(batch=1 / moment.epoch))
    with pytest.raises(UserError, match=r"strategy 'mine' raised ZeroDivisionError: "):
        StrategySchedule(options("mine", 2))
