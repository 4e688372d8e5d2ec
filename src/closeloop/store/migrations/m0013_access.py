"""Tokens of the dashboard, logins by them, what no longer holds; and what its lists search by."""

from __future__ import annotations

STATEMENTS = (
    """CREATE TABLE tokens (
        number {number},
        id {text} NOT NULL,
        name {text} NOT NULL,
        scopes {text} NOT NULL,
        hash {text} NOT NULL,
        at BIGINT NOT NULL
    )""",
    "CREATE UNIQUE INDEX tokens_by_id ON tokens (id)",
    "CREATE UNIQUE INDEX tokens_by_hash ON tokens (hash)",
    """CREATE TABLE logins (
        number {number},
        hash {text} NOT NULL,
        token {text} NOT NULL,
        until BIGINT NOT NULL
    )""",
    "CREATE UNIQUE INDEX logins_by_hash ON logins (hash)",
    # Of a token by its id, or of a login by its hash.
    """CREATE TABLE revocations (
        number {number},
        revoked {text} NOT NULL,
        at BIGINT NOT NULL
    )""",
    "CREATE UNIQUE INDEX revocations_once ON revocations (revoked)",
    'CREATE INDEX attempts_by_user ON attempts ("user", started {latest}, id)',
    "CREATE INDEX sessions_by_repo ON sessions (repo, attempt)",
    "CREATE INDEX sessions_by_agent ON sessions (agent, attempt)",
    "CREATE INDEX measurements_by_category ON measurements (category, attempt)",
)

FACTS = ("tokens", "logins", "revocations")
