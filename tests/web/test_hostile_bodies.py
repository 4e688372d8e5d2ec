"""Whatever body a client sends, or stops sending: it is refused, and nobody else waits for it."""

from __future__ import annotations

import gzip
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from closeloop.store import open_store
from closeloop.web import auth_middleware, otlp_receiver
from closeloop.web.auth_middleware import BodyMemory, RequestRefused, decompress_gzip
from patience import PATIENCE, takes, until

TRACE = "5b8efff798038103d269b633813fc60c"
GZIP = {"content-type": "application/json", "content-encoding": "gzip"}
PROTOBUF = {"content-type": "application/x-protobuf"}
EMPTY_MEMBER = gzip.compress(b"")


def export(attributes: dict[str, str], spans: int = 1, **resource: str) -> bytes:
    """An export in JSON."""

    def pairs(given: dict[str, str]) -> list[dict[str, Any]]:
        return [{"key": key, "value": {"stringValue": value}} for key, value in given.items()]

    sent = [
        {
            "traceId": TRACE,
            "spanId": f"{number + 1:016x}",
            "name": "chat",
            "startTimeUnixNano": "1",
            "endTimeUnixNano": "2",
            "attributes": pairs(attributes),
        }
        for number in range(spans)
    ]
    group = {"resource": {"attributes": pairs(resource)}, "scopeSpans": [{"spans": sent}]}
    return msgspec.json.encode({"resourceSpans": [group]})


class Server:
    """`closeloop serve`, and what it printed."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log.txt"
        (folder / "closeloop.toml").touch()
        environ = {key: value for key, value in os.environ.items() if key != "CLOSELOOP_TOKEN"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "closeloop", "serve", "--port", "0"],
                cwd=folder,
                env={**environ, "CLOSELOOP_GITHUB_SECRET": "s3cret"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.address = until(self._find_address)
        assert until(self.answers)

    def _find_address(self) -> str:
        first, newline, _ = self.log.read_text().partition("\n")
        return first.split()[-1] if newline else ""

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.address}/health", timeout=PATIENCE).is_success
        except httpx.TransportError:
            return False

    def connect(self, path: str, *headers: str) -> socket.socket:
        """A connection on which the head of a POST was sent."""
        opened = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        head = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", *headers]
        opened.sendall(("\r\n".join(head) + "\r\n\r\n").encode())
        return opened


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("served"))
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


@contextmanager
def sending(send: Callable[[], httpx.Response]) -> Iterator[Any]:
    """Send a request from another thread, while the block runs."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(send)


def post_traces(server: Server, body: bytes, headers: dict[str, str]) -> httpx.Response:
    address = f"{server.address}/v1/traces"
    return httpx.post(address, content=body, headers=headers, timeout=PATIENCE)


def test_thousands_of_gzip_members_are_refused_and_hold_nobody_up(server: Server) -> None:
    body = EMPTY_MEMBER * (otlp_receiver.BODY_LIMIT // len(EMPTY_MEMBER))
    with sending(lambda: post_traces(server, body, GZIP)) as hostile:
        for _ in range(20):
            assert server.answers()
        answer = hostile.result(PATIENCE)
    assert answer.status_code == 413
    assert "gzip members" in answer.json()["message"]


def test_pages_are_answered_while_a_heavy_body_is_worked_on(server: Server) -> None:
    """To look for secrets in this one takes the server seconds."""
    body = gzip.compress(export({"text": "api_key = " * (1 << 20)}), 1)
    assert len(body) < otlp_receiver.BODY_LIMIT
    with sending(lambda: post_traces(server, body, GZIP)) as hostile:
        asked = 0
        while not hostile.done():
            assert server.answers()
            assert httpx.get(f"{server.address}/rules", timeout=PATIENCE).status_code == 200
            asked += not hostile.done()
        assert hostile.result().status_code == 200
    assert asked > 0


def test_many_heavy_bodies_leave_threads_for_pages(server: Server) -> None:
    """There are more of them than threads that pages have."""
    body = gzip.compress(export({"text": "api_key = " * (1 << 14)}), 1)
    with ThreadPoolExecutor(60) as pool:
        hostile = [pool.submit(post_traces, server, body, GZIP) for _ in range(60)]
        asked = 0
        while not all(each.done() for each in hostile):
            assert httpx.get(f"{server.address}/rules", timeout=PATIENCE).status_code == 200
            asked += not all(each.done() for each in hostile)
        assert {each.result().status_code for each in hostile} == {200}
    assert asked > 0


def test_a_large_resource_is_not_kept_once_for_each_of_many_spans(server: Server) -> None:
    body = gzip.compress(export({}, spans=5000, big="x" * (10 << 20)))
    with sending(lambda: post_traces(server, body, GZIP)) as hostile:
        assert server.answers()
        assert hostile.result(PATIENCE).status_code == 413


def test_more_spans_than_a_request_may_have_are_refused(server: Server) -> None:
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for number in range(otlp_receiver.MAX_SPANS + 1):
        spans.add(trace_id=b"\1", span_id=number.to_bytes(4, "big"))
    answer = post_traces(server, request.SerializeToString(), PROTOBUF)
    assert answer.status_code == 413
    assert b"send fewer" in answer.content


def test_bodies_that_are_not_http_leave_no_traceback(server: Server) -> None:
    for path in ("/webhooks/github", "/v1/traces", "/nope"):
        for _ in range(3):
            opened = server.connect(path, "transfer-encoding: chunked\r\n\r\nno size")
            assert opened.recv(100)
            opened.close()
    assert server.answers()
    assert "Traceback" not in server.log.read_text()


ENCODINGS = ["deflate", "zstd", "br", "gzip, gzip", "identity, gzip", "x-gzip", "\u00e9"]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_encodings_that_are_not_known_are_refused_unread(encoding: str, server: Server) -> None:
    headers = {"content-type": "application/json", "content-encoding": encoding.encode("latin-1")}
    assert post_traces(server, b"{}", headers).status_code == 415  # type: ignore[arg-type]


def test_chunks_of_one_byte_hold_nobody_up(server: Server) -> None:
    content = b" " * 200_000
    with server.connect(
        "/v1/traces", "content-type: application/json", "transfer-encoding: chunked"
    ) as opened:
        chunks = b"1\r\n \r\n" * len(content)
        with ThreadPoolExecutor(1) as pool:
            hostile = pool.submit(opened.sendall, chunks)
            assert server.answers()
            hostile.result(PATIENCE)
        assert server.answers()
        opened.sendall(b"2\r\n{}\r\n0\r\n\r\n")
        assert opened.recv(100).startswith(b"HTTP/1.1 200")


PLACES = {
    "/v1/traces": ("content-type: application/json",),
    "/webhooks/github": ("x-hub-signature-256: sha256=" + "0" * 64,),
    "/login": ("content-type: application/x-www-form-urlencoded",),
    "/memory": ("cookie: closeloop_{port}=x", "content-type: application/x-www-form-urlencoded"),
    "/api/review": ("cookie: closeloop_{port}=x", "content-type: application/json"),
    "/api/evaluations": ("cookie: closeloop_{port}=x", "content-type: application/json"),
}


def test_clients_that_leave_in_the_middle_leave_no_traceback(server: Server) -> None:
    for path, headers in PLACES.items():
        given = [header.format(port=server.port) for header in headers]
        for ending in ("content-length: 100", "transfer-encoding: chunked"):
            opened = server.connect(path, *given, ending)
            opened.sendall(b"5\r\nabcde\r\n")
            assert server.answers()
            opened.close()
            # What is asked on a new connection comes after the end of the old one is seen.
            assert server.answers()
    assert "Traceback" not in server.log.read_text()
    assert server.process.poll() is None


@pytest.mark.parametrize("path", ["/v1/traces", "/login"])
def test_a_body_that_never_ends_is_given_up(
    path: str, serve: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(auth_middleware, "BODY_SECONDS", 0.3)
    with open_store(str(tmp_path / "a.db")) as store, serve(store) as address:
        port = int(address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as opened:
            head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"
            opened.sendall(head.encode() + b"1\r\n \r\n")
            assert httpx.get(f"{address}/health", timeout=PATIENCE).is_success
            assert opened.recv(100).startswith(b"HTTP/1.1 408")


def test_decompression_is_linear_in_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth_middleware, "MAX_GZIP_MEMBERS", 1 << 30)

    def decompress(members: int) -> Callable[[int], object]:
        return lambda number: decompress_gzip(EMPTY_MEMBER * members, 1 << 20)

    small = takes(decompress(10_000), 0.0)
    assert takes(decompress(80_000), 20 * small) < 40 * small


def test_decompression_stops_at_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    random = os.urandom(100_000)
    several = b"".join(gzip.compress(random[at : at + 1000]) for at in range(0, 100_000, 1000))
    assert decompress_gzip(several, 100_000) == random
    assert decompress_gzip(gzip.compress(random), 100_000) == random
    for limit in (0, 1, 99_999):
        with pytest.raises(RequestRefused, match="may be at most"):
            decompress_gzip(several, limit)
    for cut in (several[:-1], several[:-9], EMPTY_MEMBER + b"\x1f"):
        with pytest.raises(RequestRefused, match="is truncated"):
            decompress_gzip(cut, 100_000)
    with pytest.raises(RequestRefused, match="not gzip"):
        decompress_gzip(several + b"more", 100_000)
    monkeypatch.setattr(auth_middleware, "DECOMPRESS_SECONDS", -1.0)
    with pytest.raises(RequestRefused, match="too long"):
        decompress_gzip(several, 100_000)


def test_bodies_of_all_requests_together_have_a_limit() -> None:
    import anyio

    async def send(size: int) -> Any:
        return {"type": "http.request", "body": bytes(size), "more_body": False}

    async def go() -> None:
        memory = BodyMemory(limit=10)
        async with memory.hold_body(lambda: send(6), 8, "too long") as body:
            assert len(body) == memory.used_bytes == 6
            with pytest.raises(RequestRefused) as refused:
                await memory.read_body(lambda: send(5), 8, "too long")
            assert refused.value.status == 503
            assert len(await memory.read_body(lambda: send(4), 8, "too long")) == 4
        assert memory.used_bytes == 0

    anyio.run(go)
