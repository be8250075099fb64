"""`samepath.huggingface.recipe`: a transformers model as a recipe."""

from samepath.adapters.huggingface import recipe

__all__ = ["recipe"]
