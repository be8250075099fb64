"""Fault points: nothing without a fault, what SAMEPATH_FAULT says with one."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from samepath import faults

CODE = "from samepath.faults import fault_point; fault_point('a'); fault_point('b'); print('on')"


@pytest.mark.parametrize(
    ("told", "code", "said"),
    [
        ("", 0, "on"),
        ("c=SIGKILL", 0, "on"),
        ("b=SIGKILL", -9, ""),
        ("b=raise", 1, "RuntimeError: fault at b"),
    ],
)
def test_what_the_environment_says_happens(told: str, code: int, said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, "SAMEPATH_FAULT": told},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == code
    assert said in ended.stdout + ended.stderr


def test_a_fault_may_be_a_delay() -> None:
    handler = faults.handler_of("here=sleep 0.2")
    assert handler is not None
    began = time.monotonic()
    handler("elsewhere", file=1)
    assert time.monotonic() - began < 0.1
    handler("here", file=1)
    assert time.monotonic() - began >= 0.2
