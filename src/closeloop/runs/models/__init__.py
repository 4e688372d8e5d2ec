"""Models: providers over HTTP, and scripts that need none."""

from closeloop.runs.models.budget import budgeted
from closeloop.runs.models.opening import digest_of, open_model, settings_of

__all__ = ["budgeted", "digest_of", "open_model", "settings_of"]
