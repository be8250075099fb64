"""Runs, studies, findings and curations as the page shows them: lines, pages, curves, comparisons.

In: their JSON as read, and what metrics.jsonl holds. Out: plain values for JSON. Guaranteed: any
content gives an answer: a damaged run.json gives the reason; a curve has at most `NUM_POINTS`
points, and no peak is lost.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
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
_SHAPING = (
    *("batch_size", "grain_size", "seed", "threads", "exact", "learning_rate", "weight_decay"),
    *("strategy", "virtual_workers", "data", "keep"),
)
"""Settings on which a path depends."""
_DIGITS = 12
NUM_POINTS = 400
"""Points of a curve on the screen, at most."""
_LISTED = {
    "strategies": "strategies",
    "workers": "workers",
    "num_workers": "workers",
    "batch_sizes": "batch sizes",
    "learning_rates": "learning rates",
    "engines": "engines",
}
_MADE_OF = (("curves", "modelled", ("policy", "network")), ("runs", "runs", ("path",)))
_STUDIES = {
    "race": "strategies raced to a target",
    "grid": "batch sizes and learning rates",
    "folds": "cross-validation",
}


# ---- studies, findings and curations


def item_line(kind: str, content: Mapping[str, Any], status: str) -> dict[str, Any]:
    """A study, finding or curation in the overview; `status` is that of a study under way."""
    is_comparison = "comparison" in (kind, content.get("kind"))
    title = "did curation help?" if is_comparison else _STUDIES.get(kind, kind)
    if kind == "study":
        title = _STUDIES.get(str(content.get("kind")), "a study")
    line: dict[str, Any] = {
        "recipe": Path(str(content.get("recipe") or "?")).stem,
        "title": title,
        "verdict": _words(content.get("verdict") or content.get("summary")),
        "is_live": status == "running",
        "status": status,
        "facts": list(_facts(kind, content)),
    }
    # of a study under way the recipe is only known by a checksum
    return line | ({"recipe": "", "verdict": ""} if status else {})


def item_page(content: Mapping[str, Any], line: Mapping[str, Any]) -> dict[str, Any]:
    """Facts for an item's page beside its report."""
    explore = shlex.join(["samepath", "explore", line["path"]])
    return {
        "command": _typed(content.get("command")),
        "explore": explore if line["kind"] == "curation" else "",
        "versions": _table(content.get("versions")),
    }


def _facts(kind: str, content: Mapping[str, Any]) -> Iterator[str]:
    """Facts about an item, a few words each."""
    if kind == "curation":
        kept, total = content.get("num_kept"), content.get("num_examples")
        if type(kept) is int and type(total) is int and total:
            yield f"{kept:,} of {total:,} kept ({100 * kept / total:.1f}%)"
    for name, called in _LISTED.items():
        if words := _words(content.get(name)):
            yield f"{called}: {words}"
    for name, called, parts in _MADE_OF:
        made_of = content.get(name)
        if isinstance(made_of, list):
            names = [
                " over ".join(filter(None, (_words(each.get(part)) for part in parts)))
                for each in made_of
                if isinstance(each, dict)
            ]
            counted = f"{len(made_of)} {name if len(made_of) != 1 else name.removesuffix('s')}"
            yield f"{called}: {_words(names)}" if any(names) else counted


def _words(value: Any) -> str:
    """Words for text, a number, a list of them, or the names of a table; "" for all else."""
    if isinstance(value, str) or type(value) in (int, float):
        return str(value)
    if isinstance(value, Mapping):
        value = list(value)
    if isinstance(value, Sequence) and all(isinstance(each, (str, int, float)) for each in value):
        return ", ".join(str(each) for each in value[:12]) + (", ..." if len(value) > 12 else "")
    return ""


# ---- runs


@dataclass(frozen=True, kw_only=True)
class ShownRun:
    """A run.json, taken apart; what is missing or of another kind is empty."""

    status: str
    config: Mapping[str, Any]
    result: Mapping[str, Any]
    num_starts: int
    last_start: Mapping[str, Any]

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> ShownRun:
        """Take run.json apart; ValueError where it is not of samepath."""
        if not isinstance(content.get("config"), dict):
            raise ValueError("it is not a run of samepath: it has no config")
        starts = content.get("starts")
        starts = starts if isinstance(starts, list) else []
        return cls(
            status=str(content.get("status")),
            config=content["config"],
            result=_table(content.get("result")),
            num_starts=len(starts),
            last_start=_table(starts[-1]) if starts else {},
        )

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


def run_line(record: ShownRun, is_running: bool, newest: Mapping[str, Any]) -> dict[str, Any]:
    """A run in the overview; `newest` is the end of its metrics, for a run without a result."""
    config, result = record.config, record.result
    stopped = record.status == "running" and not is_running
    metrics = result.get("metrics")
    if not isinstance(metrics, dict):
        metrics = {k.removeprefix("valid_"): v for k, v in newest.items() if k.startswith("valid_")}
    now = result or {**newest, "steps": newest.get("step"), "epochs": newest.get("epochs_done")}
    # a strategy may have another than the recipe; runs of an older samepath say only that one
    batches = (result, newest, record.last_start, config)
    known = ("steps", "epochs", "train_loss", "noise_scale", "noise_low", "noise_high", "seconds")
    return {
        "recipe": Path(str(config.get("recipe", "?"))).stem,
        "status": "stopped" if stopped else record.status,
        "is_live": is_running,
        "workers": _known(result.get("num_workers", record.last_start.get("num_workers"))),
        "batch_size": next(
            filter(None, (_whole(each.get("batch_size")) for each in batches)), None
        ),
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
        "host": _text(record.last_start.get("host")),
        "seconds_left": _seconds_left(record.steps_to_do, now) if is_running else None,
    }


def _seconds_left(steps_to_do: int | None, now: Mapping[str, Any]) -> float | None:
    """The time that the rest of a run takes if it goes on as it did so far; None where the number
    of its steps is not known."""
    steps, seconds = _known(now.get("steps")), _known(now.get("seconds"))
    if not steps_to_do or not steps or not seconds:
        return None
    return float(f"{max(steps_to_do - steps, 0) * seconds / steps:.2g}")


def run_page(record: ShownRun, line: Mapping[str, Any]) -> dict[str, Any]:
    """Facts for a run's page beside its curves."""
    recipe = str(record.config.get("recipe", ""))
    resume = shlex.join(["samepath", "train", recipe, "--out", line["path"], "--resume"])
    return {
        # without fingerprints, which say nothing to people
        "config": {k: v for k, v in record.config.items() if not isinstance(v, dict)},
        "whole_digest": _text(record.result.get("digest")),
        "command": _typed(record.last_start.get("command")),
        "resume": resume if line["status"] in RESUMABLE else "",
        "num_starts": record.num_starts,
        "versions": _table(record.last_start.get("versions")),
        "step_seconds": _known(record.result.get("step_seconds")),
        "examples_per_second": _known(record.result.get("examples_per_second")),
    }


def _typed(command: Any) -> str:
    """A command line as one would type it."""
    if not isinstance(command, (list, tuple)) or not command:
        return ""
    words = [str(word) for word in command]
    return shlex.join([Path(words[0]).name, *words[1:]])


def _known(value: Any) -> float | int | None:
    return value if np.isfinite(number(value)) and not isinstance(value, str) else None


def _whole(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


# ---- curves


def curves(metrics: MetricColumns, first: float = -np.inf, last: float = np.inf) -> dict[str, Any]:
    """Every column between two steps, shortened for a screen."""
    found = {}
    for name, column in metrics.columns.items():
        if name in _TOGETHER:
            continue
        steps, times, values = column.arrays()
        inside = (steps >= first) & (steps <= last)
        interval = None
        ends = [metrics.columns.get(end, MetricColumn()) for end in _INTERVAL.get(name, ())]
        if ends and all(len(end.values) == len(values) for end in ends):
            interval = np.array(ends[0].values)[inside], np.array(ends[1].values)[inside]
        if inside.any() and np.isfinite(values).any():
            found[name] = shorten(steps[inside], times[inside], values[inside], interval)
    return found


def shorten(
    steps: Floats,
    times: Floats,
    values: Floats,
    interval: tuple[Floats, Floats] | None = None,
) -> dict[str, Any]:
    """A curve of any length as at most NUM_POINTS points, for a screen.

    A curve that is short enough is given as it is; of a longer one every point stands for a stretch
    of steps with its mean, lowest and highest value. What is no number is a gap (None). `interval`
    is what each value is known to lie in, where that is known.
    """
    values = np.where(np.isfinite(values), values, np.nan)
    low, high = interval or (values, values)
    if len(values) <= NUM_POINTS:
        curve = {"step": _rounded(steps), "time": _rounded(times), "value": _rounded(values)}
        return curve | ({"low": _rounded(low), "high": _rounded(high)} if interval else {})
    starts = np.linspace(0, len(values), NUM_POINTS, endpoint=False).astype(int)
    ends = np.append(starts[1:], len(values))
    known = np.isfinite(values)
    counts = np.add.reduceat(known, starts)
    sums = np.add.reduceat(np.where(known, values, 0.0), starts)
    means = np.divide(sums, counts, out=np.full(NUM_POINTS, np.nan), where=counts > 0)
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


# ---- comparisons


def comparison(
    names: Sequence[str],
    digests: Sequence[str],
    all_metrics: Sequence[MetricColumns],
    configs: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Say which of several runs are on the same path; the first is what others are held
    against."""
    said = []
    for digest in dict.fromkeys(d for d in digests if d):
        alike = [name for name, other in zip(names, digests, strict=True) if other == digest]
        if len(alike) > 1:
            listed = " and ".join([", ".join(alike[:-1]), alike[-1]])
            words = f"{listed} ended with the same bits (digest {digest[:_DIGITS]})."
            said.append({"same": True, "words": f"Same path: {words}"})
    first = all_metrics[0].columns.get("train_loss", MetricColumn())
    others = zip(names[1:], digests[1:], all_metrics[1:], configs[1:], strict=True)
    for name, digest, metrics, config in others:
        if digest and digest == digests[0]:
            continue
        recipes = [_text(each.get("recipe")) for each in (configs[0], config)]
        if configs[0].get("identity") != config.get("identity"):
            how = f"{recipes[0]} and {recipes[1]}"
            if recipes[0] == recipes[1]:
                how = f"{recipes[0]} changed between them"
            words = f"{names[0]} and {name} are of different recipes ({how}): no path to compare."
            said.append({"same": None, "words": words})
            continue
        second = metrics.columns.get("train_loss", MetricColumn())
        one = _against(names[0], first, name, second, bool(digest and digests[0]))
        if one["same"] is False and (why := _settings_apart(configs[0], config)):
            one["words"] += f" Their settings differ: {why}."
        said.append(one)
    return said


def _settings_apart(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """The settings that shape a path and differ: "seed (0, 1)"."""
    return ", ".join(
        f"{name.replace('_', ' ')} ({first.get(name)}, {second.get(name)})"
        for name in _SHAPING
        if first.get(name) != second.get(name)
    )


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
