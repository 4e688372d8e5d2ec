"""Models: providers over HTTP, and scripts that need none."""

from closeloop.runs.models.opening import digest_of, open_model, settings_of

__all__ = ["digest_of", "open_model", "settings_of"]
