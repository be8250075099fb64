"""Finding out which worker this process is, and talking to the other workers."""
