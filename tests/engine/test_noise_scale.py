"""The noise scale that every run records: right, with an interval that holds what it says."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samepath import start
from samepath.engine.noise_scale import NoiseSample, NoiseScale, average, is_measured, sample
from samepath.engine.step.gradients import GradientSum
from samepath.engine.step.settings import StepResult
from samepath.engine.train import Request, train
from samepath.plan import Plan

Data = tuple[Tensor, Tensor]
NUM_EXAMPLES = 96


def classify(model: nn.Module, batch: Data) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def examples() -> Data:
    made = torch.Generator().manual_seed(1)
    inputs = torch.randn(NUM_EXAMPLES, 6, generator=made)
    return inputs, (inputs[:, :4] + 0.5 * torch.randn(NUM_EXAMPLES, 4, generator=made)).argmax(1)


def dense() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4))


def still_steps(epochs: int, batch_size: int, grain_size: int, **given: Any) -> list[StepResult]:
    """Steps that leave the weights as they are."""
    model, data = dense(), examples()
    with start(seed=3) as session:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        trainer = session.prepare(
            model, optimizer, classify, batch_size=batch_size, grain_size=grain_size, **given
        )
        return [trainer.step(s) for epoch in range(epochs) for s in trainer.batches(data, epoch)]


def example_gradients() -> np.ndarray[Any, np.dtype[np.float64]]:
    """One row per example, the slow way."""
    model, (inputs, labels) = dense().double(), examples()
    rows = []
    for one, label in zip(inputs.double(), labels, strict=True):
        loss = classify(model, (one[None], label[None]))
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        rows.append(torch.cat([g.flatten() for g in gradients]).numpy())
    return np.stack(rows)


def smoothed(samples: Iterable[tuple[float, float]]) -> NoiseScale:
    scale = NoiseScale()
    for variance, signal in samples:
        scale.add(NoiseSample(variance, signal))
    return scale


def test_as_computed_from_single_examples() -> None:
    rows = example_gradients()
    mean = rows.mean(0)
    variance = float(((rows - mean) ** 2).sum() / (NUM_EXAMPLES - 1))
    signal = float(mean @ mean) - variance / NUM_EXAMPLES  # of what the examples were drawn from
    scale = variance / signal
    steps = still_steps(epochs=150, batch_size=24, grain_size=4)
    samples = [result.noise for result in steps if result.noise is not None]
    assert len(samples) == len(steps)
    variances, signals = [s.variance for s in samples], [s.signal for s in samples]
    assert np.mean(variances) == pytest.approx(variance, rel=0.03)
    assert np.mean(signals) == pytest.approx(signal, rel=0.06)
    assert np.mean(variances) / np.mean(signals) == pytest.approx(scale, rel=0.08)
    low, high = smoothed((s.variance, s.signal) for s in samples).interval
    assert low is not None
    assert high is not None
    assert low < scale < high < 2.5 * low


@pytest.mark.parametrize("grain_size", [5, 24])
def test_one_step_is_the_formula(grain_size: int) -> None:
    """McCandlish et al. 2018, A.2 and A.3, by hand; also with a short last grain."""
    (result,) = still_steps(epochs=1, batch_size=NUM_EXAMPLES, grain_size=grain_size)
    rows = example_gradients()
    batch = Plan(
        num_examples=NUM_EXAMPLES, batch_size=NUM_EXAMPLES, grain_size=grain_size, seed=3
    ).batch(0)
    grains = [
        batch.grain(number)
        for number in range(batch.num_grains)
        if is_measured(number, batch.num_grains)
    ]
    assert len(grains) == 2
    small = np.mean([float((rows[g].mean(0) ** 2).sum()) for g in grains])
    inverse = np.mean([1.0 / len(g) for g in grains])
    big = float((rows.mean(0) ** 2).sum())
    variance = (small - big) / (inverse - 1.0 / NUM_EXAMPLES)
    assert result.noise is not None
    assert result.noise.variance == pytest.approx(variance, rel=1e-4)
    assert result.noise.signal == pytest.approx(big - variance / NUM_EXAMPLES, rel=1e-4)


def test_a_batch_of_one_grain_says_nothing() -> None:
    assert [r.noise for r in still_steps(epochs=1, batch_size=24, grain_size=24)] == [None] * 4


def test_weighted_grains_count_by_their_share() -> None:
    """A weight that is the number of examples changes nothing."""
    plain = still_steps(epochs=1, batch_size=20, grain_size=8)
    weighted = still_steps(
        epochs=1, batch_size=20, grain_size=8, weight=lambda batch: float(len(batch[0]))
    )
    assert [r.noise for r in plain] == [r.noise for r in weighted]
    assert average([(2.0, 0.0)]) is None  # a grain that counts for nothing has no gradient


@pytest.mark.parametrize("num_grains", range(1, 40))
def test_measured_grains_are_even_few_and_spread(num_grains: int) -> None:
    chosen = [n for n in range(num_grains) if is_measured(n, num_grains)]
    assert all(n % 2 == 0 for n in chosen)
    assert len(chosen) == (0 if num_grains == 1 else 1 if num_grains == 2 else 2)
    if num_grains >= 5:  # not both in the first half
        assert chosen[1] >= num_grains // 2 - 1


def test_overflow_is_left_out() -> None:
    assert sample(average([(math.inf, 0.5)]), 1.0, 10) is None
    assert sample(average([(1e300, 0.5)]), math.inf, 10) is None


# ---- smoothing


def test_interval_holds_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        low, high = smoothed(random.normal([40.0, 2.0], [30.0, 2.0], (150, 2))).interval
        assert low is not None
        held += low <= 40.0 / 2.0 and (high is None or high >= 40.0 / 2.0)
    assert 0.90 <= held / 300 <= 0.99


def test_interval_without_an_upper_end() -> None:
    """A gradient lost in the noise: the scale may be anything above."""
    random = np.random.default_rng(1)
    low, high = smoothed(random.normal([40.0, 0.0], [4.0, 5.0], (60, 2))).interval
    assert high is None
    assert low is not None
    assert low > 5.0


def test_few_steps_have_no_interval_and_noise_may_be_nothing() -> None:
    assert NoiseScale().fields() == {}
    few, many = smoothed([(-1.0, 2.0)] * 7), smoothed([(-1.0, 2.0)] * 37)
    assert not any(few.interval)
    assert few.value is None
    assert many.interval == (0.0, 0.0)
    assert many.fields()["noise_signal"] == pytest.approx(2.0)


def test_old_steps_are_forgotten() -> None:
    found = smoothed([(10.0, 1.0)] * 500 + [(100.0, 1.0)] * 500)
    assert found.value == pytest.approx(100.0, rel=0.01)


def test_state_goes_through_json() -> None:
    scale = smoothed((1.0 + 0.1 * i, 1.0 / (i + 1)) for i in range(20))
    again = NoiseScale(**json.loads(json.dumps(scale.state())))
    assert again == scale
    again.add(NoiseSample(1.0, 1.0))
    assert again != scale


# ---- a run


def test_runs_record_it(tmp_path: Path) -> None:
    """On digits, of the order that McCandlish et al. found on MNIST (a run's average of 900)."""
    result, folder = train(Request(recipe="digits", num_workers=1, epochs=12, out=tmp_path / "run"))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "train_loss" in line]
    scales = [line["noise_scale"] for line in steps if line["noise_scale"] is not None]
    assert len(scales) > 0.9 * len(steps)
    assert 90 < np.mean(scales) < 9000
    for name in ("noise_scale", "noise_low", "noise_high"):
        assert getattr(result, name) == steps[-1][name]


def test_its_norms_are_taken_of_few_grains(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it costs is bounded: two norms of the gradient a step, however many grains."""
    counts: list[int] = []
    true_norms = GradientSum.squared_norms

    def watched(self: GradientSum) -> list[float]:
        counts.append(len(true_norms(self)))
        return true_norms(self)

    monkeypatch.setattr(GradientSum, "squared_norms", watched)
    still_steps(epochs=1, batch_size=96, grain_size=3)
    assert counts == [2]
