"""`samepath.monai.recipe`: a MONAI bundle as a recipe."""

from samepath.adapters.monai import recipe

__all__ = ["recipe"]
