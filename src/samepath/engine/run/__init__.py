"""A run: its configuration, the loop of epochs, one worker's entry, train()."""
