"""Strategies with real processes: 1, 2, 3, 5 workers over shared memory, 2, 3 over the network.

k is given, so the path is one path; how many workers there really are must not show. The recipe has
batch norm, dropout, augmentation, a schedule and a short last batch. One launch per worker count
runs every strategy; two workers over the network resume all of them. Nothing looks at a run before
its end: gradients that are under way stay so.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from launches import Everything, Found, launch_at

from samepath.engine.launch.launch import launch
from samepath.engine.run.loop import Run
from samepath.engine.run.options import Options, Overrides, resolve
from samepath.engine.run.session import Link, start
from samepath.engine.run.trainer import Trainer
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.step.settings import StepResult
from samepath.recipe import find_recipe

RECIPE = str(Path(__file__).with_name("tiny_recipe.py"))
SEED = 7
EPOCHS = 3
STRATEGIES = {
    "weak": 3,
    "warmup:epochs=2": 4,
    "stale": 2,
    "stale:lag=3": 2,
    "asynchronous": 3,
    "growth:milestones=1+2:factor=2": 3,
    "curvature:patience=2": 4,
    "curvature-adversarial:patience=2:epsilon=0.05:until=2": 3,
    "noise:window=2": 4,
    "lars:epochs=2:rate=2": 3,
    "lamb:epochs=2": 2,
}
SETTINGS: list[tuple[int, Link]] = [
    (1, "auto"), (2, "auto"), (3, "auto"), (5, "auto"), (3, "network"),
]  # fmt: skip


def recorded(run: Run) -> list[str]:
    """Train; every update and every evaluation, to the bit."""
    lines = []

    def after_step(trainer: Trainer, results: Sequence[StepResult]) -> None:
        for found in results:
            numbers = (found.loss, found.gradient_norm, found.learning_rate, *found.grain_losses)
            hexes = [number.hex() for number in numbers]
            lines.append(f"{trainer.step_number} {found.num_examples} {hexes} {found.noise}")
        progress = run.progress
        if trainer.step_number == progress.epoch_began:
            lines.append(f"{progress.epoch} {progress.train_loss} {progress.metrics}")

    run.after_step = after_step
    lines.append(run.go().digest)
    return lines


def options_of(strategy: str, **asked: Any) -> Options:
    given = {"epochs": EPOCHS, "seed": SEED} | asked
    return resolve(
        find_recipe(RECIPE),
        Overrides(strategy=strategy, virtual_workers=STRATEGIES[strategy], **given),
    )


def run_all(link: Link, folder: str) -> None:
    """The body of every worker."""
    recipe = find_recipe(RECIPE)
    with start(seed=SEED, link=link) as session:
        found: Found = {}
        for strategy in STRATEGIES:
            run = Run(recipe, options_of(strategy), session, None)
            *lines, digest = recorded(run)
            found[strategy] = {
                "digest": digest,
                "lines": lines,
                "history": [f"{epoch}" for epoch in run.progress.history],
                "kind": type(session.collective).__name__,
            }
        Path(folder, f"worker-{session.worker}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Everything:
    return launch_at(SETTINGS, run_all, tmp_path_factory)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_is_one_path_at_every_worker_count(strategy: str, found: Everything) -> None:
    (alone,) = found[1, "auto"]
    for (num_workers, link), workers in found.items():
        for worker in workers:
            where = f"{num_workers} workers, {link}"
            assert worker[strategy]["lines"] == alone[strategy]["lines"], where
            assert worker[strategy]["history"] == alone[strategy]["history"], where
            assert worker[strategy]["digest"] == alone[strategy]["digest"], where


def test_the_paths_are_what_they_should_be(found: Everything) -> None:
    """Different from each other; with batches that grew where they should, and both links used."""
    (alone,) = found[1, "auto"]
    assert len({alone[strategy]["digest"] for strategy in STRATEGIES}) == len(STRATEGIES)

    def sizes(strategy: str) -> list[int]:
        updates = [line for line in alone[strategy]["lines"] if "[" in line]
        return [int(line.split()[1]) for line in updates]

    assert sizes("weak") == [30, 14] * EPOCHS
    assert sizes("growth:milestones=1+2:factor=2") == [10, 10, 10, 10, 4, 20, 20, 4, 30, 14]
    assert sizes("stale:lag=3") == ([10, 10, 10, 10, 4] * EPOCHS)[:-3]
    for strategy in ("curvature:patience=2", "noise:window=2"):
        assert max(sizes(strategy)) > 10, f"{strategy} grew"
        assert len(alone[strategy]["history"]) == EPOCHS
    for (num_workers, link), workers in found.items():
        kind = "SharedMemory" if link == "auto" else "Network"
        assert workers[0]["weak"]["kind"] == ("Alone" if num_workers == 1 else kind)


# ---- stopped and resumed at other worker counts


def stop_all(link: Link, folder: str, stops: dict[str, int]) -> None:
    """The first part of every run: until a step inside an epoch."""
    recipe = find_recipe(RECIPE)
    with start(seed=SEED, link=link) as session:
        for number, (strategy, stop) in enumerate(stops.items()):
            options = options_of(strategy, steps=stop)
            out = RunFolder(Path(folder, str(number)))
            if session.is_first:
                out.write(asdict(options), [], None)
            assert Run(recipe, options, session, out).go().steps == stop


def resume_all(link: Link, folder: str, stops: dict[str, int]) -> None:
    """The rest of every run."""
    recipe = find_recipe(RECIPE)
    with start(seed=SEED, link=link) as session:
        for number, strategy in enumerate(stops):
            run = Run(recipe, options_of(strategy), session, RunFolder(Path(folder, str(number))))
            assert run.resume()
            run.go()


@pytest.mark.parametrize(
    ("first", "then"), [((3, "auto"), (2, "network")), ((1, "auto"), (5, "auto"))]
)
def test_stopped_and_resumed_at_another_worker_count(
    first: tuple[int, Link],
    then: tuple[int, Link],
    found: Everything,
    tmp_path: Path,
) -> None:
    (alone,) = found[1, "auto"]
    draw = random.Random(first[0])
    stops = {strategy: draw.randint(3, 5) for strategy in STRATEGIES}
    launch(stop_all, (first[1], str(tmp_path), stops), first[0])
    middles = []
    for number, strategy in enumerate(stops):
        (checkpoint,) = (tmp_path / str(number) / "checkpoints").iterdir()
        content = json.loads((checkpoint / "checkpoint.json").read_text().splitlines()[1])
        middles.append(stops[strategy] > content["progress"]["epoch_began"])
        waiting = content["structure"].get("underway", {"$list": []})["$list"]
        lag = {"stale": 1, "stale:lag=3": 3, "asynchronous": 2}.get(strategy, 0)
        assert len(waiting) == lag, f"{strategy}: gradients under way are in the checkpoint"
    assert sum(middles) >= 6, "most were stopped inside an epoch"
    launch(resume_all, (then[1], str(tmp_path), stops), then[0])
    for number, strategy in enumerate(stops):
        content = RunFolder(tmp_path / str(number)).read()
        assert content["result"]["digest"] == alone[strategy]["digest"], strategy


# ---- the way people do it


def trained(out: Path, *arguments: str) -> dict[str, Any]:
    samepath = str(Path(sys.executable).with_name("samepath"))
    command = [samepath, "train", "digits", "--out", str(out), "--json", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


def test_digits_stale_stopped_and_resumed(tmp_path: Path) -> None:
    """Five small batches of digits: alone, and on two workers and then three."""
    strategy = ("--strategy", "stale:lag=2", "--as-workers", "4", "--batch-size", "96")
    straight = trained(tmp_path / "a", *strategy, "-n", "1", "--steps", "5")
    stopped = trained(tmp_path / "b", *strategy, "-n", "2", "--steps", "3")
    assert stopped["digest"] != straight["digest"]
    resumed = trained(tmp_path / "b", "-n", "3", "--resume", "--steps", "5")
    assert (resumed["steps"], resumed["num_workers"]) == (5, 3)
    assert resumed["digest"] == straight["digest"]
    config = json.loads((tmp_path / "b" / "run.json").read_text())["config"]
    assert (config["strategy"], config["virtual_workers"]) == ("stale:lag=2", 4)
