"""Strategies x workers x seeds, raced to a target loss; batch sizes x learning rates."""
