"""How errors are silenced: marks for linters and type checkers, empty handlers, masked commands."""

from __future__ import annotations

import re

SUPPRESSION_MARKS = (
    "noqa",
    "type: ignore",
    "pyright: ignore",
    "pylint: disable",
    "eslint-disable",
    "@ts-ignore",
    "@ts-expect-error",
    "@ts-nocheck",
    "#[allow(",
    "#![allow(",
    "nolint",
    "@SuppressWarnings",
    "rubocop:disable",
)
BLANKET_SUPPRESSION = re.compile(
    r"# (?:noqa|type: ignore|ruff: noqa|mypy: ignore-errors)\s*$|/\* eslint-disable \*/|@ts-nocheck"
    r"|#!\[allow\((?:warnings|unused|dead_code|clippy::all)"
)
SWALLOWED_ERROR = re.compile(
    r"^except(?: \(?(?:Base)?Exception\)?(?: as \w+)?)?:(?: *#[^\n]*\n|\n| )"
    r"(?:pass|continue|return(?: None)?|\.\.\.)(?: *#[^\n]*)?$"
    r"|catch ?(?:\([^)\n]{0,60}\))? ?\{\s*(?://[^\n]*\s*)?\}"
    r"|\.catch\(\(\w*\) => (?:\{\s*\}|null|undefined)\)",
    re.MULTILINE,
)
MASKED_EXIT = re.compile(r"\|\| *(?:true|:)(?=\s|$|;|\))|^set \+e$")
CHECK_COMMAND = re.compile(
    r"\b(?:pytest|unittest|jest|vitest|mocha|go (?:test|vet|build)|cargo \w+|npm (?:test|run)|tsc"
    r"|mypy|pyright|ruff|eslint|flake8|make \w+|tox|mvn|gradlew?|rspec|phpunit)\b"
)
