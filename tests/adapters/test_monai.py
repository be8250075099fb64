"""MONAI bundles, read by its own ConfigParser: the bits of a plain loop with one grain per batch,
one digest on 1, 2 and 3 workers, and refusals by name."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from samepath.data import seed_everything
from samepath.engine.state.checkpoint import list_checkpoints, load
from samepath.engine.state.reopen import reopen
from samepath.engine.train import Request, train
from samepath.errors import UserError
from samepath.keys import key
from samepath.plan import epoch_order
from samepath.recipe import Recipe
from samepath.threads import limited_threads

bundles: Any = pytest.importorskip("monai.bundle", reason="monai is not installed")
from monai_recipe import CONFIG, examples  # noqa: E402

import samepath.monai  # noqa: E402

FILE = str(Path(__file__).with_name("monai_recipe.py"))
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def test_the_bits_of_a_plain_loop_with_one_grain_per_batch(tmp_path: Path) -> None:
    recipe = samepath.monai.recipe(CONFIG, {"train#dataset#data": examples()}, grain_size=6)
    out = tmp_path / "run"
    train(Request(recipe=FILE, num_workers=1, out=out, instead=lambda _: recipe))
    ours = load(list_checkpoints(out / "checkpoints")[-1]).state.tensors
    changed = copy.deepcopy(CONFIG)
    changed["device"], changed["train"]["dataset"]["data"] = "cpu", examples()
    parser = bundles.ConfigParser(changed)
    with limited_threads(1):
        seed_everything(key("model", 0))
        network, loss = parser.get_parsed_content("network"), parser.get_parsed_content("loss")
        optimizer = parser.get_parsed_content("optimizer")
        scheduler = parser.get_parsed_content("lr_scheduler")
        data = parser.get_parsed_content("train#dataset")
        for epoch in range(2):
            order = epoch_order(len(data), 0, epoch)
            for begin in range(0, len(data), 6):
                items = [data[int(n)] for n in order[begin : begin + 6]]
                image, label = (
                    torch.stack([torch.as_tensor(item[name]) for item in items])
                    for name in ("image", "label")
                )
                optimizer.zero_grad()
                loss(network(image), label).backward()
                optimizer.step()
            scheduler.step()
    for name, tensor in network.state_dict().items():
        assert torch.equal(ours[f"model/{name}"], tensor), name


def test_one_digest_on_1_2_and_3_workers(tmp_path: Path) -> None:
    def run(num_workers: int) -> Any:
        out = tmp_path / str(num_workers)
        return train(Request(recipe=FILE, num_workers=num_workers, out=out))[0]

    alone, *others = map(run, (1, 2, 3))
    assert alone.train_loss is not None
    for other in others:
        assert (other.digest, other.metrics) == (alone.digest, alone.metrics)


def test_a_folder_of_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "train.json").write_text(json.dumps(CONFIG))
    recipe = samepath.monai.recipe(tmp_path, {"train#dataset#data": examples(4), "epochs": 5})
    assert (recipe.epochs, recipe.batch_size, recipe.schedule_every) == (5, 6, "epoch")


def changed(name: str, value: Any) -> dict[str, Any]:
    config = copy.deepcopy(CONFIG)
    *folders, last = name.split("#")
    place: Any = config
    for folder in folders:
        place = place[folder]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return config


FROM_ENGINE = "$monai.handlers.from_engine(['pred', 'label'])"
DICE = {"_target_": "MeanDice", "include_background": True, "output_transform": FROM_ENGINE}
DRAWN = [
    {"_target_": "Activationsd", "keys": "pred", "sigmoid": True},
    {"_target_": "AsDiscreted", "keys": "pred", "threshold": 0.5},
]


def evaluated(metric: Any, post: Any = DRAWN, handlers: Any = ()) -> dict[str, Any]:
    """The config with an evaluator, as bundles have one; its metric is referred to."""
    config = changed("validate#key_metric", {"val_metric": metric})
    config["validate"]["evaluator"] = {
        "_target_": "SupervisedEvaluator",
        "inferer": {
            "_target_": "SlidingWindowInferer",
            "roi_size": [16, 16],
            "progress": False,
        },
        "postprocessing": {"_target_": "Compose", "transforms": post},
        "key_val_metric": "@validate#key_metric",
        "val_handlers": list(handlers),
    }
    return config


def test_metrics_of_the_evaluator(tmp_path: Path) -> None:
    """MeanDice over all validation examples, at 1 and 2 workers; the best of it is kept."""
    from monai.metrics import DiceMetric

    saver = {"_target_": "CheckpointSaver", "save_key_metric": True}
    config = evaluated(DICE, handlers=[saver, {"_target_": "StatsHandler"}])
    data = examples(7)
    recipe = samepath.monai.recipe(config, {"train#dataset#data": data}, grain_size=2)
    assert (recipe.monitor, recipe.keep_best) == ("metric:max", True)
    found = [
        train(
            Request(
                recipe=FILE, num_workers=n, out=tmp_path / f"{n}", instead=_with_evaluator, epochs=1
            )
        )[0]
        for n in (1, 2)
    ]
    assert found[0].metrics == found[1].metrics
    run = reopen(tmp_path / "1")
    model, metric = run.model()[0], DiceMetric(include_background=True)
    with torch.no_grad():
        for item in data:
            scores = model(item["image"][None])
            metric(y_pred=(scores.sigmoid() >= 0.5).float(), y=item["label"][None])
    assert found[0].metrics["metric"] == pytest.approx(float(metric.aggregate()), abs=1e-6)
    assert (tmp_path / "1" / "weights" / "best.safetensors").is_file()


def _with_evaluator(found: Recipe) -> Recipe:
    saver = {"_target_": "CheckpointSaver", "save_key_metric": True}
    config = evaluated(DICE, handlers=[saver])
    made = samepath.monai.recipe(config, {"train#dataset#data": examples(7)}, grain_size=2)
    return replace(made, origin=found.origin)


def test_a_dice_loss_of_the_whole_batch(tmp_path: Path) -> None:
    """By encode and batch_loss: the loss of the first step is that of the whole batch, whatever the
    grains."""
    dice = {"_target_": "DiceLoss", "sigmoid": True, "batch": True}
    for loss in (dice, {"_target_": "DiceCELoss", "sigmoid": True, "batch": True}):
        recipe = samepath.monai.recipe(
            changed("loss", loss), {"train#dataset#data": examples()}, grain_size=2
        )
        assert recipe.encode is not None
    losses = {}
    for grain_size in (2, 6):
        made = samepath.monai.recipe(
            changed("loss", dice), {"train#dataset#data": examples()}, grain_size=grain_size
        )

        def instead(_: Recipe, made: Recipe = made) -> Recipe:
            return made

        out = tmp_path / f"{grain_size}"
        found = train(Request(recipe=FILE, num_workers=1, out=out, instead=instead))[0]
        losses[grain_size] = found.train_loss, found.metrics["loss"]
    assert losses[2] == pytest.approx(losses[6], rel=1e-5)


@pytest.mark.parametrize("has_gpu", [False, True])
def test_amp_is_float16_on_a_gpu_alone(has_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    config = changed("train#trainer#amp", True)
    recipe = samepath.monai.recipe(config, {"train#dataset#data": examples(4)})
    assert recipe.autocast is (torch.float16 if has_gpu else None)


REFUSED: dict[str, tuple[Any, str]] = {
    "no bundle": ("nowhere", r"nowhere is no bundle: it has no configs/train\.json"),
    "no data": (changed("train#dataset", None), r"config has no train#dataset; it must"),
    "engine": (changed("train#trainer#_target_", "GanTrainer"), r"is 'GanTrainer'; a recipe"),
    "update": (changed("train#trainer#iteration_update", "$x"), r"no place for iteration_update"),
    "collate": (changed("train#dataloader#collate_fn", "$x"), r"no place for collate_fn"),
    "order": (changed("train#dataloader#shuffle", False), r"has shuffle=False; samepath shuffles"),
    "handler": (
        changed("train#handlers", [{"_target_": "monai.handlers.EarlyStopHandler"}]),
        r"train#handlers has EarlyStopHandler, which has no counterpart",
    ),
    "metric": (
        evaluated({"_target_": "ROCAUC", "output_transform": FROM_ENGINE}),
        r"the evaluator's metric 'val_metric' is ROCAUC, which has no counterpart",
    ),
    "reduction": (
        evaluated(DICE | {"reduction": "mean_batch"}),
        r"the evaluator's 'val_metric' has reduction='mean_batch'",
    ),
    "compared": (
        evaluated(DICE | {"output_transform": "$lambda x: x"}),
        r"'val_metric' compares other things than 'pred' and 'label'",
    ),
    "files": (
        evaluated(DICE, [{"_target_": "Invertd", "keys": "pred"}]),
        r"postprocessing has Invertd, which needs the files",
    ),
    "valid handler": (
        evaluated(DICE, handlers=[{"_target_": "EarlyStopHandler"}]),
        r"validate#evaluator#val_handlers has EarlyStopHandler, which has no counterpart",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    config, message = REFUSED[name]
    with pytest.raises(UserError, match=message) as caught:
        samepath.monai.recipe(config)
    assert "\n" not in str(caught.value)


def test_an_override_that_names_nothing() -> None:
    with pytest.raises(UserError, match=r"has no 'trian#trainer' to override"):
        samepath.monai.recipe(CONFIG, {"trian#trainer": 1})
