"""The examples to drop, and why: label errors, outliers, duplicates, noise, as one decision each.

In: features after PCA, their map and nearest neighbours, labels, the inputs' digests, and the
network's own probabilities if it is a classifier. Out: a KeepList over all examples, with a cluster
and a reason for each ("" to keep it); facts about each class; the random control. A dropped example
has one reason, the most telling of those it has: duplicate, label error, near-duplicate, outlier,
noise; only what has none of them is sampled.

Labels are judged by probabilities of models that have not seen the example (held_out.py), through
a model of how wrong labels come about (label_noise.py): it says how many labels are wrong, and how
likely each is. As many as that are taken, or as a person asks for. One that no class claims is an
outlier.

Exact duplicates have the same bytes; the first is kept. Near-duplicates are those of
`duplicates.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samepath.curation.cluster import LEAST_POINTS, ClassClustering, ClassClusters, sample_grid
from samepath.curation.duplicates import all_but_one
from samepath.curation.folder import Arrays
from samepath.curation.held_out import regression_beliefs
from samepath.curation.label_noise import Told, label_noise, sized
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
"""Reasons, in the order in which they are given."""

NUM_NEIGHBORS = 50
LEADS = 0.5
"""Belief with which a class leads."""
FAR = 4.0
FAR_NEIGHBORS = 10
_LEAST = 1e-6


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
    if previous is not None and previous.targets is not None:
        labels = previous.targets[rows]
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
    found[NEAR_DUPLICATE] = all_but_one(
        mapped["near"],
        _to_centre(places, groups, clusters),
        candidates=~(found[DUPLICATE] | found[LABEL_ERROR]),
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
        **(_said(judged, rows, number, previous) if judged else {}),
    )
    return keep_list, classes


def _said(judged: Arrays, rows: Ints, number: int, previous: KeepList | None) -> dict[str, Any]:
    """What the keep-list says of labels; nothing (NaN) of what was not considered."""
    said: dict[str, Any] = {}
    for name in ("probability", "doubt", "confidence", "margin"):
        said[name] = np.full(number, np.nan, dtype=np.float32)
        said[name][rows] = judged[name]
    suggested = np.zeros(number, dtype=np.int64)
    if previous is not None and previous.suggested is not None:
        suggested[:] = previous.suggested
    elif previous is not None and previous.labels is not None:
        suggested[:] = previous.labels
    suggested[rows] = judged["suggested"]
    return {**said, "suggested": suggested}


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
    reasons = ["" if one else RANDOM for one in kept]
    return replace(keep_list, kept=kept, reasons=reasons, relabelled=None)


# ---- labels and outliers


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelErrors:
    """What was found of each example."""

    flagged: Truths
    """Likely label errors."""
    outliers: Truths
    """Examples that are as likely wrong, but that no class claims."""
    suggested: Ints
    """The label that is believed most."""
    probability: NDArray[np.float32]
    """How likely that is the right one."""
    suspicion: NDArray[np.float32]
    """How likely the label is wrong."""
    doubt: NDArray[np.float32]
    """The share of all examples with less suspicion, in percent."""
    confidence: NDArray[np.float32]
    """What the judge gives the label."""
    margin: NDArray[np.float32]
    """The label's logit minus the largest other, of the judge."""
    classes: Ints
    """The labels there are, ascending: rows and columns of the tables."""
    rate: Floats
    """(2,): the share of wrong labels, and half its 95% interval."""
    counts: Floats
    """(C, C): examples that are of the row's class and are labelled as the column's."""
    counts_reach: Floats
    """Half of their 95% intervals."""
    contradicted: Truths
    """Labels that the judge surely contradicts (the confident joint)."""


def label_errors(
    reduced: NDArray[np.floating],
    labels: Ints,
    *,
    probabilities: NDArray[np.floating] | None = None,
    budget: float | None = None,
    precision: float | None = None,
    seed: int = 0,
    told: Told | None = None,
) -> LabelErrors:
    """Likely label errors among examples with these features (after PCA, say) and labels.

    `probabilities`: of models that have not seen the example, one column per label from 0; those of
    a regression on the features where not given. `told` is called with how much is done, and of
    how much.
    """
    classes, place = np.unique(labels, return_inverse=True)
    rows = np.arange(len(labels))
    given: NDArray[Any]
    if probabilities is None:
        given = regression_beliefs(reduced, place, len(classes), seed)
    else:
        given = np.maximum(probabilities[:, classes], _LEAST, dtype=np.float64)
        given /= given.sum(1, keepdims=True)
    noise = label_noise(given, place, seed=seed, told=told)
    chosen = sized(noise.wrong, budget=budget, precision=precision)
    chosen &= np.bincount(place)[place] >= LEAST_POINTS  # too few to know what is usual
    likeliest = noise.belief.max(1)
    own = np.log(np.maximum(given[rows, place], _LEAST))
    others = np.log(np.maximum(given, _LEAST))
    others[rows, place] = -np.inf
    leads = others.max(1) - own if len(classes) > 1 else np.zeros(len(rows))
    less = np.searchsorted(np.sort(noise.wrong), noise.wrong, side="left")
    return LabelErrors(
        flagged=chosen & (likeliest >= LEADS),
        outliers=chosen & (likeliest < LEADS),
        suggested=classes[noise.belief.argmax(1)],
        probability=likeliest.astype(np.float32),
        suspicion=noise.wrong.astype(np.float32),
        doubt=(100.0 * less / len(rows)).astype(np.float32),
        confidence=given[rows, place].astype(np.float32),
        margin=(-leads).astype(np.float32),
        classes=classes,
        rate=np.array([noise.rate, noise.reach]),
        counts=noise.counts,
        counts_reach=noise.counts_reach,
        contradicted=noise.contradicted,
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
