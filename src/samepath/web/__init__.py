"""Local pages, served to this machine only: the dashboard of runs and the explorer of curations."""
