"""OpenTelemetry traces in OTLP: JSON, JSON lines and protobuf, and spans as programs print them.

Spans may stand in any order, be sent twice, and be spread over many exports; those of one
conversation (or, where none is named, of one trace) are one session.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from closeloop.model.protocols import Source
from closeloop.model.session import Session
from closeloop.traces import single
from closeloop.traces.otel.conversations import sessions_of
from closeloop.traces.otel.plain import is_printed, is_span, listed, printed
from closeloop.traces.otel.spans import Span, first
from closeloop.traces.source import DOCUMENT_BYTES, FileSource
from closeloop.traces.untrusted import count, items, mapping, moment
from closeloop.traces.values import instant, text, written

name = "otlp"
version = 2
parts, owner = single.parts, single.owner

_EXPORTS = ("resourceSpans", "resource_spans")
_PARENTS = ("parentSpanId", "parent_span_id", "parent_id")
_STARTS = ("startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime", "timestamp")
_SCALARS = frozenset({"stringValue", "boolValue", "doubleValue"})
_ERROR, _OK = (2, "2", "STATUS_CODE_ERROR", "ERROR"), (1, "1", "STATUS_CODE_OK", "OK")


def recognises(source: Source) -> bool:
    if source.head[:1] == b"\n" or source.head[4:5] == b"\n":
        return _protobuf_at(source.head) is not None
    if b"pan" not in source.head:
        return False
    lines = source.lines
    if lines and _is_export(lines[0]):
        return True
    if not _may_be_document(source.head):
        return False
    several = len(lines) > 1 and all(map(is_span, lines[:3]))
    return several or _is_document(source.document) or is_printed(source.head)


def read(source: Source) -> Iterator[Session]:
    yield from sessions_of(_spans(source), name, version, source.skipped)


def spans_of(export: Any) -> Iterator[Span]:
    """The spans of one export, decoded from JSON."""
    for name in _EXPORTS:
        for group in items(mapping(export).get(name)):
            yield from _of_resource(mapping(group))


def spans_in(request: Any) -> Iterator[Span]:
    """The spans of one export, decoded from protobuf."""
    for group in request.resource_spans:
        resource = _attributes_in(group.resource.attributes)
        for scope in group.scope_spans:
            for span in scope.spans:
                yield Span(
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex() or None,
                    name=span.name,
                    start=instant(span.start_time_unix_nano),
                    end=instant(span.end_time_unix_nano),
                    attributes=_attributes_in(span.attributes),
                    resource=resource,
                    scope=scope.scope.name or None,
                    failed={1: False, 2: True}.get(span.status.code),
                    error=span.status.message or None,
                    events=tuple((one.name, _attributes_in(one.attributes)) for one in span.events),
                )


def _is_export(value: Any) -> bool:
    return isinstance(value, dict) and any(isinstance(value.get(name), list) for name in _EXPORTS)


def _may_be_document(head: bytes) -> bool:
    """Cheap signs, so that not every large document is decoded to see that it is another's."""
    return any(
        sign in head
        for sign in (b'"resourceSpans"', b'"resource_spans"', b'"span_id"', b'"spanId"')
    )


def _is_document(value: Any) -> bool:
    if isinstance(value, list) and value and all(_is_export(one) for one in value[:20]):
        return True
    return _is_export(value) or bool(listed(value))


def _spans(source: Source) -> Iterator[Span]:
    if source.head[:1] == b"\n" or source.head[4:5] == b"\n":
        yield from _of_protobuf(source)
    elif (document := source.document) is not None:
        exports = document if isinstance(document, list) else [document]
        for export in exports:
            yield from spans_of(export)
        yield from _of_flat(listed(document))
    elif is_printed(source.head):
        yield from _of_flat(printed(source.path, source.skipped))
    else:
        for record in source.records():
            if _is_export(record):
                yield from spans_of(record)
            elif is_span(record):
                yield from _of_flat([record])
            else:
                source.skipped["a line of another kind"] = (
                    source.skipped.get("a line of another kind", 0) + 1
                )


def _of_resource(group: Mapping[str, Any]) -> Iterator[Span]:
    resource = _attributes(mapping(group.get("resource")).get("attributes"))
    scopes = first(group, "scopeSpans", "scope_spans", "instrumentationLibrarySpans")
    for scope in items(scopes):
        named = mapping(first(mapping(scope), "scope", "instrumentationLibrary")).get("name")
        for span in items(mapping(scope).get("spans")):
            if isinstance(span, dict) and (made := _span(span, resource, text(named))):
                yield made


def _of_flat(spans: Iterable[Any], above: str | None = None, depth: int = 0) -> Iterator[Span]:
    for span in spans:
        made = _span(span, {}, None, above) if isinstance(span, dict) else None
        if made is not None:
            yield made
            if depth < 100:
                yield from _of_flat(items(span.get("child_spans")), made.id, depth + 1)


def _span(
    span: Mapping[str, Any], resource: dict[str, Any], scope: str | None, above: str | None = None
) -> Span | None:
    ids = mapping(span.get("context"))
    own = _hex(first(span, "spanId", "span_id") or ids.get("span_id"))
    if own is None:
        return None
    status = mapping(span.get("status"))
    code = first(status, "code", "status_code") or span.get("status_code")
    given = _attributes(first(span, "attributes", "span_attributes"))
    return Span(
        trace=_hex(first(span, "traceId", "trace_id") or ids.get("trace_id")) or "unknown",
        id=own,
        parent=_hex(first(span, *_PARENTS) or mapping(span.get("parent")).get("span_id")) or above,
        name=written(first(span, "name", "span_name") or ""),
        start=_time(first(span, *_STARTS)),
        end=_time(first(span, "endTimeUnixNano", "end_time_unix_nano", "end_time", "endTime")),
        attributes=given,
        resource=resource or _attributes(mapping(span.get("resource")).get("attributes")),
        scope=scope,
        failed=True if code in _ERROR else False if code in _OK else None,
        error=text(first(status, "message", "description")) or text(given.get("exception.message")),
        events=tuple(
            (written(one.get("name") or ""), _attributes(one.get("attributes")))
            for one in items(span.get("events"))
            if isinstance(one, dict)
        ),
    )


def _time(value: Any) -> Any:
    return instant(value) or moment(value)


def _hex(value: Any) -> str | None:
    """An id in hex; protobuf's own JSON writes it in base64, some programs as a number."""
    if type(value) is int and value > 0:
        return f"{value:x}"
    if not isinstance(value, str) or not value.strip("0"):
        return None
    if len(value) in (12, 24) and value.endswith("="):
        try:
            return base64.b64decode(value, validate=True).hex()
        except binascii.Error:
            pass
    return value.lower().removeprefix("0x")


def _attributes(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for one in items(value):
        if isinstance(one, dict) and "key" in one:
            inner = mapping(one.get("value"))
            # Almost all of them are texts.
            plain = len(inner) == 1 and "stringValue" in inner
            found[written(one["key"])] = inner["stringValue"] if plain else _value(inner)
    return found


def _value(value: Any, depth: int = 0) -> Any:
    if not isinstance(value, dict) or depth > 50:
        return None
    for kind, inner in value.items():
        if kind in _SCALARS:
            return inner
        match kind.replace("_", "").lower():
            case "intvalue":
                return int(inner) if isinstance(inner, str) and count(inner) is not None else inner
            case "arrayvalue":
                return [_value(one, depth + 1) for one in items(mapping(inner).get("values"))]
            case "kvlistvalue":
                pairs = items(mapping(inner).get("values"))
                return {
                    written(one.get("key")): _value(one.get("value"), depth + 1)
                    for one in pairs
                    if isinstance(one, dict)
                }
            case "stringvalue" | "boolvalue" | "doublevalue" | "bytesvalue":
                return inner
    return None


def _attributes_in(pairs: Any) -> dict[str, Any]:
    return {one.key: _value_in(one.value) for one in pairs}


def _value_in(value: Any) -> Any:
    match value.WhichOneof("value"):
        case "array_value":
            return [_value_in(one) for one in value.array_value.values]
        case "kvlist_value":
            return _attributes_in(value.kvlist_value.values)
        case "bytes_value":
            return base64.b64encode(value.bytes_value).decode()
        case None:
            return None
        case kind:
            return getattr(value, kind)


def _of_protobuf(source: Source) -> Iterator[Span]:
    """One export; or several, each with its size before it, as a collector writes to a file."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceRequest,
    )

    prefixed = _protobuf_at(source.head) == 4
    try:
        with FileSource(source.path).open() as file:
            while True:
                size = int.from_bytes(file.read(4), "big") if prefixed else DOCUMENT_BYTES
                content = file.read(min(size, DOCUMENT_BYTES))
                if not content:
                    return
                yield from spans_in(ExportTraceServiceRequest.FromString(content))
    except (DecodeError, OSError, RecursionError, UnicodeDecodeError):
        key = "an export that cannot be read to its end"
        source.skipped[key] = source.skipped.get(key, 0) + 1


def _protobuf_at(head: bytes) -> int | None:
    """Where an export in protobuf begins: its fields lead to a span with ids of the right size."""
    for start in (0, 4):
        for group in _fields(head[start:], 1):
            for scope in _fields(group, 2):
                for span in _fields(scope, 2):
                    if span[:2] == b"\x0a\x10" and span[18:20] == b"\x12\x08":
                        return start
    return None


def _fields(message: bytes, wanted: int) -> Iterator[bytes]:
    """The inner messages of one field, as far as the beginning of a file goes."""
    place = 0
    while place < len(message):
        key = message[place]
        size, place = _varint(message, place + 1)
        if key & 7 != 2 or size is None or not 1 <= key >> 3 <= 3:
            return
        if key >> 3 == wanted:
            yield message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int | None, int]:
    value = shift = 0
    while place < len(message) and shift < 35:
        byte = message[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
    return None, place
