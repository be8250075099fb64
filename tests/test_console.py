"""Progress on a terminal and elsewhere, tables, and limits to waiting."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from terminals import on_terminal, plain_lines

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


FACTS = "valid loss 0.003437  target 0.003  valid accuracy 0.9722  epoch 12.3/40  loss 0.05321"


@pytest.mark.parametrize(
    ("width", "fitting"), [(60, 1), (80, 2), (100, 3), (120, 3), (160, 5), (40, 0)]
)
def test_facts_that_do_not_fit_are_left_out_whole(width: int, fitting: int) -> None:
    drawing = f"""
from samepath.console import LiveWatcher
watcher = LiveWatcher(own_thread=False)
watcher.progress("nodules-small", 12.0, 40, "")
watcher.progress("nodules-small", 12.3, 40, {FACTS!r})
watcher.close()
"""
    code, text = on_terminal([sys.executable, "-c", drawing], width)
    lines = [plain.rstrip() for plain in plain_lines(text) if "nodules-small" in plain]
    assert code == 0, text
    assert max(map(len, lines)) <= width
    assert lines[-1].endswith("  ".join(FACTS.split("  ")[:fitting]) if fitting else "left")
    assert "\u2026" not in text, "nothing is cut"
    assert re.search(r"0:00:00 [-\d:]+ left", lines[-1]), "time gone, and time left"


@pytest.mark.parametrize("thread", ["", "own_thread=False"])
def test_bars_on_a_terminal(thread: str) -> None:
    code, text = on_terminal([sys.executable, "-c", DRAWING.format(thread=thread)], 120)
    assert code == 0
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


def test_lines_say_how_much_time_is_left(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "LINE_SECONDS", 0.0)
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    watcher = LiveWatcher()
    watcher.progress("map", 50, 750)
    clock[0] += 60
    watcher.progress("map", 250, 750)
    clock[0] += 6000
    watcher.progress("map", 450, 750)
    assert capsys.readouterr().err.splitlines() == [
        "samepath: map: 250 of 750, about 2 min left",
        "samepath: map: 450 of 750, about 76 min left",
    ]


def test_a_piped_table_is_as_wide_as_it_must_be(capsys: Captured) -> None:
    head = [f"a column of many words {number}" for number in range(12)]
    print_table([head, ["2.5 (given)"] * 12, ["sampled out"] * 12])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert [lines[1].count("2.5 (given)"), lines[2].count("sampled out")] == [12, 12]


def test_a_report_is_not_broken_into_lines(capsys: Captured) -> None:
    page = Path("/a/" + "long/" * 60 + "page.html")
    print_report([("Title", [["a"], ["1"]], "a note")], "verdict " * 30, page)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "Title"
    assert lines[3:] == ["a note", "", "verdict " * 30, f"report: {page}"]


def test_no_word_is_broken_on_a_narrow_terminal(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns that do not fit come below, with the first one again; paragraphs break at spaces."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    names = ["runs/digits-batch-32", "runs/digits-batch-1024"]
    print_table([["", *names], ["top eigenvalue", "12.345", "6.789"], ["trace", "1", "2"]])
    words = "the gap goes along with sharpness, as was found of large batches"
    print_report([("Sharpness", [["a"], ["1"]], words)], words, Path("page.html"))
    out = re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 40, out
    for word in (*names, "12.345", "6.789", *words.split()):
        assert word in out.split(), word
    assert out.split().count("trace") == 2


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


LONG = """
import hashlib, os, signal, threading, time
from samepath.console import stops_at_once
def interrupt():
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGINT)
with stops_at_once():
    pass
with stops_at_once():
    threading.Thread(target=interrupt).start()
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", 200_000_000)
"""


def test_a_library_that_computes_for_minutes_is_interrupted() -> None:
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, timeout=60)
    assert done.returncode == 130
    assert done.stderr == f"samepath: {console.CONTINUE}\n"
    assert time.monotonic() - began < 30, "it would take minutes"


def test_an_interrupt_that_is_noticed_is_left_alone() -> None:
    def interrupted() -> None:
        with console.stops_at_once():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert signal.set_wakeup_fd(-1) == -1, "as it was before"
