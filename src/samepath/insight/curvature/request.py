"""What a person asks `samepath curvature` for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from samepath.console import SilentWatcher, Watcher
from samepath.engine.state.weights import Epoch
from samepath.errors import UserError


@dataclass(frozen=True, kw_only=True)
class CurvatureRequest:
    """What a person asked for."""

    runs: tuple[Path, ...]
    num_workers: int | Literal["auto"] = "auto"
    num_examples: int = 256
    """At most; whole grains of them."""
    top: int = 20
    """Eigenvalues."""
    grid: int = 31
    """Points of a line; planes have half as many each way."""
    radius: float = 1.0
    """How far lines and planes go from the weights, each way; along eigenvectors half as far."""
    epoch: Epoch | None = None
    """Weights kept after so many epochs, or at a run's best; the newest when not given."""
    seed: int = 0
    save_vectors: bool = False
    watcher: Callable[[], Watcher] = SilentWatcher
    """Makes, in the worker that leads, what shows progress; must pickle."""

    def __post_init__(self) -> None:
        for flag, value, least in (
            ("--examples", self.num_examples, 1),
            ("--top", self.top, 1),
            ("--grid", self.grid, 5),
            ("--seed", self.seed, 0),
        ):
            if value < least:
                raise UserError(f"{flag} {value}: it must be at least {least}")
        if not 0 < self.radius < math.inf:
            raise UserError(f"--radius {self.radius}: it must be above 0")
        if not self.runs:
            raise UserError("no run was named; give folders of `samepath train`")

    @property
    def plane_grid(self) -> int:
        """Odd, so that the weights themselves are a point."""
        return 2 * (self.grid // 4) + 1
