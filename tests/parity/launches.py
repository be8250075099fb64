"""What every worker of every launch found, for tests that run one body at several settings."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from samepath.engine.launch.launch import launch
from samepath.engine.run.session import Link

Found = dict[str, dict[str, Any]]
Everything = dict[tuple[int, str], list[Found]]


def launch_at(
    settings: Iterable[tuple[int, Link]],
    body: Callable[[Link, str], None],
    folders: pytest.TempPathFactory,
) -> Everything:
    """Run a body, which leaves worker-N.json in the folder it is given, at each setting."""
    everything: Everything = {}
    for num_workers, link in settings:
        folder = folders.mktemp(f"{link}-{num_workers}")
        launch(body, (link, str(folder)), num_workers)
        everything[num_workers, link] = [
            json.loads((folder / f"worker-{worker}.json").read_text())
            for worker in range(num_workers)
        ]
    return everything


def slurm_answers() -> bool:
    """A Slurm controller can be asked; the programs alone are no cluster."""
    if shutil.which("srun") is None:
        return False
    asked = subprocess.run(["scontrol", "ping"], capture_output=True, timeout=30, check=False)
    return asked.returncode == 0
