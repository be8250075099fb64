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

from samepath.curation.folder import Pictures
from samepath.data.keep_list import DROP, KEEP, RELABEL
from samepath.errors import UserError
from samepath.files import write_atomically
from samepath.web.explorer.explorer import Explorer
from samepath.web.server import static_folder

FLOATS = (
    *("x", "y", "loss", "doubt", "confidence", "model_sure", "probability", "margin"),
    "training_margin",
)
NO_PYARROW = "parquet files need pyarrow: pip install 'samepath[parquet]'"
SHEET_SIDE = 2048
MAX_SHEET_PIXELS = 32 * 10**6
"""Pixels of all thumbnails together: an exported page stays small enough to be sent."""
PNG_PIXELS = 2 * 10**6
"""Pixels up to which sheets are PNG, which loses nothing; larger ones are JPEG."""
THUMBNAIL_SIDES = (64, 48, 32, 24, 16)


def write_export(explorer: Explorer, out: Path) -> None:
    """Write a file of the kind its name says, over an older one."""
    kind = out.suffix.removeprefix(".").lower()
    if kind not in EXPORTS:
        raise UserError(f"--export {out}: the name must end in .html, .csv or .parquet")
    content = EXPORTS[kind](explorer)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, content, sync=False)
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}); give another path") from None


# ---- tables


def columns(explorer: Explorer) -> dict[str, list[Any]]:
    """Columns with all that is known of each example; None where it is not."""
    curation, now, number = explorer.curation, explorer.edits.columns, len(explorer.curation)
    names, labels = curation.class_names, curation.labels.tolist()
    unknown = [None] * number
    known = {name: column.tolist() for name, column in explorer.known.items()}

    def named(classes: Any) -> list[Any]:
        return [names[k] if 0 <= k < len(names) else str(k) for k in classes] or unknown

    more = {
        name: unknown if column is None else [None if v != v else v for v in column.tolist()]
        for name in ("probability", "margin", "training_margin")
        for column in [getattr(explorer.keep_list, name)]
    }
    decisions = np.where(now.kept, np.where(now.targets >= 0, RELABEL, KEEP), DROP)
    targets = np.where(now.targets >= 0, now.targets, curation.labels)
    return {
        "index": list(range(number)),
        "label": labels if curation.has_labels else unknown,
        "class": [names[label] for label in labels] if curation.has_labels else unknown,
        "x": curation.positions[:, 0].tolist(),
        "y": curation.positions[:, 1].tolist(),
        "cluster": now.clusters.tolist(),
        "kept": now.kept.tolist(),
        "decision": decisions.tolist(),
        "train_as": named(targets.tolist()) if curation.has_labels else unknown,
        "suggested": named(known.get("suggested", ())),
        "reason": now.reasons.tolist(),
        "note": now.notes.tolist(),
        "reviewed": explorer.review.seen.tolist(),
        "doubt": known.get("doubt", unknown),
        "loss": known.get("loss", unknown),
        "confidence": known.get("confidence", unknown),
        **more,
        "model_says": named(curation.columns.get("guesses", np.arange(0)).tolist()),
        "model_sure": known.get("sure", unknown),
        **{f"fact_{name}": values for name, values in curation.facts.items()},
    }


def csv_table(explorer: Explorer) -> bytes:
    table = columns(explorer)
    for name in ("kept", "reviewed"):
        table[name] = [int(yes) for yes in table[name]]
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
    kinds["reviewed"] = pa.bool_()
    kinds |= {name: pa.float32() for name in FLOATS}
    content = columns(explorer)
    for name in explorer.curation.facts:  # of the kind they are
        kinds[f"fact_{name}"] = None
    table = pa.table({n: pa.array(c, kinds.get(n, pa.string())) for n, c in content.items()})
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


# ---- the page

MODULES = (
    "dom.js", "palette.js", "grid.js", "renderer.js", "pointer.js", "source.js", "model.js",
    "mapview.js", "panels.js", "tune.js", "thumb.js", "decide.js", "filter.js", "review.js",
    "point.js", "gallery.js", "keys.js", "page.js",
)  # fmt: skip
"""Scripts of the page, in an order in which each needs only those before it."""


def page(explorer: Explorer) -> bytes:
    """One HTML file with the map, its images, colours and filters; nothing that needs a server."""
    files = static_folder()
    script = "\n".join(_as_part(files[name].content.decode()) for name in MODULES)
    script = f'"use strict";\n(() => {{\n{script}\n}})();\n'
    style = files["style.css"].content.decode()
    about = {**explorer.about(), "folder": explorer.folder.path.resolve().name, "is_copy": True}
    about["points"] = base64.b64encode(explorer.points()).decode()
    if (pictures := explorer.curation.pictures) is not None:
        sheets, grid = thumbnail_sheets(pictures)
        about["sheets"] = [f"data:{k};base64,{base64.b64encode(c).decode()}" for k, c in sheets]
        about["thumbnail"] = [*thumbnail_size(pictures), *grid]
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
    return text.encode()


def _as_part(module: str) -> str:
    """Make a module a part of one script: what it imports is already there."""
    module = re.sub(r"^import [^;]*;\n", "", module, flags=re.M)
    return re.sub(r"^export ", "", module, flags=re.M)


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def thumbnail_size(pictures: Pictures) -> tuple[int, int]:
    """Width and height on a sheet."""
    longest = max(pictures.height, pictures.width)
    for side in THUMBNAIL_SIDES:
        share = min(1.0, side / longest)
        size = max(1, round(pictures.width * share)), max(1, round(pictures.height * share))
        if pictures.number * size[0] * size[1] <= MAX_SHEET_PIXELS:
            break
    return size


def thumbnail_sheets(pictures: Pictures) -> tuple[list[tuple[str, bytes]], tuple[int, int]]:
    """Thumbnails of all examples, in order, line by line: sheets as (media type, file), and how
    many thumbnails a sheet has across and down."""
    from PIL import Image

    width, height = thumbnail_size(pictures)
    across, down = max(1, SHEET_SIDE // width), max(1, SHEET_SIDE // height)
    is_small = pictures.number * width * height <= PNG_PIXELS
    sheets = []
    for start in range(0, pictures.number, across * down):
        stop = min(start + across * down, pictures.number)
        size = across * width, -(-(stop - start) // across) * height
        sheet = Image.new("RGB" if pictures.is_colour else "L", size)
        for line, first in enumerate(range(start, stop, across)):
            found = pictures.pixels(slice(first, min(first + across, stop)))
            strip = Image.fromarray(np.ascontiguousarray(np.concatenate(found, axis=1)))
            small = strip.resize((len(found) * width, height), Image.Resampling.BOX)
            sheet.paste(small, (0, line * height))
        out = io.BytesIO()
        # subsampling would mix neighbours
        how: dict[str, Any] = {} if is_small else {"quality": 80, "subsampling": 0}
        sheet.save(out, "PNG" if is_small else "JPEG", **how)
        sheets.append(("image/png" if is_small else "image/jpeg", out.getvalue()))
    return sheets, (across, down)


EXPORTS = {"html": page, "csv": csv_table, "parquet": parquet_table}
"""Makes the content of a file of each kind."""
