"""Features of all training examples: what passes through one layer of a trained network.

In: a recipe; a network: the recipe's model with the weights of a run or a file, or what extractor()
of a Python file returns; a layer (NAME: its output; NAME:input: what goes into it). Out:
`features`, the loss of each example, and, of a classifier, its probabilities. Examples are loaded
as for validation, without augmentation.
Guaranteed: a run of another recipe and weights that do not fit are refused in one line; the same
bits at every worker count and after any interruption: fixed grains, random state keyed by (seed,
grain), one thread a worker. A few grains at a time go to disk as a block, each worker's own; what
an interrupted extraction has is not computed again.
"""

from __future__ import annotations

import difflib
import runpy
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from samepath.console import SilentWatcher, Watcher
from samepath.curation.folder import Arrays, read_arrays, write_arrays
from samepath.data import GrainRequest, Loaders, Source, as_source, seed_everything
from samepath.engine.comm.tensors import to_device
from samepath.engine.launch.launch import launch
from samepath.engine.run.request import available_workers
from samepath.engine.run.session import start
from samepath.engine.state.checkpoint import weights_of
from samepath.engine.step.loss_metrics import loss_alone
from samepath.errors import UserError
from samepath.keys import key
from samepath.plan import assign
from samepath.recipe import Recipe, find_recipe, where

INPUT = ":input"
WHOLE = "model"
"""The name of the model itself."""
_SHOWN = 40
BLOCK = 4
"""Grains that are written at once."""
QUICK_SECONDS = 10.0
"""What takes less is not worth starting workers for."""


# ---- the network


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
                found: Tensor | None = loss_alone(recipe.loss(model, batch))
                return found
            model(batch[0] if isinstance(batch, (tuple, list)) else batch)
            return None


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


# ---- one layer of it


class Tap:
    """What passed through one side of a layer, the last time it ran."""

    def __init__(self, layer: str, model: nn.Module) -> None:
        self.layer = layer
        modules = layers_of(model)
        name = layer.removesuffix(INPUT)
        if name not in modules:
            near = difflib.get_close_matches(name, modules, n=1)
            hint = f" did you mean {near[0]!r}?" if near else ""
            raise UserError(f"--layer {layer}: the model has no such layer;{hint} {_listed(model)}")
        self.value: Tensor | None = None
        module = modules[name]
        if layer.endswith(INPUT):
            self.handle = module.register_forward_pre_hook(self._keep)
        else:
            self.handle = module.register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, *passed: Any) -> None:
        self.value = _first_tensor(passed[-1])

    def rows(self, num_examples: int) -> Tensor:
        """What passed, one flat row per example."""
        if self.value is None:
            raise UserError(f"--layer {self.layer}: no tensor passed there; choose another layer")
        if not self.value.ndim or len(self.value) != num_examples:
            raise UserError(
                f"--layer {self.layer}: it has the shape {tuple(self.value.shape)} for "
                f"{num_examples} examples; choose a layer whose first dimension is the examples"
            )
        return self.value.detach().reshape(num_examples, -1).float()


@contextmanager
def _tapped(model: nn.Module, *layers: str | None) -> Iterator[list[Tap]]:
    """Taps on some layers of a model."""
    taps: list[Tap] = []
    try:
        taps += [Tap(layer, model) for layer in layers if layer is not None]
        yield taps
    finally:
        for tap in taps:
            tap.handle.remove()


def _last_linear(model: nn.Module, forward: Callable[[], Any]) -> str | None:
    """The name of the linear layer that runs last in a forward pass."""
    ran: list[str] = []
    handles = [
        module.register_forward_hook(lambda *passed, name=name: ran.append(name))
        for name, module in layers_of(model).items()
        if isinstance(module, nn.Linear)
    ]
    try:
        forward()
    finally:
        for handle in handles:
            handle.remove()
    return ran[-1] if ran else None


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """All modules by the names that a layer may be given."""
    return {name or WHOLE: module for name, module in model.named_modules()}


def _listed(model: nn.Module) -> str:
    names = list(layers_of(model))
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"choose one of {', '.join(names[:_SHOWN])}{more} (add {INPUT} for what goes into it)"


def _first_tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    items = value.values() if isinstance(value, dict) else value
    if not isinstance(value, (dict, tuple, list)):
        return None
    return next((found for item in items if (found := _first_tensor(item)) is not None), None)


# ---- all examples


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """Everything a worker needs to know; it crosses a process border."""

    recipe: str
    data: str | None
    extractor: Extractor
    layer: str
    """NAME, or NAME:input."""
    head: str | None
    """The layer whose output is a classifier's logits."""
    num_examples: int
    grain_size: int
    grain_seconds: float
    """What one took, to see whether further workers are worth their start."""

    @property
    def num_blocks(self) -> int:
        return -(-self.num_examples // (BLOCK * self.grain_size))

    def grains(self, block: int) -> range:
        """Numbers of a block's grains."""
        num_grains = -(-self.num_examples // self.grain_size)
        return range(block * BLOCK, min((block + 1) * BLOCK, num_grains))


def plan_extraction(
    recipe: Recipe,
    model: nn.Module,
    extractor: Extractor,
    *,
    name: str,
    data: str | None = None,
    layer: str | None = None,
    num_classes: int | None = None,
) -> Extraction:
    """Look at one grain to find the layer, and whether the model is a classifier."""
    source = as_source(recipe.train, seed=extractor.seed, collate=recipe.collate)
    first = np.arange(min(recipe.grain_size, len(source)), dtype=np.int64)
    batch = next(iter(source.load(iter([GrainRequest(-1, first)]))))
    with torch.no_grad():
        losses: list[Tensor | None] = []
        linear = _last_linear(model, lambda: losses.append(extractor.forward(recipe, model, batch)))
        own = extractor.file is None
        if layer is None and own and linear is None:
            raise UserError(
                f"the model runs no nn.Linear to take features at; --layer: {_listed(model)}"
            )
        layer = layer or (f"{linear}{INPUT}" if own else WHOLE)
        head = linear if own else None
        with _tapped(model, layer, head) as taps:
            began = time.perf_counter()
            extractor.forward(recipe, model, batch)
            seconds = time.perf_counter() - began
            taps[0].rows(len(first))
            if head and not _has_logits(taps[1].value, batch, losses[0], num_classes):
                head = None
    return Extraction(
        recipe=name,
        data=data,
        extractor=extractor,
        layer=layer,
        head=head,
        num_examples=len(source),
        grain_size=recipe.grain_size,
        grain_seconds=seconds,
    )


def _has_logits(
    output: Tensor | None, batch: Any, loss: Tensor | None, num_classes: int | None
) -> bool:
    """Whether a layer's output are the logits of a batch's labels."""
    labels = batch_labels(batch)
    if output is None or labels is None or output.ndim != 2 or len(output) != len(labels):
        return False
    if int(labels.max()) >= output.shape[1] or int(labels.min()) < 0:
        return False
    entropy = F.cross_entropy(output.float(), labels)
    is_loss = loss is not None and torch.allclose(entropy, loss.float(), rtol=1e-3, atol=1e-5)
    return is_loss or output.shape[1] == num_classes


def batch_labels(batch: Any) -> Tensor | None:
    """The integer labels of a batch (inputs, labels)."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        return None
    labels = batch[1]
    whole = isinstance(labels, Tensor) and labels.ndim == 1 and not labels.is_floating_point()
    return labels.long() if whole and labels.dtype != torch.bool else None


def extract(
    extraction: Extraction,
    model: nn.Module,
    folder: Path,
    *,
    num_workers: int | Literal["auto"] = "auto",
    watcher: Callable[[], Watcher] = SilentWatcher,
) -> Arrays:
    """Features, losses and probabilities. `folder` holds blocks until all are there."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / "weights.safetensors"
    save_file(weights_of(model), weights)
    waiting = [n for n in range(extraction.num_blocks) if not _is_whole(_block(folder, n))]
    if num_workers == "auto":
        alone = len(waiting) * BLOCK * extraction.grain_seconds
        num_workers = 1 if alone < QUICK_SECONDS else available_workers()
    workers = max(1, min(num_workers, len(waiting)))
    if waiting and workers == 1:
        _work(extraction, folder, waiting, watcher)
    elif waiting:
        launch(_work, (extraction, folder, waiting, watcher), workers)
    found = _joined([read_arrays(_block(folder, n)) for n in range(extraction.num_blocks)])
    bad = np.flatnonzero(~np.isfinite(found["features"]).all(1))
    if len(bad):
        raise UserError(
            f"the features of {len(bad)} of {extraction.num_examples} examples at the layer "
            f"{extraction.layer} are NaN or infinite, the first is example {bad[0]}; mend the "
            "data, or train a network that does not diverge"
        )
    shutil.rmtree(folder)
    return found


def _block(folder: Path, number: int) -> Path:
    return folder / f"block-{number:06d}.safetensors"


def _is_whole(path: Path) -> bool:
    try:
        return path.exists() and bool(read_arrays(path))
    except ValueError:
        return False


def _joined(parts: list[Arrays]) -> Arrays:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _work(
    extraction: Extraction, folder: Path, waiting: list[int], watcher: Callable[[], Watcher]
) -> None:
    """One worker's share of the blocks."""
    recipe = find_recipe(extraction.recipe, extraction.data)
    seed = extraction.extractor.seed
    with start(seed=seed, threads=1) as session:
        model = extraction.extractor.model(recipe)
        model.load_state_dict(load_file(folder / "weights.safetensors"))
        model.to(session.device)
        loaders = Loaders(recipe.loader_workers)
        source = as_source(recipe.train, seed=seed, loaders=loaders, collate=recipe.collate)
        mine = [waiting[n] for n in assign(len(waiting), session.num_workers)[session.worker]]
        watch = watcher() if session.is_first else SilentWatcher()
        numbers = [grain for block in mine for grain in extraction.grains(block)]
        what = f"features of {extraction.num_examples} examples"
        watch.progress(what, 0, len(numbers))
        try:
            found = _grains(extraction, recipe, model, source, numbers, session.device)
            done = 0
            for block in mine:
                parts = list(islice(found, len(extraction.grains(block))))
                write_arrays(_block(folder, block), _joined(parts))
                done += len(parts)
                watch.progress(what, done, len(numbers))
        finally:
            watch.end(what)


def _grains(
    extraction: Extraction,
    recipe: Recipe,
    model: nn.Module,
    source: Source,
    numbers: list[int],
    device: torch.device,
) -> Iterator[Arrays]:
    """What is found of each grain, in order."""
    size, extractor = extraction.grain_size, extraction.extractor
    examples = [
        np.arange(n * size, min((n + 1) * size, extraction.num_examples), dtype=np.int64)
        for n in numbers
    ]
    requests = (GrainRequest(-1, rows) for rows in examples)
    with torch.no_grad(), _tapped(model, extraction.layer, extraction.head) as taps:
        for number, rows, batch in zip(numbers, examples, source.load(requests), strict=True):
            batch = to_device(batch, device)
            seed_everything(key("features", extractor.seed, number))
            extractor.forward(recipe, model, batch)
            found = {"features": taps[0].rows(len(rows))}
            if extraction.head:
                logits, labels = taps[1].rows(len(rows)), batch_labels(batch)
                assert labels is not None
                found["losses"] = F.cross_entropy(logits, labels, reduction="none")
                found["probabilities"] = logits.softmax(1)
            elif extractor.file is None:
                ones = (_example(batch, place, len(rows)) for place in range(len(rows)))
                losses = [extractor.forward(recipe, model, one) for one in ones]
                found["losses"] = torch.stack([loss.float() for loss in losses if loss is not None])
            yield {name: value.cpu().numpy() for name, value in found.items()}


def _example(batch: Any, place: int, num_examples: int) -> Any:
    """One example of a batch, as a batch."""
    if isinstance(batch, Tensor):
        alone = batch.ndim and len(batch) == num_examples
        return batch[place : place + 1].clone() if alone else batch
    if isinstance(batch, dict):
        return {name: _example(value, place, num_examples) for name, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        parts = [_example(value, place, num_examples) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch
