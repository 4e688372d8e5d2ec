"""Pull requests, deliveries of webhooks and the log of events."""

from __future__ import annotations

STATEMENTS: tuple[str, ...] = (
    """CREATE TABLE arrivals (
        number {number},
        source {text} NOT NULL,
        delivery {text} NOT NULL,
        event {text} NOT NULL,
        at BIGINT NOT NULL
    )""",
    "CREATE UNIQUE INDEX arrivals_by_delivery ON arrivals (delivery, source)",
    # What has not been read yet: the only one of these whose rows go away.
    """CREATE TABLE inbox (
        number {number},
        source {text} NOT NULL,
        event {text} NOT NULL,
        at BIGINT NOT NULL,
        body {bytes} NOT NULL
    )""",
    """CREATE TABLE pull_facts (
        number {number},
        source {text} NOT NULL,
        repo {text} NOT NULL,
        key {text} NOT NULL,
        pull BIGINT,
        sha {text},
        branch {text},
        at BIGINT NOT NULL,
        body {bytes} NOT NULL
    )""",
    "CREATE UNIQUE INDEX pull_facts_by_key ON pull_facts (repo, key)",
    "CREATE INDEX pull_facts_by_pull ON pull_facts (repo, pull)",
    "CREATE INDEX pull_facts_by_sha ON pull_facts (repo, sha)",
    "CREATE INDEX pull_facts_by_branch ON pull_facts (repo, branch)",
    # What the facts say now, to search and list by: made again from them at any time.
    """CREATE TABLE pulls (
        repo {text} NOT NULL,
        pull BIGINT NOT NULL,
        source {text} NOT NULL,
        title {text} NOT NULL,
        url {text},
        author {text},
        agent {text},
        attempt {text},
        task {text},
        prompt {text},
        state {text} NOT NULL,
        draft BOOLEAN NOT NULL,
        branch {text},
        head {text},
        merge_commit {text},
        opened BIGINT NOT NULL,
        closed BIGINT,
        told BIGINT NOT NULL,
        rounds BIGINT NOT NULL,
        comments BIGINT NOT NULL,
        edits BIGINT NOT NULL,
        pointers BIGINT NOT NULL,
        first_push {text},
        last_push {text},
        risk {text},
        reviewed BOOLEAN NOT NULL,
        version BIGINT NOT NULL,
        PRIMARY KEY (repo, pull)
    )""",
    "CREATE INDEX pulls_by_branch ON pulls (repo, branch)",
    "CREATE INDEX pulls_by_merge_commit ON pulls (repo, merge_commit)",
    "CREATE INDEX pulls_by_attempt ON pulls (attempt)",
    "CREATE INDEX pulls_by_opened ON pulls (opened)",
    # Addresses that recordings of work name, such as that of a pull request.
    """CREATE TABLE links (
        number {number},
        attempt {text} NOT NULL REFERENCES attempts (id),
        address {text} NOT NULL
    )""",
    "CREATE INDEX links_by_address ON links (address)",
    """CREATE TABLE events (
        number {number},
        at BIGINT NOT NULL,
        kind {text} NOT NULL,
        repo {text},
        pull BIGINT,
        task {text},
        attempt {text},
        details {text} NOT NULL
    )""",
    # How far somebody has come: a webhook through the log, a backfill through a repository.
    """CREATE TABLE places (
        name {text} NOT NULL PRIMARY KEY,
        place {text} NOT NULL
    )""",
)
FACTS: tuple[str, ...] = ("arrivals", "pull_facts", "links", "events")
