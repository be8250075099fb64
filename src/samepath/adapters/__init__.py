"""Recipes made of what other libraries' people have. No library is imported before it is used."""
