"""What a person sees while a curation is under way."""

from __future__ import annotations

from typing import Protocol


class Watcher(Protocol):
    """Told what is being done and how far it is."""

    def begin(self, what: str, total: int) -> None: ...

    def advance(self, done: int) -> None:
        """So much of the total is done."""
        ...

    def end(self) -> None: ...

    def note(self, text: str) -> None:
        """Something a person should know, in one line."""
        ...


class Silent:
    """Shows nothing."""

    def begin(self, what: str, total: int) -> None: ...

    def advance(self, done: int) -> None: ...

    def end(self) -> None: ...

    def note(self, text: str) -> None: ...
