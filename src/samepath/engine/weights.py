"""Weights kept along the way, to be looked at later: one safetensors file per epoch asked for.

In: a model. Out: `weights/epoch-00010.safetensors`, `weights/best.safetensors`, or a model put back
to what it was then. Guaranteed: a file of such a name is complete, and is only loaded if its bytes
match the digest in it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from samepath.engine.checkpoint import sync_folder
from samepath.engine.state import State, digest
from samepath.errors import CheckpointDamaged

BEST = "best"
"""Instead of a number of epochs: those with the lowest validation loss."""

Epoch = int | Literal["best"]


def keep_weights(folder: Path, epoch: Epoch, model: nn.Module) -> None:
    """Write the weights and buffers a model has after so many epochs, or at its best."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (f"epoch-{epoch:05d}" if isinstance(epoch, int) else epoch)
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    aside = path.with_suffix(".part")
    save_file(tensors, aside, metadata={"digest": digest(State(tensors, {}))})
    aside.replace(path.with_suffix(".safetensors"))
    sync_folder(folder)


def kept_weights(folder: Path) -> dict[Epoch, Path]:
    """Epochs and their files, in order, the best ones last."""
    numbered: dict[Epoch, Path] = {}
    for path in sorted(folder.glob("epoch-*.safetensors")):
        if match := re.fullmatch(r"epoch-(\d+)", path.stem):
            numbered[int(match[1])] = path
    best = folder / f"{BEST}.safetensors"
    return {**numbered, **({"best": best} if best.is_file() else {})}


def load_weights(path: Path, model: nn.Module) -> str:
    """Put a model back to what it was when the file was written; the weights' digest."""
    try:
        with safe_open(path, framework="pt") as file:
            recorded = (file.metadata() or {}).get("digest")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointDamaged(f"{path}: cannot be read ({error})") from error
    if digest(State(tensors, {})) != recorded:
        raise CheckpointDamaged(f"{path}: the weights do not match their digest")
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise CheckpointDamaged(f"{path}: does not fit this recipe's model: {error}") from error
    return str(recorded)
