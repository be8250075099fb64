"""A model of transformers, its data and its Trainer's arguments as a recipe.

In: what `transformers.Trainer` is given. Out: a Recipe with its batches, loss, optimizer
and schedule, or a UserError that names the argument that has no counterpart.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from samepath.adapters.models import Models
from samepath.data.sources import Data
from samepath.errors import UserError
from samepath.plan import count_steps
from samepath.recipe import Recipe

_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "sgd", "rmsprop")
_USED = {
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "bf16",
    "dataloader_drop_last",
    "dataloader_num_workers",
    "fp16",
    "gradient_accumulation_steps",
    "learning_rate",
    "lr_scheduler_kwargs",
    "lr_scheduler_type",
    "max_grad_norm",
    "num_train_epochs",
    "optim",
    "per_device_train_batch_size",
    "remove_unused_columns",
    "seed",
    "warmup_steps",
    "weight_decay",
}
_WITHOUT_EFFECT = (
    *("output_dir", "log", "disable_tqdm", "report_to", "run_name", "project", "trackio"),
    *("include_", "do_", "eval_", "per_device_eval", "prediction_loss_only", "batch_eval"),
    *("save_", "enable_jit_checkpoint", "push_to_hub", "hub_", "resume_from", "restore_callback"),
    *("ignore_data_skip", "full_determinism", "data_seed", "use_cpu", "accelerator_config"),
    *("dataloader_", "ddp_", "debug", "skip_memory_metrics", "local_rank", "use_cache"),
    *("average_tokens_across_devices", "length_column_name", "torch_empty_cache_steps"),
)
"""How arguments begin that are about logs, files, evaluation and devices: samepath has its own."""
_HINTS = {
    "gradient_checkpointing": "call model.gradient_checkpointing_enable() where the model is made",
    "activation_checkpointing": "call model.gradient_checkpointing_enable() where it is made",
    "torch_compile": "give --compile to samepath train",
    "max_steps": "give num_train_epochs, and --steps to samepath train",
}


def recipe(
    model: Any,
    args: Any = None,
    *,
    train_dataset: Data,
    eval_dataset: Data | None = None,
    data_collator: Callable[[list[Any]], Any] | None = None,
    compute_metrics: Callable[[Any], Mapping[str, float]] | None = None,
    max_workers: int | None = None,
    grain_size: int | None = None,
    predict: Callable[[nn.Module, Any], Any] | None = None,
) -> Recipe:
    """Make a recipe of a model of transformers (or a function that makes one) and the arguments of
    its Trainer: a `TrainingArguments`, or a dict of the same names. The global batch is
    `per_device_train_batch_size * gradient_accumulation_steps`, at every worker count. The loss is
    the mean over a batch's labels that count (not -100), as the Trainer's. `compute_metrics` is
    given the predictions and labels of all of `eval_dataset`, after every epoch."""
    try:
        import transformers
    except ImportError:
        raise UserError(
            "samepath.huggingface needs transformers: pip install 'samepath[huggingface]'"
        ) from None
    given = _arguments(args, transformers.TrainingArguments)
    if compute_metrics is not None and eval_dataset is None:
        raise UserError("compute_metrics has nothing to judge; give eval_dataset=, or leave it out")
    models = Models(model, _refuse_model)
    probe = models.make()
    collate = _Collate(
        data_collator or transformers.default_data_collator,
        _columns(probe) if given.remove_unused_columns else None,
    )
    batch_size = given.per_device_train_batch_size * given.gradient_accumulation_steps
    num_examples = len(train_dataset)  # type: ignore[arg-type]
    steps = count_steps(num_examples, batch_size, drop_last=given.dataloader_drop_last)
    epochs = given.num_train_epochs
    if epochs != int(epochs):
        raise UserError(f"num_train_epochs is {epochs}; give whole epochs, and --steps to train")

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        return _optimizer(models.of(parameters), given)

    def schedule(optimizer: torch.optim.Optimizer) -> LRScheduler:
        total, warm = steps * int(epochs), given.warmup_steps
        made: LRScheduler = transformers.get_scheduler(
            given.lr_scheduler_type,
            optimizer=optimizer,
            num_warmup_steps=int(warm) if warm >= 1 else math.ceil(total * warm),
            num_training_steps=total,
            scheduler_specific_kwargs=given.lr_scheduler_kwargs,
        )
        return made

    return Recipe(
        model=models.make,
        train=train_dataset,
        valid=eval_dataset,
        collate=collate,
        loss=_loss,
        evaluate=None if compute_metrics is None else _evaluate,
        evaluate_all=None if compute_metrics is None else _Judge(compute_metrics),
        predict=predict,
        weight=_weight(probe, collate([train_dataset[0]])),  # type: ignore[index]
        optimizer=optimizer,
        schedule=schedule,
        schedule_every="step",
        batch_size=batch_size,
        max_workers=max_workers,
        grain_size=grain_size,  # type: ignore[arg-type]  # None is a number later
        epochs=int(epochs),
        seed=given.seed,
        drop_last=given.dataloader_drop_last,
        clip_norm=given.max_grad_norm or None,
        autocast=torch.bfloat16 if given.bf16 else torch.float16 if given.fp16 else None,
        loader_workers=given.dataloader_num_workers,
    )


def _arguments(args: Any, kind: Any) -> SimpleNamespace:
    """All arguments that are used, by name; raise for others that would change the training."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    defaults = {
        name: field.default if field.default_factory is dataclasses.MISSING else None
        for name, field in fields.items()
    }
    if isinstance(args, kind):
        found = {name: getattr(args, name) for name in fields}
    elif args is None or isinstance(args, Mapping):
        found = dict(args or {})
    else:
        raise UserError(
            f"args is {type(args).__name__}; give a TrainingArguments, or a dict of the same names"
        )
    found = {name: getattr(value, "value", value) for name, value in found.items()}  # of enums
    for name, value in found.items():
        if name not in fields:
            raise UserError(f"TrainingArguments has no {name!r}; check its name")
        if name in _USED or name.startswith(_WITHOUT_EFFECT):
            continue
        if value != defaults[name] and (value or defaults[name]):
            hint = _HINTS.get(name, "leave it out")
            raise UserError(f"{name}={value!r} of TrainingArguments has no counterpart; {hint}")
    given = SimpleNamespace(**{name: found.get(name, defaults[name]) for name in _USED})
    given.optim_args = None
    if given.optim not in _OPTIMIZERS:
        raise UserError(f"optim is {given.optim!r}; use one of {', '.join(_OPTIMIZERS)}")
    if given.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy"):
        raise UserError(
            f"lr_scheduler_type is {given.lr_scheduler_type!r}, which goes by a loss; use one that "
            "goes by steps ('linear', 'cosine', ...)"
        )
    return given


# ---- the model


def _refuse_model(model: Any) -> nn.Module:
    if not isinstance(model, nn.Module) or not hasattr(model, "config"):
        raise UserError(
            f"the model is {type(model).__name__}; give a model of transformers, or a function "
            "that makes one"
        )
    return model


def _loss(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    outputs = model(**batch)
    loss = outputs.get("loss")
    if loss is None:
        raise UserError(
            f"{type(model).__name__} returned no loss for {sorted(batch)}; give examples with "
            "'labels'"
        )
    found: Tensor = loss
    return found


def _evaluate(model: nn.Module, batch: Mapping[str, Any]) -> dict[str, Any]:
    """The loss, and what compute_metrics is to be given of a grain, as the Trainer takes it."""
    outputs, config = model(**batch), getattr(model, "config", None)
    left_out = {"loss", *(getattr(config, "keys_to_ignore_at_inference", None) or ())}
    predictions = tuple(value for name, value in outputs.items() if name not in left_out)
    return {
        "loss": outputs["loss"],
        "outputs": predictions[0] if len(predictions) == 1 else predictions,
        "targets": batch["labels"],
    }


@dataclasses.dataclass(frozen=True)
class _Judge:
    """Calls compute_metrics as the Trainer does, with numpy arrays."""

    compute_metrics: Callable[[Any], Mapping[str, float]]

    def __call__(self, outputs: Any, targets: Tensor) -> dict[str, float]:
        from transformers import EvalPrediction

        several = isinstance(outputs, tuple)
        arrays = tuple(each.cpu().numpy() for each in (outputs if several else (outputs,)))
        given = EvalPrediction(arrays if several else arrays[0], targets.cpu().numpy())
        found = self.compute_metrics(given)
        return {name.removeprefix("eval_"): value for name, value in found.items()}


def _weight(model: nn.Module, batch: Mapping[str, Any]) -> Callable[[Any], float] | None:
    """How labels are counted, where an example has several; None where each counts the same."""
    labels = batch.get("labels")
    if not isinstance(labels, Tensor) or labels.ndim != 2 or labels.is_floating_point():
        return None
    kind = getattr(model, "loss_type", None) or type(model).__name__
    shifts = kind.endswith(("ForCausalLM", "LMHeadModel"))  # such a loss leaves the first word out
    first = 1 if shifts and not getattr(model.config, "is_encoder_decoder", False) else 0

    def count(batch: Any) -> float:
        return float(batch["labels"][:, first:].ne(-100).sum())

    return count


def _optimizer(model: nn.Module, given: SimpleNamespace) -> torch.optim.Optimizer:
    """The Trainer's: no weight decay for biases and norms."""
    from transformers import Trainer
    from transformers.training_args import OptimizerNames

    decays = set(Trainer.get_decay_parameter_names(None, model))
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = [
        {
            "params": [p for name, p in trained if name in decays],
            "weight_decay": given.weight_decay,
        },
        {"params": [p for name, p in trained if name not in decays], "weight_decay": 0.0},
    ]
    asked = SimpleNamespace(**vars(given) | {"optim": OptimizerNames(given.optim)})
    kind, settings = Trainer.get_optimizer_cls_and_kwargs(asked, model)
    made: torch.optim.Optimizer = kind([group for group in groups if group["params"]], **settings)
    return made


# ---- batches


def _columns(model: nn.Module) -> set[str]:
    """What of an example the model's forward takes."""
    names = set(inspect.signature(model.forward).parameters)
    return names | {"label", "label_ids", "labels"}


@dataclasses.dataclass(frozen=True)
class _Collate:
    """Makes a dict of tensors of examples, as the Trainer does."""

    collator: Callable[[list[Any]], Any]
    columns: set[str] | None

    def __call__(self, items: list[Any]) -> dict[str, Any]:
        if self.columns is not None and items and isinstance(items[0], Mapping):
            items = [{n: v for n, v in item.items() if n in self.columns} for item in items]
        return dict(self.collator(items))
