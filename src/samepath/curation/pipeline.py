"""A whole curation: network, features, map, clusters, reasons, keep-list; in one or more rounds.

In: a request. Out: a curation folder, and what its `curation.json` says. Guaranteed: bad input
raises before anything is written; an interrupted curation goes on where it was; with the same
request the same bytes, whatever the number of workers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samepath.curation.cache import Arrays, Cache
from samepath.curation.choose import Choice, choose
from samepath.curation.extractor import Extractor, load_from, weights_digest
from samepath.curation.features import plan_extraction
from samepath.curation.folder import KEEP, RANDOM, CurationFolder
from samepath.curation.keep import make_keep_list, random_control
from samepath.curation.network import network_of, refuse_fewer_epochs
from samepath.curation.request import FRACTION, CurateRequest
from samepath.curation.stages import features_stage, inputs_stage, label_stage, map_stage
from samepath.curation.subject import Subject, subject_of
from samepath.data.keep_list import KeepList, read_keep_list
from samepath.engine.checks.hardware import versions
from samepath.engine.comm.environment import read_place
from samepath.errors import UserError
from samepath.recipe import find_recipe

FORMAT = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """What one round found."""

    keep_list: KeepList
    arrays: dict[str, Arrays]
    """By the name of their file."""
    choice: Choice
    layer: str
    source: str
    """Where the network's weights are from."""
    weights: str
    """Their digest."""
    num_before: int
    """Examples that were considered."""


def curate(request: CurateRequest) -> dict[str, Any]:
    """Curate a recipe's training data; what curation.json says."""
    if (launcher := read_place(os.environ).launcher) != "alone":
        raise UserError(f"samepath curate starts its own workers (-n N); run it without {launcher}")
    subject = subject_of(find_recipe(request.recipe, request.data))
    first: KeepList | None = None
    if request.keep is not None:
        find_recipe(request.recipe, request.data, request.keep)  # refuses one of other data
        first = read_keep_list(Path(request.keep))
    request.eps_by_label(subject.class_names)
    folder = CurationFolder(request.out)
    folder.refuse(subject.origin)
    _look_ahead(request, subject, first)
    folder.begin(subject.origin, request.recipe)
    try:
        return _rounds(request, subject, folder, first)
    finally:
        folder.end()


def _look_ahead(request: CurateRequest, subject: Subject, first: KeepList | None) -> None:
    """Raise now what would else be found after hours of training."""
    extractor = Extractor(file=request.extractor, seed=request.seed)
    model = extractor.model(subject.recipe)
    if request.source is not None:
        load_from(request.source, subject.found, model)
    elif extractor.file is None:
        refuse_fewer_epochs(request, first)
    plan_extraction(subject.recipe, model, extractor, name=request.recipe, layer=request.layer)


def _rounds(
    request: CurateRequest, subject: Subject, folder: CurationFolder, first: KeepList | None
) -> dict[str, Any]:
    previous, done = first, []
    candidates = np.ones(subject.num_examples, bool) if first is None else first.kept
    for number in range(1, request.rounds + 1):
        found = curate_once(request, subject, folder, previous)
        done.append(
            {
                "round": number,
                "num_examples": found.num_before,
                "num_kept": int(found.keep_list.kept.sum()),
                "network": found.source,
                "weights": found.weights,
            }
        )
        about = _about(request, subject, found, done)
        places = [request.out / f"round-{number}"] if request.rounds > 1 else []
        if number == request.rounds:
            places.append(request.out)
        control = random_control(found.keep_list, candidates, request.seed)
        for place in places:
            place.mkdir(exist_ok=True)
            folder.write_keep_list(found.keep_list, KEEP, place)
            folder.write_keep_list(control, RANDOM, place)
            folder.write(place, found.arrays, about)
        previous = found.keep_list
    return about


def curate_once(
    request: CurateRequest,
    subject: Subject,
    folder: CurationFolder,
    previous: KeepList | None = None,
) -> Round:
    """One round: train (or load) a network, look through it, and decide."""
    watch = request.watcher()
    cache = Cache(folder.cache, watch.note)
    extractor = Extractor(file=request.extractor, seed=request.seed)
    model = extractor.model(subject.recipe)
    source = network_of(request, subject.found, extractor, model, folder, previous)
    extraction = plan_extraction(
        subject.recipe,
        model,
        extractor,
        name=request.recipe,
        data=request.data,
        layer=request.layer,
        num_classes=len(subject.class_names),
        seed=request.seed,
    )
    features = features_stage(
        cache,
        subject,
        extraction,
        model,
        num_workers=request.num_workers,
        watcher=request.watcher,
    )
    considered = np.ones(subject.num_examples, bool) if previous is None else previous.kept
    mapped = map_stage(
        cache,
        features["features"],
        considered,
        num_components=request.num_components,
        perplexity=request.perplexity,
        seed=request.seed,
        watch=watch,
    )
    judged: Arrays = {}
    if subject.labels is not None:
        judged = label_stage(
            cache,
            mapped,
            subject.labels,
            features.get("probabilities"),
            considered,
            seed=request.seed,
        )
    inputs = inputs_stage(cache, subject)
    choice = choose(request, subject, mapped, judged, inputs, considered)
    for note in choice.notes:
        watch.note(note)
    keep_list = make_keep_list(
        labels=subject.labels,
        positions=mapped["map"],
        clusters=choice.clusters,
        reasons=choice.reasons,
        previous=previous,
    )
    return Round(
        keep_list=keep_list,
        arrays=_files(subject, features, mapped, judged, inputs, considered),
        choice=choice,
        layer=extraction.layer,
        source=source,
        weights=weights_digest(model),
        num_before=int(considered.sum()),
    )


def _files(
    subject: Subject,
    features: Arrays,
    mapped: Arrays,
    judged: Arrays,
    inputs: Arrays,
    considered: NDArray[np.bool_],
) -> dict[str, Arrays]:
    """The arrays of a curation folder, by file."""
    shown = dict(features)
    places = {"map": mapped["map"], "reduced": mapped["reduced"]}
    if subject.labels is not None:
        shown["labels"] = subject.labels
        suspicion = np.zeros(len(considered), dtype=np.float32)
        suspicion[considered] = judged["suspicion"]
        places["suspicion"] = suspicion
        if "losses" not in shown:  # of a foreign network: what the judges make of the label
            place = np.unique(subject.labels[considered], return_inverse=True)[1]
            own = judged["belief"][np.arange(len(place)), place]
            shown["losses"] = np.zeros(len(considered), dtype=np.float32)
            shown["losses"][considered] = -np.log(np.maximum(own, 1e-6))
    images = {"images": inputs["images"]} if "images" in inputs else {}
    return {"features": shown, "map": places, "images": images}


def _about(
    request: CurateRequest, subject: Subject, found: Round, rounds: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    keep_list, number = found.keep_list, subject.num_examples
    kept = int(keep_list.kept.sum())
    return {
        "format": FORMAT,
        "command": list(request.command),
        "versions": versions(),
        "recipe": request.recipe,
        "identity": subject.found.identity,
        "data": subject.found.data,
        "data_identity": subject.found.data_identity,
        "examples_identity": subject.examples_identity,
        "num_examples": number,
        "class_names": list(subject.class_names),
        "layer": found.layer,
        "network": found.source,
        "weights": found.weights,
        "settings": {
            "seed": request.seed,
            "pca_components": request.num_components,
            "perplexity": request.perplexity,
            "method": request.method,
            "fraction": (request.fraction or FRACTION) if request.method == "grid" else None,
            "eps": dict(request.eps),
            "min_samples": request.min_samples,
            "keep": request.keep,
            "rounds": request.rounds,
        },
        "classes": [
            _class_facts(subject, keep_list, facts, subject.class_names[facts.label or 0])
            for facts in found.choice.classes
        ],
        "num_kept": kept,
        "reduction": 1.0 - kept / number,
        "rounds": list(rounds),
    }


def _class_facts(subject: Subject, keep_list: KeepList, facts: Any, name: str) -> dict[str, Any]:
    of_class = np.ones(subject.num_examples, bool)
    if subject.labels is not None:
        of_class = subject.labels == facts.label
    rows = np.flatnonzero(of_class)
    reasons = [keep_list.reasons[row] for row in rows.tolist() if not keep_list.kept[row]]
    return {
        "name": name,
        "label": facts.label,
        "num_examples": len(rows),
        "num_kept": int(keep_list.kept[rows].sum()),
        "num_clusters": facts.num_clusters,
        "eps": facts.eps,
        "eps_from": facts.how,
        "min_samples": facts.min_samples,
        "reasons": {reason: reasons.count(reason) for reason in sorted(set(reasons))},
    }
