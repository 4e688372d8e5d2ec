"""Variants that share the work in production, and which piece fell to which."""

from __future__ import annotations

STATEMENTS = (
    """CREATE TABLE trials (
        number {number},
        name {text} NOT NULL,
        body {bytes} NOT NULL
    )""",
    "CREATE UNIQUE INDEX trials_by_name ON trials (name)",
    """CREATE TABLE assignments (
        number {number},
        trial {text} NOT NULL REFERENCES trials (name),
        key {text} NOT NULL,
        variant {text} NOT NULL,
        at BIGINT NOT NULL
    )""",
    "CREATE UNIQUE INDEX assignments_by_key ON assignments (trial, key)",
)

FACTS = ("trials", "assignments")
