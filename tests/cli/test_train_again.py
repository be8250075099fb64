"""`samepath train` in a folder that has been used, and what it says before its first step."""

from __future__ import annotations

import json
import os
import pty
import re
from pathlib import Path
from typing import Any

import pytest

from samepath.cli import main
from samepath.report.show import show_run
from samepath.report.words import duration

TINY = str(Path(__file__).parents[1] / "parity" / "tiny_recipe.py")


@pytest.fixture
def train(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Runs `samepath train` in an empty folder: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["train", *arguments])
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capfd.readouterr()

    return run


def record(folder: str = "run") -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(folder, "run.json").read_text())
    return content


def test_a_run_without_a_step_is_simply_started_again(train: Any) -> None:
    source = Path(TINY).read_text()
    Path("mine.py").write_text(source.replace("time.sleep(", 'raise ValueError("boom") or ('))
    with pytest.raises(ValueError, match="boom"):
        train("mine.py", "-n", "1", "--out", "run")
    assert record()["status"] == "failed"
    first = record()["id"]
    Path("mine.py").write_text(source)
    code, _, err = train("mine.py", "-n", "1", "--steps", "2", "--out", "run")
    assert code == 0, err
    again = record()
    assert (again["status"], again["result"]["steps"], len(again["starts"])) == ("finished", 2, 1)
    assert again["id"] != first


def test_overwriting_a_run(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asks on a terminal; deletes what the run wrote, and nothing else."""
    assert train(TINY, "-n", "1", "--epochs", "2", "--out", "run")[0] == 0
    Path("run/notes.txt").write_text("mine")
    Path("run/show").mkdir()
    there, here = pty.openpty()
    with os.fdopen(here) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        os.write(there, b"n\n")
        code, _, err = train(TINY, "-n", "1", "--out", "run", "--overwrite")
        assert code == 2
        assert "tiny_recipe.py, finished)? [y/N]" in err
        assert "the run in run stays" in err
        assert record()["result"]["steps"] == 10
        os.write(there, b"y\n")
        code, _, err = train(TINY, "-n", "1", "--steps", "3", "--out", "run", "--overwrite")
    os.close(there)
    assert code == 0, err
    assert record()["result"]["steps"] == 3
    assert sorted(os.listdir("run/checkpoints")) == ["step-00000003"]
    assert len(Path("run/metrics.jsonl").read_text().splitlines()) == 3
    assert Path("run/notes.txt").read_text() == "mine"
    assert not Path("run/show").exists()
    assert train(TINY, "-n", "1", "--steps", "1", "--out", "run", "--overwrite", "--yes")[0] == 0
    assert record()["result"]["steps"] == 1


def test_resuming_says_where(train: Any) -> None:
    """And the time of training goes on from there."""
    assert train(TINY, "-n", "1", "--steps", "7", "--out", "run")[0] == 0
    before = record()["result"]["seconds"]
    code, _, err = train(TINY, "-n", "1", "--epochs", "2", "--out", "run", "--resume")
    assert code == 0
    assert err.splitlines()[1:] == ["samepath: continuing after step 7"]
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    seconds = [line["seconds"] for line in lines]
    assert seconds == sorted(seconds)
    steps = {line["step"]: line["seconds"] for line in lines}
    assert record()["result"]["seconds"] >= steps[10] > steps[7]
    assert before >= steps[7] > 0.0
    checkpoint = Path("run/checkpoints")
    checkpoint.rename("gone")
    code, _, err = train(TINY, "-n", "1", "--epochs", "2", "--out", "run", "--resume")
    assert code == 0
    assert err.splitlines()[1:] == ["samepath: no checkpoint found, starting over at step 1"]


def test_idle_workers_are_said_at_once(train: Any) -> None:
    code, _, err = train(TINY, "-n", "1:9", "--here", "1", "--steps", "1", "--out", "run")
    assert code == 0, err
    words = "samepath: 5 of 9 workers can take part: a batch of 10 in grains of 2 has 5 grains"
    assert err.splitlines()[1].startswith(words)
    assert "(--max-workers 9 makes room for 9" in err


def test_the_target_is_named(train: Any) -> None:
    code, out, err = train(TINY, "-n", "1", "--target", "9", "--out", "run")
    assert code == 0, err
    assert out.startswith("target reached: a validation loss of ")
    assert out.splitlines()[0].endswith(", at most 9")


def test_the_summary_and_the_page_say_what_was_learned_and_how_long_it_took(train: Any) -> None:
    asked = ("--target", "0.001", "--out", "run")
    train(TINY, "-n", "1", "--epochs", "1", *asked)
    code, out, err = train(TINY, "-n", "1", "--epochs", "2", *asked, "--resume")
    assert code == 0, err
    head, *lines = out.splitlines()
    said = dict(line.split(maxsplit=1) for line in lines)
    result = record()["result"]
    assert head == "finished"
    assert said["valid_loss"] == f"{result['valid_loss']:.6g}"
    assert said["valid_accuracy"] == f"{result['metrics']['accuracy']:.6g}"
    assert said["target"] == "0.001"
    assert said["elapsed"] == duration(result["seconds"])
    rows = show_run(Path("run")).read_text()
    cells = re.findall(r"<td[^>]*>(.*?)</td>", rows)
    page = dict(zip(cells[::2], cells[1::2], strict=False))
    assert (page["target"], page["elapsed"]) == ("0.001", duration(result["seconds"]))
    assert page["validation accuracy"] == said["valid_accuracy"]


def test_what_is_shown_of_a_run_under_way(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no terminal: the whole line, the most important first."""
    monkeypatch.setattr("samepath.console.LINE_SECONDS", 0.0)
    _, _, err = train(TINY, "-n", "1", "--epochs", "2", "--target", "0.001", "--out", "run")
    last = [line for line in err.splitlines() if "examples/s" in line][-1]
    facts = r"valid loss \S+  target 0.001  valid accuracy \S+  epoch 2.0/2  loss \S+  "
    assert re.search(facts + r"\d+ examples/s  step 10  1 worker", last), last
