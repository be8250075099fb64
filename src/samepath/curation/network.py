"""The network of a round, trained here if none is given.

In: a request, the keep-list of the round before. Out: a model with its weights, and where those are
from. Guaranteed: an interrupted training goes on; a network is trained once for one seed and one
keep-list.
"""

from __future__ import annotations

import signal
from pathlib import Path

from torch import nn

from samepath.curation.extractor import Extractor, load_from
from samepath.curation.folder import CurationFolder
from samepath.curation.request import CurateRequest
from samepath.data.keep_list import KeepList, write_keep_list
from samepath.engine.launch.reports import Interrupted
from samepath.engine.run.options import Asked
from samepath.engine.run.train import Request, train
from samepath.engine.state.run_folder import RunFolder
from samepath.errors import SamepathError, UserError
from samepath.recipe import FoundRecipe


def network_of(
    request: CurateRequest,
    found: FoundRecipe,
    extractor: Extractor,
    model: nn.Module,
    folder: CurationFolder,
    previous: KeepList | None,
) -> str:
    """Give the model its weights; where they are from."""
    if extractor.file is not None:
        return extractor.file
    source = request.source or _train(request, folder, previous)
    load_from(source, found, model)
    return str(source)


def run_folder(request: CurateRequest, previous: KeepList | None) -> Path:
    """Where the network of a seed and a keep-list is trained."""
    name = "extractor"
    if previous is not None:
        name += f"-{previous.identity[:8]}"
    if request.seed:
        name += f"-seed{request.seed}"
    return request.out / name


def refuse_fewer_epochs(request: CurateRequest, previous: KeepList | None) -> None:
    """A network that has been trained for longer cannot be had back."""
    run = RunFolder(run_folder(request, previous))
    if not run.holds_run or request.epochs is None:
        return
    trained = run.read()["config"]["epochs"]
    if request.epochs < trained:
        raise UserError(
            f"--epochs {request.epochs}: the network in {run.path} was trained for {trained}; "
            "leave --epochs out to use it, or give another --out"
        )


def _train(request: CurateRequest, folder: CurationFolder, previous: KeepList | None) -> Path:
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
            asked=Asked(epochs=request.epochs, seed=request.seed),
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


def _fixed_copy(folder: CurationFolder, previous: KeepList | None) -> str | None:
    """A keep-list under a name of its own: the run stays what it is when keep.csv is replaced."""
    if previous is None:
        return None
    path = folder.cache / f"keep-{previous.identity}.csv"
    write_keep_list(path, previous, overwrite=True)
    return str(path)
