"""What mkdocs does to a page beside rendering it: first uses of the glossary's words become links.

In: a page's text, and docs/glossary.md. Out: the text for the site; files stay as they are.
Guaranteed: headings, code, links, tables and comments are not touched.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Any

GLOSSARY = "glossary.md"
_ROW = re.compile(r'^\| <a id="([\w-]+)"></a>([^|,]+)', re.M)
_TAKEN = re.compile(
    r"^```.*?^```|^ {4,}[^\n]*|^(?:#|\||:::)[^\n]*|<!--.*?-->|<[^>]+>|`[^`]*`"
    r"|!?\[[^\]]*\]\([^)]*\)",
    re.M | re.S,
)
"""Text that no link may be put into."""
_EVERYDAY = {"plan", "worker"}
"""Words that are read rightly without the glossary."""


@cache
def words(file: Path) -> dict[str, str]:
    """The anchor of each word that is linked."""
    rows = _ROW.findall(file.read_text(encoding="utf-8"))
    return {word.strip(): anchor for anchor, word in rows if word.strip() not in _EVERYDAY}


def link_words(text: str, glossary: dict[str, str], address: str) -> str:
    """Link the first use of each word (plural too) to its row of the glossary."""
    found = []
    shielded = _TAKEN.sub(lambda taken: "\0" * len(taken[0]), text)
    for word, anchor in glossary.items():
        pattern = rf"(?<![\w-]){re.escape(word)}s?(?![\w-])"
        use = re.search(pattern.replace(r"\ ", r"\s"), shielded, re.I)
        if use:
            found.append((use.start(), use.end(), anchor))
            taken = "\0" * len(use[0])
            shielded = shielded[: use.start()] + taken + shielded[use.end() :]
    for start, end, anchor in sorted(found, reverse=True):
        link = f"[{text[start:end]}]({address}#{anchor}){{.glossary}}"
        text = text[:start] + link + text[end:]
    return text


def on_page_markdown(text: str, page: Any, config: Any, files: Any) -> str:
    """Called by mkdocs for each page, before it is rendered."""
    source = page.file.src_uri
    if source in (GLOSSARY, "commands.md", "api.md"):
        return text
    address = os.path.relpath(GLOSSARY, os.path.dirname(source) or ".")
    return link_words(text, words(Path(config["docs_dir"], GLOSSARY)), address)
