"""Models: providers over HTTP, and scripts that need none."""

from closeloop.providers.model_opening import digest_model, find_model_settings, open_model

__all__ = ["digest_model", "find_model_settings", "open_model"]
