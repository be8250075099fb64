"""The examples to drop, and why: label errors, outliers, duplicates, noise, as one decision each.

In: features after PCA, their map and nearest neighbours, labels, the inputs' digests, and the
network's own probabilities if it is a classifier. Out: a KeepList over all examples, with a cluster
and a reason for each ("" to keep it); facts about each class; the random control. A dropped example
has one reason, the most telling of those it has: duplicate, label error, near-duplicate, outlier,
noise; only what has none of them is sampled.

A network has seen the labels it is asked about and may have learned the wrong ones by heart.
Therefore two further judges that have not: the labels of the 50 nearest other examples, and a
logistic regression on the other four fifths of the data. An example's belief in a class is the
weighted geometric mean of the three (a class that one judge rules out is out), and its suspicion
grows as the belief in its own label falls below what is usual of its class (classes differ in how
easy they are; Northcutt et al. 2021 compare with class means for the same reason). Judges that are
often wrong must be surer: thresholds shrink with the square of their agreement with the labels
beyond chance. Weights and thresholds were chosen on digits and CIFAR-10 with labels flipped.

Exact duplicates have the same bytes; the first is kept. Near-duplicates must be close in both
senses: a tenth of what is usual between neighbours of their class, in features, and of what is
usual between inputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samepath.curation.cluster import LEAST_POINTS, ClassClustering, ClassClusters, sample_grid
from samepath.curation.embed import nearest
from samepath.curation.folder import Arrays
from samepath.curation.inputs import flat_inputs
from samepath.curation.request import FRACTION, CurateRequest, Subject
from samepath.data.keep_list import KeepList
from samepath.keys import key, keys_for

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Truths = NDArray[np.bool_]

DUPLICATE = "duplicate"
LABEL_ERROR = "label error"
NEAR_DUPLICATE = "near-duplicate"
OUTLIER = "outlier"
NOISE = "noise"
SAMPLED_OUT = "sampled out"
RANDOM = "random"
REASONS = (DUPLICATE, LABEL_ERROR, NEAR_DUPLICATE, OUTLIER, NOISE, SAMPLED_OUT)
"""In the order in which they are given."""

NUM_NEIGHBORS = 50
NUM_FOLDS = 5
NETWORK_WEIGHT, NEIGHBORS_WEIGHT, REGRESSION_WEIGHT = 2.0, 1.0, 2.0
_WRONG_BELOW = 0.15
"""Belief in the own label, over its class's median, below which it is wrong if another leads."""
_STRANGE_BELOW = 0.1
"""The same, if no other does."""
LEADS = 0.5
"""Belief with which a class leads."""
FAR = 4.0
FAR_NEIGHBORS = 10
NEAR = 0.1
_PAIRS = 512
_CANDIDATES = 5
"""Nearest neighbours that are looked at."""
_LEAST = 1e-4
_REGULARISATION = 0.01


# ---- the decision


def choose(
    request: CurateRequest,
    subject: Subject,
    mapped: Arrays,
    judged: Arrays,
    inputs: Arrays,
    previous: KeepList | None,
) -> tuple[KeepList, list[ClassClusters]]:
    """Decide about all examples, and say what was found of each class; what an earlier keep-list
    dropped stays so, for its reason."""
    number = subject.num_examples
    rows = np.arange(number) if previous is None else previous.rows
    labels = None if subject.labels is None else subject.labels[rows]
    groups = np.zeros(len(rows), dtype=np.int64) if labels is None else labels
    places = mapped["map"][rows]
    found: dict[str, Truths] = {}
    found[DUPLICATE], found[LABEL_ERROR] = exact_duplicates(inputs["digests"][rows], labels)
    found[OUTLIER] = far_from_all(mapped["distances"], groups)
    if judged:
        found[LABEL_ERROR] |= judged["flagged"]
        found[OUTLIER] |= judged["outliers"]
    clustering = ClassClustering(
        method="hdbscan" if request.method == "hdbscan" else "dbscan",
        eps=request.eps_by_label(subject.class_names),
        min_samples=request.min_samples,
    ).fit(places, labels)
    classes, clusters = clustering.classes_, clustering.labels_
    found[NEAR_DUPLICATE] = near_duplicates(
        mapped["neighbors"].astype(np.int64),
        mapped["distances"],
        groups,
        _to_centre(places, groups, clusters),
        lambda some: flat_inputs(subject.recipe.train, subject.recipe.collate, rows[some]),
        candidates=~(found[DUPLICATE] | found[LABEL_ERROR]),
        seed=request.seed,
    )
    if request.method == "grid":
        clean = ~np.logical_or.reduce(list(found.values()))
        found[SAMPLED_OUT], clusters = _grid(request, places, groups, clean, rows)
        for place, facts in enumerate(classes):
            cells = int(clusters[groups == (facts.label or 0)].max(initial=-1)) + 1
            classes[place] = replace(facts, eps=None, how="grid", num_clusters=cells)
    else:
        found[NOISE] = clusters < 0
    reasons = np.full(number, "", dtype=object)
    if previous is not None:
        reasons[:] = [reason or "dropped" for reason in previous.reasons]
    reasons[rows] = first_reasons(found, len(rows))
    whole = np.full(number, -1, dtype=np.int64)
    whole[rows] = clusters
    keep_list = KeepList(
        labels=subject.labels,
        positions=mapped["map"],
        clusters=whole,
        kept=np.array(reasons == "", dtype=bool),
        reasons=reasons.tolist(),
    )
    return keep_list, classes


def _grid(
    request: CurateRequest,
    places: NDArray[np.float32],
    groups: Ints,
    clean: Truths,
    rows: Ints,
) -> tuple[Truths, Ints]:
    """What a stratified sample leaves out, and cells: -1 for what was not there to be sampled."""
    out, cells = np.zeros(len(rows), dtype=bool), np.full(len(rows), -1, dtype=np.int64)
    for group in np.unique(groups):
        of_class = groups == group
        some = np.flatnonzero(of_class & clean)
        number = round((request.fraction or FRACTION) * int(of_class.sum()))
        kept, cell = sample_grid(places[some], number, examples=rows[some], seed=request.seed)
        out[some], cells[some] = ~kept, cell
    return out, cells


def _to_centre(places: NDArray[np.float32], groups: Ints, clusters: Ints) -> Floats:
    """Distance of each point on the map to the centre of its cluster; noise is farthest."""
    far = np.full(len(places), np.inf)
    for group in np.unique(groups):
        for cluster in range(int(clusters[groups == group].max(initial=-1)) + 1):
            some = (groups == group) & (clusters == cluster)
            points = places[some].astype(np.float64)
            far[some] = np.linalg.norm(points - points.mean(0), axis=1)
    return far


def first_reasons(found: dict[str, Truths], num_examples: int) -> NDArray[np.object_]:
    """The first reason of REASONS that holds for each example, or ""."""
    reasons = np.full(num_examples, "", dtype=object)
    for name in reversed([name for name in REASONS if name in found]):
        reasons[found[name]] = name
    return reasons


def random_control(keep_list: KeepList, candidates: Truths, seed: int) -> KeepList:
    """A keep-list of as many of each class as another keeps, chosen at random among candidates."""
    kept = np.zeros(len(keep_list), dtype=bool)
    groups = np.zeros(len(kept), np.int64) if keep_list.labels is None else keep_list.labels
    keys = keys_for(key("control", seed), np.arange(len(kept), dtype=np.int64))
    for group in np.unique(groups):
        rows = np.flatnonzero((groups == group) & candidates)
        number = int(keep_list.kept[groups == group].sum())
        kept[rows[np.argsort(keys[rows], kind="stable")[:number]]] = True
    return replace(keep_list, kept=kept, reasons=["" if one else RANDOM for one in kept])


# ---- labels and outliers


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelErrors:
    """What was found of each example."""

    flagged: Truths
    """Likely label errors."""
    outliers: Truths
    """Those that neither their own class nor another believes in."""
    suggested: Ints
    """The label that is believed most."""
    suspicion: NDArray[np.float32]
    """Between 0 and 1, high for what is likely wrong (either of the above): for ranking."""
    belief: NDArray[np.float32]
    """(N, C): the three judges' mean, by the classes in ascending order."""


def label_errors(
    reduced: NDArray[np.floating],
    labels: Ints,
    *,
    probabilities: NDArray[np.floating] | None = None,
    neighbors: Ints | None = None,
    distances: NDArray[np.floating] | None = None,
    seed: int = 0,
) -> LabelErrors:
    """Likely label errors among examples with these features (after PCA, say) and labels.

    `probabilities`: the network's, one column per label from 0. `neighbors`, `distances`: of each
    example without itself, nearest first, if they are known.
    """
    if neighbors is None or distances is None:
        neighbors, distances = nearest(reduced, reduced, NUM_NEIGHBORS + 1)
        neighbors, distances = neighbors[:, 1:], distances[:, 1:]
    classes, place = np.unique(labels, return_inverse=True)
    rows = np.arange(len(labels))
    judges: list[tuple[float, NDArray[Any]]] = [
        (NEIGHBORS_WEIGHT, neighbor_beliefs(place, neighbors, distances, len(classes))),
        (REGRESSION_WEIGHT, held_out_beliefs(reduced, place, len(classes), seed)),
    ]
    if probabilities is not None:
        judges.append((NETWORK_WEIGHT, probabilities[:, classes]))
    belief = _mean(judges)
    own = belief[rows, place]
    usual = np.array([np.median(own[place == c]) for c in range(len(classes))])
    relative = own / np.maximum(usual[place], _LEAST)
    others = belief.copy()
    others[rows, place] = -1.0
    leads = others.max(1, initial=-1.0) >= LEADS
    chance = 1.0 / len(classes)
    agreement = float((belief.argmax(1) == place).mean())
    trust = max(0.0, (agreement - chance) / max(1.0 - chance, chance)) ** 2
    judged = np.bincount(place)[place] >= LEAST_POINTS  # too few to know what is usual
    return LabelErrors(
        flagged=judged & leads & (relative < trust * _WRONG_BELOW),
        outliers=judged & ~leads & (relative < trust * _STRANGE_BELOW),
        suggested=classes[belief.argmax(1)],
        suspicion=(1.0 / (1.0 + relative)).astype(np.float32),
        belief=belief.astype(np.float32),
    )


def far_from_all(distances: NDArray[np.floating], groups: Ints) -> Truths:
    """Find examples that are much farther from their nearest examples than is usual of their class.

    `distances` to the nearest other examples. Much: by FAR deviations of the logarithms, estimated
    from their median, which strange examples do not move.
    """
    far = np.log(np.maximum(distances[:, :FAR_NEIGHBORS].mean(1), 1e-30))
    found = np.zeros(len(groups), dtype=bool)
    for group in np.unique(groups):
        mine = groups == group
        beyond = far[mine] - np.median(far[mine])
        deviation = max(1.4826 * float(np.median(np.abs(beyond))), 1e-6)
        found[mine] = (beyond > FAR * deviation) & (mine.sum() >= LEAST_POINTS)
    return found


def neighbor_beliefs(
    place: Ints, neighbors: Ints, distances: NDArray[np.floating], num_classes: int
) -> Floats:
    """The share of each class among the nearest other examples, nearer ones counting more."""
    neighbors, distances = neighbors[:, :NUM_NEIGHBORS], distances[:, :NUM_NEIGHBORS]
    weights = 1.0 / (distances + 1e-6 + 1e-3 * distances[:, -1:])
    beliefs = np.zeros((len(place), num_classes))
    for number in range(num_classes):
        beliefs[:, number] = (weights * (place[neighbors] == number)).sum(1)
    shares: Floats = beliefs / beliefs.sum(1, keepdims=True)
    return shares


def held_out_beliefs(
    reduced: NDArray[np.floating], place: Ints, num_classes: int, seed: int = 0
) -> Floats:
    """Probabilities of a logistic regression that has not seen the example, by five folds."""
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    scaled = (reduced - reduced.mean(0)) / np.maximum(reduced.std(0), 1e-12)
    beliefs = np.full((len(place), num_classes), 1.0 / num_classes)
    folds = _folds(place, seed)
    for fold in range(NUM_FOLDS):
        train, test = folds != fold, folds == fold
        known = np.unique(place[train])
        if not test.any() or len(known) < 2:
            continue
        model = LogisticRegression(C=_REGULARISATION, max_iter=200)
        with threadpool_limits(1, user_api="blas"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nearly converged will do
            found = model.fit(scaled[train], place[train]).predict_proba(scaled[test])
        beliefs[test] = 0.0
        beliefs[np.ix_(test, known)] = found
    return beliefs


def _folds(place: Ints, seed: int) -> Ints:
    """A fold for each example, every class spread evenly over them."""
    keys = keys_for(key("folds", seed), np.arange(len(place), dtype=np.int64))
    order = np.lexsort((keys, place))
    folds = np.empty(len(place), dtype=np.int64)
    folds[order] = np.arange(len(place)) % NUM_FOLDS
    return folds


def _mean(judges: list[tuple[float, NDArray[Any]]]) -> Floats:
    """The weighted geometric mean of beliefs, adding up to one."""
    total = sum(weight for weight, _ in judges)
    logs = sum(weight * np.log(np.maximum(p, _LEAST, dtype=np.float64)) for weight, p in judges)
    mean = np.exp(logs / total)
    belief: Floats = mean / mean.sum(1, keepdims=True)
    return belief


def exact_duplicates(digests: NDArray[np.uint8], labels: Ints | None) -> tuple[Truths, Truths]:
    """Copies of an earlier example with the same label; and copies whose label most others of the
    same inputs do not have (of a tie, the first label stands)."""
    _, group = np.unique(digests, axis=0, return_inverse=True)
    group = group.ravel()
    copies, contradicted = np.zeros(len(group), dtype=bool), np.zeros(len(group), dtype=bool)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        if len(rows) < 2:
            continue
        wrong = np.zeros(len(rows), dtype=bool)
        if labels is not None:
            found, first, counts = np.unique(labels[rows], return_index=True, return_counts=True)
            wrong = labels[rows] != found[np.lexsort((first, -counts))[0]]
        contradicted[rows[wrong]] = True
        copies[rows[~wrong][1:]] = True
    return copies, contradicted


def near_duplicates(
    neighbors: Ints,
    distances: NDArray[np.floating],
    groups: Ints,
    to_centre: NDArray[np.floating],
    inputs: Callable[[Ints], NDArray[np.float32]],
    *,
    candidates: Truths,
    seed: int = 0,
) -> Truths:
    """Find examples that are nearly another example of the same group; of such, the one nearest to
    its cluster's centre is not among them.

    `neighbors`, `distances`: in feature space, without oneself, nearest first. `groups`: classes.
    `inputs(rows)`: inputs as rows of numbers. Only `candidates` are looked at.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    dropped = np.zeros(len(groups), dtype=bool)
    pairs = _close_pairs(neighbors, distances, groups, candidates)
    if not len(pairs):
        return dropped
    sample = np.argsort(keys_for(key("pairs", seed), np.arange(len(groups))))[: 2 * _PAIRS]
    shown = inputs(np.sort(sample))
    half = len(shown) // 2
    usual = np.median(np.linalg.norm(shown[:half] - shown[half : 2 * half], axis=1))
    rows, place = np.unique(pairs, return_inverse=True)
    shown = inputs(rows)
    ends = shown[place.reshape(pairs.shape)]
    pairs = pairs[np.linalg.norm(ends[:, 0] - ends[:, 1], axis=1) <= NEAR * usual]
    size = len(groups)
    graph = coo_array((np.ones(len(pairs), np.int8), pairs.T), shape=(size, size))
    _, part = connected_components(graph, directed=False)
    involved = np.unique(pairs)
    order = involved[np.lexsort((involved, to_centre[involved], part[involved]))]
    dropped[order[np.diff(part[order], prepend=-1) == 0]] = True
    return dropped


def _close_pairs(
    neighbors: Ints, distances: NDArray[np.floating], groups: Ints, candidates: Truths
) -> Ints:
    """Pairs of a group that are much closer in feature space than its neighbours usually are."""
    usual = np.zeros(len(groups))
    for group in np.unique(groups):
        usual[groups == group] = np.median(distances[groups == group, 0])
    near = neighbors[:, :_CANDIDATES]
    close = distances[:, :_CANDIDATES] <= NEAR * usual[:, None]
    close &= (groups[near] == groups[:, None]) & candidates[near] & candidates[:, None]
    row, column = np.nonzero(close)
    return np.stack([row, near[row, column]], axis=1).astype(np.int64)
