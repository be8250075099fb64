"""Lung nodules by DeepDensity: the experiment of Cunha et al. 2018, section VI, as a recipe.

In: the LIDC nodule shapes shipped with samepath, or volumes of your own (`--data`). Out: `nodules`,
the paper's configuration, and `nodules_small`, the same experiment at the size of a demonstration.
A batch is (N, side, side, side): bytes with 255 for 1, or floats in [0, 1]. Nodules of validation
are of patients (or scans) not trained on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from samepath.data.formats.lidc import NUM_VALIDATION, load_lidc_shapes, split_by_patient
from samepath.data.formats.listing import Rows, split_by_group
from samepath.recipe import Recipe
from samepath.recipes.nodules.deepdensity import DeepDensity, mean_squared_log_error

if TYPE_CHECKING:
    from samepath.report.page import Section

Facts = Mapping[str, NDArray[Any]]
_Split = tuple[NDArray[Any], Facts, Rows, Rows]
"""Volumes, what is known of each, and the rows for training and for validation."""
KEEP_WEIGHTS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 400)
"""Enough to see the coarse shape come first and the detail late."""


def nodules(data: Path | None = None) -> Recipe:
    """The paper's configuration, on 2395 training nodules."""
    # The paper's target of 0.0016384 belongs to its images. On these shapes a run of 249 epochs
    # (seed 0) went below 0.003 after 18, reached its lowest, 0.0028, after 33, then over-fitted.
    return _recipe(data, epochs=400, target=0.003)


def nodules_small(data: Path | None = None) -> Recipe:
    """DeepDensity with half the filters and components, on LUNA16's choice of nodules.

    LUNA16 keeps what three of the four readers drew: 1391 of the 2651 nodules here, 1135 of them
    for training. An epoch takes about three seconds of one core.
    """
    # Plain loops reached the target after 6, 7 and 8 epochs (seeds 0, 1, 2); 0.0031-0.0032 after 15
    return _recipe(data, epochs=20, target=0.004, num_filters=16, num_components=25, min_readers=3)


def reconstruction_loss(model: nn.Module, volumes: Tensor) -> Tensor:
    """Mean squared logarithmic error between images and what the model makes of them."""
    images = as_images(volumes)
    return mean_squared_log_error(model(images), images)


def predict_images(model: nn.Module, volumes: Tensor) -> Tensor:
    """What the model makes of images."""
    images: Tensor = model(as_images(volumes))
    return images


def as_images(volumes: Tensor) -> Tensor:
    """(N, 1, side, ...) float32 images of a batch."""
    images = volumes.to(torch.float32).unsqueeze(1)
    return images.div_(255.0) if volumes.dtype == torch.uint8 else images


def categories(facts: Facts) -> NDArray[np.str_] | None:
    """Benign, indeterminate or malignant, from what is known of each nodule; None if it is not.

    The readers' mean malignancy below, at and above 3 of 5, as is usual for LIDC; MedMNIST's label
    0 or 1; or a `category` of your own.
    """
    if "category" in facts:
        return np.asarray(facts["category"], dtype=np.str_)
    if "malignancy" in facts:
        side = np.sign(np.asarray(facts["malignancy"], dtype=np.float64) - 3.0).astype(np.int64)
        return np.array(["benign", "indeterminate", "malignant"])[side + 1]
    if "label" in facts:
        labels = np.asarray(facts["label"])
        names = {0: "benign", 1: "malignant"} if set(np.unique(labels)) <= {0, 1} else {}
        return np.array([names.get(label, str(label)) for label in labels.tolist()])
    return None


def _recipe(
    data: Path | None,
    *,
    epochs: int,
    target: float,
    num_filters: int = 32,
    num_components: int = 50,
    min_readers: int = 1,
) -> Recipe:
    """A recipe on the LIDC shapes, or on a person's own volumes, for which no target is known."""
    volumes, facts, train, valid = _lidc(min_readers) if data is None else _own(data)
    side = volumes.shape[-1]
    return Recipe(
        model=lambda: DeepDensity(
            side=side, num_filters=num_filters, num_components=num_components
        ),
        train=torch.from_numpy(volumes[train]),
        valid=torch.from_numpy(volumes[valid]),
        train_facts={name: values[train] for name, values in facts.items()},
        valid_facts={name: values[valid] for name, values in facts.items()},
        loss=reconstruction_loss,
        predict=predict_images,
        optimizer=_adam,
        batch_size=32,
        max_workers=8,
        epochs=epochs,
        target=target if data is None else None,
        keep_weights=KEEP_WEIGHTS,
        show=_show,
    )


def _show(run: Any, folder: Path) -> Sequence[Section]:
    from samepath.recipes.nodules.pictures import draw_run

    return draw_run(run, folder)


def _adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.00105, betas=(0.9, 0.999), eps=1e-8, fused=True)


def _lidc(min_readers: int) -> _Split:
    shapes = load_lidc_shapes()
    kept = np.flatnonzero(shapes.readers >= min_readers)
    names = ("malignancy", "extent_mm", "readers", "patient", "scan")
    facts = {name: getattr(shapes, name) for name in names}
    train, valid = split_by_patient(shapes.patient[kept])
    return shapes.volumes, facts, kept[train], kept[valid]


def _own(path: Path) -> _Split:
    """Volumes from disk: split as the file says, or a fifth (at most 256) for validation."""
    from samepath.data.formats.volumes import load_volumes

    volumes = load_volumes(path)
    facts = volumes.facts | {"name": np.array(volumes.names), "group": np.array(volumes.group)}
    if volumes.split is not None:
        said = np.array(volumes.split)
        train, valid = np.flatnonzero(said == "train"), np.flatnonzero(said == "valid")
    else:
        train, valid = split_by_group(volumes.group, min(NUM_VALIDATION, len(volumes.names) // 5))
    return volumes.cubes, facts, train, valid
