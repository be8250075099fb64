"""Run folders for tests of `samepath ui`, and a server of them in a thread."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DIGEST = "d4bc0797" * 8
PER_EPOCH = 10


def step_line(step: int, *, seconds: float = 0.01, first_loss: float = 2.0) -> dict[str, Any]:
    high = None if step < 5 else 90.0
    noise = {"noise_scale": 30.0 + step, "noise_low": 20.0, "noise_high": high}
    return {
        "step": step,
        "epoch": (step - 1) // PER_EPOCH,
        "train_loss": first_loss * math.exp(-step / 50) + 0.1,
        "learning_rate": 0.1,
        "gradient_norm": 1.0 + 1.0 / step,
        **(noise if step > 2 else dict.fromkeys(noise)),
        "seconds": seconds * step,
    }


def metrics_lines(num_steps: int, **how: float) -> Iterator[str]:
    for step in range(1, num_steps + 1):
        line = step_line(step, **how)
        yield json.dumps(line)
        if step % PER_EPOCH == 0:
            ended = {
                "step": step, "epoch": line["epoch"], "batch_size": 32,
                "epoch_train_loss": line["train_loss"], "valid_accuracy": 1 - 1 / step,
                "valid_loss": line["train_loss"] + 0.05, "seconds": line["seconds"],
            }  # fmt: skip
            yield json.dumps(ended)


def make_run(
    path: Path,
    num_steps: int = 30,
    *,
    status: str = "finished",
    digest: str = DIGEST,
    recipe: str = "digits",
    seconds: float = 0.01,
    first_loss: float = 2.0,
    **config: Any,
) -> Path:
    """A folder as `samepath train` writes it."""
    path.mkdir(parents=True)
    lines = list(metrics_lines(num_steps, seconds=seconds, first_loss=first_loss))
    (path / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    result = {
        "status": status, "steps": num_steps, "epochs": num_steps / 10, "train_loss": 0.5,
        "valid_loss": 0.6, "metrics": {"accuracy": 0.9, "loss": 0.6}, "digest": digest,
        "num_workers": 2, "step_seconds": 0.01, "examples_per_second": 3200.0, "seconds": 0.3,
        "message": "", "noise_scale": 42.0, "noise_low": 30.0, "noise_high": 60.0,
    }  # fmt: skip
    start = {
        "command": ["/bin/samepath", "train", recipe, "--out", str(path)],
        "versions": {"torch": "2.13.0"},
        "time": 1_700_000_000.0,
        "host": "node7",
    }
    record = {
        "status": status,
        "config": {
            "recipe": recipe, "batch_size": 32, "num_examples": 320, "epochs": 10, "steps": None,
            "strategy": "strong", "seed": 0, **config,
        },
        "starts": [start],
        "result": None if status in ("running", "failed") else result,
    }  # fmt: skip
    (path / "run.json").write_text(json.dumps(record))
    return path


def make_finding(path: Path, kind: str, html: str = "", **content: Any) -> Path:
    """A folder as `samepath advise` and the like write it."""
    path.mkdir(parents=True)
    about = {"format": 1, "kind": kind, "recipe": "digits", "command": ["samepath", kind, "digits"]}
    (path / f"{kind}.html").write_text(html)
    (path / f"{kind}.json").write_text(json.dumps(about | content))
    return path


@contextmanager
def serving_ui(folder: Path) -> Iterator[str]:
    """A server of a folder, in a thread; its address."""
    from explorer_pages import answering

    from samepath.web.dashboard.app import open_ui

    with open_ui(folder) as page, answering(page):
        yield page.address
