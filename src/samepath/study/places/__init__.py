"""Training the runs of a study on a cluster: Dask's workers or Ray's nodes."""
