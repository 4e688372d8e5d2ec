"""The gateway: every agent's way to its model, counted, recorded and kept within its limits."""

from closeloop.gateway.model_gateway import Gateway, open_local_proxy

__all__ = ["Gateway", "open_local_proxy"]
