"""A training as it lies on disk: state and digest, checkpoints, run folder, metrics log."""
