"""What `samepath curvature` finds out about runs, in memory and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from samepath.insight.curvature.landscape import Line, Plane, Rise


@dataclass(frozen=True, kw_only=True)
class RunCurvature:
    """The loss around the weights of one run."""

    name: str
    """What figures and tables call it."""
    path: str
    digest: str
    """Of the checkpoint, or of the weights kept."""
    epoch: int | str | None
    """Whose weights they are: after so many epochs, at its best, or the newest."""
    batch_size: int
    learning_rate: float | None
    """Of the last step before these weights."""
    steps: int | None
    num_parameters: int
    num_examples: int
    """In the run's training data."""
    num_sampled: int
    """Of them, those all of this was measured on."""
    loss: float
    """The sample's: in evaluation mode, without augmentation."""
    valid: dict[str, float]
    """What the recipe evaluates, on all validation data, with the same weights."""
    eigenvalues: list[float]
    """Of the Hessian, the largest in size first."""
    residuals: list[float]
    """|H v - l v| of each: an eigenvalue of the Hessian is no further from it."""
    tolerance: float
    """What residuals were to get below."""
    trace: float
    trace_error: float
    """Its standard error."""
    num_products: int
    """Of the Hessian with a vector."""
    rise: Rise
    random_line: Line
    random_plane: Plane
    eigen_line: Line
    eigen_plane: Plane | None
    """Along the first two eigenvectors, if there are two."""
    seconds: float

    @property
    def gap(self) -> float | None:
        """What the loss is higher on validation data."""
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
    """What a reader should know."""


def to_json(found: Curvature) -> dict[str, Any]:
    return asdict(found)


def from_json(content: Mapping[str, Any]) -> Curvature:
    """What `to_json` made, also after a file of ours (NaN and infinities are text there)."""
    names = Curvature.__dataclass_fields__
    runs = [run_from_json(run) for run in content["runs"]]
    return Curvature(**{name: content[name] for name in names if name != "runs"}, runs=runs)


def run_from_json(content: Mapping[str, Any]) -> RunCurvature:
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
