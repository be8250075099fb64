"""A MONAI bundle as a recipe.

In: a bundle's folder or training config. Out: a Recipe with its network, loss, optimizer, schedule
and data sets, or a UserError that names the part that has no counterpart. A bundle's config is code
and runs with the person's rights, as `monai.bundle run` runs it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
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
_DISPLAYS = ("StatsHandler", "ValidationHandler", "CheckpointSaver", "TensorBoard", "IgniteInfo")
"""How the names of handlers end or begin that change nothing in the training."""


def recipe(
    bundle: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    max_workers: int | None = None,
    grain_size: int | None = None,
) -> Recipe:
    """Make a recipe of a bundle's folder (its configs/train.json or .yaml), a config file, or what
    is in one. `overrides` are as those of `monai.bundle run`: {"train#trainer#max_epochs": 5}.
    Validation is the loss on `validate#dataset`, through `validate#inferer`, after every epoch."""
    config = _Config(bundle, overrides or {})
    trainer, loader = config.raw("train#trainer"), config.raw("train#dataloader")
    if not str(trainer.get("_target_", "")).endswith("SupervisedTrainer"):
        raise UserError(
            f"train#trainer is {trainer.get('_target_')!r}; a recipe stands for SupervisedTrainer"
        )
    refuse_arguments(trainer, _TRAINER, {}, "train#trainer of a bundle")
    refuse_arguments(loader, _LOADER, {}, "train#dataloader of a bundle")
    if trainer.get("amp") and config.get("train#trainer#amp"):
        raise UserError(
            "train#trainer#amp is True, which is float16 on a GPU; give "
            "overrides={'train#trainer#amp': False}"
        )
    if not config.get("train#dataloader#shuffle", False):
        raise UserError(
            "train#dataloader has shuffle=False; samepath shuffles every epoch from the seed: "
            "give overrides={'train#dataloader#shuffle': True}"
        )
    loss = config.get("train#trainer#loss_function")
    if getattr(loss, "batch", False):
        raise UserError(
            f"{type(loss).__name__}(batch=True) is a loss of the whole batch, and the model sees a "
            "grain of it at a time; use batch=False"
        )
    schedule = config.schedule(config.raw("train#handlers", []))
    models = Models(lambda: config.get("train#trainer#network"), _refuse_network)
    steps = _Steps(loss, config.get("train#inferer", None), config.get("validate#inferer", None))
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
        loss=steps.train,
        evaluate=steps.validate,
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

    def schedule(self, handlers: Sequence[Mapping[str, Any]]) -> str | None:
        """Find the handler of a learning-rate schedule; raise for handlers that would change
        the training otherwise."""
        found = None
        for number, handler in enumerate(handlers):
            kind = str(handler.get("_target_", handler)).rpartition(".")[2]
            if kind == "LrScheduleHandler" and "step_transform" not in handler:
                found = f"train#handlers#{number}"
            elif not kind.endswith(_DISPLAYS) and not kind.startswith(_DISPLAYS):
                raise UserError(
                    f"train#handlers has {kind}, which has no counterpart; leave it out of the "
                    "config"
                )
        return found


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


class _Steps:
    """The loss of a grain, in training and in validation."""

    def __init__(self, loss: Any, train_inferer: Any, valid_inferer: Any) -> None:
        self._loss = loss
        self._train_inferer = train_inferer
        self._valid_inferer = valid_inferer

    def train(self, model: nn.Module, batch: Any) -> Tensor:
        return self._of(model, batch, self._train_inferer)

    def validate(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"loss": self._of(model, batch, self._valid_inferer)}

    def _of(self, model: nn.Module, batch: Any, inferer: Any) -> Tensor:
        image, label = batch
        found: Tensor = self._loss(
            model(image) if inferer is None else inferer(image, model), label
        )
        return found


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
