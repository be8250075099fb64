"""A terminal (or a pipe) that is closed while a run is under way.

Whatever is written to it then fails, in whichever process and line it happens to be. Nobody is left
to read it, so nothing is lost with it: from the first sign on it goes nowhere, and what has to be
done (save the step, say in run.json how it ended) is done.
"""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_OUTPUTS = (1, 2)
_NOBODY_READS = (errno.EIO, errno.EPIPE)


def let_go_of_closed() -> None:
    """Send what this process writes to where nobody reads, from here on, nowhere."""
    closed = [output for output in _OUTPUTS if _is_closed(output)]
    if closed:
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        for output in closed:
            os.dup2(nowhere, output)
        os.close(nowhere)


def _is_closed(output: int) -> bool:
    """The terminal behind it is gone, or nobody has the other end of the pipe."""
    look = select.poll()
    look.register(output, 0)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in look.poll(0))


def to_be_heard(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Those signals that may stop this process: under `nohup` a closed terminal does not."""
    return [n for n in numbers if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]


@contextmanager
def may_be_closed() -> Iterator[None]:
    """Words for whoever watches are written here; that nobody does any more ends nothing."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NOBODY_READS:
            raise
        let_go_of_closed()
