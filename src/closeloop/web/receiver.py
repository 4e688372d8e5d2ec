"""OTLP over HTTP: `POST /v1/traces`, as the OpenTelemetry protocol describes it.

https://opentelemetry.io/docs/specs/otlp/#otlphttp
"""

from __future__ import annotations

import re
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

from closeloop.intake.spans import keep_spans
from closeloop.model.errors import BadInput, MachineFailed
from closeloop.store import Store
from closeloop.store.bodies import encode
from closeloop.traces.otel.spans import Span
from closeloop.traces.readers.otlp import spans_in, spans_of
from closeloop.web.bodies import BodyMemory, Refused, decompress_gzip, media_type

JSON, PROTOBUF = "application/json", "application/x-protobuf"
BODY_LIMIT, UNPACKED_LIMIT, KEPT_LIMIT = 4 << 20, 16 << 20, 64 << 20
"""Bytes of a request as it comes, unpacked, and with the resource of each span."""
MAX_SPANS = 50_000
WORKERS = 2
"""Requests that are unpacked and saved at a time; the others wait."""
_ID = re.compile(r"[0-9a-f]{1,64}")


Arrived = Callable[[set[str]], None]


def receiver(store: Store, arrived: Arrived) -> Callable[[Request], Any]:
    """The endpoint; it tells which traces there is more of."""
    memory, workers = BodyMemory(), anyio.CapacityLimiter(WORKERS)

    async def receive(request: Request) -> Response:
        kind = media_type(request)
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        too_long = f"A request may have {BODY_LIMIT >> 20} MiB: send fewer spans."
        try:
            async with memory.hold_body(request.receive, BODY_LIMIT, too_long) as body:
                read = partial(_keep_body, body, encoding, kind, store)
                # Threads of their own: pages never wait for one.
                traces, rejected = await anyio.to_thread.run_sync(read, limiter=workers)
        except Refused as refused:
            return _answer({"message": str(refused)}, kind, refused.status)
        except BadInput as fault:
            return _answer({"message": str(fault)}, kind, 400)
        except MachineFailed as fault:
            # Exporters try again after this, and the spans are not lost.
            return _answer({"message": str(fault)}, kind, 503)
        arrived(traces)
        return _accepted(rejected, kind)

    return receive


def _keep_body(body: bytes, encoding: str, kind: str, store: Store) -> tuple[set[str], int]:
    """Save the spans in a body; the traces they belong to, and how many could not be taken."""
    if encoding == "gzip":
        body = decompress_gzip(body, UNPACKED_LIMIT)
    elif encoding != "identity":
        raise Refused(415, f"The encoding {encoding!r} is not known: send gzip, or none.")
    spans, rejected = _spans(body, kind)
    return keep_spans(spans, store), rejected


def _demand_size(spans: list[Span]) -> None:
    """Refuse what would be kept many times over: every span is kept with its resource."""
    if len(spans) > MAX_SPANS:
        raise Refused(413, f"A request may have {MAX_SPANS:,} spans: send fewer.")
    size = 0
    for span in spans:
        size += len(encode(span))
        if size > KEPT_LIMIT:
            raise Refused(413, f"Spans and their resources are over {KEPT_LIMIT >> 20} MiB.")


def _spans(content: bytes, kind: str) -> tuple[list[Span], int]:
    """The spans that can be taken, and how many cannot."""
    if kind not in (JSON, PROTOBUF):
        raise Refused(415, f"Send {JSON} or {PROTOBUF}.")
    if kind == JSON:
        try:
            export = msgspec.json.decode(content, type=dict[str, Any])
            found = list(islice(spans_of(export), MAX_SPANS + 1))
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise Refused(400, "The body is not a JSON object.") from error
        sent = _count(export)
    else:
        request = ExportTraceServiceRequest()
        try:
            request.ParseFromString(content)
        except DecodeError as error:
            raise Refused(400, "The body is not an ExportTraceServiceRequest.") from error
        found = list(islice(spans_in(request), MAX_SPANS + 1))
        sent = len(found)
    _demand_size(found)
    good = [span for span in found if _ID.fullmatch(span.trace) and _ID.fullmatch(span.id)]
    return good, max(sent - len(good), 0)


def _count(export: Any) -> int:
    """How many spans an export in JSON means to hold."""
    total = 0
    for group in _list(export.get("resourceSpans", export.get("resource_spans"))):
        inner = group if isinstance(group, dict) else {}
        for scope in _list(inner.get("scopeSpans", inner.get("scope_spans"))):
            total += len(_list(scope.get("spans"))) if isinstance(scope, dict) else 0
    return total


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _accepted(rejected: int, kind: str) -> Response:
    why = "Spans need a trace id and a span id."
    if kind == JSON:
        partial = {"partialSuccess": {"rejectedSpans": str(rejected), "errorMessage": why}}
        return _answer(partial if rejected else {}, kind, 200)
    answer = ExportTraceServiceResponse()
    if rejected:
        answer.partial_success.rejected_spans = rejected
        answer.partial_success.error_message = why
    return Response(answer.SerializeToString(), media_type=kind)


def _answer(content: dict[str, Any], kind: str, status: int) -> Response:
    headers = {"retry-after": "5"} if status == 503 else None
    if kind == PROTOBUF:
        # A google.rpc.Status, of which only field 2, the message, is said.
        text = content.get("message", "").encode()
        body = b"\x12" + _length(len(text)) + text
        return Response(body, status, headers, media_type=PROTOBUF)
    return Response(msgspec.json.encode(content), status, headers, media_type=JSON)


def _length(number: int) -> bytes:
    low = b""
    while number > 0x7F:
        low, number = low + bytes([number & 0x7F | 0x80]), number >> 7
    return low + bytes([number])
