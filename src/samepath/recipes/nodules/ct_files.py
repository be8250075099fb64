"""`samepath generate` of a run of `nodules-ct`: what was asked for, checked; one .npz; a judgement.

In: a run's folder and a request. Out: name.npz with `volume`, `mask`, `category`, the facts, each
nodule's key, host, parents and distance to the nearest training nodule, and `provenance`, a JSON
text; beside it a picture. Guaranteed: the same bytes for the same run, request and seed; nothing is
written unless all is; existing files are never overwritten.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from samepath.console import count
from samepath.data.content import fingerprint_path
from samepath.data.formats.listing import check_side_mm
from samepath.engine.checks.fingerprints import versions
from samepath.engine.state.checkpoint import Epoch
from samepath.engine.state.reopen import reopen
from samepath.errors import UserError
from samepath.files import content_hash, finite, folder_aside
from samepath.recipe import Recipe
from samepath.recipes.nodules.ct import Floats, as_intensities, read_cubes
from samepath.recipes.nodules.ct_generation import (
    FEW_PARENTS,
    CubeGenerator,
    GeneratedCubes,
    Range,
    Surroundings,
)
from samepath.recipes.nodules.judgement import QUANTILES, measure, two_sample

NUM_DRAWN = 36
MIN_JUDGED = 20


@dataclass(frozen=True, kw_only=True)
class CubesRequest:
    """What the user asked for."""

    run: Path
    out: Path
    count: int = 100
    category: str | None = None
    """None: all classes, in their shares of the training nodules."""
    wish: Mapping[str, Range] = field(default_factory=dict)
    """Facts by name (`diameter`, `intensity`, others of the data): lowest and highest."""
    into: Path | None = None
    """Cubes to put nodules into; the run's training cubes when not given."""
    seed: int = 0
    epoch: Epoch | None = None
    judge: bool = True
    tell: Callable[[str], None] = lambda text: None
    """Called with a line when a stage begins."""


@dataclass(frozen=True, kw_only=True)
class CubesResult:
    """What was written, and how it was judged."""

    out: Path
    picture: Path
    made: GeneratedCubes
    nearest: dict[str, float]
    """Median distance to the nearest training nodule: of new nodules, and of real ones held out;
    and the share of new ones (`copies`) that are closer than all but 1% of the real ones. NaN where
    too few like them were held out."""
    num_held_out: int
    """Held-out nodules of the class and in the ranges that were asked for: all it is judged by."""
    told: dict[str, Any] | None
    """The classifier test against held-out cubes; None where it was not asked for, or there are too
    few cubes."""
    notes: tuple[str, ...]
    """What the user must know: few parents, and why there is no test."""

    @property
    def table(self) -> list[list[str]]:
        near, known = self.nearest, self.num_held_out >= MIN_JUDGED
        rows = [
            ["", "generated", f"{self.num_held_out} held out", "reading"],
            [
                "nearest training nodule",
                f"{near['generated']:.3f}",
                f"{near['held_out']:.3f}" if known else "",
                "median distance of the nodules alone; small: copies",
            ],
            [
                "copies of training",
                f"{near['copies']:.1%}" if known else "",
                f"{QUANTILES[0]:.1%}" if known else "",
                "closer than all but 1% of real ones are",
            ],
        ]
        if self.told is not None:
            shown = f"{self.told['accuracy']:.2f} ± {self.told['standard_error']:.2f}"
            reading = f"classifier accuracy {shown} (0.5 = indistinguishable)"
            rows.append(["told from held-out cubes", "", "", reading])
        return rows


def makes_cubes(recipe: Recipe) -> bool:
    """Whether a recipe's data are frames, cubes and masks, as those of `nodules_ct`."""
    return isinstance(recipe.train, tuple) and len(recipe.train) == 3


def write_cubes(request: CubesRequest) -> CubesResult:
    """Make cubes, write and judge them."""
    picture = _refuse(request)
    run = reopen(request.run)
    into = None if request.into is None else _read_hosts(request.into)
    model, digest = run.model(request.epoch)
    generator = CubeGenerator(model, run.recipe)
    request.tell(f"making {request.count} nodules")
    made = generator.generate(
        request.count, category=request.category, wish=request.wish, into=into, seed=request.seed
    )
    held_out = run.recipe.valid
    assert isinstance(held_out, tuple)
    alike = generator.like(run.recipe.valid_facts, request.category, request.wish)
    seen, cubes = (part.numpy()[alike] for part in held_out[:2])
    away, nearest = generator.nearness(made.frames), dict.fromkeys(("held_out", "copies"), np.nan)
    nearest["generated"] = float(np.median(away))
    if len(alike) >= MIN_JUDGED:
        of_real = generator.nearness(seen)
        nearest["held_out"] = float(np.median(of_real))
        nearest["copies"] = float(np.mean(away < np.quantile(of_real, QUANTILES[0])))
    real, told, notes = as_intensities(cubes), None, list(_few_parents(made))
    if len(real) < MIN_JUDGED:
        notes.append(
            f"{count(len(real), 'held-out nodule')} of this class and in these ranges: too few to "
            f"judge by (at least {MIN_JUDGED})"
        )
    elif request.judge and request.count < MIN_JUDGED:
        notes.append(
            f"{count(request.count, 'new nodule')}: too few to judge (at least {MIN_JUDGED})"
        )
    elif request.judge:
        request.tell("judging them against held-out cubes")
        told = asdict(two_sample(_looks(made.volumes), _looks(real)))
    provenance = {
        "made_by": "samepath generate",
        "run": str(request.run.resolve()),
        "epoch": request.epoch,
        "weights_digest": digest,
        "recipe": run.config["recipe"],
        "data": run.config.get("data"),
        "count": request.count,
        "category": request.category or "all",
        "facts": {name: list(of) for name, of in request.wish.items()},
        "into": None if request.into is None else str(request.into.resolve()),
        "into_sha256": request.into and _hash_of(request.into),
        "seed": request.seed,
        "parents": made.num_parents,
        "held_out": len(real),
        "nearest": finite(nearest),
        "told": told,
        "versions": versions(),
    }
    with folder_aside(request.out) as aside:
        _draw(real, made.volumes, aside / "picture.png", request.category)
        arrays: dict[str, Any] = {
            "volume": made.volumes,
            "mask": made.masks,
            "category": made.category,
            **made.facts,
            "key": made.keys,
            "host": made.hosts,
            "parent": made.parents[:, 0],
            "second_parent": made.parents[:, 1],
            "nearest_training": away,
            "provenance": np.array(json.dumps(provenance)),
        }
        np.savez_compressed(aside / "cubes.npz", **arrays)
        (aside / "picture.png").rename(picture)
        (aside / "cubes.npz").rename(request.out)
    return CubesResult(
        out=request.out,
        picture=picture,
        made=made,
        nearest=nearest,
        num_held_out=len(real),
        told=told,
        notes=tuple(notes),
    )


def _hash_of(path: Path) -> str:
    return content_hash(path) if path.is_file() else fingerprint_path(path)


def _few_parents(made: GeneratedCubes) -> Iterator[str]:
    """A warning where all new nodules come from hardly any."""
    if made.num_parents < FEW_PARENTS:
        yield (
            f"only {count(made.num_parents, 'training nodule')} of this class and in these ranges: "
            f"the {len(made.volumes)} new ones are variants of so few"
        )


def _looks(volumes: Floats) -> Floats:
    """What the classifier sees of cubes: measures, then voxels."""
    return np.hstack([measure(volumes), volumes.reshape(len(volumes), -1)])


def _draw(real: Floats, made: Floats, out: Path, category: str | None) -> None:
    from samepath.report.nodules import draw_real_and_generated

    rows = np.linspace(0, len(real) - 1, min(NUM_DRAWN, len(real))).astype(np.int64)
    title = f"Real and generated cubes ({category or 'all classes'})"
    draw_real_and_generated(real[rows], made, out, title=title)


def _refuse(request: CubesRequest) -> Path:
    """Raise for what can be found wrong before a model is loaded; return the picture's path."""
    if request.count < 1:
        raise UserError(f"--count {request.count}: give at least 1")
    if request.out.suffix != ".npz":
        raise UserError(
            f"--out {request.out}: cubes and masks go into one .npz file; give a name that ends in "
            ".npz"
        )
    picture = request.out.with_name(f"{request.out.stem}.cubes.png")
    for path in (request.out, picture):
        if path.exists():
            raise UserError(f"--out {request.out}: {path} exists; give another name")
    return picture


def _read_hosts(path: Path) -> Surroundings:
    """Cubes that nodules are put into, with the masks of nodules that are in them and the cubes'
    sides in millimetres, where the file has such."""
    if not path.exists():
        raise UserError(f"--into {path}: no such file or folder; give cubes.npz, say")
    volumes, masks, known = read_cubes(path)
    sides = known.facts.get("side_mm")
    side_mm = None if sides is None else check_side_mm(sides, path)
    return Surroundings(as_intensities(volumes), masks, side_mm)
