"""LightningModules against lightning itself: the bits of its Trainer with one grain per batch, one
digest on 1 and 3 workers; and what has no counterpart, refused by name."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, Sampler

from samepath.engine.state.checkpoint import list_checkpoints, load
from samepath.engine.state.reopen import reopen
from samepath.engine.train import Request, train
from samepath.errors import UserError
from samepath.output.export import export
from samepath.output.predict import predict
from samepath.plan import epoch_order
from samepath.recipe import Recipe
from samepath.threads import limited_threads

lightning: Any = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
from lightning_recipe import BATCH, EPOCHS, NUM_EXAMPLES, Classifier, Numbers  # noqa: E402

import samepath.lightning  # noqa: E402

FILE = str(Path(__file__).with_name("lightning_recipe.py"))
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}


class InOurOrder(Sampler[int]):
    """The order that samepath's runs have with seed 0, epoch after epoch."""

    def __init__(self) -> None:
        self.epoch = -1

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter(epoch_order(NUM_EXAMPLES, 0, self.epoch).tolist())

    def __len__(self) -> int:
        return NUM_EXAMPLES


class Ordered(Numbers):
    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train, batch_size=BATCH, sampler=InOurOrder())


def by_epoch(module: Any) -> Any:
    optimizer = SGD(module.parameters(), lr=0.1, momentum=0.9)
    return [optimizer], [StepLR(optimizer, 1, 0.5)]


def on_plateau(module: Any) -> Any:
    optimizer = Adam(module.parameters(), lr=0.1)
    schedule = ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
    return {"optimizer": optimizer, "lr_scheduler": schedule, "monitor": "val_loss"}


WAYS: dict[str, dict[str, Any]] = {
    "one cycle, clipped": {"gradient_clip_val": 0.5},
    "by epoch": {"configure": by_epoch},
    "on plateau": {"configure": on_plateau},
    "no schedule": {"configure": lambda module: Adam(module.parameters(), lr=0.01)},
    "bfloat16": {"precision": "bf16-mixed"},
}


def module_of(way: dict[str, Any], *, classes: Any = Classifier) -> Any:
    torch.manual_seed(3)
    configure = way.pop("configure", None)
    if configure is not None:
        classes = type("Other", (classes,), {"configure_optimizers": configure})
    return classes()


def tensors_after(recipe: Recipe, out: Path, **asked: Any) -> dict[str, Tensor]:
    request = Request(recipe=FILE, num_workers=1, out=out, instead=lambda _: recipe, **asked)
    train(request)
    return load(list_checkpoints(out / "checkpoints")[-1]).state.tensors


def weights_after(recipe: Recipe, out: Path, **asked: Any) -> dict[str, Tensor]:
    tensors = tensors_after(recipe, out, **asked)
    return {n.removeprefix("model/"): t for n, t in tensors.items() if n.startswith("model/")}


@pytest.mark.parametrize("name", WAYS)
def test_the_bits_of_its_trainer_with_one_grain_per_batch(name: str, tmp_path: Path) -> None:
    way = dict(WAYS[name])
    module = module_of(way)
    start = {n: tensor.clone() for n, tensor in module.state_dict().items()}
    recipe = samepath.lightning.recipe(
        copy.deepcopy(module), Numbers(), max_epochs=EPOCHS, grain_size=BATCH, **way
    )
    ours = weights_after(recipe, tmp_path / "run")
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", num_sanity_val_steps=0, **QUIET, **way
    )
    with limited_threads(1):
        trainer.fit(module, Ordered())
    expected = module.state_dict()
    assert ours.keys() == expected.keys()
    assert not torch.equal(start["net.0.weight"], expected["net.0.weight"])
    for parameter, tensor in expected.items():
        assert torch.equal(ours[parameter], tensor), parameter


def test_averaged_weights_are_those_of_its_callback(tmp_path: Path) -> None:
    def averages() -> Any:
        return lightning.callbacks.EMAWeightAveraging(decay=0.8, update_every_n_steps=2)

    way = {"configure": by_epoch}
    module = module_of(way)
    recipe = samepath.lightning.recipe(
        copy.deepcopy(module),
        Numbers(),
        max_epochs=EPOCHS,
        grain_size=BATCH,
        callbacks=[averages(), lightning.callbacks.EarlyStopping("val_loss", patience=50)],
    )
    assert (recipe.monitor, recipe.patience) == ("average_loss", 50)
    tensors = tensors_after(recipe, tmp_path / "run")
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        num_sanity_val_steps=0,
        callbacks=[averages()],
        **QUIET,
    )
    with limited_threads(1):
        trainer.fit(module, Ordered())
    averaged = {n: t for n, t in tensors.items() if n.startswith("extra/average/")}
    for name, tensor in module.state_dict().items():  # it puts its average into the module
        (found,) = (t for n, t in averaged.items() if n.endswith(f"module.{name}"))
        assert torch.equal(found, tensor), name


def test_one_digest_on_1_and_3_workers(tmp_path: Path) -> None:
    def run(num_workers: int) -> Any:
        out = tmp_path / str(num_workers)
        return train(Request(recipe=FILE, num_workers=num_workers, out=out))[0]

    alone, *others = map(run, (1, 3))  # 2 are in tests/docs/test_bring.py: imports are slow
    assert set(alone.metrics) == {"loss", "acc", "epoch_as_logged"}
    assert set(alone.train_metrics) == {"acc"}
    for other in others:
        assert (other.digest, other.metrics) == (alone.digest, alone.metrics)


def test_stopped_and_resumed(tmp_path: Path) -> None:
    def run(out: str, **asked: Any) -> Any:
        return train(Request(recipe=FILE, num_workers=1, out=tmp_path / out, **asked))[0]

    whole = run("whole")
    run("parts", steps=7)
    again = run("parts", steps=EPOCHS * 5, resume=True)
    assert (again.digest, again.metrics) == (whole.digest, whole.metrics)


def test_accumulated_batches_are_one_batch(tmp_path: Path) -> None:
    given: dict[str, Any] = {"max_epochs": 1, "accumulate_grad_batches": 2}
    recipe = samepath.lightning.recipe(Classifier, Numbers(), **given)
    assert recipe.batch_size == 2 * BATCH
    assert recipe.schedule is not None
    made = recipe.model()
    schedule = recipe.schedule(recipe.optimizer(iter(made.parameters())))
    assert schedule.total_steps == 3  # type: ignore[attr-defined]  # of 54 examples, 24 a step


EXAMPLE = Path(__file__).parents[2] / "examples" / "bring" / "lightning_module.py"


def test_the_example_predicts_and_is_exported(tmp_path: Path) -> None:
    """Its training_step() calls self.net, and never the module."""
    request = Request(recipe=str(EXAMPLE), num_workers=1, epochs=1, out=tmp_path / "run")
    folder = train(request)[1]
    inputs = torch.randn(300, 8, generator=torch.Generator().manual_seed(1))[250:]
    model = reopen(folder).model()[0]
    with torch.no_grad():
        expected = model(inputs)
    found = torch.from_numpy(predict(folder, num_workers=1)["output"])
    torch.testing.assert_close(found, expected)
    made = export(folder, tmp_path / "model.ts")
    assert made.largest_difference is not None
    assert made.largest_difference < 1e-6
    if find_spec("onnxruntime") is not None:
        made = export(folder, tmp_path / "model.onnx")
        assert ["N x 8" in each for each in made.inputs] == [True]


def test_what_is_predicted() -> None:
    class Predicts(Classifier):
        def predict_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            return self(batch[0]).softmax(1)

    def own(model: nn.Module, batch: Any) -> Any:
        return model(batch[0]).argmax(1)

    inputs = [torch.ones(2, 8), torch.zeros(2, dtype=torch.int64)]
    recipe = samepath.lightning.recipe(Predicts, Numbers(), max_epochs=1)
    assert recipe.predict is not None
    model = recipe.model().eval()
    assert torch.equal(recipe.predict(model, inputs), model(inputs[0]).softmax(1))
    assert samepath.lightning.recipe(Classifier, Numbers(), max_epochs=1).predict is None
    given = samepath.lightning.recipe(Predicts, Numbers(), max_epochs=1, predict=own)
    assert given.predict is own


def test_callbacks_become_fields() -> None:
    kept = lightning.callbacks.ModelCheckpoint(monitor="val_acc", mode="max")
    stops = lightning.callbacks.EarlyStopping("val_acc", mode="max", patience=4)
    quiet = lightning.callbacks.TQDMProgressBar()
    recipe = samepath.lightning.recipe(
        Classifier, Numbers(), max_epochs=1, callbacks=[kept, stops, quiet]
    )
    assert (recipe.monitor, recipe.patience, recipe.keep_best) == ("acc:max", 4, True)
    other = lightning.callbacks.EarlyStopping("val_loss")
    with pytest.raises(UserError, match=r"callbacks monitor acc:max and loss; a run goes by one"):
        samepath.lightning.recipe(Classifier, Numbers(), max_epochs=1, callbacks=[kept, other])


class ByHand(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class Hooked(Classifier):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        pass


class TwoOptimizers(Classifier):
    def configure_optimizers(self) -> Any:
        return [Adam(self.net.parameters()), Adam(self.unused.parameters())]


class Sometimes(Classifier):
    def configure_optimizers(self) -> Any:
        made = Adam(self.parameters())
        every = {"scheduler": StepLR(made, 1), "frequency": 2}
        return {"optimizer": made, "lr_scheduler": every}


class OnPlateau(Classifier):
    def configure_optimizers(self) -> Any:
        return on_plateau(self)


class OnTraining(Classifier):
    def configure_optimizers(self) -> Any:
        return on_plateau(self) | {"monitor": "train_loss"}


class OnTrainingToo(Classifier):
    def configure_optimizers(self) -> Any:
        made = on_plateau(self)
        settings = {"scheduler": made["lr_scheduler"], "monitor": "train/loss"}
        return {"optimizer": made["optimizer"], "lr_scheduler": settings}


class Elsewhere(Classifier):
    def configure_optimizers(self) -> Any:
        return Adam(self.parameters(), lr=0.1 / self.trainer.world_size)


class NoData(lightning.LightningDataModule):
    pass


class Unshuffled(Numbers):
    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train, batch_size=BATCH)


REFUSED: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "no module": (nn.Linear(2, 2), Numbers, {}, r"the module is Linear; give a LightningModule"),
    "by hand": (ByHand, Numbers, {}, r"optimises by hand \(automatic_optimization is False\)"),
    "hook": (Hooked, Numbers, {}, r"Hooked overrides on_train_batch_end\(\), which has no"),
    "two": (TwoOptimizers, Numbers, {}, r"configure_optimizers\(\) returned 2 optimizers"),
    "frequency": (Sometimes, Numbers, {}, r"the lr_scheduler's frequency is 2; use 1"),
    "trainer": (Elsewhere, Numbers, {}, r"uses self\.trainer\.world_size, which has no"),
    "no data": (Classifier, NoData, {}, r"there is no train_dataloader\(\); write one"),
    "no datamodule": (Classifier, object, {}, r"the datamodule is object; give a Lightning"),
    "unshuffled": (
        Classifier,
        Unshuffled,
        {},
        r"shuffle=False trains in one fixed order",
    ),
    "devices": (Classifier, Numbers, {"devices": 2}, r"no place for devices; .*-n 4"),
    "value": (Classifier, Numbers, {"gradient_clip_algorithm": "value"}, r"clips by 'norm'"),
    "precision": (Classifier, Numbers, {"precision": "64-true"}, r"precision is '64-true'; use"),
    "callback": (
        Classifier,
        Numbers,
        {"callbacks": [lightning.callbacks.GradientAccumulationScheduler({0: 1})]},
        r"the callback GradientAccumulationScheduler has no counterpart",
    ),
    "delta": (
        Classifier,
        Numbers,
        {"callbacks": lightning.callbacks.EarlyStopping("val_loss", min_delta=0.1)},
        r"EarlyStopping has min_delta, which has no counterpart",
    ),
    "stops by training": (
        Classifier,
        Numbers,
        {"callbacks": lightning.callbacks.EarlyStopping("train_loss", patience=2)},
        r"EarlyStopping monitors 'train_loss', a metric of training.*use monitor='val_loss'",
    ),
    "keeps by training": (
        Classifier,
        Numbers,
        {"callbacks": lightning.callbacks.ModelCheckpoint(monitor="train/acc", mode="max")},
        r"ModelCheckpoint monitors 'train/acc', a metric of training.*use monitor='val_acc'",
    ),
    "plateau of training": (
        OnTraining,
        Numbers,
        {},
        r"ReduceLROnPlateau monitors 'train_loss', a metric of training",
    ),
    "plateau of training in a dict": (
        OnTrainingToo,
        Numbers,
        {},
        r"ReduceLROnPlateau monitors 'train/loss', a metric of training",
    ),
    "average": (
        OnPlateau,
        Numbers,
        {"callbacks": lightning.callbacks.WeightAveraging()},
        r"ReduceLROnPlateau with a callback that averages weights",
    ),
    "epochs": (
        Classifier,
        Numbers,
        {"max_epochs": None},
        r"max_epochs is None; give the number of epochs",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    module, datamodule, more, message = REFUSED[name]
    with pytest.raises(UserError, match=message) as caught:
        samepath.lightning.recipe(module, datamodule(), **{"max_epochs": 1} | more)
    assert "\n" not in str(caught.value)


def test_a_metric_of_training_under_a_bare_name_is_not_taken_for_that_of_validation() -> None:
    """Lightning would go by what training_step() logs under this name."""
    recipe = samepath.lightning.recipe(
        Classifier, Numbers(), max_epochs=1, callbacks=lightning.callbacks.EarlyStopping("acc")
    )
    assert recipe.evaluate is not None
    with pytest.raises(UserError, match=r"monitors 'acc', and validation_step\(\) logs 'val_acc'"):
        recipe.evaluate(recipe.model(), [torch.ones(2, 8), torch.zeros(2, dtype=torch.int64)])


def log_metric(module: Any, batch: Any) -> None:
    from torchmetrics.aggregation import MeanMetric

    module.log("val_loss", MeanMetric())


STEPS = {
    "number": (lambda module, batch, batch_idx: batch_idx % 2, r"uses batch_idx"),
    "epoch": (lambda module, batch: module.current_epoch, r"uses current_epoch in a step"),
    "reduction": (
        lambda module, batch: module.log("val_loss", 1.0, reduce_fx="max"),
        r"reduce_fx='max'\): values are averaged",
    ),
    "metric": (log_metric, r"was given a torchmetrics object"),
    "no loss": (lambda module, batch: module.log("val_acc", 1.0), r"logged \['acc'\] and returned"),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_that_need_a_trainer(name: str) -> None:
    step, message = STEPS[name]
    classes = type("Other", (Classifier,), {"validation_step": step})
    recipe = samepath.lightning.recipe(classes, Numbers(), max_epochs=1)
    assert recipe.evaluate is not None
    with pytest.raises(UserError, match=message):
        recipe.evaluate(recipe.model(), [torch.ones(2, 8), torch.zeros(2, dtype=torch.int64)])


def test_another_rate_does_not_reach_its_schedule(tmp_path: Path) -> None:
    recipe = samepath.lightning.recipe(Classifier, Numbers(), max_epochs=1)
    with pytest.raises(UserError, match=r"leave --learning-rate and strategies"):
        weights_after(recipe, tmp_path / "run", learning_rate=0.1)
    assert not (tmp_path / "run").exists()


def test_pytorch_lightning_is_taken_too() -> None:
    other: Any = pytest.importorskip("pytorch_lightning", reason="it is not installed")
    members = {n: vars(Classifier)[n] for n in ("training_step", "configure_optimizers", "forward")}

    def begin(module: Any) -> None:
        other.LightningModule.__init__(module)
        module.net = nn.Linear(8, 4)

    kind = type("Other", (other.LightningModule,), members | {"__init__": begin})
    data = Numbers()
    data.setup("fit")
    recipe = samepath.lightning.recipe(
        kind(), None, train_dataloaders=data.train_dataloader(), max_epochs=1
    )
    assert recipe.evaluate is None
    loss, metrics = recipe.loss(recipe.model(), next(iter(data.train_dataloader())))
    assert loss.requires_grad
    assert not metrics["acc"].requires_grad
