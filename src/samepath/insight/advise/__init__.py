"""How many workers are worth it."""
