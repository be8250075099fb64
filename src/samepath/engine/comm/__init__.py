"""Who this worker is, and how workers talk to each other."""
