"""What `closeloop check` said of changes."""

from __future__ import annotations

STATEMENTS: tuple[str, ...] = (
    """CREATE TABLE reports (
        number {number},
        at BIGINT NOT NULL,
        repo {text},
        title {text} NOT NULL,
        base {text},
        head {text},
        attempt {text} REFERENCES attempts (id),
        level {text},
        verdict {text} NOT NULL,
        findings BIGINT NOT NULL,
        body {bytes} NOT NULL
    )""",
    "CREATE INDEX reports_by_attempt ON reports (attempt)",
    "CREATE INDEX reports_by_repo ON reports (repo)",
)
FACTS: tuple[str, ...] = ("reports",)
