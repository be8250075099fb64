"""The command line: thin commands, one file each, each calling one library function."""

from samepath.cli.main import main

__all__ = ["main"]
