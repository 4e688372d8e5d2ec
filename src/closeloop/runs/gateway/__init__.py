"""The gateway: every agent's way to its model, counted, recorded and kept within its limits."""

from closeloop.runs.gateway.gateway import Gateway, local

__all__ = ["Gateway", "local"]
