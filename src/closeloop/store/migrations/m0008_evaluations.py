"""What judges said of outputs, what people said of the same, and how far the two agree."""

from __future__ import annotations

STATEMENTS = (
    """CREATE TABLE judges (
        number {number},
        id {text} NOT NULL,
        rubric {text} NOT NULL,
        model {text} NOT NULL,
        body {bytes} NOT NULL
    )""",
    "CREATE INDEX judges_by_id ON judges (id, number)",
    """CREATE TABLE evaluations (
        number {number},
        id {text} NOT NULL,
        at BIGINT,
        attempt {text} REFERENCES attempts (id),
        task {text} NOT NULL,
        judge {text} NOT NULL,
        passed BOOLEAN,
        score FLOAT,
        completeness FLOAT,
        quality FLOAT,
        relevance FLOAT,
        same_family BOOLEAN,
        issues BIGINT NOT NULL,
        seconds FLOAT NOT NULL,
        input_tokens BIGINT,
        output_tokens BIGINT,
        cost FLOAT,
        body {bytes} NOT NULL
    )""",
    "CREATE UNIQUE INDEX evaluations_by_id ON evaluations (id)",
    "CREATE INDEX evaluations_by_attempt ON evaluations (attempt, number)",
    "CREATE INDEX evaluations_by_judge ON evaluations (judge, number)",
    """CREATE TABLE preferences (
        number {number},
        judge {text} NOT NULL,
        task {text} NOT NULL,
        winner {text},
        flipped BOOLEAN NOT NULL,
        body {bytes} NOT NULL
    )""",
    "CREATE INDEX preferences_by_judge ON preferences (judge, number)",
    """CREATE TABLE labels (
        number {number},
        item {text} NOT NULL,
        rubric {text} NOT NULL,
        asked {text} NOT NULL,
        label {text} NOT NULL,
        person {text} NOT NULL,
        golden BOOLEAN NOT NULL,
        at BIGINT
    )""",
    "CREATE INDEX labels_by_rubric ON labels (rubric, item, asked, person, golden, number)",
    """CREATE TABLE calibrations (
        number {number},
        judge {text} NOT NULL,
        rubric {text} NOT NULL,
        at BIGINT NOT NULL,
        body {bytes} NOT NULL
    )""",
    "CREATE INDEX calibrations_by_judge ON calibrations (judge, number)",
    """CREATE TABLE analyses (
        number {number},
        name {text} NOT NULL,
        body {bytes} NOT NULL
    )""",
    "CREATE INDEX analyses_by_name ON analyses (name, number)",
    # An answer is asked for once: of one attempt, by one judge.
    """CREATE TABLE answers (
        number {number},
        judge {text} NOT NULL,
        attempt {text} NOT NULL REFERENCES attempts (id),
        verdict {text},
        body {bytes} NOT NULL
    )""",
    "CREATE UNIQUE INDEX answers_once ON answers (judge, attempt)",
)

FACTS = ("judges", "evaluations", "preferences", "labels", "calibrations", "analyses", "answers")
