"""Curation: features, their map, clusters per class, reasons, a keep-list (`pipeline.curate`)."""
