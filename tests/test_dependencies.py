"""What a set-up installs: torchvision is never part of it.

torchvision's builds fit one torch each; with one that does not fit ours in the environment,
`import lightning` and others that look for it crash.
"""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def required() -> dict[str, str]:
    """Every package that samepath with all its extras needs, and which package asks for it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    asked = [*project["dependencies"], *(line for extra in extras for line in extra)]
    found: dict[str, str] = {}
    left = [(Requirement(line), "samepath") for line in asked]
    while left:
        package, by = left.pop()
        name = canonicalize_name(package.name)
        if name in found:
            continue
        found[name] = by
        try:
            lines = requires(name) or []
        except PackageNotFoundError:  # of an extra that is not installed here
            continue
        for needed in map(Requirement, lines):
            markers = [{"extra": extra} for extra in ("", *package.extras)]
            if needed.marker is None or any(map(needed.marker.evaluate, markers)):
                left.append((needed, name))
    return found


def test_nothing_we_install_requires_torchvision() -> None:
    found = required()
    assert {"torch", "pytest", "sympy"} <= set(found), "direct requirements and those behind them"
    assert "torchvision" not in found, f"{found['torchvision']} requires it"
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().split()}
    assert "torch" in pinned
    assert "torchvision" not in pinned
