"""Tasks, variants, experiments, attempts, grades and jobs."""

from __future__ import annotations

STATEMENTS = (
    "CREATE TABLE closeloop_migrations (number BIGINT NOT NULL PRIMARY KEY)",
    """CREATE TABLE blobs (
        digest {text} NOT NULL PRIMARY KEY,
        body {bytes} NOT NULL
    )""",
    """CREATE TABLE tasks (
        number {number},
        digest {text} NOT NULL,
        grading {text} NOT NULL,
        id {text} NOT NULL,
        split {text} NOT NULL,
        body {bytes} NOT NULL
    )""",
    "CREATE INDEX tasks_by_digest ON tasks (digest, number)",
    """CREATE TABLE prompts (
        number {number},
        id {text} NOT NULL,
        body {bytes} NOT NULL
    )""",
    "CREATE INDEX prompts_by_id ON prompts (id, number)",
    """CREATE TABLE variants (
        number {number},
        digest {text} NOT NULL,
        name {text} NOT NULL,
        agent {text} NOT NULL,
        model {text},
        body {bytes} NOT NULL
    )""",
    "CREATE INDEX variants_by_digest ON variants (digest, number)",
    """CREATE TABLE experiments (
        number {number},
        id {text} NOT NULL,
        body {bytes} NOT NULL
    )""",
    "CREATE INDEX experiments_by_id ON experiments (id, number)",
    """CREATE TABLE proofs (
        number {number},
        grading {text} NOT NULL,
        task {text} NOT NULL,
        state {text} NOT NULL,
        before {text} REFERENCES blobs (digest),
        reference {text} REFERENCES blobs (digest),
        body {bytes} NOT NULL
    )""",
    "CREATE INDEX proofs_by_grading ON proofs (grading, number)",
    """CREATE TABLE attempts (
        id {text} NOT NULL PRIMARY KEY,
        origin {text} NOT NULL,
        task {text},
        task_digest {text},
        variant {text},
        experiment {text},
        number BIGINT NOT NULL,
        retry BIGINT NOT NULL,
        parent {text},
        exit {text} NOT NULL,
        cause {text},
        started BIGINT,
        ended BIGINT,
        seconds DOUBLE PRECISION,
        input_tokens BIGINT,
        output_tokens BIGINT,
        cost DOUBLE PRECISION,
        lanes BIGINT,
        turns BIGINT,
        events BIGINT,
        files_changed BIGINT,
        lines_added BIGINT,
        lines_removed BIGINT
    )""",
    "CREATE INDEX attempts_by_key ON attempts (task_digest, variant, number, retry)",
    "CREATE INDEX attempts_by_task ON attempts (task, started {latest}, id)",
    "CREATE INDEX attempts_by_variant ON attempts (variant, started {latest}, id)",
    "CREATE INDEX attempts_by_experiment ON attempts (experiment, started {latest}, id)",
    "CREATE INDEX attempts_by_start ON attempts (started {latest}, id)",
    # The trace comes last: SQLite reads past whatever stands before a column.
    """CREATE TABLE attempt_bodies (
        attempt {text} NOT NULL PRIMARY KEY REFERENCES attempts (id),
        body {bytes} NOT NULL,
        change {bytes},
        trace {bytes}
    )""",
    """CREATE TABLE grades (
        number {number},
        attempt {text} NOT NULL REFERENCES attempts (id),
        grading {text} NOT NULL,
        version BIGINT NOT NULL,
        outcome {text} NOT NULL,
        outcome_cause {text},
        reason {text},
        broken BIGINT NOT NULL,
        out_of_scope BIGINT NOT NULL,
        facts_dropped BIGINT NOT NULL,
        same_failure BIGINT,
        asked BOOLEAN,
        before {text} REFERENCES blobs (digest),
        body {bytes} NOT NULL
    )""",
    "CREATE INDEX grades_by_attempt ON grades (attempt, version, number)",
    """CREATE TABLE jobs (
        key {text} NOT NULL PRIMARY KEY,
        owner {text},
        leased_until DOUBLE PRECISION,
        state {text} NOT NULL CHECK (state IN ('claimed', 'finished'))
    )""",
    "CREATE INDEX jobs_in_hand ON jobs (owner) WHERE state = 'claimed'",
)

FACTS = (
    "closeloop_migrations",
    "blobs",
    "tasks",
    "prompts",
    "variants",
    "experiments",
    "proofs",
    "attempts",
    "attempt_bodies",
    "grades",
)
