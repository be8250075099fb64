"""What a user brings, and how it is found.

In: a built-in name, or the path of a Python file with a `recipe()` function, the path of data
for it where it takes some, and that of a keep-list or a fold file. Out: a checked Recipe.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader

from samepath.builtin import BUILT_IN, refuse_unknown
from samepath.data import Draws, seed_everything
from samepath.data.content import fingerprint_path
from samepath.data.fold_file import Fold, is_fold_file, read_fold
from samepath.data.given import as_given, take_apart
from samepath.data.keep_list import KeepList, read_keep_list, refuse_other_data
from samepath.data.sources import (
    Data,
    Sampled,
    Source,
    as_source,
    joined,
    only_rows,
    with_labels,
)
from samepath.errors import UserError
from samepath.keys import key
from samepath.plan import WeightedSampler, grain_size_for
from samepath.plan.sampling import refuse_sampler
from samepath.threads import limited_threads

Loss = Callable[[nn.Module, Any], Any]
"""loss(model, batch): a Tensor, or (Tensor, metrics by name)."""
MAX_WORKERS = 8
"""Where a recipe says neither `max_workers` nor `grain_size`: the cores or GPUs of one computer."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a recipe came from, and what a resumed run must find there again."""

    name: str = "recipe"
    """The recipe's name or path as it was typed."""
    identity: str = "recipe"
    """The built-in name, or the file's SHA-256."""
    data: str | None = None
    """The absolute path of the data it was given."""
    data_identity: str | None = None
    """A fingerprint of that data."""
    keep: str | None = None
    """The absolute path of the keep-list."""
    keep_identity: str | None = None
    """A SHA-256 of which examples it keeps."""
    source: bytes | None = field(default=None, repr=False)
    """What was in the recipe file; None for a built-in recipe."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How a model is trained, whatever its data: what a recipe and `prepare` are both told.
    Nonsense is refused by name when they are made."""

    batch_size: int = None  # type: ignore[assignment]  # a DataLoader may have it
    """Examples of one step, whatever the worker count."""
    max_workers: int | None = None
    """The most workers that may ever take part; fewer make a step faster. 8, or one for each
    example of a smaller batch, where neither this nor grain_size is given."""
    grain_size: int = None  # type: ignore[assignment]  # __post_init__ makes it a number
    """Examples computed at once, to be given instead of max_workers: an even share of the batch
    where it is not."""
    drop_last: bool = False
    """Leave out the last batch of each epoch where it is short (other examples in every epoch)."""
    schedule_every: Literal["step", "epoch"] = "epoch"
    """When the schedule advances."""
    clip_norm: float | None = None
    """Clip gradients to this global norm."""
    weight: Callable[[Any], float] | None = None
    """weight(batch): what a grain counts for in the batch's mean, when not its examples (the number
    of valid labels, say). It is summed over the batch before any backward pass."""
    encode: Callable[[nn.Module, Any], Any] | None = None
    """encode(model, batch), for a loss of the whole batch (contrastive, Dice over the batch): what
    that needs of the given examples, a tensor with a row for each, or a tuple or dict of them."""
    batch_loss: Callable[..., Tensor] | None = None
    """batch_loss(encoded, batch), or batch_loss(encoded): the loss of a whole batch, a scalar, from
    what encode() returned for all its examples. Every worker computes it; it has no parameters of
    its own."""
    recompute: bool = False
    """Encode every grain twice, so that only one has its graph in memory (without it a worker holds
    those of all its grains until the loss is known). It changes no bits."""
    after_batch: Callable[[nn.Module, Any], None] | None = None
    """after_batch(model, encoded): once a step, after its gradient and before its update, with what
    encode() returned for the whole batch and without gradients: to fill a queue, say."""
    evaluate_all: Any = None
    """evaluate_all(outputs, targets): validation metrics by name that are no means (AUC, F1), from
    all examples in order. Or a torchmetrics Metric, a dict of them, or a MetricCollection. Outputs
    and targets are what evaluate() returns by those names, else model(batch[0]) and batch[1]."""
    i_know: bool = False
    """Train although the loss was found to be no mean over examples: each grain has its own, and
    the batch's is their mean."""
    augment: Callable[[Any, Draws], Any] | None = None
    """augment(batch, draws): changes training examples, all of a grain at once, with numbers that
    belong to (seed, epoch, example)."""
    autocast: torch.dtype | None = None
    """Run forward passes under torch.autocast with this dtype: torch.bfloat16; or torch.float16,
    with the loss scaled as torch.amp.GradScaler does it."""
    collate: Callable[[list[Any]], Any] | None = None
    """Makes a batch of a Dataset's items, when torch's default does not. The items of tensors and
    arrays are their rows."""
    sampler: WeightedSampler | None = None
    """Draws the examples of each epoch by weights. Where it is not given an epoch is all of them,
    once."""
    factors: Literal["auto", "always", "never"] = "auto"
    """Dense layers send rows of inputs and output gradients in place of a weight's gradient: where
    that is less than half (auto), wherever it can be done, or nowhere."""
    compile: bool = False
    """Compute training grains with code of torch.compile: quicker after the first steps. It shapes
    the last bits, never the worker count's. Validation is not compiled."""
    loader_workers: int = 0
    """Loader processes per worker, for Datasets and memory-mapped arrays. The bits do not depend on
    it."""
    extra: Mapping[str, Callable[[nn.Module], Any]] = field(default_factory=dict)
    """Extra state by name: functions that make an object with state_dict and load_state_dict of the
    model ({"ema": lambda model: AveragedModel(model)}). It is saved, resumed and in the digest."""

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("loader_workers", 0)):
            _make_whole(self, name, least)
        refuse_sampler(self.sampler)
        _settle_grain(self)
        for name in ("drop_last", "compile", "recompute", "i_know"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"{name} is {getattr(self, name)!r}; use True or False")
        if self.schedule_every not in ("step", "epoch"):
            raise UserError(f"schedule_every is {self.schedule_every!r}; use 'step' or 'epoch'")
        if self.factors not in ("auto", "always", "never"):
            raise UserError(f"factors is {self.factors!r}; use 'auto', 'always' or 'never'")
        norm = self.clip_norm
        if norm is not None and not (isinstance(norm, Real) and float(norm) > 0):
            raise UserError(f"clip_norm is {norm!r}; it must be a number above 0")
        if self.autocast not in (None, torch.bfloat16, torch.float16):
            raise UserError(
                f"autocast is {self.autocast}; use torch.bfloat16, torch.float16 or None"
            )
        _check_whole_batch(self)


@dataclass(frozen=True, kw_only=True)
class Recipe(TrainingSettings):
    """A model, its data and how it is trained. Nothing in it may depend on the worker count."""

    model: Callable[[], nn.Module]
    """Makes the model. Called after every generator has been set from the seed."""
    train: Data
    """Training data: a tensor or numpy array (a memory-mapped one too), a tuple of them, or a
    map-style Dataset or list of examples. A DataLoader is taken apart; an IterableDataset that ends
    is read."""
    valid: Data | None = None
    """Validation data, of the same kinds."""
    held_out: Data | None = None
    """The training examples as they are judged where `samepath folds` holds them out, in the same
    order: without the random transforms that `train` has, if it has any."""
    loss: Loss = None  # type: ignore[assignment]
    """loss(model, batch): the mean loss of the given examples, a scalar; or (loss, metrics), with
    further means over the examples by name, which are averaged and logged like it. Left out where
    there are encode and batch_loss, of which it is made."""
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    """Makes the optimizer of the parameters that require gradients."""
    epochs: int
    """Passes over the training data."""
    seed: int = 0
    """Decides first weights, order, dropout and augmentation, unless --seed is given."""
    target: float | None = None
    """Validation loss at which the run has done what it was for, and stops."""
    schedule: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None = None
    """Makes a learning-rate scheduler. ReduceLROnPlateau is given the validation loss."""
    evaluate: Callable[[nn.Module, Any], Mapping[str, Tensor]] | None = None
    """evaluate(model, batch): means over the given examples by name, "loss" among them. The loss
    alone when not given."""
    predict: Callable[[nn.Module, Any], Any] | None = None
    """predict(model, batch): what `samepath predict` writes: a tensor with one row per example, or
    several as a tuple or dict. When not given, what the model returns for the parts of a batch that
    the loss gives it."""
    train_facts: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """What else is known of the training examples: by name, one value for each (malignancy,
    patient). Training does not see it; `samepath show`, `generate` and `folds` do."""
    valid_facts: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """What else is known of the validation examples, likewise."""
    class_names: Sequence[str] = ()
    """What classes are called, by label; their numbers where not given."""
    keep_weights: Sequence[int] = ()
    """Epochs after which the weights are kept, to be looked at later; 0 is before the first. If any
    are, so are the best, by `monitor`."""
    keep_best: bool = False
    """Keep the best weights, by `monitor`."""
    patience: int | None = None
    """End the run when `monitor` has not been better for so many epochs; the best weights are
    kept."""
    monitor: str = "loss"
    """The validation metric that says which weights are the best: the lowest, or, with ":max", the
    highest ("dice:max")."""
    after_step: Callable[[Any], None] | None = None
    """after_step(run): called on every worker after each update (an `engine.run.hooks.HookRun`).
    What it changes must be in the model, the optimizer or `extra`."""
    after_epoch: Callable[[Any], None] | None = None
    """after_epoch(run): likewise, after each epoch's evaluation."""
    show: Callable[[Any, Path], Sequence[Any]] | None = None
    """show(run, folder): draws into a folder what this recipe has to show of a run (an
    `engine.state.reopen.ReopenedRun`); the `report.page.Section`s that present it. `samepath show`
    calls it."""
    origin: Origin = Origin()
    """Where the recipe was found; `find_recipe` fills it in."""

    def __post_init__(self) -> None:
        _take_loaders_apart(self)
        super().__post_init__()
        _make_whole(self, "epochs", 1)
        _make_whole(self, "seed", 0)
        if self.patience is not None:
            _make_whole(self, "patience", 1)
        parse_monitor(self.monitor)
        for name in ("after_step", "after_epoch"):
            hook = getattr(self, name)
            if hook is not None and not callable(hook):
                raise UserError(
                    f"{name} is {type(hook).__name__}; it must be a function ({name}(run))"
                )
        object.__setattr__(self, "loss", settle_loss(self.loss, self))
        for name in ("model", "loss", "optimizer"):
            if not callable(getattr(self, name)):
                raise UserError(
                    f"{name} is {type(getattr(self, name)).__name__}; it must be a function "
                    f"that makes it (try {name}=lambda ...: ...)"
                )
        if isinstance(self.model, nn.Module):
            raise UserError(
                "model is a module; give a function that makes it, so that every worker "
                "starts from the same seed (model=lambda: Net())"
            )


def parse_monitor(text: str) -> tuple[str, bool]:
    """The name of a monitored metric, and whether higher is better."""
    name, _, way = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not name or way not in ("", "min", "max"):
        raise UserError(
            f"monitor is {text!r}; give a validation metric, such as 'loss' or 'dice:max' (the "
            "highest is the best)"
        )
    return name, way == "max"


@dataclass(frozen=True)
class WholeBatchLoss:
    """The loss of some examples as if they were a whole batch."""

    encode: Callable[[nn.Module, Any], Any]
    batch_loss: Callable[..., Tensor]

    @property
    def takes_batch(self) -> bool:
        """Whether batch_loss is given the batch, beside what encode() returned."""
        return len(inspect.signature(self.batch_loss).parameters) > 1

    def of_rows(self, encoded: Any, batch: Any) -> Tensor:
        return self.batch_loss(encoded, batch) if self.takes_batch else self.batch_loss(encoded)

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        return self.of_rows(self.encode(model, batch), batch)


def settle_loss(loss: Loss | None, given: TrainingSettings) -> Loss:
    """The loss, or that of encode and batch_loss; an error unless it is one of the two."""
    if given.encode is None or given.batch_loss is None:
        if loss is None:
            raise UserError("there is no loss; give loss=, or encode= and batch_loss=")
        return loss
    if loss is None or isinstance(loss, WholeBatchLoss):  # the latter in a changed copy
        return WholeBatchLoss(given.encode, given.batch_loss)
    raise UserError("loss is given beside encode and batch_loss; leave one of them out")


def refuse_whole_batch(recipe: Recipe, what: str) -> None:
    """Raise for a recipe with a loss of the whole batch, where `what` looks at grains."""
    if recipe.encode is not None:
        raise UserError(
            f"{what} looks at losses of single grains, and {recipe.origin.name!r} has one of the "
            "whole batch (encode and batch_loss); it is not for such a recipe"
        )


def _check_whole_batch(given: TrainingSettings) -> None:
    """Raise unless what belongs to a loss of the whole batch is there together."""
    for name in ("encode", "batch_loss", "after_batch"):
        value = getattr(given, name)
        if value is not None and not callable(value):
            raise UserError(f"{name} is {type(value).__name__}; it must be a function")
    if (given.encode is None) != (given.batch_loss is None):
        missing = "encode" if given.encode is None else "batch_loss"
        raise UserError(
            f"{missing} is missing; a loss of the whole batch has encode and batch_loss"
        )
    if given.encode is None:
        for name in ("recompute", "after_batch"):
            if getattr(given, name):
                raise UserError(f"{name} is for a loss of the whole batch; give encode, batch_loss")
    elif given.autocast is torch.float16:
        raise UserError(
            "autocast is torch.float16, which scales the loss of each grain, and encode and "
            "batch_loss make one of the whole batch; use torch.bfloat16"
        )


def _take_loaders_apart(recipe: Recipe) -> None:
    """What a DataLoader holds, in the recipe's own fields; a stream's examples, read."""
    kept: dict[str, Any] = {}
    if isinstance(recipe.train, DataLoader):
        parts = take_apart(recipe.train, "train")
        sampler = None if parts.sampling is None else WeightedSampler(*parts.sampling)
        kept = {"train": parts.data, "collate": parts.collate, "batch_size": parts.batch_size}
        kept |= {"drop_last": parts.drop_last, "loader_workers": parts.loader_workers}
        kept |= {} if sampler is None else {"sampler": sampler}
        for name, value in kept.items():
            said, default = getattr(recipe, name), Recipe.__dataclass_fields__[name].default
            if name != "train" and said not in (default, value):
                raise UserError(
                    f"{name} is {said!r}, and the DataLoader of `train` has {value!r}; say it "
                    "in one place"
                )
    if isinstance(recipe.valid, DataLoader):
        parts = take_apart(recipe.valid, "valid")
        if parts.collate is not kept.get("collate", recipe.collate):
            raise UserError(
                "the DataLoader of `valid` has another collate_fn than `train`; a recipe has one "
                "for both: give it as collate="
            )
        kept["valid"] = parts.data
    for name in ("train", "valid"):
        kept[name] = as_given(kept.get(name, getattr(recipe, name)))
    for name, value in kept.items():
        object.__setattr__(recipe, name, value)


def _make_whole(given: Any, name: str, least: int) -> None:
    """A field as an int (numpy's are taken too), or an error."""
    value = getattr(given, name)
    if not isinstance(value, Integral) or value < least:
        raise UserError(f"{name} is {value!r}; it must be a whole number, at least {least}")
    object.__setattr__(given, name, int(value))


def _settle_grain(given: TrainingSettings) -> None:
    """The grain size from the most workers. (Both are there, and agree, in a changed copy.)"""
    for name in ("grain_size", "max_workers"):
        if getattr(given, name) is not None:
            _make_whole(given, name, 1)
    if given.grain_size is None:
        most = given.max_workers or min(MAX_WORKERS, given.batch_size)
        object.__setattr__(given, "max_workers", most)
        object.__setattr__(given, "grain_size", grain_size_for(given.batch_size, most))
    elif given.max_workers is not None:
        right = grain_size_for(given.batch_size, given.max_workers)
        if given.grain_size != right:
            raise UserError(
                f"grain_size is {given.grain_size}, but max_workers is {given.max_workers}, which "
                f"is a grain_size of {right}; give one of the two"
            )


def sampled(source: Source, sampler: WeightedSampler | None, *, seed: int) -> Source:
    """A source as a sampler draws from it, if there is one."""
    if sampler is None:
        return source
    sampler.refuse_other_data(len(source))
    return Sampled(source, sampler.num_examples, partial(sampler.order, seed))


def find_recipe(
    name: str,
    data: str | None = None,
    keep: str | None = None,
    source: bytes | None = None,
    *,
    threads: int = 1,
) -> Recipe:
    """The recipe with a built-in name, or of a Python file, on its own data or the given. `source`
    is what the file held when it was first found: it may have been edited since. `threads` is what
    the recipe's own code computes with, as the workers' do.

    With a keep-list, its training examples (and facts about them) are those that are kept, numbered
    anew: as if the others had never been there. With a fold file in its place, its validation data
    are the examples that are held out, and its training data all others.
    """
    with limited_threads(threads):
        recipe = _find(name, data, source)
        return recipe if keep is None else _only_kept(recipe, keep)


def _only_kept(recipe: Recipe, keep: str) -> Recipe:
    path, origin = Path(keep).resolve(), recipe.origin
    if is_fold_file(path):
        return _of_fold_file(recipe, path)
    keep_list = read_keep_list(path)
    refuse_other_data(
        keep_list,
        path,
        recipe=origin.name,
        data=recipe.train,
        facts=recipe.train_facts,
        collate=recipe.collate,
        origin={"identity": origin.identity, "data_identity": origin.data_identity},
    )
    rows = keep_list.rows
    facts = {name: values[rows] for name, values in recipe.train_facts.items()}
    relabelled, targets = keep_list.relabelled, keep_list.targets

    def cut(data: Data) -> Data:
        if relabelled is None or targets is None:
            return only_rows(data, rows, recipe.collate)
        return with_labels(data, targets, relabelled, rows, recipe.collate)

    if relabelled is not None and targets is not None:
        _refuse_labels(recipe, keep_list, path)
        if "label" in facts:
            facts["label"] = targets[rows].astype(facts["label"].dtype)
    try:
        train = cut(recipe.train)
        held_out = None if recipe.held_out is None else cut(recipe.held_out)
    except UserError as error:
        raise UserError(
            f"{path} gives examples other labels, which {origin.name!r} cannot be trained with: "
            f"{error}; decide keep or drop instead"
        ) from None
    return replace(
        recipe,
        train=train,
        train_facts=facts,
        held_out=held_out,
        sampler=None if recipe.sampler is None else recipe.sampler.only(rows),
        origin=replace(origin, keep=str(path), keep_identity=keep_list.identity),
    )


def _refuse_labels(recipe: Recipe, keep_list: KeepList, path: Path) -> None:
    """Raise for a new label that is no class of the recipe."""
    assert keep_list.labels is not None
    assert keep_list.targets is not None
    most = len(recipe.class_names) or int(keep_list.labels.max()) + 1
    beyond = np.flatnonzero((keep_list.targets >= most) & (keep_list.targets != keep_list.labels))
    if len(beyond):
        raise UserError(
            f"{path} gives example {beyond[0]} the label {keep_list.targets[beyond[0]]}, but the "
            f"classes of {recipe.origin.name!r} go from 0 to {most - 1}; give one of those"
        )


def with_valid_joined(recipe: Recipe) -> Recipe:
    """The recipe with its validation examples after those of its training data, and none to
    validate with. Facts are those that both have."""
    if recipe.valid is None:
        return recipe
    instead = "split the training data alone: --examples train"
    for name, lacks in (("sampler", "no weights for"), ("held_out", "nothing of")):
        if getattr(recipe, name) is not None:
            raise UserError(
                f"the recipe's {name} has {lacks} its validation data, so that the two cannot be "
                f"split together; {instead}"
            )
    try:
        both = joined(recipe.train, recipe.valid, recipe.collate)
    except UserError as error:
        raise UserError(
            f"training and validation data cannot be split together ({error}); {instead}"
        ) from None
    facts = {
        name: np.concatenate([values, recipe.valid_facts[name]])
        for name, values in recipe.train_facts.items()
        if name in recipe.valid_facts
    }
    return replace(recipe, train=both, train_facts=facts, valid=None, valid_facts={})


def of_fold(recipe: Recipe, fold: Fold, path: Path) -> Recipe:
    """The recipe of one fold of its training data; the fold's file is (or will be) at `path`."""

    judged = recipe.train if recipe.held_out is None else recipe.held_out
    facts = {name: np.asarray(values) for name, values in recipe.train_facts.items()}
    return replace(
        recipe,
        train=only_rows(recipe.train, fold.train, recipe.collate),
        train_facts={name: values[fold.train] for name, values in facts.items()},
        valid=only_rows(judged, fold.valid, recipe.collate),
        valid_facts={name: values[fold.valid] for name, values in facts.items()},
        held_out=None,
        sampler=None if recipe.sampler is None else recipe.sampler.only(fold.train),
        origin=replace(recipe.origin, keep=str(path.resolve()), keep_identity=fold.identity),
    )


def _of_fold_file(recipe: Recipe, path: Path) -> Recipe:
    fold = read_fold(path)
    num_train = len(as_source(recipe.train, seed=0, collate=recipe.collate))
    if len(fold) == num_train:
        return of_fold(recipe, fold, path)
    both = with_valid_joined(recipe)
    if len(fold) != (number := len(as_source(both.train, seed=0, collate=recipe.collate))):
        raise UserError(
            f"{path} is of {len(fold):,} examples, but {recipe.origin.name!r} has {num_train:,} "
            f"for training, and {number:,} with those for validation; give a fold file made of it"
        )
    return of_fold(both, fold, path)


def _find(name: str, data: str | None, source: bytes | None) -> Recipe:
    if name in BUILT_IN:
        module_name, function, _ = BUILT_IN[name]
        module = importlib.import_module(module_name)
        return _made_by(getattr(module, function), Origin(name=name, identity=name), data)
    if source is None:
        refuse_unknown(name)
    return _recipe_of_file(name, Path(name), data, source)


def _made_by(function: Callable[..., Any], origin: Origin, data: str | None) -> Recipe:
    """What the recipe's function makes, of the given data if any."""
    given = {}
    if data is not None:
        if "data" not in inspect.signature(function).parameters:
            raise UserError(
                f"--data {data}: the recipe {origin.name!r} brings its own; leave --data out, or "
                f"give its function a parameter: def {function.__name__}(data=None)"
            )
        place = Path(os.path.realpath(data))
        if not os.path.exists(place):  # nor where links lead round, or this user may not look
            raise UserError(f"--data {data}: there is no such file or folder; check the path")
        given["data"] = place
    recipe = function(**given)
    if not isinstance(recipe, Recipe):
        raise UserError(
            f"recipe() in {origin.name!r} returned {type(recipe).__name__}; return a "
            "samepath.Recipe"
        )
    if data is not None:
        origin = replace(origin, data=str(place), data_identity=fingerprint_path(place))
    return replace(recipe, origin=origin)


def _recipe_of_file(name: str, path: Path, data: str | None, source: bytes | None) -> Recipe:
    try:
        source = path.read_bytes() if source is None else source
        origin = Origin(name=name, identity=hashlib.sha256(source).hexdigest(), source=source)
        seed_everything(key("recipe"))  # a recipe that splits its data unseeded splits it one way
        function = getattr(_import_file(path, source), "recipe", None)
        if function is None:
            raise UserError(f"recipe file {name!r} has no recipe() function; add one")
        return _made_by(function, origin, data)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"recipe file {name!r} raised {where(error, path)}") from error


def _import_file(path: Path, source: bytes) -> ModuleType:
    # Registered under a name of its own, so that data sets defined in it can be sent to loader
    # processes; the file's folder is importable, as it is when the file is run as a script.
    module_name = "samepath_recipe_" + path.stem
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"recipe file {str(path)!r} is not a Python file; give one ending in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    return module


def where(error: BaseException, path: Path) -> str:
    """The error with the user's own line, not ours."""
    what = f"{type(error).__name__}: {error}".replace("\n", " ")
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if path.is_file() and Path(f.filename).resolve() == path.resolve()]
    if own:
        return f"{what} (line {own[-1].lineno}: {own[-1].line})"
    if isinstance(error, SyntaxError):
        return f"{what} (line {error.lineno}: {(error.text or '').strip()})"
    return what
