"""Weights kept along the way, to be looked at later: one safetensors file per epoch asked for.

In: a model. Out: `weights/epoch-00010.safetensors`, or a model put back to that epoch. Guaranteed:
a file of that name is complete, and is only loaded if its bytes match the digest in it.
"""

from __future__ import annotations

import re
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from samepath.engine.checkpoint import sync_folder
from samepath.engine.state import State, digest
from samepath.errors import CheckpointDamaged


def keep_weights(folder: Path, epochs: int, model: nn.Module) -> None:
    """Write the weights and buffers a model has after so many epochs."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"epoch-{epochs:05d}.safetensors"
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in _tensors(model).items()}
    aside = path.with_suffix(".part")
    save_file(tensors, aside, metadata={"digest": digest(State(tensors, {}))})
    aside.replace(path)
    sync_folder(folder)


def kept_weights(folder: Path) -> dict[int, Path]:
    """Epochs and their files, in order."""
    named = {path: re.fullmatch(r"epoch-(\d+)", path.stem) for path in folder.glob("*.safetensors")}
    return dict(sorted((int(match[1]), path) for path, match in named.items() if match))


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


def _tensors(model: nn.Module) -> dict[str, nn.Parameter]:
    state: dict[str, nn.Parameter] = model.state_dict()
    return state
