"""Spans come in one by one, late, twice and out of order; what is known of them is a session.

A span is kept before it is acknowledged. The session of a trace is put together again from all of
its spans whenever there are more than when that was last done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from closeloop.intake.reading import pack_session
from closeloop.model.record import digest
from closeloop.store import Store
from closeloop.store.bodies import pack, unpack
from closeloop.store.sessions import Imported, Sent
from closeloop.traces.otel.conversations import sessions_of
from closeloop.traces.otel.spans import Span, conversation_of
from closeloop.traces.readers import otlp
from closeloop.traces.redact import redact
from closeloop.traces.repositories import repository_of

PLACE = "otlp:"
"""Stands before a trace's id where files have their path."""


def keep_spans(spans: Iterable[Span], store: Store) -> set[str]:
    """Save spans, rid of secrets; the traces that they belong to."""
    sent = []
    for span in spans:
        cleaned, _ = redact(span)
        body = pack(cleaned)
        sent.append(
            Sent(
                trace=cleaned.trace,
                conversation=conversation_of(cleaned),
                digest=digest(body),
                body=body,
            )
        )
    store.add_spans(sent)
    return {one.trace for one in sent}


def build(trace: str, store: Store) -> list[str]:
    """Put the session of a trace together as far as its spans have come; new versions' ids."""
    count = store.span_counts(trace).get(trace, 0)
    spans = (unpack(body, Span) for body in store.spans(trace))
    skipped: dict[str, int] = {}
    packed = [
        pack_session(session, repository_of(session.directory), digest(PLACE, session.id))
        for session in sessions_of(spans, otlp.name, otlp.version, skipped)
    ]
    return store.keep_sessions(packed, [_as_built(trace, count, len(packed))])


def unbuilt(store: Store) -> Collection[str]:
    """Traces with spans that no session has yet: their server was stopped."""
    counts = store.span_counts()
    known = store.imported([PLACE + trace for trace in counts])
    return [
        trace
        for trace, count in counts.items()
        if (row := known.get(PLACE + trace)) is None
        or (row.size, row.version) != (count, otlp.version)
    ]


def _as_built(trace: str, count: int, sessions: int) -> Imported:
    return Imported(
        path=PLACE + trace,
        size=count,
        changed=0,
        reader=otlp.name,
        version=otlp.version,
        sessions=sessions,
    )
