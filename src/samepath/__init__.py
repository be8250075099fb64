"""samepath: add workers, keep the path.

The names below load on first use, so that `import samepath` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from samepath.version import __version__

if TYPE_CHECKING:
    from samepath.data import Draws as Draws
    from samepath.engine.noise_scale import NoiseScale as NoiseScale
    from samepath.engine.run.session import Session as Session
    from samepath.engine.run.session import start as start
    from samepath.errors import UserError as UserError
    from samepath.notebook import TrainedRun as TrainedRun
    from samepath.notebook import train as train
    from samepath.notebook import verify as verify
    from samepath.output.export import export as export
    from samepath.output.predict import predict as predict
    from samepath.plan import WeightedSampler as WeightedSampler
    from samepath.recipe import Recipe as Recipe
    from samepath.strategies import Choice as Choice
    from samepath.strategies import Moment as Moment
    from samepath.strategies import register_strategy as register_strategy

_HOMES = {
    "Choice": "samepath.strategies",
    "Draws": "samepath.data",
    "Moment": "samepath.strategies",
    "NoiseScale": "samepath.engine.noise_scale",
    "Recipe": "samepath.recipe",
    "Session": "samepath.engine.run.session",
    "TrainedRun": "samepath.notebook",
    "UserError": "samepath.errors",
    "WeightedSampler": "samepath.plan",
    "export": "samepath.output.export",
    "predict": "samepath.output.predict",
    "register_strategy": "samepath.strategies",
    "start": "samepath.engine.run.session",
    "train": "samepath.notebook",
    "verify": "samepath.notebook",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'samepath' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
