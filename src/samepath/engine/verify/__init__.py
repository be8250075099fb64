"""Trace runs at several worker counts, compare them, explain what differs."""
