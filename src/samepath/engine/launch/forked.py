"""Imported by the fork server alone, when it starts.

A scheduler that stops a job tells all its processes. The server must not end before the workers it
has forked, which end with it: it goes when its launcher has gone. Ctrl-C is blocked from its start
on, until it is ignored here.
"""

from __future__ import annotations

import signal

for _number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(_number, signal.SIG_IGN)  # workers set theirs as they begin
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
