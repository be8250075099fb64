"""Features of all training examples: what passes through one layer of a trained network.

In: a recipe, a network with its weights, a layer (NAME: its output; NAME:input: what goes into it).
Out: `features`, the loss of each example, and,
of a classifier, its probabilities. Examples are loaded as for validation, without augmentation.
Guaranteed: the same bits at every worker count and after any interruption: fixed grains, random
state keyed by (seed, grain), one thread a worker. A few grains at a time go to disk as a block,
each worker's own; what an interrupted extraction has is not computed again.
"""

from __future__ import annotations

import difflib
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from samepath.console import SilentWatcher, Watcher
from samepath.curation.folder import Arrays, read_arrays, write_arrays
from samepath.curation.network import Extractor
from samepath.data import GrainRequest, Loaders, Source, as_source, seed_everything
from samepath.engine.comm.tensors import to_device
from samepath.engine.launch.launch import launch
from samepath.engine.run.request import available_workers
from samepath.engine.run.session import start
from samepath.errors import UserError
from samepath.keys import key
from samepath.plan import assign
from samepath.recipe import Recipe, find_recipe

INPUT = ":input"
WHOLE = "model"
"""The name of the model itself."""
_SHOWN = 40
BLOCK = 4
"""Grains that are written at once."""
QUICK_SECONDS = 10.0
"""What takes less is not worth starting workers for."""


def named(model: nn.Module) -> dict[str, nn.Module]:
    """All modules by name."""
    return {name or WHOLE: module for name, module in model.named_modules()}


class Tap:
    """What passed through one side of a layer, the last time it ran."""

    def __init__(self, layer: str, model: nn.Module) -> None:
        self.layer = layer
        modules = named(model)
        name = layer.removesuffix(INPUT)
        if name not in modules:
            near = difflib.get_close_matches(name, modules, n=1)
            hint = f" did you mean {near[0]!r}?" if near else ""
            names = _listed(list(modules))
            raise UserError(f"--layer {layer}: the model has no such layer;{hint} {names}")
        self.value: Tensor | None = None
        if layer.endswith(INPUT):
            self.handle = modules[name].register_forward_pre_hook(self._keep)
        else:
            self.handle = modules[name].register_forward_hook(self._keep)

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
def tapped(model: nn.Module, *layers: str) -> Iterator[list[Tap]]:
    """Taps on some layers of a model."""
    taps: list[Tap] = []
    try:
        taps += [Tap(layer, model) for layer in layers]
        yield taps
    finally:
        for tap in taps:
            tap.handle.remove()


def last_linear(model: nn.Module, forward: Callable[[], Any]) -> str | None:
    """The name of the linear layer that runs last in a forward pass."""
    ran: list[str] = []

    def note(name: str) -> Callable[..., None]:
        return lambda *passed: ran.append(name)

    handles = [
        module.register_forward_hook(note(name))
        for name, module in named(model).items()
        if isinstance(module, nn.Linear)
    ]
    try:
        forward()
    finally:
        for handle in handles:
            handle.remove()
    return ran[-1] if ran else None


def _listed(names: list[str]) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"choose one of {', '.join(names[:_SHOWN])}{more} (add {INPUT} for what goes into it)"


def _first_tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    items = value.values() if isinstance(value, dict) else value
    if isinstance(value, (dict, tuple, list)):
        for item in items:
            if (found := _first_tensor(item)) is not None:
                return found
    return None


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
    seed: int = 0

    @property
    def num_blocks(self) -> int:
        return -(-self.num_examples // (BLOCK * self.grain_size))


def plan_extraction(
    recipe: Recipe,
    model: nn.Module,
    extractor: Extractor,
    *,
    name: str,
    data: str | None = None,
    layer: str | None = None,
    num_classes: int | None = None,
    seed: int = 0,
) -> Extraction:
    """Look at one grain to find the layer, and whether the model is a classifier."""
    source = as_source(recipe.train, seed=seed, collate=recipe.collate)
    first = np.arange(min(recipe.grain_size, len(source)), dtype=np.int64)
    batch = next(iter(source.load(iter([GrainRequest(-1, first)]))))
    with torch.no_grad():
        losses: list[Tensor | None] = []
        linear = last_linear(model, lambda: losses.append(extractor.forward(recipe, model, batch)))
        own = extractor.file is None
        if layer is None and own and linear is None:
            names = _listed(list(named(model)))
            raise UserError(f"the model runs no nn.Linear to take features at; --layer: {names}")
        layer = layer or (f"{linear}{INPUT}" if own else WHOLE)
        head = linear if own and linear is not None else None
        with tapped(model, layer, *([head] if head else [])) as taps:
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
        seed=seed,
    )


def _has_logits(
    output: Tensor | None, batch: Any, loss: Tensor | None, num_classes: int | None
) -> bool:
    """Whether a layer's output are the logits of a batch's labels."""
    labels = _labels(batch)
    if output is None or labels is None or output.ndim != 2 or len(output) != len(labels):
        return False
    if int(labels.max()) >= output.shape[1] or int(labels.min()) < 0:
        return False
    entropy = F.cross_entropy(output.float(), labels)
    is_loss = loss is not None and torch.allclose(entropy, loss.float(), rtol=1e-3, atol=1e-5)
    return is_loss or output.shape[1] == num_classes


def _labels(batch: Any) -> Tensor | None:
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
    save_file({n: t.detach().cpu().clone() for n, t in model.state_dict().items()}, weights)
    waiting = [n for n in range(extraction.num_blocks) if not _whole(_block(folder, n))]
    if num_workers == "auto":
        alone = len(waiting) * BLOCK * extraction.grain_seconds
        num_workers = 1 if alone < QUICK_SECONDS else available_workers()
    workers = max(1, min(num_workers, len(waiting)))
    if waiting and workers == 1:
        _work(extraction, folder, waiting, watcher)
    elif waiting:
        launch(_work, (extraction, folder, waiting, watcher), workers)
    blocks = [read_arrays(_block(folder, n)) for n in range(extraction.num_blocks)]
    found = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    _refuse_unfinite(found["features"], extraction.layer)
    shutil.rmtree(folder)
    return found


def _refuse_unfinite(features: np.ndarray[Any, Any], layer: str) -> None:
    bad = np.flatnonzero(~np.isfinite(features).all(1))
    if len(bad):
        raise UserError(
            f"the features of {len(bad)} of {len(features)} examples at the layer {layer} are NaN "
            f"or infinite, the first is example {bad[0]}; mend the data, or train a network that "
            "does not diverge"
        )


def _block(folder: Path, number: int) -> Path:
    return folder / f"block-{number:06d}.safetensors"


def _whole(path: Path) -> bool:
    try:
        return path.exists() and bool(read_arrays(path))
    except ValueError:
        return False


def _work(
    extraction: Extraction, folder: Path, waiting: list[int], watcher: Callable[[], Watcher]
) -> None:
    """One worker's share of the blocks."""
    recipe = find_recipe(extraction.recipe, extraction.data)
    with start(seed=extraction.seed, threads=1) as session:
        model = extraction.extractor.model(recipe)
        model.load_state_dict(load_file(folder / "weights.safetensors"))
        model.to(session.device)
        source = as_source(
            recipe.train,
            seed=extraction.seed,
            loaders=Loaders(recipe.loader_workers),
            collate=recipe.collate,
        )
        mine = [waiting[n] for n in assign(len(waiting), session.num_workers)[session.worker]]
        watch = watcher() if session.is_first else SilentWatcher()
        grains_of = {n: range(n * BLOCK, _num_grains(extraction, n)) for n in mine}
        total = sum(len(grains) for grains in grains_of.values())
        what = f"features of {extraction.num_examples} examples"
        watch.progress(what, 0, total)
        try:
            found = _grains(extraction, recipe, model, source, grains_of, session.device)
            done = 0
            for number, grains in grains_of.items():
                parts = [next(found) for _ in grains]
                arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
                write_arrays(_block(folder, number), arrays)
                done += len(grains)
                watch.progress(what, done, total)
        finally:
            watch.end(what)


def _num_grains(extraction: Extraction, block: int) -> int:
    """Where a block's grains end."""
    return min((block + 1) * BLOCK, -(-extraction.num_examples // extraction.grain_size))


def _grains(
    extraction: Extraction,
    recipe: Recipe,
    model: nn.Module,
    source: Source,
    grains_of: dict[int, range],
    device: torch.device,
) -> Iterator[Arrays]:
    """What is found of each grain, in order."""
    numbers = [n for grains in grains_of.values() for n in grains]
    size = extraction.grain_size
    examples = [
        np.arange(n * size, min((n + 1) * size, extraction.num_examples), dtype=np.int64)
        for n in numbers
    ]
    layers = [extraction.layer, *([extraction.head] if extraction.head else [])]
    requests = (GrainRequest(-1, rows) for rows in examples)
    with torch.no_grad(), tapped(model, *layers) as taps:
        for number, rows, batch in zip(numbers, examples, source.load(requests), strict=True):
            batch = to_device(batch, device)
            seed_everything(key("features", extraction.seed, number))
            extraction.extractor.forward(recipe, model, batch)
            found = {"features": taps[0].rows(len(rows))}
            if extraction.head:
                logits, labels = taps[1].rows(len(rows)), _labels(batch)
                assert labels is not None
                found["losses"] = F.cross_entropy(logits, labels, reduction="none")
                found["probabilities"] = logits.softmax(1)
            elif extraction.extractor.file is None:
                ones = (_example(batch, place, len(rows)) for place in range(len(rows)))
                losses = [extraction.extractor.forward(recipe, model, one) for one in ones]
                found["losses"] = torch.stack([loss.float() for loss in losses if loss is not None])
            yield {name: value.cpu().numpy() for name, value in found.items()}


def _example(batch: Any, place: int, num_examples: int) -> Any:
    """One example of a batch, as a batch."""
    if isinstance(batch, Tensor):
        alone = batch.ndim and len(batch) == num_examples
        return batch[place : place + 1].clone() if alone else batch
    if isinstance(batch, dict):
        return {name: _example(value, place, num_examples) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_example(value, place, num_examples) for value in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(_example(value, place, num_examples) for value in batch)
    return batch
