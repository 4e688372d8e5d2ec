"""Goose: what its files and its database have in common."""
