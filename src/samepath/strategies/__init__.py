"""How batch, learning rate and synchronisation change with k workers: one rule family a file."""

from samepath.strategies.choice import (
    Adversarial,
    Choice,
    Measure,
    Moment,
    OtherOptimizer,
    Strategy,
    Synchronisation,
)
from samepath.strategies.registry import BUILT_IN, FoundStrategy, find_strategy, register_strategy

__all__ = [
    "BUILT_IN",
    "Adversarial",
    "Choice",
    "FoundStrategy",
    "Measure",
    "Moment",
    "OtherOptimizer",
    "Strategy",
    "Synchronisation",
    "find_strategy",
    "register_strategy",
]
