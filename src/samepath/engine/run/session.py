"""The way in for people who own their loop.

In: the environment a launcher left (or none), a seed. Out: a Session, which prepares trainers.
Starting one sets what the bits depend on: generators, threads, deterministic kernels.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, TypeAlias

import torch
from torch import nn
from torch.utils import deterministic

from samepath.data import seed_everything
from samepath.data.loaders import TIMEOUT_SECONDS
from samepath.engine.comm.collective import Alone, Collective
from samepath.engine.comm.environment import Place, read_place
from samepath.engine.comm.network import Network
from samepath.engine.comm.shared_data import share_data
from samepath.engine.comm.shared_memory import SharedMemory, same_machine
from samepath.engine.comm.speed import agree_on_speed
from samepath.engine.run.memory import keep_freed_memory
from samepath.engine.run.trainer import Trainer
from samepath.engine.step.settings import Settings, refuse_names, refuse_plateau_by_step
from samepath.errors import UserError
from samepath.keys import key
from samepath.owners import die_with_parent
from samepath.plan import parse_speed
from samepath.plan.link import EXAMPLE, is_speed
from samepath.recipe import Loss, settle_loss
from samepath.threads import set_threads

Link: TypeAlias = Literal["auto", "network"] | str
"""How workers talk: "auto" (shared memory within a machine, else the network), "network", or the
network with its speed, such as "940Mbit/s:60us", which is then not measured."""
watch_trainers: list[Callable[[Trainer], None]] = []
"""Told of every trainer that a session prepares; `verify` looks in here."""


def connect(
    place: Place, device: torch.device, *, timeout_seconds: float = TIMEOUT_SECONDS, link: Link
) -> Collective:
    """The collective for this place: shared memory within a machine (on CPU), else the network."""
    typed = None if link in ("auto", "network") else parse_speed(link, "the link ")
    if place.num_workers == 1:
        return Alone(device, timeout_seconds)
    choose_network(place, device)
    network = Network(place, device, timeout_seconds)
    if link == "auto" and device.type == "cpu" and same_machine(network):
        with suppress(OSError):  # raised on all workers or none: no shared memory to be had
            return SharedMemory(network)
    if device.type == "cpu" or typed is not None:  # NCCL's times were not measured
        network.speed = agree_on_speed(network, typed)
    return network


def choose_network(place: Place, device: torch.device) -> None:
    """Workers of one machine have nothing to offer to other machines."""
    if place.one_machine and device.type == "cpu":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def set_determinism(threads: int) -> None:
    """Everything global that the bits depend on, apart from the generators."""
    set_threads(threads)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Filling fresh memory costs time and hides no difference
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


class Session:
    """This process's place in the run. Use it as a context, or call `close` at the end."""

    def __init__(self, collective: Collective, *, seed: int, launcher: str = "alone") -> None:
        self.collective = collective
        self.seed = seed
        self.launcher = launcher
        self._num_prepared = 0

    @property
    def worker(self) -> int:
        return self.collective.worker

    @property
    def num_workers(self) -> int:
        return self.collective.num_workers

    @property
    def device(self) -> torch.device:
        return self.collective.device

    @property
    def is_first(self) -> bool:
        """True on the worker that prints and writes."""
        return self.worker == 0

    def prepare(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss | None = None,
        *,
        batch_size: int,
        max_workers: int | None = None,
        schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
        name: str | None = None,
        **settings: Any,
    ) -> Trainer:
        """A trainer for a model; further settings are those of `Settings`. `loss` is left out where
        they have encode and batch_loss. Random numbers of its steps are keyed by its `name`, or by
        its number among the trainers of this session."""
        refuse_names(settings)
        made = Settings(batch_size=batch_size, max_workers=max_workers, seed=self.seed, **settings)
        if self.num_workers > -(-made.batch_size // made.grain_size) and made.exact:
            raise too_many_workers(
                self.num_workers, made.batch_size, made.grain_size, setting="max_workers="
            )
        refuse_plateau_by_step(schedule, made.schedule_every)
        settled = settle_loss(loss, made)
        number, self._num_prepared = self._num_prepared, self._num_prepared + 1
        word = number if name is None else name
        words = [word] if word else []
        trainer = Trainer(self.collective, model, optimizer, settled, made, schedule, words)
        for watch in watch_trainers:
            watch(trainer)
        return trainer

    def share(self, *data: Any) -> int:
        """Have the workers of each machine hold large data in memory once, not once each. Call it
        on every worker, with data that all have made alike; no value changes. Returns the bytes
        that this worker shares with others."""
        return share_data(self.collective, *data)

    def print(self, *words: object) -> None:
        """Print on the first worker only."""
        if self.is_first:
            print(*words, flush=True)

    def close(self) -> None:
        self.collective.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def too_many_workers(
    num_workers: int, batch_size: int, grain_size: int, *, setting: str = "--max-workers "
) -> UserError:
    """More workers than grains; `setting`: how the most is said there."""
    most = -(-batch_size // grain_size)
    how = f"{setting}{num_workers}" if num_workers <= batch_size else "a larger batch"
    return UserError(
        f"{num_workers} workers, but a batch of {batch_size} in grains of {grain_size} has only "
        f"{most} {'grain' if most == 1 else 'grains'}; use at most {most} workers, or {how}"
    )


def settle_in(device: torch.device, *, seed: int, threads: int) -> None:
    """Set what the bits of this process depend on."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    keep_freed_memory()
    set_determinism(threads)
    seed_everything(key("start", seed))


def start(
    *,
    seed: int = 0,
    threads: int = 1,
    device: str | None = None,
    link: Link | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Session:
    """Join the run this process belongs to: torchrun's, mpirun's, srun's, samepath's, or alone."""
    place = read_place(os.environ)
    if place.store_prefix:
        die_with_parent()  # samepath's launcher, when it is killed, can end no process
        from samepath.engine.launch.reports import report_script  # not for other launchers

        report_script(place.worker)
    if device is None:
        device = f"cuda:{place.local_worker}" if torch.cuda.is_available() else "cpu"
    target = torch.device(device)
    chosen = link or os.environ.get("SAMEPATH_LINK", "auto")
    if chosen not in ("auto", "network") and not is_speed(chosen):
        raise UserError(
            f"link is {chosen!r}; use 'auto', 'network' or the network's speed, such as '{EXAMPLE}'"
        )
    settle_in(target, seed=seed, threads=threads)
    collective = connect(place, target, timeout_seconds=timeout_seconds, link=chosen)
    atexit.register(collective.close)  # for scripts that just end; closing twice does nothing
    return Session(collective, seed=seed, launcher=place.launcher)
