"""What would break the promise, found and refused by name."""
