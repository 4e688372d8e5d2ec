"""OpenTelemetry traces in OTLP: JSON, JSON lines and protobuf, and spans as programs print them.

Spans may stand in any order, be sent twice, and be spread over many exports; those of one
conversation (or, where none is named, of one trace) are one session.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from closeloop.records.protocols import RecordingSource
from closeloop.records.trace import Session
from closeloop.traces.file_source import MAX_DOCUMENT_BYTES, MAX_LINE_BYTES, FileSource
from closeloop.traces.readers.otel_sessions import OtelSpan, first_attribute, sessions_from_spans
from closeloop.traces.session_builder import count_skip
from closeloop.traces.untrusted_json import (
    as_count,
    as_list,
    as_mapping,
    clean_text,
    text_or_json,
    time_from_nanos,
    time_from_text,
    try_decode_json,
)

name = "otlp"
version = 3

_EXPORT_KEYS = ("resourceSpans", "resource_spans")
_PARENT_KEYS = ("parentSpanId", "parent_span_id", "parent_id")
_START_KEYS = ("startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime", "timestamp")
_SCALAR_KEYS = frozenset({"stringValue", "boolValue", "doubleValue"})
_ERROR, _OK = (2, "2", "STATUS_CODE_ERROR", "ERROR"), (1, "1", "STATUS_CODE_OK", "OK")
_SPAN_END = b"\n}\n"


def recognises(source: RecordingSource) -> bool:
    if source.head[:1] == b"\n" or source.head[4:5] == b"\n":
        return _find_protobuf_start(source.head) is not None
    if b"pan" not in source.head:
        return False
    lines = source.lines
    if lines and _is_export(lines[0]):
        return True
    if not _may_be_document(source.head):
        return False
    is_span_log = len(lines) > 1 and all(map(is_span, lines[:3]))
    return is_span_log or _is_document(source.document) or starts_with_span(source.head)


def read(source: RecordingSource) -> Iterator[Session]:
    yield from sessions_from_spans(_iter_spans(source), name, version, source.skipped)


def spans_from_json(export: Any) -> Iterator[OtelSpan]:
    """Yield the spans of one export, decoded from JSON."""
    for name in _EXPORT_KEYS:
        for group in as_list(as_mapping(export).get(name)):
            yield from _spans_of_resource(as_mapping(group))


def spans_from_protobuf(request: Any) -> Iterator[OtelSpan]:
    """Yield the spans of one export, decoded from protobuf."""
    for group in request.resource_spans:
        resource = _protobuf_attributes(group.resource.attributes)
        for scope in group.scope_spans:
            for span in scope.spans:
                yield OtelSpan(
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex() or None,
                    name=span.name,
                    start=time_from_nanos(span.start_time_unix_nano),
                    end=time_from_nanos(span.end_time_unix_nano),
                    attributes=_protobuf_attributes(span.attributes),
                    resource=resource,
                    scope=scope.scope.name or None,
                    failed={1: False, 2: True}.get(span.status.code),
                    error=span.status.message or None,
                    events=tuple(
                        (event.name, _protobuf_attributes(event.attributes))
                        for event in span.events
                    ),
                )


def _is_export(value: Any) -> bool:
    return isinstance(value, dict) and any(
        isinstance(value.get(name), list) for name in _EXPORT_KEYS
    )


def _may_be_document(head: bytes) -> bool:
    """Cheap signs, so that not every large document is decoded to be rejected."""
    return any(
        sign in head
        for sign in (b'"resourceSpans"', b'"resource_spans"', b'"span_id"', b'"spanId"')
    )


def _is_document(value: Any) -> bool:
    if isinstance(value, list) and value and all(_is_export(item) for item in value[:20]):
        return True
    return _is_export(value) or bool(list_spans(value))


def _iter_spans(source: RecordingSource) -> Iterator[OtelSpan]:
    if source.head[:1] == b"\n" or source.head[4:5] == b"\n":
        yield from _read_protobuf(source)
    elif (document := source.document) is not None:
        exports = document if isinstance(document, list) else [document]
        for export in exports:
            yield from spans_from_json(export)
        yield from _spans_from_list(list_spans(document))
    elif starts_with_span(source.head):
        yield from _spans_from_list(iter_printed_spans(source.path, source.skipped))
    else:
        for record in source.records():
            if _is_export(record):
                yield from spans_from_json(record)
            elif is_span(record):
                yield from _spans_from_list([record])
            else:
                count_skip(source.skipped, "a line of another kind")


def _spans_of_resource(group: Mapping[str, Any]) -> Iterator[OtelSpan]:
    resource = _parse_attributes(as_mapping(group.get("resource")).get("attributes"))
    scopes = first_attribute(group, "scopeSpans", "scope_spans", "instrumentationLibrarySpans")
    for scope in as_list(scopes):
        scope_name = as_mapping(
            first_attribute(as_mapping(scope), "scope", "instrumentationLibrary")
        ).get("name")
        for span in as_list(as_mapping(scope).get("spans")):
            if isinstance(span, dict) and (
                parsed := _parse_span(span, resource, clean_text(scope_name))
            ):
                yield parsed


def _spans_from_list(
    spans: Iterable[Any], parent_id: str | None = None, depth: int = 0
) -> Iterator[OtelSpan]:
    for span in spans:
        parsed = _parse_span(span, {}, None, parent_id) if isinstance(span, dict) else None
        if parsed is not None:
            yield parsed
            if depth < 100:
                yield from _spans_from_list(as_list(span.get("child_spans")), parsed.id, depth + 1)


def _parse_span(
    span: Mapping[str, Any],
    resource: dict[str, Any],
    scope: str | None,
    parent_id: str | None = None,
) -> OtelSpan | None:
    ids = as_mapping(span.get("context"))
    span_id = _to_hex_id(first_attribute(span, "spanId", "span_id") or ids.get("span_id"))
    if span_id is None:
        return None
    status = as_mapping(span.get("status"))
    code = first_attribute(status, "code", "status_code") or span.get("status_code")
    attributes = _parse_attributes(first_attribute(span, "attributes", "span_attributes"))
    return OtelSpan(
        trace=_to_hex_id(first_attribute(span, "traceId", "trace_id") or ids.get("trace_id"))
        or "unknown",
        id=span_id,
        parent=_to_hex_id(
            first_attribute(span, *_PARENT_KEYS) or as_mapping(span.get("parent")).get("span_id")
        )
        or parent_id,
        name=text_or_json(first_attribute(span, "name", "span_name") or ""),
        start=_parse_time(first_attribute(span, *_START_KEYS)),
        end=_parse_time(
            first_attribute(span, "endTimeUnixNano", "end_time_unix_nano", "end_time", "endTime")
        ),
        attributes=attributes,
        resource=resource or _parse_attributes(as_mapping(span.get("resource")).get("attributes")),
        scope=scope,
        failed=True if code in _ERROR else False if code in _OK else None,
        error=clean_text(first_attribute(status, "message", "description"))
        or clean_text(attributes.get("exception.message")),
        events=tuple(
            (text_or_json(event.get("name") or ""), _parse_attributes(event.get("attributes")))
            for event in as_list(span.get("events"))
            if isinstance(event, dict)
        ),
    )


def _parse_time(value: Any) -> Any:
    return time_from_nanos(value) or time_from_text(value)


def _to_hex_id(value: Any) -> str | None:
    """Return an id in hex; protobuf's JSON writes base64, some programs a number."""
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


def _parse_attributes(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    attributes: dict[str, Any] = {}
    for attribute in as_list(value):
        if isinstance(attribute, dict) and "key" in attribute:
            inner = as_mapping(attribute.get("value"))
            # Almost all of them are texts.
            plain = len(inner) == 1 and "stringValue" in inner
            attributes[text_or_json(attribute["key"])] = (
                inner["stringValue"] if plain else _parse_value(inner)
            )
    return attributes


def _parse_value(value: Any, depth: int = 0) -> Any:
    if not isinstance(value, dict) or depth > 50:
        return None
    for kind, inner in value.items():
        if kind in _SCALAR_KEYS:
            return inner
        match kind.replace("_", "").lower():
            case "intvalue":
                return (
                    int(inner) if isinstance(inner, str) and as_count(inner) is not None else inner
                )
            case "arrayvalue":
                return [
                    _parse_value(item, depth + 1)
                    for item in as_list(as_mapping(inner).get("values"))
                ]
            case "kvlistvalue":
                pairs = as_list(as_mapping(inner).get("values"))
                return {
                    text_or_json(pair.get("key")): _parse_value(pair.get("value"), depth + 1)
                    for pair in pairs
                    if isinstance(pair, dict)
                }
            case "stringvalue" | "boolvalue" | "doublevalue" | "bytesvalue":
                return inner
    return None


def _protobuf_attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _protobuf_value(pair.value) for pair in pairs}


def _protobuf_value(value: Any) -> Any:
    match value.WhichOneof("value"):
        case "array_value":
            return [_protobuf_value(item) for item in value.array_value.values]
        case "kvlist_value":
            return _protobuf_attributes(value.kvlist_value.values)
        case "bytes_value":
            return base64.b64encode(value.bytes_value).decode()
        case None:
            return None
        case kind:
            return getattr(value, kind)


def _read_protobuf(source: RecordingSource) -> Iterator[OtelSpan]:
    """Yield one export, or several with their sizes, as a collector writes to a file."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    prefixed = _find_protobuf_start(source.head) == 4
    try:
        with FileSource(source.path).open() as file:
            while True:
                size = int.from_bytes(file.read(4), "big") if prefixed else MAX_DOCUMENT_BYTES
                content = file.read(min(size, MAX_DOCUMENT_BYTES))
                if not content:
                    return
                yield from spans_from_protobuf(ExportTraceServiceRequest.FromString(content))
    except (DecodeError, OSError, RecursionError, UnicodeDecodeError):
        key = "an export that cannot be read to its end"
        count_skip(source.skipped, key)


def _find_protobuf_start(head: bytes) -> int | None:
    """Return where an export in protobuf begins: its fields lead to a span with valid ids."""
    for start in (0, 4):
        for group in _iter_fields(head[start:], 1):
            for scope in _iter_fields(group, 2):
                for span in _iter_fields(scope, 2):
                    if span[:2] == b"\x0a\x10" and span[18:20] == b"\x12\x08":
                        return start
    return None


def _iter_fields(message: bytes, field: int) -> Iterator[bytes]:
    """Yield the inner messages of one field, as far as the beginning of a file goes."""
    position = 0
    while position < len(message):
        key = message[position]
        size, position = _read_varint(message, position + 1)
        if key & 7 != 2 or size is None or not 1 <= key >> 3 <= 3:
            return
        if key >> 3 == field:
            yield message[position : position + size]
        position += size


def _read_varint(message: bytes, position: int) -> tuple[int | None, int]:
    value = shift = 0
    while position < len(message) and shift < 35:
        byte = message[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
    return None, position


def is_span(value: Any) -> bool:
    """Whether a value is one span with its ids and attributes."""
    if not isinstance(value, dict):
        return False
    span_id = first_attribute(value, "span_id", "spanId") or as_mapping(value.get("context")).get(
        "span_id"
    )
    return (
        isinstance(span_id, str | int)
        and isinstance(first_attribute(value, "attributes", "span_attributes"), dict | list)
        and isinstance(first_attribute(value, "name", "span_name"), str)
    )


def list_spans(value: Any) -> Sequence[Any]:
    """Return the spans of a list, or of an object that contains one."""
    if isinstance(value, list):
        return value if value and all(map(is_span, value[:20])) else ()
    for holder in (as_mapping(value), as_mapping(as_mapping(value).get("trace"))):
        spans = as_list(holder.get("spans"))
        if spans and all(map(is_span, spans[:20])):
            return spans
    return ()


def starts_with_span(head: bytes) -> bool:
    """Whether a file begins with a span printed over several lines."""
    end = head.find(_SPAN_END)
    return head.startswith(b"{\n") and end > 0 and is_span(try_decode_json(head[: end + 2]))


def iter_printed_spans(path: Path, skipped: dict[str, int]) -> Iterator[Any]:
    return filter(is_span, iter_printed_values(path, skipped))


def iter_printed_values(path: Path, skipped: dict[str, int]) -> Iterator[Any]:
    """Yield consecutive printed values, each until its last brace stands alone."""
    lines: list[bytes] = []
    size = 0
    with FileSource(path).open() as file:
        while line := file.readline(MAX_LINE_BYTES):
            lines.append(line)
            size += len(line)
            if line.rstrip() == b"}":
                yield try_decode_json(b"".join(lines))
                lines, size = [], 0
            elif size > MAX_LINE_BYTES:
                break
    if any(map(bytes.strip, lines)):
        count_skip(skipped, "a span that does not end")
