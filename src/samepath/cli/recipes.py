"""`samepath recipes`: what is built in."""

from __future__ import annotations

import click

from samepath.cli import common
from samepath.console import print_text


@click.command(short_help="List the built-in recipes.")
@common.json_option
def recipes(as_json: bool) -> None:
    """List the built-in recipes, one line each.

    \b
    Example: samepath recipes
    """
    from samepath.builtin import BUILT_IN

    lines = {name: text for name, (_, _, text) in BUILT_IN.items()}
    if as_json:
        common.print_json(lines)
        return
    width = max(map(len, lines))
    for name, text in lines.items():
        print_text(f"{name:<{width}}  {text}", width + 2)
