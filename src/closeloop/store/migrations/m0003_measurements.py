"""What the rules say of attempts; and attempts that later ones are held against."""

from __future__ import annotations

STATEMENTS = (
    # The rules say these now, and better.
    "ALTER TABLE grades DROP COLUMN facts_dropped",
    "ALTER TABLE grades DROP COLUMN same_failure",
    # The same attempt is measured again when rules, thresholds or its grade change.
    """CREATE TABLE measurements (
        number {number},
        attempt {text} NOT NULL REFERENCES attempts (id),
        basis {text} NOT NULL,
        findings BIGINT NOT NULL,
        found {text} NOT NULL,
        category {text},
        modes {text} NOT NULL,
        iterations BIGINT NOT NULL,
        converged_after BIGINT,
        handoff_hits FLOAT,
        handoff_of BIGINT,
        feedback_hits FLOAT,
        feedback_of BIGINT,
        recovery_hits FLOAT,
        recovery_of BIGINT,
        convergence_hits FLOAT,
        convergence_of BIGINT,
        body {bytes} NOT NULL
    )""",
    "CREATE UNIQUE INDEX measurements_by_attempt ON measurements (attempt, basis)",
    """CREATE TABLE baselines (
        number {number},
        name {text} NOT NULL,
        body {bytes} NOT NULL
    )""",
    "CREATE INDEX baselines_by_name ON baselines (name, number)",
)

FACTS = ("measurements", "baselines")
