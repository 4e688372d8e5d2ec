"""Reviews, corrections, rules and what agents were told of them."""

from __future__ import annotations

STATEMENTS = (
    """CREATE TABLE learned_rules (
        number {number},
        id {text} NOT NULL,
        repo {text},
        state {text} NOT NULL,
        body {bytes} NOT NULL
    )""",
    "CREATE INDEX learned_rules_by_id ON learned_rules (id, number)",
    """CREATE TABLE rule_examples (
        number {number},
        rule {text} NOT NULL,
        key {text} NOT NULL,
        at BIGINT NOT NULL,
        body {bytes} NOT NULL
    )""",
    "CREATE UNIQUE INDEX rule_examples_by_key ON rule_examples (rule, key)",
    """CREATE TABLE vectors (
        encoder {text} NOT NULL,
        digest {text} NOT NULL,
        body {bytes} NOT NULL,
        PRIMARY KEY (encoder, digest)
    )""",
    """CREATE TABLE repeats (
        number {number},
        key {text} NOT NULL,
        rule {text} NOT NULL,
        repo {text} NOT NULL,
        pull BIGINT,
        attempt {text},
        state {text} NOT NULL,
        body {bytes} NOT NULL
    )""",
    "CREATE INDEX repeats_by_key ON repeats (key, rule, number)",
    "CREATE INDEX repeats_by_pull ON repeats (repo, pull)",
    """CREATE TABLE offers (
        number {number},
        key {text} NOT NULL,
        repo {text} NOT NULL,
        arm {text} NOT NULL,
        at BIGINT NOT NULL,
        body {bytes} NOT NULL
    )""",
    "CREATE INDEX offers_by_key ON offers (repo, key, number)",
    """CREATE TABLE corrections (
        number {number},
        id {text} NOT NULL,
        repo {text} NOT NULL,
        pull BIGINT,
        attempt {text},
        kind {text} NOT NULL,
        at BIGINT NOT NULL,
        body {bytes} NOT NULL
    )""",
    "CREATE INDEX corrections_by_id ON corrections (id, number)",
    "CREATE INDEX corrections_by_pull ON corrections (repo, pull)",
    """CREATE TABLE human_reviews (
        number {number},
        item {text} NOT NULL,
        reviewer {text} NOT NULL,
        state {text} NOT NULL,
        merge BOOLEAN,
        at BIGINT NOT NULL,
        body {bytes} NOT NULL
    )""",
    "CREATE INDEX human_reviews_by_item ON human_reviews (item, reviewer, number)",
    """CREATE TABLE review_assignments (
        number {number},
        item {text} NOT NULL,
        reviewer {text} NOT NULL,
        at BIGINT NOT NULL,
        asked BOOLEAN NOT NULL
    )""",
    "CREATE INDEX review_assignments_by_item ON review_assignments (item, number)",
)

FACTS = (
    "learned_rules",
    "rule_examples",
    "vectors",
    "repeats",
    "offers",
    "corrections",
    "human_reviews",
    "review_assignments",
)
