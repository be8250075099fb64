"""What a run of DeepDensity learned, in pictures.

In: a reopened run whose validation data are volumes. Out: PNGs and the sections that present them:
original against estimated nodules (after Fig. 1 of Cunha et al. 2018), the mixtures as ellipsoids,
and how reconstructions sharpen over epochs. The nodules shown are of validation, chosen by rank of
their error, so that good and bad ones are seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from samepath.engine.state.reopen import ReopenedRun
from samepath.recipes.nodules.deepdensity import DeepDensity, covariances
from samepath.recipes.nodules.recipe import Facts, as_images, categories
from samepath.report.nodules import draw_ellipsoids, draw_reconstructions, draw_sharpening
from samepath.report.page import Section

RANKS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Shares of the validation nodules with a smaller error than the ones shown."""
NUM_DETAILED = 4
"""Nodules shown over time and as ellipsoids."""


@torch.no_grad()
def draw_run(run: ReopenedRun, folder: Path) -> Sequence[Section]:
    """Draw a run's nodules into a folder."""
    valid = run.recipe.valid
    model, _ = run.model()
    assert isinstance(model, DeepDensity)
    assert isinstance(valid, Tensor)
    errors = _errors(model, valid)
    order = np.argsort(errors)
    rows = order[[round(rank * (len(order) - 1)) for rank in RANKS]]
    originals = as_images(valid[rows])
    facts = {name: values[rows] for name, values in run.recipe.valid_facts.items()}
    names = _names(facts, rows)
    sections: list[Section] = []

    def picture(name: str, heading: str, words: str) -> Path:
        sections.append(Section(heading=heading, words=words, picture=folder / name))
        return folder / name

    ranks = ", ".join(f"{rank:.0%}" for rank in RANKS)
    draw_reconstructions(
        _array(originals),
        _array(model(originals)),
        picture(
            "reconstructions.png",
            "Original and estimated nodules",
            f"Nodules of validation; {ranks} of all had a smaller error.",
        ),
        names=names,
        errors=errors[rows].tolist(),
    )
    originals, names = originals[:NUM_DETAILED], names[:NUM_DETAILED]
    mixture = model.mixture(originals)
    draw_ellipsoids(
        _array(originals),
        mixture.log_alpha.exp().numpy(),
        mixture.mu.numpy(),
        covariances(mixture).numpy(),
        picture(
            "ellipsoids.png",
            "The mixtures",
            "Each ellipsoid is one Gaussian at one standard deviation.",
        ),
        names=names,
    )
    losses = run.losses_by_epoch()
    models = {e: run.model(e)[0] for e in run.kept_epochs() if e == 0 or e in losses}
    if models:
        draw_sharpening(
            _array(originals),
            np.stack([_array(model(originals)) for model in models.values()]),
            list(models),
            picture(
                "sharpening.png",
                "Coarse shape first, detail late",
                "The central axial slice as the model saw it after so many epochs.",
            ),
            names=names,
            losses=[losses[e] if e else float(_errors(m, valid).mean()) for e, m in models.items()],
        )
    return sections


def _names(facts: Facts, rows: NDArray[np.int64]) -> list[str]:
    """What to call nodules in a figure: category and size where known, else row numbers."""
    kinds = categories(facts)
    names = []
    for place, row in enumerate(rows):
        words = [] if kinds is None else [str(kinds[place])]
        sizes = [facts[fact][place] for fact in ("extent_mm", "diameter_mm") if fact in facts]
        words += [f"{size:.0f} mm" for size in sizes]
        names.append(", ".join(words) or f"row {row}")
    return names


@torch.no_grad()
def reconstruct(model: nn.Module, volumes: Tensor) -> NDArray[np.float32]:
    """(N, side, side, side) reconstructions of volumes."""
    return np.concatenate([_array(model(as_images(part))) for part in volumes.split(64)])


def _errors(model: nn.Module, volumes: Tensor) -> NDArray[np.float32]:
    """Each nodule's mean squared logarithmic error."""
    there = as_images(volumes).squeeze(1).numpy()
    difference = np.log1p(reconstruct(model, volumes)) - np.log1p(there)
    errors: NDArray[np.float32] = np.square(difference).mean((1, 2, 3))
    return errors


def _array(images: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = images.detach().squeeze(1).numpy()
    return array
