"""`samepath.lightning.recipe`: a LightningModule as a recipe."""

from samepath.adapters.lightning import recipe

__all__ = ["recipe"]
