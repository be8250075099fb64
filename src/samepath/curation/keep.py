"""The examples to drop, and why: everything that was found, as one decision per example.

In: the map, the judges' findings, the inputs' digests. Out: a cluster and a reason for every
example ("" to keep it), facts about each class; a KeepList over all examples, and the random
control. A dropped example has one reason, the most telling of those it has: duplicate, label error,
near-duplicate, outlier, noise; only what has none of them is sampled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from samepath.curation.cluster import LEAST_POINTS, ClassClustering, ClassClusters, sample_grid
from samepath.curation.folder import Arrays
from samepath.curation.inputs import flat_inputs
from samepath.curation.reasons import exact_duplicates, far_from_all, near_duplicates
from samepath.curation.request import FRACTION, CurateRequest, Subject
from samepath.data.keep_list import KeepList
from samepath.keys import key, keys_for

DUPLICATE = "duplicate"
LABEL_ERROR = "label error"
NEAR_DUPLICATE = "near-duplicate"
OUTLIER = "outlier"
NOISE = "noise"
SAMPLED_OUT = "sampled out"
RANDOM = "random"
REASONS = (DUPLICATE, LABEL_ERROR, NEAR_DUPLICATE, OUTLIER, NOISE, SAMPLED_OUT)
"""In the order in which they are given."""

Ints = NDArray[np.int64]
Truths = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class KeepChoice:
    """What was decided about every example."""

    keep_list: KeepList
    classes: list[ClassClusters]
    notes: list[str]
    """What a person should know."""


def choose(
    request: CurateRequest,
    subject: Subject,
    mapped: Arrays,
    judged: Arrays,
    inputs: Arrays,
    previous: KeepList | None,
) -> KeepChoice:
    """Decide about all examples; what an earlier keep-list dropped stays so, for its reason."""
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
        clean = np.array([not reason for reason in first_reasons(found, len(rows))])
        found[SAMPLED_OUT], clusters = _grid(request, places, groups, clean, rows)
        for place, facts in enumerate(classes):
            cells = int(clusters[groups == (facts.label or 0)].max(initial=-1)) + 1
            classes[place] = replace(facts, eps=None, how="grid", num_clusters=cells, num_noise=0)
    else:
        found[NOISE] = clusters < 0
    reasons = [""] * number
    if previous is not None:
        reasons = [reason or "dropped" for reason in previous.reasons]
    whole = np.full(number, -1, dtype=np.int64)
    whole[rows] = clusters
    for row, reason in zip(rows.tolist(), first_reasons(found, len(rows)), strict=True):
        reasons[row] = reason
    return KeepChoice(
        keep_list=KeepList(
            labels=subject.labels,
            positions=mapped["map"],
            clusters=whole,
            kept=np.array([not reason for reason in reasons]),
            reasons=reasons,
        ),
        classes=classes,
        notes=[
            f"class {subject.class_names[facts.label or 0]} has fewer than "
            f"{max(LEAST_POINTS, facts.min_samples + 1)} examples, too few to be clustered; only "
            "duplicates are dropped of it"
            for facts in classes
            if facts.how == "too few points"
        ],
    )


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


def _to_centre(places: NDArray[np.float32], groups: Ints, clusters: Ints) -> NDArray[np.float64]:
    """Distance of each point on the map to the centre of its cluster; noise is farthest."""
    far = np.full(len(places), np.inf)
    for group in np.unique(groups):
        for cluster in range(int(clusters[groups == group].max(initial=-1)) + 1):
            some = (groups == group) & (clusters == cluster)
            points = places[some].astype(np.float64)
            far[some] = np.linalg.norm(points - points.mean(0), axis=1)
    return far


def first_reasons(found: dict[str, Truths], num_examples: int) -> list[str]:
    """The first reason of REASONS that holds for each example, or ""."""
    reasons = np.full(num_examples, "", dtype=object)
    for name in reversed([name for name in REASONS if name in found]):
        reasons[found[name]] = name
    return [str(reason) for reason in reasons]


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
