"""What several commands share."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypeVar

import click

from samepath.errors import UserError

Command = TypeVar("Command", bound=Callable[..., Any])

workers_option = click.option(
    "-n",
    "num_workers",
    default="auto",
    show_default=True,
    metavar="N",
    help="Workers. auto: all of this machine's cores (or GPUs).",
)

_MACHINE = (
    click.option(
        "--here",
        type=click.IntRange(1),
        metavar="K",
        help="Of a range: workers of this machine, at most. Its GPUs or cores when not given.",
    ),
    click.option(
        "--interface",
        metavar="NAME",
        help="Of a range: the network interface (eth0) that other machines come through. Without "
        "it only this machine is listened to.",
    ),
)

data_option = click.option(
    "--data", metavar="PATH", help="Data for a recipe that takes some (a file or folder)."
)

keep_option = click.option(
    "--keep", metavar="FILE", help="A keep-list: train on the examples that it keeps."
)

other_hardware_option = click.option(
    "--other-hardware",
    is_flag=True,
    help="Go on although the CPU, the GPU or the torch is another than the run's: from here on the "
    "bits differ.",
)

_SHAPING = (
    click.option("--batch-size", type=int, metavar="B", help="Examples of one step, at any N."),
    click.option("--grain", "grain_size", type=int, metavar="G", help="Examples computed at once."),
    click.option(
        "--seed", type=int, metavar="S", help="Order, initial weights, dropout, augmentation."
    ),
    click.option("--threads", type=int, metavar="T", help="Threads per worker (shapes the bits)."),
    click.option("--loader-workers", type=int, metavar="L", help="Loader processes per worker."),
)


def shaping_options(command: Command) -> Command:
    """What every command that trains can be told about the path, by the names of `Asked`."""
    for option in reversed(_SHAPING):
        command = option(command)
    return command


def parse_workers(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"-n {text}: give a whole number, at least 1, or 'auto'")
    return int(text)


def parse_range(text: str) -> tuple[int, int]:
    """The two ends of a range of workers."""
    least, _, most = text.partition(":")
    if not (least.isdecimal() and most.isdecimal()) or not 1 <= int(least) <= int(most):
        raise UserError(f"-n {text}: give a range as LEAST:MOST, such as 1:8")
    return int(least), int(most)


def parse_target(text: str) -> float | Literal["none"]:
    if text == "none":
        return "none"
    with suppress(ValueError):
        if math.isfinite(float(text)):
            return float(text)
    raise UserError(f"--target {text}: give a loss, such as 0.003, or 'none'")


def parse_epoch(text: str) -> int | Literal["best"]:
    if text == "best":
        return "best"
    if not text.isdecimal():
        raise UserError(f"--epoch {text}: give a number of epochs, such as 20, or 'best'")
    return int(text)


def parse_counts(text: str) -> list[int]:
    """'1,2,3' as numbers."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"-n {text}: give worker counts separated by commas, such as 1,2,3")
    return [int(part) for part in parts]


@contextmanager
def stdout_kept_for_json(as_json: bool) -> Iterator[None]:
    """What a recipe prints goes to standard error, on every worker, when the result is JSON."""
    if not as_json:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def machine_options(command: Command) -> Command:
    """What a machine brings to a run whose workers come and go."""
    for option in reversed(_MACHINE):
        command = option(command)
    return command


def machine_of(here: int | None, interface: str | None) -> Any:
    """The same as a MachineOffer."""
    from samepath.engine.comm.environment import LOOPBACK
    from samepath.engine.elastic.machine import MachineOffer, interface_address
    from samepath.engine.run.request import available_workers

    return MachineOffer(
        workers=here or available_workers(),
        interface=interface,
        address=LOOPBACK if interface is None else interface_address(interface),
    )


def print_json(content: Any) -> None:
    """One object, the only thing on standard output; NaN and infinities as text."""
    from samepath.files import finite

    click.echo(json.dumps(finite(content)))
