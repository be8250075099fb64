"""MONAI bundles, read by its own ConfigParser: the bits of a plain loop with one grain per batch,
one digest on 1, 2 and 3 workers, and refusals by name."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from samepath.data import seed_everything
from samepath.engine.state.checkpoint import list_checkpoints, load
from samepath.engine.train import Request, train
from samepath.errors import UserError
from samepath.keys import key
from samepath.plan import epoch_order
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


REFUSED: dict[str, tuple[Any, str]] = {
    "no bundle": ("nowhere", r"nowhere is no bundle: it has no configs/train\.json"),
    "no data": (changed("train#dataset", None), r"config has no train#dataset; it must"),
    "engine": (changed("train#trainer#_target_", "GanTrainer"), r"is 'GanTrainer'; a recipe"),
    "update": (changed("train#trainer#iteration_update", "$x"), r"no place for iteration_update"),
    "collate": (changed("train#dataloader#collate_fn", "$x"), r"no place for collate_fn"),
    "amp": (changed("train#trainer#amp", True), r"train#trainer#amp is True, which is float16"),
    "order": (changed("train#dataloader#shuffle", False), r"has shuffle=False; samepath shuffles"),
    "handler": (
        changed("train#handlers", [{"_target_": "monai.handlers.EarlyStopHandler"}]),
        r"train#handlers has EarlyStopHandler, which has no counterpart",
    ),
    "batch": (
        changed("loss", {"_target_": "DiceLoss", "batch": True}),
        r"DiceLoss\(batch=True\) is a loss of the whole batch",
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
