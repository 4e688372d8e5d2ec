"""Who looked at the held-out tasks, when, and why."""

from __future__ import annotations

STATEMENTS = (
    """CREATE TABLE looks (
        number {number},
        at BIGINT NOT NULL,
        tasks {text} NOT NULL,
        change {text} NOT NULL,
        body {bytes} NOT NULL
    )""",
    "CREATE INDEX looks_by_tasks ON looks (tasks, number)",
)

FACTS = ("looks",)
