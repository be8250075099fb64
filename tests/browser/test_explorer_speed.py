"""Quick enough, without a graphics card: loading, panning, clustering again.

Other work on the machine can only make things slower: the best of a few tries counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from curation_folders import make_curation_folder
from explorer_pages import OpenPage, serving
from playwright.sync_api import Page

pytestmark = pytest.mark.alone
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


def test_panning_is_smooth(large: str, open_page: OpenPage) -> None:
    page = open_page(large)
    found = best(lambda: frames_a_second(page), lambda frames: frames > FRAMES_A_SECOND)
    assert max(found) > FRAMES_A_SECOND, found


def test_clustering_again(tmp_path: Path, open_page: OpenPage) -> None:
    """Asked, answered and shown, on a map of 20,000 points."""
    folder = make_curation_folder(tmp_path / "c", 20_000, pictures="none")
    with serving(folder) as address:
        page = open_page(address)

        def cluster() -> float:
            ms: float = page.evaluate(
                """async () => {
                  const { low, high } = samepath.model.about.classes[0];
                  const body = { label: 0, eps: Math.sqrt(low * high), min_samples: 5, use: false };
                  const began = performance.now();
                  const answer = await fetch("/api/cluster", { method: "POST",
                    headers: { "x-samepath": "1" }, body: JSON.stringify(body) });
                  samepath.model.preview(await answer.json());
                  return performance.now() - began;
                }"""
            )
            return ms

        cluster()  # libraries are loaded
        found = best(cluster, lambda ms: ms < CLUSTER_MS)
        assert min(found) < CLUSTER_MS, found
