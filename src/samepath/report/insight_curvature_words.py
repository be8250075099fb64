"""What the curvature of runs says, in a table and a few sentences.

In: what `samepath curvature` found. Out: rows, and a verdict that follows from the numbers alone:
it says so where measures disagree, or where a gap does not go along with sharpness.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from samepath.insight.curvature.result import Curvature, RunCurvature

ALIKE = 1.25
"""Numbers within this factor of each other are called alike."""
STAGES = 3.0
"""Runs whose training losses differ by more than this factor are not at the same stage."""

CAUTION = (
    "Eigenvalues and trace depend on how a model is parametrised: where batch norm or ReLU lets "
    "weights be rescaled without changing what the model computes, the same function has other "
    "eigenvalues (Dinh et al. 2017). The rise along filter-normalised directions is made against "
    "that. One run of each kind is an observation, not a law: other seeds may say otherwise."
)


def facts_table(found: Curvature) -> list[list[str]]:
    """A column per run."""
    metrics = sorted({name for run in found.runs for name in run.valid} - {"loss"})
    rows: dict[str, Callable[[RunCurvature], str]] = {
        "": lambda run: run.name,
        "batch size": lambda run: str(run.batch_size),
        "learning rate": lambda run: _number(run.learning_rate),
        "steps": lambda run: "" if run.steps is None else str(run.steps),
        "loss (training)": lambda run: _number(run.loss),
        "loss (validation)": lambda run: _number(run.valid.get("loss")),
        "gap": lambda run: _number(run.gap),
        **{name: _metric(name) for name in metrics},
        "top eigenvalue": lambda run: _number(run.eigenvalues[0]),
        "trace": lambda run: f"{_number(run.trace)} ± {run.trace_error:.2g}",
        f"rise at {found.runs[0].rise.distance:g}": lambda run: (
            f"{_number(run.rise.mean)} ± {run.rise.standard_error:.2g}"
        ),
    }
    return [[name, *map(value, found.runs)] for name, value in rows.items()]


def _metric(name: str) -> Callable[[RunCurvature], str]:
    return lambda run: _number(run.valid.get(name))


def sample_words(found: Curvature) -> str:
    """What it was measured on."""
    counts = sorted({(run.num_sampled, run.num_examples) for run in found.runs})
    rise = found.runs[0].rise
    examples = " and ".join(f"{few} of {many}" for few, many in counts)
    return (
        f"Measured on {examples} training examples (chosen by seed {found.seed}, grains of "
        f"{found.grain_size}) with the models in evaluation mode: batch norm uses its running "
        "statistics, dropout is off, nothing is augmented. The rise is the mean over "
        f"{rise.num_directions} random filter-normalised directions, both ways. ± is one standard "
        "error."
    )


def verdict(found: Curvature) -> str:
    """Two sentences."""
    by_batch = sorted(found.runs, key=lambda run: run.batch_size)
    small, large = by_batch[0], by_batch[-1]
    if small.batch_size == large.batch_size:
        if len(found.runs) == 1:
            return _alone(small)
        by_loss = sorted(found.runs, key=lambda run: run.valid.get("loss", run.loss))
        return _compare(by_loss[0], by_loss[-1], *(run.name for run in (by_loss[0], by_loss[-1])))
    return _compare(small, large, f"batch {small.batch_size}", f"batch {large.batch_size}")


def _alone(run: RunCurvature) -> str:
    top = run.eigenvalues[0]
    words = (
        f"The loss is curved most by {top:.3g} along one direction, and by {run.trace:.3g} in all"
    )
    words += (
        f" (plain gradient descent on it is stable below a rate of 2 / {top:.3g} = {2 / top:.2g})."
        if top > 0.0
        else "."
    )
    if not any(run.eigenvalues):
        return words + " It is flat: the model is piecewise linear in its weights here."
    if run.num_negative:
        return words + (
            f" {run.num_negative} of the {len(run.eigenvalues)} eigenvalues largest in size are "
            f"negative, down to {min(run.eigenvalues):.3g}: the run did not end in a minimum of "
            "this loss."
        )
    return words + " None of the eigenvalues looked at is negative: it curves upwards along them."


def _compare(first: RunCurvature, second: RunCurvature, one: str, other: str) -> str:
    """Is the second sharper, and does it generalise worse?"""
    measures = {
        "top eigenvalue": ((first.eigenvalues[0], 0.0), (second.eigenvalues[0], 0.0)),
        "trace": ((first.trace, first.trace_error), (second.trace, second.trace_error)),
        "rise of the loss": (
            (first.rise.mean, first.rise.standard_error),
            (second.rise.mean, second.rise.standard_error),
        ),
    }
    signs = {name: _sign(*pair) for name, pair in measures.items()}
    numbers = ", ".join(f"{n} {b[0]:.3g} against {a[0]:.3g}" for n, (a, b) in measures.items())
    clear = {sign for sign in signs.values() if sign}
    sharper = clear.pop() if len(clear) == 1 else 0
    if sharper:
        by = " and ".join(name for name, sign in signs.items() if sign)
        how = f"is {'sharper' if sharper > 0 else 'flatter'}"
        how += " than" if all(signs.values()) else f" (by {by}; the rest is not clear) than"
    elif any(signs.values()):
        how = "is sharper by some measures and flatter by others than"
    else:
        how = "is about as sharp as"
    stage = ""
    if max(first.loss, second.loss) > STAGES * min(first.loss, second.loss):
        stage = (
            f"; their training losses are far apart ({second.loss:.3g} against {first.loss:.3g}), "
            "so these are different stages of training rather than two minima"
        )
    return f"{other} {how} {one}: {numbers}{stage}. {_gap(first, second, sharper)}"


def _gap(first: RunCurvature, second: RunCurvature, sharper: int) -> str:
    """Whether sharpness goes along with what is lost on validation data."""
    if first.gap is None or second.gap is None:
        return "There is no validation data to see whether it generalises worse."
    numbers = f"{second.gap:.3g} against {first.gap:.3g}"
    # a gap may be about zero or below: then factors say nothing, and losses set the scale
    scale = max(abs(first.gap), abs(second.gap), 0.1 * max(first.valid["loss"], 1e-12))
    difference = second.gap - first.gap
    wider = 0 if abs(difference) < (1.0 - 1.0 / ALIKE) * scale else (1 if difference > 0 else -1)
    words = {1: "larger", 0: "about the same", -1: "smaller"}[wider]
    gap = f"Its gap between validation and training loss is {words} ({numbers})"
    if not sharper:
        return f"{gap}, which such curvature does not explain." if wider else f"{gap} too."
    if wider == (1 if sharper > 0 else -1):
        return f"{gap}: here the gap goes along with sharpness, as Keskar and others (2017) found."
    return f"{gap}: here the gap does not go along with sharpness."


def _sign(first: tuple[float, float], second: tuple[float, float]) -> int:
    """1 where the second is clearly larger, -1 where it is clearly smaller: by more than the factor
    and by more than two standard errors of the difference."""
    difference = second[0] - first[0]
    size = max(abs(first[0]), abs(second[0]))
    unsure = 2.0 * math.hypot(first[1], second[1])
    if abs(difference) <= max((1.0 - 1.0 / ALIKE) * size, unsure):
        return 0
    return 1 if difference > 0 else -1


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if abs(value) < 1e5 else f"{value:.2e}"


def eigenvalues_table(runs: Sequence[RunCurvature]) -> list[list[str]]:
    """A line per rank: eigenvalue and residual of every run."""
    head = ["rank", *(words for run in runs for words in (run.name, "residual"))]
    rows = [head]
    for rank in range(max(len(run.eigenvalues) for run in runs)):
        row = [str(rank + 1)]
        for run in runs:
            known = rank < len(run.eigenvalues)
            row += (
                [f"{run.eigenvalues[rank]:.5g}", f"{run.residuals[rank]:.1e}"]
                if known
                else ["", ""]
            )
        rows.append(row)
    return rows
