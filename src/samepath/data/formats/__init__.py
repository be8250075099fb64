"""Readers of file formats, and what is built from them."""
