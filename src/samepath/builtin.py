"""The recipes that come with samepath, by name. (No torch: listing them is quick.)"""

from __future__ import annotations

BUILT_IN: dict[str, tuple[str, str, str]] = {
    "digits": (
        "samepath.recipes.digits",
        "digits",
        "handwritten digits (scikit-learn), a CNN with batch norm, dropout and augmentation",
    ),
    "nodules": (
        "samepath.recipes.nodules",
        "nodules",
        "DeepDensity on 2651 LIDC lung-nodule shapes, the configuration of Cunha et al. 2018",
    ),
    "nodules-small": (
        "samepath.recipes.nodules",
        "nodules_small",
        "the same, sized for a demo: an epoch takes about two seconds on two cores",
    ),
}
"""name -> (module, function, one line)"""
