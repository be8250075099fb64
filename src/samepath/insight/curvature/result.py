"""What `samepath curvature` finds out about runs, and how to read it from JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samepath.insight.curvature.landscape import Line, Plane, Rise


@dataclass(frozen=True, kw_only=True)
class RunCurvature:
    """The loss around the weights of one run."""

    name: str
    """What figures and tables call it."""
    path: str
    digest: str
    """SHA-256 of the checkpoint, or of the weights kept."""
    epoch: int | str | None
    """Whose weights they are: after so many epochs, at its best, or the newest."""
    batch_size: int
    learning_rate: float | None
    """At the last step before these weights."""
    steps: int | None
    num_parameters: int
    num_examples: int
    """In the run's training data."""
    num_sampled: int
    """How many of these all of this was measured on."""
    loss: float
    """The sample's mean, in evaluation mode, without augmentation."""
    valid: dict[str, float]
    """What the recipe evaluates, on all validation data, with the same weights."""
    eigenvalues: list[float]
    """The Hessian's, the largest in size first."""
    residuals: list[float]
    """|H v - l v| of each: an eigenvalue of the Hessian is no further from it."""
    tolerance: float
    """What residuals were to get below."""
    trace: float
    trace_error: float
    """The trace's standard error."""
    num_products: int
    """How many products of the Hessian with a vector it took."""
    rise: Rise
    random_line: Line
    random_plane: Plane
    eigen_line: Line
    eigen_plane: Plane | None
    """Along the first two eigenvectors, if there are two."""
    seconds: float

    @property
    def gap(self) -> float | None:
        """How much higher the loss is on validation data."""
        return self.valid["loss"] - self.loss if "loss" in self.valid else None

    @property
    def num_negative(self) -> int:
        """Eigenvalues that are surely below zero."""
        pairs = zip(self.eigenvalues, self.residuals, strict=True)
        return sum(value + max(residual, self.tolerance) < 0.0 for value, residual in pairs)


@dataclass(frozen=True, kw_only=True)
class Curvature:
    """Several runs of one recipe on the same sample."""

    recipe: str
    seed: int
    """Chooses the sample and the directions."""
    grain_size: int
    num_workers: int
    radius: float
    runs: Sequence[RunCurvature]
    notes: Sequence[str]
    """Sentences for the reader."""


def run_from_json(content: Mapping[str, Any]) -> RunCurvature:
    """The run whose `asdict` was written as JSON (our files have NaN and infinities as text)."""
    rows = content["eigen_plane"]
    made = {
        "rise": Rise(**_numbers(content["rise"])),
        "random_line": Line(**_numbers(content["random_line"])),
        "random_plane": Plane(**_numbers(content["random_plane"])),
        "eigen_line": Line(**_numbers(content["eigen_line"])),
        "eigen_plane": None if rows is None else Plane(**_numbers(rows)),
        "valid": _numbers(content["valid"]),
    }
    return RunCurvature(**{**content, **made})


def _numbers(value: Any) -> Any:
    if isinstance(value, str):
        return float(value)
    if isinstance(value, Mapping):
        return {name: _numbers(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_numbers(part) for part in value]
    return value
