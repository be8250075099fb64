"""A checkpoint that is truncated, bit-flipped or half-deleted: the newest good one is used, the bad
one named and set aside, and the run ends as the one that was never disturbed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from elastic_runs import RECIPE, SAMEPATH, lines

from samepath.cli.digest import digest
from samepath.console import SilentWatcher
from samepath.engine.state.reopen import reopen
from samepath.engine.train import Request, train
from samepath.errors import CheckpointDamaged

LIMIT_SECONDS = 300
NEWEST, BEFORE = "step-00000008", "step-00000006"


class Notes(SilentWatcher):
    """What a person is told."""

    said: list[str]

    def __init__(self) -> None:
        Notes.said = []

    def note(self, text: str) -> None:
        self.said.append(text)


def run(out: Path, **more: Any) -> str:
    """The digest it ends with."""
    return train(Request(recipe=str(RECIPE), num_workers=1, out=out, display=Notes, **more))[
        0
    ].digest


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    return run(out), lines(out)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has checkpoints of steps 6 and 8 of its 10."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    run(out, steps=8, checkpoint_steps=3)
    return out


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 16
    file.write_bytes(bytes(content))


def zero_the_end(file: Path) -> None:
    """As file systems leave it that had not written everything when the power went."""
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))


def empty_folder(file: Path) -> None:
    for each in file.parent.iterdir():
        each.unlink()


@pytest.mark.parametrize("name", ["checkpoint.json", "state.safetensors"])
@pytest.mark.parametrize("damage", [cut, flip, zero_the_end, Path.unlink, empty_folder])
def test_the_one_before_is_used(
    damage: Callable[[Path], Any],
    name: str,
    stopped: Path,
    undisturbed: tuple[str, Any],
    tmp_path: Path,
) -> None:
    out = shutil.copytree(stopped, tmp_path / "run")
    damage(out / "checkpoints" / NEWEST / name)
    assert (run(out, resume=True, epochs=2), lines(out)) == undisturbed
    *told, goes_on = Notes.said
    assert_told(told, out)
    assert goes_on == "continuing after step 6"


def assert_told(said: list[str], out: Path) -> None:
    assert len(said) == 1
    assert said[0].startswith(f"{out / 'checkpoints' / NEWEST}: ")
    assert said[0].endswith(f"; it is set aside as {NEWEST}.damaged, and {BEFORE} is used")
    assert "\n" not in said[0]
    found = sorted(path.name for path in (out / "checkpoints").iterdir())
    assert found == [BEFORE, f"{NEWEST}.damaged", "step-00000010"]


def test_no_good_one_is_left(stopped: Path, tmp_path: Path) -> None:
    """It does not begin anew in silence, however often one tries; nothing is lost meanwhile."""
    out = shutil.copytree(stopped, tmp_path / "run")
    for name in (BEFORE, NEWEST):
        flip(out / "checkpoints" / name / "state.safetensors")
    for _ in range(2):
        with pytest.raises(CheckpointDamaged, match=r"no checkpoint in .* can be read"):
            run(out, resume=True, epochs=2)
        assert len(Notes.said) == 2
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == [BEFORE, NEWEST]
    assert len(lines(out)) == 9, "eight steps and an epoch"


def test_on_two_workers_and_at_the_command_line(
    stopped: Path, undisturbed: tuple[str, Any], tmp_path: Path
) -> None:
    """One of the workers says it, once; other commands pass over what is set aside."""
    out = shutil.copytree(stopped, tmp_path / "run")
    (out / "checkpoints" / NEWEST / "checkpoint.json").unlink()
    ended = subprocess.run(
        [SAMEPATH, "train", RECIPE, "-n", "2", "--epochs", "2", "--out", out, "--resume", "--json"],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=True,
    )
    assert json.loads(ended.stdout)["digest"] == undisturbed[0]
    assert lines(out) == undisturbed[1]
    _, told, goes_on = (line.removeprefix("samepath: ") for line in ended.stderr.splitlines())
    assert_told([told], out)
    assert goes_on.startswith("continuing after step ")
    shown = CliRunner().invoke(digest, [str(out)], catch_exceptions=False)
    assert (shown.exit_code, shown.stderr) == (0, f"samepath: computing the digest of {out}\n")
    assert undisturbed[0] in shown.stdout
    assert reopen(out).model()[1] == undisturbed[0]
