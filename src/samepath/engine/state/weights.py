"""Weights kept along the way, to be looked at later: one safetensors file per epoch asked for.

In: a model. Out: `weights/epoch-00010.safetensors`, `weights/best.safetensors`, or a model put back
to what it was then. Guaranteed: a file of such a name is complete, and is only loaded if its bytes
match the digest in it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from samepath.engine.state.checkpoint import write_tensors
from samepath.engine.state.state import MISSHAPEN, State, digest, one_line
from samepath.errors import CheckpointDamaged
from samepath.files import folder_aside, parse_json, read_through, sync_folder

BEST: Literal["best"] = "best"
"""Instead of a number of epochs: those with the lowest validation loss."""

Epoch = int | Literal["best"]


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The weights and buffers of a model, as copies."""
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


def write_weights(
    folder: Path, epoch: Epoch, tensors: dict[str, Tensor], after: int | None = None
) -> None:
    """Write the weights that a model had after so many epochs, or at its best, which it was `after`
    so many."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (f"epoch-{epoch:05d}" if isinstance(epoch, int) else epoch)
    after = epoch if isinstance(epoch, int) else after
    about = {"digest": digest(State(tensors, {})), "epochs": after}
    with folder_aside(path) as aside:  # safetensors has a file of its own beside the one it writes
        written = aside / "weights"
        write_tensors(written, tensors, {"about": json.dumps(about)})  # several have no order
        written.replace(path.with_suffix(".safetensors"))
        sync_folder(folder)


def kept_weights(folder: Path) -> dict[Epoch, Path]:
    """Epochs and their files, in order, the best ones last."""
    numbered: dict[Epoch, Path] = {}
    for path in sorted(folder.glob("epoch-*.safetensors")):
        if match := re.fullmatch(r"epoch-(\d+)", path.stem):
            numbered[int(match[1])] = path
    best = folder / f"{BEST}.safetensors"
    return {**numbered, **({"best": best} if best.is_file() else {})}


def epochs_of(path: Path) -> int:
    """Epochs after which a file's weights were reached, as it says itself; -1 if it does not."""
    try:
        with safe_open(path, framework="pt") as file:
            return int(_about(file).get("epochs") or -1)
    except (OSError, SafetensorError, *MISSHAPEN):
        return -1


def _about(file: Any) -> dict[str, Any]:
    known = file.metadata() or {}
    about = parse_json(known["about"]) if "about" in known else known
    return about if isinstance(about, dict) else {}


def load_weights(path: Path, model: nn.Module) -> str:
    """Put a model back to what it was when the file was written; the weights' digest."""
    try:
        read_through(path)
        with safe_open(path, framework="pt") as file:
            recorded = _about(file).get("digest")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, MemoryError, SafetensorError, *MISSHAPEN) as error:
        raise CheckpointDamaged(f"{path}: cannot be read ({one_line(error)})") from error
    if digest(State(tensors, {})) != recorded:
        raise CheckpointDamaged(f"{path}: the weights do not match their digest")
    try:
        model.load_state_dict(tensors)
    except MISSHAPEN as error:
        raise CheckpointDamaged(
            f"{path}: does not fit this recipe's model ({one_line(error)})"
        ) from error
    return str(recorded)
