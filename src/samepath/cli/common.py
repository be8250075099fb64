"""What several commands share: what they say first, options, reading lists and numbers, JSON."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from samepath.console import CONTINUE, count, say
from samepath.errors import UserError, no_run

Command = TypeVar("Command", bound=Callable[..., Any])
PATH = click.Path(path_type=Path)
_NUMBERS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
"""Variables in which launchers leave a worker's number."""


def announce(doing: str, *, on: object = None, into: object = None) -> None:
    """Say on standard error what a command does, on how many workers, and where it writes.

    A command calls it before it imports the library, which takes seconds. Of the workers that a
    launcher started, the first one says it.
    """
    if any(os.environ.get(name, "0") != "0" for name in _NUMBERS):
        return
    if on is not None:
        doing += f" on {_workers_words(on)}"
    say(doing if into is None else f"{doing}, into {into}")


def _workers_words(asked: object) -> str:
    """What -n was given, in words."""
    if asked == "auto":
        return "all cores (or GPUs)"
    return count(asked, "worker") if isinstance(asked, int) else f"{asked} workers"


def parse_list(option: str, text: str) -> list[str]:
    """Split 'a,b,c'."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UserError(f"{option} {text!r} names nothing; give a list, separated by commas")
    return parts


def parse_counts(option: str, text: str) -> list[int]:
    """Read '1,2,4' as whole numbers of at least 1."""
    parts = parse_list(option, text)
    for part in parts:
        if not part.isdecimal() or int(part) < 1:
            raise UserError(
                f"{option} {text}: {part!r} is not a whole number of at least 1; give numbers "
                "separated by commas, such as 1,2,4"
            )
    return [int(part) for part in parts]


def parse_number(text: str, least: float = -math.inf) -> float | None:
    """Read a finite number of at least `least`; None: it is not one."""
    with suppress(ValueError):
        if least <= float(text) < math.inf:
            return float(text)
    return None


def parse_workers(text: str) -> int | Literal["auto"]:
    """Read what -n is given, for commands that take no range."""
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"-n {text}: give a whole number, at least 1, or 'auto'")
    return int(text)


def parse_epoch(text: str) -> int | Literal["best"]:
    """Read what --epoch is given."""
    if text == "best":
        return "best"
    if not text.isdecimal():
        raise UserError(f"--epoch {text}: give a number of epochs, such as 20, or 'best'")
    return int(text)


def parsed_by(parse: Callable[[str], Any]) -> Callable[..., Any]:
    """Make a click callback: an option's text, if it was given, as what `parse` makes of it."""
    return lambda context, option, text: None if text is None else parse(text)


def known_recipes(context: click.Context, option: click.Parameter, given: Any) -> Any:
    """Refuse, before the library is loaded, a recipe that is no built-in name and no file."""
    from samepath.builtin import refuse_unknown

    for name in [given] if isinstance(given, str) else given or ():
        if not context.resilient_parsing:
            refuse_unknown(name)
    return given


def runs_there(context: click.Context, option: click.Parameter, given: Any) -> Any:
    """Refuse, before the library is loaded, a folder without a run."""
    for folder in [given] if isinstance(given, Path) else given or ():
        if not context.resilient_parsing and not (folder / "run.json").is_file():
            raise no_run(folder)
    return given


def all_of(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Make one decorator of several options, which are listed in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def out_option(help_text: str, **more: Any) -> Callable[[Command], Command]:
    """--out, which is a folder for most commands."""
    return click.option("--out", type=PATH, help=help_text, **more)


def setting(
    flag: str, default: Any, metavar: str | None, help_text: str, **more: Any
) -> Callable[[Command], Command]:
    """An option with a default, whose type it has, and which help shows."""
    how: dict[str, Any] = {"default": default, "show_default": True, "metavar": metavar, **more}
    return click.option(flag, help=help_text, **how)


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object and nothing else."
)
workers_option = click.option(
    "-n",
    "num_workers",
    default="auto",
    show_default=True,
    metavar="N",
    callback=parsed_by(parse_workers),
    help="Workers. auto: all of this machine's cores (or GPUs).",
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
    help="Go on although the CPU, the GPU or the torch is not the run's: from here on the exact "
    "result differs.",
)
on_option = setting(
    "--on",
    "local",
    "WHERE",
    "Where runs are trained: local (this machine), dask:tcp://HOST:8786, dask:slurm (or pbs, lsf), "
    "ray or ray:HOST:6379, and what each asks for: ,cores=4,memory=8GB (see docs/cluster.md).",
)
grain_options = all_of(
    click.option(
        "--max-workers",
        type=int,
        metavar="M",
        help="The most workers that may ever take part: fewer, and a step is faster (it changes "
        "the last digits).",
    ),
    click.option(
        "--grain",
        "grain_size",
        type=int,
        metavar="G",
        help="Instead: examples computed at once (a grain: the fixed piece of a batch).",
    ),
)
machine_options = all_of(
    click.option(
        "--here",
        type=click.IntRange(1),
        metavar="K",
        help="Maximum workers on this machine (with -n MIN:MAX).  [its GPUs or cores]",
    ),
    click.option(
        "--interface",
        metavar="NAME",
        help="Network interface, such as eth0, that other machines connect to (with -n MIN:MAX). "
        "Without it only this machine can join.",
    ),
)
shaping_options = all_of(
    click.option("--batch-size", type=int, metavar="B", help="Examples of one step, at any N."),
    grain_options,
    click.option(
        "--seed", type=int, metavar="S", help="Order, initial weights, dropout, augmentation."
    ),
    click.option(
        "--threads", type=int, metavar="T", help="Threads per worker (changes the exact result)."
    ),
    click.option(
        "--compile/--no-compile",
        default=None,
        help="Compute grains with code of torch.compile (changes the exact result).",
    ),
    click.option("--loader-workers", type=int, metavar="L", help="Loader processes per worker."),
    click.option(
        "--i-know",
        is_flag=True,
        default=None,
        help="Train although the loss is no mean over examples (each grain has its own).",
    ),
)
"""What every command that trains can be told about the path, by the names of `Overrides`."""
strategy_option = click.option(
    "--strategy",
    metavar="NAME",
    help="How batch, rate and synchronisation change with k workers (see docs/strategies.md).",
)
epoch_option = click.option(
    "--epoch",
    metavar="E",
    callback=parsed_by(parse_epoch),
    help="Weights kept after E epochs, or best: by the run's --monitor.  [newest]",
)

extra_option = click.option(
    "--extra", metavar="NAME", help="Weights of the recipe's extra state NAME (averaged ones)."
)


def complete_recipe(context: click.Context, option: click.Parameter, typed: str) -> list[Any]:
    """What a shell offers where a recipe is asked for: built-in names, then Python files."""
    from click.shell_completion import CompletionItem

    from samepath.builtin import BUILT_IN

    names = [CompletionItem(name) for name in BUILT_IN if name.startswith(typed)]
    return [*names, CompletionItem(typed, type="file")]


def recipe_argument(name: str = "recipe", **more: Any) -> Callable[[Command], Command]:
    """A recipe, which is a built-in name or a file; or several."""
    return click.argument(name, shell_complete=complete_recipe, callback=known_recipes, **more)


def run_argument(name: str = "run", **more: Any) -> Callable[[Command], Command]:
    """The folder of a run; or several."""
    return click.argument(name, type=PATH, callback=runs_there, **more)


def refuse_given(names: tuple[str, ...], why: Callable[[str, str], str]) -> None:
    """Refuse options that were typed and would be ignored; `why` is given name and option."""
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise UserError(why(name, "--" + name.replace("_", "-")))


def refuse_workers_elsewhere(num_workers: int | Literal["auto"], on: str) -> None:
    """Refuse -n where runs are trained on a cluster, which it does not know."""
    from samepath.study.places.destination import LOCAL

    if num_workers != "auto" and on != LOCAL:
        where = on.partition(",")[0]
        raise UserError(
            f"-n {num_workers} is for this machine, and --on {on} trains elsewhere; leave -n out, "
            f"and say what each run has there: --on {where},cores={num_workers}"
        )


def machine_of(here: int | None, interface: str | None) -> Any:
    """What this machine brings to a run whose workers come and go (a MachineOffer)."""
    from samepath.engine.comm.environment import LOOPBACK
    from samepath.engine.elastic.machine import MachineOffer, interface_address
    from samepath.engine.run.request import available_workers

    return MachineOffer(
        workers=here or available_workers(),
        interface=interface,
        address=LOOPBACK if interface is None else interface_address(interface),
    )


@contextmanager
def to_be_continued(as_json: bool) -> Iterator[None]:
    """Do what the same command can go on with after an interruption, and say so if there is one."""
    from samepath.engine.launch.reports import Interrupted

    with stdout_kept_for_json(as_json):
        try:
            yield
        except (Interrupted, KeyboardInterrupt) as stopped:
            say(CONTINUE)
            raise click.exceptions.Exit(getattr(stopped, "exit_code", 130)) from None


@contextmanager
def stdout_kept_for_json(as_json: bool) -> Iterator[None]:
    """Send what a recipe prints to standard error, on every worker, when the result is JSON."""
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


def print_json(content: Any) -> None:
    """Print one object, the only thing on standard output; NaN and infinities as text."""
    from samepath.files import finite

    click.echo(json.dumps(finite(content)))
