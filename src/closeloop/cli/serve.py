"""`closeloop serve`: receive what running agents send."""

from __future__ import annotations

import os
from pathlib import Path


def serve(*, port: int = 4318, host: str = "127.0.0.1", token: str | None = None) -> None:
    """Receive OpenTelemetry traces of agents, until stopped.

    Parameters
    ----------
    port
        Where to listen; a free port for 0.
    host
        The address to listen at. Any but this machine's own needs a token.
    token
        What callers must send as `Authorization: Bearer TOKEN`; the environment variable
        CLOSELOOP_TOKEN when not given.
    """
    import socket

    import uvicorn

    from closeloop import flow
    from closeloop.cli.config import load
    from closeloop.cli.console import say
    from closeloop.model.errors import BadInput
    from closeloop.web.app import LOOPBACK, application

    token = token or os.environ.get("CLOSELOOP_TOKEN") or None
    if token is None and host not in LOOPBACK:
        raise BadInput(
            f"Anybody who can reach {host} could send: set CLOSELOOP_TOKEN or give --token."
        )
    found = load(Path.cwd())
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        flow.open_named_store(found.settings, found.root) as store,
        socket.socket(family) as bound,
    ):
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, port))
        except (OSError, OverflowError) as error:
            raise BadInput(f"{host} port {port} cannot be had: choose another.") from error
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{bound.getsockname()[1]}"
        say(f"closeloop listens at {address}")
        say(f"  OTEL_EXPORTER_OTLP_ENDPOINT={address}")
        config = uvicorn.Config(
            application(store, token=token),
            access_log=False,
            log_level="warning",
            timeout_graceful_shutdown=5,
        )
        uvicorn.Server(config).run([bound])
