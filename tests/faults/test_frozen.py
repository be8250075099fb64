"""Workers that stop without ending: found within the timeout, and treated as dead."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from elastic_runs import (
    GOES_ON,
    elastic,
    harm,
    harmful,
    harms_done,
    left_behind,
    lines,
    meanwhile,
    steps_repeated,
    until,
    workers_of,
)

LIMIT_SECONDS = 300
TIMEOUT_SECONDS = 3.0
EPOCHS = 2


def frozen(said: str) -> list[int]:
    """Who was found."""
    words = f"has given no sign of life for {TIMEOUT_SECONDS:.0f} s; {GOES_ON}"
    found = re.findall(rf"samepath: worker (\d) {words}", said)
    assert len(found) == said.count(GOES_ON), said
    return [int(worker) for worker in found]


@pytest.mark.parametrize(
    ("link", "workers", "victims"), [("auto", 2, [1, 0]), ("network", 2, [1]), ("auto", 1, [0])]
)
def test_it_is_found(
    link: str,
    workers: int,
    victims: list[int],
    unhurt: tuple[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    harms = [harm("backward", who, 2 + 3 * turn, "SIGSTOP") for turn, who in enumerate(victims)]
    recipe, out = harmful(tmp_path, *harms, link=link, epochs=EPOCHS), tmp_path / "run"
    result = elastic(recipe, out, workers, timeout_seconds=TIMEOUT_SECONDS)
    assert harms_done(recipe) == len(harms)
    assert (result.digest, lines(out), result.num_workers) == (*unhurt, workers)
    assert frozen(capsys.readouterr().err) == victims
    assert steps_repeated(recipe) <= len(harms)
    assert left_behind(out) == []


def is_stopped(process: int) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_one_that_goes_on_in_time_is_left_alone(
    unhurt: tuple[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, out = (
        harmful(tmp_path, harm("forward", 1, 2, "SIGSTOP"), epochs=EPOCHS),
        tmp_path / "run",
    )

    def go_on() -> None:
        until(lambda: harms_done(recipe) == 1)
        _, worker = workers_of(os.getpid())
        until(lambda: is_stopped(worker))
        time.sleep(TIMEOUT_SECONDS / 3)
        os.kill(worker, signal.SIGCONT)

    with meanwhile(go_on):
        result = elastic(recipe, out, 2, timeout_seconds=TIMEOUT_SECONDS)
    assert (result.digest, lines(out), result.num_workers) == (*unhurt, 2)
    assert capsys.readouterr().err == ""
    assert steps_repeated(recipe) == 0


def test_one_that_is_done_and_waits_for_the_others(
    unhurt: tuple[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody who is frozen can hold up the launcher."""
    harms = harm("end", 1, how="SIGSTOP soon"), harm("end", 0, how="linger 1")
    recipe, out = harmful(tmp_path, *harms, epochs=EPOCHS), tmp_path / "run"
    result = elastic(recipe, out, 2, timeout_seconds=TIMEOUT_SECONDS)
    assert (result.digest, lines(out)) == unhurt
    assert harms_done(recipe) == len(harms)
    assert left_behind(out) == []
