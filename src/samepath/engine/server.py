"""A parameter server: real asynchronous SGD, with the staleness measured and, if asked, bounded.

In: batches of the plan, and workers in other processes. Out: an update from each batch. Process 0
is the server: it owns weights, optimizer, schedule, evaluation, checkpoints and the run's folder,
and computes no gradient. A worker is given a batch's number and the newest weights; its gradient is
applied the moment it comes, whatever has been applied meanwhile.

Guaranteed: no gradient is thrown away; with a bound, none is applied that is staler; with one
worker, or a bound of 0, the run is the sequential one to the bit. Otherwise the path depends on
which worker is quicker and is not the same twice. A worker that is lost ends the run.
"""

from __future__ import annotations

import json
import math
import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from queue import Empty, Queue
from threading import Thread
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from samepath.data.sources import Data
from samepath.engine.comm.collective import Alone
from samepath.engine.comm.environment import read_place
from samepath.engine.comm.network import Mailbox
from samepath.engine.comm.tensors import dense_strides
from samepath.engine.comm.tree_sum import ALIGNMENT_BYTES
from samepath.engine.noise_scale import GrainNorms
from samepath.engine.run.evaluation import evaluate
from samepath.engine.run.loop import make_trainer
from samepath.engine.run.options import Options
from samepath.engine.run.session import Session, choose_network, settle_in
from samepath.engine.run.trainer import Trainer
from samepath.engine.state.progress import RunResult
from samepath.engine.step.pending import PendingBatch
from samepath.engine.step.record import StepFacts
from samepath.engine.step.settings import Settings, StepResult, WorkerBatch
from samepath.errors import Diverged, UserError
from samepath.plan import Batch
from samepath.recipe import Loss, Recipe, settle_loss
from samepath.strategies import Choice, find_strategy
from samepath.strategies.late import Asynchronous

SERVER = 0
ALIVE_SECONDS = 30.0
"""An idle worker hears this often that the server is there: evaluation may take longer than the
limit of a wait."""
LAST_WORDS_SECONDS = 10.0
"""How long a gradient that is under way is waited for when the run has failed."""
NOTHING = torch.empty(0, dtype=torch.uint8)
"""A message that only says: I am here."""


# ---- messages: tensors and JSON in one stretch of bytes, back again to the bit; no pickle


def pack(
    facts: dict[str, Any], tensors: Sequence[Tensor | None] = (), like: Sequence[Tensor] = ()
) -> Tensor:
    """Make a message, in which tensors lie as in memory everywhere: each starts on a cache line and
    fills its memory in its own order. Of one that is None only the place, of a size that `like`
    says, is there."""
    text = json.dumps(facts).encode()
    *places, end = _places(like)
    message = torch.empty(end + len(text), dtype=torch.uint8)
    message[:8].view(torch.int64).fill_(end)
    for tensor, place, model in zip(tensors, places, like, strict=True):
        if tensor is not None:
            _view(message, place, model).copy_(tensor)
    message[end:].copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    return message


def unpack_facts(message: Tensor) -> dict[str, Any]:
    start = int(message[:8].view(torch.int64))
    facts: dict[str, Any] = json.loads(message[start:].numpy().tobytes())
    return facts


def unpack_tensors(message: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """View the tensors of a message: its own memory, not copies."""
    *places, _ = _places(like)
    return [_view(message, place, model) for place, model in zip(places, like, strict=True)]


def _places(like: Sequence[Tensor]) -> Iterator[int]:
    """Say where each tensor starts, and where the last one ends."""
    place = ALIGNMENT_BYTES  # before it: where the facts start
    for tensor in like:
        yield place
        place += -(-tensor.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    yield place


def _view(message: Tensor, place: int, like: Tensor) -> Tensor:
    flat = message[place : place + like.nbytes].view(like.dtype)
    return flat.as_strided(like.shape, dense_strides(like))


def _state_of(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _open_mailbox(options: Options, timeout_seconds: float) -> tuple[Mailbox, torch.device]:
    """Take this process's place as the server or as one of its workers."""
    place = read_place(os.environ)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        # the server has little to do: with one worker per GPU it shares the last worker's
        device = torch.device("cuda", place.local_worker % torch.cuda.device_count())
    settle_in(device, seed=options.seed, threads=options.threads)
    choose_network(place, device)
    return Mailbox(place, timeout_seconds), device


# ---- a worker


def answer_server(recipe: Recipe, options: Options, timeout_seconds: float) -> RunResult:
    """Compute, in a worker, what the server asks for until it says how the run ended. The engine's
    own trainer computes it, so that the same weights, buffers and batch give the same bits as a
    step without a server. A batch is known when it comes: its examples are loaded then, not ahead.
    """
    mailbox, device = _open_mailbox(options, timeout_seconds)
    try:
        session = Session(Alone(device, timeout_seconds), seed=options.seed)
        trainer = make_trainer(recipe, options, session)
        source = trainer.training_source(recipe.train)
        while True:
            message = mailbox.receive(SERVER)
            if not message.numel():
                continue  # nothing to do yet, and the server is there
            facts = unpack_facts(message)
            if "result" in facts:
                mailbox.send(NOTHING, SERVER)
                return RunResult(**facts["result"])
            state = _state_of(trainer.model)
            with torch.no_grad():
                torch._foreach_copy_(state, unpack_tensors(message, state))
            (share,) = trainer.stream(source, facts["step"], facts["step"] + 1)
            mailbox.send(_answer(trainer, share), SERVER)
    finally:
        mailbox.close()


def _answer(trainer: Trainer, share: WorkerBatch) -> Tensor:
    computed = trainer.compute(share)
    known = computed.know()
    facts = {
        "loss": known.loss,
        "grain_losses": known.grain_losses,
        "grain_norms": known.grain_norms and asdict(known.grain_norms),
        "used": known.used,
        "metrics": known.metrics,
        "weight": computed.weight,
    }
    tensors = [*computed.gradient(), *trainer.model.buffers()]
    return pack(facts, tensors, _state_of(trainer.model))


# ---- the server: the bound on staleness
#
# A gradient is behind by the updates made since the weights it was computed with. Each update puts
# all that are still outstanding (handed out, or arrived and not yet applied) one further behind. So
# if they were applied in the order they were handed out, number i (from 0) would be applied when it
# is behind by i more than now. That order is the best there is, because no gradient is further
# behind than those in front: the bound can be kept if, and only if, that order keeps it. The one in
# front may always be applied, so nothing waits forever.


def keeps(behind: Sequence[int], bound: int | None) -> bool:
    """Whether all can be applied, in some order, within the bound (None: there is no bound)."""
    return bound is None or all(now + wait <= bound for wait, now in enumerate(behind))


def may_apply(behind: Sequence[int], number: int, bound: int | None) -> bool:
    """Whether the gradient of that number may be applied now: the others can keep the bound."""
    left = [now + 1 for place, now in enumerate(behind) if place != number]
    return keeps(left, bound)


def may_hand_out(behind: Sequence[int], bound: int | None) -> bool:
    """Whether one more gradient, of the newest weights, can keep the bound too."""
    return keeps([*behind, 0], bound)


# ---- the server: its workers, and the updates


class WorkerPool:
    """The workers, as the server sees them. The server has a thread for each worker, which sends
    and receives its messages, so that a slow worker delays no other and a dead one is noticed."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._alive = min(ALIVE_SECONDS, mailbox.timeout_seconds / 4)
        self._arrivals: Queue[tuple[int, Tensor | Exception]] = Queue()
        self.idle = deque(range(1, mailbox.num_workers))
        """Workers without work, in the order they came back."""
        self._orders: dict[int, Queue[Tensor | None]] = {worker: Queue() for worker in self.idle}
        self._threads = [
            Thread(target=self._exchange, args=order, daemon=True) for order in self._orders.items()
        ]
        for thread in self._threads:
            thread.start()

    @property
    def num_workers(self) -> int:
        return len(self._threads)

    def _exchange(self, worker: int, orders: Queue[Tensor | None]) -> None:
        try:
            while True:
                try:
                    order = orders.get(timeout=self._alive)
                except Empty:
                    self._mailbox.send(NOTHING, worker)
                    continue
                if order is None:
                    return
                self._mailbox.send(order, worker)
                self._arrivals.put((worker, self._mailbox.receive(worker)))
        except Exception as error:  # the server waits for an arrival, not for this thread
            self._arrivals.put((worker, error))

    def order(self, message: Tensor) -> int:
        """Send a message to an idle worker; which one."""
        worker = self.idle.popleft()
        self._orders[worker].put(message)
        return worker

    @property
    def has_answer(self) -> bool:
        return not self._arrivals.empty()

    def receive(self) -> tuple[int, Tensor]:
        """Wait for an answer (each has the mailbox's limit): from which worker, and the message."""
        worker, answer = self._arrivals.get()
        if isinstance(answer, Exception):
            raise answer
        self.idle.append(worker)
        return worker, answer

    def send_last(self, message: Tensor) -> None:
        """Send every worker its last message, and end the threads."""
        for orders in self._orders.values():
            orders.put(message)
        self._end_threads(None)

    def close(self) -> None:
        """Close the mailbox. A thread that waits for a message when Python ends takes the process
        down with an abort, so those that still wait for a gradient get a while."""
        self._end_threads(LAST_WORDS_SECONDS)
        self._mailbox.close()

    def _end_threads(self, seconds: float | None) -> None:
        for orders in self._orders.values():
            orders.put(None)
        for thread in self._threads:
            thread.join(seconds)


@dataclass(kw_only=True)
class Outstanding(PendingBatch):
    """A batch that a worker was given."""

    buffers: list[Tensor] = field(default_factory=list)
    """What its worker made of the buffers, once it has arrived."""


class ServerTrainer(Trainer):
    """Updates one model with gradients that workers compute."""

    def __init__(self, pool: WorkerPool, bound: int | None, *trainer: Any) -> None:
        super().__init__(*trainer)
        self._pool = pool
        self._bound = bound
        self._computing: dict[int, Outstanding] = {}

    def advance(
        self, given: WorkerBatch, choice: Choice, *, stop: bool = False
    ) -> list[StepResult]:
        """Hand out a batch; then apply what comes until another may be handed out. With one worker
        or a bound of 0 that is when this batch has been applied."""
        results: list[StepResult] = []
        while self._pool.has_answer:
            self._take_in()
        self._apply_ready(choice, results)
        assert self._may_hand_out()
        self._hand_out(given.batch)
        while not self._may_hand_out() or (stop and not results):
            self._take_in()
            self._apply_ready(choice, results)
        return [replace(result, stop=stop) for result in results]

    def settle(self) -> None:
        """Wait until all that is outstanding has arrived. It is applied later: also after a stop,
        for it is in the state."""
        while self._computing:
            self._take_in()
        self._merge_held()

    def evaluate(self, data: Data | DataLoader[Any]) -> dict[str, float]:
        """Means over validation data. Workers may go on with what they have."""
        return evaluate(self, self.source(data))

    def _may_hand_out(self) -> bool:
        return bool(self._pool.idle) and may_hand_out(self._behind(), self._bound)

    def _behind(self) -> list[int]:
        return [pending.behind for pending in self.pending]

    def _hand_out(self, batch: Batch) -> None:
        state = _state_of(self.model)
        worker = self._pool.order(pack({"step": batch.step}, state, state))
        self._computing[worker] = Outstanding(
            step=batch.step,
            epoch=batch.epoch,
            num_examples=len(batch.examples),
            weight=float(len(batch.examples)),
        )
        self.pending.append(self._computing[worker])
        self.step_number += 1

    def _take_in(self) -> None:
        """Wait for a gradient."""
        worker, answer = self._pool.receive()
        arrived = self._computing.pop(worker)
        facts = unpack_facts(answer)
        used = facts["used"]
        arrived.facts = StepFacts(
            loss=facts["loss"],
            grain_losses=tuple(facts["grain_losses"]),
            grain_norms=facts["grain_norms"] and GrainNorms(**facts["grain_norms"]),
            stop=False,
            used=used,
            buffers=[],
            metrics=facts["metrics"],
        )
        arrived.weight = facts["weight"]
        device = self.collective.device
        tensors = unpack_tensors(answer, _state_of(self.model))
        arrived.totals = [
            gradient.to(device) if use else None
            for gradient, use in zip(tensors, used, strict=False)
        ]
        arrived.buffers = tensors[len(used) :]

    def _apply_ready(self, choice: Choice, results: list[StepResult]) -> None:
        """Apply everything that has arrived and may be applied, the oldest first."""
        while True:
            behind = self._behind()
            ready = [
                number
                for number, pending in enumerate(self.pending)
                if pending.facts is not None and may_apply(behind, number, self._bound)
            ]
            if not ready:
                break
            pending = self.pending[ready[0]]
            del self.pending[ready[0]]
            try:
                results.append(self._apply(pending, choice))
            except Diverged:
                if pending.step == self.step_number - 1:
                    self.step_number -= 1  # the step was not made, as without a server
                raise
        self._merge_held()

    def _merge_held(self) -> None:
        """Gradients that wait for their turn have no buffers to wait with (nor in the state)."""
        for pending in self.pending:
            if pending.facts is not None and not pending.buffers_merged:
                self._merge_buffers(pending)

    def _merge_buffers(self, pending: PendingBatch) -> None:
        """The newest to come are the model's. A sum of several workers' changes, as weights have
        it, might be what no forward pass can make: a variance below zero."""
        assert isinstance(pending, Outstanding)
        if math.isfinite(pending.know().loss):
            for buffer, value in zip(self.model.buffers(), pending.buffers, strict=True):
                buffer.copy_(value)
        pending.buffers_merged = True
        pending.buffers = []


class ServerSession(Session):
    """The server's place in the run."""

    def __init__(self, options: Options, timeout_seconds: float) -> None:
        mailbox, device = _open_mailbox(options, timeout_seconds)
        super().__init__(Alone(device, timeout_seconds), seed=options.seed)
        rule = find_strategy(options.strategy).function
        assert isinstance(rule, Asynchronous)
        self._bound = rule.bound
        self._pool = WorkerPool(mailbox)

    @property
    def num_workers(self) -> int:
        return self._pool.num_workers

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
    ) -> ServerTrainer:
        """A trainer whose gradients the workers compute; any number of them, for each has a batch
        of its own."""
        made = Settings(batch_size=batch_size, max_workers=max_workers, seed=self.seed, **settings)
        if made.after_batch is not None:
            raise UserError(
                "after_batch changes the model once a step, and asynchronous updates have no step "
                "that all workers share; use another strategy"
            )
        settled = settle_loss(loss, made)
        return ServerTrainer(
            self._pool, self._bound, self.collective, model, optimizer, settled, made, schedule
        )

    def dismiss(self, result: RunResult) -> None:
        """Tell the workers how the run ended; they end with it."""
        self._pool.send_last(pack({"result": asdict(result)}))

    def close(self) -> None:
        self._pool.close()
