"""`closeloop serve`: the dashboard, and a place for agents to send their traces to."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from socket import socket

    from starlette.types import ASGIApp

    from closeloop.cli.config import Configuration
    from closeloop.store import Store
    from closeloop.web.desk import Desk
    from closeloop.web.webhooks import Doors

REQUEST_WAIT_SECONDS = 5.0
"""So long a request waits for a database that went away."""


def serve(*, port: int = 4318, host: str = "127.0.0.1", token: str | None = None) -> None:
    """Show the dashboard and receive OpenTelemetry traces of agents, until stopped.

    Parameters
    ----------
    port
        Where to listen; a free port for 0.
    host
        The address to listen at. Any but this machine's own needs a token, or a proxy for logins.
    token
        One that may do everything, sent as `Authorization: Bearer TOKEN`.
        CLOSELOOP_TOKEN when not given.
    """
    import threading

    from msgspec.structs import replace

    from closeloop import flow
    from closeloop.cli.config import load
    from closeloop.cli.judge import opened_bench
    from closeloop.cli.shelves import me
    from closeloop.model.errors import BadInput
    from closeloop.web.app import LOOPBACK, application
    from closeloop.web.desk import Desk
    from closeloop.web.evaluations import Evaluator
    from closeloop.web.pages import prepare
    from closeloop.web.webhooks import Webhooks

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # receiving goes before learning
    token = token or os.environ.get("CLOSELOOP_TOKEN") or None
    is_open = token is None and host in LOOPBACK
    found = load(Path.cwd())
    # Senders wait only for some seconds, and try again when they are told to.
    patience = min(found.settings.store_wait_seconds, REQUEST_WAIT_SECONDS)
    settings = replace(found.settings, store_wait_seconds=patience)
    judges = partial(opened_bench, found, (), None, None)
    with flow.open_named_store(settings, found.root, may_be_read_only=True) as store:
        if not (is_open or token or found.settings.serve.user_header or _has_token(store)):
            raise BadInput(
                f"Anybody who can reach {host} could read and send: make a token with "
                "`closeloop token new`, or set CLOSELOOP_TOKEN."
            )
        desk = Desk(store, found.settings, found.root)
        desk.user = me()
        threading.Thread(target=prepare, args=(desk,), daemon=True).start()
        app = application(
            store, token=token, is_open=is_open, desk=desk, evaluator=Evaluator(judges)
        )
        with _bound(host, port) as place:
            _tell(host, place)
            _run(Webhooks(app, store, _doors(found, desk)), desk, place)


def _doors(found: Configuration, desk: Desk) -> Doors:
    """What webhooks need, and what learns from what they bring."""
    from msgspec.structs import replace

    from closeloop.cli.doors import doors_of
    from closeloop.cli.memory import run_learning
    from closeloop.cli.shelves import Opened

    at, model = Opened(found, desk.store), found.settings.memory.model
    learn = partial(run_learning, at, None, model, desk.stopping.is_set)
    return replace(doors_of(found.settings, os.environ), learn=learn)


def _has_token(store: Store) -> bool:
    return any(token.revoked is None for token in store.access.tokens())


def _bound(host: str, port: int) -> socket:
    import socket

    from closeloop.model.errors import BadInput

    place = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        place.bind((host, port))
    except (OSError, OverflowError) as error:
        place.close()
        raise BadInput(f"{host} port {port} cannot be had: choose another.") from error
    return place


def _tell(host: str, place: socket) -> None:
    from closeloop.cli.console import say

    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{place.getsockname()[1]}"
    say(f"closeloop listens at {address}")
    say(f"  the dashboard: open {address} in a browser")
    say(f"  OTEL_EXPORTER_OTLP_ENDPOINT={address}")


def _run(app: ASGIApp, desk: Desk, place: socket) -> None:
    """Until somebody stops it; then nobody who waits for news holds it up."""
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: Any) -> None:
            desk.stopping.set()
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        proxy_headers=False,  # who is believed is said in [serve]
        timeout_graceful_shutdown=5,
    )
    Server(config).run([place])
