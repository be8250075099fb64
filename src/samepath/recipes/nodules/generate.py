"""Generating nodules from a run: sample, render, judge, draw, write.

In: a run of DeepDensity and what a person asked for. Out: an .npz or a folder of NIfTI files, with
seeds and provenance, a judgement against held-out real nodules, and two figures. Guaranteed: all of
it is written or none; what is there is never overwritten.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from samepath.data.formats.images import simpleitk, write_nifti
from samepath.engine.checks.hardware import versions
from samepath.engine.state.reopen import ReopenedRun, reopen
from samepath.engine.state.weights import Epoch
from samepath.errors import UserError
from samepath.files import folder_aside
from samepath.recipes.nodules.generation import Generated, Generator
from samepath.recipes.nodules.judgement import Judgement, judge, table
from samepath.recipes.nodules.measures import MEASURES, measure
from samepath.recipes.nodules.pictures import reconstruct
from samepath.recipes.nodules.recipe import as_images, categories
from samepath.report.nodules import draw_measures, draw_real_and_generated

NIFTI = ".nii.gz"
MAX_SIDE = 512
NUM_DRAWN = 36
MIN_HELD_OUT = 20
"""Held-out nodules of a category without which there is nothing to judge by."""


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """What a person asked for."""

    run: Path
    out: Path
    """name.npz: one file. Anything else: a folder of .nii.gz files."""
    count: int = 100
    category: str | None = None
    """None: all, in the shares of the training nodules."""
    side: int | None = None
    """Voxels along a side; the training volumes' when not given."""
    seed: int = 0
    epoch: Epoch | None = None
    """Use the weights kept after so many epochs, or the best; the newest when not given."""
    judge: bool = True
    tell: Callable[[str], None] = lambda text: None
    """Told what begins."""


@dataclass(frozen=True, kw_only=True)
class GenerateResult:
    """What was made."""

    out: Path
    files: list[Path]
    """The figures and `judgement.json`."""
    generated: Generated
    judgement: Judgement | None
    why_not_judged: str | None

    @property
    def table(self) -> list[list[str]]:
        return [] if self.judgement is None else table(self.judgement)


def generate(request: GenerateRequest) -> GenerateResult:
    """Generate nodules and judge them."""
    out = _refuse(request)
    run = reopen(request.run)
    model, digest = run.model(request.epoch)
    request.tell("learning the density of the training nodules' codes")
    generator = Generator(model, run.recipe)
    side = request.side or generator.model.side
    request.tell(f"generating {request.count} nodules")
    made = generator.generate(request.count, request.category, side=side, seed=request.seed)
    provenance = _provenance(request, run, digest, made)
    native = made
    if side != generator.model.side:  # judged at the resolution the real ones have
        native = generator.generate(
            request.count, request.category, side=generator.model.side, seed=request.seed
        )
    with folder_aside(out) as aside:
        files, verdict, why_not = _judge(request, run, generator, native.volumes, aside)
        if verdict is not None:
            provenance["judgement"] = verdict.as_dict()
        (aside / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n")
        _write(request, made, provenance, aside)
        placed = _place(aside, out)
    return GenerateResult(
        out=out,
        files=[placed[name] for name in ["provenance.json", *files]],
        generated=made,
        judgement=verdict,
        why_not_judged=why_not,
    )


def _refuse(request: GenerateRequest) -> Path:
    """Everything that can be found wrong before a model is loaded; where to write."""
    if request.count < 1:
        raise UserError(f"--count {request.count}: give at least 1")
    if request.side is not None and not 4 <= request.side <= MAX_SIDE:
        raise UserError(f"--side {request.side}: give 4 to {MAX_SIDE} voxels")
    out = request.out
    if out.name.endswith(NIFTI):  # what to put into the folder, not its name
        out = out.with_name(out.name.removesuffix(NIFTI))
    if out.suffix != ".npz":
        simpleitk()  # says what to install where it is missing
    for path in [out, *(_beside(out, name) for name in _BESIDE if out.suffix == ".npz")]:
        if path.exists():
            raise UserError(f"--out {request.out}: {path} exists; give another name")
    return out


_BESIDE = ("provenance.json", "nodules.png", "measures.png")


def _beside(out: Path, name: str) -> Path:
    """Where a file goes that belongs to new.npz: new.provenance.json."""
    return out.with_name(f"{out.stem}.{name}")


def _place(aside: Path, out: Path) -> dict[str, Path]:
    """Move what was written to where it belongs; each file's new path."""
    names = [path.name for path in aside.iterdir()]
    if out.suffix != ".npz":
        aside.rename(out)
        return {name: out / name for name in names}
    placed = {name: out if name == "nodules.npz" else _beside(out, name) for name in names}
    for name, path in sorted(placed.items(), key=lambda item: item[1] == out):  # the data last
        (aside / name).rename(path)
    return placed


def _provenance(
    request: GenerateRequest, run: ReopenedRun, digest: str, made: Generated
) -> dict[str, Any]:
    return {
        "made_by": "samepath generate",
        "run": str(request.run.resolve()),
        "epoch": request.epoch,
        "weights_digest": digest,
        "recipe": run.config["recipe"],
        "data": run.config.get("data"),
        "count": request.count,
        "category": request.category or "all",
        "seed": request.seed,
        "side": made.volumes.shape[1],
        "density": made.density,
        "versions": versions(),
    }


def _judge(
    request: GenerateRequest,
    run: ReopenedRun,
    generator: Generator,
    volumes: NDArray[np.float32],
    folder: Path,
) -> tuple[list[str], Judgement | None, str | None]:
    """Figures' names, the judgement, or why there is none."""
    train, valid = run.recipe.train, run.recipe.valid
    assert isinstance(train, Tensor)
    if not isinstance(valid, Tensor):
        return [], None, "the recipe has no validation volumes to compare with"
    kinds = categories(run.recipe.valid_facts)
    if request.category is not None and kinds is not None:
        valid = valid[kinds == request.category]
    if len(valid) < MIN_HELD_OUT:
        what = request.category or "validation"
        return [], None, f"{len(valid)} held-out {what} nodules are too few to judge by"
    held_out = as_images(valid).squeeze(1).numpy()
    title = f"Real and generated nodules ({request.category or 'all categories'})"
    spread = np.linspace(0, len(held_out) - 1, min(NUM_DRAWN, len(held_out))).astype(np.int64)
    draw_real_and_generated(held_out[spread], volumes, folder / "nodules.png", title=title)
    if not request.judge:
        return ["nodules.png"], None, "not asked for"
    if len(volumes) < MIN_HELD_OUT:
        return ["nodules.png"], None, f"{len(volumes)} generated nodules are too few to judge"
    request.tell("judging them against held-out real nodules")
    draw_measures(
        _measures(volumes),
        _measures(held_out),
        folder / "measures.png",
        labels=("generated", "real, held out"),
    )
    training = as_images(train).squeeze(1).numpy()
    is_alike = np.isin(generator.category, request.category or generator.category)
    reconstructed = reconstruct(generator.model, valid).clip(0.0, 1.0)
    verdict = judge(volumes, held_out, training, reconstructed, alike=training[is_alike])
    return ["nodules.png", "measures.png"], verdict, None


def _measures(volumes: NDArray[np.float32]) -> dict[str, NDArray[np.float64]]:
    return dict(zip(MEASURES, measure(volumes).T.astype(np.float64), strict=True))


def _write(
    request: GenerateRequest, made: Generated, provenance: dict[str, Any], folder: Path
) -> None:
    """The nodules themselves, as one .npz or as NIfTI files with a table of what they are."""
    facts: dict[str, NDArray[Any]] = {"category": made.category, "key": made.keys}
    if made.side_mm is not None:
        facts["side_mm"] = made.side_mm
    if request.out.suffix == ".npz":
        arrays: dict[str, Any] = {"volumes": made.volumes, **facts, **made.mixture}
        arrays["provenance"] = np.array(json.dumps(provenance))
        np.savez_compressed(folder / "nodules.npz", **arrays)
        return
    digits = len(str(len(made.volumes) - 1))
    names = [f"nodule-{number:0{digits}d}{NIFTI}" for number in range(len(made.volumes))]
    sides = np.ones(len(names)) if made.side_mm is None else made.side_mm / made.volumes.shape[1]
    for name, volume, spacing in zip(names, made.volumes, sides, strict=True):
        write_nifti(folder / name, volume, float(spacing))
    with (folder / "facts.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["file", *facts])
        rows.writerows(zip(names, *(values.tolist() for values in facts.values()), strict=True))
