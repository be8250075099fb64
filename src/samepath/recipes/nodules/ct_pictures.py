"""What a run of `nodules-ct` learned, in pictures.

In: a reopened run. Out: PNGs and the sections that present them: validation nodules beside their
reconstructions, and training nodules beside new ones, all in their surroundings.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from samepath.engine.state.reopen import ReopenedRun
from samepath.recipes.nodules.ct import Floats, as_intensities
from samepath.recipes.nodules.ct_generation import CubeGenerator
from samepath.recipes.nodules.deepdensity import DeepDensity, mean_squared_log_error
from samepath.recipes.nodules.pictures import RANKS
from samepath.recipes.nodules.recipe import Facts
from samepath.report.nodules import draw_reconstructions
from samepath.report.page import Section

NUM_NEW = 6


def draw_ct_run(run: ReopenedRun, folder: Path) -> Sequence[Section]:
    """Draw a run's nodules into a folder; nothing for frames of fewer than three dimensions."""
    recipe = run.recipe
    model, _ = run.model()
    if not isinstance(model, DeepDensity) or model.num_dims != 3:
        return []
    generator = CubeGenerator(model, recipe)
    assert isinstance(recipe.valid, tuple)
    seen, cubes, masks = recipe.valid
    errors = frame_errors(model, seen)
    order = np.argsort(errors, kind="stable")
    rows = order[[round(rank * (len(order) - 1)) for rank in RANKS]]
    volumes = as_intensities(cubes.numpy()[rows])
    again = generator.reconstruct(seen.numpy()[rows], volumes, masks.numpy()[rows])
    facts = recipe.valid_facts
    ranks = ", ".join(f"{rank:.0%}" for rank in RANKS)
    draw_reconstructions(
        volumes,
        again,
        folder / "reconstructions.png",
        names=[_name(facts, int(row)) for row in rows],
        errors=errors[rows].tolist(),
    )
    made = generator.generate(NUM_NEW, seed=0)
    away = generator.nearness(made.frames)
    draw_reconstructions(
        generator.volumes[made.parents[:, 0]],
        made.volumes,
        folder / "generated.png",
        names=[_name({**made.facts, "category": made.category}, row) for row in range(NUM_NEW)],
        errors=away.tolist(),
        headings=("a training nodule", "a new one made from it"),
        what="distance",
    )
    return [
        Section(
            heading="Original and estimated nodules",
            words=f"Nodules of validation in their surroundings, which are kept; {ranks} of all "
            "had a smaller error.",
            picture=folder / "reconstructions.png",
        ),
        Section(
            heading="New nodules",
            words="Each beside the first of the two training nodules it was made from, and its "
            "distance to the nearest training nodule (root mean square, the nodule alone).",
            picture=folder / "generated.png",
        ),
    ]


def frame_errors(model: nn.Module, seen: Tensor) -> Floats:
    """Each nodule's loss."""
    return np.array(
        [mean_squared_log_error(model(one[None]).detach(), one[None]).item() for one in seen],
        np.float32,
    )


def _name(facts: Facts, row: int) -> str:
    """Class and size."""
    words = [str(facts["category"][row])] if "category" in facts else []
    return ", ".join([*words, f"diameter {facts['diameter'][row]:.0f}"])
