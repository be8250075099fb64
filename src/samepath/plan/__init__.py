"""Pure arithmetic, no torch: which examples, which grains, which worker, in which order to add."""

from samepath.plan.assignment import assign
from samepath.plan.link import LinkSpeed, bucket_bytes, parse_speed, whole_bytes
from samepath.plan.order import (
    Batch,
    Plan,
    count_steps,
    epoch_order,
    grain_size_asked,
    grain_size_for,
)
from samepath.plan.sampling import WeightedSampler
from samepath.plan.shares import Division, divide
from samepath.plan.tree import Reduction, reduction, settled

__all__ = [
    "Batch",
    "Division",
    "LinkSpeed",
    "Plan",
    "Reduction",
    "WeightedSampler",
    "assign",
    "bucket_bytes",
    "count_steps",
    "divide",
    "epoch_order",
    "grain_size_asked",
    "grain_size_for",
    "parse_speed",
    "reduction",
    "settled",
    "whole_bytes",
]
