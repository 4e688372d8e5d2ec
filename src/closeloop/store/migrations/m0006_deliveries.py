"""What became of changes among people; and whose work an attempt is."""

from __future__ import annotations

STATEMENTS = (
    'ALTER TABLE attempts ADD COLUMN "user" {text}',
    # Of an attempt the newest row counts.
    """CREATE TABLE deliveries (
        number {number},
        attempt {text} NOT NULL REFERENCES attempts (id),
        at BIGINT NOT NULL,
        passed BOOLEAN,
        merged BOOLEAN,
        corrected BOOLEAN,
        cycles BIGINT,
        regressed BOOLEAN,
        files BIGINT,
        modules BIGINT,
        dependents BIGINT,
        risk {text},
        first_review BOOLEAN,
        first_push BOOLEAN,
        comments BIGINT,
        seconds_to_open FLOAT,
        repeated BIGINT,
        repeated_unconfirmed BIGINT
    )""",
    "CREATE INDEX deliveries_by_attempt ON deliveries (attempt, number)",
)

FACTS = ("deliveries",)
