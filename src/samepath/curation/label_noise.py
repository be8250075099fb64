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

T has few numbers, for a judge's own confusions would else be taken for noise: a share of wrong
labels, spread evenly over the other classes, or partly that and partly to one partner of each
class. In the second case p is first freed of the noise that its model has learned (p T^-1, Patrini
et al.). There are up to four starts; the likeliest is taken, less what its numbers cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from samepath.keys import key, keys_for

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LEAST = 1e-6
_LEAST_FREED = 1e-3
"""Least probability where the noise that a model has learned was taken out of its predictions."""
_BEGIN = 0.05
"""Share of wrong labels that the search begins with."""
_AGAINST_NOISE = 2.0
"""Right labels of every class that are seen before any example is."""
_ALIKE = 20.0
"""Wrong labels of every class, spread evenly, that are seen before any example."""
_NO_OFFSET = 1.0
_ROUNDS = 6
_ANCHORS = 0.2
"""The surest predictions of a class, whose labels are counted for a start."""
_ANCHORS_COST = 60.0
"""Nats by which that start must be likelier: with a weak judge it takes errors for noise."""
_RESAMPLES = 20
_MOST_RESAMPLED = 5000
"""Examples of a resample; of more, the interval is narrowed as the square root says."""
_LEAST_WRONG = 1 / 3
"""An example is not dropped for less, unless a budget or a precision asks for it."""


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


def label_noise(probabilities: NDArray[np.floating], labels: Ints, *, seed: int = 0) -> LabelNoise:
    """What is believed of labels, numbered from 0, by out-of-sample probabilities."""
    with threadpool_limits(1, user_api="blas"):  # the same bits whatever the number of cores
        return _label_noise(probabilities, labels, seed)


def _label_noise(probabilities: NDArray[np.floating], labels: Ints, seed: int) -> LabelNoise:
    number, classes = probabilities.shape
    rows = np.arange(number)
    if classes < 2:
        none = np.zeros((classes, classes))
        return LabelNoise(
            rate=0.0, reach=0.0, confusion=none + 1, counts=none + number, counts_reach=none,
            sharpness=1.0, belief=np.ones((number, classes)), wrong=np.zeros(number),
        )  # fmt: skip
    best = _best(np.maximum(probabilities, _LEAST, dtype=np.float64), labels)
    belief = best.belief(best.logs, labels)
    wrong = 1.0 - belief[rows, labels]
    size = min(number, _MOST_RESAMPLED)
    rates, tables = [], []
    for again in range(_RESAMPLES):
        draws = keys_for(key("label noise", seed), np.arange(size) + again * size)
        some = (draws % np.uint64(number)).astype(np.int64)
        theirs = _fit(best.logs[some], labels[some], best.others, best)
        table = _counts(theirs.belief(best.logs[some], labels[some]), labels[some]) / size
        rates.append(1.0 - np.trace(table))
        tables.append(table)
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
    )


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
class _Fitted:
    """The two steps."""

    logs: Floats
    """What the first begins with: log p, or that freed of noise."""
    values: Floats
    """log a, b, and the logit of the share of wrong labels."""
    others: Floats
    """(C, C): which class a wrong label is of."""
    loss: float
    """Minus the logarithm of the likelihood."""

    @property
    def sharpness(self) -> float:
        return float(np.exp(self.values[0]))

    @property
    def confusion(self) -> Floats:
        share = 1.0 / (1.0 + np.exp(-self.values[-1]))
        found: Floats = share * self.others + (1.0 - share) * np.eye(len(self.others))
        return found

    def belief(self, logs: Floats, labels: Ints) -> Floats:
        """Which class is right, given the label."""
        joint = _softmax(self.sharpness * logs + self.values[1:-1]) * self.confusion[:, labels].T
        found: Floats = joint / joint.sum(1, keepdims=True)
        return found


def _softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    found: Floats = powers / powers.sum(1, keepdims=True)
    return found


def _counts(belief: Floats, labels: Ints) -> Floats:
    """(C, C): examples by the class believed and the label written."""
    from scipy.sparse import csr_array

    written = csr_array((np.ones(len(labels)), (np.arange(len(labels)), labels)), belief.shape)
    found: Floats = (written.T @ belief).T
    return found


def _best(probabilities: Floats, labels: Ints) -> _Fitted:
    """The likeliest of several starts, less what each costs."""
    classes = probabilities.shape[1]
    logs = np.log(probabilities)
    even = _spread(np.zeros((classes, classes)))
    alike = _fit(logs, labels, even, None)
    if classes == 2:  # the other class is the only partner
        return alike
    free = alike
    for _ in range(_ROUNDS):
        free = _fit(logs, labels, _spread(_counts(free.belief(logs, labels), labels)), free)
    partners = _with_partners(logs, labels, free)
    freed = _with_partners(_freed(probabilities, partners), labels, partners)
    cost = classes * float(np.log(classes - 1)) + 1.0
    found = [(alike.loss, alike), (partners.loss + cost, partners), (freed.loss + cost, freed)]
    anchors = _anchors(probabilities, labels)
    share = max(1.0 - float(np.diag(anchors).mean()), _BEGIN)
    start = np.concatenate([np.zeros(classes + 1), [np.log(share / (1.0 - share))]])
    now = _Fitted(logs, start, _spread(anchors * len(labels) / classes), 0.0)
    logs = np.log(_normal(probabilities @ np.linalg.pinv(anchors)))
    now = _fit(logs, labels, now.others, now)
    for _ in range(3):
        now = _with_partners(logs, labels, now)
        found.append((now.loss + _ANCHORS_COST, now))
        logs = _freed(probabilities, now)
    return min(found, key=lambda each: each[0])[1]


def _spread(counts: Floats) -> Floats:
    """Which class a wrong label is of, by counts; even where there are few."""
    classes = len(counts)
    found: Floats = counts + _ALIKE / (classes - 1)
    np.fill_diagonal(found, 0.0)
    shares: Floats = found / found.sum(1, keepdims=True)
    return shares


def _freed(probabilities: Floats, noise: _Fitted) -> Floats:
    """Logarithms of predictions without the noise that the model has learned."""
    return np.log(_normal(probabilities @ np.linalg.pinv(noise.confusion)))


def _normal(probabilities: Floats) -> Floats:
    cut = np.maximum(probabilities, _LEAST_FREED)
    found: Floats = cut / cut.sum(1, keepdims=True)
    return found


def _anchors(probabilities: Floats, labels: Ints) -> Floats:
    """(C, C): which labels the surest predictions of each class have."""
    classes = probabilities.shape[1]
    guesses = probabilities.argmax(1)
    found = 0.5 * np.eye(classes)
    for number in range(classes):
        mine = np.flatnonzero(guesses == number)
        most = max(int(_ANCHORS * len(mine)), 10)
        surest = mine[np.argsort(-probabilities[mine, number], kind="stable")[:most]]
        found[number] += np.bincount(labels[surest], minlength=classes)
    shares: Floats = found / found.sum(1, keepdims=True)
    return shares


def _with_partners(logs: Floats, labels: Ints, near: _Fitted) -> _Fitted:
    """Wrong labels are partly spread evenly, partly of one partner of each class."""
    classes, rows = logs.shape[1], np.arange(logs.shape[1])
    counts = _counts(near.belief(logs, labels), labels)
    np.fill_diagonal(counts, -1.0)
    partner = counts.argmax(1)
    for _ in range(_ROUNDS):
        np.fill_diagonal(counts, 0.0)
        even = 1.0 / (classes - 1)
        hit = counts[rows, partner].sum() / max(counts.sum(), _LEAST)
        part = max(0.0, (hit - even) / (1.0 - even))
        others = np.full((classes, classes), (1.0 - part) * even)
        others[rows, partner] += part
        np.fill_diagonal(others, 0.0)
        near = _fit(logs, labels, others, near)
        counts = _counts(near.belief(logs, labels), labels)
    return near


def _fit(logs: Floats, labels: Ints, others: Floats, near: _Fitted | None) -> _Fitted:
    """a, b and the share of wrong labels of the highest posterior, looked for from `near`."""
    from scipy.optimize import minimize

    number, classes = logs.shape
    written = others[:, labels].T
    rows = np.arange(number)

    def terms(values: Floats) -> tuple[Floats, float, Floats, Floats]:
        guess = _softmax(np.exp(values[0]) * logs + values[1:-1])
        share = float(1.0 / (1.0 + np.exp(-values[-1])))
        joint = share * guess * written
        joint[rows, labels] += (1.0 - share) * guess[rows, labels]
        return guess, share, joint, joint.sum(1) + 1e-12

    def loss(values: Floats) -> tuple[float, Floats]:
        guess, share, joint, likely = terms(values)
        by_logit = guess - joint / likely[:, None]
        right = float((joint[rows, labels] / likely).sum())
        total = -np.log(likely).sum() + 0.5 * _NO_OFFSET * float((values[1:-1] ** 2).sum())
        total += _AGAINST_NOISE * classes * np.logaddexp(0.0, values[-1])
        slope = np.concatenate(
            [
                [(by_logit * logs).sum() * np.exp(values[0])],
                by_logit.sum(0) + _NO_OFFSET * values[1:-1],
                [right * share - (number - right) * (1.0 - share)],
            ]
        )
        slope[-1] += _AGAINST_NOISE * classes * share
        return total / number, slope / number

    begin = np.concatenate([np.zeros(classes + 1), [np.log(_BEGIN / (1.0 - _BEGIN))]])
    start = begin if near is None else near.values
    found: Any = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 300})
    return _Fitted(logs, found.x, others, -float(np.log(terms(found.x)[3]).sum()))
