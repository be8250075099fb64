"""The terminal: notes, progress, tables, limits to waiting, and terminals that are closed.

A library function reports its progress to a `Watcher`; the commands hand it a `LiveWatcher`, which
shows it, and other callers a `SilentWatcher`. Results go to standard output; all else that is
written here goes to standard error. rich is loaded when something is drawn, not before: quick
commands do without it.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from samepath.errors import SamepathError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.status import Status

_OUTPUTS = (1, 2)
_CLOSED = (errno.EIO, errno.EPIPE)
POLL_SECONDS = 0.02
QUIET_SECONDS, REMIND_SECONDS = 2.0, 60.0
"""A wait is first mentioned after a moment, and then every minute."""
LINE_SECONDS = 15.0
"""Where there is no terminal to draw on, progress is a line this often."""


def say(text: object) -> None:
    """Write one line to standard error; on a terminal no line breaks within a word."""
    with may_be_closed():
        print(_filled(f"samepath: {text}", sys.stderr), file=sys.stderr, flush=True)


def count(number: int, noun: str) -> str:
    """'1 step', '1,200 steps'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def sentence(text: str) -> str:
    """The text with its first letter as a capital."""
    return text[:1].upper() + text[1:]


# ---------------------------------------------------------------- a terminal that is closed


def drop_closed_outputs() -> None:
    """Send to /dev/null, from here on, what this process writes to a closed terminal or pipe.

    Such a write fails in whichever line of whichever process it happens to be. There is no reader
    left, so nothing is lost with it, and the process can still save the step and record in run.json
    how the run ended.
    """
    closed = [output for output in _OUTPUTS if _is_closed(output)]
    if closed:
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        for output in closed:
            os.dup2(nowhere, output)
        os.close(nowhere)


def _is_closed(output: int) -> bool:
    """Whether the terminal is gone, or no process has the other end of the pipe."""
    poll = select.poll()
    poll.register(output, 0)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))


def not_ignored(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """The signals that may stop this process: under `nohup` a closed terminal does not."""
    return [n for n in numbers if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]


@contextmanager
def may_be_closed() -> Iterator[None]:
    """Write to a terminal or pipe in this block; that it is closed ends nothing."""
    try:
        yield
    except OSError as error:
        if error.errno not in _CLOSED:
            raise
        drop_closed_outputs()


# ---------------------------------------------------------------- waiting


class WaitedTooLong(SamepathError):
    """Another process did not come in time."""


class Patience:
    """The limit of one wait for another process, with a reminder now and then."""

    def __init__(self, seconds: float, tell: Callable[[str], None] = say) -> None:
        self._seconds = seconds
        self._tell = tell
        self._began = time.monotonic()
        self._told = self._began + QUIET_SECONDS - REMIND_SECONDS

    def pause(self, missing: str) -> None:
        """Sleep a moment, if there is time left; the caller then looks for `missing` again."""
        now = time.monotonic()
        if now - self._began > self._seconds:
            raise WaitedTooLong(f"waited {self._seconds:.0f} s for {missing}")
        if now - self._told > REMIND_SECONDS:
            self._told = now
            self._tell(f"waiting for {missing}")
        time.sleep(POLL_SECONDS)


# ---------------------------------------------------------------- Ctrl-C

STOP_SECONDS = 0.5
"""What a computation may take to notice a Ctrl-C, of the two seconds it has: a library that does
not let other threads run, and a crowded machine, need the rest."""
CONTINUE = "stopped; the same command goes on from here"


@contextmanager
def stops_at_once() -> Iterator[None]:
    """Let a Ctrl-C end this process in two seconds while the block runs, whatever it computes.

    Python notices a signal between two of its own instructions, and a call into a library may take
    a minute. A thread hears of it at once, and where nothing has come of it after STOP_SECONDS, it
    ends the process. For blocks without workers, which write nothing but whole files.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ends, begins = os.pipe()
    os.set_blocking(begins, False)
    before = signal.set_wakeup_fd(begins, warn_on_full_buffer=False)
    over = threading.Event()
    listener = threading.Thread(target=_end_on_interrupt, args=(ends, over), daemon=True)
    listener.start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        os.close(begins)  # which ends the thread's wait
        listener.join()
        os.close(ends)


def _end_on_interrupt(ends: int, over: threading.Event) -> None:
    while received := os.read(ends, 1):
        if received[0] == signal.SIGINT and not over.wait(STOP_SECONDS):
            if sys.stderr.isatty():
                os.write(2, b"\x1b[?25h")  # a progress bar hides the cursor
            say(CONTINUE)
            os._exit(128 + signal.SIGINT)


# ---------------------------------------------------------------- progress


class Watcher:
    """What a library function reports its progress to; this one shows nothing."""

    def progress(self, what: str, done: float, total: float | None, facts: str = "") -> None:
        """Report that `done` of `total` of the part `what` is done; None: it cannot be told.

        `facts` describe it better than the two numbers do: the most important first, with two
        spaces between them. Several parts may be under way.
        """

    def end(self, what: str, said: str | None = None) -> None:
        """Report the end of a part, complete or not; `said` is a line about it."""

    def note(self, text: str) -> None:
        """Report something that a person should know, in one line."""

    def close(self) -> None:
        """Report the end of all parts."""


class SilentWatcher(Watcher):
    """Shows nothing."""


_WIDE, _BAR_WIDTH = 110, 20
"""Terminals that have room for the bar itself, beside what can be said of a part."""
_NAME_PART = 3
"""A part's name takes no more than a third of a line."""
_CLOCKS_WIDTH = len("* " + " 0:00:00 00:00:00 left ")


@dataclass
class _Part:
    bar: TaskID | None
    began: float = field(default_factory=lambda: time.monotonic())
    first: float = 0.0
    """What was done when it began: a part may go on where it was."""
    done: float = 0.0
    total: float | None = None


def _time_left(part: _Part) -> str:
    """ ", about 2 min left", by what is done; nothing where that cannot be told."""
    if not part.total or part.done <= part.first or part.done >= part.total:
        return ""
    gone = time.monotonic() - part.began
    seconds = gone * (part.total - part.done) / (part.done - part.first)
    return f", about {_duration(seconds)} left" if seconds >= 1 else ""


def _duration(seconds: float) -> str:
    """'40 s', '3 min', '2.5 h'."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class LiveWatcher(Watcher):
    """Shows progress: a bar for each part on a terminal, a line now and then elsewhere.

    The class itself crosses process borders; it is made in the worker that shows something.
    """

    def __init__(self, *, own_thread: bool = True) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)
        self.is_terminal = self._console.is_terminal
        self._own_thread = own_thread
        """Draw in a thread too, so that clocks move; else only when there is progress."""
        self._bars: Progress | None = None
        self._parts: dict[str, _Part] = {}
        self._spoke = time.monotonic()

    def progress(self, what: str, done: float, total: float | None, facts: str = "") -> None:
        if not facts and total is not None:
            facts = f"{done:,.0f} of {total:,.0f}"
        if what not in self._parts:
            self._parts[what] = _Part(self._new_bar(what, done, total, facts), first=done)
            if total is None and not self.is_terminal:
                self.note(what)
        part = self._parts[what]
        part.done, part.total = done, total
        if self._bars is not None and part.bar is not None:
            with may_be_closed():
                fitting = self._fitting(what, facts)
                self._bars.update(part.bar, completed=done, total=total, facts=fitting)
                if not self._own_thread:
                    self._bars.refresh()
        elif facts and time.monotonic() - self._spoke > LINE_SECONDS:
            self.note(f"{what}: {facts}{_time_left(part)}")

    def end(self, what: str, said: str | None = None) -> None:
        part = self._parts.pop(what, None)
        if part is not None and part.bar is not None and self._bars is not None:
            self._bars.remove_task(part.bar)
        if not self._parts:
            self._stop_drawing()
        if said is None and part is not None and part.total is not None:
            seconds = time.monotonic() - part.began
            if part.done >= part.total and seconds > QUIET_SECONDS:
                said = f"{what}: {seconds:.0f} s"
        if said is not None:
            self.note(said)

    def note(self, text: str) -> None:
        self._spoke = time.monotonic()
        say(text)  # while bars are drawn, rich writes it above them

    def close(self) -> None:
        self._parts.clear()
        self._stop_drawing()

    def _fitting(self, what: str, facts: str) -> str:
        """As many of the facts as there is room for: none is cut."""
        width = self._console.width
        name = min(max(map(len, [what, *self._parts])), width // _NAME_PART)
        room = width - name - _CLOCKS_WIDTH - (_BAR_WIDTH + 1 if width >= _WIDE else 0)
        fitting = ""
        for fact in facts.split("  "):
            longer = f"{fitting}  {fact}" if fitting else fact
            if len(longer) > room:
                break
            fitting = longer
        return fitting

    def _new_bar(self, what: str, done: float, total: float | None, facts: str) -> TaskID | None:
        from rich import progress as rich
        from rich.table import Column

        if not self.is_terminal:
            return None
        if self._bars is None:
            name = Column(no_wrap=True, max_width=self._console.width // _NAME_PART)
            whole = Column(no_wrap=True)
            self._bars = rich.Progress(
                rich.SpinnerColumn(),
                rich.TextColumn("{task.description}", markup=False, table_column=name),
                *([rich.BarColumn(_BAR_WIDTH)] if self._console.width >= _WIDE else []),
                rich.TimeElapsedColumn(),
                rich.TimeRemainingColumn(compact=True),
                rich.TextColumn("left", table_column=whole),
                rich.TextColumn("{task.fields[facts]}", markup=False, table_column=whole),
                console=self._console,
                transient=True,
                auto_refresh=self._own_thread,
            )
            with may_be_closed():
                self._bars.start()
        fitting = self._fitting(what, facts)
        return self._bars.add_task(what, total=total, completed=int(done), facts=fitting)

    def _stop_drawing(self) -> None:
        if self._bars is not None:
            with may_be_closed():
                self._bars.stop()  # gives the cursor back
            self._bars = None


def status(text: str) -> Status:
    """Show a line with a spinner on a terminal, while the block runs; its `update` changes it."""
    from rich.console import Console

    return Console(stderr=True).status(text)


# ---------------------------------------------------------------- tables

Rows = Sequence[Sequence[str]]
"""The head, and the lines below it."""
_SHORT = 12
_GAP = 2
"""Spaces between columns."""


def print_table(rows: Rows) -> None:
    """Print a table; columns of numbers stand on the right. In files, lines are not broken."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    whole = sum(max(map(len, cells)) + _GAP for cells in zip(*rows, strict=True))
    console = Console(width=None if sys.stdout.isatty() else whole)
    head_style = None if console.no_color else "bold"
    for part in _fitting(rows, console.width):
        head, *body = part
        table = Table(box=None, padding=(0, _GAP, 0, 0), header_style=head_style)
        for name, *cells in zip(head, *body, strict=True):
            numbers = all(not cell or cell.lstrip("-+<>~")[:1].isdigit() for cell in cells)
            least = min(_longest_word([name, *cells]), console.width)
            side: Literal["right", "left"] = "right" if numbers else "left"
            table.add_column(Text(name), justify=side, overflow="fold", min_width=least)
        for row in body:
            table.add_row(*map(Text, row))  # not markup
        console.print(table)


def _fitting(rows: Rows, width: int) -> Iterator[Rows]:
    """A table as several below each other, each with the first column, where a terminal is too
    narrow for its longest words."""
    first, *others = zip(*rows, strict=True)
    columns, room = [first], width - _longest_word(first) - _GAP
    for column in others:
        needed = _longest_word(column) + _GAP
        if needed > room and len(columns) > 1:
            yield [*zip(*columns, strict=True)]
            columns, room = [first], width - _longest_word(first) - _GAP
        columns.append(column)
        room -= needed
    yield [*zip(*columns, strict=True)]


def _longest_word(cells: Iterable[str]) -> int:
    """What a column needs; a short cell, such as a number with its unit, is not broken."""
    words = (word for cell in cells for word in ([cell] if len(cell) <= _SHORT else cell.split()))
    return max(map(len, words), default=0)


def print_text(text: str, indent: int = 0) -> None:
    """Print a paragraph; on a terminal no line breaks within a word, and all but the first are
    indented."""
    print(_filled(text, sys.stdout, indent))


def _filled(text: str, output: TextIO, indent: int = 0) -> str:
    """The text in lines of at most the terminal's width; elsewhere as it is."""
    if not output.isatty():
        return text
    width = int(os.environ.get("COLUMNS", 0)) or os.get_terminal_size(output.fileno()).columns
    how: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    how["subsequent_indent"] = " " * indent
    return "\n".join(textwrap.fill(line, width or 80, **how) for line in text.split("\n"))


def print_report(
    tables: Iterable[tuple[str, Rows, str]], verdict: str, page: Path, *, first: Sequence[str] = ()
) -> None:
    """Print titles, tables and a note below each; then the verdict, and where to see more. `first`
    is what comes before the tables: answers, one line each."""
    for line in first:
        print_text(line)
    if first:
        print()
    for title, rows, note in tables:
        print_text(title)
        print_table(rows)
        print_text(note)
        if note:
            print()
    print_text(verdict)
    print(f"report: {page}")
