"""Models of transformers, with its own optimizer, schedule and collators: the bits of a plain loop
with one grain per batch, its Trainer's weights to rounding, one digest on 1 and 3 workers, and
refusals by name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Sampler

from samepath.engine.state.checkpoint import list_checkpoints, load
from samepath.engine.train import Request, train
from samepath.errors import UserError
from samepath.plan import epoch_order
from samepath.recipe import Recipe
from samepath.threads import limited_threads

transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
from huggingface_recipe import ARGUMENTS, model, sentences  # noqa: E402

import samepath.huggingface  # noqa: E402

FILE = str(Path(__file__).with_name("huggingface_recipe.py"))
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def weights_after(recipe: Recipe, out: Path) -> dict[str, Tensor]:
    train(Request(recipe=FILE, num_workers=1, out=out, instead=lambda _: recipe))
    tensors = load(list_checkpoints(out / "checkpoints")[-1]).state.tensors
    return {n.removeprefix("model/"): t for n, t in tensors.items() if n.startswith("model/")}


def loop(model: Any, data: list[Any], collate: Callable[[list[Any]], Any]) -> None:
    """What the Trainer does with ARGUMENTS, in plain PyTorch, of whole batches."""
    no_decay = [p for n, p in model.named_parameters() if "bias" in n or "ln_" in n]
    decay = [p for n, p in model.named_parameters() if "bias" not in n and "ln_" not in n]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, fused=True)
    per_epoch = -(-len(data) // 12)
    schedule = transformers.get_cosine_schedule_with_warmup(optimizer, 2, 2 * per_epoch)
    for epoch in range(2):
        order = epoch_order(len(data), 7, epoch)
        for begin in range(0, len(data), 12):
            items = [data[n] for n in order[begin : begin + 12]]
            items = [{k: v for k, v in item.items() if k != "text"} for item in items]
            model.train()
            model(**collate(items)).loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


def test_the_bits_of_a_plain_loop_with_one_grain_per_batch(tmp_path: Path) -> None:
    torch.manual_seed(3)
    expected, data = model(), sentences(40, seed=1)
    start = copy.deepcopy(expected.state_dict())
    recipe = samepath.huggingface.recipe(
        copy.deepcopy(expected), ARGUMENTS, train_dataset=data, grain_size=12
    )
    assert (recipe.batch_size, recipe.epochs, recipe.seed) == (12, 2, 7)
    ours = weights_after(recipe, tmp_path / "run")
    with limited_threads(1):
        loop(expected, data, transformers.default_data_collator)
    found = {n: t for n, t in expected.state_dict().items() if n in ours}
    assert len(found) > 20
    assert not torch.equal(start["transformer.wte.weight"], found["transformer.wte.weight"])
    for name, tensor in found.items():
        assert torch.equal(ours[name], tensor), name


def test_one_digest_on_1_and_3_workers(tmp_path: Path) -> None:
    def run(num_workers: int) -> Any:
        out = tmp_path / str(num_workers)
        return train(Request(recipe=FILE, num_workers=num_workers, out=out))[0]

    alone, *others = map(run, (1, 3))  # 2 are in tests/docs/test_bring.py: imports are slow
    assert alone.metrics["loss"] < 2.7, "less than of guessing among 16 words"
    for other in others:
        assert (other.digest, other.metrics) == (alone.digest, alone.metrics)


def test_small_grains_have_the_gradient_of_the_batch() -> None:
    """Grains have different numbers of words; each word counts the same."""
    recipe = samepath.huggingface.recipe(model, ARGUMENTS, train_dataset=sentences(12, seed=1))
    assert recipe.weight is not None
    assert recipe.collate is not None
    made: Any = recipe.model().double()
    items = sentences(12, seed=1)
    whole = recipe.collate(items)
    grains = [recipe.collate(items[n : n + 3]) for n in range(0, 12, 3)]
    weights = [recipe.weight(grain) for grain in grains]
    assert len(set(weights)) > 1
    with torch.no_grad():
        mean = sum(recipe.loss(made, g) * w for g, w in zip(grains, weights, strict=True))
        expected = float(recipe.loss(made, whole))
    # transformers computes this loss in float32, whatever the model's type
    assert float(mean / sum(weights)) == pytest.approx(expected, rel=1e-6)


def test_tied_weights_stay_tied() -> None:
    recipe = samepath.huggingface.recipe(model(), ARGUMENTS, train_dataset=sentences(12, seed=1))
    made: Any = recipe.model()
    assert made.lm_head.weight is made.transformer.wte.weight
    optimizer = recipe.optimizer(iter(made.parameters()))
    counted = sum(len(group["params"]) for group in optimizer.param_groups)
    assert counted == len(list(made.parameters()))


def test_collators_of_transformers(tmp_path: Path) -> None:
    """A collator that pads, and gives a BatchEncoding; labels of one number."""
    config = transformers.BertConfig(
        vocab_size=16,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=2,
    )
    words = {"[PAD]": 0, "a": 1, "[UNK]": 2}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=__import__("tokenizers").Tokenizer(
            __import__("tokenizers").models.WordLevel(words, "[UNK]")
        ),
        pad_token="[PAD]",
    )
    data = [{"input_ids": [1] * (2 + n % 3), "label": n % 2} for n in range(8)]
    recipe = samepath.huggingface.recipe(
        lambda: transformers.BertForSequenceClassification(config),
        {"num_train_epochs": 1, "per_device_train_batch_size": 4, "optim": "sgd"},
        train_dataset=data,
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
    )
    assert recipe.weight is None
    weights_after(recipe, tmp_path / "run")


def need_accelerate() -> None:
    pytest.importorskip("accelerate", reason="transformers' Trainer and arguments need accelerate")


def its_trainer(model: Any, arguments: dict[str, Any], **more: Any) -> Any:
    """A Trainer that meets examples in samepath's order."""
    quiet = {"use_cpu": True, "save_strategy": "no", "disable_tqdm": True}
    made = transformers.TrainingArguments(**arguments | quiet)

    class InOurOrder(Sampler[int]):
        epoch = -1

        def __iter__(self) -> Iterator[int]:
            self.epoch += 1
            return iter(epoch_order(len(self), made.seed, self.epoch).tolist())

        def __len__(self) -> int:
            return 40

    class Ordered(transformers.Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> InOurOrder:
            return InOurOrder()

    return Ordered(model, made, train_dataset=sentences(40, seed=1), **more)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_its_trainer_to_rounding(accumulated: int, tmp_path: Path) -> None:
    """No bits: the Trainer divides a sum over words by their number in the whole batch, samepath
    weighs means, which rounds otherwise."""
    need_accelerate()
    arguments = ARGUMENTS | {
        "output_dir": str(tmp_path / "theirs"),
        "per_device_train_batch_size": 12 // accumulated,
        "gradient_accumulation_steps": accumulated,
    }
    torch.manual_seed(3)
    expected, data = model(), sentences(40, seed=1)
    start = copy.deepcopy(expected.state_dict())
    recipe = samepath.huggingface.recipe(
        copy.deepcopy(expected), arguments, train_dataset=data, grain_size=12 // accumulated
    )
    ours = weights_after(recipe, tmp_path / "run")
    with limited_threads(1):
        its_trainer(expected, arguments).train()
    found = {n: t for n, t in expected.state_dict().items() if n in ours}
    assert len(found) > 20
    moved = max(float((tensor - start[name]).abs().max()) for name, tensor in found.items())
    assert moved > 0.01
    for name, tensor in found.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=2e-5, msg=name)


def right_words(given: Any) -> dict[str, float]:
    counts = given.label_ids[:, 1:] != -100
    right = given.predictions[:, :-1].argmax(-1) == given.label_ids[:, 1:]
    return {"eval_accuracy": float(right[counts].mean())}


def test_compute_metrics_is_given_what_its_trainer_gives(tmp_path: Path) -> None:
    torch.manual_seed(3)
    held_out = sentences(10, seed=2)
    recipe = samepath.huggingface.recipe(
        model(),
        ARGUMENTS,
        train_dataset=sentences(40, seed=1),
        eval_dataset=held_out,
        compute_metrics=right_words,
        grain_size=4,
    )
    request = Request(recipe=FILE, num_workers=1, out=tmp_path / "run", instead=lambda _: recipe)
    found = train(request)[0].metrics
    assert found.keys() == {"loss", "accuracy"}
    trained = recipe.model()
    tensors = load(list_checkpoints(tmp_path / "run" / "checkpoints")[-1]).state.tensors
    names = trained.state_dict().keys() & {n.removeprefix("model/") for n in tensors}
    trained.load_state_dict({n: tensors[f"model/{n}"] for n in names}, strict=False)
    need_accelerate()
    trainer = its_trainer(
        trained,
        ARGUMENTS | {"output_dir": str(tmp_path / "theirs")},
        eval_dataset=held_out,
        compute_metrics=right_words,
    )
    theirs = trainer.evaluate()
    assert found["accuracy"] == pytest.approx(theirs["eval_accuracy"])
    with pytest.raises(UserError, match=r"compute_metrics has nothing to judge; give eval_dataset"):
        samepath.huggingface.recipe(
            model, ARGUMENTS, train_dataset=held_out, compute_metrics=right_words
        )


def test_training_arguments_are_read_as_a_dict_is() -> None:
    need_accelerate()
    kind = transformers.TrainingArguments
    data = sentences(12, seed=1)
    one, other = (
        samepath.huggingface.recipe(model, args, train_dataset=data)
        for args in (ARGUMENTS, kind(**ARGUMENTS))
    )
    for name in ("batch_size", "epochs", "seed", "clip_norm", "schedule_every"):
        assert getattr(one, name) == getattr(other, name)
    with pytest.raises(UserError, match=r"label_smoothing_factor=0.1 of TrainingArguments"):
        samepath.huggingface.recipe(model, kind(label_smoothing_factor=0.1), train_dataset=data)


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "model": (nn.Linear(2, 2), {}, r"the model is Linear; give a model of transformers"),
    "args": (model, 3, r"args is int; give a TrainingArguments, or a dict"),
    "unknown": (model, {"learning": 1}, r"TrainingArguments has no 'learning'"),
    "smoothing": (model, {"label_smoothing_factor": 0.1}, r"label_smoothing_factor=0.1 of"),
    "best": (model, {"load_best_model_at_end": True}, r"load_best_model_at_end=True of"),
    "steps": (model, {"max_steps": 10}, r"max_steps=10 .*--steps"),
    "optimizer": (model, {"optim": "adafactor"}, r"optim is 'adafactor'; use one of adamw"),
    "plateau": (model, {"lr_scheduler_type": "reduce_lr_on_plateau"}, r"goes by a loss; use one"),
    "epochs": (model, {"num_train_epochs": 1.5}, r"num_train_epochs is 1.5; give whole epochs"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    given, arguments, message = REFUSED[name]
    with pytest.raises(UserError, match=message) as caught:
        samepath.huggingface.recipe(given, arguments, train_dataset=sentences(4, seed=1))
    assert "\n" not in str(caught.value)


def test_examples_without_labels() -> None:
    data = [{"input_ids": item["input_ids"]} for item in sentences(4, seed=1)]
    recipe = samepath.huggingface.recipe(model, {}, train_dataset=data)
    assert recipe.collate is not None
    with pytest.raises(UserError, match=r"returned no loss for \['input_ids'\]"):
        recipe.loss(recipe.model(), recipe.collate(data))
