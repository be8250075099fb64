"""What generated nodules are worth to a classifier of real ones."""
