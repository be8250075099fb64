"""A worker of a parameter server: takes weights and a batch's number, gives the gradient.

In: messages from the server, which is process 0. Out: for each, the batch's gradient, what its
grains' losses were, and buffers as they are after it. Guaranteed: the same weights, buffers and
batch give the same bits as a step of a run without a server: the engine's own trainer computes it.

Which batch comes next is known when it comes, so examples are loaded then and not ahead.
"""

from __future__ import annotations

import os
from dataclasses import asdict

import torch

from samepath.engine.comm.collective import Alone, Mailbox
from samepath.engine.comm.environment import read_place
from samepath.engine.run.loop import make_trainer
from samepath.engine.run.options import Options
from samepath.engine.run.session import Session, choose_network, settle_in
from samepath.engine.run.trainer import Trainer
from samepath.engine.server.message import NOTHING, pack, unpack_facts, unpack_tensors
from samepath.engine.state.progress import RunResult
from samepath.engine.step.settings import WorkerBatch
from samepath.recipe import Recipe

SERVER = 0


def open_mailbox(options: Options, timeout_seconds: float) -> tuple[Mailbox, torch.device]:
    """Take this process's place beside or behind the server's desk."""
    place = read_place(os.environ)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        # the server has little to do: with one worker per GPU it shares the last worker's
        device = torch.device("cuda", place.local_worker % torch.cuda.device_count())
    settle_in(device, seed=options.seed, threads=options.threads)
    choose_network(place, device)
    return Mailbox(place, timeout_seconds), device


def work_for_server(recipe: Recipe, options: Options, timeout_seconds: float) -> RunResult:
    """Compute what the server asks for until it says how the run ended."""
    mailbox, device = open_mailbox(options, timeout_seconds)
    try:
        session = Session(Alone(device, timeout_seconds), seed=options.seed)
        trainer = make_trainer(recipe, options, session)
        source = trainer.source(recipe.train)
        while True:
            message = mailbox.receive(SERVER)
            if not message.numel():
                continue  # nothing to do yet, and the server is there
            facts = unpack_facts(message)
            if "result" in facts:
                mailbox.send(NOTHING, SERVER)
                return RunResult(**facts["result"])
            state = [*trainer.model.parameters(), *trainer.model.buffers()]
            with torch.no_grad():
                torch._foreach_copy_(state, unpack_tensors(message, state))
            step = facts["step"]
            (share,) = trainer.stream(source, step, step + 1)
            mailbox.send(_answer(trainer, share), SERVER)
    finally:
        mailbox.close()


def _answer(trainer: Trainer, share: WorkerBatch) -> torch.Tensor:
    computed = trainer.compute(share)
    known = computed.know()
    facts = {
        "loss": known.loss,
        "grain_losses": known.grain_losses,
        "grain_norms": known.grain_norms and asdict(known.grain_norms),
        "used": known.used,
        "weight": computed.weight,
    }
    parameters, buffers = list(trainer.model.parameters()), list(trainer.model.buffers())
    return pack(facts, [*computed.gradient(), *buffers], [*parameters, *buffers])
