"""What the classifiers' scores say: AUC and accuracy with intervals, paired comparisons, a verdict.

In: scores of every real nodule by classifiers that have not seen it, for every arm, share of the
real data and seed; classes, folds and groups. Out: frozen dataclasses. Guaranteed: the same numbers
from the same scores, every time; nodules of one group are drawn together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samepath.console import count
from samepath.keys import key

Floats = NDArray[np.float64]

ARMS = {
    "real": "real nodules",
    "augmented": "real, with classical augmentation",
    "generated": "real and generated",
    "both": "real and generated, with augmentation",
    "synthetic": "generated alone",
}
"""What a classifier is trained on, by name."""
QUESTIONS = (("generated", "real"), ("both", "augmented"))
"""What the verdict is about: each of these against what it adds generated nodules to."""
PAIRS = (*QUESTIONS, ("augmented", "real"), ("synthetic", "real"))
RESAMPLES = 4000
LEVEL = 0.05
MIN_SEEDS = 3
"""Of fewer the verdict is not certain."""


class ArmSetting(NamedTuple):
    """An arm at a share of the real nodules."""

    arm: str
    percent: int


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over folds and seeds, and where it lies with 95% over other nodules and seeds."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """One setting, on untouched real nodules."""

    arm: str
    percent: int
    num_real: int
    """Real nodules that a classifier was trained on (mean over folds)."""
    num_generated: int
    auc: Estimate
    accuracy: Estimate


@dataclass(frozen=True, kw_only=True)
class PairResult:
    """An arm against another at the same share: differences of AUC and accuracy."""

    arm: str
    against: str
    percent: int
    auc: Estimate
    accuracy: Estimate
    p: float
    """Of no difference in AUC: two-sided, from the same resamples of nodules and seeds."""
    p_folds: float
    """The same by Student's t over folds (seeds averaged), with Nadeau and Bengio's variance."""
    p_corrected: float | None
    """`p` after Holm's correction over all questions; None for other pairs."""


class Scored(NamedTuple):
    """Scores of real nodules, and what is known of these."""

    scores: Mapping[ArmSetting, Floats]
    """(seeds, nodules): class 1 is said above 0."""
    label: NDArray[np.int64]
    """0 or 1."""
    fold: NDArray[np.int64]
    """From 1: the fold that held it out."""
    groups: Sequence[str]


def compare(
    scored: Scored, sizes: Mapping[ArmSetting, tuple[int, int]]
) -> tuple[list[ArmResult], list[PairResult]]:
    """Every setting, and every pair. `sizes`: real and generated nodules trained on."""
    settings = list(scored.scores)
    per_fold = {each: _per_fold(scored, scored.scores[each], None) for each in settings}
    drawn = _resampled(scored, settings)
    arms = [
        ArmResult(
            arm=each.arm,
            percent=each.percent,
            num_real=sizes[each][0],
            num_generated=sizes[each][1],
            auc=_estimate(per_fold[each][0], drawn[each][0]),
            accuracy=_estimate(per_fold[each][1], drawn[each][1]),
        )
        for each in settings
    ]
    share = 1.0 / max(len(np.unique(scored.fold)) - 1, 1)  # held out per nodule trained on
    pairs = []
    for percent in sorted({each.percent for each in settings}):
        for arm, against in PAIRS:
            one, other = ArmSetting(arm, percent), ArmSetting(against, percent)
            if one not in scored.scores or other not in scored.scores:
                continue
            parts = [per_fold[one][n] - per_fold[other][n] for n in (0, 1)]
            resampled = [drawn[one][n] - drawn[other][n] for n in (0, 1)]
            pairs.append(
                PairResult(
                    arm=arm,
                    against=against,
                    percent=percent,
                    auc=_estimate(parts[0], resampled[0]),
                    accuracy=_estimate(parts[1], resampled[1]),
                    p=_two_sided(resampled[0]),
                    p_folds=_corrected_t(parts[0].mean(0), share),
                    p_corrected=None,
                )
            )
    return arms, _holm(pairs)


def verdict(pairs: Sequence[PairResult], num_seeds: int) -> str:
    """Whether generated nodules helped, in one to three sentences. A difference is found where both
    tests find it, that over resamples and that over folds."""
    asked = [pair for pair in pairs if pair.p_corrected is not None]
    if not asked:
        return "Nothing was asked about generated nodules: no arm has them beside real ones."
    found = [pair for pair in asked if (pair.p_corrected or 0.0) < LEVEL]
    sure = [pair for pair in found if pair.p_folds < LEVEL and num_seeds >= MIN_SEEDS]
    if sure:
        return _said_of(sure, asked)
    if found:
        why = (
            f"with {count(num_seeds, 'seed')} (give at least {MIN_SEEDS})"
            if num_seeds < MIN_SEEDS
            else "the test over folds does not agree"
        )
        return f"Not certain, {why}: {'; '.join(_said(pair) for pair in found)}."
    most = max(asked, key=lambda pair: pair.auc.mean)
    few = f" {count(num_seeds, 'seed')} may be too few to see any." * (num_seeds < MIN_SEEDS)
    return (
        "It did not help: generated nodules changed the AUC by no more than chance would (p < "
        f"{LEVEL:g}, corrected for {count(len(asked), 'comparison')}).{few} Largest gain: "
        f"{_said(most)}."
    )


def _said_of(sure: Sequence[PairResult], asked: Sequence[PairResult]) -> str:
    """What was found for certain."""
    better = [_said(pair) for pair in sure if pair.auc.mean > 0]
    worse = [_said(pair) for pair in sure if pair.auc.mean < 0]
    if better and worse:
        return f"It depends. Generated nodules helped {'; '.join(better)}; they hurt " + (
            "; ".join(worse) + "."
        )
    if better:
        rest = len(asked) - len(better)
        said = f"They helped: {'; '.join(better)}."
        return said + (
            f" In {rest} of {len(asked)} comparisons no certain difference was found." * (rest > 0)
        )
    return f"They did not help, they hurt: {'; '.join(worse)}."


def _said(pair: PairResult) -> str:
    beside = {"real": "beside real ones", "augmented": "beside augmented real ones"}[pair.against]
    change = pair.auc
    return (
        f"{beside} at {pair.percent}% of the data, AUC {change.mean:+.3f} (95%: {change.low:+.3f} "
        f"to {change.high:+.3f}, p {pair.p_corrected:.2g}, over folds {pair.p_folds:.2g})"
    )


# ---- AUC


def _per_fold(scored: Scored, scores: Floats, weights: Floats | None) -> tuple[Floats, Floats]:
    """(seeds, folds) AUCs and accuracies, of nodules that count as the weights say."""
    aucs, accuracies = [], []
    for fold in np.unique(scored.fold):
        rows = np.flatnonzero(scored.fold == fold)
        weight = np.ones(len(rows)) if weights is None else weights[rows]
        label = scored.label[rows] == 1
        right = (scores[:, rows] > 0) == label
        accuracies.append(right @ weight / weight.sum())
        wins = _wins(scores[:, rows], label)
        positive, negative = weight[label], weight[~label]
        with np.errstate(invalid="ignore"):  # a resample may lack a class in a fold
            aucs.append(positive @ wins @ negative / (positive.sum() * negative.sum()))
    return np.stack(aucs, axis=1), np.stack(accuracies, axis=1)


def _wins(scores: Floats, label: NDArray[np.bool_]) -> Floats:
    """(seeds, positives, negatives): 1 where the positive has the higher score, 1/2 for a tie."""
    positive, negative = scores[:, label, None], scores[:, None, ~label]
    wins: Floats = (positive > negative) + 0.5 * (positive == negative)
    return wins


def _resampled(
    scored: Scored, settings: Sequence[ArmSetting]
) -> dict[ArmSetting, tuple[Floats, Floats]]:
    """(resamples,) mean AUC and accuracy of each setting, all on the same draws of nodules (by
    whole groups, within folds, and within classes where groups have one) and of seeds."""
    random = np.random.default_rng(key("worth", len(scored.label)))
    weights = _weights(scored, random)
    num_seeds = len(next(iter(scored.scores.values())))
    seeds = random.multinomial(num_seeds, [1 / num_seeds] * num_seeds, RESAMPLES) / num_seeds
    sums = {each: [np.zeros(RESAMPLES), np.zeros(RESAMPLES)] for each in settings}
    folds = np.unique(scored.fold)
    counted = np.zeros(RESAMPLES)
    for fold in folds:
        rows = np.flatnonzero(scored.fold == fold)
        label, weight = scored.label[rows] == 1, weights[:, rows]
        positive, negative = weight[:, label], weight[:, ~label]
        pairs = positive.sum(1) * negative.sum(1)
        whole = pairs > 0
        counted += whole
        for each in settings:
            scores = scored.scores[each][:, rows]
            wins = np.tensordot(positive, _wins(scores, label), axes=(1, 1))  # (B, seeds, negative)
            auc = np.einsum("bsn,bn->bs", wins, negative) / np.where(whole, pairs, 1.0)[:, None]
            right = ((scores > 0) == label).astype(np.float64)
            accuracy = weight @ right.T / np.maximum(weight.sum(1), 1.0)[:, None]
            sums[each][0] += np.where(whole, (auc * seeds).sum(1), 0.0)
            sums[each][1] += (accuracy * seeds).sum(1)
    return {
        each: (auc / np.maximum(counted, 1.0), accuracy / len(folds))
        for each, (auc, accuracy) in sums.items()
    }


def _weights(scored: Scored, random: np.random.Generator) -> Floats:
    """(resamples, nodules): how often each was drawn."""
    names, group = np.unique(np.asarray(scored.groups, dtype=np.str_), return_inverse=True)
    first = np.array([np.flatnonzero(group == number)[0] for number in range(len(names))])
    mixed = any(len(set(scored.label[group == number])) > 1 for number in range(len(names)))
    stratum = scored.fold[first] * 2 + (0 if mixed else scored.label[first])
    drawn = np.zeros((RESAMPLES, len(names)))
    for each in np.unique(stratum):
        members = np.flatnonzero(stratum == each)
        share = np.full(len(members), 1.0 / len(members))
        drawn[:, members] = random.multinomial(len(members), share, RESAMPLES)
    return drawn[:, group]


def _estimate(values: Floats, resampled: Floats) -> Estimate:
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Estimate(mean=float(values.mean()), low=float(low), high=float(high))


# ---- tests


def _two_sided(resampled: Floats) -> float:
    below, above = (resampled <= 0).sum(), (resampled >= 0).sum()
    return float(min(1.0, 2.0 * (min(below, above) + 1) / (len(resampled) + 1)))


def _corrected_t(differences: Floats, share: float) -> float:
    """Student's t over folds, whose training parts overlap (Nadeau and Bengio 2003, eq. 7)."""
    from scipy.stats import t

    number, spread = len(differences), float(differences.std(ddof=1))
    if spread == 0.0:
        return 1.0 if float(differences.mean()) == 0.0 else 0.0
    statistic = float(differences.mean()) / (spread * math.sqrt(1 / number + share))
    return float(2.0 * t.sf(abs(statistic), number - 1))


def _holm(pairs: Sequence[PairResult]) -> list[PairResult]:
    """The pairs, those of the questions with p corrected for their number (Holm 1979)."""
    asked = [n for n, pair in enumerate(pairs) if (pair.arm, pair.against) in QUESTIONS]
    corrected: dict[int, float] = {}
    largest = 0.0
    for place, number in enumerate(sorted(asked, key=lambda n: pairs[n].p)):
        largest = max(largest, min(1.0, (len(asked) - place) * pairs[number].p))
        corrected[number] = largest
    return [replace(pair, p_corrected=corrected.get(n)) for n, pair in enumerate(pairs)]
