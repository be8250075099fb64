"""What a run was asked to do, resolved and checked before anything is written.

In: a recipe, what the command line said, and what an earlier run in the folder said. Out: Options.
Guaranteed: options that shape the path cannot change on resume; those of length, workers and
loading can.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from samepath.data import Source, as_source, seed_everything
from samepath.engine.checks.fingerprints import (
    FINGERPRINTS,
    find_again,
    fingerprints,
    refuse_others,
    refuse_others_now,
)
from samepath.engine.checks.refuse import refuse_lone_example, refuse_unsupported
from samepath.engine.run.optimizers import with_decay, with_rate
from samepath.engine.run.session import too_many_workers
from samepath.engine.state.state import refuse_unsavable
from samepath.engine.step.compiled import refuse_without_compiler
from samepath.engine.step.extra import make_extra
from samepath.engine.step.settings import refuse_plateau_by_step
from samepath.errors import UserError
from samepath.keys import key
from samepath.plan import Plan, count_steps, grain_size_asked, grain_size_for
from samepath.recipe import Recipe, parse_monitor, sampled, where
from samepath.strategies import find_strategy

_MAY_CHANGE = (
    *("epochs", "steps", "target", "patience", "stop_patience", "keep_best", "loader_workers"),
    *("i_know", "hold"),
)
_MAY_MOVE = ("recipe", "data", "keep", "strategy")
"""Paths: what is there is recognised by its content."""
_OF_WHAT = {
    "identity": "recipe",
    "data_identity": "data",
    "keep_identity": "keep",
    "strategy_identity": "strategy",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """A run's resolved configuration, as `run.json` holds it."""

    recipe: str
    """What was typed: a built-in name or a path."""
    identity: str
    """The built-in name, or the SHA-256 of the recipe's file."""
    data: str | None
    """The path of the data the recipe was given; None where it brings its own."""
    data_identity: str | None
    """The data's fingerprint."""
    batch_size: int
    grain_size: int
    seed: int
    threads: int
    """Threads per worker: kernels choose by it, so it shapes the path."""
    exact: bool
    autocast: str | None
    clip_norm: float | None
    num_examples: int
    """Examples of an epoch: all of the training data, or what a sampler draws."""
    epochs: int
    """Where the run ends, also when resumed."""
    steps: int | None
    """Where it ends if that comes first."""
    target: float | None
    """The validation loss at which it ends."""
    loader_workers: int
    learning_rate: float | None = None
    """The rate in place of the recipe's (its first group's; others in proportion)."""
    strategy: str = "strong"
    """What was typed: a name with parameters, or a path."""
    strategy_identity: str = "strong"
    """The same, or the SHA-256 of the strategy's file."""
    virtual_workers: int = 1
    """k of the strategy; how many workers there really are does not change the path."""
    patience: int | None = None
    """The run ends when its validation loss has not moved for so many epochs."""
    server: bool = False
    """Updates go through a parameter server, which applies each gradient as it comes."""
    keep: str | None = None
    """The path of the keep-list; None where all examples are trained on."""
    keep_identity: str | None = None
    """The SHA-256 of which examples it keeps."""
    weight_decay: float | None = None
    """The decay in place of the recipe's (of its groups that have one)."""
    drop_last: bool = False
    """The last batch of each epoch is left out where it is short."""
    factors: str = "never"
    """Which dense layers' gradients go as factors; none did in runs of an older samepath."""
    stop_patience: int | None = None
    """The recipe's `patience`: the run ends when `monitor` has not been better for so many
    epochs."""
    monitor: str = "loss"
    """The validation metric that says which weights are the best."""
    keep_best: bool = False
    """The best weights are kept."""
    compile: bool = False
    """Training grains are computed with code of torch.compile."""
    i_know: bool = False
    """The loss may be no mean over examples."""
    hold: int = 1
    """Validations in a row that must be within the target before the run ends there."""
    sampler: str | None = None
    """What draws the examples of each epoch; None: all of them once."""
    start_from: dict[str, Any] | None = field(default=None, hash=False)
    """The origin of a branch: the run's folder, the step and the digest that it began with."""
    train_content: dict[str, str] | None = field(default=None, hash=False)
    """What the training data is (see data/content.py); None where it was not looked at."""
    valid_content: dict[str, str] | None = field(default=None, hash=False)
    """What the validation data is."""
    modules: dict[str, str] | None = field(default=None, hash=False)
    """The user's own modules (see engine/checks/fingerprints.py); None where it was not looked
    at."""

    @property
    def flags(self) -> dict[str, Any]:
        """The options of `samepath train` that make such a run, by their names."""
        shown = {n: getattr(self, n, None) for n in Overrides.__dataclass_fields__}
        shown |= {"patience": None, "hold": None}  # of studies
        flags = {_flag(name): value for name, value in shown.items() if value is not None}
        files = {n: getattr(self, n) for n in ("recipe", "data", "keep", "strategy")}
        paths = {n: str(Path(f).resolve()) for n, f in files.items() if f and Path(f).exists()}
        flags |= {"exact": "on" if self.exact else "off", "target": self.target or "none"}
        return {n: f for n, f in files.items() if f} | flags | paths

    @property
    def plan(self) -> Plan:
        return Plan(
            num_examples=self.num_examples,
            batch_size=self.batch_size,
            grain_size=self.grain_size,
            seed=self.seed,
            drop_last=self.drop_last,
        )


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """Settings that a person gave in place of the recipe's; None where nothing was said. Every
    request to train inherits them."""

    epochs: int | None = None
    steps: int | None = None
    target: float | Literal["none"] | None = None
    """none: go on to the last epoch."""
    batch_size: int | None = None
    grain_size: int | None = None
    max_workers: int | None = None
    """The most workers that may ever take part, in place of a grain size."""
    seed: int | None = None
    threads: int | None = None
    exact: bool | None = None
    compile: bool | None = None
    i_know: bool | None = None
    loader_workers: int | None = None
    learning_rate: float | None = None
    weight_decay: float | None = None
    strategy: str | None = None
    virtual_workers: int | None = None
    patience: int | None = None
    stop_patience: int | None = None
    monitor: str | None = None
    keep_best: bool | None = None
    hold: int | None = None

    @property
    def said(self) -> dict[str, Any]:
        """The settings that were given, by name."""
        given = {name: getattr(self, name) for name in Overrides.__dataclass_fields__}
        return {name: value for name, value in given.items() if value is not None}

    def __post_init__(self) -> None:
        for name, value in self.said.items():
            if name in ("target", "strategy", "keep_best"):
                continue
            if name == "monitor":
                parse_monitor(value)
                continue
            if name == "learning_rate":
                if not 0 < value < float("inf"):
                    raise UserError(f"--learning-rate {value}: it must be above 0")
                continue
            if name == "weight_decay":
                if not 0 <= value < float("inf"):
                    raise UserError(f"--weight-decay {value}: it must be at least 0")
                continue
            flags = ("exact", "compile", "i_know")
            least = 0 if name in ("seed", "loader_workers", "steps", *flags) else 1
            if value < least:
                raise UserError(f"--{_flag(name)} {value}: it must be at least {least}")


def _flag(name: str) -> str:
    names = {"grain_size": "grain", "virtual_workers": "as_workers", "stop_patience": "patience"}
    return names.get(name, name).replace("_", "-")


def resolve(
    recipe: Recipe, asked: Overrides | None = None, earlier: dict[str, Any] | None = None
) -> Options:
    """Options for a run; on resume, what is not said is what the earlier run had."""
    asked = asked or Overrides()
    origin = recipe.origin
    options = Options(
        recipe=origin.name,
        identity=origin.identity,
        data=origin.data,
        data_identity=origin.data_identity,
        keep=origin.keep,
        keep_identity=origin.keep_identity,
        batch_size=recipe.batch_size,
        grain_size=recipe.grain_size,
        seed=recipe.seed,
        threads=1,
        exact=True,
        autocast=None if recipe.autocast is None else str(recipe.autocast),
        clip_norm=recipe.clip_norm,
        num_examples=len(training_source(recipe)),
        epochs=recipe.epochs,
        steps=None,
        target=recipe.target,
        loader_workers=recipe.loader_workers,
        drop_last=recipe.drop_last,
        factors=recipe.factors,
        compile=recipe.compile,
        stop_patience=recipe.patience,
        monitor=recipe.monitor,
        keep_best=recipe.keep_best,
        i_know=recipe.i_know,
        sampler=None if recipe.sampler is None else recipe.sampler.describe(),
    )
    if earlier is not None:
        said_before = {n: earlier[n] for n in Overrides.__dataclass_fields__ if n in earlier}
        options = replace(options, **said_before, server=earlier.get("server", False))
        kept = {"factors": earlier.get("factors", "never"), "start_from": earlier.get("start_from")}
        options = replace(options, **kept)
    size = asked.batch_size or options.batch_size
    grain = grain_size_asked(size, asked.grain_size, asked.max_workers)
    if grain is None and earlier is None and asked.batch_size and recipe.max_workers:
        grain = grain_size_for(size, min(recipe.max_workers, size))
    # a run of so many steps ends there, not at the recipe's number of epochs
    if "steps" in asked.said and "epochs" not in asked.said:
        per_epoch = count_steps(options.num_examples, size, drop_last=options.drop_last)
        if (asked.strategy or options.strategy) != "strong":
            per_epoch = 1  # or more: it is not known here how the batch grows
        options = replace(
            options, epochs=max(options.epochs, -(-asked.said["steps"] // (per_epoch or 1)))
        )
    if "epochs" in asked.said and "steps" not in asked.said:
        options = replace(options, steps=None)
    said = asked.said | ({"target": None} if asked.target == "none" else {})
    said.pop("max_workers", None)
    options = replace(options, **said | ({"grain_size": grain} if grain else {}))
    before = None  # a file that is only named by an earlier run must hold what it held
    if earlier is not None and asked.strategy is None:
        before = earlier.get("strategy_identity")
    strategy = find_strategy(options.strategy, before)
    options = replace(options, strategy_identity=strategy.identity)
    if earlier is not None:
        _refuse_changes(earlier, asdict(options))
        refuse_others(recipe, earlier)
        known: dict[str, Any] = {name: earlier.get(name) for name in FINGERPRINTS}
        options = replace(options, **known)
    if not options.num_examples:
        raise UserError("the training data is empty; give some examples")
    try:
        options.plan  # noqa: B018 - its checks are the point
    except ValueError as error:
        raise UserError(str(error)) from None
    return options


def _refuse_changes(before: dict[str, Any], now: dict[str, Any]) -> None:
    apart = (*_MAY_CHANGE, *_MAY_MOVE, *FINGERPRINTS)
    names = [n for n in now if n not in apart and before.get(n, _default(n)) != now[n]]
    for name in names:
        if _is_hash(before.get(name)) or _is_hash(now[name]):
            _refuse_other(_OF_WHAT[name], before, now)
    changed = [
        f"{_OF_WHAT.get(name, name)} (was {before.get(name)!r}, now {now[name]!r})"
        for name in names
    ]
    if changed:
        raise UserError(
            "cannot resume: " + ", ".join(changed) + " would change the path; "
            "leave it as it was, or start a new run with another --out"
        )


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def _refuse_other(what: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Say which file is another, without its hashes: they tell people nothing."""
    was, here = before.get(what), now[what]
    if was is not None and here is not None and Path(was).name == Path(here).name:
        raise UserError(
            f"cannot resume: {here} changed since the run began; start a new run, or restore the "
            "file"
        )
    word = "keep-list" if what == "keep" else what
    raise UserError(
        f"cannot resume: the run's {word} is {was or 'none'}, not {here or 'none'}; give the "
        "run's, or start a new run with another --out"
    )


def _default(name: str) -> Any:
    """What a run of an older samepath, which did not know the setting, had."""
    value = Options.__dataclass_fields__[name].default
    return None if value is MISSING else value


def recipe_of(options: Options, source: bytes | None = None) -> Recipe:
    """The recipe of a run, found again (in another process, say): its data, its keep-list. `source`
    is what the recipe's file held when the run began."""
    recipe = find_again(asdict(options), source)
    refuse_others_now(recipe, asdict(options))
    find_strategy(options.strategy, options.strategy_identity)  # refuses one that has changed
    return recipe


def with_fingerprints(options: Options, recipe: Recipe) -> Options:
    """Add the fingerprints of data and modules. Call it after `refuse_recipe`, which
    has run the recipe's functions once."""
    return replace(options, **fingerprints(recipe, asdict(options)))


def made_of_options(options: Options) -> dict[str, Any]:
    """The fingerprints among a run's options."""
    return {name: getattr(options, name) for name in FINGERPRINTS}


def training_source(recipe: Recipe) -> Source:
    """The recipe's training data as a sampler draws from it, if there is one, for its length."""
    source = as_source(recipe.train, seed=0, collate=recipe.collate)
    return sampled(source, recipe.sampler, seed=0)


def refuse_recipe(
    recipe: Recipe, options: Options, num_workers: int, plan: Plan | None = None
) -> None:
    """Everything that can be found wrong before a worker is started. `plan` is the first epoch's,
    where a strategy has another batch than the recipe."""
    plan = plan or options.plan
    if options.compile:
        refuse_without_compiler()
    if options.server:
        _refuse_beside_server(recipe)
    if num_workers < 1:
        raise UserError(f"-n {num_workers}: at least one worker is needed")
    if options.exact and num_workers > plan.num_grains:
        raise too_many_workers(num_workers, plan.batch_size, plan.grain_size)
    if num_workers > plan.batch_size:
        raise UserError(
            f"{num_workers} workers, but a batch has only {plan.batch_size} examples; "
            f"use at most {plan.batch_size} workers"
        )
    seed_everything(key("start", options.seed))
    model = _made("model", options, recipe.model)
    if not isinstance(model, torch.nn.Module):
        raise UserError(f"model() returned {type(model).__name__}; return a torch.nn.Module")
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise UserError("no parameter of the model requires a gradient; unfreeze some")
    optimizer = _made("optimizer", options, recipe.optimizer, iter(trained))
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UserError(
            f"optimizer() returned {type(optimizer).__name__}; return a torch.optim.Optimizer"
        )
    if options.learning_rate is not None:
        with_rate(optimizer, options.learning_rate)
    if options.weight_decay is not None:
        with_decay(optimizer, options.weight_decay)
    refuse_unsupported(model, optimizer)
    refuse_unsavable(make_extra(recipe.extra, model))
    schedule = None
    if recipe.schedule is not None:
        schedule = _made("schedule", options, recipe.schedule, optimizer)
    refuse_plateau_by_step(schedule, recipe.schedule_every)
    if recipe.valid is None and options.target is not None:
        raise UserError("there is a target but no validation data; give the recipe `valid`")
    if recipe.valid is None and recipe.after_epoch is None:
        for name, given in (("patience", options.stop_patience), ("keep_best", options.keep_best)):
            if given:
                raise UserError(f"there is {name} but no validation data; give the recipe `valid`")
    if recipe.valid is None and isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise UserError("ReduceLROnPlateau needs validation data; give the recipe `valid`")
    if recipe.valid is not None:
        num_valid = len(as_source(recipe.valid, seed=0, collate=recipe.collate))
        if not num_valid:
            raise UserError("the validation data is empty; give some examples, or leave it out")
        _refuse_facts("valid_facts", recipe.valid_facts, num_valid)
    num_train = len(as_source(recipe.train, seed=0, collate=recipe.collate))
    _refuse_facts("train_facts", recipe.train_facts, num_train)
    strategy = find_strategy(options.strategy)
    if recipe.encode is not None and strategy.measures(options.virtual_workers):
        raise UserError(
            f"strategy {options.strategy!r} measures the gradients of parts of a batch, which a "
            "loss of the whole batch does not have; use another strategy"
        )
    if options.exact:
        refuse_lone_example(recipe, model, plan)


def _refuse_beside_server(recipe: Recipe) -> None:
    """Raise for what goes by steps that all workers take together."""
    given = {
        "after_step": recipe.after_step is not None,
        "after_epoch": recipe.after_epoch is not None,
        "extra": bool(recipe.extra),
        "autocast=torch.float16": recipe.autocast is torch.float16,
    }
    for name, is_given in given.items():
        if is_given:
            raise UserError(
                f"asynchronous updates have no {name}: the server makes them, and workers would "
                "not see it; use another strategy, or --as-workers K"
            )


def _refuse_facts(name: str, facts: Mapping[str, Any], num_examples: int) -> None:
    for fact, values in facts.items():
        if len(values) != num_examples:
            raise UserError(
                f"{name}[{fact!r}] has {len(values)} values for {num_examples} examples; "
                "give one for each"
            )


def _made(what: str, options: Options, make: Callable[..., Any], *arguments: Any) -> Any:
    """What one of the recipe's functions makes, or an error with the recipe's own line."""
    try:
        return make(*arguments)
    except UserError:
        raise
    except Exception as error:
        text = where(error, Path(options.recipe))
        raise UserError(f"{what}() of {options.recipe!r} raised {text}") from error
