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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from samepath.console import stops_at_once
from samepath.curation.cluster import LEAST_POINTS, ClassClusters
from samepath.curation.duplicates import near_pairs
from samepath.curation.embed import EARLY_ITERATIONS, ITERATIONS, Embedding, nearest
from samepath.curation.features import Extraction, Extractor, extract, plan_extraction
from samepath.curation.folder import FORMAT, KEEP, Arrays, CurationFolder, checksum
from samepath.curation.held_out import (
    OutOfFold,
    is_folds,
    read_folds,
    refuse_folds,
    train_folds,
)
from samepath.curation.inputs import flat_inputs, look
from samepath.curation.label_noise import JUDGE
from samepath.curation.reasons import NUM_NEIGHBORS, choose, label_errors, random_control
from samepath.curation.request import FRACTION, CurateRequest, Subject, subject_of
from samepath.curation.training_margin import NoteMargins, training_margins, why_not
from samepath.curation.weights import load_from, rehearse
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

_MOST_CONFUSIONS = 100


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
    listen = _look_ahead(request, subject, first)
    with folder.held(subject.origin, request.recipe):
        return _curate_in_rounds(request, subject, folder, first, listen)


def _look_ahead(
    request: CurateRequest, subject: Subject, first: KeepList | None
) -> NoteMargins | None:
    """Raise now what would else be found after hours of training; what is to listen to it."""
    for option, value in (("--budget", request.budget), ("--precision", request.precision)):
        if value is not None and subject.labels is None:
            raise UserError(
                f"{option} {value:g} sizes label errors, and {request.recipe} has no labels; leave "
                "it out"
            )
    extractor = Extractor(file=request.extractor, seed=request.seed)
    model = extractor.model(subject.recipe)
    if request.source is not None:
        source = request.source
        if is_folds(source):
            source = read_folds(source, subject).run
        load_from(source, subject.recipe, model)
    elif request.folds is not None and subject.labels is None:
        raise UserError(f"--folds judges labels, and {request.recipe} has none; leave it out")
    elif request.folds is not None:
        refuse_folds(request, subject)
    elif extractor.file is None:
        _refuse_fewer_epochs(request, _run_folder(request, first))
    head = plan_extraction(
        subject.recipe,
        model,
        extractor,
        name=request.recipe,
        layer=request.layer,
        num_classes=len(subject.class_names),
    ).head
    if extractor.file is not None:
        return None
    rehearse(model, extractor.model(subject.recipe))
    if request.source is not None or subject.labels is None:
        return None
    why = why_not(subject.recipe, head)
    if why is not None:
        request.watcher().note(f"training margins are left out: {why}")
    return None if why or head is None else NoteMargins(head=head)


def _curate_in_rounds(
    request: CurateRequest,
    subject: Subject,
    folder: CurationFolder,
    first: KeepList | None,
    listen: NoteMargins | None,
) -> dict[str, Any]:
    previous, done = first, []
    candidates = np.ones(subject.num_examples, bool) if first is None else first.kept
    for number in range(1, request.rounds + 1):
        this = Round(request, subject, folder, previous, listen)
        done.append({"round": number, **this.facts()})
        about = {**this.about(), "rounds": list(done)}
        places = [request.out / f"round-{number}"] if request.rounds > 1 else []
        if number == request.rounds:
            places.append(request.out)
        control = random_control(this.keep_list, candidates, request.seed)
        if first is not None:
            this.arrays["map"]["candidates"] = candidates
        for place in places:
            place.mkdir(exist_ok=True)
            folder.write_keep_list(this.keep_list, place / KEEP)
            folder.write_keep_list(control, place / "random.csv")
            folder.write(place, this.arrays, about, subject.recipe.train_facts)
        previous = this.keep_list
    for path in folder.remove_rounds(request.rounds if request.rounds > 1 else 0):
        request.watcher().note(f"{path} is of earlier settings and holds files of yours; it stays")
    return about


class Round:
    """One round: train (or load) a network, look at the examples through it, and decide."""

    def __init__(
        self,
        request: CurateRequest,
        subject: Subject,
        folder: CurationFolder,
        previous: KeepList | None,
        listen: NoteMargins | None = None,
    ) -> None:
        self._request, self._subject = request, subject
        self._watcher = request.watcher()
        self._folder = folder
        self._considered = (
            np.ones(subject.num_examples, bool) if previous is None else previous.kept
        )
        extractor = Extractor(file=request.extractor, seed=request.seed)
        model = extractor.model(subject.recipe)
        self._held_out: OutOfFold | None = None
        if request.folds is not None:
            self._held_out = train_folds(request, subject, listen)
        elif request.source is not None and is_folds(request.source):
            self._held_out = read_folds(request.source, subject)
        run = request.source if self._held_out is None else self._held_out.run
        self.source = extractor.file or str(run or _train(request, folder, previous, listen))
        """Where the network's weights are from."""
        margins: NDArray[np.float32] | None = None
        if self._held_out is not None:
            margins = self._held_out.training_margins
        elif request.source is None and extractor.file is None:
            rows = np.flatnonzero(self._considered)
            margins = training_margins([(Path(self.source), rows)], subject.num_examples)
        if extractor.file is None:
            took = load_from(Path(self.source), subject.recipe, model)
            if request.source is not None:
                self._watcher.note(took)
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
        self._labels = subject.labels if previous is None else previous.targets
        judged = self._judge(mapped)
        inputs = self._inputs()
        mapped["near"] = self._near(mapped, inputs.get("images"))
        with self._telling("clusters", None):
            found = choose(request, subject, mapped, judged, inputs, previous)
        self.keep_list, self._classes = found
        self.keep_list = replace(self.keep_list, training_margin=margins)
        if previous is not None and previous.relabelled is not None:
            relabelled = previous.relabelled & self.keep_list.kept
            assert previous.suggested is not None
            assert self.keep_list.suggested is not None
            suggested = np.where(relabelled, previous.suggested, self.keep_list.suggested)
            self.keep_list = replace(self.keep_list, relabelled=relabelled, suggested=suggested)
        for facts in self._classes:
            if facts.how == "too few points":
                least = max(LEAST_POINTS, facts.min_samples + 1)
                self._watcher.note(
                    f"class {subject.class_names[facts.label or 0]} has fewer than {least} "
                    "examples, too few to be clustered; only duplicates are dropped of it"
                )
        self._noise: dict[str, Any] | None = None
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
            total = EARLY_ITERATIONS + ITERATIONS
            some = features[considered]
            with self._telling(f"map of {len(some):,} examples", total) as told:
                embedding.fit(some, told, self._neighbors)
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

    def _neighbors(
        self, points: NDArray[Any], queries: NDArray[Any], number: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Nearest neighbours, a stage of their own: the search takes as long as the map."""
        depends_on = {"points": checksum({"points": points, "queries": queries}), "number": number}

        def make() -> Arrays:
            with self._telling(f"neighbours of {len(queries):,} examples", len(queries)) as told:
                found = nearest(points, queries, number, lambda done, total: told(done))
            return {"neighbors": found[0].astype(np.int32), "distances": found[1]}

        found = self._stage("neighbors", depends_on, make)
        return found["neighbors"].astype(np.int64), found["distances"]

    def _inputs(self) -> Arrays:
        """`digests` of all examples, and `images` of pictures."""
        recipe, number = self._subject.recipe, self._subject.num_examples

        def make() -> Arrays:
            with self._telling(f"looking at {number:,} examples", 2 * number) as told:
                return look(recipe.train, recipe.collate, told)

        return self._stage("inputs", {"examples": self._subject.examples_identity}, make)

    def _near(self, mapped: Arrays, images: NDArray[np.uint8] | None) -> NDArray[np.int64]:
        """Pairs of near-duplicates, by their number among the examples considered."""
        recipe, rows = self._subject.recipe, np.flatnonzero(self._considered)
        labels, seed = self._subject.labels, self._request.seed
        groups = np.zeros(len(rows), dtype=np.int64) if labels is None else labels[rows]
        looked_at: Arrays = {
            "groups": groups,
            "rows": rows,
            "neighbors": mapped["neighbors"],
            "distances": mapped["distances"],
        }
        depends_on = {
            "examples": self._subject.examples_identity,
            "looked_at": checksum(looked_at),
            "seed": seed,
        }

        def make() -> Arrays:
            with self._telling("near-duplicates", None) as told:
                pairs = near_pairs(
                    mapped["neighbors"].astype(np.int64),
                    mapped["distances"],
                    groups,
                    None if images is None else images[rows],
                    lambda some: flat_inputs(recipe.train, recipe.collate, rows[some]),
                    seed=seed,
                    told=told,
                )
            return {"pairs": pairs}

        return self._stage("near", depends_on, make)["pairs"]

    @contextmanager
    def _telling(self, what: str, total: int | None) -> Iterator[Callable[..., None]]:
        """Show progress while the block runs, which calls what it is given with how much is done
        (and of how much, where that was not known)."""

        def told(done: float, of: int | None = total) -> None:
            self._watcher.progress(what, done if of is None else min(done, of), of)

        told(0)
        try:
            with stops_at_once():
                yield told
            if total is not None:
                told(total)
        finally:
            self._watcher.end(what)

    def _judge(self, mapped: Arrays) -> Arrays:
        """The fields of LabelErrors, of the examples considered; nothing without labels."""
        if self._labels is None:
            return {}
        request, considered = self._request, self._considered
        inputs: Arrays = {
            "reduced": mapped["reduced"][considered],
            "labels": self._labels[considered],
        }
        if self._held_out is not None:
            inputs["probabilities"] = self._held_out.probabilities[considered]
        asked = {"budget": request.budget, "precision": request.precision}

        def make() -> Arrays:
            with self._telling("judging labels", None) as told:
                found = label_errors(
                    inputs["reduced"],
                    inputs["labels"],
                    probabilities=inputs.get("probabilities"),
                    seed=request.seed,
                    told=told,
                    **asked,
                )
            return dict(vars(found))

        depends_on = {"inputs": checksum(inputs), "seed": request.seed, "judge": JUDGE, **asked}
        return self._stage("labels", depends_on, make)

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
            if "losses" not in shown:  # of a foreign network: what the judge makes of the label
                shown["losses"] = np.zeros(len(considered), dtype=np.float32)
                shown["losses"][considered] = -np.log(np.maximum(judged["confidence"], 1e-6))
            self.keep_list = replace(self.keep_list, loss=shown["losses"].astype(np.float32))
            self._noise = self._noise_facts(judged)
        images = {name: array for name, array in inputs.items() if name == "images"}
        return {"features": shown, "map": places, "images": images}

    def _noise_facts(self, judged: Arrays) -> dict[str, Any]:
        """How many labels are wrong, and which are written for which, the most frequent first."""
        names = self._subject.class_names
        found = [names[label] for label in judged["classes"].tolist()]
        counts, reach = judged["counts"], judged["counts_reach"]
        pairs = [(r, w) for r in range(len(found)) for w in range(len(found)) if r != w]
        pairs.sort(key=lambda pair: -counts[pair])
        rate, width = judged["rate"].tolist()
        held_out = self._held_out
        quick = "cross-validated logistic regression on the features of a network"
        if self._request.extractor is None:
            quick += " that has seen the labels"
        return {
            "judge": "out-of-fold predictions" if held_out is not None else quick,
            "predictions": None if held_out is None else held_out.identity,
            "rate": rate,
            "rate_low": max(0.0, rate - width),
            "rate_high": min(1.0, rate + width),
            "num_taken": int((judged["flagged"] | judged["outliers"]).sum()),
            "num_contradicted": int(judged["contradicted"].sum()),
            "confusions": [
                {
                    "right": found[right],
                    "written": found[written],
                    "number": float(counts[right, written]),
                    "low": max(0.0, float(counts[right, written] - reach[right, written])),
                    "high": float(counts[right, written] + reach[right, written]),
                }
                for right, written in pairs[:_MOST_CONFUSIONS]
                if counts[right, written] >= 0.5
            ],
        }

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
                "folds": request.folds,
                "budget": request.budget,
                "precision": request.precision,
            },
            "label_noise": self._noise,
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
    """The folder in which the network of a seed and a keep-list is trained."""
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


def _train(
    request: CurateRequest,
    folder: CurationFolder,
    previous: KeepList | None,
    listen: NoteMargins | None,
) -> Path:
    """Train the network, unless that has been done; its run."""
    run = _run_folder(request, previous)
    _refuse_fewer_epochs(request, run)
    if run.holds_run:
        record = run.read()
        ended = record["status"] in ("finished", "target", "early")
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
            listen=listen,
        )
    )
    if result.status == "interrupted":
        raise Interrupted(result.signal or signal.SIGINT)
    if result.status == "diverged":
        raise SamepathError(f"training the network in {path} {result.message}")
    return path
