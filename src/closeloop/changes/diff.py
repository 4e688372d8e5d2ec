"""What a patch changes, and which of its files some globs mean."""

from closeloop.model.globs import matches
from closeloop.model.patches import parse

__all__ = ["matches", "parse"]
