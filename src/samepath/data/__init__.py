"""Examples: sources by index, per-example randomness, readers."""

from samepath.data.loaders import Loaders
from samepath.data.randomness import Draws, seed_everything
from samepath.data.sources import DatasetSource, GrainRequest, Source, TensorSource, as_source

__all__ = [
    "DatasetSource",
    "Draws",
    "GrainRequest",
    "Loaders",
    "Source",
    "TensorSource",
    "as_source",
    "seed_everything",
]
