"""What agents say they lacked; and whether an experiment may go on."""

from __future__ import annotations

STATEMENTS = (
    """CREATE TABLE insights (
        number {number},
        attempt {text} NOT NULL REFERENCES attempts (id),
        repo {text},
        type {text} NOT NULL,
        text {text} NOT NULL,
        at BIGINT NOT NULL
    )""",
    "CREATE UNIQUE INDEX insights_by_attempt ON insights (attempt, type)",
    "CREATE INDEX insights_by_repo ON insights (repo, at)",
    # The newest row says whether it is paused.
    """CREATE TABLE pauses (
        number {number},
        experiment {text} NOT NULL,
        paused BOOLEAN NOT NULL
    )""",
    "CREATE INDEX pauses_by_experiment ON pauses (experiment, number)",
)

FACTS = ("insights", "pauses")
