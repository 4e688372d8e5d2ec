"""Spans as programs keep them outside OTLP: in a list, one a line, or printed one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from closeloop.traces.file_source import MAX_LINE_BYTES, FileSource
from closeloop.traces.otel.otel_spans import first_attribute
from closeloop.traces.untrusted_json import as_list, as_mapping, try_decode_json

_SPAN_END = b"\n}\n"


def is_span(value: Any) -> bool:
    """Whether a value is one span with its ids and its attributes."""
    if not isinstance(value, dict):
        return False
    own = first_attribute(value, "span_id", "spanId") or as_mapping(value.get("context")).get(
        "span_id"
    )
    return (
        isinstance(own, str | int)
        and isinstance(first_attribute(value, "attributes", "span_attributes"), dict | list)
        and isinstance(first_attribute(value, "name", "span_name"), str)
    )


def list_spans(value: Any) -> Sequence[Any]:
    """The spans of a list, or of an object that has them in one."""
    if isinstance(value, list):
        return value if value and all(map(is_span, value[:20])) else ()
    for holder in (as_mapping(value), as_mapping(as_mapping(value).get("trace"))):
        spans = as_list(holder.get("spans"))
        if spans and all(map(is_span, spans[:20])):
            return spans
    return ()


def starts_with_span(head: bytes) -> bool:
    """Whether a file begins with a span that its program printed over several lines."""
    end = head.find(_SPAN_END)
    return head.startswith(b"{\n") and end > 0 and is_span(try_decode_json(head[: end + 2]))


def iter_printed_spans(path: Path, skipped: dict[str, int]) -> Iterator[Any]:
    """Values that were printed one after another, each until its last brace stands alone."""
    lines: list[bytes] = []
    size = 0
    with FileSource(path).open() as file:
        while line := file.readline(MAX_LINE_BYTES):
            lines.append(line)
            size += len(line)
            if line.rstrip() == b"}":
                if is_span(value := try_decode_json(b"".join(lines))):
                    yield value
                lines, size = [], 0
            elif size > MAX_LINE_BYTES:
                break
    if any(map(bytes.strip, lines)):
        skipped["a span that does not end"] = skipped.get("a span that does not end", 0) + 1
