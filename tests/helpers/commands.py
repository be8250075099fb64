"""The command line in this process: without the seconds that a fresh interpreter takes."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout

import pytest

from samepath.cli import main


def samepath(*arguments: object, code: int = 0) -> str:
    """Run a command that must end with this exit code. What it wrote: to standard output, or if
    that is nothing to standard error."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert ended.value.code == code, err.getvalue()
    return out.getvalue() or err.getvalue()


def error_line(said: str) -> str:
    """The one line about what is wrong, which nothing or what the command begins with precedes."""
    *first, last = said.splitlines()
    assert len(first) < 2, said
    assert all(line.startswith("samepath: ") for line in [*first, last]), said
    return last
