"""`samepath`: finds the command, and turns errors into one line and an exit code.

Commands import the library when they run, so that `samepath --help` is quick.
"""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from typing import NoReturn

import click

from samepath.console import say
from samepath.errors import SamepathError
from samepath.version import __version__

COMMANDS = (
    *("advise", "clean", "cubes", "curate", "curvature", "digest", "doctor", "download", "export"),
    *("folds", "generate", "init", "pairs", "predict", "profile", "recipes", "run", "show"),
    *("simulate", "study", "tensorboard", "train", "verify", "worth"),
    *("train.join", "web.explore", "web.turing", "web.ui"),
)
"""Modules of this folder with a command of their name, or with a command in them."""

# torch's libraries answer a peer that is gone with a page of C++ frames; we say it in a line
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="samepath")
def cli() -> None:
    """Add workers, keep the path: the same training result on any number of workers.

    \b
    Try:
      samepath train digits            on all cores
      samepath verify digits -n 1,2,3  prove it
    """


for each in COMMANDS:
    module, _, name = each.partition(".")
    cli.add_command(getattr(import_module(f"samepath.cli.{module}"), name or module))


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line. Exit codes: 0 done, 1 failed, 2 bad input, 3 diverged."""
    try:
        code = cli.main(args=arguments, prog_name="samepath", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        say("stopped")
        sys.exit(130)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        say(f"{error.filename or 'the disk'}: {error.strerror}; free space, or make it writable")
        sys.exit(1)
    except SamepathError as error:
        say(error)
        sys.exit(error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)
