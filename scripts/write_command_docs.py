"""Write docs/commands.md from the commands' own help. A test checks that it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from samepath.cli.curate import CurateGroup
from samepath.cli.main import cli

HEAD = """# Commands

Written by `scripts/write_command_docs.py` from `--help`; do not edit.
Exit codes: 0 done, 1 failed (for `verify`: the bits differ), 2 bad input, 3 diverged,
130 stopped by Ctrl-C, 143 by SIGTERM.
"""


def all_commands() -> dict[str, click.Command]:
    """Every command, those of groups after what the group itself does."""
    found: dict[str, click.Command] = {}
    for name, command in cli.commands.items():
        found[name] = command.itself if isinstance(command, CurateGroup) else command
        if isinstance(command, click.Group):
            found |= {f"{name} {part}": each for part, each in command.commands.items()}
    return found


def render() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, command in sorted(all_commands().items()):
        context = click.Context(
            command,
            info_name=f"samepath {name}",
            terminal_width=100,  # not that of whatever terminal this runs in
            help_option_names=["-h", "--help"],
        )
        parts.append(f"## samepath {name}\n\n```\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    if "--print" in sys.argv:
        print(render(), end="")
    else:
        (Path(__file__).parents[1] / "docs" / "commands.md").write_text(render())
