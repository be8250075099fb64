"""What a user brings, and how it is found.

In: a built-in name, or the path of a Python file with a `recipe()` function, the path of data
for it where it takes some, and that of a keep-list. Out: a checked Recipe.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from samepath.builtin import BUILT_IN
from samepath.data import Draws, seed_everything
from samepath.data.content import fingerprint_path
from samepath.data.keep_list import read_keep_list, refuse_other_data
from samepath.data.sources import Data, only_rows
from samepath.errors import UserError
from samepath.keys import key
from samepath.plan import grain_size_for
from samepath.threads import limited_threads

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

    batch_size: int
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
    augment: Callable[[Any, Draws], Any] | None = None
    """augment(batch, draws): changes training examples, all of a grain at once, with numbers that
    belong to (seed, epoch, example)."""
    autocast: torch.dtype | None = None
    """Run forward passes under torch.autocast with this dtype (torch.bfloat16)."""
    collate: Callable[[list[Any]], Any] | None = None
    """Makes a batch of a Dataset's items, when torch's default does not. The items of tensors and
    arrays are their rows."""
    factors: Literal["auto", "always", "never"] = "auto"
    """Dense layers send rows of inputs and output gradients in place of a weight's gradient: where
    that is less than half (auto), wherever it can be done, or nowhere."""
    loader_workers: int = 0
    """Loader processes per worker, for Datasets and memory-mapped arrays. The bits do not depend on
    it."""

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("loader_workers", 0)):
            _make_whole(self, name, least)
        _settle_grain(self)
        if not isinstance(self.drop_last, bool):
            raise UserError(f"drop_last is {self.drop_last!r}; use True or False")
        if self.schedule_every not in ("step", "epoch"):
            raise UserError(f"schedule_every is {self.schedule_every!r}; use 'step' or 'epoch'")
        if self.factors not in ("auto", "always", "never"):
            raise UserError(f"factors is {self.factors!r}; use 'auto', 'always' or 'never'")
        norm = self.clip_norm
        if norm is not None and not (isinstance(norm, Real) and float(norm) > 0):
            raise UserError(f"clip_norm is {norm!r}; it must be a number above 0")
        if self.autocast not in (None, torch.bfloat16):
            why = ", which needs its losses scaled" if self.autocast is torch.float16 else ""
            raise UserError(f"autocast is {self.autocast}{why}; use torch.bfloat16 or None")


@dataclass(frozen=True, kw_only=True)
class Recipe(TrainingSettings):
    """A model, its data and how it is trained. Nothing in it may depend on the worker count."""

    model: Callable[[], nn.Module]
    """Makes the model. Called after every generator has been set from the seed."""
    train: Data
    """Training data: a tensor or numpy array (a memory-mapped one too), a tuple of them, or a
    map-style Dataset or list of examples."""
    valid: Data | None = None
    """Validation data, of the same kinds."""
    loss: Callable[[nn.Module, Any], Tensor]
    """loss(model, batch): the mean loss of the given examples, a scalar."""
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    """Makes the optimizer of the parameters that require gradients."""
    epochs: int
    """Passes over the training data."""
    target: float | None = None
    """Validation loss at which the run has done what it was for, and stops."""
    schedule: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None = None
    """Makes a learning-rate scheduler. ReduceLROnPlateau is given the validation loss."""
    evaluate: Callable[[nn.Module, Any], Mapping[str, Tensor]] | None = None
    """evaluate(model, batch): means over the given examples by name, "loss" among them. The loss
    alone when not given."""
    train_facts: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """What else is known of the training examples: by name, one value for each (malignancy,
    patient). Training does not see it; `samepath show` and `generate` do."""
    valid_facts: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """What else is known of the validation examples, likewise."""
    class_names: Sequence[str] = ()
    """What classes are called, by label; their numbers where not given."""
    keep_weights: Sequence[int] = ()
    """Epochs after which the weights are kept, to be looked at later; 0 is before the first. If any
    are, so are those with the lowest validation loss."""
    show: Callable[[Any, Path], Sequence[Any]] | None = None
    """show(run, folder): draws into a folder what this recipe has to show of a run (an
    `engine.state.reopen.ReopenedRun`); the `report.page.Section`s that present it. `samepath show`
    calls it."""
    origin: Origin = Origin()
    """Where the recipe was found; `find_recipe` fills it in."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _make_whole(self, "epochs", 1)
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
    anew: as if the others had never been there.
    """
    with limited_threads(threads):
        recipe = _find(name, data, source)
        return recipe if keep is None else _only_kept(recipe, keep)


def _only_kept(recipe: Recipe, keep: str) -> Recipe:
    path, origin = Path(keep).resolve(), recipe.origin
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
    return replace(
        recipe,
        train=only_rows(recipe.train, rows, recipe.collate),
        train_facts={name: values[rows] for name, values in recipe.train_facts.items()},
        origin=replace(origin, keep=str(path), keep_identity=keep_list.identity),
    )


def _find(name: str, data: str | None, source: bytes | None) -> Recipe:
    if name in BUILT_IN:
        module_name, function, _ = BUILT_IN[name]
        module = importlib.import_module(module_name)
        return _made_by(getattr(module, function), Origin(name=name, identity=name), data)
    path = Path(name)
    if path.suffix == ".py" or path.exists():
        return _recipe_of_file(name, path, data, source)
    near = difflib.get_close_matches(name, BUILT_IN, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "built in are: " + ", ".join(BUILT_IN) + "."
    raise UserError(
        f"unknown recipe {name!r}; {hint} (a path to a Python file with a recipe() works too)"
    )


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
    if source is None and not path.is_file():
        raise UserError(f"recipe file {name!r} does not exist; check the path")
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
