"""The network whose features are looked at, and where its weights are from.

In: a run, a file of weights, a Python file with an extractor(), or nothing: then one is trained.
Out: a model with its weights, their digest, and how to make the same in another process.
Guaranteed: a run of another recipe and weights that do not fit are refused in one line; an
interrupted training goes on; a network is trained once for one seed and one keep-list.
"""

from __future__ import annotations

import runpy
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samepath.curation.folder import CurationWriter
from samepath.curation.request import CurateRequest
from samepath.data import seed_everything
from samepath.data.keep_list import KeepList, write_keep_list
from samepath.engine.launch.reports import Interrupted
from samepath.engine.state.reopen import look_at
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.state.state import State, digest
from samepath.engine.train import Request, train
from samepath.errors import SamepathError, UserError
from samepath.files import brief, read_tensors
from samepath.keys import key
from samepath.recipe import Recipe, where


@dataclass(frozen=True, kw_only=True)
class Extractor:
    """How to make the network in any process; its weights come from a file beside it."""

    file: str | None = None
    """A Python file with an extractor(); None: the recipe's own model."""
    seed: int = 0

    def model(self, recipe: Recipe) -> nn.Module:
        """The network, ready to be evaluated, with the weights it is made with."""
        seed_everything(key("model", self.seed))
        model = recipe.model() if self.file is None else _of_file(Path(self.file))
        return model.eval()

    def forward(self, recipe: Recipe, model: nn.Module, batch: Any) -> Tensor | None:
        """Run it on a batch: the loss, for a model of the recipe."""
        device = next((p.device.type for p in model.parameters()), "cpu")
        with torch.autocast(device, recipe.autocast, enabled=recipe.autocast is not None):
            if self.file is None:
                return recipe.loss(model, batch)
            model(batch[0] if isinstance(batch, (tuple, list)) else batch)
            return None


def weights_digest(model: nn.Module) -> str:
    """What two networks with the same weights share."""
    return digest(State(dict(model.state_dict()), {}))


def load_from(source: Path, recipe: Recipe, model: nn.Module) -> None:
    """Give a recipe's model the weights of a run, or of a safetensors file."""
    if source.is_file():
        _load_file(source, model)
        return
    if not source.exists():
        raise UserError(f"--from {source}: no such run or file; give a folder of `samepath train`")
    run = look_at(source)
    if run.config.get("identity") != recipe.origin.identity:
        raise UserError(
            f"--from {source}: it is a run of the recipe {run.config['recipe']}, not of "
            f"{recipe.origin.name}; give a run of {recipe.origin.name}"
        )
    trained, _ = run.model()
    model.load_state_dict(trained.state_dict())


def _load_file(path: Path, model: nn.Module) -> None:
    try:
        tensors, _ = read_tensors(path, "pt")
    except (OSError, ValueError) as error:
        raise UserError(
            f"--from {path}: cannot be read ({brief(error)}); give a run's folder, or a "
            "safetensors file with the model's state_dict()"
        ) from None
    expected = model.state_dict()
    missing, unknown = sorted(set(expected) - set(tensors)), sorted(set(tensors) - set(expected))
    if missing or unknown:
        what = f"it lacks {missing[0]!r}" if missing else f"the model has no {unknown[0]!r}"
        raise UserError(
            f"--from {path}: does not fit the recipe's model: {brief(what)} "
            f"({len(missing)} missing, {len(unknown)} unknown); give weights of this model"
        )
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise UserError(
                f"--from {path}: {name!r} has the shape {tuple(tensor.shape)}, the model's has "
                f"{tuple(expected[name].shape)}; give weights of this model"
            )
    model.load_state_dict(tensors)


def _of_file(path: Path) -> nn.Module:
    """The module that extractor() of a Python file returns."""
    if not path.is_file():
        raise UserError(f"--extractor {path}: no such file; give a Python file with extractor()")
    try:
        function: Callable[[], Any] | None = runpy.run_path(str(path)).get("extractor")
        model = None if function is None else function()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"--extractor {path} raised {where(error, path)}") from error
    if function is None:
        raise UserError(f"--extractor {path}: it has no extractor() function; add one")
    if not isinstance(model, nn.Module):
        raise UserError(
            f"--extractor {path}: extractor() returned {type(model).__name__}; return a "
            "torch.nn.Module that takes the recipe's inputs"
        )
    return model


def network_of(
    request: CurateRequest,
    recipe: Recipe,
    extractor: Extractor,
    model: nn.Module,
    folder: CurationWriter,
    previous: KeepList | None,
) -> str:
    """Give the model its weights, training them if need be; where they are from."""
    if extractor.file is not None:
        return extractor.file
    source = request.source or _train(request, folder, previous)
    load_from(source, recipe, model)
    return str(source)


def run_folder(request: CurateRequest, previous: KeepList | None) -> Path:
    """Where the network of a seed and a keep-list is trained."""
    keep = "" if previous is None else f"-{previous.identity[:8]}"
    return request.out / f"extractor{keep}{f'-seed{request.seed}' if request.seed else ''}"


def refuse_fewer_epochs(request: CurateRequest, previous: KeepList | None) -> None:
    """Raise if the network there has been trained for longer: what it was cannot be had back."""
    run = RunFolder(run_folder(request, previous))
    if not run.holds_run or request.epochs is None:
        return
    trained = run.read()["config"]["epochs"]
    if request.epochs < trained:
        raise UserError(
            f"--epochs {request.epochs}: the network in {run.path} was trained for {trained}; "
            "leave --epochs out to use it, or give another --out"
        )


def _train(request: CurateRequest, folder: CurationWriter, previous: KeepList | None) -> Path:
    refuse_fewer_epochs(request, previous)
    run = RunFolder(run_folder(request, previous))
    if run.holds_run:
        record = run.read()
        ended = record["status"] in ("finished", "target")
        if ended and request.epochs in (None, record["config"]["epochs"]):
            return run.path
    result, path = train(
        Request(
            recipe=request.recipe,
            data=request.data,
            keep=_fixed_copy(folder, previous),
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


def _fixed_copy(folder: CurationWriter, previous: KeepList | None) -> str | None:
    """A keep-list under a name of its own: the run stays what it is when keep.csv is replaced."""
    if previous is None:
        return None
    path = folder.cache / f"keep-{previous.identity}.csv"
    write_keep_list(path, previous, overwrite=True)
    return str(path)
