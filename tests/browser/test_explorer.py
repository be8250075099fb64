"""The explorer as a person uses it, in a real browser."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
import numpy as np
from curation_folders import make_curation_folder
from explorer_pages import OpenPage, lasso, numbers, place_of, serving, until
from playwright.sync_api import Page

from samepath.data.keep_list import read_keep_list

N = 500


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_curation_folder(tmp_path / "curated", N)


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    with serving(folder) as address:
        yield address


@pytest.fixture
def page(address: str, open_page: OpenPage) -> Page:
    return open_page(address)


def kept_in_files(folder: Path, name: str = "keep.csv") -> int:
    return int(read_keep_list(folder / name).kept.sum())


def first(page: Page, kept: bool) -> int:
    row: int = page.evaluate("(kept) => samepath.model.kept.indexOf(kept)", int(kept))
    return row


def await_pictures(page: Page) -> None:
    """Before a server is ended: what a page has asked for has come."""
    page.wait_for_selector(".neighbours .thumb >> nth=11")
    until(page, "[...document.images].every((image) => image.complete)")


def test_load_shows_the_folder(page: Page, folder: Path) -> None:
    kept = kept_in_files(folder)
    assert numbers(page) == (kept, N - kept)
    assert "token" not in page.url
    assert page.locator("#classes li").count() == 10
    assert page.locator("#reasons li").count() == 4
    assert "airplane" in page.locator("#classes").inner_text()
    drawn = page.evaluate(
        """() => {
          const { map } = samepath.view;
          map.draw();
          const gl = map.gl;
          const pixels = new Uint8Array(4 * map.canvas.width * map.canvas.height);
          const { width, height } = map.canvas;
          gl.readPixels(0, 0, width, height, gl.RGBA, gl.UNSIGNED_BYTE, pixels);
          return pixels.filter((value, k) => k % 4 === 3 && value > 0).length;
        }"""
    )
    assert drawn > 10 * N, "points are drawn"


def test_hover_shows_the_image_and_a_click_pins_it(page: Page) -> None:
    row = first(page, kept=False)
    page.mouse.move(*place_of(page, row))
    page.wait_for_selector("#hover", state="visible")
    words = page.locator("#hover").inner_text()
    assert f"#{row}" in words
    assert "dropped" in words
    assert "Model says" in words
    until(page, "document.querySelector('#hover img').naturalWidth === 16")
    page.mouse.move(5, 5)
    page.wait_for_selector("#hover", state="hidden")
    page.mouse.click(*place_of(page, 3))
    assert page.locator("#tab-point").inner_text() == "Example 3"
    page.wait_for_selector(".neighbours .thumb >> nth=11")
    near = page.evaluate("fetch('/api/neighbours/3').then((r) => r.json())")
    shown = page.locator(".neighbours .thumb")
    rows = [int(shown.nth(k).get_attribute("data-row") or -1) for k in range(12)]
    assert rows == [row for row, _ in near]
    shown.nth(2).click()
    assert page.locator("#tab-point").inner_text() == f"Example {near[2][0]}"
    page.keyboard.press("Escape")
    assert "Point at the map" in page.locator("#point").inner_text()
    page.keyboard.press("?")
    page.wait_for_selector("#help[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#help", state="hidden")


def test_keys_keep_drop_undo_and_redo(page: Page, folder: Path) -> None:
    kept, dropped = numbers(page)
    row = first(page, kept=True)
    page.mouse.click(*place_of(page, row))
    chosen = page.evaluate("samepath.model.pinned")
    was_kept = page.evaluate("samepath.model.kept[samepath.model.pinned]")
    step = -1 if was_kept else 1
    page.keyboard.press("d" if was_kept else "k")
    until(page, "samepath.model.state.num_edits === 1")
    assert numbers(page) == (kept + step, dropped - step)
    assert "by hand" in page.locator("#point .verdict").inner_text()
    assert "1 edit, not saved yet" in page.locator("#status").inner_text()
    page.keyboard.press("z")
    until(page, "samepath.model.state.num_edits === 0")
    assert numbers(page) == (kept, dropped)
    page.keyboard.press("Shift+Z")
    until(page, "samepath.model.state.num_edits === 1")
    assert numbers(page) == (kept + step, dropped - step)
    page.keyboard.press("n")
    page.keyboard.type("dkz is a note")
    page.keyboard.press("Enter")
    until(page, "samepath.model.state.num_edits === 2")
    assert page.evaluate("(row) => samepath.model.notes.get(row)", chosen) == "dkz is a note"
    assert kept_in_files(folder) == kept, "nothing on disk has changed"


def test_lasso_drop_and_undo(page: Page) -> None:
    before = numbers(page)
    lasso(page, first(page, kept=True))
    words = page.locator("#selection-words").inner_text()
    selected = page.evaluate("[...samepath.model.selected]")
    assert words == f"{len(selected)} selected"
    inside = page.evaluate(
        """() => { const { model } = samepath;
             return [...model.selected].filter((row) => model.kept[row]).length; }"""
    )
    assert 1 < inside < N / 2
    page.fill("#selection-note", "a crowd")
    page.click("#selection-drop")
    until(page, "samepath.model.state.num_edits === 1")
    assert numbers(page) == (before[0] - inside, before[1] + inside)
    page.wait_for_selector("#selection", state="hidden")
    assert page.evaluate("(row) => samepath.model.notes.get(row)", selected[0]) == "a crowd"
    page.click("#undo")
    until(page, "samepath.model.state.num_edits === 0")
    assert numbers(page) == before
    assert page.evaluate("samepath.model.notes.size") == 0
    page.click("#use-lasso")
    page.mouse.move(400, 120)
    page.mouse.down()
    for place in [(1050, 120), (1050, 850), (400, 850), (400, 130)]:
        page.mouse.move(*place, steps=3)
    page.mouse.up()
    page.wait_for_selector("#selection", state="visible")
    assert page.evaluate("samepath.model.selected.size") > N / 2
    page.keyboard.press("Escape")
    page.wait_for_selector("#selection", state="hidden")


@pytest.mark.alone
def test_sliding_clusters_again_and_can_be_undone(page: Page) -> None:
    before = numbers(page)
    page.select_option("#tune-class", "2")
    page.focus("#eps")
    page.keyboard.press("Home")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    until(page, "samepath.model.state.num_edits === 1")
    assert numbers(page)[0] < before[0], "with a small reach much is noise"
    low, high = page.evaluate(
        """() => { const { low, high } = samepath.model.about.classes[2]; return [low, high]; }"""
    )
    assert page.evaluate("samepath.model.state.settings[2][0]") == pytest.approx(
        low * (high / low) ** (3 / 240)
    )
    page.wait_for_timeout(500)
    assert page.evaluate("samepath.model.state.num_edits") == 1, "one edit, not one per step"
    page.keyboard.press("z")
    until(page, "samepath.model.state.num_edits === 0")
    assert numbers(page) == before


def test_slider_and_table_count_noise_alike(folder: Path, open_page: OpenPage) -> None:
    """What lies outside of all clusters and is dropped for another reason is no noise in either."""
    file = folder / "keep.csv"
    lines = file.read_text().splitlines()
    row = next(n for n, line in enumerate(lines) if n and line.endswith(",noise"))
    lines[row] = lines[row].removesuffix("noise") + "label error"
    file.write_text("\n".join(lines) + "\n")
    keep = read_keep_list(file)
    assert keep.labels is not None
    with serving(folder) as address:
        page = open_page(address)
        total = 0
        for label in range(10):
            page.select_option("#tune-class", str(label))
            reasons = np.array(keep.reasons)[keep.labels == label]
            noise = int((reasons == "noise").sum())
            words = page.locator("#tune-result").inner_text()
            assert f"; {noise} dropped as noise" in words
            assert ("; 1 outside too, with another reason" in words) == (
                keep.labels[row - 1] == label
            )
            total += noise
        listed = page.locator("#reasons li", has_text="noise").locator(".numbers").inner_text()
        assert int(listed) == total


def test_wrong_labels_are_told_and_found(page: Page) -> None:
    words = page.locator("#noise").inner_text()
    assert "4.3% of all (3.1 to 5.5%)" in words
    assert "12 (8 to 17)" in words
    page.click("text=cat → dog")
    until(page, "document.getElementById('find-words').textContent.endsWith(' shown')")
    found = page.evaluate(
        """() => [...samepath.model.label.keys()].filter((i) => samepath.model.isVisible(i))
             .map((i) => [samepath.model.label[i], samepath.model.suggested[i]])"""
    )
    assert all(pair == [3, 5] for pair in found)


def test_sliding_is_seen_before_it_is_an_edit(page: Page) -> None:
    before = numbers(page)
    page.locator("#eps").scroll_into_view_if_needed()
    box = page.locator("#eps").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 2, box["y"] + box["height"] / 2, steps=5)
    until(page, f"document.getElementById('num-kept').textContent !== '{before[0]}'")
    page.wait_for_timeout(500)
    assert page.evaluate("samepath.model.state.num_edits") == 0
    page.mouse.up()
    until(page, "samepath.model.state.num_edits === 1")
    page.click("#tune-back")
    until(page, "samepath.model.state.num_edits === 2")


def test_filters_and_gallery(page: Page) -> None:
    page.click("#tab-gallery")
    assert page.locator("#gallery details").count() == 10
    rows = page.evaluate(
        """[...document.querySelectorAll('#gallery details:first-of-type .thumb')]
           .map((thumb) => Number(thumb.dataset.row))"""
    )
    doubts = page.evaluate("(rows) => rows.map((row) => samepath.model.doubt[row])", rows)
    assert doubts == sorted(doubts, reverse=True), "worst first"
    page.locator("#classes li").nth(4).hover()
    page.locator("#classes li").nth(4).locator(".only").click()
    assert page.locator("#gallery details").count() == 1
    assert page.evaluate("samepath.view.numVisible") == page.evaluate(
        "samepath.model.about.classes[4].num_examples"
    )
    page.click("#all-classes")
    page.locator("#reasons li", has_text="noise").locator("input").uncheck()
    assert "noise" not in page.locator("#gallery").inner_text()
    page.click("#all-reasons")
    kept = numbers(page)[0]
    item = page.locator("#gallery li").first
    item.hover()
    item.locator(".back").click()
    until(page, "samepath.model.state.num_edits === 1")
    assert numbers(page)[0] == kept + 1
    for input_ in page.locator("#reasons input").all():
        input_.uncheck()
    assert page.locator("#map-empty").is_visible()


def test_relabel_with_one_key(page: Page, folder: Path) -> None:
    row = page.evaluate(
        """() => { const { model } = samepath;
             return model.label.findIndex((label, i) => model.suggested[i] !== label); }"""
    )
    page.fill("#find", str(row))
    page.press("#find", "Enter")
    page.evaluate("document.activeElement.blur()")
    names = page.evaluate(
        """(i) => [samepath.model.label[i], samepath.model.suggested[i]]
             .map((k) => samepath.model.className(k))""",
        row,
    )
    assert page.locator("#tab-point").inner_text() == f"Example {row}"
    page.keyboard.press("r")
    until(page, "samepath.model.state.num_edits === 1")
    assert page.evaluate("(i) => samepath.model.target[i] === samepath.model.suggested[i]", row)
    assert page.locator("#point .verdict").inner_text() == "relabelled by hand"
    assert names[1] in page.locator("#point .facts").inner_text()
    page.keyboard.press("Control+s")
    page.wait_for_selector("#saved[open]")
    saved = read_keep_list(folder / "keep-2.csv")
    assert saved.decisions[row] == "relabel"
    assert int(saved.kept.sum()) >= kept_in_files(folder)


def test_review_one_after_the_other(folder: Path, open_page: OpenPage) -> None:
    with serving(folder) as address:
        page = open_page(address)
        page.keyboard.press("v")
        order = page.evaluate(
            """() => { const { doubt } = samepath.model;
                 return [...doubt.keys()].sort((a, b) => doubt[b] - doubt[a] || a - b); }"""
        )
        assert page.evaluate("samepath.model.pinned") == order[0], "the most doubtful first"
        assert page.locator("#review .ahead li").count() == 12
        page.keyboard.press("ArrowRight")
        until(page, f"samepath.model.pinned === {order[1]}")
        page.keyboard.press("d" if page.evaluate(f"samepath.model.kept[{order[1]}]") else "k")
        until(page, f"samepath.model.pinned === {order[2]}")
        page.keyboard.press("ArrowLeft")
        until(page, f"samepath.model.pinned === {order[1]}")
        assert "by hand" in page.locator("#review .verdict").inner_text()
        assert page.locator("#num-seen").inner_text() == "2"
    with serving(folder) as address:
        page = open_page(address)
        page.click("#tab-review")
        assert page.evaluate("samepath.model.pinned") == order[2], "it goes on where it was"
        page.click("#review-new")
        assert page.locator("#review .moves .quiet").inner_text() == f"1 of {N - 2}"


def test_conditions_tags_and_what_the_lasso_holds(page: Page) -> None:
    def shown(text: str) -> int:
        page.fill("#find", text)
        page.press("#find", "Enter")
        return int(page.evaluate("samepath.view.numVisible"))

    loss = page.evaluate("samepath.model.loss.filter((v, i) => v > 0.2 && i % 7 === 3).length")
    assert shown("loss>0.2 patient=p3") == loss > 0
    assert shown("doubt>=90") == page.evaluate("samepath.model.doubt.filter((v) => v >= 90).length")
    assert shown("decision=drop") == numbers(page)[1]
    assert shown("class=cat reviewed=no") > 0
    assert shown("reviewed=yes") == 0
    assert shown("lots=1") == 0 or "There is no lots" in page.locator("#find-words").inner_text()
    assert shown("") == N
    lasso(page, first(page, kept=True))
    number = page.evaluate("samepath.model.selected.size")
    page.click("#tab-selected")
    assert page.locator("#selected li").count() == min(number, 240)
    page.fill("#selection-note", "look #blurry")
    page.press("#selection-note", "Enter")
    until(page, "samepath.model.state.num_edits === 1")
    assert shown("#blurry") == number


def test_colours_change(page: Page) -> None:
    seen = [page.evaluate("Array.from(samepath.view.map.data.colour)")]
    for way in ("cluster", "kept", "loss", "doubt"):
        page.check(f"#colour-by input[value={way}]", force=True)
        seen.append(page.evaluate("Array.from(samepath.view.map.data.colour)"))
        assert seen.index(seen[-1]) == len(seen) - 1, "as no other way"
        assert page.locator("#key").inner_text()


def test_save_writes_beside_and_says_how_to_train(page: Page, folder: Path) -> None:
    old = (folder / "keep.csv").read_bytes()
    assert page.locator("#save").is_disabled()
    page.mouse.click(*place_of(page, first(page, kept=True)))
    page.locator("#point .buttons button:enabled").click()
    until(page, "samepath.model.state.num_edits === 1")
    page.keyboard.press("Control+s")
    page.wait_for_selector("#saved[open]")
    assert page.locator("#saved-file").inner_text() == str(folder / "keep-2.csv")
    assert f"--keep {folder / 'keep-2.csv'}" in page.locator("#saved-train").inner_text()
    assert (folder / "keep.csv").read_bytes() == old
    assert kept_in_files(folder, "keep-2.csv") == numbers(page)[0]
    page.click("#saved .close")
    assert page.locator("#status").inner_text() == "saved as keep-2.csv"
    assert page.locator("#save").is_disabled()


def test_edits_outlive_the_page_and_the_server(folder: Path, open_page: OpenPage) -> None:
    with serving(folder) as address:
        page = open_page(address)
        lasso(page, first(page, kept=True))
        page.keyboard.press("d")
        until(page, "samepath.model.state.num_edits === 1")
        after = numbers(page)
        page.reload()
        page.wait_for_selector("body.ready")
        assert numbers(page) == after
        assert page.locator("#undo").is_enabled()
        page.evaluate("samepath.model.pin(samepath.model.kept.indexOf(1))")
        await_pictures(page)
    page.evaluate("document.querySelector('#point .drop').click()")
    page.wait_for_selector("#toast.error")
    assert "does not answer" in page.locator("#toast").inner_text()
    with serving(folder) as address:
        again = open_page(address)
        assert numbers(again) == after
        again.keyboard.press("z")
        until(again, "samepath.model.state.num_edits === 0")


def test_two_windows_follow_one_another(address: str, open_page: OpenPage) -> None:
    one, two = open_page(address), open_page(address)
    kept = numbers(one)[0]
    rows = one.evaluate("[...samepath.model.kept.keys()].filter((r) => samepath.model.kept[r])")
    for page, row in ((one, rows[0]), (two, rows[1])):
        page.evaluate("(row) => samepath.model.pin(row)", row)
        page.keyboard.press("d")
        until(page, "samepath.model.state.num_edits > 0")
    until(two, "samepath.model.state.num_edits === 2")
    assert numbers(two)[0] == kept - 2


def test_export_is_a_page_of_its_own(page: Page, open_page: OpenPage, tmp_path: Path) -> None:
    page.click(".menu summary")
    with page.expect_download() as waiting:
        page.click("[data-kind=html]")
    out = tmp_path / "sent.html"
    waiting.value.save_as(out)
    page.click(".menu summary")
    with page.expect_download() as table:
        page.click("[data-kind=csv]")
    assert table.value.suggested_filename == "samepath-map.csv"
    copy = open_page(f"file://{out}", offline=True)
    assert numbers(copy) == numbers(page)
    row = first(copy, kept=False)
    copy.mouse.move(*place_of(copy, row))
    copy.wait_for_selector("#hover", state="visible")
    until(
        copy,
        """(() => { const canvas = document.querySelector('#hover canvas');
             const { data } = canvas.getContext('2d').getImageData(0, 0, 16, 16);
             return data.some((value, k) => k % 4 < 3 && value > 100); })()""",
    )
    for control in ("#save", "#undo", "#eps", "#use-lasso", ".menu"):
        assert not copy.locator(control).is_visible()
    copy.locator("#reasons li", has_text="noise").locator("input").uncheck()
    assert copy.evaluate("samepath.view.numVisible") < N
    copy.check("#colour-by input[value=loss]", force=True)
    copy.keyboard.press("d")
    assert numbers(copy) == numbers(page)
    copy.click("#tab-gallery")
    assert copy.locator("#gallery canvas").count() > 0


def test_moving_zooming_and_fitting(page: Page) -> None:
    at = place_of(page, 0)
    page.mouse.move(700, 450)
    page.mouse.down()
    page.mouse.move(760, 480, steps=4)
    page.mouse.up()
    moved = place_of(page, 0)
    assert moved == pytest.approx((at[0] + 60, at[1] + 30), abs=1)
    page.mouse.move(*moved)
    page.mouse.wheel(0, -300)
    until(page, "samepath.view.map.zoom > 1.2")
    assert place_of(page, 0) == pytest.approx(moved, abs=1), "what is under the mouse stays there"
    page.keyboard.press("0")
    assert place_of(page, 0) == pytest.approx(at, abs=1)
    page.focus("#overlay")
    page.keyboard.press("ArrowRight")
    assert place_of(page, 0)[0] == pytest.approx(at[0] - 60, abs=1)


@pytest.mark.parametrize(("width", "scheme"), [(1440, "dark"), (900, "light"), (390, "dark")])
def test_nothing_runs_out_of_the_page(
    address: str, open_page: OpenPage, width: int, scheme: str
) -> None:
    page = open_page(address, width=width, height=800, color_scheme=scheme)
    page.evaluate("samepath.model.pin(3)")
    page.wait_for_selector(".neighbours .thumb >> nth=5")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    dark = ground == "rgb(14, 18, 23)"
    assert dark == (scheme == "dark")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != ground


def test_tensors_without_images_or_labels(tmp_path: Path, open_page: OpenPage) -> None:
    folder = make_curation_folder(
        tmp_path / "plain", 200, pictures="none", labelled=False, classifier=False
    )
    with serving(folder) as address:
        page = open_page(address)
        assert not page.locator("#classes-box").is_visible()
        page.mouse.click(*place_of(page, 5))
        page.wait_for_selector(".neighbours .thumb >> nth=11")
        assert "Loss" in page.locator("#point").inner_text()
        assert page.locator("img").count() == 0
        page.click("#tab-gallery")
        assert page.locator("#gallery .thumb").count() > 0


def test_names_and_notes_are_text(tmp_path: Path, open_page: OpenPage) -> None:
    folder = make_curation_folder(tmp_path / "evil", 100, num_classes=3)
    about = json.loads((folder / "curation.json").read_text())
    evil = '<img src=x onerror="document.title=1">'
    about["class_names"][0] = about["recipe"] = evil
    (folder / "curation.json").write_text(json.dumps(about))
    with serving(folder) as address:
        page = open_page(address)
        assert page.locator("#title").inner_text() == evil
        assert evil in page.locator("#classes").inner_text()
        page.mouse.click(*place_of(page, 5))
        page.fill("#note", evil)
        page.keyboard.press("Enter")
        until(page, "samepath.model.notes.size === 1")
        assert page.locator("#point .facts").inner_text().endswith(evil)
        assert page.locator("img[src=x]").count() == 0
        await_pictures(page)


# ---- quick enough without a graphics card: other work can only slow it, the best of a few counts

LOAD_SECONDS = 3.0
FRAMES_A_SECOND = 30.0
CLUSTER_MS = 300.0
TRIES = 3


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = make_curation_folder(tmp_path_factory.mktemp("large") / "c", 50_000)
    with serving(folder) as address:
        yield address


def best(measure: Callable[[], float], good: Callable[[float], bool]) -> list[float]:
    found: list[float] = []
    while len(found) < TRIES and not any(map(good, found)):
        found.append(measure())
    return found


@pytest.mark.alone
def test_fifty_thousand_points_load(large: str, open_page: OpenPage) -> None:
    def load() -> float:
        began = time.monotonic()
        page = open_page(large)
        page.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        assert page.evaluate("samepath.view.map.order.length") == 50_000
        return time.monotonic() - began

    found = best(load, lambda seconds: seconds < LOAD_SECONDS)
    assert min(found) < LOAD_SECONDS, found


def frames_a_second(page: Page) -> float:
    """While the map is dragged to and fro, further than what is drawn around it."""
    page.evaluate(
        """() => { const frames = window.frames_ = [];
             const next = (now) => {
               frames.push(now);
               window.counting = requestAnimationFrame(next);
             };
             requestAnimationFrame(next); }"""
    )
    page.mouse.move(700, 450)
    page.mouse.down()
    before = page.evaluate("samepath.view.map.view.x")
    began = time.monotonic()
    moved = False
    while (passed := time.monotonic() - began) < 2.0:
        turn = 2 * math.pi * passed / 2.0
        page.mouse.move(700 + 330 * math.sin(turn), 450 + 200 * math.sin(turn))
        moved = moved or page.evaluate("samepath.view.map.view.x") != before
    page.mouse.up()
    assert moved
    frames = page.evaluate("cancelAnimationFrame(window.counting), window.frames_")
    return 1000.0 * (len(frames) - 1) / float(frames[-1] - frames[0])


@pytest.mark.alone
def test_panning_is_smooth(large: str, open_page: OpenPage) -> None:
    page = open_page(large)
    found = best(lambda: frames_a_second(page), lambda frames: frames > FRAMES_A_SECOND)
    assert max(found) > FRAMES_A_SECOND, found


@pytest.mark.alone
@pytest.mark.parametrize(("number", "classes"), [(50_000, 10), (20_000, 1)])
def test_clustering_again(number: int, classes: int, tmp_path: Path, open_page: OpenPage) -> None:
    """Asked, answered and shown, at every move of the slider."""
    folder = make_curation_folder(
        tmp_path / "c", number, num_classes=classes, pictures="none", classifier=classes > 1
    )
    with serving(folder) as address:
        page = open_page(address)

        def cluster() -> float:
            ms: float = page.evaluate(
                """async (share) => {
                  const { low, high } = samepath.model.about.classes[0];
                  const eps = low ** (1 - share) * high ** share;
                  const body = { label: 0, eps, min_samples: 5, use: false };
                  const began = performance.now();
                  const answer = await fetch("/api/cluster", { method: "POST",
                    headers: { "x-samepath": "1" }, body: JSON.stringify(body) });
                  samepath.model.preview(await answer.json());
                  return performance.now() - began;
                }""",
                next(shares),
            )
            return ms

        shares = itertools.cycle([0.5, 0.6, 0.4, 0.8])  # another eps at each move
        cluster()  # libraries are loaded, and the class is triangulated
        found = best(cluster, lambda ms: ms < CLUSTER_MS)
        assert min(found) < CLUSTER_MS, found
