"""Runs as the page shows them: a line of the overview, a page, curves, and comparisons.

In: run.json as read, and what metrics.jsonl holds. Out: plain values for JSON. Guaranteed: a
run.json of any content gives an answer: a damaged one gives the reason; a curve has at most
`NUM_POINTS` points, and no peak is lost.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from samepath.engine.state.metrics_log import Floats, MetricColumn, MetricColumns, number
from samepath.plan import count_steps

RESUMABLE = ("stopped", "interrupted", "failed")
_INTERVAL = {"noise_scale": ("noise_low", "noise_high")}
"""Values that are known to lie in an interval, which is a part of their curve."""
_TOGETHER = {name for names in _INTERVAL.values() for name in names}
_DIGITS = 12
NUM_POINTS = 400
"""Points of a curve on the screen, at most."""


@dataclass(frozen=True, kw_only=True)
class ShownRun:
    """A run.json, taken apart; what is missing or of another kind is empty."""

    status: str
    config: Mapping[str, Any]
    result: Mapping[str, Any]
    starts: Sequence[Any]

    @classmethod
    def of(cls, content: Any) -> ShownRun:
        """Take run.json apart; ValueError where it is not of samepath."""
        if not isinstance(content, dict) or not isinstance(content.get("config"), dict):
            raise ValueError("it is not a run of samepath: it has no config")
        result, starts = content.get("result"), content.get("starts")
        return cls(
            status=str(content.get("status")),
            config=content["config"],
            result=result if isinstance(result, dict) else {},
            starts=starts if isinstance(starts, list) else [],
        )

    @property
    def last_start(self) -> Mapping[str, Any]:
        last = self.starts[-1] if self.starts else {}
        return last if isinstance(last, dict) else {}

    @property
    def steps_to_do(self) -> int | None:
        """The step at which the run ends at the latest; None where that is not known."""
        names = ("epochs", "num_examples", "batch_size")
        epochs, examples, batch = (_whole(self.config.get(name)) for name in names)
        if not batch or self.config.get("strategy", "strong") != "strong":
            return None
        drop_last = bool(self.config.get("drop_last", False))
        per_epoch = count_steps(examples, batch, drop_last=drop_last)
        return min(epochs * per_epoch, _whole(self.config.get("steps")) or 10**18)


def typed(command: Any) -> str:
    """A command line as one would type it."""
    if not isinstance(command, (list, tuple)) or not command:
        return ""
    words = [str(word) for word in command]
    return shlex.join([Path(words[0]).name, *words[1:]])


def run_line(record: ShownRun, is_running: bool, newest: Mapping[str, Any]) -> dict[str, Any]:
    """A run in the overview; `newest` is the end of its metrics, for a run without a result."""
    config, result = record.config, record.result
    stopped = record.status == "running" and not is_running
    metrics = result.get("metrics")
    if not isinstance(metrics, dict):
        metrics = {k.removeprefix("valid_"): v for k, v in newest.items() if k.startswith("valid_")}
    now = result or {**newest, "steps": newest.get("step"), "epochs": newest.get("epochs_done")}
    known = ("steps", "epochs", "train_loss", "noise_scale", "noise_low", "noise_high", "seconds")
    return {
        "recipe": Path(str(config.get("recipe", "?"))).stem,
        "status": "stopped" if stopped else record.status,
        "is_live": record.status == "running" and is_running,
        "workers": _known(result.get("num_workers", record.last_start.get("num_workers"))),
        "batch_size": config.get("batch_size"),
        "strategy": config.get("strategy"),
        "seed": config.get("seed"),
        "steps_to_do": record.steps_to_do,
        "epochs_to_do": config.get("epochs"),
        **{name: _known(now.get(name)) for name in known},
        "valid_loss": _known(metrics.get("loss")),
        "metrics": {str(k): _known(v) for k, v in metrics.items() if k != "loss"},
        "digest": _text(result.get("digest"))[:_DIGITS],
        "message": _text(result.get("message")),
        "began": _known(record.last_start.get("time")),
    }


def run_page(record: ShownRun, line: Mapping[str, Any], shown: str) -> dict[str, Any]:
    """Facts for a run's page beside its curves; `shown` is its place as one would type it."""
    recipe = str(record.config.get("recipe", ""))
    versions = record.last_start.get("versions")
    resume = ["samepath", "train", recipe, "--out", shown, "--resume"]
    return {
        # without fingerprints, which say nothing to people
        "config": {k: v for k, v in record.config.items() if not isinstance(v, dict)},
        "whole_digest": _text(record.result.get("digest")),
        "command": typed(record.last_start.get("command")),
        "resume": shlex.join(resume) if line["status"] in RESUMABLE else "",
        "num_starts": len(record.starts),
        "versions": versions if isinstance(versions, dict) else {},
        "step_seconds": _known(record.result.get("step_seconds")),
        "examples_per_second": _known(record.result.get("examples_per_second")),
    }


def curves(metrics: MetricColumns, first: float = -np.inf, last: float = np.inf) -> dict[str, Any]:
    """Every column between two steps, shortened for a screen."""
    found = {}
    for name, column in metrics.columns.items():
        if name in _TOGETHER:
            continue
        steps, times, values = column.arrays()
        inside = (steps >= first) & (steps <= last)
        interval = None
        ends = [metrics.columns.get(end) for end in _INTERVAL.get(name, ())]
        if ends and all(end is not None and len(end.values) == len(values) for end in ends):
            low, high = (np.array(end.values)[inside] for end in ends if end is not None)
            interval = low, high
        if inside.any() and np.isfinite(values).any():
            found[name] = shorten(steps[inside], times[inside], values[inside], interval)
    return found


def shorten(
    steps: Floats,
    times: Floats,
    values: Floats,
    interval: tuple[Floats, Floats] | None = None,
    most: int = NUM_POINTS,
) -> dict[str, Any]:
    """A curve of any length as at most `most` points, for a screen.

    A curve that is short enough is given as it is; of a longer one every point stands for a stretch
    of steps with its mean, lowest and highest value. What is no number is a gap (None). `interval`
    is what each value is known to lie in, where that is known.
    """
    number = len(values)
    values = np.where(np.isfinite(values), values, np.nan)
    low, high = interval or (values, values)
    if number <= most:
        curve = {"step": _rounded(steps), "time": _rounded(times), "value": _rounded(values)}
        return curve | ({"low": _rounded(low), "high": _rounded(high)} if interval else {})
    starts = np.linspace(0, number, most, endpoint=False).astype(int)
    ends = np.append(starts[1:], number)
    known = np.isfinite(values)
    counts = np.add.reduceat(known, starts)
    sums = np.add.reduceat(np.where(known, values, 0.0), starts)
    means = np.divide(sums, counts, out=np.full(most, np.nan), where=counts > 0)
    unbounded = np.logical_or.reduceat(known & ~np.isfinite(high), starts)
    highest = np.where(unbounded if interval else False, np.nan, np.fmax.reduceat(high, starts))
    return {
        "step": _rounded(steps[ends - 1]),
        "time": _rounded(times[ends - 1]),
        "value": _rounded(means),
        "low": _rounded(np.fmin.reduceat(low, starts)),
        "high": _rounded(highest),
    }


def _rounded(values: Floats) -> list[float | None]:
    """Numbers for JSON, with six digits; None for what is not finite."""
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values.tolist()]


def comparison(
    names: Sequence[str], digests: Sequence[str], all_metrics: Sequence[MetricColumns]
) -> list[dict[str, Any]]:
    """Say which of several runs are on the same path; the first is what others are held
    against."""
    said = []
    for digest in dict.fromkeys(d for d in digests if d):
        alike = [name for name, other in zip(names, digests, strict=True) if other == digest]
        if len(alike) > 1:
            words = f"{_listed(alike)} ended with the same bits (digest {digest[:_DIGITS]})."
            said.append({"same": True, "words": f"Same path: {words}"})
    first = all_metrics[0].columns.get("train_loss", MetricColumn())
    for name, digest, metrics in zip(names[1:], digests[1:], all_metrics[1:], strict=True):
        if digest and digest == digests[0]:
            continue
        second = metrics.columns.get("train_loss", MetricColumn())
        said.append(_against(names[0], first, name, second, bool(digest and digests[0])))
    return said


def _against(
    one: str, first: MetricColumn, other: str, second: MetricColumn, has_other_digest: bool
) -> dict[str, Any]:
    (steps, _, values), (other_steps, _, other_values) = first.arrays(), second.arrays()
    shared, here, there = np.intersect1d(steps, other_steps, return_indices=True)
    if not len(shared):
        return {"same": None, "words": f"{other} and {one} have no step in common yet."}
    a, b = values[here], other_values[there]
    differs = np.flatnonzero((a != b) & ~(np.isnan(a) & np.isnan(b)))
    if len(differs):
        step = int(shared[differs[0]])
        return {"same": False, "words": f"{other} is on another path than {one} from step {step}."}
    number_shared = f"{len(shared):,} steps" if len(shared) > 1 else "step"
    words = f"{other} has the same losses as {one}, bit for bit, in the {number_shared} they share"
    if has_other_digest and len(shared) == len(steps) == len(other_steps):
        return {"same": False, "words": f"{words}, but ended with another digest."}
    return {"same": True, "words": f"Same path so far: {words}."}


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]])


def _known(value: Any) -> float | int | None:
    found = number(value)
    return value if np.isfinite(found) and not isinstance(value, str) else None


def _whole(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
