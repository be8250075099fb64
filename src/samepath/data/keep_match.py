"""Is this the keep-list of these examples?

In: a keep-list and a recipe's training data. Out: nothing, or one line that says why not. Compared
are the number of examples, the labels (of data that is not in memory, some) and, where the
`curation.json` written with the list lies beside it, the examples themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samepath.data.examples import Collate, examples_identity, in_memory, labels_of
from samepath.data.keep_list import KeepList
from samepath.data.sources import Data, as_source
from samepath.errors import UserError
from samepath.files import brief, read_object

ABOUT = "curation.json"
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
    made_of = f" (it was made of {_origin(about)})" if about else ""
    instead = f"give a keep-list made of {recipe!r} and its --data{made_of}"
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


def _origin(about: Mapping[str, Any]) -> str:
    data = about.get("data")
    return brief(f"{about.get('recipe')}{f' --data {data}' if data else ''}")
