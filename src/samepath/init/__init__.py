"""A first recipe, written from what a person has: data on disk, or a training script."""
