"""Exports of the explorer: a table for other tools, or one page that can be sent to others.

In: an explorer as it stands, edits and all. Out: the bytes of a CSV, parquet or HTML file.
Guaranteed: the page needs no server and no network, and runs no script but its own.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import html
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from samepath.errors import UserError
from samepath.files import write_atomically
from samepath.web.explorer.explorer import Explorer
from samepath.web.guard import static_folder

KINDS = ("html", "csv", "parquet")
FLOATS = ("x", "y", "loss", "suspicion", "confidence")
NO_PYARROW = "parquet files need pyarrow: pip install 'samepath[parquet]'"


def export(explorer: Explorer, kind: str) -> bytes:
    """Make the content of a file: html, csv or parquet."""
    if kind == "csv":
        return csv_table(explorer)
    if kind == "parquet":
        return parquet_table(explorer)
    assert kind == "html"
    return page(explorer).encode()


def write_export(explorer: Explorer, out: Path) -> None:
    """Write a file of the kind its name says, over an older one."""
    kind = out.suffix.removeprefix(".").lower()
    if kind not in KINDS:
        raise UserError(f"--export {out}: the name must end in .html, .csv or .parquet")
    content = export(explorer, kind)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, content, sync=False)
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}); give another path") from None


def columns(explorer: Explorer) -> dict[str, list[Any]]:
    """Columns with all that is known of each example; None where it is not."""
    folder, now, number = explorer.folder, explorer.edits.columns, len(explorer.folder)
    names = folder.class_names
    unknown = [None] * number
    guesses = (
        unknown
        if folder.guesses is None
        else [names[guess] if guess < len(names) else str(guess) for guess in folder.guesses]
    )
    return {
        "index": list(range(number)),
        "label": folder.labels.tolist() if folder.labels_known else unknown,
        "class": [names[label] for label in folder.labels] if folder.labels_known else unknown,
        "x": folder.positions[:, 0].tolist(),
        "y": folder.positions[:, 1].tolist(),
        "cluster": now.clusters.tolist(),
        "kept": now.kept.tolist(),
        "reason": now.reasons.tolist(),
        "note": now.notes.tolist(),
        "loss": unknown if folder.losses is None else folder.losses.tolist(),
        "suspicion": unknown if folder.doubts is None else folder.doubts.tolist(),
        "model_says": guesses,
        "confidence": unknown if folder.confidences is None else folder.confidences.tolist(),
    }


def csv_table(explorer: Explorer) -> bytes:
    table = columns(explorer)
    table["kept"] = [int(kept) for kept in table["kept"]]
    for name in FLOATS:  # as few digits as read back the same float32
        table[name] = ["" if v is None else str(np.float32(v)) for v in table[name]]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    return out.getvalue().encode()


def parquet_table(explorer: Explorer) -> bytes:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UserError(NO_PYARROW) from None
    kinds = {"index": pa.int64(), "label": pa.int64(), "cluster": pa.int64(), "kept": pa.bool_()}
    kinds |= {name: pa.float32() for name in FLOATS}
    table = pa.table(
        {n: pa.array(c, kinds.get(n, pa.string())) for n, c in columns(explorer).items()}
    )
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


# ---- the page

MODULES = (
    "dom.js",
    "palette.js",
    "grid.js",
    "renderer.js",
    "pointer.js",
    "source.js",
    "model.js",
    "mapview.js",
    "panels.js",
    "tune.js",
    "point.js",
    "gallery.js",
    "page.js",
)
"""Scripts of the page, in an order in which each needs only those before it."""


def page(explorer: Explorer) -> str:
    """One HTML file with the map, its images, colours and filters; nothing that needs a server."""
    files = static_folder()
    script = "\n".join(_as_part(files[name].content.decode()) for name in MODULES)
    script = f'"use strict";\n(() => {{\n{script}\n}})();\n'
    style = files["style.css"].content.decode()
    folder = explorer.folder
    about = {**explorer.about(), "folder": folder.path.resolve().name, "is_copy": True}
    about["points"] = base64.b64encode(explorer.points()).decode()
    if folder.pictures is not None:
        sheets, grid = folder.pictures.sheets()
        about["sheets"] = [f"data:{k};base64,{base64.b64encode(c).decode()}" for k, c in sheets]
        about["thumbnail"] = [*folder.pictures.thumbnail_size(), *grid]
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    data = json.dumps(about).replace("<", "\\u003c")  # nothing in it can end the element
    text = files["index.html"].content.decode()
    text = re.sub(r'<link rel="(icon|modulepreload)"[^>]*>\n', "", text)
    text = text.replace("<title>samepath", f"<title>{html.escape(about['title'])} - samepath")
    for tag, new in (
        (
            '<link rel="stylesheet" href="/static/style.css">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}"><style>{style}</style>',
        ),
        (
            '<script type="module" src="/static/page.js"></script>',
            f'<script type="application/json" id="data">{data}</script><script>{script}</script>',
        ),
    ):
        assert tag in text
        text = text.replace(tag, new)
    return text


def _as_part(module: str) -> str:
    """Make a module a part of one script: what it imports is already there."""
    module = re.sub(r"^import [^;]*;\n", "", module, flags=re.M)
    return re.sub(r"^export ", "", module, flags=re.M)


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
