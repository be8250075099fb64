"""Recipes that come with samepath; the list is `samepath.builtin.BUILT_IN`."""
