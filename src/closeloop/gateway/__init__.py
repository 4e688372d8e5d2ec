"""The gateway: every agent's access to its model, counted, recorded and limited."""

from closeloop.gateway.model_gateway import Gateway, open_local_proxy

__all__ = ["Gateway", "open_local_proxy"]
