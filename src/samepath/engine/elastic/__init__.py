"""Workers that come and go: rendezvous, the last step in memory, recovery."""
