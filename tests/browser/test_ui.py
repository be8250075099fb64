"""`samepath ui` as a person uses it, in a real browser."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from explorer_pages import OpenPage, until
from playwright.sync_api import Browser, Page
from ui_folders import make_finding, make_run, metrics_lines, serving_ui

from samepath.files import lock_folder

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
EVIL = f"""<!doctype html><style>h1 {{ color: red }}</style><h1>An advice</h1>
<h2>Verdict</h2><p>Two workers.</p><h2>Numbers</h2>
<script>document.title = "ran"; parent.document.title = "ran"; window.ran = 1</script>
<img src="x" onerror="window.ran = 1"><svg onload="window.ran = 1"></svg>
<iframe srcdoc="<script>top.ran = 1</script>"></iframe>
<table><tr><th>{"wide " * 60}</th></tr><tr><td>7</td></tr></table>
<img alt="a figure" src="data:image/png;base64,{PNG}">"""
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What tests only look at."""
    root = tmp_path_factory.mktemp("ui")
    make_run(root / "runs" / "one", 60)
    make_run(root / "runs" / "two", 60, seconds=0.006)
    make_run(
        root / "runs" / "other", 3000, digest="e" * 64, recipe="nodules", seed=7, first_loss=3.0
    )
    make_run(root / "runs" / "killed", 20, status="running")
    make_run(root / "runs" / "broken")
    (root / "runs" / "broken" / "run.json").write_text("{")
    study = root / "studies" / "race"
    make_run(study / "runs" / "strong-k1", 30)
    about = {"kind": "race", "recipe": "digits", "verdict": "Strong wins.", "runs": [{}],
             "strategies": ["strong"], "command": ["samepath", "study", "digits"]}  # fmt: skip
    (study / "study.json").write_text(json.dumps(about))
    make_finding(root / "insight" / "digits-advice-1", "advice", EVIL, verdict="Two workers.")
    (root / "curated").mkdir()
    curation = {"recipe": "digits", "num_kept": 9, "num_examples": 10}
    (root / "curated" / "curation.json").write_text(json.dumps(curation))
    return root


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with serving_ui(folder) as address:
        yield address


@pytest.fixture
def page(address: str, open_page: OpenPage) -> Page:
    return open_page(address)


def go(page: Page, name: str) -> None:
    """Click on an item of the overview."""
    page.locator(f".groups a:text-is('{name}')").click()
    page.wait_for_selector("body.ready .page-title strong")


def shown(page: Page) -> list[str]:
    names: list[str] = page.locator(".groups section:not([hidden]) [data-id] a").all_inner_texts()
    return sorted(names)


def picture(page: Page, name: str) -> str:
    """What a chart looks like."""
    found: str = page.evaluate(
        "(name) => samepath.page.charts.get(name).uplot.ctx.canvas.toDataURL()", name
    )
    return found


def num_pixels(page: Page, name: str, colour: list[int]) -> int:
    """How many pixels of a chart have a colour."""
    found: int = page.evaluate(
        """([name, colour]) => {
          const { ctx } = samepath.page.charts.get(name).uplot;
          const { data } = ctx.getImageData(0, 0, ctx.canvas.width, ctx.canvas.height);
          let found = 0;
          for (let i = 0; i < data.length; i += 4) {
            found += data[i + 3] === 255 && colour.every((part, k) => data[i + k] === part);
          }
          return found;
        }""",
        [name, colour],
    )
    return found


def is_narrow(page: Page) -> bool:
    """The page does not scroll sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def test_the_overview_shows_everything(page: Page) -> None:
    runs = ["runs/broken", "runs/killed", "runs/one", "runs/other", "runs/two"]
    others = ["curated", "insight/digits-advice-1", "studies/race"]
    assert shown(page) == sorted(runs + others)
    assert "token" not in page.url
    row = page.locator("[data-id]", has=page.locator("a:text-is('runs/one')"))
    assert "finished" in row.inner_text()
    for word in ("0.5", "0.6", "42", "60", "d4bc0797", "0.9"):
        assert word in row.inner_text()
    head = page.locator("#group-runs thead").inner_text().split("\t")
    assert [word.strip() for word in head if word.strip()] == [
        "run", "workers", "batch", "seed", "epochs", "steps", "training loss", "validation loss",
        "accuracy", "noise scale", "time", "digest",
    ]  # fmt: skip
    edges = (
        row.locator("td.number")
        .nth(0)
        .evaluate(
            """cell => [cell, document.querySelector("th.number button")]
           .map((e) => { const range = document.createRange(); range.selectNodeContents(e);
                         return range.getBoundingClientRect().right; })"""
        )
    )
    assert abs(edges[0] - edges[1]) < 2, "a column's numbers end where its heading does"
    killed = page.locator("[data-id]", has=page.locator("a:text-is('runs/killed')"))
    assert "stopped (resumable)" in killed.inner_text()
    broken = page.locator("[data-id]", has=page.locator("a:text-is('runs/broken')"))
    assert "run.json cannot be read" in broken.inner_text()
    assert "9 of 10 kept" in page.locator("#group-curations").inner_text()
    assert "Two workers." in page.locator("#group-findings").inner_text()
    assert "Strong wins." in page.locator("#group-studies").inner_text()
    page.check("text=runs of studies too")
    assert "studies/race/runs/strong-k1" in shown(page)
    assert is_narrow(page)


def test_filter_and_kinds(page: Page) -> None:
    page.keyboard.press("/")
    page.keyboard.type("nodules fin")
    assert shown(page) == ["runs/other"]
    page.fill("#filter", "strong-k1")
    assert shown(page) == ["studies/race/runs/strong-k1"], "a filter finds runs of studies too"
    page.fill("#filter", "nothing like it")
    assert "Nothing matches" in page.locator(".empty").inner_text()
    page.fill("#filter", "")
    page.check("input[value=findings]", force=True)
    assert shown(page) == ["insight/digits-advice-1"]


def names_in_order(page: Page) -> list[str]:
    names: list[str] = page.locator("#group-runs tbody a").all_inner_texts()
    return [name.removeprefix("runs/") for name in names]


def test_runs_are_sorted_compared_with_numbers_and_saved(page: Page, tmp_path: Path) -> None:
    newest = names_in_order(page)
    page.click("[data-sort=steps]")
    assert names_in_order(page)[-1] == "broken", "what is not known comes last"
    assert names_in_order(page)[0] == "killed"
    page.click("[data-sort=steps]")
    assert names_in_order(page)[0] == "other"
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("steps")
    with page.expect_download() as download:
        page.click("button.csv")
    download.value.save_as(tmp_path / "runs.csv")
    with (tmp_path / "runs.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"].removeprefix("runs/") for row in rows] == names_in_order(page)
    assert (rows[0]["steps"], rows[0]["seed"], rows[0]["accuracy"]) == ("3000", "7", "0.9")
    page.click("[data-sort=steps]")
    assert names_in_order(page) == newest
    for words, found in {
        "steps>=60": {"one", "two", "other"},
        "steps=60 runs/t": {"two"},
        "accuracy>0.8 seed=7": {"other"},
        "status:stop": {"killed"},
        "steps<twelve": set(),
    }.items():
        page.fill("#filter", words)
        names = page.locator("#group-runs:not([hidden]) tbody a").all_inner_texts()
        assert {name.removeprefix("runs/") for name in names} == found


def test_a_csv_file_is_one_for_spreadsheets(page: Page) -> None:
    run = {"name": "=1+2", "note": 'a "b",\nc', "steps": -3, "metrics": {"dice": 0.5}}
    text = page.evaluate("""async (run) => (await import("/static/ui_table.js")).csv([run])""", run)
    (row,) = csv.DictReader(text.splitlines(keepends=True))
    assert (row["name"], row["note"], row["steps"], row["dice"]) == (
        "'=1+2",
        'a "b",\nc',
        "-3",
        "0.5",
    )


def test_a_note_is_written_and_found(tmp_path: Path, open_page: OpenPage) -> None:
    run = make_run(tmp_path / "a", 12)
    make_run(tmp_path / "b", 12)
    with serving_ui(tmp_path) as address:
        page = open_page(address)
        go(page, "a")
        page.fill("[aria-label=Note]", "best so far")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Note saved.")
        assert (run / "note.txt").read_text() == "best so far\n"
        page.click("text=Overview")
        page.wait_for_selector(".note-line:text-is('best so far')")
        page.fill("#filter", "so far")
        assert shown(page) == ["a"]


def test_a_run_has_its_curves(page: Page) -> None:
    go(page, "runs/one")
    names = page.locator(".charts:visible .chart").evaluate_all(
        "all => all.map((c) => c.dataset.name)"
    )
    assert names == ["loss", "valid_accuracy", "noise_scale", "learning_rate", "gradient_norm"]
    assert page.locator("[data-name=loss] .plot").get_attribute("data-points") == "60 6"
    assert page.evaluate("samepath.page.charts.get('noise_scale').uplot.bands.length") == 1
    linear = picture(page, "loss")
    page.check("input[value=log]", force=True)
    assert picture(page, "loss") != linear
    page.check("input[value=time]", force=True)
    ticks = page.evaluate("samepath.page.charts.get('loss').uplot.axes[0]._values")
    assert all(words.endswith(" s") for words in ticks)
    assert "samepath train digits" in page.locator(".below").inner_text()
    assert "d4bc0797" * 8 in page.locator(".below").inner_text()
    assert "batch size\t32" in page.locator(".below table").inner_text()
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(244, 246, 248)"
    light, dark = [0, 114, 178], [75, 163, 227]
    assert num_pixels(page, "loss", light) > 100
    assert num_pixels(page, "loss", dark) == 0
    page.click("#theme")
    assert page.evaluate(ground) == "rgb(14, 18, 23)"
    assert num_pixels(page, "loss", light) == 0
    assert num_pixels(page, "loss", dark) > 100
    assert page.locator(".readout:visible").count() == 0
    page.focus("[data-name=learning_rate] .plot")
    page.keyboard.press("ArrowRight")
    assert "0.1" in page.locator("[data-name=learning_rate] .readout").inner_text()
    page.hover("[data-name=loss] .plot", position={"x": 300, "y": 100})
    assert "training" in page.locator("[data-name=loss] .readout").inner_text()
    assert page.locator("[data-name=loss] .plot").get_attribute("aria-label")


def test_a_stretch_of_a_long_run_is_looked_at_closer(page: Page) -> None:
    go(page, "runs/other")
    plot = page.locator("[data-name=loss] .plot")
    assert str(plot.get_attribute("data-points")).startswith("400 ")
    box = plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 300, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 360, box["y"] + 120, steps=4)
    page.mouse.up()
    page.wait_for_selector("button:has-text('All steps')", state="visible")
    until(page, "samepath.page.runs[0].curves.train_loss.step.length < 400")
    low, high = page.evaluate("samepath.page.range")
    assert 0 < low < high < 1500
    assert page.evaluate("samepath.page.runs[0].curves.train_loss.step[0]") == low
    page.click("button:has-text('All steps')")
    until(page, "samepath.page.runs[0].curves.train_loss.step.length === 400")


def test_runs_are_compared_by_ticking_them(page: Page) -> None:
    for name in ("runs/one", "runs/two"):
        page.check(f"input[aria-label='Compare {name}']")
    page.click(".compare-bar .primary")
    page.wait_for_selector(".said p")
    said = page.locator(".said").inner_text()
    assert said.startswith("Same path: runs/")
    assert "ended with the same bits (digest d4bc0797d4bc)" in said
    assert page.locator(".legend li").count() == 2
    assert num_pixels(page, "loss", [0, 114, 178]) > 20, "wide, below the other"
    assert num_pixels(page, "loss", [213, 94, 0]) > 20
    page.click("text=Compare with other runs")
    page.locator(".ticks li", has_text="runs/other").locator("input").check()
    page.wait_for_selector(".legend li >> nth=2")
    assert "is on another path than" in page.locator(".said").inner_text()
    assert page.locator("tr.differs", has_text="seed").inner_text().split() == [
        "seed",
        "0",
        "0",
        "7",
    ]
    page.click("[aria-label='Remove runs/other']")
    page.wait_for_selector(".legend li >> nth=2", state="detached")
    page.go_back()
    page.wait_for_selector(".legend li >> nth=2")


def test_a_report_is_shown_and_nothing_in_it_runs(page: Page, browser: Browser) -> None:
    go(page, "insight/digits-advice-1")
    page.wait_for_selector(".report table")
    assert page.locator(".big-verdict").inner_text() == "Two workers."
    assert page.locator(".report-head strong").inner_text() == "An advice"
    assert page.locator(".report h2").all_inner_texts() == ["Numbers"]
    until(page, "document.querySelector('.report img').naturalWidth === 1")
    assert page.locator(".report img").count() == 1
    assert page.evaluate("window.ran") is None
    assert "ran" not in page.title()
    assert page.locator(".report script, .report svg, .report iframe").count() == 0
    assert is_narrow(page), "a wide table scrolls by itself"
    # opened by itself, in a window where errors are expected: the browser reports what it refused
    link = page.locator(".report-head a").get_attribute("href")
    state = page.context.storage_state()
    context = browser.new_context(storage_state=state)
    own = context.new_page()
    own.goto(page.url.partition("#")[0].rstrip("/") + str(link))
    assert own.locator("h1").inner_text() == "An advice"
    assert own.locator("h1").evaluate("h => getComputedStyle(h).color") == "rgb(255, 0, 0)"
    assert own.evaluate("[document.title, window.ran, self.origin]") == ["", None, "null"]
    assert own.locator("img[alt='a figure']").evaluate("i => i.naturalWidth") == 1
    context.close()


def test_studies_show_their_runs_and_curations_their_command(page: Page) -> None:
    go(page, "studies/race")
    assert "Strong wins." in page.locator(".big-verdict").inner_text()
    page.click("text=strong-k1")
    page.wait_for_selector("[data-name=loss] canvas")
    page.click("text=Overview")
    go(page, "curated")
    assert "samepath explore" in page.locator(".command").first.inner_text()


def test_a_run_is_followed_while_it_trains(tmp_path: Path, open_page: OpenPage) -> None:
    with serving_ui(tmp_path) as address:
        page = open_page(address)
        assert "samepath train digits" in page.locator(".empty").inner_text()
        run = make_run(tmp_path / "runs" / "live", 5, status="running")
        held = lock_folder(run, "held")
        page.wait_for_selector("[data-id] .badge.running")
        assert page.locator("#status").inner_text() == "1 running"
        assert page.locator("[data-id] .quiet").inner_text().endswith("on node7")
        page.fill("#filter", "host:node8")
        page.wait_for_selector("text=Nothing matches the filter.")
        page.fill("#filter", "host:node7")
        page.wait_for_selector("[data-id] .badge.running")
        page.fill("#filter", "")
        go(page, "runs/live")
        points = "document.querySelector('[data-name=loss] .plot').dataset.points"
        until(page, f"{points} === '5'")
        page.evaluate("window.same = document.querySelector('[data-name=loss]')")
        with (run / "metrics.jsonl").open("a") as file:
            file.writelines(each + "\n" for each in list(metrics_lines(24))[5:])
        until(page, f"{points} === '24 2'")
        assert page.evaluate("window.same === document.querySelector('[data-name=loss]')")
        assert page.locator("[role=progressbar]").get_attribute("aria-valuenow") == "24"
        facts = page.locator(".numbers-list.large").inner_text().split("\n")
        assert facts[facts.index("run time") + 1] == "0.24 s"
        assert facts[facts.index("time left") + 1] == "~0.76 s"
        assert facts[facts.index("host") + 1] == "node7"
        record = json.loads((run / "run.json").read_text())
        record |= {
            "status": "finished",
            "result": {"steps": 24, "digest": "ab" * 32, "metrics": {}},
        }
        (run / "aside").write_text(json.dumps(record))
        (run / "aside").replace(run / "run.json")
        os.close(held)
        page.wait_for_selector(".page-title .badge.finished")
        until(page, "document.getElementById('status').textContent === ''")
        assert "abab" in page.locator(".below").inner_text()
    page.wait_for_selector("text=The server does not answer")


def test_it_fits_a_phone(address: str, open_page: OpenPage) -> None:
    page = open_page(address, **PHONE, color_scheme="dark", has_touch=True, is_mobile=True)
    assert is_narrow(page)
    small = page.evaluate(
        """[...document.querySelectorAll('button:not([hidden]), .tick, .segments label')]
           .filter((e) => e.offsetParent && e.getBoundingClientRect().height < 36)
           .map((e) => e.outerHTML)"""
    )
    assert small == [], "all can be tapped"
    for name in ["runs/one", "insight/digits-advice-1", "studies/race", "curated"]:
        page.locator(f".groups a:text-is('{name}')").tap()
        page.wait_for_selector("[data-name=loss] canvas" if name == "runs/one" else ".command")
        assert is_narrow(page), name
        page.locator(".crumbs a").tap()
        page.wait_for_selector("body.ready .groups")
    for box in page.locator(".tick input:enabled").all():
        box.check()
    page.locator(".compare-bar .primary").tap()
    page.wait_for_selector("[data-name=loss] canvas")
    assert is_narrow(page)


def test_names_are_text(tmp_path: Path, open_page: OpenPage) -> None:
    evil = "<img src=x onerror=1>"
    make_run(tmp_path / evil, 12, recipe=evil, strategy=evil)
    make_finding(tmp_path / "f", "profile", verdict=evil, engines={evil: {}})
    with serving_ui(tmp_path) as address:
        page = open_page(address)
        assert page.locator(".row a").inner_text() == evil
        assert evil in page.locator(".card").inner_text()
        page.locator(".row a").click()
        page.wait_for_selector("[data-name=loss]")
        assert page.locator("#title").inner_text() == evil
        assert page.locator("img[src=x]").count() == 0


def test_what_is_gone_is_said(address: str, open_page: OpenPage, browser: Browser) -> None:
    page = browser.new_page()  # a 404 is expected, which the browser calls an error
    page.goto(address + "#/run/0123456789ab")
    page.wait_for_selector("text=there is no such run, study or report")
    page.click("text=Back to the overview")
    page.wait_for_selector(".groups [data-id]")
    page.close()
