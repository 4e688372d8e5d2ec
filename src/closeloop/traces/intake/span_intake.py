"""Spans come in one by one, late, twice and out of order; what is known of them is a session.

A span is kept before it is acknowledged. The session of a trace is put together again from all of
its spans whenever there are more than when that was last done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from closeloop.records.record import content_digest
from closeloop.store import Store
from closeloop.store.record_bodies import pack_record, unpack_record
from closeloop.store.session_rows import ImportedFile, StoredSpan
from closeloop.text.redaction import redact_record
from closeloop.traces.intake.file_intake import pack_session
from closeloop.traces.otel.otel_spans import OtelSpan, span_conversation
from closeloop.traces.otel.span_sessions import sessions_from_spans
from closeloop.traces.readers import otlp
from closeloop.traces.session_repository import repository_address

OTLP_PREFIX = "otlp:"
"""Stands before a trace's id where files have their path."""


def save_spans(spans: Iterable[OtelSpan], store: Store) -> set[str]:
    """Save spans, rid of secrets; the traces that they belong to."""
    stored_spans = []
    for span in spans:
        cleaned, _ = redact_record(span)
        body = pack_record(cleaned)
        stored_spans.append(
            StoredSpan(
                trace=cleaned.trace,
                conversation=span_conversation(cleaned),
                digest=content_digest(body),
                body=body,
            )
        )
    store.save_spans(stored_spans)
    return {one.trace for one in stored_spans}


def build_trace_session(trace: str, store: Store) -> list[str]:
    """Put the session of a trace together as far as its spans have come; new versions' ids."""
    count = store.count_spans(trace).get(trace, 0)
    spans = (unpack_record(body, OtelSpan) for body in store.load_spans(trace))
    skipped: dict[str, int] = {}
    packed = [
        pack_session(
            session, repository_address(session.directory), content_digest(OTLP_PREFIX, session.id)
        )
        for session in sessions_from_spans(spans, otlp.name, otlp.version, skipped)
    ]
    return store.save_sessions(packed, [_make_built_file(trace, count, len(packed))])


def list_unbuilt_traces(store: Store) -> Collection[str]:
    """Traces with spans that no session has yet: their server was stopped."""
    counts = store.count_spans()
    known = store.load_imported_files([OTLP_PREFIX + trace for trace in counts])
    return [
        trace
        for trace, count in counts.items()
        if (row := known.get(OTLP_PREFIX + trace)) is None
        or (row.size, row.version) != (count, otlp.version)
    ]


def _make_built_file(trace: str, count: int, sessions: int) -> ImportedFile:
    return ImportedFile(
        path=OTLP_PREFIX + trace,
        size=count,
        changed=0,
        reader=otlp.name,
        version=otlp.version,
        sessions=sessions,
    )
