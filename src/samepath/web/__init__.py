"""Local pages: a server on this machine only, for looking at things and deciding about them."""
