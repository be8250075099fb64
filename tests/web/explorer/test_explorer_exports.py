"""What leaves the explorer: tables that other tools read, and a page that needs no server."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from curation_folders import make_curation_folder
from PIL import Image
from safetensors.numpy import load_file

from samepath.curation.folder import Pictures
from samepath.errors import UserError
from samepath.web.explorer import exports
from samepath.web.explorer.explorer import Explorer
from samepath.web.explorer.exports import MODULES, thumbnail_sheets, thumbnail_size, write_export
from samepath.web.server import static_folder


@pytest.fixture
def explorer(tmp_path: Path) -> Explorer:
    explorer = Explorer(make_curation_folder(tmp_path / "curated", 300))
    explorer.mark(np.flatnonzero(explorer.edits.columns.kept)[:1], False, 'a "b", c')
    return explorer


def check(rows: list[dict[str, Any]], explorer: Explorer) -> None:
    curation, now = explorer.curation, explorer.edits.columns
    assert len(rows) == 300
    for k, row in enumerate(rows):
        assert int(row["index"]) == k
        assert row["class"] == curation.class_names[curation.labels[k]]
        assert np.float32(row["x"]) == curation.positions[k, 0]
        assert np.float32(row["loss"]) == curation.columns["losses"][k]
        assert bool(int(row["kept"])) == now.kept[k]
        assert row["reason"] == now.reasons[k]
        assert row["note"] == now.notes[k]
        relabelled = now.targets[k] >= 0
        assert row["decision"] == ("relabel" if relabelled else "keep" if now.kept[k] else "drop")
        given = now.targets[k] if relabelled else curation.labels[k]
        assert row["train_as"] == curation.class_names[given]
        assert row["suggested"] == curation.class_names[curation.columns["guesses"][k]]
        assert np.float32(row["doubt"]) == explorer.known["doubt"][k]
        assert bool(int(row["reviewed"])) == explorer.review.seen[k]
        assert row["fact_patient"] == f"p{k % 7}"


def test_tables_round_trip(explorer: Explorer, tmp_path: Path) -> None:
    write_export(explorer, tmp_path / "table.csv")
    check(list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text()))), explorer)
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is an extra")
    write_export(explorer, tmp_path / "table.parquet")
    table = pq.read_table(tmp_path / "table.parquet")
    assert str(table.schema.field("x").type) == "float"
    assert str(table.schema.field("kept").type) == "bool"
    check(table.to_pylist(), explorer)


def test_what_cannot_be_exported(
    explorer: Explorer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'samepath\[parquet\]'"):
        write_export(explorer, tmp_path / "table.parquet")
    assert not (tmp_path / "table.parquet").exists()
    with pytest.raises(UserError, match=r"\.html, \.csv or \.parquet"):
        write_export(explorer, tmp_path / "table.xlsx")


def test_the_page_holds_everything_and_trusts_only_itself(tmp_path: Path) -> None:
    folder = make_curation_folder(tmp_path / "curated", 50)
    about = json.loads((folder / "curation.json").read_text())
    evil = "</script><script>alert(1)</script>"
    about["class_names"][0] = about["recipe"] = evil
    (folder / "curation.json").write_text(json.dumps(about))
    text = exports.page(Explorer(folder)).decode()
    assert "alert(1)</script>" not in text
    assert "/static/" not in text
    assert not re.search(r"https?://(?!www\.w3\.org)", text)
    assert str(tmp_path) not in text, "the place where it was made is private"
    data, script = re.findall(r"<script[^>]*>(.*?)</script>", text, re.S)
    style = re.findall(r"<style>(.*?)</style>", text, re.S)[0]
    policy = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)[0]
    for part in (script, style):
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert json.loads(data)["classes"][0]["name"] == evil
    assert not re.search(r"^(import|export) ", script, re.M)


def test_the_page_has_every_module_in_an_order_that_works() -> None:
    files = static_folder()
    own = {
        name
        for name in files
        if name.endswith(".js") and not name.startswith(("ui", "uPlot", "turing"))
    }
    assert set(MODULES) == own
    named: dict[str, str] = {}
    for place, name in enumerate(MODULES):
        text = files[name].content.decode()
        assert len(text.splitlines()) <= 300
        for other in re.findall(r'from "\./([^"]+)"', text):
            assert MODULES.index(other) < place, f"{name} needs {other}"
        for top in re.findall(
            r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", text, re.M
        ):
            assert top not in named, f"{top} is in {name} and {named[top]}"
            named[top] = name
    for name in MODULES[:-1]:
        assert f'modulepreload" href="/static/{name}"' in files["index.html"].content.decode()


@pytest.mark.parametrize("kind", ["colour", "grey", "slices"])
def test_sheets_hold_every_thumbnail(tmp_path: Path, kind: str) -> None:
    folder = make_curation_folder(tmp_path / "c", 150, pictures=kind)
    pictures = Pictures(folder / "images.safetensors", 150)
    width, height = thumbnail_size(pictures)
    sheets, (across, down) = thumbnail_sheets(pictures)
    images = load_file(folder / "images.safetensors")["images"]
    assert (height, width) == images.shape[1:3]
    opened = [np.asarray(Image.open(io.BytesIO(content))) for _, content in sheets]
    for row in range(150):
        sheet, at = divmod(row, across * down)
        top, left = at // across * height, at % across * width
        found = opened[sheet][top : top + height, left : left + width]
        assert np.array_equal(found, images[row])


def test_many_pictures_make_small_thumbnails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "MAX_SHEET_PIXELS", 150 * 8 * 8)
    monkeypatch.setattr(exports, "THUMBNAIL_SIDES", (16, 8))
    folder = make_curation_folder(tmp_path / "c", 150, pictures="slices")
    pictures = Pictures(folder / "images.safetensors", 150)
    assert thumbnail_size(pictures) == (8, 3)
    sheets, (across, _) = thumbnail_sheets(pictures)
    assert Image.open(io.BytesIO(sheets[0][1])).size == (across * 8, -(-150 // across) * 3)
