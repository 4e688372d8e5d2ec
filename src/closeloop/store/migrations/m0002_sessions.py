"""Sessions that agents recorded, the files they came from, and spans that were sent."""

from __future__ import annotations

STATEMENTS = (
    # One session may be stored again when it has grown: its versions share a key.
    """CREATE TABLE sessions (
        number {number},
        attempt {text} NOT NULL UNIQUE REFERENCES attempts (id),
        key {text} NOT NULL,
        agent {text} NOT NULL,
        model {text},
        repo {text},
        branch {text},
        body {bytes} NOT NULL
    )""",
    "CREATE INDEX sessions_by_key ON sessions (key, number)",
    """CREATE TABLE imports (
        number {number},
        path {text} NOT NULL,
        size BIGINT NOT NULL,
        changed BIGINT NOT NULL,
        parts {bytes},
        reader {text},
        version BIGINT NOT NULL,
        sessions BIGINT NOT NULL
    )""",
    "CREATE INDEX imports_by_path ON imports (path, number)",
    """CREATE TABLE spans (
        number {number},
        trace {text} NOT NULL,
        conversation {text},
        digest {text} NOT NULL,
        body {bytes} NOT NULL
    )""",
    "CREATE UNIQUE INDEX spans_by_trace ON spans (trace, digest)",
    "CREATE INDEX spans_by_conversation ON spans (conversation, trace)",
)

FACTS = ("sessions", "imports", "spans")
