"""The stages of a curation, each read back from the cache where nothing it depends on has changed.

In: a subject, settings, a cache. Out: arrays. What a stage depends on is said where it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from samepath.console import Watcher
from samepath.curation.cache import Arrays, Cache, checksum
from samepath.curation.embed import EARLY_ITERATIONS, ITERATIONS, Embedding
from samepath.curation.extractor import weights_digest
from samepath.curation.features import Extraction, extract
from samepath.curation.inputs import look
from samepath.curation.reasons import NUM_NEIGHBORS, label_errors
from samepath.curation.subject import Subject
from samepath.files import content_hash

Truths = NDArray[np.bool_]


def features_stage(
    cache: Cache,
    subject: Subject,
    extraction: Extraction,
    model: Any,
    *,
    num_workers: int | Literal["auto"],
    watcher: Callable[[], Watcher],
) -> Arrays:
    """`features`, and `losses` and `probabilities` where the network has them."""
    file = extraction.extractor.file
    depends_on = {
        **subject.origin,
        "weights": weights_digest(model),
        "extractor": file and content_hash(Path(file)),
        "layer": extraction.layer,
        "head": extraction.head,
        "grain_size": extraction.grain_size,
        "seed": extraction.seed,
        "autocast": str(subject.recipe.autocast),
    }
    parts = cache.path("features", depends_on).with_suffix(".parts")
    return cache.get(
        "features",
        depends_on,
        lambda: extract(extraction, model, parts, num_workers=num_workers, watcher=watcher),
    )


def map_stage(
    cache: Cache,
    features: NDArray[np.float32],
    considered: Truths,
    *,
    num_components: int,
    perplexity: float,
    seed: int,
    watch: Watcher,
) -> Arrays:
    """`map` and `reduced` of all examples; `neighbors` and `distances` of those considered, by
    their number among those. The others are placed on a map that was made without them."""
    depends_on = {
        "features": checksum({"features": features, "considered": considered}),
        "num_components": num_components,
        "perplexity": perplexity,
        "seed": seed,
    }

    def make() -> Arrays:
        what, total = f"map of {int(considered.sum())} examples", EARLY_ITERATIONS + ITERATIONS
        watch.progress(what, 0, total)
        try:
            embedding = Embedding(num_components=num_components, perplexity=perplexity, seed=seed)
            embedding.fit(features[considered], lambda done: watch.progress(what, done, total))
            watch.progress(what, total, total)
        finally:
            watch.end(what)
        places = np.empty((len(features), 2), dtype=np.float32)
        reduced = np.empty((len(features), embedding.reduced_.shape[1]), dtype=np.float32)
        places[considered], reduced[considered] = embedding.map_, embedding.reduced_
        if not considered.all():
            places[~considered] = embedding.transform(features[~considered])
            reduced[~considered] = embedding.reduce(features[~considered])
        return {
            "map": places,
            "reduced": reduced,
            "neighbors": embedding.neighbors_[:, :NUM_NEIGHBORS].astype(np.int32),
            "distances": embedding.distances_[:, :NUM_NEIGHBORS],
        }

    return cache.get("map", depends_on, make)


def label_stage(
    cache: Cache,
    mapped: Arrays,
    labels: NDArray[np.int64],
    probabilities: NDArray[np.float32] | None,
    considered: Truths,
    *,
    seed: int,
) -> Arrays:
    """`flagged`, `outliers`, `suggested`, `suspicion` and `belief` of those considered."""
    inputs = {
        "reduced": mapped["reduced"][considered],
        "labels": labels[considered],
        "neighbors": mapped["neighbors"],
    }
    if probabilities is not None:
        inputs["probabilities"] = probabilities[considered]

    def make() -> Arrays:
        found = label_errors(
            inputs["reduced"],
            inputs["labels"],
            probabilities=inputs.get("probabilities"),
            neighbors=mapped["neighbors"].astype(np.int64),
            distances=mapped["distances"],
            seed=seed,
        )
        return dict(vars(found))

    return cache.get("labels", {"inputs": checksum(inputs), "seed": seed}, make)


def inputs_stage(cache: Cache, subject: Subject) -> Arrays:
    """`digests` of all inputs, and `images` if they are pictures."""
    recipe = subject.recipe
    depends_on = {"examples": subject.examples_identity}
    return cache.get("inputs", depends_on, lambda: look(recipe.train, recipe.collate))
