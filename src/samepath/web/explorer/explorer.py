"""The explorer without its server: a curation folder, a keep-list, and edits of it.

In: a folder, and requests that are already checked for form. Out: plain dictionaries and bytes for
the page. Guaranteed: nothing in the folder is ever written over; a saved keep-list is a new file.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samepath.curation.cluster import LEAST_POINTS, MIN_SAMPLES, PlaneClusters, k_distances
from samepath.curation.colours import DARK, LIGHT, class_colours
from samepath.curation.folder import Curation, CurationFolder
from samepath.curation.label_noise import none_seen
from samepath.curation.reasons import random_control
from samepath.data.keep_list import KeepList, read_keep_list, write_keep_list
from samepath.errors import UserError
from samepath.web.explorer.edits import OWN_LABEL, Columns, Edit, Edits, Rows, journal_of, texts
from samepath.web.explorer.review import Review

REASONS = (
    "", "noise", "duplicate", "near-duplicate", "label error", "outlier", "sampled out", "random",
    "dropped by hand", "kept by hand", "relabelled by hand",
)  # fmt: skip
SHOWN = ("loss", "doubt", "sure", "confidence", "training_margin")
"""Numbers of each example that the page has, in the order of its columns."""
NUM_NEIGHBOURS = 12
MAX_MIN_SAMPLES = 50


@dataclass(frozen=True, kw_only=True)
class ClassSliders:
    """A class, the settings it was clustered with, and the ends of its sliders: the settings are
    within them; at the lower end of eps almost all is noise, at the upper almost nothing."""

    name: str
    num_examples: int
    eps: float
    min_samples: int
    low: float
    high: float
    max_min_samples: int
    can_cluster: bool
    """False for too few points to have a density."""


class Explorer:
    """A curation folder and one of its keep-lists, being looked at and edited."""

    def __init__(self, path: Path, keep: Path | None = None, *, read_only: bool = False) -> None:
        self.folder = CurationFolder(path)
        self.curation: Curation = self.folder.read()
        self.keep = _choose_keep_list(self.folder) if keep is None else keep
        self.keep_list: KeepList = read_keep_list(self.keep)
        if len(self.keep_list) != len(self.curation):
            raise UserError(
                f"{self.keep} is about {len(self.keep_list)} examples and {path} about "
                f"{len(self.curation)}; give a keep-list of this folder"
            )
        labels = self.keep_list.labels
        if labels is not None and not np.array_equal(labels, self.curation.labels):
            raise UserError(f"{self.keep} has other labels than {path}; give one of this folder")
        journal = journal_of(self.keep, path)
        self.edits = Edits(self.keep_list, self.keep, journal, read_only=read_only)
        self.saved_as: Path | None = None
        self.review = Review(path, len(self.curation))
        self.known = _known(self.curation, self.keep_list)
        given = {*self.keep_list.reasons, *self.edits.columns.reasons}
        self.reasons = [*REASONS, *sorted(given - {*REASONS})]
        self._codes = {reason: code for code, reason in enumerate(self.reasons)}
        self.sliders: list[ClassSliders] = _sliders(self.curation)
        self._planes: dict[int, PlaneClusters] = {}

    # ---- what is shown

    def about(self) -> dict[str, Any]:
        """Facts for the page that are not of single examples, and the state of the edits."""
        curation, pictures = self.curation, self.curation.pictures
        recipe = Path(str(curation.about.get("recipe", ""))).name
        noise = curation.about.get("label_noise")
        return {
            "title": recipe or self.folder.path.resolve().name,
            "folder": str(self.folder.path),
            "keep": self.keep.name,
            "num_examples": len(curation),
            "has_labels": curation.has_labels,
            "has_losses": "loss" in self.known,
            "has_doubts": "doubt" in self.known,
            "has_guesses": "guesses" in curation.columns,
            "has_suggestions": "suggested" in self.known,
            "label_noise": noise,
            "none_seen": None if noise is None else none_seen(noise, len(curation)),
            "facts": curation.facts,
            "picture": None if pictures is None else [pictures.width, pictures.height],
            "classes": [asdict(sliders) for sliders in self.sliders],
            "colours": class_colours(len(self.sliders)),
            "palette": list(zip(LIGHT, DARK, strict=True)),
            "reasons": self.reasons,
            "parquet": find_spec("pyarrow") is not None,
            "set_aside": None if self.edits.set_aside is None else str(self.edits.set_aside),
            "notes": {int(row): self.edits.columns.notes[row] for row in self._noted()},
            **self.state(),
        }

    def state(self) -> dict[str, Any]:
        """The state of the edits, and the file they were saved to last."""
        saved_as = None if self.saved_as is None else self.saved_as.name
        return {**self.edits.state(), "saved_as": saved_as}

    def points(self) -> bytes:
        """Columns of N 4-byte numbers: x, y, loss, doubt (in percent), the network's sureness of
        its guess, confidence in the own label, training margin; label, guess, suggested label,
        label after relabelling, cluster, kept, reason, reviewed. What is not known is NaN or -1."""
        curation, now, number = self.curation, self.edits.columns, len(self.curation)
        unknown, none = np.full(number, np.nan), np.full(number, -1)
        floats = [self.known.get(name, unknown) for name in SHOWN]
        wholes = [
            curation.labels,
            curation.columns.get("guesses", none),
            self.known.get("suggested", none),
            now.targets,
            now.clusters,
            now.kept,
            self._coded(now.reasons),
            self.review.seen,
        ]
        parts = [np.asarray(each, dtype="<f4") for each in (*curation.positions.T, *floats)]
        parts += [np.asarray(each, dtype="<i4") for each in wholes]
        return b"".join(part.tobytes() for part in parts)

    def neighbours(self, row: int) -> list[tuple[int, float]]:
        """The nearest other examples, and their distances, in the space the map was made of."""
        reduced = self.curation.reduced
        squares = np.square(reduced - reduced[row]).sum(1)
        squares[row] = np.inf
        number = min(NUM_NEIGHBOURS, len(squares) - 1)
        near = np.argpartition(squares, number - 1)[:number] if number else np.arange(0)
        near = near[np.lexsort((near, squares[near]))]
        return [(int(other), float(np.sqrt(squares[other]))) for other in near]

    # ---- what is changed

    def mark(self, rows: Rows, kept: bool, note: str | None = None) -> dict[str, Any]:
        """Keep (with their own labels) or drop examples by hand; examples that are so already keep
        their reason."""
        old = self.edits.columns.take(rows)
        reasons, notes = old.reasons.copy(), old.notes.copy()
        differs = (old.kept != kept) | (old.targets != OWN_LABEL)
        reasons[differs] = "kept by hand" if kept else "dropped by hand"
        if note is not None:
            notes[:] = note
        done = f"{'keep' if kept else 'drop'} {_examples(rows)}"
        own = np.full(len(rows), OWN_LABEL)
        new = Columns(np.full(len(rows), kept), reasons, old.clusters, notes, own)
        return self._apply(done, rows, new, f"already {'kept' if kept else 'dropped'}")

    def relabel(self, rows: Rows, label: int | None, note: str | None = None) -> dict[str, Any]:
        """Keep examples with another label, one for all or (None) what is suggested of each; those
        whose own it is are kept with it."""
        if not self.curation.has_labels:
            raise UserError("these examples have no labels to change")
        names, own = self.curation.class_names, self.curation.labels[rows]
        targets = self._suggestions(rows) if label is None else np.full(len(rows), label)
        old = self.edits.columns.take(rows)
        notes = old.notes.copy()
        if note is not None:
            notes[:] = note
        targets = np.where(targets == own, OWN_LABEL, targets)
        before = np.where(old.kept, old.targets, -2)
        same = before == targets
        words = np.where(targets == OWN_LABEL, "kept by hand", "relabelled by hand").astype(object)
        reasons = np.where(same, old.reasons, words)
        new = Columns(np.full(len(rows), True), reasons, old.clusters, notes, targets)
        to = "as suggested" if label is None else f"as {names[label]}"
        return self._apply(f"relabel {_examples(rows)} {to}", rows, new, f"already {to}")

    def _suggestions(self, rows: Rows) -> Rows:
        suggested = self.known.get("suggested")
        if suggested is None:
            raise UserError("no labels are suggested here; choose one")
        found: Rows = suggested[rows].astype(np.int64)
        if (found < 0).any() or (found >= len(self.curation.class_names)).any():
            raise UserError("there is no suggestion for some of these examples; choose a label")
        return found

    def reviewed(self, rows: Rows | None) -> dict[str, Any]:
        """Remember that examples were looked at; None: begin the review again."""
        if rows is None:
            self.review.begin_again()
        else:
            self.review.add(rows)
        return {"num_reviewed": int(self.review.seen.sum())}

    def note(self, rows: Rows, note: str) -> dict[str, Any]:
        """Write a note beside examples; an empty note removes it."""
        new = self.edits.columns.take(rows)._replace(notes=texts([note] * len(rows)))
        title = f"{'note on' if note else 'no note on'} {_examples(rows)}"
        return self._apply(title, rows, new, "that is the note already")

    def cluster(self, label: int, eps: float, min_samples: int) -> Edit:
        """DBSCAN of one class, as an edit: noise is dropped, what was noise and is not comes back.
        What was decided by hand, or dropped for another reason, stays as it is."""
        name = self.curation.class_names[label]
        if not self.sliders[label].can_cluster:
            raise UserError(f"{name} has too few examples to be clustered: all are kept")
        rows = np.flatnonzero(self.curation.labels == label)
        if label not in self._planes:
            self._planes[label] = PlaneClusters(self.curation.positions[rows])
        clusters = self._planes[label].at(eps, min_samples)
        kept, reasons, _, notes, targets = self.edits.columns.take(rows)
        free = (reasons == "noise") | (kept & (reasons == ""))
        kept[free] = clusters[free] != -1
        reasons[free] = np.where(kept[free], texts([""]), texts(["noise"]))
        now = self.edits.columns  # only what changes goes to the page, at every move of a slider
        differs = (clusters != now.clusters[rows]) | (kept != now.kept[rows])
        return Edit(
            title=f"clusters of {name}: eps {eps:.3g}, min_samples {min_samples}",
            rows=rows[differs],
            after=Columns(kept, reasons, clusters, notes, targets).take(differs),
            setting=(label, eps, min_samples),
        )

    def use(self, edit: Edit) -> dict[str, Any]:
        return self._now(self.edits.apply(edit))

    def undo(self) -> dict[str, Any]:
        return self._now(self.edits.undo())

    def redo(self) -> dict[str, Any]:
        return self._now(self.edits.redo())

    def save(self) -> dict[str, Any]:
        """Write a new keep-list and its control (as many of each class, at random) beside the
        others; returns its place, and how to train with it."""
        out = self.folder.next_keep_list()
        columns, about = self.edits.columns, self.curation.about
        edited = replace(
            self.keep_list,
            clusters=columns.clusters,
            kept=columns.kept,
            reasons=columns.reasons.tolist(),
            notes=columns.notes.tolist() if len(self._noted()) else None,
            **self._labels_given(),
        )
        control = random_control(
            edited, self.curation.candidates | edited.kept, _seed(self.curation.about)
        )
        write_keep_list(out.with_name(out.name.replace("keep", "random", 1)), control)
        write_keep_list(out, edited)
        self.edits.mark_saved(out)
        self.saved_as = out
        words = ["samepath", "train", str(about.get("recipe", "RECIPE"))]
        words += ["--data", str(about["data"])] if about.get("data") else []
        return {
            "file": str(out),
            "num_kept": int(columns.kept.sum()),
            "train": shlex.join([*words, "--keep", str(out)]),
            **self.state(),
        }

    def _labels_given(self) -> dict[str, Any]:
        """What a keep-list says of new labels."""
        targets = self.edits.columns.targets
        relabelled = targets != OWN_LABEL
        suggested = self.known.get("suggested", self.curation.labels).astype(np.int64)
        if not relabelled.any():
            return {"relabelled": None}
        return {"relabelled": relabelled, "suggested": np.where(relabelled, targets, suggested)}

    def changes(self, rows: Rows, columns: Columns) -> dict[str, Any]:
        """New values of some rows, for the page."""
        return {
            "rows": rows.tolist(),
            "kept": columns.kept.astype(int).tolist(),
            "reasons": self._coded(columns.reasons).tolist(),
            "clusters": columns.clusters.tolist(),
            "notes": columns.notes.tolist(),
            "targets": columns.targets.tolist(),
        }

    def _apply(self, title: str, rows: Rows, new: Columns, nothing: str) -> dict[str, Any]:
        """Apply the rows that differ; raise `nothing` where none does."""
        old = self.edits.columns.take(rows)
        differs = np.any([before != after for before, after in zip(old, new, strict=True)], axis=0)
        if not differs.any():
            raise UserError(nothing)
        return self.use(Edit(title=title, rows=rows[differs], after=new.take(differs)))

    def _now(self, rows: Rows) -> dict[str, Any]:
        return {**self.state(), **self.changes(rows, self.edits.columns.take(rows))}

    def _noted(self) -> Rows:
        return np.flatnonzero(self.edits.columns.notes != "")

    def _coded(self, reasons: NDArray[np.object_]) -> Rows:
        return np.array([self._codes[reason] for reason in reasons], dtype=np.int64)


def _known(curation: Curation, keep_list: KeepList) -> dict[str, NDArray[Any]]:
    """What is known of each example, as far as it is: `loss`; `doubt`, the share of examples that
    are doubted less, in percent; `sure`, the network's probability of its guess; `confidence`, the
    probability of the own label; `training_margin`; `suggested`, a label. What the keep-list says
    comes first."""
    columns = curation.columns
    found: dict[str, NDArray[Any] | None] = {
        "loss": columns.get("losses") if keep_list.loss is None else keep_list.loss,
        "doubt": keep_list.doubt,
        "sure": columns.get("confidences"),
        "confidence": keep_list.confidence,
        "training_margin": keep_list.training_margin,
        "suggested": columns.get("guesses") if keep_list.suggested is None else keep_list.suggested,
    }
    if found["doubt"] is None and "suspicion" in columns:
        found["doubt"] = percentiles(columns["suspicion"])
    if not curation.has_labels:
        found["suggested"] = None
    return {name: column for name, column in found.items() if column is not None}


def percentiles(values: NDArray[np.floating]) -> NDArray[np.float32]:
    """The share of values that are lower than each, in percent; below 100, like
    the doubt of keep-lists."""
    below = np.searchsorted(np.sort(values), values)
    return (100.0 * below / max(len(values), 1)).astype(np.float32)


def _choose_keep_list(folder: CurationFolder) -> Path:
    """The keep-list with unsaved edits, if there is one; otherwise the newest."""
    saved, path = folder.keep_lists(), folder.path
    if not saved:
        raise UserError(f"{path} has no keep.csv; run `samepath curate` again, or give --keep FILE")
    begun = [keep for keep in saved if journal_of(keep, path).exists()]
    for keep in sorted(begun, key=lambda keep: journal_of(keep, path).stat().st_mtime_ns)[::-1]:
        if not Edits(read_keep_list(keep), keep, journal_of(keep, path), read_only=True).is_saved:
            return keep
    return saved[-1]


def _seed(about: dict[str, Any]) -> int:
    """The seed of a curation."""
    seed = about.get("settings", {}).get("seed")
    return seed if type(seed) is int else 0


def _examples(rows: Rows) -> str:
    return f"example {rows[0]}" if len(rows) == 1 else f"{len(rows)} examples"


def _sliders(curation: Curation) -> list[ClassSliders]:
    """The sliders of every class, in order."""
    chosen = {c.get("label"): c for c in curation.about.get("classes", [])}
    if not curation.has_labels and None in chosen:
        chosen[0] = chosen[None]
    return [
        _class_sliders(name, curation.positions[curation.labels == label], chosen.get(label, {}))
        for label, name in enumerate(curation.class_names)
    ]


def _class_sliders(name: str, points: NDArray[np.float32], chosen: dict[str, Any]) -> ClassSliders:
    least, typical, most = 0.1, 1.0, 10.0
    if can_cluster := len(points) >= LEAST_POINTS:
        curve = k_distances(points, MIN_SAMPLES - 1)
        least, typical, most = (float(v) for v in np.quantile(curve, [0.02, 0.95, 0.995]))
    eps, min_samples = chosen.get("eps"), chosen.get("min_samples")
    eps = float(eps) if isinstance(eps, (int, float)) and 0 < eps < 1e300 else max(typical, 1e-6)
    min_samples = min_samples if type(min_samples) is int and min_samples > 0 else MIN_SAMPLES
    return ClassSliders(
        name=name,
        num_examples=len(points),
        eps=eps,
        min_samples=min_samples,
        low=max(min(least, eps / 3), eps / 100),
        high=max(1.5 * most, 3 * eps),
        max_min_samples=max(MAX_MIN_SAMPLES, 2 * min_samples),
        can_cluster=can_cluster,
    )
