"""Steps on machines that are not there."""
