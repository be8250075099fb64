"""The sliders of each class: how it was clustered, and between which ends that can be changed.

In: the map and what `samepath curate` chose. Out: a setting and sensible ends per class.
Guaranteed: the setting is within the ends; at the lower end of eps almost all is noise, at the
upper almost nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samepath.curation.cluster import LEAST_POINTS, MIN_SAMPLES, k_distances
from samepath.web.explorer.folder import CurationFolder

MAX_MIN_SAMPLES = 50


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A class, the settings it was clustered with, and the ends of its sliders."""

    name: str
    num_examples: int
    eps: float
    min_samples: int
    low: float
    high: float
    max_min_samples: int
    can_cluster: bool
    """Too few points have no density."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def tuning_of(folder: CurationFolder) -> list[Tuning]:
    """The sliders of every class, in order."""
    chosen = {c.get("label"): c for c in folder.about.get("classes", [])}
    if not folder.labels_known and None in chosen:
        chosen[0] = chosen[None]
    return [
        _tuning(name, folder.positions[folder.labels == label], chosen.get(label, {}))
        for label, name in enumerate(folder.class_names)
    ]


def _tuning(name: str, points: NDArray[np.float32], chosen: dict[str, Any]) -> Tuning:
    least, typical, most = 0.1, 1.0, 10.0
    if can_cluster := len(points) >= LEAST_POINTS:
        curve = k_distances(points, MIN_SAMPLES - 1)
        least, typical, most = (float(v) for v in np.quantile(curve, [0.02, 0.95, 0.995]))
    eps, min_samples = chosen.get("eps"), chosen.get("min_samples")
    eps = float(eps) if isinstance(eps, (int, float)) and 0 < eps < 1e300 else max(typical, 1e-6)
    min_samples = min_samples if type(min_samples) is int and min_samples > 0 else MIN_SAMPLES
    return Tuning(
        name=name,
        num_examples=len(points),
        eps=eps,
        min_samples=min_samples,
        low=max(min(least, eps / 3), eps / 100),
        high=max(1.5 * most, 3 * eps),
        max_min_samples=max(MAX_MIN_SAMPLES, 2 * min_samples),
        can_cluster=can_cluster,
    )
