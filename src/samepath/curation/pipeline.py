"""A whole curation: network, features, map, clusters, reasons, keep-list; in one or more rounds.

In: a request. Out: a curation folder, and what its `curation.json` says. Guaranteed: bad input
raises before anything is written; an interrupted curation, and the training of its network, go on
where they were; with the same request the same bytes, whatever the number of workers. A stage is
read back from the cache where nothing that it depends on has changed; a network is trained once for
one seed and one keep-list.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from samepath.curation.cluster import LEAST_POINTS, ClassClusters
from samepath.curation.embed import EARLY_ITERATIONS, ITERATIONS, Embedding
from samepath.curation.features import Extraction, Extractor, extract, load_from, plan_extraction
from samepath.curation.folder import FORMAT, KEEP, Arrays, CurationFolder, checksum
from samepath.curation.inputs import look
from samepath.curation.reasons import NUM_NEIGHBORS, choose, label_errors, random_control
from samepath.curation.request import FRACTION, CurateRequest, Subject, subject_of
from samepath.data.keep_list import KeepList, read_keep_list, write_keep_list
from samepath.engine.checks.fingerprints import versions
from samepath.engine.comm.environment import read_place
from samepath.engine.launch.reports import Interrupted
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.state.state import State, digest
from samepath.engine.train import Request, train
from samepath.errors import SamepathError, UserError
from samepath.files import content_hash
from samepath.recipe import find_recipe


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
    with folder.held(subject.origin, request.recipe):
        return _curate_in_rounds(request, subject, folder, first)


def _look_ahead(request: CurateRequest, subject: Subject, first: KeepList | None) -> None:
    """Raise now what would else be found after hours of training."""
    extractor = Extractor(file=request.extractor, seed=request.seed)
    model = extractor.model(subject.recipe)
    if request.source is not None:
        load_from(request.source, subject.recipe, model)
    elif extractor.file is None:
        _refuse_fewer_epochs(request, _run_folder(request, first))
    plan_extraction(subject.recipe, model, extractor, name=request.recipe, layer=request.layer)


def _curate_in_rounds(
    request: CurateRequest, subject: Subject, folder: CurationFolder, first: KeepList | None
) -> dict[str, Any]:
    previous, done = first, []
    candidates = np.ones(subject.num_examples, bool) if first is None else first.kept
    for number in range(1, request.rounds + 1):
        this = Round(request, subject, folder, previous)
        done.append({"round": number, **this.facts()})
        about = {**this.about(), "rounds": list(done)}
        places = [request.out / f"round-{number}"] if request.rounds > 1 else []
        if number == request.rounds:
            places.append(request.out)
        control = random_control(this.keep_list, candidates, request.seed)
        for place in places:
            place.mkdir(exist_ok=True)
            folder.write_keep_list(this.keep_list, place / KEEP)
            folder.write_keep_list(control, place / "random.csv")
            folder.write(place, this.arrays, about)
        previous = this.keep_list
    return about


class Round:
    """One round: train (or load) a network, look at the examples through it, and decide."""

    def __init__(
        self,
        request: CurateRequest,
        subject: Subject,
        folder: CurationFolder,
        previous: KeepList | None,
    ) -> None:
        self._request, self._subject = request, subject
        self._watcher = request.watcher()
        self._folder = folder
        self._considered = (
            np.ones(subject.num_examples, bool) if previous is None else previous.kept
        )
        extractor = Extractor(file=request.extractor, seed=request.seed)
        model = extractor.model(subject.recipe)
        self.source = extractor.file or str(request.source or _train(request, folder, previous))
        """Where the network's weights are from."""
        if extractor.file is None:
            load_from(Path(self.source), subject.recipe, model)
        self.weights = digest(State(dict(model.state_dict()), {}))
        extraction = plan_extraction(
            subject.recipe,
            model,
            extractor,
            name=request.recipe,
            data=request.data,
            layer=request.layer,
            num_classes=len(subject.class_names),
        )
        self.layer = extraction.layer
        features = self._features(extraction, model)
        mapped = self._map(features["features"])
        judged = self._judge(mapped, features.get("probabilities"))
        recipe, depends_on = subject.recipe, {"examples": subject.examples_identity}
        inputs = self._stage("inputs", depends_on, lambda: look(recipe.train, recipe.collate))
        self.keep_list, self._classes = choose(request, subject, mapped, judged, inputs, previous)
        for facts in self._classes:
            if facts.how == "too few points":
                least = max(LEAST_POINTS, facts.min_samples + 1)
                self._watcher.note(
                    f"class {subject.class_names[facts.label or 0]} has fewer than {least} "
                    "examples, too few to be clustered; only duplicates are dropped of it"
                )
        self.arrays = self._files(features, mapped, judged, inputs)
        """What is written, by the name of its file."""

    def _stage(
        self, name: str, depends_on: Mapping[str, Any], make: Callable[[], Arrays]
    ) -> Arrays:
        return self._folder.stage(name, depends_on, make, self._watcher.note)

    def _features(self, extraction: Extraction, model: nn.Module) -> Arrays:
        """`features`, and `losses` and `probabilities` where the network has them."""
        file = extraction.extractor.file
        depends_on = {
            **self._subject.origin,
            "weights": self.weights,
            "extractor": file and content_hash(Path(file)),
            "layer": extraction.layer,
            "head": extraction.head,
            "grain_size": extraction.grain_size,
            "seed": extraction.extractor.seed,
            "autocast": str(self._subject.recipe.autocast),
        }
        parts = self._folder.stage_file("features", depends_on).with_suffix(".parts")
        workers, watcher = self._request.num_workers, self._request.watcher
        return self._stage(
            "features",
            depends_on,
            lambda: extract(extraction, model, parts, num_workers=workers, watcher=watcher),
        )

    def _map(self, features: NDArray[np.float32]) -> Arrays:
        """`map` and `reduced` of all examples; `neighbors` and `distances` of those considered, by
        their number among those. The others are placed on a map that was made without them."""
        considered = self._considered
        embedding = Embedding(
            num_components=self._request.num_components,
            perplexity=self._request.perplexity,
            seed=self._request.seed,
        )
        depends_on = {
            "features": checksum({"features": features, "considered": considered}),
            "num_components": embedding.num_components,
            "perplexity": embedding.perplexity,
            "seed": embedding.seed,
        }

        def make() -> Arrays:
            what, total = f"map of {int(considered.sum())} examples", EARLY_ITERATIONS + ITERATIONS
            self._watcher.progress(what, 0, total)
            try:
                embedding.fit(
                    features[considered],
                    lambda done: self._watcher.progress(what, done, total),
                )
                self._watcher.progress(what, total, total)
            finally:
                self._watcher.end(what)
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

        return self._stage("map", depends_on, make)

    def _judge(self, mapped: Arrays, probabilities: NDArray[np.float32] | None) -> Arrays:
        """The fields of LabelErrors, of the examples considered; nothing without labels."""
        labels, seed = self._subject.labels, self._request.seed
        if labels is None:
            return {}
        inputs: Arrays = {
            "reduced": mapped["reduced"][self._considered],
            "labels": labels[self._considered],
            "neighbors": mapped["neighbors"],
        }
        if probabilities is not None:
            inputs["probabilities"] = probabilities[self._considered]

        def make() -> Arrays:
            found = label_errors(
                inputs["reduced"],
                inputs["labels"],
                probabilities=inputs.get("probabilities"),
                neighbors=inputs["neighbors"].astype(np.int64),
                distances=mapped["distances"],
                seed=seed,
            )
            return dict(vars(found))

        return self._stage("labels", {"inputs": checksum(inputs), "seed": seed}, make)

    def _files(
        self, features: Arrays, mapped: Arrays, judged: Arrays, inputs: Arrays
    ) -> dict[str, Arrays]:
        shown = dict(features)
        places = {"map": mapped["map"], "reduced": mapped["reduced"]}
        labels, considered = self._subject.labels, self._considered
        if labels is not None:
            shown["labels"] = labels
            places["suspicion"] = np.zeros(len(considered), dtype=np.float32)
            places["suspicion"][considered] = judged["suspicion"]
            if "losses" not in shown:  # of a foreign network: what the judges make of the label
                place = np.unique(labels[considered], return_inverse=True)[1]
                own = judged["belief"][np.arange(len(place)), place]
                shown["losses"] = np.zeros(len(considered), dtype=np.float32)
                shown["losses"][considered] = -np.log(np.maximum(own, 1e-6))
        images = {name: array for name, array in inputs.items() if name == "images"}
        return {"features": shown, "map": places, "images": images}

    def facts(self) -> dict[str, Any]:
        """What curation.json says of every round."""
        return {
            "num_examples": int(self._considered.sum()),
            "num_kept": int(self.keep_list.kept.sum()),
            "network": self.source,
            "weights": self.weights,
        }

    def about(self) -> dict[str, Any]:
        """What curation.json says of the round that is written."""
        request, subject = self._request, self._subject
        kept = int(self.keep_list.kept.sum())
        return {
            "format": FORMAT,
            "command": list(request.command),
            "versions": versions(),
            "recipe": request.recipe,
            "identity": subject.recipe.origin.identity,
            "data": subject.recipe.origin.data,
            "data_identity": subject.recipe.origin.data_identity,
            "examples_identity": subject.examples_identity,
            "num_examples": subject.num_examples,
            "class_names": list(subject.class_names),
            "layer": self.layer,
            "network": self.source,
            "weights": self.weights,
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
            "classes": [self._class_facts(found) for found in self._classes],
            "num_kept": kept,
            "reduction": 1.0 - kept / subject.num_examples,
        }

    def _class_facts(self, found: ClassClusters) -> dict[str, Any]:
        rows = np.arange(self._subject.num_examples)
        if self._subject.labels is not None:
            rows = np.flatnonzero(self._subject.labels == found.label)
        dropped = rows[~self.keep_list.kept[rows]].tolist()
        reasons = Counter(sorted(self.keep_list.reasons[row] for row in dropped))
        return {
            "name": self._subject.class_names[found.label or 0],
            "label": found.label,
            "num_examples": len(rows),
            "num_kept": len(rows) - len(dropped),
            "num_clusters": found.num_clusters,
            "eps": found.eps,
            "eps_from": found.how,
            "min_samples": found.min_samples,
            "reasons": dict(reasons),
        }


# ---- a network of its own


def _run_folder(request: CurateRequest, previous: KeepList | None) -> RunFolder:
    """Where the network of a seed and a keep-list is trained."""
    keep = "" if previous is None else f"-{previous.identity[:8]}"
    seed = f"-seed{request.seed}" if request.seed else ""
    return RunFolder(request.out / f"extractor{keep}{seed}")


def _refuse_fewer_epochs(request: CurateRequest, run: RunFolder) -> None:
    """Raise if the network there has been trained for longer: what it was cannot be had back."""
    if not run.holds_run or request.epochs is None:
        return
    trained = run.read()["config"]["epochs"]
    if request.epochs < trained:
        raise UserError(
            f"--epochs {request.epochs}: the network in {run.path} was trained for {trained}; "
            "leave --epochs out to use it, or give another --out"
        )


def _train(request: CurateRequest, folder: CurationFolder, previous: KeepList | None) -> Path:
    """Train the network, unless that has been done; its run."""
    run = _run_folder(request, previous)
    _refuse_fewer_epochs(request, run)
    if run.holds_run:
        record = run.read()
        ended = record["status"] in ("finished", "target")
        if ended and request.epochs in (None, record["config"]["epochs"]):
            return run.path
    keep: Path | None = None
    if previous is not None:  # under a name of its own: keep.csv will be replaced
        keep = folder.cache / f"keep-{previous.identity}.csv"
        write_keep_list(keep, previous, overwrite=True)
    result, path = train(
        Request(
            recipe=request.recipe,
            data=request.data,
            keep=None if keep is None else str(keep),
            num_workers=request.num_workers,
            epochs=request.epochs,
            seed=request.seed,
            out=run.path,
            resume=run.holds_run,
            command=tuple(request.command),
            display=request.display,
        )
    )
    if result.status == "interrupted":
        raise Interrupted(result.signal or signal.SIGINT)
    if result.status == "diverged":
        raise SamepathError(f"training the network in {path} {result.message}")
    return path
