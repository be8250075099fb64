"""Curation: features, their map, clusters per class, reasons, a keep-list.

Folders of the flow before this one train; this one looks at what the training data is like. Each
stage is a module that can be used alone: `features`, `embed`, `cluster`, `reasons`, `sampling`,
`keep`; `pipeline.curate` runs them in order, with a cache.
"""
