"""Which examples to drop, and why: clusters or a grid on the map, and the other reasons together.

In: the map, the judges' findings, the inputs' digests. Out: a cluster and a reason for every
example ("" to keep it), and facts about each class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from samepath.curation.cache import Arrays
from samepath.curation.cluster import LEAST_POINTS, ClassClustering, ClassClusters
from samepath.curation.duplicates import exact_duplicates, near_duplicates
from samepath.curation.inputs import flat_inputs
from samepath.curation.keep import (
    DUPLICATE,
    LABEL_ERROR,
    NEAR_DUPLICATE,
    NOISE,
    OUTLIER,
    SAMPLED_OUT,
    first_reasons,
)
from samepath.curation.reasons import far_from_all
from samepath.curation.request import FRACTION, CurateRequest
from samepath.curation.sampling import sample_grid
from samepath.curation.subject import Subject

Ints = NDArray[np.int64]
Truths = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """What was decided; of examples that were dropped earlier, nothing."""

    clusters: Ints
    reasons: list[str]
    classes: list[ClassClusters]
    notes: list[str]
    """What a person should know."""


def choose(
    request: CurateRequest,
    subject: Subject,
    mapped: Arrays,
    judged: Arrays,
    inputs: Arrays,
    considered: Truths,
) -> Choice:
    """Decide about the examples that are considered."""
    rows = np.flatnonzero(considered)
    labels = None if subject.labels is None else subject.labels[rows]
    places = mapped["map"][rows]
    found: dict[str, Truths] = {}
    copies, contradicted = exact_duplicates(inputs["digests"][rows], labels)
    found[DUPLICATE], found[LABEL_ERROR] = copies, contradicted
    groups = np.zeros(len(rows), dtype=np.int64) if labels is None else labels
    found[OUTLIER] = far_from_all(mapped["distances"], groups)
    if judged:
        found[LABEL_ERROR] = contradicted | judged["flagged"]
        found[OUTLIER] |= judged["outliers"]
    method: Literal["dbscan", "hdbscan"] = "hdbscan" if request.method == "hdbscan" else "dbscan"
    clustering = ClassClustering(
        method=method,
        eps=request.eps_by_label(subject.class_names),
        min_samples=request.min_samples,
    ).fit(places, labels)
    found[NEAR_DUPLICATE] = near_duplicates(
        mapped["neighbors"].astype(np.int64),
        mapped["distances"],
        groups,
        _to_centre(places, groups, clustering.labels_),
        lambda some: flat_inputs(subject.recipe.train, subject.recipe.collate, rows[some]),
        candidates=~(copies | found[LABEL_ERROR]),
        seed=request.seed,
    )
    classes, clusters = clustering.classes_, clustering.labels_
    if request.method == "grid":
        clean = np.array([not reason for reason in first_reasons(found, len(rows))])
        found[SAMPLED_OUT], clusters = _grid(request, places, groups, clean, rows)
        classes = [_as_grid(facts, clusters[_of(groups, facts)]) for facts in classes]
    else:
        found[NOISE] = clusters < 0
    whole = np.full(subject.num_examples, -1, dtype=np.int64)
    whole[rows] = clusters
    reasons = np.full(subject.num_examples, "", dtype=object)
    reasons[rows] = first_reasons(found, len(rows))
    return Choice(
        clusters=whole,
        reasons=[str(reason) for reason in reasons],
        classes=classes,
        notes=[_small(subject, facts) for facts in classes if facts.how == "too few points"],
    )


def _small(subject: Subject, facts: ClassClusters) -> str:
    name = subject.class_names[facts.label or 0]
    return (
        f"class {name} has fewer than {max(LEAST_POINTS, facts.min_samples + 1)} examples, too few "
        "to be clustered; only duplicates are dropped of it"
    )


def _of(groups: Ints, facts: ClassClusters) -> Truths:
    mine: Truths = groups == (facts.label or 0)
    return mine


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


def _as_grid(facts: ClassClusters, cells: Ints) -> ClassClusters:
    return ClassClusters(
        label=facts.label,
        eps=None,
        min_samples=facts.min_samples,
        how="grid",
        curve=facts.curve,
        num_clusters=int(cells.max(initial=-1)) + 1,
        num_noise=0,
    )


def _to_centre(places: NDArray[np.float32], groups: Ints, clusters: Ints) -> NDArray[np.float64]:
    """Distance of each point on the map to the centre of its cluster; noise is farthest."""
    far = np.full(len(places), np.inf)
    for group in np.unique(groups):
        for cluster in range(int(clusters[groups == group].max(initial=-1)) + 1):
            some = (groups == group) & (clusters == cluster)
            points = places[some].astype(np.float64)
            far[some] = np.linalg.norm(points - points.mean(0), axis=1)
    return far
