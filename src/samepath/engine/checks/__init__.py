"""Checks that find what would break the promise, and refuse it by name."""
