"""The recipes that come with samepath, by name. (No torch: listing them is quick.)"""

from __future__ import annotations

import difflib
from pathlib import Path

from samepath.errors import UserError

BUILT_IN: dict[str, tuple[str, str, str]] = {
    "digits": (
        "samepath.recipes.digits",
        "digits",
        "handwritten digits (scikit-learn), a CNN with batch norm, dropout and augmentation",
    ),
    "nodules": (
        "samepath.recipes.nodules.recipe",
        "nodules",
        "DeepDensity on 2651 LIDC lung-nodule shapes, the configuration of Cunha et al. 2018",
    ),
    "nodules-small": (
        "samepath.recipes.nodules.recipe",
        "nodules_small",
        "the same, sized for a demo: an epoch takes about two seconds on two cores",
    ),
    "nodules-classifier": (
        "samepath.recipes.nodules.classifier",
        "nodules_classifier",
        "a small 3-D ResNet: benign or malignant (`samepath worth` tries new nodules on it)",
    ),
    "nodules-ct": (
        "samepath.recipes.nodules.ct",
        "nodules_ct",
        "nodules of CT cubes with masks (--data), to generate more of them in their surroundings",
    ),
    "cifar10": (
        "samepath.recipes.cifar10",
        "cifar10",
        "CIFAR-10 by ResNet-18, as in Gahlot et al. 2020 (`samepath download cifar10`)",
    ),
    "cifar10-small": (
        "samepath.recipes.cifar10",
        "cifar10_small",
        "the same with an eighth of the width, for a machine of a few cores",
    ),
    **{
        f"cifar10-resnet{depth}": (
            "samepath.recipes.cifar10",
            f"cifar10_resnet{depth}",
            f"CIFAR-10 by ResNet-{depth}, {millions} million parameters",
        )
        for depth, millions in ((34, 21.28), (50, 23.52), (101, 42.51), (152, 58.16))
    },
}
"""name -> (module, function, one line)"""


def refuse_unknown(name: str) -> None:
    """Raise unless a recipe's name is built in, or the path of a file."""
    path = Path(name)
    if name in BUILT_IN or path.is_file():
        return
    if path.suffix == ".py" or path.exists():
        raise UserError(f"recipe file {name!r} does not exist; check the path")
    near = difflib.get_close_matches(name, BUILT_IN, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "built in are: " + ", ".join(BUILT_IN) + "."
    raise UserError(
        f"unknown recipe {name!r}; {hint} (a path to a Python file with a recipe() works too)"
    )
