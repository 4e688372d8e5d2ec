"""`closeloop serve`: the dashboard, and a place for agents to send their traces to."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from socket import socket

    from starlette.types import ASGIApp

    from closeloop.cli.config import ProjectConfiguration
    from closeloop.store import Store
    from closeloop.web.page_context import PageContext
    from closeloop.web.webhooks import WebhookSecrets

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
    from closeloop.cli.config import load_project
    from closeloop.cli.judge import open_configured_panel
    from closeloop.cli.review_context import current_user
    from closeloop.records.errors import BadInput
    from closeloop.web.app import LOOPBACK, build_web_app
    from closeloop.web.evaluation_endpoints import SubmissionEvaluator
    from closeloop.web.page_context import PageContext
    from closeloop.web.pages import warm_up_pages
    from closeloop.web.webhooks import WebhookMiddleware

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # receiving goes before learning
    token = token or os.environ.get("CLOSELOOP_TOKEN") or None
    is_open = token is None and host in LOOPBACK
    project = load_project(Path.cwd())
    # Senders wait only for some seconds, and try again when they are told to.
    wait_seconds = min(project.settings.store_wait_seconds, REQUEST_WAIT_SECONDS)
    settings = replace(project.settings, store_wait_seconds=wait_seconds)
    panel_opener = partial(open_configured_panel, project, (), None, None)
    with flow.open_project_store(settings, project.root, may_be_read_only=True) as store:
        if not (is_open or token or project.settings.serve.user_header or _has_valid_token(store)):
            raise BadInput(
                f"Anybody who can reach {host} could read and send: make a token with "
                "`closeloop token new`, or set CLOSELOOP_TOKEN."
            )
        page_context = PageContext(store, project.settings, project.root)
        page_context.user = current_user()
        threading.Thread(target=warm_up_pages, args=(page_context,), daemon=True).start()
        app = build_web_app(
            store,
            token=token,
            is_open=is_open,
            desk=page_context,
            evaluator=SubmissionEvaluator(panel_opener),
        )
        with _bind_socket(host, port) as bound_socket:
            _print_addresses(host, bound_socket)
            _run_server(
                WebhookMiddleware(app, store, _build_webhook_secrets(project, page_context)),
                page_context,
                bound_socket,
            )


def _build_webhook_secrets(found: ProjectConfiguration, desk: PageContext) -> WebhookSecrets:
    """What webhooks need, and what learns from what they bring."""
    from msgspec.structs import replace

    from closeloop.cli.memory import run_learning
    from closeloop.cli.review_context import ReviewContext
    from closeloop.cli.webhook_settings import webhook_secrets_from_settings

    review_context, model = ReviewContext(found, desk.store), found.settings.memory.model
    learn = partial(run_learning, review_context, None, model, desk.stopping.is_set)
    return replace(webhook_secrets_from_settings(found.settings, os.environ), learn=learn)


def _has_valid_token(store: Store) -> bool:
    return any(token.revoked is None for token in store.access.list_tokens())


def _bind_socket(host: str, port: int) -> socket:
    import socket

    from closeloop.records.errors import BadInput

    server_socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    server_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server_socket.bind((host, port))
    except (OSError, OverflowError) as error:
        server_socket.close()
        raise BadInput(f"{host} port {port} cannot be had: choose another.") from error
    return server_socket


def _print_addresses(host: str, place: socket) -> None:
    from closeloop.cli.console import print_line

    host_text = f"[{host}]" if ":" in host else host
    address = f"http://{host_text}:{place.getsockname()[1]}"
    print_line(f"closeloop listens at {address}")
    print_line(f"  the dashboard: open {address} in a browser")
    print_line(f"  OTEL_EXPORTER_OTLP_ENDPOINT={address}")


def _run_server(app: ASGIApp, desk: PageContext, place: socket) -> None:
    """Until somebody stops it; then nobody who waits for news holds it up."""
    import uvicorn

    class StoppableServer(uvicorn.Server):
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
    StoppableServer(config).run([place])
