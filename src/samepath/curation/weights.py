"""Weights for the network that features are taken from, wherever they are kept.

In: a run's folder, a curation's folder (its extractor), a checkpoint's folder or file, or a plain
state dict as .safetensors or .pt; a model. Out: the model with these weights, and one line that
says what was taken. Guaranteed: nothing that a file or a run names is executed or unpickled (.pt is
read with weights_only); weights fit by name and shape, every one of them, or are refused in one
line.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor, nn

from samepath.engine.state import checkpoint
from samepath.engine.state.checkpoint import weights_of
from samepath.engine.state.reopen import look_at
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.state.state import State, load_model
from samepath.errors import CheckpointDamaged, UserError
from samepath.files import (
    brief,
    check_memory,
    check_unpacked,
    guarded,
    open_plain,
    read_object,
    read_tensors,
    size_of,
)
from samepath.recipe import Recipe

_GIVE = (
    "give a run's folder, a curation's, a checkpoint, or the model's state_dict() as .safetensors "
    "or .pt"
)
_TORCH = (".pt", ".pth", ".ckpt", ".bin")
_DEPTH = 3
"""Dicts within dicts of a .pt file that are searched."""


def load_from(source: Path, recipe: Recipe, model: nn.Module) -> str:
    """Give a recipe's model the weights that are kept at `source`; says what was taken."""
    if source.is_file():
        if source.parent.joinpath("checkpoint.json").is_file():
            return _of_checkpoint(source.parent, source, model)
        return _of_file(source, model)
    if not source.exists():
        raise UserError(f"--from {source}: no such run or file; {_GIVE}")
    if source.joinpath("checkpoint.json").is_file():
        return _of_checkpoint(source, source, model)
    if source.joinpath("curation.json").is_file():
        return _of_run(source, _extractor_of(source), recipe, model)
    return _of_run(source, source, recipe, model)


def rehearse(model: nn.Module, other: nn.Module) -> None:
    """Save a model's weights and load them into one that is made alike, as it is done after
    training: what cannot be saved or loaded is found before."""
    try:
        other.load_state_dict(parse_tensors(dump_tensors(weights_of(model))))
    except (RuntimeError, ValueError, TypeError, LookupError) as error:
        raise UserError(
            f"the model's weights cannot be saved and loaded again ({brief(error)}); change the "
            "model so that its state_dict() fits a new one of its kind"
        ) from error


def _extractor_of(folder: Path) -> Path:
    """The run in which a curation trained its network."""
    about = read_object(folder / "curation.json")
    here = folder / Path(str(about.get("network"))).name
    if RunFolder(here).holds_run:
        return here
    raise UserError(
        f"--from {folder}: this curation trained no network of its own (it took "
        f"{brief(about.get('network'))}); give that one"
    )


def _of_run(source: Path, folder: Path, recipe: Recipe, model: nn.Module) -> str:
    run = look_at(folder)
    warnings: list[str] = []
    found = checkpoint.load_newest(run.folder.checkpoints, warnings.append)
    if found is None:
        why = warnings[0] if warnings else "none has been written yet"
        raise UserError(f"--from {source}: it holds no checkpoint ({why}); give another run")
    same = run.config.get("identity") == recipe.origin.identity
    named = str(run.config.get("recipe"))
    if not same and named != recipe.origin.name:
        what = f"it is a run of the recipe {named}, whose network"
    else:
        what = "its network"
    _put(found.state, model, source, what)
    words = f"the network is that of the run {folder} after step {found.state.structure['step']:,}"
    if same:
        return words
    changed = "that recipe has changed since" if named == recipe.origin.name else f"of {named}"
    return f"{words} ({changed}; all of its weights fit this recipe's model)"


def _of_checkpoint(folder: Path, source: Path, model: nn.Module) -> str:
    try:
        found = checkpoint.load(folder)
    except CheckpointDamaged as error:
        raise UserError(f"--from {source}: {brief(error)}; {_GIVE}") from None
    _put(found.state, model, source, "its network")
    return f"the network is that of the checkpoint {folder}"


def _put(state: State, model: nn.Module, source: Path, what: str) -> None:
    try:
        load_model(model, state)
    except CheckpointDamaged as error:
        why = brief(error).partition("(")[2].rstrip(")") or brief(error)
        raise UserError(
            f"--from {source}: {what} does not fit the recipe's model ({why}); give weights of "
            "this model"
        ) from None


def _of_file(path: Path, model: nn.Module) -> str:
    try:
        content = _read(path)
    except (OSError, ValueError) as error:
        raise UserError(f"--from {path}: cannot be read ({brief(error)}); {_GIVE}") from None
    wanted = set(model.state_dict())
    where, tensors = _fitting(content, wanted)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:  # names and shapes: torch says which
        raise UserError(
            f"--from {path}: does not fit the recipe's model ({brief(error)}); give weights of "
            "this model"
        ) from None
    return f"the network's weights are those of {path}" + (f" ({where})" if where else "")


def _read(path: Path) -> Mapping[Any, Any]:
    """What is in a file: tensors by name, or, of a .pt file, dicts that may hold such."""
    if path.suffix.lower() not in _TORCH:
        return read_tensors(path, "pt")[0]
    with open_plain(path) as file:
        check_memory(size_of(file))
    if zipfile.is_zipfile(path):
        packed = guarded(lambda: sum(part.file_size for part in zipfile.ZipFile(path).infolist()))
        check_unpacked(packed, path.stat().st_size)
    content = guarded(lambda: torch.load(path, map_location="cpu", weights_only=True))
    if not isinstance(content, Mapping):
        raise ValueError(f"it holds a {type(content).__name__}, not a state_dict()")
    return content


def _fitting(content: Mapping[Any, Any], wanted: set[str]) -> tuple[str, dict[str, Tensor]]:
    """The part of a file that has all of the names that are wanted, in words, and its tensors; the
    file's own where none has, so that torch says what is missing."""
    first: dict[str, Tensor] = {}
    for where, tensors in _state_dicts(content, "", _DEPTH):
        first = first or tensors
        if wanted <= tensors.keys() and not where:
            return "", tensors
        prefixes = {name.removesuffix(one) for one in sorted(wanted)[:1] for name in tensors
                    if name.endswith(one)}  # fmt: skip
        for prefix in sorted(prefixes, key=len):
            if all(prefix + name in tensors for name in wanted):
                words = [f"its {where!r}"] if where else []
                words += [f"names without {prefix!r}"] if prefix else []
                return ", ".join(words), {name: tensors[prefix + name] for name in wanted}
    return "", first


def _state_dicts(
    content: Mapping[Any, Any], where: str, depth: int
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    tensors = {str(name): t for name, t in content.items() if isinstance(t, Tensor)}
    if tensors:
        yield where, tensors
    for name, part in content.items():
        if isinstance(part, Mapping) and depth:
            yield from _state_dicts(part, f"{where}.{name}".lstrip("."), depth - 1)
