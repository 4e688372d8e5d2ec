"""A provider that behaves as badly as it is told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class Provider:
    """Answers with one step after another, the last one for ever, and keeps what it was asked."""

    def __init__(self) -> None:
        self.steps: list[Callable[[Any], None]] = []
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.address = ""

    def says(self, *steps: Any) -> None:
        """A dict is a 200 with that JSON; a pair is a status and a JSON; a function does it all."""
        self.steps = [step if callable(step) else _answer(step) for step in steps]


def _answer(step: Any) -> Callable[[Any], None]:
    status, content = step if isinstance(step, tuple) else (200, step)

    def send(handler: Any) -> None:
        handler.send(status, json.dumps(content).encode())

    return send


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    provider: Provider

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        provider = self.provider
        provider.asked.append(json.loads(body))
        provider.headers.append({name.lower(): value for name, value in self.headers.items()})
        provider.paths.append(self.path)
        step = provider.steps[min(len(provider.asked), len(provider.steps)) - 1]
        step(self)

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Clients that hang up are part of the test."""


@pytest.fixture
def provider() -> Iterator[Provider]:
    provider = Provider()
    handler = type("Handler", (_Handler,), {"provider": provider})
    server = _Server(("127.0.0.1", 0), handler)
    provider.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield provider
    server.shutdown()
    server.server_close()
    thread.join()
