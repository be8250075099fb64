"""What a run, a recipe and a machine say: how many workers, which batch, and why."""
