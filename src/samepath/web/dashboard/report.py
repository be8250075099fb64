"""A report that samepath wrote, taken apart so that the page can show it in its own look.

In: the HTML of a file that anybody may have written. Out: words, tables and pictures as plain
values: text, or [tag, children], or ["img", source, words]. Guaranteed: only tags of a short list,
without attributes; only pictures that are inside the file; what runs or loads something is left
out.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any, TypeAlias

Node: TypeAlias = str | list[Any]

KEPT = {
    "h1", "h2", "h3", "h4", "p", "ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td",
    "details", "summary", "code", "pre", "strong", "em", "b", "i", "br", "dl", "dt", "dd", "sub",
    "sup", "small", "figure", "figcaption",
}  # fmt: skip
LEFT_OUT = {
    "script", "style", "title", "template", "noscript", "iframe", "object", "svg", "math",
    "textarea", "select", "button", "audio", "video", "canvas",
}  # fmt: skip
"""With all that is in them."""
_VOID = {"br"}
_PICTURE = re.compile(r"data:image/(png|jpeg);base64,[A-Za-z0-9+/=\s]+")
_DEEPEST = 40


def take_apart(html: str) -> list[Node]:
    """What is to be shown, in order."""
    parser = _Parser()
    parser.feed(html)
    parser.close()
    return parser.top


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.top: list[Node] = []
        self._open: list[tuple[str, list[Node]]] = [("", self.top)]
        self._left_out: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._left_out or tag in LEFT_OUT:
            self._left_out.append(tag)
        elif tag == "img":
            given = dict(attrs)
            source = given.get("src") or ""
            if _PICTURE.fullmatch(source):
                self._add(["img", source, given.get("alt") or ""])
        elif tag in _VOID:
            self._add([tag, []])
        elif tag in KEPT and len(self._open) < _DEEPEST:
            small = tag == "p" and dict(attrs).get("class") == "note"
            inner: list[Node] = []
            self._add(["note" if small else tag, inner])
            self._open.append((tag, inner))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("img", *_VOID):
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if self._left_out:
            if tag in self._left_out:
                while self._left_out.pop() != tag:
                    pass
        elif any(tag == opened for opened, _ in self._open[1:]):
            while self._open.pop()[0] != tag:
                pass

    def handle_data(self, data: str) -> None:
        if not self._left_out and data.strip():
            self._add(data)

    def _add(self, node: Node) -> None:
        self._open[-1][1].append(node)
