"""How many labels are wrong, which is written for which, and whose.

In: for each example the probabilities that a model which has not seen it gives the classes, and its
label. Out: LabelNoise; `sized` says which examples to take for wrong. Guaranteed: the same arrays
and seed give the same answer.

A model that was trained on labels some of which are wrong, and judged on others it has not seen,
predicts labels as they are written. They are taken to come about in two steps: the right class k
has the probability softmax(a log p + b)_k, where p is what the model says, and is then written as
class j with the probability T_kj (Dawid and Skene 1979 and Patrini et al. 2017 have the same two
steps, with T from experts and from a network). T is found because the first step can be as sure as
it likes: what even the surest predictions disagree with is noise. So a weak judge is not taken for
noise, nor noise for a weak judge: the one is in a, the other in T.

T has as few numbers as the labels allow: a judge's own confusions would else be taken for noise. A
class has a share of wrong labels, and these are spread over the other classes. The shares are drawn
from a beta distribution (its logits nearly from a normal one), the spread from a Dirichlet
distribution whose mean is even, or partly that and partly one partner of each class. How alike the
classes are (the concentrations of both) and which mean it is are found by the evidence of the
counts: noise may be alike in all classes, or in one alone. p is freed of the noise that its model
has learned (p T^-1, Patrini et al.), as far as it allows. There are several starts: noise alike in
all classes, noise that differs, and the confident joint (Northcutt et al. 2021). Of what they lead
to that is taken which has the highest likelihood, less what its numbers cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from samepath.keys import key, keys_for

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LEAST = 1e-6
_LEAST_FREED = 0.05
"""What is left at least of a probability that is freed of noise."""
_BEGIN = 0.05
"""Share of wrong labels that the search begins with."""
_LEAST_SHARE = 1e-3
_AGAINST_NOISE = 2.0
"""Right labels of every class that are seen before any example is."""
_SHARES_ALIKE = (5.0, 50.0, 500.0, 5000.0)
"""Examples of every class, with the shares of all classes, that are seen before; one is chosen."""
_SPREADS_ALIKE = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
"""Wrong labels of every class, spread as the mean is, that are seen before; one is chosen."""
_NO_OFFSET = 1.0
_ROUNDS = 5
_STEPS = 40
_MOST_TRIED, _MOST_NUMBERS = 10_000, 250_000
"""Examples that the starts are tried on (what is found is then fitted to all); and probabilities
that these and a resample may have."""
_SETTLED = 0.05
"""A search ends when a round changes the loss by less, in nats."""
_RESAMPLES = 20
_RESAMPLE_STEPS = 15
_MOST_RESAMPLED = 5000
"""Examples of a resample; of more, the interval is narrowed as the square root says."""
_LEAST_WRONG = 1 / 3
"""An example is not dropped for less, unless a budget or a precision asks for it."""

JUDGE = 2
"""Counts what the judge has been: results of another are not taken from a cache."""
Told = Callable[[int, int], None]
"""Called with how many parts are done, and of how many."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelNoise:
    """What is believed of the labels."""

    rate: float
    """The share of wrong labels."""
    reach: float
    """Half of its 95% interval, as far as chance goes (bootstrap): the model may be wrong too."""
    confusion: Floats
    """(C, C): of the class of the row, the share that is written as the class of the column."""
    counts: Floats
    """(C, C): examples of the class of the row that are written as that of the column."""
    counts_reach: Floats
    """Half of their 95% intervals, likewise."""
    sharpness: float
    """Above 1: the judge is surer than it says."""
    belief: Floats
    """(N, C): which class is right, given the label."""
    wrong: Floats
    """How likely each label is wrong."""
    contradicted: NDArray[np.bool_]
    """Labels against which the judge is as sure of another class as it is of that class's own
    labels in the mean (the confident joint): wrong ones, and errors of a weak judge."""


def label_noise(
    probabilities: NDArray[np.floating], labels: Ints, *, seed: int = 0, told: Told | None = None
) -> LabelNoise:
    """What is believed of labels, numbered from 0, by out-of-sample probabilities."""
    with threadpool_limits(1, user_api="blas"):  # the same bits whatever the number of cores
        return _label_noise(probabilities, labels, seed, told or (lambda done, total: None))


def _label_noise(
    probabilities: NDArray[np.floating], labels: Ints, seed: int, told: Told
) -> LabelNoise:
    number, classes = probabilities.shape
    rows = np.arange(number)
    if classes < 2:
        none = np.zeros((classes, classes))
        return LabelNoise(
            rate=0.0, reach=0.0, confusion=none + 1, counts=none + number, counts_reach=none,
            sharpness=1.0, belief=np.ones((number, classes)), wrong=np.zeros(number),
            contradicted=np.zeros(number, dtype=bool),
        )  # fmt: skip
    steps = _Steps(told, 3 * _ROUNDS + 1 + _RESAMPLES)
    least = np.maximum(probabilities, _LEAST, dtype=np.float64)
    best = _best(least, labels, seed, steps)
    logs = best.logs(least)
    belief = best.belief(logs, labels)
    wrong = 1.0 - belief[rows, labels]
    size = min(number, _MOST_RESAMPLED, _MOST_NUMBERS // classes)
    rates, tables = [], []
    for again in range(_RESAMPLES):
        some = _drawn(key("label noise", seed), np.arange(size) + again * size, number)
        theirs = _fit(logs[some], labels[some], best, _RESAMPLE_STEPS)
        rates.append(1.0 - np.trace(theirs.counts) / size)
        tables.append(theirs.counts / size)
        steps.next()
    narrow = 1.96 * np.sqrt(size / number)
    return LabelNoise(
        rate=float(wrong.mean()),
        reach=float(narrow * np.std(rates, ddof=1)),
        confusion=best.confusion,
        counts=_counts(belief, labels),
        counts_reach=narrow * number * np.std(tables, axis=0, ddof=1),
        sharpness=best.sharpness,
        belief=belief,
        wrong=wrong,
        contradicted=_joint(least, labels)[1],
    )


def _drawn(word: int, numbers: Ints, below: int) -> Ints:
    found: Ints = (keys_for(word, numbers) % np.uint64(below)).astype(np.int64)
    return found


class _Steps:
    """Counts what is done."""

    def __init__(self, told: Told, total: int) -> None:
        self._told, self._total, self._done = told, total, 0
        told(0, total)

    def next(self, number: int = 1) -> None:
        self._done += number
        self._told(self._done, self._total)


def sized(
    wrong: NDArray[np.floating], *, budget: float | None = None, precision: float | None = None
) -> NDArray[np.bool_]:
    """The examples to take for wrong, the likeliest first: as many as make the expected F1 highest;
    or `budget` of them (below 1: of all examples that share); or as many as are wrong with this
    `precision` in the mean, as far as the estimate is right."""
    order = np.argsort(-wrong, kind="stable")
    right = np.cumsum(wrong[order])
    numbers = np.arange(1, len(wrong) + 1)
    if budget is not None:
        most = round(budget * len(wrong)) if budget < 1 else int(budget)
    elif precision is not None:
        most = int((right / numbers >= precision).sum())  # the mean falls along the order
    else:
        expected = 2.0 * right / (numbers + right[-1])
        most = min(int(expected.argmax()) + 1, int((wrong >= _LEAST_WRONG).sum()))
    chosen = np.zeros(len(wrong), dtype=bool)
    chosen[order[:most]] = True
    return chosen


# ---- the two steps


@dataclass(frozen=True, eq=False)
class _Alike:
    """What is believed of the classes before any of them is seen."""

    share: float
    shares: float
    """Examples of each class that this share is worth."""
    spread: Floats
    """(C, C): wrong labels of the row's class that are seen before, by the class written."""
    cost: float = 0.0
    """Nats, for partners."""

    def evidence(self, counts: Floats) -> float:
        """Logarithm of how likely labels are written like this, whatever the numbers of T."""
        from scipy.special import gammaln

        wrong, right = _off(counts).sum(1), np.diag(counts)
        seen, off = self.seen, ~np.eye(len(counts), dtype=bool)
        before = self.spread.sum(1)
        shares = _beta(seen[0] + wrong, seen[1] + right) - _beta(*seen)
        spread = gammaln(self.spread[off] + counts[off]) - gammaln(self.spread[off])
        whole = gammaln(before) - gammaln(before + wrong)
        return float(shares.sum() + spread.sum() + whole.sum()) - self.cost

    @property
    def width(self) -> float:
        """The deviation of the logits of shares that belongs to `shares`, nearly."""
        return float(np.sqrt(1.0 / (self.shares * self.share * (1.0 - self.share))))

    @property
    def seen(self) -> tuple[float, float]:
        """Wrong and right labels of each class that are seen before."""
        return self.shares * self.share, self.shares * (1.0 - self.share) + _AGAINST_NOISE


def _beta(one: Any, other: Any) -> Any:
    from scipy.special import gammaln

    return gammaln(one) + gammaln(other) - gammaln(one + other)


@dataclass(frozen=True, eq=False)
class _Fitted:
    """The two steps."""

    values: Floats
    """log a, b, the logits of the shares of wrong labels, and the logarithms of their spread."""
    alike: _Alike
    counts: Floats
    """(C, C): examples by the class believed and the label written."""
    loss: float = np.inf
    """Minus the logarithm of the likelihood, with what b costs."""
    learned: Floats | None = None
    """(C, C): the noise that the judge's predictions are freed of."""

    @property
    def sharpness(self) -> float:
        return float(np.exp(self.values[0]))

    @property
    def confusion(self) -> Floats:
        share, spread = _noise(self.values, len(self.counts))
        return share[:, None] * spread + np.diag(1.0 - share)

    @property
    def score(self) -> float:
        """The loss, and what the numbers of T cost."""
        total = self.counts.sum(1, keepdims=True)
        shares = np.maximum(self.counts, 1e-12) / np.maximum(total, 1e-12)
        return self.loss + float((self.counts * np.log(shares)).sum()) - self._evidence()

    def _evidence(self) -> float:
        return self.alike.evidence(self.counts)

    def logs(self, probabilities: Floats) -> Floats:
        """What the first step begins with: log p, or that freed of noise."""
        if self.learned is None:
            return np.log(probabilities)
        freed = probabilities @ np.linalg.pinv(self.learned)
        freed = np.maximum(freed, _LEAST_FREED * probabilities)
        logs: Floats = np.log(freed / freed.sum(1, keepdims=True))
        return logs

    def belief(self, logs: Floats, labels: Ints) -> Floats:
        """Which class is right, given the label."""
        classes = len(self.counts)
        joint = _softmax(self.sharpness * logs + self.values[1 : classes + 1])
        joint *= self.confusion.T[labels]
        joint /= joint.sum(1, keepdims=True)
        return joint


def _softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    found: Floats = powers / powers.sum(1, keepdims=True)
    return found


def _noise(values: Floats, classes: int) -> tuple[Floats, Floats]:
    """The share of wrong labels of each class, and (C, C) what they are written as."""
    logits = values[2 * classes + 1 :].reshape(classes, classes).copy()
    np.fill_diagonal(logits, -np.inf)
    return 1.0 / (1.0 + np.exp(-values[classes + 1 : 2 * classes + 1])), _softmax(logits)


def _off(counts: Floats) -> Floats:
    off = counts.copy()
    np.fill_diagonal(off, 0.0)
    return off


def _written(labels: Ints, classes: int) -> Any:
    """(C, N): 1 where the label is that class."""
    from scipy.sparse import csr_array

    number = len(labels)
    return csr_array((np.ones(number), (labels, np.arange(number))), (classes, number))


def _counts(belief: Floats, labels: Ints) -> Floats:
    """(C, C): examples by the class believed and the label written."""
    found: Floats = (_written(labels, belief.shape[1]) @ belief).T
    return found


def _best(probabilities: Floats, labels: Ints, seed: int, steps: _Steps) -> _Fitted:
    """The likeliest of several starts, less what its numbers cost."""
    number, classes = probabilities.shape
    few, theirs = probabilities, labels
    most = min(_MOST_TRIED, _MOST_NUMBERS // classes)
    if number > most:
        order = np.argsort(keys_for(key("label noise starts", seed), np.arange(number)))
        some = np.sort(order[:most])
        few, theirs = probabilities[some], labels[some]
    even = np.full((classes, classes), _BEGIN / (classes - 1))
    np.fill_diagonal(even, 1.0 - _BEGIN)
    joint = _joint(few, theirs)[0] + 0.5 * np.eye(classes)
    begin = _start(even, learned=False)
    same = _Alike(_BEGIN, _SHARES_ALIKE[-1], _SPREADS_ALIKE[-1] * _off(even) / _BEGIN)
    plain = _search(few, theirs, begin, 2, steps)
    found = [
        _search(few, theirs, replace(begin, alike=same), 1, steps),
        plain,
        _search(few, theirs, replace(plain, learned=plain.confusion), _ROUNDS - 2, steps),
        _search(few, theirs, _start(joint / joint.sum(1, keepdims=True)), _ROUNDS, steps),
    ]
    best = min(found, key=lambda each: each.score)
    return _search(probabilities, labels, best, _ROUNDS, steps)


def _joint(probabilities: Floats, labels: Ints) -> tuple[Floats, NDArray[np.bool_]]:
    """The confident joint (C, C): examples of which the judge is as sure as it is of the class's
    own labels in the mean, by that class and by the label. And those of which the two differ."""
    number, classes = probabilities.shape
    own = np.bincount(labels, probabilities[np.arange(number), labels], minlength=classes)
    least = own / np.maximum(np.bincount(labels, minlength=classes), 1)
    sure = np.where(probabilities >= least, probabilities, 0.0)
    guess, known = sure.argmax(1), sure.max(1) > 0.0
    counts = np.zeros((classes, classes))
    np.add.at(counts, (guess[known], labels[known]), 1.0)
    return counts, known & (guess != labels)


def _start(confusion: Floats, *, learned: bool = True) -> _Fitted:
    """Where a search begins; shares of wrong labels differ, and they are spread unevenly."""
    classes = len(confusion)
    share = np.clip(1.0 - np.diag(confusion), _LEAST_SHARE, 0.9)
    logits = np.log(_off(confusion) + 1e-4)
    values = [np.zeros(classes + 1), np.log(share / (1.0 - share)), logits.ravel()]
    alike = _Alike(_BEGIN, 50.0, _off(np.ones((classes, classes))) / (classes - 1))
    noise = confusion if learned else None
    return _Fitted(np.concatenate(values), alike, np.eye(classes), learned=noise)


def _search(
    probabilities: Floats, labels: Ints, now: _Fitted, rounds: int, steps: _Steps
) -> _Fitted:
    """Fit, and see anew how alike the classes are, and what the judge has learned."""
    for done in range(1, rounds + 1):
        found = _fit(now.logs(probabilities), labels, now, _STEPS)
        settled = abs(found.loss - now.loss) < _SETTLED
        learned = None if now.learned is None else found.confusion
        now = replace(found, alike=_alike(found.counts), learned=learned)
        steps.next(1 if not settled else rounds - done + 1)
        if settled:
            break
    return now


def _alike(counts: Floats) -> _Alike:
    """How alike the classes are, by the evidence."""
    classes, rows = len(counts), np.arange(len(counts))
    off = _off(counts)
    shares = off.sum(1) / np.maximum(counts.sum(1), 1e-12)
    even = _off(np.full((classes, classes), 1.0 / (classes - 1)))
    partner = (off - np.eye(classes)).argmax(1)
    hit = off[rows, partner].sum() / max(off.sum(), 1e-12)
    part = max(0.0, (hit - even[0, 1]) / (1.0 - even[0, 1])) if classes > 2 else 0.0
    partners = (1.0 - part) * even
    partners[rows, partner] += part
    cost = classes * float(np.log(classes - 1)) + 1.0
    by_shares = [
        _Alike(max(float(share), _LEAST_SHARE), worth, even)
        for share in (off.sum() / counts.sum(), np.median(shares))
        for worth in _SHARES_ALIKE
    ]
    best = max(by_shares, key=lambda each: each.evidence(counts))
    by_spread = [
        replace(best, spread=many * spread, cost=dear)
        for many in _SPREADS_ALIKE
        for spread, dear in ((even, 0.0), (partners, cost))
    ]
    return max(by_spread, key=lambda each: each.evidence(counts))


def _fit(logs: Floats, labels: Ints, near: _Fitted, most_steps: int) -> _Fitted:
    """a, b and T of the highest posterior, looked for from `near`."""
    from scipy.optimize import minimize

    number, classes = logs.shape
    written, alike = _written(labels, classes), near.alike
    before, width = alike.spread.sum(1), alike.width
    logs = logs - logs.max(1, keepdims=True)  # of a sharp judge too, one power is near 1
    guess, belief, ones = np.empty_like(logs), np.empty_like(logs), np.ones(classes)
    first, last = classes + 1, 2 * classes + 1  # the logits of shares

    def values_of(point: Floats) -> Floats:
        """Logits of shares are a middle, and what each class differs from it over the width."""
        found = np.delete(point, first)
        found[first:last] = point[first] + width * found[first:last]
        return found

    def loss(point: Floats) -> tuple[float, Floats, Floats, float]:
        values = values_of(point)
        sharpness, offset, logits = float(np.exp(values[0])), values[1:first], values[first:last]
        apart = point[first + 1 : last + 1]
        share, spread = _noise(values, classes)
        confusion = share[:, None] * spread + np.diag(1.0 - share)
        np.multiply(logs, sharpness, out=guess)
        np.add(guess, offset, out=guess)
        np.exp(guess, out=guess)
        np.divide(guess, (guess @ ones)[:, None], out=guess)
        np.take(np.ascontiguousarray(confusion.T), labels, axis=0, out=belief, mode="clip")
        np.multiply(belief, guess, out=belief)
        likely = belief @ ones + 1e-300
        np.divide(belief, likely[:, None], out=belief)
        counts: Floats = (written @ belief).T
        own = -float(np.log(likely).sum()) + 0.5 * _NO_OFFSET * float((offset**2).sum())
        total = own + _AGAINST_NOISE * float(np.logaddexp(0.0, logits).sum())
        total += 0.5 * float((apart**2).sum())
        total -= float((alike.spread * np.log(np.maximum(spread, 1e-300))).sum())
        off = _off(counts)
        wrong = off.sum(1)
        np.subtract(guess, belief, out=guess)
        by_logit = share * (counts.sum(1) + _AGAINST_NOISE) - wrong
        slope = [
            [float(np.vdot(guess, logs)) * sharpness],
            np.ones(number) @ guess + _NO_OFFSET * offset,
            [by_logit.sum()],
            width * by_logit + apart,
            (spread * (wrong + before)[:, None] - off - alike.spread).ravel(),
        ]
        return total / number, np.concatenate(slope) / number, counts, own

    logits = near.values[first:last]
    middle = logits.mean()
    apart = (logits - middle) / width
    found: Any = minimize(
        lambda point: loss(point)[:2],
        np.concatenate([near.values[:first], [middle], apart, near.values[last:]]),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": most_steps, "ftol": 1e-8, "gtol": 1e-6},
    )
    counts, own = loss(found.x)[2:]
    return replace(near, values=values_of(found.x), counts=counts, loss=own)


# ---- in words

FEW_CONTRADICTED = 0.01
"""Of all labels: a judge that surely contradicts more of them does not call them clean."""


def none_seen(noise: Mapping[str, Any], number: int) -> str | None:
    """What to say of `label_noise` in curation.json where less than one wrong label is expected;
    None elsewhere."""
    if noise["rate_high"] * number >= 1:
        return None
    contradicted = noise.get("num_contradicted")
    if contradicted is None:  # of an older judge
        return "no wrong labels are seen"
    if contradicted <= FEW_CONTRADICTED * number:
        return "the labels look clean"
    return (
        f"no wrong ones can be told from the judge's own errors (it contradicts {contradicted:,} "
        f"of {number:,} labels: look at the most doubtful ones)"
    )
