"""Keep-lists: which training examples are kept, and one line of reason for each.

In and out: a CSV file with the columns index, label, x, y, cluster, kept, reason; one row per
training example, in order. Further columns where they are known: decision (keep, drop or relabel;
one that is relabelled is kept, and trained with the label suggested), suggested, the NUMBERS, and
note. Guaranteed: what is written is read back equal (numbers to the last bit; text without blanks
around it); files of older versions, which lack the further columns, are read; a file is replaced
whole, and only when asked to; one that is not a keep-list ends in one line that names the file and
line; so does one that is not of a recipe's training data, or keeps none of it.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samepath.data.content import examples_identity
from samepath.data.formats.listing import number_in, read_table
from samepath.data.sources import Collate, Data, as_source, in_memory, labels_of
from samepath.errors import UserError
from samepath.files import brief, read_object, replaced

_LIMIT = 2.0**128 - 2.0**103  # from here on float32 rounds to infinity

ABOUT = "curation.json"
"""The file beside a keep-list that says what it was made of."""
COLUMNS = ("index", "label", "x", "y", "cluster", "kept", "reason")
NUMBERS = ("probability", "doubt", "confidence", "loss", "margin", "training_margin")
"""Columns of one number per example, or of none (NaN, an empty cell)."""
KEEP, DROP, RELABEL = "keep", "drop", "relabel"
"""Decisions."""

Floats32 = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class KeepList:
    """What is said of each training example: one row of every array is one example."""

    labels: NDArray[np.int64] | None
    """Classes; None where examples have none."""
    positions: NDArray[np.float32]
    """(N, 2): places on the map."""
    clusters: NDArray[np.int64]
    """-1 is noise."""
    kept: NDArray[np.bool_]
    reasons: Sequence[str]
    """Why it is dropped; of a kept one "", or "kept by hand"."""
    notes: Sequence[str] | None = None
    """What a person wrote beside it; None where there are no notes."""
    relabelled: NDArray[np.bool_] | None = None
    """Kept, with the suggested label in place of its own; None where nothing is."""
    suggested: NDArray[np.int64] | None = None
    """The label that it should have, as far as is known."""
    probability: Floats32 | None = None
    """How likely the suggested label is, of 1."""
    doubt: Floats32 | None = None
    """The share of all examples that are doubted less, in percent: below 100, which the most
    doubtful comes close to."""
    confidence: Floats32 | None = None
    """Probability that a model which has not seen the example gives to its label."""
    loss: Floats32 | None = None
    margin: Floats32 | None = None
    """The label's logit minus the largest other, of a model that has not seen the example."""
    training_margin: Floats32 | None = None
    """The same of a network that learned the label, averaged over its training."""

    def __post_init__(self) -> None:
        columns = [values for values in vars(self).values() if values is not None]
        lengths = {len(column) for column in columns}
        if lengths != {len(self.kept)} or self.positions.shape != (len(self.kept), 2):
            raise ValueError(f"the columns of a keep-list have {sorted(lengths)} rows; not equal")
        if self.relabelled is not None:
            if self.labels is None or self.suggested is None:
                raise ValueError("a keep-list that relabels needs labels and suggested labels")
            if (self.relabelled & ~self.kept).any():
                raise ValueError("an example cannot be both dropped and relabelled")

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def rows(self) -> NDArray[np.int64]:
        """Numbers of the kept examples, ascending."""
        return np.flatnonzero(self.kept)

    @property
    def targets(self) -> NDArray[np.int64] | None:
        """The labels that are trained with; None where examples have none."""
        if self.labels is None or self.relabelled is None:
            return self.labels
        assert self.suggested is not None
        return np.where(self.relabelled, self.suggested, self.labels)

    @property
    def decisions(self) -> list[str]:
        """KEEP, DROP or RELABEL for each example."""
        found = np.where(self.kept, KEEP, DROP).astype(object)
        if self.relabelled is not None:
            found[self.relabelled] = RELABEL
        return list(found)

    @property
    def identity(self) -> str:
        """SHA-256 of which examples are kept, of how many, and of new labels: all that training
        depends on."""
        found = hashlib.sha256(self.kept.astype(np.uint8).tobytes())
        targets = self.targets
        if targets is not None and (changed := np.flatnonzero(targets != self.labels)).size:
            found.update(b"relabelled" + changed.tobytes() + targets[changed].tobytes())
        return found.hexdigest()


def read_keep_list(path: Path) -> KeepList:
    """A keep-list from disk."""
    if not path.is_file():
        inside = path / "keep.csv"
        hint = f"did you mean {inside}?" if inside.is_file() else "`samepath curate` writes one"
        raise UserError(f"{path}: no such keep-list; {hint}")
    rows: list[tuple[Any, ...]] = []
    more: list[tuple[Any, ...]] = []
    header: dict[str, str] = {}
    unlabelled = False
    for number, (where, row) in enumerate(read_table(path, COLUMNS)):
        if row["index"] != str(number):
            raise UserError(
                f"{where}: index is {brief(repr(row['index']))} where {number} is due; "
                "a keep-list has one row per training example, in order"
            )
        if row["kept"] not in ("0", "1"):
            raise UserError(f"{where}: kept is {brief(repr(row['kept']))}; it must be 1 or 0")
        unlabelled = unlabelled if number else not row["label"]
        if unlabelled and row["label"]:
            raise UserError(f"{where}: has a label, and those before it have none")
        label = None if unlabelled else number_in(row, "label", where, int, 2**63)
        x, y = (number_in(row, name, where, float, _LIMIT) for name in "xy")
        cluster = number_in(row, "cluster", where, int, 2**63)
        rows.append((label, x, y, cluster, row["kept"] == "1", row["reason"], row.get("note")))
        more.append(_further(row, where, unlabelled))
        header = row
    if not rows:
        raise UserError(f"{path} names no examples; give a keep-list with a row for each")
    labels, xs, ys, clusters, kept, reasons, notes = zip(*rows, strict=True)
    relabelled, suggested, *numbers = zip(*more, strict=True)
    return KeepList(
        labels=None if unlabelled else np.array(labels, np.int64),
        positions=np.stack([xs, ys], axis=1).astype(np.float32),
        clusters=np.array(clusters, np.int64),
        kept=np.array(kept),
        reasons=list(reasons),
        notes=None if notes[0] is None else list(notes),
        relabelled=np.array(relabelled) if any(relabelled) else None,
        suggested=np.array(suggested, np.int64) if "suggested" in header else None,
        **{
            name: np.array(values, np.float32)
            for name, values in zip(NUMBERS, numbers, strict=True)
            if name in header
        },
    )


def _further(row: Mapping[str, str], where: str, unlabelled: bool) -> tuple[Any, ...]:
    """Whether an example is relabelled, the suggested label (that or 0), and the NUMBERS (NaN)."""
    kept = row["kept"] == "1"
    decision = row.get("decision", KEEP if kept else DROP)
    if decision not in (KEEP, DROP, RELABEL):
        raise UserError(
            f"{where}: decision is {brief(repr(decision))}; it must be {KEEP}, {DROP} or {RELABEL}"
        )
    if kept != (decision != DROP):
        raise UserError(
            f"{where}: decision is {decision!r} and kept is {int(kept)}; kept is 0 of what is "
            "dropped and 1 of all else"
        )
    suggested = 0
    if "suggested" in row and (row["suggested"] or not unlabelled):
        suggested = number_in(row, "suggested", where, int, 2**63)
    if decision == RELABEL:
        if unlabelled or "suggested" not in row:
            lacks = "label" if unlabelled else "suggested label"
            raise UserError(f"{where}: decision is {RELABEL!r}, but there is no {lacks}")
        if suggested < 0:
            raise UserError(f"{where}: suggested is {suggested}; a class is a number from 0")
    numbers = (
        number_in(row, name, where, float, _LIMIT) if row.get(name) else np.nan for name in NUMBERS
    )
    return decision == RELABEL, suggested, *numbers


def write_keep_list(path: Path, keep_list: KeepList, *, overwrite: bool = False) -> None:
    """Write a keep-list, over another only when told to."""
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists and is not written over; give another name")
    labels = [""] * len(keep_list) if keep_list.labels is None else keep_list.labels.tolist()
    columns: dict[str, Sequence[object]] = {
        "index": range(len(keep_list)),
        "label": labels,
        # numpy's text of a float32 has as many digits as it takes to read the same one back
        "x": keep_list.positions[:, 0].astype(np.str_).tolist(),
        "y": keep_list.positions[:, 1].astype(np.str_).tolist(),
        "cluster": keep_list.clusters.tolist(),
        "kept": keep_list.kept.astype(np.int64).tolist(),
        "reason": keep_list.reasons,
    }
    assert tuple(columns) == COLUMNS
    if keep_list.suggested is not None:
        columns["decision"] = keep_list.decisions
        columns["suggested"] = keep_list.suggested.tolist()
    for name in NUMBERS:
        numbers = getattr(keep_list, name)
        if numbers is not None:
            columns[name] = np.where(np.isnan(numbers), "", numbers.astype(np.str_)).tolist()
    if keep_list.notes is not None:
        columns["note"] = keep_list.notes
    try:
        with replaced(path) as aside, aside.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); give another path") from None


# ---- is this the keep-list of these examples?

_LOOKED_AT = 64
"""Examples whose labels are compared where all would have to be loaded from disk."""


def refuse_other_data(
    keep_list: KeepList,
    path: Path,
    *,
    recipe: str,
    data: Data,
    facts: Mapping[str, NDArray[Any]],
    collate: Collate | None,
    origin: Mapping[str, str | None],
) -> None:
    """Raise unless the keep-list at `path` is of this data and keeps some of it.

    `origin` is the recipe's identity and data_identity: where curation.json names the same, data
    on disk is not read through once more.
    """
    about = _read_about(path.with_name(ABOUT))
    data_of = f" --data {about['data']}" if about.get("data") else ""
    made_of = brief(f"{about.get('recipe')}{data_of}")
    instead = f"give a keep-list made of {recipe!r} and its --data" + (
        f" (it was made of {made_of})" if about else ""
    )
    num_examples = len(as_source(data, seed=0, collate=collate))
    if len(keep_list) != num_examples:
        raise UserError(
            f"{path} is of {len(keep_list):,} examples, but {recipe!r} has {num_examples:,} for "
            f"training; {instead}"
        )
    everything = in_memory(data, collate)
    if keep_list.labels is not None:
        looked_at = num_examples if everything else min(num_examples, _LOOKED_AT)
        rows = np.linspace(0, num_examples - 1, looked_at).round().astype(np.int64)
        labels = labels_of(data, facts, collate, rows)
        if labels is None:
            raise UserError(f"{path} has labels, but the examples of {recipe!r} none; {instead}")
        differing = np.flatnonzero(labels != keep_list.labels[rows])
        if len(differing):
            first = differing[0]
            raise UserError(
                f"{path} says that example {rows[first]} has the label "
                f"{keep_list.labels[rows[first]]}, but in {recipe!r} it has {labels[first]}; "
                f"{instead}"
            )
    expected = about.get("examples_identity")
    same_origin = all(about.get(name) == value for name, value in origin.items())
    compared = expected is not None and (everything or not same_origin)
    if compared and examples_identity(data, collate) != expected:
        raise UserError(
            f"{path} is of other examples than {recipe!r} has for training "
            f"(as {ABOUT} beside it says); {instead}"
        )
    if not keep_list.kept.any():
        raise UserError(f"{path} keeps none of {len(keep_list):,} examples; keep some")


def _read_about(path: Path) -> dict[str, Any]:
    """What curation.json says; nothing where there is none."""
    if not path.is_file():
        return {}
    try:
        return read_object(path)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read ({brief(error)}), so the keep-list beside it cannot be "
            "checked; put the file back, or move the keep-list to a folder of its own"
        ) from None
