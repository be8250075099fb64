"""A MONAI bundle as a recipe.

In: a bundle's folder or training config. Out: a Recipe with its network, loss, optimizer, schedule
and data sets, or a UserError that names the part that has no counterpart. A bundle's config is code
and runs with the person's rights, as `monai.bundle run` runs it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from samepath.adapters.models import Models, refuse_arguments
from samepath.errors import UserError
from samepath.recipe import Recipe

_TRAINER = {
    "_target_",
    "max_epochs",
    "device",
    "train_data_loader",
    "network",
    "loss_function",
    "optimizer",
    "inferer",
    "accumulation_steps",
    "train_handlers",
    "amp",
    # about metrics and displays:
    "postprocessing",
    "key_train_metric",
    "additional_metrics",
    "decollate",
    "non_blocking",
    "optim_set_to_none",
}
_LOADER = {
    "_target_",
    "dataset",
    "batch_size",
    "shuffle",
    "drop_last",
    "num_workers",
    "pin_memory",
    "persistent_workers",
}
_MISSING = object()
_DISPLAYS = (
    "StatsHandler",
    "ValidationHandler",
    "CheckpointSaver",
    "TensorBoard",
    "IgniteInfo",
    "MetricsSaver",
    "MetricLogger",
    "MLFlowHandler",
    "GarbageCollector",
)
"""How the names of handlers end or begin that change nothing in the training."""
_METRICS = {"MeanDice": "DiceMetric", "MeanIoUHandler": "MeanIoU"}
"""Metric handlers of an evaluator, and the metrics of MONAI that they compute."""
_SETTINGS = {"include_background", "num_classes"}
_OF_FILES = ("Invertd", "SaveImaged")
"""Postprocessing that needs where an image came from, or writes files."""


def recipe(
    bundle: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    max_workers: int | None = None,
    grain_size: int | None = None,
    predict: Callable[[nn.Module, Any], Any] | None = None,
) -> Recipe:
    """Make a recipe of a bundle's folder (its configs/train.json or .yaml), a config file, or what
    is in one. `overrides` are as those of `monai.bundle run`: {"train#trainer#max_epochs": 5}.
    Validation is the loss and the evaluator's metrics on `validate#dataset`, through its inferer,
    after every epoch. `predict(model, batch)` is the recipe's; without one it is that inferer."""
    config = _Config(bundle, overrides or {})
    trainer, loader = config.raw("train#trainer"), config.raw("train#dataloader")
    if not str(trainer.get("_target_", "")).endswith("SupervisedTrainer"):
        raise UserError(
            f"train#trainer is {trainer.get('_target_')!r}; a recipe stands for SupervisedTrainer"
        )
    refuse_arguments(trainer, _TRAINER, {}, "train#trainer of a bundle")
    refuse_arguments(loader, _LOADER, {}, "train#dataloader of a bundle")
    if not config.get("train#dataloader#shuffle", False):
        raise UserError(
            "train#dataloader has shuffle=False; samepath shuffles every epoch from the seed: "
            "give overrides={'train#dataloader#shuffle': True}"
        )
    loss = config.get("train#trainer#loss_function")
    schedule = config.schedule(config.raw("train#handlers", []))
    models = Models(lambda: config.get("train#trainer#network"), _refuse_network)
    metrics = _Metrics(config)
    steps = _Steps(
        loss,
        config.get("train#inferer", None),
        config.get("validate#evaluator#inferer", config.get("validate#inferer", None)),
        metrics,
    )
    accumulated = config.get("train#trainer#accumulation_steps", 1)

    def optimizer(parameters: Any) -> Any:
        return config.get("train#trainer#optimizer", network=models.of(parameters))

    def scheduler(optimizer: torch.optim.Optimizer) -> LRScheduler:
        made: LRScheduler = config.get(f"{schedule}#lr_scheduler", optimizer=optimizer)
        return made

    by_epoch = schedule is None or config.get(f"{schedule}#epoch_level", True)
    return Recipe(
        model=models.make,
        train=config.get("train#dataset"),
        valid=config.get("validate#dataset", None),
        collate=_collate,
        **(
            {"encode": steps.encode, "batch_loss": steps.batch_loss}
            if steps.is_of_batch
            else {"loss": steps.train}
        ),
        evaluate=steps.validate,
        evaluate_all=metrics.of_all if metrics.kinds else None,
        predict=predict or (steps.predict if steps.has_own_inferer else None),
        keep_best=metrics.monitor is not None,
        monitor=metrics.monitor or "loss",
        autocast=_autocast(bool(config.get("train#trainer#amp", False))),
        optimizer=optimizer,
        schedule=None if schedule is None else scheduler,
        schedule_every="epoch" if by_epoch else "step",
        batch_size=config.get("train#dataloader#batch_size", 1) * accumulated,
        max_workers=max_workers,
        grain_size=grain_size,  # type: ignore[arg-type]  # None is a number later
        epochs=config.get("train#trainer#max_epochs"),
        drop_last=config.get("train#dataloader#drop_last", False),
        loader_workers=config.get("train#dataloader#num_workers", 0),
    )


class _Config:
    """A bundle's training config; everything that is asked of it is made anew."""

    def __init__(
        self, bundle: str | Path | Mapping[str, Any], overrides: Mapping[str, Any]
    ) -> None:
        try:
            from monai.bundle import ConfigParser
        except ImportError:
            raise UserError("samepath.monai needs monai: pip install 'samepath[monai]'") from None
        self._parser = ConfigParser
        if isinstance(bundle, Mapping):
            read = dict(bundle)
        else:
            path, root = _file_of(Path(bundle))
            read = {"bundle_root": str(root)} | ConfigParser.load_config_file(path)
        parser = ConfigParser(copy.deepcopy(read))
        for name in overrides:
            if name.partition("#")[0] not in read:
                raise UserError(f"the bundle's config has no {name!r} to override; check its name")
        parser.update(dict(overrides))
        self._config: dict[str, Any] = parser.get()

    def raw(self, name: str, *default: Any) -> Any:
        """What a part of the config says, before anything of it is made."""
        found: Any = self._config
        for part in name.split("#"):
            try:
                found = found[int(part) if isinstance(found, list) else part]
            except (KeyError, IndexError, TypeError):
                if default:
                    return default[0]
                raise UserError(f"the bundle's config has no {name}; it must have one") from None
        return found

    def get(self, name: str, *default: Any, **instead: Any) -> Any:
        """Make a part of the config, with a network or optimizer in place of the config's own."""
        if self.raw(name, *default and (_MISSING,)) is _MISSING:
            return default[0]
        parser = self._parser(copy.deepcopy(self._config))
        parser["device"] = torch.device("cpu")  # samepath moves what it trains
        for what, thing in instead.items():
            for place in (what, f"{what}_def"):
                if place in self._config:
                    parser[place] = thing
        return parser.get_parsed_content(name)

    def follow(self, name: str, default: Any) -> Any:
        """What a part of the config says, or the part that it refers to (@validate#key_metric)."""
        found = self.raw(name, default)
        while isinstance(found, str) and found.startswith("@"):
            found = self.raw(found[1:].replace("::", "#"))
        return found

    def schedule(self, handlers: Sequence[Mapping[str, Any]]) -> str | None:
        """Find the handler of a learning-rate schedule; raise for handlers that would change
        the training otherwise."""
        found = None
        for number, handler in enumerate(handlers):
            if _kind(handler) == "LrScheduleHandler" and "step_transform" not in handler:
                found = f"train#handlers#{number}"
            else:
                _refuse_handler(handler, "train#handlers")
        return found


def _kind(config: Any) -> str:
    return str(config.get("_target_", config)).rpartition(".")[2]


def _refuse_handler(handler: Mapping[str, Any], where: str) -> None:
    """Raise for a handler that is not about logs, files and displays."""
    kind = _kind(handler)
    if not kind.endswith(_DISPLAYS) and not kind.startswith(_DISPLAYS):
        raise UserError(f"{where} has {kind}, which has no counterpart; leave it out of the config")


def _autocast(amp: bool) -> torch.dtype | None:
    """What MONAI's `amp` is: float16 with scaled losses on a GPU, nothing on a CPU."""
    return torch.float16 if amp and torch.cuda.is_available() else None


def _file_of(path: Path) -> tuple[Path, Path]:
    """The config file, and the bundle's folder."""
    if path.is_file():
        return path, path.resolve().parents[1]
    for suffix in ("json", "yaml", "yml"):
        if (file := path / "configs" / f"train.{suffix}").is_file():
            return file, path
    raise UserError(
        f"{path} is no bundle: it has no configs/train.json or .yaml; give a bundle's folder, or "
        "its training config"
    )


def _refuse_network(network: Any) -> nn.Module:
    if not isinstance(network, nn.Module):
        raise UserError(
            f"train#trainer#network is {type(network).__name__}; it must be a torch.nn.Module"
        )
    return network


class _Metrics:
    """The metrics of a bundle's evaluator, without its engine."""

    def __init__(self, config: _Config) -> None:
        self.kinds: dict[str, Any] = {}
        self.monitor: str | None = None
        """The key metric, where its best weights are saved."""
        key = config.follow("validate#evaluator#key_val_metric", None) or {}
        more = config.follow("validate#evaluator#additional_metrics", None) or {}
        for name, metric in {**key, **more}.items():
            self.kinds[name.removeprefix("val_")] = _metric(name, metric)
        for handler in config.follow("validate#evaluator#val_handlers", None) or []:
            _refuse_handler(handler, "validate#evaluator#val_handlers")
            if key and _kind(handler) == "CheckpointSaver" and handler.get("save_key_metric"):
                way = "min" if handler.get("key_metric_negative_sign") else "max"
                self.monitor = f"{next(iter(key)).removeprefix('val_')}:{way}"
        post = config.follow("validate#evaluator#postprocessing", None) or {}
        for transform in post.get("transforms", [post] if post else []):
            if self.kinds and _kind(transform) in _OF_FILES:
                raise UserError(
                    f"the evaluator's postprocessing has {_kind(transform)}, which needs the files "
                    "that images came from; leave it out of the config"
                )
        self._post = (
            config.get("validate#evaluator#postprocessing", None) if self.kinds and post else None
        )

    def rows(self, image: Tensor, label: Tensor, scores: Tensor) -> dict[str, Tensor]:
        """Each metric of each example, postprocessed by itself: a row for each."""
        found: dict[str, list[Tensor]] = {name: [] for name in self.kinds}
        for each in zip(image, label, scores, strict=True):
            item: Any = dict(zip(("image", "label", "pred"), each, strict=True))
            item = item if self._post is None else self._post(item)
            for name, metric in self.kinds.items():
                row = metric(y_pred=item["pred"][None], y=item["label"][None])
                metric.reset()
                found[name].append(torch.as_tensor(row))
        return {name: torch.cat(rows) for name, rows in found.items()}

    def of_all(self, outputs: Mapping[str, Tensor], targets: Any) -> dict[str, float]:
        """Means over classes and examples, as MONAI's: NaN (a class that is not there) is left
        out."""
        from monai.metrics.utils import do_metric_reduction

        return {name: float(do_metric_reduction(rows)[0]) for name, rows in outputs.items()}


def _metric(name: str, handler: Mapping[str, Any]) -> Any:
    """MONAI's metric that a handler computes; an error for one that has no counterpart."""
    import monai.metrics

    kind, instead = _kind(handler), "leave it out of the config"
    if kind not in _METRICS:
        raise UserError(
            f"the evaluator's metric {name!r} is {kind}, which has no counterpart (taken are "
            f"{', '.join(_METRICS)}); {instead}"
        )
    settings = {n: value for n, value in handler.items() if n in _SETTINGS}
    plain = {"reduction": "mean", "return_with_label": False, "save_details": None}
    for setting, value in handler.items():
        known = setting in (*_SETTINGS, "_target_", "output_transform", "save_details")
        if not known and value != plain.get(setting, ...):
            raise UserError(f"the evaluator's {name!r} has {setting}={value!r}; {instead}")
    if not all(word in str(handler.get("output_transform")) for word in ("pred", "label")):
        raise UserError(
            f"the evaluator's {name!r} compares other things than 'pred' and 'label'; {instead}"
        )
    return getattr(monai.metrics, _METRICS[kind])(**settings)


class _Steps:
    """The loss of a grain, in training and in validation."""

    def __init__(
        self, loss: Any, train_inferer: Any, valid_inferer: Any, metrics: _Metrics
    ) -> None:
        self._loss = loss
        self._train_inferer = train_inferer
        self._valid_inferer = valid_inferer
        self._metrics = metrics
        parts = loss.modules() if isinstance(loss, nn.Module) else [loss]
        self.is_of_batch = any(getattr(part, "batch", False) is True for part in parts)
        """Whether it is a loss of the whole batch: DiceLoss(batch=True), alone or in another."""

    @property
    def has_own_inferer(self) -> bool:
        return self._valid_inferer is not None

    def train(self, model: nn.Module, batch: Any) -> Tensor:
        image, label = batch
        found: Tensor = self._loss(_inferred(self._train_inferer, model, image), label)
        return found

    def encode(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        image, label = batch
        return {"scores": _inferred(self._train_inferer, model, image), "label": label}

    def batch_loss(self, encoded: Mapping[str, Tensor]) -> Tensor:
        found: Tensor = self._loss(encoded["scores"], encoded["label"])
        return found

    def validate(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        image, label = batch
        scores = _inferred(self._valid_inferer, model, image)
        if self.is_of_batch:  # each example by itself: the same at every size of grains
            pairs = zip(scores.split(1), label.split(1), strict=True)
            loss = torch.stack([self._loss(*pair) for pair in pairs]).mean()
        else:
            loss = self._loss(scores, label)
        if not self._metrics.kinds:
            return {"loss": loss}
        return {
            "loss": loss,
            "outputs": self._metrics.rows(image, label, scores),
            "targets": {},
        }

    def predict(self, model: nn.Module, batch: Any) -> Any:
        image = batch[0] if isinstance(batch, (tuple, list)) else batch
        return _inferred(self._valid_inferer, model, image)


def _inferred(inferer: Any, model: nn.Module, image: Tensor) -> Any:
    return model(image) if inferer is None else inferer(image, model)


def _collate(items: list[Any]) -> tuple[Tensor, Tensor]:
    """Images and labels, as plain tensors."""
    from monai.data import list_data_collate

    batch = list_data_collate(items)
    if isinstance(batch, Mapping):
        if not {"image", "label"} <= batch.keys():
            raise UserError(
                f"an example of the bundle has {sorted(batch)}; it must have 'image' and 'label'"
            )
        batch = (batch["image"], batch["label"])
    image, label = (part.as_tensor() if hasattr(part, "as_tensor") else part for part in batch)
    return image, label
