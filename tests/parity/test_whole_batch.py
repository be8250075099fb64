"""Losses of the whole batch, at 1, 2, 3 and 5 workers and against a plain loop over whole batches.

The plain loop knows nothing of grains: it encodes a batch, computes its loss and calls backward().
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from constructs import BATCH, NUM_EXAMPLES, Batch, num_valid, vectors
from launches import Everything, Found, launch_at
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from samepath.data import seed_everything
from samepath.engine.run.session import Link, Session, start
from samepath.engine.run.trainer import Trainer
from samepath.engine.train import Request
from samepath.engine.train import train as train_run
from samepath.errors import UserError
from samepath.keys import key
from samepath.plan import epoch_order
from samepath.recipe import WholeBatchLoss
from samepath.strategies import Choice
from samepath.strategies.choice import Synchronisation

GRAIN, EPOCHS = 2, 2
SETTINGS: list[tuple[int, Link]] = [(2, "auto"), (5, "auto"), (3, "network")]


class Net(nn.Module):
    """An encoder; with a queue of keys and a slow copy for MoCo."""

    def __init__(self, *, noisy: bool = False) -> None:
        super().__init__()
        between = [nn.BatchNorm1d(6), nn.Dropout(0.2)] if noisy else [nn.Tanh()]
        self.body = nn.Sequential(nn.Linear(8, 6), *between, nn.Linear(6, 4))
        self.scale = nn.Parameter(torch.tensor(5.0))
        self.slow = nn.Linear(8, 4).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(20, 4), dim=1))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))
        self.queue: Tensor
        self.pointer: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.body(inputs)
        return found


# ---- losses


def two_views(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    inputs = batch[0]
    return F.normalize(model(inputs), dim=1), F.normalize(model(inputs.flip(1)), dim=1)


def nt_xent(encoded: tuple[Tensor, Tensor]) -> Tensor:
    """SimCLR's loss (Chen et al. 2020, equation 1)."""
    rows = torch.cat(encoded)
    scores = (rows @ rows.T / 0.5).fill_diagonal_(-1e9)
    half = len(rows) // 2
    return F.cross_entropy(scores, torch.arange(2 * half).roll(half))


def clip_encode(model: Any, batch: Batch) -> dict[str, Tensor]:
    """A temperature that is learnt, as CLIP's is: once for each example."""
    left, right = two_views(model, batch)
    return {"left": left, "right": right, "scale": model.scale.repeat(len(left))}


def clip_loss(encoded: dict[str, Tensor]) -> Tensor:
    scores = encoded["scale"].mean() * encoded["left"] @ encoded["right"].T
    right = torch.arange(len(scores))
    return (F.cross_entropy(scores, right) + F.cross_entropy(scores.T, right)) / 2


def supervised(encoded: Tensor, batch: Batch) -> Tensor:
    """Pairs of one class are to be alike; it needs the batch."""
    same = (batch[1][:, None] == batch[1]).to(encoded.dtype)
    return F.mse_loss(encoded @ encoded.T, same)


def masks(model: Any, batch: Batch) -> Tensor:
    return model(batch[0]).sigmoid()  # type: ignore[no-any-return]


def batch_dice(encoded: Tensor, batch: Batch) -> Tensor:
    wanted = F.one_hot(batch[1].clamp(min=0), 4).to(encoded.dtype)
    return 1 - 2 * (encoded * wanted).sum() / (encoded.sum() + wanted.sum())


def moco_encode(model: Any, batch: Batch) -> dict[str, Tensor]:
    query = F.normalize(model(batch[0]), dim=1)
    with torch.no_grad():
        keys = F.normalize(model.slow(batch[0]), dim=1)
    return {"query": query, "key": keys, "negatives": query @ model.queue.clone().T}


def moco_loss(encoded: dict[str, Tensor]) -> Tensor:
    own = (encoded["query"] * encoded["key"]).sum(1, keepdim=True)
    scores = torch.cat([own, encoded["negatives"]], 1) / 0.2
    return F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))


def fill_queue(model: Any, encoded: dict[str, Tensor]) -> None:
    """The batch's keys replace the oldest; the slow copy follows (He et al. 2020)."""
    places = (model.pointer + torch.arange(len(encoded["key"]))) % len(model.queue)
    model.queue[places] = encoded["key"].to(model.queue.dtype)
    model.pointer.copy_((model.pointer + len(places)) % len(model.queue))
    model.slow.weight.lerp_(model.body[0].weight[:4], 0.1)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A loss, and settings that it is tried with."""

    encode: Callable[..., Any]
    batch_loss: Callable[..., Tensor]
    noisy: bool = False
    lag: int = 0
    settings: dict[str, Any] = field(default_factory=dict)

    def begin(self, session: Session, *, grain_size: int = GRAIN, **more: Any) -> Trainer:
        seed_everything(3)
        model = Net(noisy=self.noisy)
        return session.prepare(
            model, self.optimizer(model), encode=self.encode, batch_loss=self.batch_loss,
            batch_size=BATCH, grain_size=grain_size, **{"name": "", **self.settings, **more},
        )  # fmt: skip

    @staticmethod
    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        trained = [p for p in model.parameters() if p.requires_grad]
        return torch.optim.SGD(trained, lr=0.1, momentum=0.9)


KINDS: dict[str, Kind] = {
    "simclr": Kind(encode=two_views, batch_loss=nt_xent),
    "clip": Kind(encode=clip_encode, batch_loss=clip_loss),
    "supervised": Kind(encode=lambda model, batch: model(batch[0]), batch_loss=supervised),
    "batch dice": Kind(encode=masks, batch_loss=batch_dice, settings={"weight": num_valid}),
    "moco": Kind(encode=moco_encode, batch_loss=moco_loss, settings={"after_batch": fill_queue}),
    "noisy": Kind(encode=two_views, batch_loss=nt_xent, noisy=True),
    "noisy, recomputed": Kind(
        encode=two_views, batch_loss=nt_xent, noisy=True, settings={"recompute": True}
    ),
    "clipping and factors": Kind(
        encode=masks, batch_loss=batch_dice, settings={"clip_norm": 0.05, "factors": "always"}
    ),
    "autocast": Kind(
        encode=clip_encode, batch_loss=clip_loss, settings={"autocast": torch.bfloat16}
    ),
    "moco with a lag": Kind(
        encode=moco_encode, batch_loss=moco_loss, lag=2, settings={"after_batch": fill_queue}
    ),
}
PLAIN = [n for n, kind in KINDS.items() if not kind.noisy and not kind.lag and n != "autocast"]


def data_of(dtype: torch.dtype = torch.float32) -> Batch:
    inputs, labels = vectors()
    labels[:3] = -1
    return inputs.to(dtype), labels


def train(kind: Kind, trainer: Trainer, epochs: range = range(EPOCHS)) -> dict[str, Any]:
    losses: list[str] = []
    choice = Choice(synchronisation=Synchronisation(kind="stale", lag=kind.lag))
    data = data_of(next(trainer.model.parameters()).dtype)
    for epoch in epochs:
        for share in trainer.batches(data, epoch):
            results = trainer.advance(share, choice)
            losses += [result.loss.hex() for result in results]
        losses.append(trainer.evaluate(data)["loss"].hex())
    return {"losses": losses, "digest": trainer.digest()}


def train_in_two(kind: Kind, session: Session, folder: Path) -> str:
    """The digest of a training that is saved after an epoch and continued by another trainer."""
    first = kind.begin(session)
    train(kind, first, range(1))
    first.save(folder)
    second = kind.begin(session)
    assert second.resume(folder)
    found: str = train(kind, second)["digest"]
    return found


# ---- validation metrics that are no means


def first_class(batch: Batch) -> Tensor:
    return (batch[1] == 1).long()


def auc(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    assert len(outputs) == NUM_EXAMPLES
    return {"auc": float(roc_auc_score(targets.numpy(), outputs.numpy()))}


def show(model: Any, batch: Batch) -> dict[str, Tensor]:
    scores = model(batch[0])
    loss = F.cross_entropy(scores, batch[1].clamp(min=0))
    return {"loss": loss, "outputs": scores[:, 1].sigmoid(), "targets": first_class(batch)}


def all_at_once(session: Session, *, library: bool = True) -> dict[str, str]:
    """Metrics of all validation examples, by a function and by torchmetrics' objects (whose import
    takes seconds in each process)."""
    found: dict[str, str] = {}
    ways: dict[str, Any] = {"function": auc}
    if library and find_spec("torchmetrics") is not None:
        from torchmetrics import MetricCollection
        from torchmetrics.classification import BinaryAUROC, BinaryF1Score

        ways["one"] = BinaryAUROC()
        ways["dict"] = {"auc": BinaryAUROC(), "f1": BinaryF1Score()}
        ways["collection"] = MetricCollection([BinaryAUROC(), BinaryF1Score()])
    for name, way in ways.items():
        seed_everything(3)
        model = Net()
        optimizer = Kind.optimizer(model)
        trainer = session.prepare(
            model, optimizer, lambda model, batch: show(model, batch)["loss"], batch_size=BATCH,
            grain_size=3, metrics=show, evaluate_all=way,
        )  # fmt: skip
        for value in (trainer.evaluate(data_of()), trainer.evaluate(data_of())):  # nothing is left
            found |= {f"{name} {metric}": number.hex() for metric, number in value.items()}
    # batch by batch, of which every worker has a part
    trainer = KINDS["simclr"].begin(session, evaluate_all=in_order)
    return found | {"in order": trainer.evaluate(data_of())["in order"].hex()}


def in_order(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    assert outputs.shape == (NUM_EXAMPLES, 4)
    return {"in order": float(torch.equal(targets, data_of()[1]))}


def run_all(link: Link, folder: str) -> None:
    """The body of every worker."""
    with start(seed=7, link=link) as session:
        found: dict[str, Any] = {}
        for name, kind in KINDS.items():
            found[name] = train(kind, kind.begin(session))
            found[name]["resumed"] = train_in_two(kind, session, Path(folder, name))
        # with shares in place of grains: another order of additions, the same loss
        found["evaluate_all"] = all_at_once(session, library=link == "network")
        found["shares"] = train(KINDS["moco"], KINDS["moco"].begin(session, exact=False))
        Path(folder, f"worker-{session.worker}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def alone() -> Found:
    with start(seed=7) as session:
        found = {name: train(kind, kind.begin(session)) for name, kind in KINDS.items()}
        return {**found, "evaluate_all": all_at_once(session)}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Everything:
    return launch_at(SETTINGS, run_all, tmp_path_factory)


@pytest.mark.parametrize("name", KINDS)
def test_same_bits_and_resumed(name: str, alone: Found, found: Everything) -> None:
    for where, workers in found.items():
        for worker in workers:
            assert worker[name]["losses"] == alone[name]["losses"], where
            assert worker[name]["digest"] == alone[name]["digest"], where
            assert worker[name]["resumed"] == alone[name]["digest"], where


def test_metrics_of_all_examples(alone: Found, found: Everything) -> None:
    ours = {name: float.fromhex(value) for name, value in alone["evaluate_all"].items()}
    seed_everything(3)
    with torch.no_grad():
        shown = show(Net(), data_of())
    expected = auc(shown["outputs"], shown["targets"])["auc"]
    assert ours["function auc"] == expected
    assert ours["in order"] == 1.0
    assert {"function loss", "function auc"} <= ours.keys()
    for name, value in ours.items():
        if name.endswith(("auc", "BinaryAUROC")):
            assert value == pytest.approx(expected, abs=1e-6), name
    for (_, link), workers in found.items():
        for worker in workers:
            assert worker["evaluate_all"].items() <= alone["evaluate_all"].items()
            assert (link == "network") == (worker["evaluate_all"] == alone["evaluate_all"])


def test_shares_in_place_of_grains_differ_by_rounding(alone: Found, found: Everything) -> None:
    expected = [float.fromhex(loss) for loss in alone["moco"]["losses"]]
    for workers in found.values():
        for worker in workers:
            losses = [float.fromhex(loss) for loss in worker["shares"]["losses"]]
            assert losses == pytest.approx(expected, rel=1e-4)


def test_computing_grains_twice_changes_no_bit(alone: Found) -> None:
    assert alone["noisy"] == alone["noisy, recomputed"]


# ---- against a plain loop


def plain_loop(kind: Kind, dtype: torch.dtype) -> tuple[nn.Module, list[float]]:
    """Whole batches, as anyone would write it. Random numbers are those of a batch of one grain."""
    seed_everything(3)
    model = Net(noisy=kind.noisy).to(dtype)
    optimizer = Kind.optimizer(model)
    inputs, labels = data_of(dtype)
    loss_of = WholeBatchLoss(kind.encode, kind.batch_loss)
    losses, step = [], 0
    for epoch in range(EPOCHS):
        order = torch.from_numpy(epoch_order(NUM_EXAMPLES, 7, epoch).copy())
        for examples in torch.split(order, BATCH):
            batch = inputs[examples], labels[examples]
            optimizer.zero_grad()
            seed_everything(key("grain", 7, step, 0))
            with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in kind.settings):
                encoded = kind.encode(model, batch)
                loss = loss_of.of_rows(encoded, batch)
            loss.backward()
            if "clip_norm" in kind.settings:
                nn.utils.clip_grad_norm_(model.parameters(), kind.settings["clip_norm"])
            if "after_batch" in kind.settings:
                with torch.no_grad():
                    kind.settings["after_batch"](model, encoded)
            optimizer.step()
            losses.append(float(loss.detach()))
            step += 1
    return model, losses


def ours(kind: Kind, dtype: torch.dtype, **settings: Any) -> tuple[nn.Module, list[float]]:
    with start(seed=7) as session:
        trainer = kind.begin(session, **settings)
        trainer.model.to(dtype)
        data, losses = data_of(dtype), []
        for epoch in range(EPOCHS):
            losses += [trainer.step(share).loss for share in trainer.batches(data, epoch)]
        return trainer.model, losses


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if not kind.lag])
def test_one_grain_is_a_plain_loop_to_the_bit(name: str) -> None:
    plain, losses = plain_loop(KINDS[name], torch.float32)
    model, found = ours(KINDS[name], torch.float32, grain_size=BATCH)
    assert found == losses
    for key_, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[key_], value), key_


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", PLAIN)
def test_small_grains_are_a_plain_loop_to_rounding(name: str, exact: bool) -> None:
    plain, losses = plain_loop(KINDS[name], torch.float64)
    model, found = ours(KINDS[name], torch.float64, exact=exact)
    assert found == pytest.approx(losses, rel=1e-12)
    for key_, value in plain.state_dict().items():
        assert torch.allclose(model.state_dict()[key_], value, rtol=1e-9, atol=1e-11), key_


# ---- recipes


RECIPE = """
import torch
import torch.nn.functional as F
from torch import nn
from samepath import Recipe

def encode(model, batch):
    return F.normalize(model(batch), dim=1)

def batch_loss(rows):
    return F.cross_entropy(rows @ rows.T / 0.5, torch.arange(len(rows)))

def recipe():
    data = torch.randn(40, 6)
    return Recipe(
        model=lambda: nn.Linear(6, 4), train=data, valid=data[:20], LOSS
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=8, max_workers=4, epochs=2,
    )
"""


def test_recipes(tmp_path: Path) -> None:
    """A loss of the whole batch by `train` and `verify`, and one that is silenced."""
    path = tmp_path / "rows.py"
    path.write_text(RECIPE.replace("LOSS", "encode=encode, batch_loss=batch_loss,"))
    alone, other = (
        train_run(Request(recipe=str(path), num_workers=count, out=tmp_path / f"run{count}"))[0]
        for count in (1, 3)
    )
    assert (alone.digest, alone.metrics) == (other.digest, other.metrics)
    whole = "loss=lambda model, batch: batch_loss(encode(model, batch)),"
    path.write_text(RECIPE.replace("LOSS", whole))
    for count in (1, 2):
        request = Request(recipe=str(path), num_workers=count, out=tmp_path / f"no{count}")
        with pytest.raises(UserError, match="in which examples meet each other"):
            train_run(request)
    said = Request(recipe=str(path), num_workers=2, i_know=True, out=tmp_path / "said")
    assert train_run(said)[0].digest != alone.digest
    assert json.loads((tmp_path / "said" / "run.json").read_text())["config"]["i_know"] is True


# ---- bad input


def test_refusals(alone: Found) -> None:
    def plain(model: Any, batch: Batch) -> Any:
        return model(batch[0])

    outside = torch.ones((), requires_grad=True)
    with start(seed=7) as session:

        def refused(words: str, encode: Any = plain, **settings: Any) -> None:
            given = {"batch_loss": supervised, **settings}
            kind = Kind(encode=encode, batch_loss=given.pop("batch_loss"))
            with pytest.raises(UserError, match=words):
                train(kind, kind.begin(session, **given))

        refused("two tensors", lambda model, batch: torch.cat(two_views(model, batch)))
        refused("returned float for 2 examples", lambda model, batch: 1.0)
        refused("learns a tensor", batch_loss=lambda encoded: (encoded * outside).sum())
        refused("batch_loss.. has shape", batch_loss=lambda encoded: encoded)
        refused("has no gradient", lambda model, batch: model(batch[0]).detach())
        refused("backward pass of its own", own_backward)
        refused("recompute=True", clamped)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        wrong: dict[str, dict[str, Any]] = {
            "batch_loss is missing": {"encode": plain},
            "encode is missing": {"batch_loss": nt_xent},
            "there is no loss": {},
            "recompute is for a loss of the whole": {"loss": plain, "recompute": True},
            "leave one of them out": {"loss": plain, "encode": plain, "batch_loss": nt_xent},
        }
        for words, settings in wrong.items():
            with pytest.raises(UserError, match=words):
                session.prepare(model, optimizer, batch_size=4, **settings)


def own_backward(model: Any, batch: Batch) -> Tensor:
    model(batch[0]).sum().backward()
    return model(batch[0])  # type: ignore[no-any-return]


def clamped(model: Any, batch: Batch) -> Tensor:
    """Weights that encode() changes are put back before its backward pass has used them."""
    with torch.no_grad():
        model.body[2].weight.clamp_(-0.1, 0.1)
    return model(batch[0])  # type: ignore[no-any-return]


def test_weights_that_encode_changes_go_with_recompute() -> None:
    kind = Kind(encode=clamped, batch_loss=supervised)
    plain, losses = plain_loop(kind, torch.float64)
    model, found = ours(kind, torch.float64, recompute=True)
    assert found == pytest.approx(losses, rel=1e-12)
    for ours_, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours_, theirs)
