"""OTLP over HTTP: `POST /v1/traces`, as the OpenTelemetry protocol describes it.

https://opentelemetry.io/docs/specs/otlp/#otlphttp
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from starlette.requests import Request
from starlette.responses import Response

from closeloop.records.errors import BadInput, Fault, MachineFailed
from closeloop.store import Store
from closeloop.store.record_bodies import encode_record
from closeloop.traces.readers.otel_sessions import OtelSpan
from closeloop.traces.readers.otlp import spans_from_json, spans_from_protobuf
from closeloop.traces.session_import import build_trace_session, save_spans
from closeloop.web.auth_middleware import (
    BodyMemory,
    RequestRefused,
    decompress_gzip,
    request_media_type,
)

JSON, PROTOBUF = "application/json", "application/x-protobuf"
BODY_LIMIT, UNPACKED_LIMIT, KEPT_LIMIT = 4 << 20, 16 << 20, 64 << 20
"""Byte limits of a request: as received, decompressed, and with each span's resource repeated."""
MAX_SPANS = 50_000
MAX_WORKERS = 2
"""Requests that are decompressed and saved at a time; the others wait."""
_HEX_ID = re.compile(r"[0-9a-f]{1,64}")


TracesArrived = Callable[[set[str]], None]


def make_otlp_endpoint(store: Store, arrived: TracesArrived) -> Callable[[Request], Any]:
    """Build the endpoint; it reports to `arrived` which traces have new spans."""
    memory, workers = BodyMemory(), anyio.CapacityLimiter(MAX_WORKERS)

    async def receive_spans(request: Request) -> Response:
        kind = request_media_type(request)
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        too_long = f"A request may be at most {BODY_LIMIT >> 20} MiB: send fewer spans."
        try:
            async with memory.hold_body(request.receive, BODY_LIMIT, too_long) as body:
                read = partial(_save_body_spans, body, encoding, kind, store)
                # Separate threads: pages never wait for them.
                traces, rejected = await anyio.to_thread.run_sync(read, limiter=workers)
        except RequestRefused as refused:
            return _otlp_response({"message": str(refused)}, kind, refused.status)
        except BadInput as fault:
            return _otlp_response({"message": str(fault)}, kind, 400)
        except MachineFailed as fault:
            # Exporters retry after this time, so no spans are lost.
            return _otlp_response({"message": str(fault)}, kind, 503)
        arrived(traces)
        return _accepted_response(rejected, kind)

    return receive_spans


def _save_body_spans(body: bytes, encoding: str, kind: str, store: Store) -> tuple[set[str], int]:
    """Save the spans in a body; return the ids of their traces and the number of rejected spans."""
    if encoding == "gzip":
        body = decompress_gzip(body, UNPACKED_LIMIT)
    elif encoding != "identity":
        raise RequestRefused(
            415, f"The encoding {encoding!r} is not supported: send gzip, or none."
        )
    spans, rejected = _parse_spans(body, kind)
    return save_spans(spans, store), rejected


def _require_span_limits(spans: list[OtelSpan]) -> None:
    """Refuse exports that would grow when stored: every span is stored with its resource."""
    if len(spans) > MAX_SPANS:
        raise RequestRefused(413, f"A request may have at most {MAX_SPANS:,} spans: send fewer.")
    size = 0
    for span in spans:
        size += len(encode_record(span))
        if size > KEPT_LIMIT:
            raise RequestRefused(
                413, f"Spans and their resources exceed {KEPT_LIMIT >> 20} MiB: send fewer."
            )


def _parse_spans(content: bytes, kind: str) -> tuple[list[OtelSpan], int]:
    """Return the valid spans, and the number of invalid ones."""
    if kind not in (JSON, PROTOBUF):
        raise RequestRefused(415, f"Send {JSON} or {PROTOBUF}.")
    if kind == JSON:
        try:
            export = msgspec.json.decode(content, type=dict[str, Any])
            parsed_spans = list(islice(spans_from_json(export), MAX_SPANS + 1))
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise RequestRefused(400, "The body is not a JSON object.") from error
        sent = _count_json_spans(export)
    else:
        request = ExportTraceServiceRequest()
        try:
            request.ParseFromString(content)
        except DecodeError as error:
            raise RequestRefused(400, "The body is not an ExportTraceServiceRequest.") from error
        parsed_spans = list(islice(spans_from_protobuf(request), MAX_SPANS + 1))
        sent = len(parsed_spans)
    _require_span_limits(parsed_spans)
    valid_spans = [
        span
        for span in parsed_spans
        if _HEX_ID.fullmatch(span.trace) and _HEX_ID.fullmatch(span.id)
    ]
    return valid_spans, max(sent - len(valid_spans), 0)


def _count_json_spans(export: Any) -> int:
    """Count the spans that a JSON export claims to contain."""
    total = 0
    for group in _list_or_empty(export.get("resourceSpans", export.get("resource_spans"))):
        inner = group if isinstance(group, dict) else {}
        for scope in _list_or_empty(inner.get("scopeSpans", inner.get("scope_spans"))):
            total += len(_list_or_empty(scope.get("spans"))) if isinstance(scope, dict) else 0
    return total


def _list_or_empty(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _accepted_response(rejected: int, kind: str) -> Response:
    reason = "Spans need a trace id and a span id."
    if kind == JSON:
        partial = {"partialSuccess": {"rejectedSpans": str(rejected), "errorMessage": reason}}
        return _otlp_response(partial if rejected else {}, kind, 200)
    answer = ExportTraceServiceResponse()
    if rejected:
        answer.partial_success.rejected_spans = rejected
        answer.partial_success.error_message = reason
    return Response(answer.SerializeToString(), media_type=kind)


def _otlp_response(content: dict[str, Any], kind: str, status: int) -> Response:
    headers = {"retry-after": "5"} if status == 503 else None
    if kind == PROTOBUF:
        # A google.rpc.Status with only field 2, the message.
        text = content.get("message", "").encode()
        body = b"\x12" + _encode_varint(len(text)) + text
        return Response(body, status, headers, media_type=PROTOBUF)
    return Response(msgspec.json.encode(content), status, headers, media_type=JSON)


def _encode_varint(number: int) -> bytes:
    low = b""
    while number > 0x7F:
        low, number = low + bytes([number & 0x7F | 0x80]), number >> 7
    return low + bytes([number])


# Received spans that wait to become sessions: built soon after the last span, never in the request.

QUIET_SECONDS = 5.0
"""Seconds without a new span after which a session is built; more spans may still come."""
MAX_WAIT_SECONDS = 60.0
"""Seconds after the first new span after which a session is built, even if spans still come."""


class PendingTraces:
    """Traces with received spans that are in no session yet."""

    def __init__(self, quiet: float) -> None:
        self.quiet = quiet
        self._times: dict[str, tuple[float, float]] = {}

    def note_arrivals(self, traces: set[str]) -> None:
        now = time.monotonic()
        for trace in traces:
            first, _ = self._times.get(trace, (now, now))
            self._times[trace] = (first, now)

    def pop_due(self) -> list[str]:
        """Remove and return the traces that have been quiet, or have waited long enough."""
        now = time.monotonic()
        due = [
            trace
            for trace, (first, last) in self._times.items()
            if now - last >= self.quiet or now - first >= MAX_WAIT_SECONDS
        ]
        for trace in due:
            del self._times[trace]
        return due

    def pop_all(self) -> list[str]:
        """Remove and return all traces."""
        remaining, self._times = list(self._times), {}
        return remaining


async def build_due_sessions(waiting: PendingTraces, store: Store) -> None:
    """Build the sessions that are due, until cancelled."""
    while True:
        await anyio.sleep(min(waiting.quiet, 1.0))
        due = waiting.pop_due()
        if due:
            await anyio.to_thread.run_sync(build_sessions, due, store)


def build_sessions(traces: list[str], store: Store) -> None:
    for trace in traces:
        try:
            build_trace_session(trace, store)
        except Fault:
            # The spans stay stored: the next start of the server, or the next span, retries.
            continue
