"""Spans as programs keep them outside OTLP: in a list, one a line, or printed one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from closeloop.traces.otel.spans import first
from closeloop.traces.source import LINE_BYTES, FileSource
from closeloop.traces.untrusted import decoded, items, mapping

_END = b"\n}\n"


def is_span(value: Any) -> bool:
    """Whether a value is one span with its ids and its attributes."""
    if not isinstance(value, dict):
        return False
    own = first(value, "span_id", "spanId") or mapping(value.get("context")).get("span_id")
    return (
        isinstance(own, str | int)
        and isinstance(first(value, "attributes", "span_attributes"), dict | list)
        and isinstance(first(value, "name", "span_name"), str)
    )


def listed(value: Any) -> Sequence[Any]:
    """The spans of a list, or of an object that has them in one."""
    if isinstance(value, list):
        return value if value and all(map(is_span, value[:20])) else ()
    for holder in (mapping(value), mapping(mapping(value).get("trace"))):
        spans = items(holder.get("spans"))
        if spans and all(map(is_span, spans[:20])):
            return spans
    return ()


def is_printed(head: bytes) -> bool:
    """Whether a file begins with a span that its program printed over several lines."""
    end = head.find(_END)
    return head.startswith(b"{\n") and end > 0 and is_span(decoded(head[: end + 2]))


def printed(path: Path, skipped: dict[str, int]) -> Iterator[Any]:
    """Values that were printed one after another, each until its last brace stands alone."""
    lines: list[bytes] = []
    size = 0
    with FileSource(path).open() as file:
        while line := file.readline(LINE_BYTES):
            lines.append(line)
            size += len(line)
            if line.rstrip() == b"}":
                if is_span(value := decoded(b"".join(lines))):
                    yield value
                lines, size = [], 0
            elif size > LINE_BYTES:
                break
    if any(map(bytes.strip, lines)):
        skipped["a span that does not end"] = skipped.get("a span that does not end", 0) + 1
