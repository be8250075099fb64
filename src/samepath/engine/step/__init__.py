"""One step: load, forward, backward, reduce, update."""
