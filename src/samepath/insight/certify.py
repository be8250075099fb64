"""Tries samepath's promise on this machine, and writes down what came out.

In: a recipe. Out: a certificate's content, sealed (see certificate.py). The recipe is verified at
every worker count from one to all GPUs, or to all cores where there is no GPU; then its steps are
timed beside torch's DistributedDataParallel, whose own weights are compared too. Guaranteed: bad
input raises before anything is trained; nothing is written; a recipe that DDP does not take is
certified without it. On GPUs this is reasoned, not run: no GPU was there to try it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import samepath
from samepath.console import LiveWatcher, count
from samepath.engine.checks.fingerprints import versions
from samepath.engine.launch.launch import call_workers
from samepath.engine.run.options import Options, resolve
from samepath.engine.run.request import available_workers
from samepath.engine.verify.verify import VerifyRequest, verify
from samepath.errors import UserError
from samepath.insight.certificate import FORMAT, private_words, seal, without_private
from samepath.insight.doctor import examine
from samepath.insight.profile.profile import ProfileRequest, take_all_steps
from samepath.insight.profile.timeline import numbers
from samepath.recipe import find_recipe, refuse_whole_batch
from samepath.version import __version__

RECIPE = "digits"
STEPS = 20
"""Verified at every count."""
TIMED_STEPS = 10
GIT_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Step times and DDP's result at several worker counts."""

    speed: list[dict[str, Any]]
    busy_cores: float
    refused: str
    """Why DDP does not take the recipe; empty where it does."""


def certify(recipe: str, folder: Path, tell: Callable[[str], None]) -> dict[str, Any]:
    """Try the promise; `folder` is where runs would be written."""
    found = find_recipe(recipe, threads=1)
    options = resolve(found)
    counts = worker_counts(torch.cuda.device_count(), available_workers(), options.plan.num_grains)
    tell("looking at this machine")
    findings = examine(folder)
    result = verify(
        VerifyRequest(recipe=recipe, counts=counts, steps=STEPS, tell=tell, display=LiveWatcher)
    )
    try:
        refuse_whole_batch(found, "doctor --certify")
        measured = measure(options, recipe, sorted(set(counts)), tell)
    except UserError as error:
        tell(f"nothing is timed: {error}")
        measured = Measured(speed=[], busy_cores=0.0, refused=str(error))
    digests = {line["ddp_digest"] for line in measured.speed if line["ddp_digest"]}
    plan = options.plan
    content = {
        "format": FORMAT,
        "kind": "certificate",
        "date": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()),
        "samepath": {"version": __version__, "commit": commit()},
        "recipe": Path(recipe).name,
        "recipe_identity": options.identity,
        "device": "GPU" if torch.cuda.device_count() else "CPU",
        "workers": counts,
        "equal": result.equal,
        "trained": {
            **asdict(result.trained),
            "batch_size": plan.batch_size,
            "grain_size": plan.grain_size,
            "seed": options.seed,
            "threads": options.threads,
        },
        "runs": [
            {
                "workers": [leg.num_workers for leg in run.route],
                "steps": run.steps,
                "status": run.status,
                "digest": run.digest,
                "parts_at": run.parts_at,
            }
            for run in result.runs
        ],
        "difference": None if result.difference is None else asdict(result.difference),
        "timed_steps": TIMED_STEPS,
        "speed": measured.speed,
        "busy_cores": measured.busy_cores,
        "ddp": {
            "steps": measured.speed[0]["steps"] if measured.speed else 0,
            "changes": len(digests) > 1 if len(measured.speed) > 1 and digests else None,
            "refused": measured.refused,
        },
        **gpu_facts(),
        "versions": versions(),
        "machine": {finding.name: finding.found for finding in findings},
    }
    return seal(without_private(content, private_words(folder)))


def worker_counts(gpus: int, available: int, num_grains: int) -> list[int]:
    """From one to all that can take part; a single GPU is tried twice, a single core shared."""
    if gpus == 1:
        return [1, 1]
    return list(range(1, max(2, min(available, num_grains)) + 1))


def measure(
    options: Options, recipe: str, counts: list[int], tell: Callable[[str], None]
) -> Measured:
    """Time steps of samepath and DDP in turns; of samepath alone where DDP does not take them."""
    try:
        return _measure(options, recipe, counts, ("samepath", "ddp"), tell)
    except UserError as error:
        tell(f"without DDP: {error}")
        alone = _measure(options, recipe, counts, ("samepath",), tell)
        return Measured(speed=alone.speed, busy_cores=alone.busy_cores, refused=str(error))


def _measure(
    options: Options,
    recipe: str,
    counts: list[int],
    engines: tuple[str, ...],
    tell: Callable[[str], None],
) -> Measured:
    request = ProfileRequest(
        recipe=recipe, engines=engines, timed_steps=TIMED_STEPS, watcher=LiveWatcher
    )
    speed, busy = [], 0.0
    for workers in counts:
        tell(f"timing {recipe} on {count(workers, 'worker')}: {' and '.join(engines)}")
        found = call_workers(take_all_steps, (options, request), workers)[0]
        ours, *others = map(numbers, found["timelines"])
        ddp = others[0].step_seconds if others else None
        busy = max(busy, found["busy_cores"])
        speed.append(
            {
                "workers": workers,
                "steps": found["steps"],
                "seconds": ours.step_seconds,
                "seconds_quartiles": [ours.step_low, ours.step_high],
                "ddp_seconds": ddp,
                "ratio": None if ddp is None else ours.step_seconds / ddp,
                "ddp_digest": found["digests"].get("ddp"),
            }
        )
    return Measured(speed=speed, busy_cores=busy, refused="")


# ---- what is there


def gpu_facts() -> dict[str, Any]:
    """Describe GPUs, their driver and NCCL; "none" where there is no such thing."""
    gpus = []
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        gpus.append(
            {
                "name": about.name,
                "capability": f"{about.major}.{about.minor}",
                "memory_gib": round(about.total_memory / (1 << 30)),
            }
        )
    set_here = {name: os.environ[name] for name in sorted(os.environ) if name.startswith("NCCL_")}
    return {
        "gpus": gpus,
        "driver": _driver(),
        "cuda": torch.version.cuda or "none",
        "nccl": {"version": _nccl(), "variables": set_here},
    }


def _driver(file: Path = Path("/proc/driver/nvidia/version")) -> str:
    with suppress(OSError):
        if found := re.search(r"\d+\.\d+(\.\d+)?", file.read_text(encoding="utf-8")):
            return found[0]
    return "none"


def _nccl() -> str:
    if torch.cuda.is_available():
        with suppress(AttributeError, RuntimeError):  # torch was built without it
            return ".".join(map(str, torch.cuda.nccl.version()))
    return "none"


def commit() -> str:
    """The commit that samepath was installed from, or is a working copy of; empty: not known."""
    with suppress(metadata.PackageNotFoundError, ValueError):
        origin = json.loads(metadata.distribution("samepath").read_text("direct_url.json") or "{}")
        if known := origin.get("vcs_info", {}).get("commit_id"):
            return str(known)
    package = Path(samepath.__file__).parent
    with suppress(OSError, subprocess.SubprocessError):
        top, head = _git(package, "rev-parse", "--show-toplevel", "HEAD").split("\n")
        if Path(top) / "src" / "samepath" == package:  # not another project that we lie in
            changed = _git(package, "status", "--porcelain", "--untracked-files=no", ".")
            return head + (", changed" if changed else "")
    return ""


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        timeout=GIT_SECONDS,
        check=True,
    ).stdout.strip()
