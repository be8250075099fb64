"""`--config FILE`: options of a command from a TOML or YAML file; what is typed goes first.

A file has the options' names without dashes in front (`batch-size = 64`; `n` is `-n`), and the
command's arguments (`recipe`, `recipes`). Its values become the command's defaults, so that each is
read and checked as if it had been typed.
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any

import click

from samepath.cli import common
from samepath.console import count
from samepath.errors import UserError
from samepath.files import read_whole

MOST_BYTES = 1 << 20
_NOT_TAKEN = ("config", "help", "as_json", "yes")


def config_option(command: common.Command) -> common.Command:
    """Add --config to a command."""
    return click.option(
        "--config",
        type=common.PATH,
        is_eager=True,
        expose_value=False,
        callback=_take,
        metavar="FILE",
        help="Options from a TOML or YAML file, by their names; what is typed goes first.",
    )(command)


def _take(context: click.Context, option: click.Parameter, path: Path | None) -> None:
    """Make the file's values the defaults of the command."""
    if path is None:
        return
    options = _options(context.command)
    defaults = dict(context.default_map or {})
    for key, value in _read(path).items():
        name = str(key).lstrip("-").replace("_", "-")
        if name not in options:
            near = difflib.get_close_matches(name, options, 1)
            hint = f"do you mean {near[0]}?" if near else f"it takes {', '.join(options)}"
            raise UserError(f"--config {path}: {context.info_name} has no option {name}; {hint}")
        if value is not None:
            defaults[options[name].name or ""] = _as_typed(options[name], value, f"{path}: {name}")
    context.default_map = defaults


def _options(command: click.Command) -> dict[str, click.Parameter]:
    """A command's options and arguments, by the names that a file has for them."""
    named = {}
    for each in command.params:
        if each.name not in _NOT_TAKEN:
            longest = max(each.opts, key=len)
            named[longest.lstrip("-").replace("_", "-")] = each
    return named


def _read(path: Path) -> dict[str, Any]:
    import yaml

    kind = path.suffix.lower()
    if kind not in (".toml", ".yaml", ".yml"):
        raise UserError(f"--config {path}: give a file that ends in .toml, .yaml or .yml")
    try:
        text = read_whole(path, MOST_BYTES).decode("utf-8")
        content = tomllib.loads(text) if kind == ".toml" else yaml.safe_load(text)
    except OSError as error:
        raise UserError(f"--config {path} cannot be read ({error.strerror or error})") from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise UserError(f"--config {path} is no {kind[1:].upper()} ({why[:200]})") from None
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise UserError(f"--config {path}: write a line for each option, such as epochs: 20")
    return content


def _as_typed(option: click.Parameter, value: Any, where: str) -> Any:
    """A value of a file as click takes it of a command line."""
    if isinstance(value, dict):
        raise UserError(f"--config {where} has {count(len(value), 'part')}; give one value")
    if option.nargs == -1:
        return [str(each) for each in (value if isinstance(value, list) else [value])]
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(option, click.Option) and option.is_flag:
        if not isinstance(value, bool):
            raise UserError(f"--config {where} is {value!r}; give true or false")
        return value
    if isinstance(value, bool):  # YAML's on and off
        return "on" if value else "off"
    return str(value)
