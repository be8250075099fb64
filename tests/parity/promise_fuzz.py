"""Random small trainings out of PyTorch's own parts, at several worker counts and against plain
PyTorch.

A Spec is plain data: it makes the same model, data, loss, optimizer and options in every process.
`Crew` keeps real worker processes that train one spec after another, so that thousands can be
tried. `problems` says what is wrong with one: digests that differ between counts or after a resume,
or a gradient that is not that of a plain backward pass.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset
from workers_by_hand import start_by_hand

from samepath.data import Draws, seed_everything
from samepath.engine.run.session import Session, start
from samepath.engine.run.trainer import Trainer
from samepath.errors import Diverged, UserError
from samepath.plan import epoch_order
from samepath.strategies.choice import Choice, Synchronisation

WIDTH, CLASSES, LENGTH, SEED = 6, 3, 4, 7

PIECES = (
    "linear", "conv", "batch_norm", "layer_norm", "group_norm", "instance_norm", "dropout",
    "alpha_dropout", "relu", "rrelu", "gelu", "prelu", "bilinear", "lstm", "gru", "attention",
    "transformer", "residual", "shared", "checkpoint", "reentrant", "reentrant_shared", "spectral",
    "weight_norm", "unused", "branch", "random_depth", "clamp", "teacher", "counter", "statistic",
    "complex", "scale", "hook", "frozen", "eval_norm",
)  # fmt: skip
INTERACT = {"batch_norm", "branch", "statistic"}
"""Examples meet each other, or a grain decides for all of its examples."""
RANDOM = {"dropout", "alpha_dropout", "rrelu", "random_depth"}
LOSSES = ("cross_entropy", "ignore_index", "class_weights", "mse", "smooth_l1", "penalty", "slope",
          "bfloat16", "sum_of_two")  # fmt: skip
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.9, nesterov=True, foreach=True),
    "maximize": lambda p: torch.optim.SGD(p, lr=0.01, maximize=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.05, t0=2),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.05),
}
REAL_ONLY = {"rprop", "asgd", "adafactor", "radam", "nadam", "adamax"}
"""Optimizers without complex parameters, or that are not tried with them."""
SCHEDULES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "step": (lambda o: torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.5), "step"),
    "cosine": (lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 5), "epoch"),
    "exponential": (lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9), "step"),
    "lambda": (lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda s: 1 / (1 + s)), "step"),
    "plateau": (
        lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=10.0),
        "epoch",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One training."""

    pieces: tuple[str, ...]
    loss: str
    optimizer: str
    schedule: str | None
    num_examples: int
    batch_size: int
    grain_size: int
    epochs: int
    double: bool
    autocast: bool
    clip_norm: float | None
    data: str
    """tensors, dataset, loaders or augment"""
    lag: int
    stop: int
    """A step after which the training is saved and taken up again."""
    freeze: int | None
    """A step from which on the first layer is frozen, for two steps."""
    groups: bool
    """Two groups of parameters."""

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.num_examples // self.batch_size)

    @property
    def num_grains(self) -> int:
        return -(-self.batch_size // self.grain_size)


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """Any."""
    grain_size = draw(st.integers(2, 5))
    batch_size = draw(st.integers(grain_size, 24))
    pieces = tuple(draw(st.lists(st.sampled_from(PIECES), min_size=1, max_size=6)))
    optimizer = draw(st.sampled_from(sorted(OPTIMIZERS)))
    if "complex" in pieces and optimizer in REAL_ONLY:
        optimizer = "sgd"
    double = draw(st.booleans())
    num_examples = draw(st.integers(batch_size, 3 * batch_size + 1))
    epochs = draw(st.integers(1, 2))
    return Spec(
        pieces=pieces,
        loss=draw(st.sampled_from(LOSSES)),
        optimizer=optimizer,
        schedule=draw(st.none() | st.sampled_from(sorted(SCHEDULES))),
        num_examples=num_examples,
        batch_size=batch_size,
        grain_size=grain_size,
        epochs=epochs,
        double=double,
        autocast=not double and "complex" not in pieces and draw(st.booleans()),
        clip_norm=draw(st.none() | st.sampled_from((0.05, 1.0))),
        data=draw(st.sampled_from(("tensors", "tensors", "dataset", "augment"))),
        lag=draw(st.sampled_from((0, 0, 0, 1, 2))),
        stop=draw(st.integers(0, epochs * -(-num_examples // batch_size))),
        freeze=draw(st.none() | st.integers(0, 4)),
        groups=draw(st.booleans()),
    )


# ---- the parts


def _linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "conv": lambda: nn.Conv1d(WIDTH, WIDTH, 3, padding=1),
    "batch_norm": lambda: nn.BatchNorm1d(WIDTH),
    "eval_norm": lambda: nn.BatchNorm1d(WIDTH).eval(),
    "layer_norm": lambda: nn.LayerNorm(WIDTH),
    "group_norm": lambda: nn.GroupNorm(2, WIDTH),
    "instance_norm": lambda: nn.InstanceNorm1d(WIDTH, affine=True),
    "dropout": lambda: nn.Dropout(0.3),
    "alpha_dropout": lambda: nn.AlphaDropout(0.2),
    "relu": nn.ReLU,
    "rrelu": nn.RReLU,
    "gelu": nn.GELU,
    "prelu": nn.PReLU,
    "bilinear": lambda: nn.Bilinear(WIDTH, WIDTH, WIDTH),
    "lstm": lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True),
    "gru": lambda: nn.GRU(WIDTH, WIDTH, batch_first=True),
    "attention": lambda: nn.MultiheadAttention(WIDTH, 2, batch_first=True),
    "transformer": lambda: nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, batch_first=True),
    "spectral": lambda: nn.utils.parametrizations.spectral_norm(_linear()),
    "weight_norm": lambda: nn.utils.parametrizations.weight_norm(_linear()),
    "frozen": lambda: _linear().requires_grad_(False),
}
"""By kind of piece; of the others a dense one."""
EXTRAS: dict[str, Callable[[], Any]] = {
    "counter": lambda: torch.zeros(WIDTH),
    "statistic": lambda: torch.zeros(WIDTH),
    "teacher": lambda: _linear().requires_grad_(False),
    "complex": lambda: nn.Parameter(torch.randn(WIDTH, dtype=torch.complex64)),
    "scale": lambda: nn.Parameter(torch.tensor(1.1)),
}
"""What a piece has beside its layer."""


def the_layer(piece: Any, x: Tensor) -> Any:
    return piece.layer(x)


def over_channels(piece: Any, x: Tensor) -> Any:
    return piece.layer(x.transpose(1, 2)).transpose(1, 2)


def reentrant(piece: Any, x: Tensor) -> Any:
    times = 2 if piece.kind == "reentrant_shared" else 1
    function = piece.layer if times == 1 else lambda x: piece.shared(x).tanh()
    x = x if x.requires_grad else x.detach().requires_grad_()
    for _ in range(times):
        x = checkpoint(function, x, use_reentrant=True)
    return x


def clamp(piece: Any, x: Tensor) -> Any:
    piece.layer.weight.data.clamp_(-0.3, 0.3)
    return piece.layer(x)


def teacher(piece: Any, x: Tensor) -> Any:
    if piece.training:
        piece.extra.weight.data.mul_(0.8).add_(piece.layer.weight.data, alpha=0.2)
    return piece.layer(x) + piece.extra(x)


def counter(piece: Any, x: Tensor) -> Any:
    if piece.training:
        piece.extra += 1
    return x * (1 + 0.01 * piece.extra)


def statistic(piece: Any, x: Tensor) -> Any:
    if piece.training:
        piece.extra = 0.9 * piece.extra + 0.1 * x.detach().mean((0, 1)).to(piece.extra.dtype)
    return x - piece.extra


FORWARDS: dict[str, Callable[[Any, Tensor], Any]] = {
    **dict.fromkeys(
        ("conv", "batch_norm", "group_norm", "instance_norm", "eval_norm"), over_channels
    ),
    **dict.fromkeys(("lstm", "gru"), lambda piece, x: piece.layer(x)[0]),
    **dict.fromkeys(("reentrant", "reentrant_shared"), reentrant),
    "bilinear": lambda piece, x: piece.layer(x, x.flip(2)),
    "attention": lambda piece, x: piece.layer(x, x, x, need_weights=False)[0],
    "residual": lambda piece, x: x + piece.layer(x).tanh(),
    "shared": lambda piece, x: piece.shared(x).tanh(),
    "checkpoint": lambda piece, x: checkpoint(piece.layer, x, use_reentrant=False),
    "unused": lambda piece, x: x,
    "branch": lambda piece, x: piece.layer(x) if float(x.detach().flatten()[0]) > 0 else x,
    "random_depth": lambda piece, x: piece.layer(x) if random.random() < 0.5 else x,
    "clamp": clamp,
    "teacher": teacher,
    "counter": counter,
    "statistic": statistic,
    "complex": lambda piece, x: (x * piece.extra).real,
    "scale": lambda piece, x: x * piece.extra,
}
"""By kind of piece; the others are their layer."""


class Piece(nn.Module):
    """One part of a model: (batch, LENGTH, WIDTH) in and out."""

    def __init__(self, kind: str, shared: nn.Module) -> None:
        super().__init__()
        self.kind = kind
        self.shared = shared if kind in ("shared", "reentrant_shared") else None
        layer: Any = LAYERS.get(kind, _linear)()
        self.layer = layer
        if kind == "hook":
            layer.weight.register_hook(lambda gradient: 1.5 * gradient)
        extra = EXTRAS.get(kind, lambda: None)()
        if isinstance(extra, nn.Module | nn.Parameter):
            self.extra = extra
        else:
            self.register_buffer("extra", extra)

    def train(self, mode: bool = True) -> Piece:
        super().train(mode)
        if self.kind == "eval_norm":
            self.layer.eval()
        return self

    def forward(self, x: Tensor) -> Any:
        return FORWARDS.get(self.kind, the_layer)(self, x)


class Model(nn.Module):
    """Pieces one after another."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.shared = nn.Linear(WIDTH, WIDTH)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.pieces = nn.ModuleList(Piece(kind, self.shared) for kind in spec.pieces)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).tanh()
        for piece in self.pieces:
            x = piece(x)
        scores: Tensor = self.head(x.mean(1))
        return scores


def make_data(spec: Spec) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(spec.num_examples)
    inputs = torch.randn(spec.num_examples, LENGTH, WIDTH, generator=made)
    labels = torch.randint(0, CLASSES, (spec.num_examples,), generator=made)
    if spec.loss == "ignore_index":
        labels[torch.rand(spec.num_examples, generator=made) < 0.4] = -1
    return (inputs.double() if spec.double else inputs), labels


class Items(Dataset[Any]):
    """The same, item by item, with noise that belongs to (seed, epoch, example)."""

    def __init__(self, spec: Spec) -> None:
        self.inputs, self.labels = make_data(spec)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = 0.1 * torch.randn(LENGTH, WIDTH).to(self.inputs.dtype)
        return self.inputs[index] + noise, self.labels[index]


BY_CLASS = torch.tensor([0.5, 1.0, 3.0])


def make_loss(spec: Spec) -> Callable[[nn.Module, Any], Tensor]:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, labels = batch
        if spec.loss == "slope":
            inputs = inputs.clone().requires_grad_()
        scores = model(inputs)
        if not spec.autocast and spec.loss == "bfloat16":
            return F.cross_entropy(scores.bfloat16(), labels)
        if scores.dtype == torch.bfloat16:
            scores = scores.float()
        match spec.loss:
            case "mse":
                return F.mse_loss(scores[:, 0], labels.to(scores.dtype))
            case "smooth_l1":
                return F.smooth_l1_loss(scores[:, 0], labels.to(scores.dtype))
            case "ignore_index":
                return F.cross_entropy(scores, labels, ignore_index=-1)
            case "class_weights":
                return F.cross_entropy(scores, labels, weight=BY_CLASS.to(scores.dtype))
        found = F.cross_entropy(scores, labels, label_smoothing=0.1)
        if spec.loss == "penalty":
            found = found + 0.01 * sum(p.abs().sum() for p in model.parameters() if p.requires_grad)
        if spec.loss == "slope" and torch.is_grad_enabled():
            (slope,) = torch.autograd.grad(scores.square().sum(), inputs, create_graph=True)
            found = found + 0.01 * slope.square().sum((1, 2)).mean()
        if spec.loss == "sum_of_two":
            found = found + scores.square().mean()
        return found

    return loss


def weight_of(spec: Spec) -> Callable[[Any], float] | None:
    if spec.loss == "ignore_index":
        return lambda batch: float((batch[1] >= 0).sum())
    if spec.loss == "class_weights":
        return lambda batch: float(BY_CLASS[batch[1]].sum())
    return None


def noisy(batch: tuple[Tensor, Tensor], draws: Draws) -> tuple[Tensor, Tensor]:
    noise = torch.from_numpy(draws.normal(LENGTH * WIDTH)).view(-1, LENGTH, WIDTH)
    return batch[0] + 0.1 * noise.to(batch[0].dtype), batch[1]


def make_model(spec: Spec) -> Model:
    seed_everything(11)
    model = Model(spec)
    return model.double() if spec.double else model


def make_trainer(spec: Spec, session: Session) -> Trainer:
    model = make_model(spec)
    trained = [p for p in model.parameters() if p.requires_grad]
    parameters: Any = trained
    if spec.groups:
        parameters = [{"params": trained[:1]}, {"params": trained[1:], "lr": 0.02}]
    optimizer = OPTIMIZERS[spec.optimizer](parameters)
    make, every = SCHEDULES[spec.schedule] if spec.schedule else (lambda _: None, "epoch")
    return session.prepare(
        model,
        optimizer,
        make_loss(spec),
        name="",
        batch_size=spec.batch_size,
        grain_size=spec.grain_size,
        schedule=make(optimizer),
        schedule_every=every,
        clip_norm=spec.clip_norm,
        weight=weight_of(spec),
        augment=noisy if spec.data == "augment" else None,
        autocast=torch.bfloat16 if spec.autocast else None,
    )


# ---- training one


def advance(trainer: Trainer, spec: Spec, stop: int) -> list[str]:
    """Up to a step; losses and metrics."""
    found: list[str] = []
    data = Items(spec) if spec.data == "dataset" else make_data(spec)
    source = trainer.source(data)
    model = trainer.model
    assert isinstance(model, Model)
    for share in trainer.stream(source, trainer.step_number, stop):
        step = trainer.step_number
        if spec.freeze is not None and step in (spec.freeze, spec.freeze + 2):
            model.first.requires_grad_(step != spec.freeze)
        found += [
            result.loss.hex()
            for result in trainer.advance(
                share, Choice(synchronisation=Synchronisation(kind="stale", lag=spec.lag))
            )
        ]
        if (step + 1) % spec.steps_per_epoch == 0:
            metrics = trainer.evaluate(data)
            trainer.end_epoch(metrics["loss"])
            found.append(metrics["loss"].hex())
    return found


def train(spec: Spec, session: Session, folder: Path) -> dict[str, Any]:
    """Straight through, and with a save and a resume on the way."""
    stop = spec.epochs * spec.steps_per_epoch
    try:
        trainer = make_trainer(spec, session)
        losses = advance(trainer, spec, stop)
        first = make_trainer(spec, session)
        before = advance(first, spec, spec.stop)
        first.save(folder)
        second = make_trainer(spec, session)
        assert second.resume(folder)
        after = advance(second, spec, stop)
        straight, resumed = trainer.digest(), second.digest()
    except UserError as error:
        return {"refused": str(error)}
    except Diverged as error:
        return {"diverged": str(error)}
    return {
        "digest": straight,
        "losses": losses,
        "resumed": resumed,
        "resumed losses": [*before, *after],
    }


def works_in_plain_pytorch(spec: Spec) -> bool:
    """Not every combination does (derivatives of derivatives of attention, say)."""
    seed_everything(11)
    model, (inputs, labels) = make_model(spec), make_data(spec)
    optimizer = OPTIMIZERS[spec.optimizer]([p for p in model.parameters() if p.requires_grad])
    batch = inputs[: spec.grain_size], labels[: spec.grain_size]
    try:
        with torch.autocast("cpu", torch.bfloat16, enabled=spec.autocast):
            loss = make_loss(spec)(model, batch)
        loss.backward()
        optimizer.step()
    except RuntimeError:
        return False
    return True


def gradient_error(spec: Spec, session: Session) -> float | None:
    """Of the first batch, relative to a plain backward pass; None where there is nothing to compare
    (random numbers, or examples that meet each other in a grain)."""
    if {*spec.pieces} & (INTERACT | RANDOM) or spec.data != "tensors" or not spec.double:
        return None
    if spec.loss == "bfloat16":
        return None
    inputs, labels = make_data(spec)
    examples = torch.from_numpy(epoch_order(spec.num_examples, SEED, 0)[: spec.batch_size].copy())
    weight = weight_of(spec)
    if weight is not None and not weight((inputs[examples], labels[examples])):
        return None
    plain = make_model(spec)
    make_loss(spec)(plain, (inputs[examples], labels[examples])).backward()
    trainer = make_trainer(spec, session)
    source = trainer.source((inputs, labels))
    trainer.gradient(source, trainer.plan(source).batch(0))
    pairs = list(zip(plain.parameters(), trainer.model.parameters(), strict=True))
    assert all((a.grad is None) == (b.grad is None) for a, b in pairs), "another set of gradients"
    error = sum(
        float((a.grad - b.grad).abs().square().sum())
        for a, b in pairs
        if a.grad is not None and b.grad is not None
    )
    norm = sum(float(a.grad.abs().square().sum()) for a, _ in pairs if a.grad is not None)
    return float((error / (norm + 1e-12)) ** 0.5)


# ---- processes


class Crew:
    """Worker processes that train what they are told."""

    def __init__(self, num_workers: int, link: str = "auto") -> None:
        self.num_workers = num_workers
        self.link = link
        self._start()

    def _start(self) -> None:
        self._processes = start_by_hand(
            [[sys.executable, __file__]] * self.num_workers,
            [{"SAMEPATH_LINK": self.link}] * self.num_workers,
            stdin=subprocess.PIPE,
        )

    def train(self, spec: Spec) -> list[dict[str, Any]]:
        """What every worker has found."""
        with tempfile.TemporaryDirectory() as folder:
            order = json.dumps({"spec": asdict(spec), "folder": folder})
            answers = []
            for process in self._processes:
                assert process.stdin is not None
                process.stdin.write(order + "\n")
                process.stdin.flush()
            for process in self._processes:
                assert process.stdout is not None
                answers.append(json.loads(process.stdout.readline() or '{"crash": "it is gone"}'))
        if not all("digest" in answer for answer in answers):  # who knows where each stopped
            self.close()
            self._start()
        return answers

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def problems(spec: Spec, session: Session, crews: Sequence[Crew]) -> list[str]:
    """What is wrong."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not works_in_plain_pytorch(spec):
            return []
        alone = train(spec, session, Path(folder))
        error = gradient_error(spec, session) if "digest" in alone else None
    found = []
    if error is not None and not error < 1e-7:
        found.append(f"the gradient is {error:.2g} off a plain backward pass")
    if "refused" in alone:
        found.append(f"refused: {alone['refused']}")
    if alone.get("digest") != alone.get("resumed"):
        found.append("alone, a resumed run has another digest")
    if alone.get("losses") != alone.get("resumed losses"):
        found.append("alone, a resumed run has other losses")
    for crew in crews:
        if crew.num_workers > spec.num_grains:
            continue
        for worker, result in enumerate(crew.train(spec)):
            where = f"{crew.num_workers} workers ({crew.link}), worker {worker}"
            if "crash" in result:
                found.append(f"{where}: {result['crash']}")
            elif result != alone:
                parts = [name for name in {*alone, *result} if alone.get(name) != result.get(name)]
                found.append(f"{where}: not one worker's {', '.join(sorted(parts))}: {result}")
    return found


def _work() -> None:
    """A worker of a crew."""
    warnings.simplefilter("ignore")
    with start(seed=SEED, timeout_seconds=30) as session:
        for line in sys.stdin:
            order = json.loads(line)
            content = order["spec"]
            spec = Spec(**{**content, "pieces": tuple(content["pieces"])})
            try:
                answer = train(spec, session, Path(order["folder"]))
            except Exception:
                answer = {"crash": traceback.format_exc(limit=-6)}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _work()
