"""Progress on a terminal and elsewhere, tables, and limits to waiting."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from samepath import console
from samepath.console import LiveWatcher, Patience, WaitedTooLong, count, print_report, print_table

Captured = pytest.CaptureFixture[str]
DRAWING = """
from samepath.console import LiveWatcher
watcher = LiveWatcher({thread})
watcher.progress("all", 1, 4)
watcher.progress("one [bold]", 2, 3, "epoch 2 of 3")
watcher.note("in between")
watcher.end("one [bold]", "one has ended")
watcher.progress("all", 4, 4)
watcher.close()
print("afterwards")
"""


@pytest.mark.parametrize("thread", ["", "own_thread=False"])
def test_bars_on_a_terminal(thread: str) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        [sys.executable, "-c", DRAWING.format(thread=thread)],
        stdout=theirs, stderr=theirs, env=environment,
    ) as process:  # fmt: skip
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:  # the terminal's other end is closed
            pass
    os.close(ours)
    assert process.returncode == 0
    text = shown.decode()
    assert "one [bold]" in text, "names are not markup"
    assert "epoch 2 of 3" in text
    assert "4 of 4" in text
    assert "samepath: in between\r\n" in text
    assert "samepath: one has ended\r\n" in text
    assert text.rstrip().endswith("afterwards")
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") > 0, "the cursor is given back"


def test_lines_where_there_is_no_terminal(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = LiveWatcher()
    watcher.progress("features", 0, 4)
    watcher.progress("features", 1, 4)
    assert capsys.readouterr().err == "", "not before there was time to read it"
    monkeypatch.setattr(console, "LINE_SECONDS", 0.0)
    watcher.progress("features", 2, 4)
    watcher.progress("features", 4, 4, "all of them")
    assert capsys.readouterr().err.splitlines() == [
        "samepath: features: 2 of 4",
        "samepath: features: all of them",
    ]
    monkeypatch.setattr(console, "QUIET_SECONDS", 0.0)
    watcher.end("features")
    assert capsys.readouterr().err == "samepath: features: 0 s\n"

    watcher.progress("interrupted", 3, 4)
    capsys.readouterr()
    watcher.end("interrupted")
    assert capsys.readouterr().err == ""


def test_a_part_of_unknown_length_is_named_when_it_begins(capsys: Captured) -> None:
    watcher = LiveWatcher()
    watcher.progress("timing, about 60 s", 0, None)
    watcher.progress("timing, about 60 s", 0, None)
    assert capsys.readouterr().err == "samepath: timing, about 60 s\n"


def test_columns_of_numbers_stand_on_the_right(capsys: Captured) -> None:
    print_table([["class", "kept", "loss"], ["cat [1]", "5", "-0.25"], ["dog", "12", ""]])
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "class    kept   loss",
        "cat [1]     5  -0.25",
        "dog        12",
    ]


def test_a_report_is_not_broken_into_lines(capsys: Captured) -> None:
    page = Path("/a/" + "long/" * 60 + "page.html")
    print_report([("Title", [["a"], ["1"]], "a note")], "verdict " * 30, page)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "Title"
    assert lines[3:] == ["a note", "", "verdict " * 30, f"report: {page}"]


def test_counts_in_words() -> None:
    assert [count(n, "step") for n in (0, 1, 1200)] == ["0 steps", "1 step", "1,200 steps"]


def test_a_wait_has_a_limit_and_is_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "QUIET_SECONDS", 0.05)
    told: list[str] = []
    patience = Patience(0.3, told.append)

    def wait() -> None:
        while True:
            patience.pause("the leader")

    with pytest.raises(WaitedTooLong, match="waited 0 s for the leader"):
        wait()
    assert told == ["waiting for the leader"]
