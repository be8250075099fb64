"""A LightningModule and its data as a recipe.

In: what `Trainer(...)` and `trainer.fit(...)` of lightning or pytorch_lightning are given. Out: a
Recipe that computes what they do, or a UserError that names the hook, callback or argument that has
no counterpart. Neither library is imported: classes are known by name, so both are taken alike.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from samepath.adapters.models import Models, refuse_arguments
from samepath.data.given import take_apart
from samepath.errors import UserError
from samepath.plan import WeightedSampler, count_steps
from samepath.recipe import Recipe

_LIBRARIES = ("lightning", "pytorch_lightning")
_USED = {
    "max_epochs",
    "accumulate_grad_batches",
    "gradient_clip_val",
    "gradient_clip_algorithm",
    "precision",
    "callbacks",
}
_WITHOUT_EFFECT = {
    "default_root_dir",
    "enable_checkpointing",
    "enable_model_summary",
    "enable_progress_bar",
    "log_every_n_steps",
    "logger",
    "num_sanity_val_steps",
}
"""Arguments of a Trainer that are about logs and displays: samepath has its own."""
_WORKERS = "the number of workers is samepath train's: -n 4"
_HINTS = {
    "accelerator": _WORKERS,
    "devices": _WORKERS,
    "num_nodes": _WORKERS,
    "strategy": _WORKERS,
    "max_steps": "give max_epochs, and --steps to samepath train",
}
_MODULE_HOOKS = {
    "training_step",
    "validation_step",
    "configure_optimizers",
    "configure_callbacks",
    "configure_model",
    "setup",
    "prepare_data",
    "train_dataloader",
    "val_dataloader",
    "on_before_batch_transfer",
    "on_after_batch_transfer",
    "on_validation_epoch_end",
    "on_train_epoch_end",
}
_DATA_HOOKS = {"prepare_data", "setup", "teardown", "train_dataloader", "val_dataloader"}
_OTHER_STAGES = ("test_", "predict_", "on_test_", "on_predict_")
_DISPLAYS = {"ProgressBar", "ModelSummary", "LearningRateMonitor", "DeviceStatsMonitor"}
"""Callbacks that change nothing in the training."""
_AUTOCAST = {
    "bf16-mixed": torch.bfloat16,
    "16-mixed": torch.float16,
    "32-true": None,
    "32": None,
}
_PREFIXES = ("val", "valid", "validation", "train")


def recipe(
    module: Any,
    datamodule: Any = None,
    *,
    train_dataloaders: Any = None,
    val_dataloaders: Any = None,
    max_workers: int | None = None,
    grain_size: int | None = None,
    predict: Callable[[nn.Module, Any], Any] | None = None,
    **trainer: Any,
) -> Recipe:
    """Make a recipe of a LightningModule (or a function that makes one: then `--seed` decides its
    first weights too) and a LightningDataModule or loaders, as `trainer.fit` takes them.
    `trainer` are the arguments that `Trainer` was given: max_epochs, accumulate_grad_batches,
    gradient_clip_val, precision, callbacks; those about logs and displays change nothing.
    `predict(model, batch)` is the recipe's; without one the module's predict_step() is, where it
    has one."""
    refuse_arguments(trainer, _USED | _WITHOUT_EFFECT, _HINTS, "samepath.lightning.recipe()")
    epochs = trainer.get("max_epochs")
    if not isinstance(epochs, int) or epochs < 1:
        raise UserError(f"max_epochs is {epochs!r}; give the number of epochs: max_epochs=10")
    place = _Place(max_epochs=epochs)
    models = Models(module, lambda made: _attached(made, place))
    if datamodule is not None:
        _begin_data(datamodule)
    probe: Any = models.make()
    callbacks = _understood(
        [*_as_list(trainer.get("callbacks")), *_as_list(probe.configure_callbacks())]
    )
    train = _loader(train_dataloaders, datamodule, probe, "train_dataloader")
    valid = _loader(val_dataloaders, datamodule, probe, "val_dataloader")
    if train is None:
        raise UserError(
            "there is no train_dataloader(); write one in the datamodule or the module, or give "
            "train_dataloaders=DataLoader(...)"
        )
    if valid is not None and not _overrides(probe, "validation_step"):
        valid = None  # Lightning leaves validation out, too
    parts = take_apart(train, "train")
    sampler = None if parts.sampling is None else WeightedSampler(*parts.sampling)
    held_out = None if valid is None else take_apart(valid, "valid")
    if held_out is not None and held_out.collate != parts.collate:
        raise UserError(
            "the DataLoaders for training and validation have different collate_fn; give both "
            "the same"
        )
    batch_size = parts.batch_size * (trainer.get("accumulate_grad_batches") or 1)
    num_examples = sampler.num_examples if sampler else len(parts.data)  # type: ignore[arg-type]
    steps = count_steps(num_examples, batch_size, drop_last=parts.drop_last)
    place.steps_per_epoch = probe.trainer.steps_per_epoch = steps
    configured = _configured(probe)
    place.monitored = frozenset(callbacks.monitored | configured.monitored)
    if callbacks.average is not None and isinstance(configured.scheduler, ReduceLROnPlateau):
        raise UserError(
            "ReduceLROnPlateau with a callback that averages weights: Lightning looks at the "
            "validation loss of the averaged weights, samepath at that of the trained ones; use "
            "another schedule"
        )
    if predict is None and _overrides(probe, "predict_step"):
        predict = _predict
    optimizers = _Optimizers(models)
    between = _Between(probe, callbacks.average, has_valid=held_out is not None)
    return Recipe(
        model=models.make,
        train=parts.data,
        valid=None if held_out is None else held_out.data,
        collate=parts.collate,
        sampler=sampler,
        loss=_loss,
        evaluate=None if held_out is None else _evaluate,
        predict=predict,
        patience=callbacks.patience,
        monitor=callbacks.monitor,
        keep_best=callbacks.keep_best,
        extra={} if callbacks.average is None else {"average": between.make_average},
        after_step=None if callbacks.average is None else between.after_step,
        after_epoch=between.after_epoch if between.acts else None,
        optimizer=optimizers.make,
        schedule=None if configured.scheduler is None else optimizers.schedule,
        schedule_every=configured.every,
        batch_size=batch_size,
        max_workers=max_workers,
        grain_size=grain_size,  # type: ignore[arg-type]  # None is a number later
        epochs=epochs,
        drop_last=parts.drop_last,
        clip_norm=_clip_norm(trainer),
        autocast=_autocast(trainer.get("precision")),
        loader_workers=parts.loader_workers,
    )


# ---- the module


@dataclass
class _Place:
    """Stands for `self.trainer`: what a module may ask of it before and in a training."""

    max_epochs: int
    steps_per_epoch: int | None = None
    logged: dict[str, Any] = field(default_factory=dict)
    monitored: frozenset[str] = frozenset()
    """What callbacks and the schedule go by, as the module logs it."""
    now: tuple[int, int] | None = None
    """The epoch and the number of steps, between steps; steps themselves do not know them."""

    @property
    def current_epoch(self) -> int:
        return self._known("current_epoch")[0]

    @property
    def global_step(self) -> int:
        return self._known("global_step")[1]

    def _known(self, name: str) -> tuple[int, int]:
        if self.now is None:
            raise UserError(
                f"the LightningModule uses {name} in a step, which does not know it; use it in "
                "on_train_epoch_end(), a learning-rate scheduler or a buffer instead"
            )
        return self.now

    @property
    def estimated_stepping_batches(self) -> int:
        if self.steps_per_epoch is None:
            raise UserError(
                "setup() asks for trainer.estimated_stepping_batches, which is known in "
                "configure_optimizers(); ask there"
            )
        return self.max_epochs * self.steps_per_epoch

    def take_logged(self) -> dict[str, Any]:
        logged, self.logged = self.logged, {}
        return logged

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UserError(
            f"the LightningModule uses self.trainer.{name}, which has no counterpart; write it "
            "without (max_epochs and estimated_stepping_batches are there)"
        )


class _Attached:
    """Methods of a LightningModule that reach its Trainer, where samepath trains it."""

    _place: _Place

    @property
    def trainer(self) -> _Place:
        return self._place

    @property
    def current_epoch(self) -> int:
        return self._place.current_epoch

    @property
    def global_step(self) -> int:
        return self._place.global_step

    @property
    def logger(self) -> NoReturn:
        raise UserError(
            "the LightningModule uses self.logger, which has no counterpart; use self.log, which "
            "goes into the run's metrics"
        )

    def __dir__(self) -> list[str]:
        """What every use of the module may ask of it: TorchScript's tracing asks for all of it."""
        return [name for name in super().__dir__() if name not in vars(_Attached)]

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        **more: Any,
    ) -> None:
        """Note a value, a mean over the grain's examples."""
        if _is(value, "Metric", "torchmetrics"):
            raise UserError(
                f"self.log({name!r}) was given a torchmetrics object, which gathers its own "
                "state over this worker's grains; log a mean over the examples instead"
            )
        if reduce_fx not in ("mean", torch.mean):
            raise UserError(
                f"self.log({name!r}, reduce_fx={reduce_fx!r}): values are averaged over the "
                "examples; leave reduce_fx out"
            )
        self._place.logged[name] = value.detach() if isinstance(value, Tensor) else value


def _refuse_monitor(who: str, name: str) -> None:
    """Raise for a metric of training: a run goes by those of validation."""
    if name.startswith(("train_", "train/")):
        raise UserError(
            f"{who} monitors {name!r}, a metric of training, and a run goes by one of validation; "
            f"use monitor='val_{_short(name)}', or leave it out"
        )


def _shortened(logged: Mapping[str, Any]) -> dict[str, Any]:
    return {_short(name): value for name, value in logged.items()}


def _short(name: str) -> str:
    """The name without the word for the data that it is of: run logs have that themselves."""
    for prefix in _PREFIXES:
        for mark in "_/":
            if name.startswith(prefix + mark):
                return name[len(prefix) + 1 :]
    return name


class _NoNumber:
    """Stands for a batch's number, which a grain does not have."""

    def _refuse(self, *_: object) -> NoReturn:
        raise UserError(
            "the LightningModule uses batch_idx, and a step is computed in grains, which have no "
            "such number; write the step without it"
        )

    __index__ = __int__ = __float__ = __bool__ = __hash__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __mod__ = __floordiv__ = __truediv__ = __neg__ = __str__ = __repr__ = _refuse


_NO_NUMBER = _NoNumber()


def _attached(module: Any, place: _Place) -> nn.Module:
    """Refuse what has no counterpart in a module; then make it log to `place`."""
    if not isinstance(module, nn.Module) or not _is(module, "LightningModule", *_LIBRARIES):
        raise UserError(
            f"the module is {type(module).__name__}; give a LightningModule, or a function that "
            "makes one"
        )
    if not module.automatic_optimization:
        raise UserError(
            f"{type(module).__name__} optimises by hand (automatic_optimization is False); write "
            "its loop with samepath.start() and prepare(), or set automatic_optimization"
        )
    _refuse_hooks(module, "LightningModule", _MODULE_HOOKS)
    own = _Place(place.max_epochs, place.steps_per_epoch, monitored=place.monitored)
    for part in module.modules():
        if _is(part, "LightningModule", *_LIBRARIES):
            kind = type(part)
            part.__class__ = type(kind.__name__, (_Attached, kind), {"__module__": kind.__module__})
            part._place = own  # type: ignore[assignment]
    module.prepare_data()  # type: ignore[operator]
    module.setup("fit")  # type: ignore[operator]
    module.configure_model()  # type: ignore[operator]
    return module


def _loss(model: Any, batch: Any) -> Any:
    """The loss of training_step(), and what else it logs."""
    whole, found = _call(model, "training_step", batch)
    logged = _shortened(whole)
    if isinstance(found, Mapping):
        found = found.get("loss")
    if found is None:
        raise UserError("training_step() returned no loss; return a tensor, or a dict with 'loss'")
    logged.pop("loss", None)
    return (found, logged) if logged else found


def _evaluate(model: Any, batch: Any) -> dict[str, Tensor]:
    model = model.module if isinstance(model, AveragedModel) else model
    whole, found = _call(model, "validation_step", batch)
    logged = _shortened(whole)
    for name in sorted(model._place.monitored - whole.keys()):
        if _short(name) in logged:
            others = ", ".join(repr(n) for n in whole if _short(n) == _short(name))
            raise UserError(
                f"a callback or schedule monitors {name!r}, and validation_step() logs {others}; "
                "monitor that"
            )
    if isinstance(found, Mapping):
        found = found.get("loss")
    if "loss" not in logged and found is not None:
        logged["loss"] = found
    if "loss" not in logged:
        raise UserError(
            f"validation_step() logged {sorted(logged)} and returned no loss; log the validation "
            "loss as 'val_loss', or return it"
        )
    return logged


def _predict(model: Any, batch: Any) -> Any:
    return _call(model, "predict_step", batch)[1]


def _call(model: Any, step: str, batch: Any) -> tuple[dict[str, Any], Any]:
    """What one of the module's steps logs and returns."""
    function = getattr(model, step)
    batch = model.on_before_batch_transfer(batch, 0)
    batch = model.on_after_batch_transfer(batch, 0)
    takes_number = len(inspect.signature(function).parameters) > 1
    found = function(batch, _NO_NUMBER) if takes_number else function(batch)
    return model._place.take_logged(), found


# ---- optimizer and schedule


@dataclass(frozen=True)
class _Configured:
    optimizer: torch.optim.Optimizer
    scheduler: LRScheduler | None
    every: Any
    monitored: frozenset[str] = frozenset()


class _Optimizers:
    """What configure_optimizers() of a recipe's models returns, in two calls."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._last: _Configured | None = None
        self._rates: list[float] = []

    def make(self, parameters: Any) -> torch.optim.Optimizer:
        self._last = _configured(self._models.of(parameters))
        self._rates = _rates(self._last.optimizer)
        return self._last.optimizer

    def schedule(self, optimizer: torch.optim.Optimizer) -> LRScheduler:
        last = self._last
        assert last is not None
        assert last.scheduler is not None
        if optimizer is not last.optimizer or _rates(optimizer) != self._rates:
            raise UserError(
                "configure_optimizers() makes the schedule with its own optimizer and learning "
                "rate, so that another of them does not reach it; change it in the module, and "
                "leave --learning-rate and strategies with an optimizer of their own out"
            )
        return last.scheduler


def _rates(optimizer: torch.optim.Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def _configured(module: Any) -> _Configured:
    """One optimizer and at most one schedule, from any form that Lightning takes."""
    found = module.configure_optimizers()
    schedulers: list[Any] = []
    beside = None  # a monitor may stand beside the schedule
    if isinstance(found, (list, tuple)) and len(found) == 2 and isinstance(found[0], list | tuple):
        optimizers, schedulers = list(found[0]), list(found[1])
    else:
        optimizers = _as_list(found)
    if optimizers and all(isinstance(one, Mapping) for one in optimizers):
        schedulers = [one["lr_scheduler"] for one in optimizers if "lr_scheduler" in one]
        beside = optimizers[0].get("monitor")
        optimizers = [one["optimizer"] for one in optimizers]
    for what, several in (("optimizers", optimizers), ("schedulers", schedulers)):
        if len(several) > 1 or (what == "optimizers" and not several):
            raise UserError(
                f"configure_optimizers() returned {len(several)} {what}; return one, or write the "
                "loop with samepath.start() and a prepare() for each optimizer"
            )
    if not schedulers:
        return _Configured(optimizers[0], None, "epoch")
    settings = schedulers[0] if isinstance(schedulers[0], Mapping) else {"scheduler": schedulers[0]}
    if settings.get("frequency", 1) != 1:
        raise UserError(
            f"the lr_scheduler's frequency is {settings['frequency']}; use 1, with a scheduler "
            "that counts its steps itself"
        )
    scheduler, monitored = settings["scheduler"], frozenset[str]()
    if isinstance(scheduler, ReduceLROnPlateau):
        monitor = settings.get("monitor") or beside or "val_loss"
        _refuse_monitor("ReduceLROnPlateau", monitor)
        if _short(monitor) != "loss":
            raise UserError(
                f"ReduceLROnPlateau monitors {monitor!r}; it can be given the validation loss: "
                "monitor='val_loss'"
            )
        monitored = frozenset({monitor})
    every = settings.get("interval", "epoch")
    return _Configured(optimizers[0], scheduler, every, monitored)


# ---- data


def _begin_data(datamodule: Any) -> None:
    if not _is(datamodule, "LightningDataModule", *_LIBRARIES):
        raise UserError(
            f"the datamodule is {type(datamodule).__name__}; give a LightningDataModule, or "
            "train_dataloaders=DataLoader(...)"
        )
    _refuse_hooks(datamodule, "LightningDataModule", _DATA_HOOKS)
    datamodule.prepare_data()
    datamodule.setup("fit")


def _loader(given: Any, datamodule: Any, module: Any, hook: str) -> Any:
    """The loader that was given, or that the datamodule or the module has; None without one."""
    if given is None:
        owner = next((o for o in (datamodule, module) if o is not None and _overrides(o, hook)), 0)
        given = getattr(owner, hook)() if owner else None
    if isinstance(given, (list, tuple)) and len(given) == 1:
        (given,) = given
    if given is not None and not isinstance(given, DataLoader):
        raise UserError(f"{hook}() returned {type(given).__name__}; return one DataLoader")
    return given


# ---- arguments of the Trainer


def _clip_norm(trainer: Mapping[str, Any]) -> float | None:
    algorithm = trainer.get("gradient_clip_algorithm") or "norm"
    if algorithm != "norm":
        raise UserError(f"gradient_clip_algorithm is {algorithm!r}; samepath clips by 'norm'")
    return trainer.get("gradient_clip_val") or None


def _autocast(precision: Any) -> torch.dtype | None:
    name = "32-true" if precision is None else str(precision)
    if name not in _AUTOCAST:
        raise UserError(
            f"precision is {precision!r}; use one of {', '.join(_AUTOCAST)}, or give the module "
            "and its data another dtype"
        )
    return _AUTOCAST[name]


# ---- callbacks, and hooks between steps


@dataclass
class _Callbacks:
    """What the callbacks of a Trainer ask of a recipe."""

    patience: int | None = None
    monitor: str = "loss"
    keep_best: bool = False
    average: Any = None
    monitored: set[str] = field(default_factory=set)


def _understood(callbacks: list[Any]) -> _Callbacks:
    found, monitors = _Callbacks(), set()
    for callback in callbacks:
        kinds = {kind.__name__ for kind in type(callback).__mro__}
        if kinds & {"EarlyStopping", "ModelCheckpoint"} and callback.monitor is not None:
            _refuse_monitor(type(callback).__name__, callback.monitor)
            found.monitored.add(callback.monitor)
            monitors.add(_short(callback.monitor) + (":max" if callback.mode == "max" else ""))
        if "EarlyStopping" in kinds:
            for name in ("min_delta", "stopping_threshold", "divergence_threshold"):
                if getattr(callback, name):
                    raise UserError(f"EarlyStopping has {name}, which has no counterpart; leave it")
            found.patience = callback.patience
        elif "ModelCheckpoint" in kinds:
            found.keep_best = callback.monitor is not None
        elif "WeightAveraging" in kinds and found.average is None:
            found.average = callback
        elif not kinds & _DISPLAYS:
            raise UserError(
                f"the callback {type(callback).__name__} has no counterpart; leave it out"
            )
    if len(monitors) > 1:
        raise UserError(
            f"callbacks monitor {' and '.join(sorted(monitors))}; a run goes by one of them"
        )
    for monitor in monitors:
        found.monitor = monitor if found.average is None else f"average_{monitor}"
    return found


class _Between:
    """What a module and an averaging callback do after steps and epochs."""

    def __init__(self, probe: Any, average: Any, *, has_valid: bool) -> None:
        hooks = ("on_validation_epoch_end",) * has_valid + ("on_train_epoch_end",)
        self._hooks = [hook for hook in hooks if _overrides(probe, hook)]
        self._average = average
        self._has_valid = has_valid

    @property
    def acts(self) -> bool:
        return self._average is not None or bool(self._hooks)

    def make_average(self, model: nn.Module) -> AveragedModel:
        asked = self._average
        return AveragedModel(model, use_buffers=asked._use_buffers, **asked._kwargs)

    def after_step(self, run: Any) -> None:
        if self._average.should_update(step_idx=run.step - 1):
            run.extra["average"].update_parameters(run.model)

    def after_epoch(self, run: Any) -> None:
        place = run.model.trainer
        place.now = run.epoch, run.step
        for hook in self._hooks:
            getattr(run.model, hook)()
        place.now = None
        run.metrics.update(_shortened(place.take_logged()))
        if self._average is None:
            return
        if self._has_valid:  # before this epoch's update, as Lightning
            found = run.evaluate(run.extra["average"])
            run.metrics.update({f"average_{name}": value for name, value in found.items()})
        if self._average.should_update(epoch_idx=run.epoch):
            run.extra["average"].update_parameters(run.model)


# ---- classes by name


def _is(thing: Any, name: str, *packages: str) -> bool:
    return _base(thing, name, packages) is not None


def _base(thing: Any, name: str, packages: tuple[str, ...] = _LIBRARIES) -> type | None:
    kinds = [kind for kind in type(thing).__mro__ if kind.__name__ == name]
    return next((kind for kind in kinds if kind.__module__.split(".")[0] in packages), None)


def _overrides(thing: Any, hook: str) -> bool:
    """Whether a person's module or datamodule has a hook of its own."""
    base = _base(thing, "LightningModule") or _base(thing, "LightningDataModule")
    own, given = (inspect.getattr_static(kind, hook) for kind in (type(thing), base))
    return own is not given


def _refuse_hooks(thing: Any, kind: str, taken: set[str]) -> None:
    base = _base(thing, kind)
    for hook, _ in inspect.getmembers(base, inspect.isfunction):
        if hook.startswith(("_", *_OTHER_STAGES)) or hasattr(nn.Module, hook) or hook in taken:
            continue
        if _overrides(thing, hook):
            raise UserError(
                f"{type(thing).__name__} overrides {hook}(), which has no counterpart; write it "
                "without (docs/bring/lightning.md lists what is taken)"
            )


def _as_list(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]
