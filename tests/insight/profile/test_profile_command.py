"""What `samepath profile` refuses, before it measures anything; and what its tables say."""

from __future__ import annotations

from pathlib import Path

import pytest

from samepath.cli import main
from samepath.insight.profile import profile as profile_module
from samepath.insight.profile.profile import TURN, WARM_UP, turns


@pytest.fixture(autouse=True)
def _nothing_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def launch(*_: object) -> None:
        raise AssertionError("workers were started")

    monkeypatch.setattr(profile_module, "launch", launch)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--engine", "samepath,deepspeed"], "there is no such engine; use samepath, ddp, queue"),
        (["--engine", ","], "names nothing"),
        (["--engine", "queue,horovod", "--json"], "--engine horovod: there is no such engine"),
        (["--engine", "samepath,ddp", "-n", "1"], "-n 1 --engine ddp: one worker has nothing"),
        (["--steps", "0"], "--steps 0: it must be at least 1"),
        (["--cycle-ms", "0"], "--cycle-ms 0: give more than 0"),
        (["--fusion-mib", "-1"], "--fusion-mib -1: give 0"),
        (["-n", "9"], "9 workers, but a batch of"),
        (["-n", "two"], "-n two: give a whole number"),
        (["--out", "full"], "--out full is not empty; give a new folder"),
        (["--batch-size", "100000"], "larger than the data"),
    ],
)
def test_refused(
    arguments: list[str], says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        main(["profile", "digits", *arguments])
    out, err = capfd.readouterr()
    assert ended.value.code == 2
    assert says in err
    assert err.startswith("samepath: ")
    assert err.count("\n") == 1, "one line"
    assert out == ""
    assert sorted(tmp_path.rglob("*")) == before, "nothing written"


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_turns_have_every_step_once_and_drop_the_first(steps: int) -> None:
    assert turns(steps, several=False) == [[*[None] * WARM_UP, *range(steps)]]
    found = turns(steps, several=True)
    assert [step for turn in found for step in turn if step is not None] == list(range(steps))
    assert found[0][:WARM_UP] == [None] * WARM_UP
    for turn in found:
        assert turn[0] is None
        assert sum(step is not None for step in turn) <= TURN
