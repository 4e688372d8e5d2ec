"""Deliveries of webhooks over HTTP into SQLite, acknowledged when they are kept."""

from __future__ import annotations

import hmac
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness import REFERENCE, Bench
from table import Row, build_row

SECRET = b"a secret of the bench"
DELIVERIES, CONNECTIONS = 3000, 32


def measure(bench: Bench) -> Iterator[Row]:
    deliveries = bench.size(DELIVERIES, 40)
    times = bench.repeat(lambda: deliver(deliveries), warm_up=lambda: deliver(2 * CONNECTIONS))
    yield build_row(
        f"a webhook kept and acknowledged, of {deliveries:,}, CPU", times["cpu"], "ms",
        floor=times["reference"], against=REFERENCE, budget=0.5,
    )  # fmt: skip


def payload(number: int) -> bytes:
    """About as long as what GitHub sends of a pull request."""
    links = {
        f"link_{each}": f"https://api.example.org/repos/ann/tally/{each}" for each in range(160)
    }
    user = {"login": "ann", "type": "User", "id": 7}
    sha = f"{number:040x}"
    pull = {
        "number": number % 500 + 1,
        "title": f"Change {number}",
        "body": "What it does, in some words. " * 20,
        "state": "open",
        "user": user,
        "head": {"ref": f"claude/change-{number % 500}", "sha": sha, "repo": links},
        "base": {"ref": "main", "sha": "0" * 40},
        "created_at": "2026-01-05T09:00:00Z",
        "updated_at": f"2026-01-05T09:{number // 60 % 60:02}:{number % 60:02}Z",
    }
    event = {
        "action": "synchronize",
        "number": pull["number"],
        "before": f"{number - 1:040x}",
        "after": sha,
        "pull_request": pull,
        "repository": {"full_name": "ann/tally", "default_branch": "main", **links},
        "sender": user,
    }
    return json.dumps(event).encode()


def request(number: int) -> bytes:
    body = payload(number)
    signed = hmac.digest(SECRET, body, "sha256").hex()
    head = (
        "POST /webhooks/github HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"x-github-event: pull_request\r\nx-github-delivery: bench-{number}\r\n"
        f"x-hub-signature-256: sha256={signed}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def serve(store: str, port_file: str) -> None:
    """The server, until its input ends; then what it used."""
    import uvicorn

    from closeloop.reviews.authorship import merge_known_agents
    from closeloop.store import open_store
    from closeloop.web.app import build_web_app
    from closeloop.web.webhooks import WebhookConfiguration, WebhookMiddleware

    with open_store(store) as opened, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        doors = WebhookConfiguration(github=SECRET.decode(), agents=merge_known_agents({}))
        app = WebhookMiddleware(build_web_app(opened, token=None), opened, doors)
        server = uvicorn.Server(uvicorn.Config(app, access_log=False, log_level="warning"))

        def tell() -> None:
            for line in sys.stdin:
                if line.strip() == "used":
                    used = resource.getrusage(resource.RUSAGE_SELF)
                    kept = sum(opened.pulls.count_arrivals().values())
                    print(json.dumps([used.ru_utime + used.ru_stime, kept]), flush=True)
            server.should_exit = True

        threading.Thread(target=tell, daemon=True).start()
        bound.listen(CONNECTIONS)  # who comes before it serves waits
        Path(port_file).write_text(str(bound.getsockname()[1]))
        server.run([bound])


def drive(port: int, requests: list[bytes]) -> int:
    """Send some over one connection; how many were acknowledged."""
    taken = 0
    with socket.create_connection(("127.0.0.1", port)) as link:
        for one in requests:
            link.sendall(one)
            answer = b""
            while b"\r\n\r\n" not in answer:
                part = link.recv(4096)
                if not part:
                    return taken
                answer += part
            taken += answer.startswith(b"HTTP/1.1 202")
    return taken


def deliver(deliveries: int) -> dict[str, float]:
    """The server's CPU seconds for one."""
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder, "port")
        argv = [sys.executable, __file__, "serve", f"{folder}/store.db", str(port_file)]
        with subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as server:
            try:
                return {"cpu": _deliver_all(server, port_file, deliveries)}
            finally:
                assert server.stdin is not None
                server.stdin.close()


def _deliver_all(server: subprocess.Popen[str], port_file: Path, deliveries: int) -> float:
    assert server.stdin is not None
    assert server.stdout is not None

    def ask_server() -> tuple[float, int]:
        """The CPU seconds it used, and how many deliveries it has."""
        print("used", file=server.stdin, flush=True)
        cpu, kept = json.loads(server.stdout.readline())
        return cpu, kept

    while not (port_file.exists() and port_file.read_text()):
        assert server.poll() is None, "the server ended"
        time.sleep(0.01)
    port = int(port_file.read_text())
    parts = [[request(n) for n in range(c, deliveries, CONNECTIONS)] for c in range(CONNECTIONS)]
    drive(port, [request(deliveries + 1)])
    before, _ = ask_server()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        taken = sum(pool.map(lambda part: drive(port, part), parts))
    after, kept = ask_server()
    assert taken == deliveries == kept - 1, (taken, kept)
    return (after - before) / taken


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(*sys.argv[2:4])
        os._exit(0)
