"""leaked-secret: a key, token or password is written into the repository."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from closeloop.changes.quality.changed_file import (
    ChangedFile,
    list_changed_files,
    make_check_finding,
)
from closeloop.records.change import Inspection
from closeloop.records.finding import Finding, Rule, Unmeasured
from closeloop.text.redaction import find_secrets

rules = (
    Rule(
        name="leaked-secret",
        version=1,
        about="A key, a token or a password is written in the code.",
        severity="error",
        gates=True,
    ),
)

GUESSED_RULES = frozenset((
    "assignment", "password", "url-password", "authorization", "curl-user", "sshpass", "netrc",
    "mysql-password", "django-key", "json-web-token",
))  # fmt: skip
"""Rules that recognise a secret by its context, or forms that often contain no secret."""
_FIXTURE_RULES = frozenset({"private-key", *GUESSED_RULES})
"""Rules whose matches are common in tests and documents: made up, and worthless."""
_HARMLESS = re.compile(
    rb"example|placeholder|your[_-]|dummy|fake|not[_-]?(?:a[_-])?(?:real|secret)|changeme"
    rb"|test[_-]?(?:key|token|secret)|x{6}|0123456789|1234567890|abcdef",
    re.IGNORECASE,
)


def check(inspection: Inspection) -> Sequence[Finding | Unmeasured]:
    """Check added lines, unless the changed files contained the same secret before."""
    return [
        leak for file in list_changed_files(inspection) for leak in _find_leaks(file, inspection)
    ]


def _find_leaks(file: ChangedFile, inspection: Inspection) -> Iterator[Finding]:
    aside = file.kind in ("test", "docs", "data")
    old: list[bytes] | None = None
    reported: set[bytes] = set()
    for first, lines in file.added_blocks():
        data = "\n".join(lines).encode()
        for start, end, rule in sorted(
            find_secrets(data), key=lambda secret: (secret[2] in GUESSED_RULES, secret)
        ):
            secret = data[start:end]
            if secret in reported or _HARMLESS.search(secret) or (aside and rule in _FIXTURE_RULES):
                continue
            if old is None:
                old = [
                    inspection.sides.read("before", file.old_path or file.path) or b""
                    for file in inspection.files
                ]
            if any(secret in content for content in old):
                continue
            reported.add(secret)
            guessed = rule in GUESSED_RULES or aside
            line = first + data.count(b"\n", 0, start)
            yield make_check_finding(
                rules[0],
                f"This looks like a secret ({rule}): revoke it, and read it from the environment.",
                f"{file.path}:{line}",
                severity="warning" if guessed else "error",
                confidence=0.7 if guessed else 0.95,
            )
