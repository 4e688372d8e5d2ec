"""Linters' JSON: Ruff, ESLint and Pyright."""

from __future__ import annotations

import msgspec

from closeloop.process.failures.failure_collector import FailureCollector
from closeloop.records.record import Record

marks = ('"generalDiagnostics"', '"filePath"', '"end_location"')


class _LinterMessage(Record):
    message: str = ""
    code: str | None = None
    """Ruff's."""
    filename: str = ""
    ruleId: str | None = None  # noqa: N815
    rule: str = ""
    """Pyright's."""
    file: str = ""
    severity: int | str = "error"


class _EslintFile(Record):
    """One of ESLint's."""

    filePath: str  # noqa: N815
    messages: list[_LinterMessage]


class _PyrightReport(Record):
    generalDiagnostics: list[_LinterMessage]  # noqa: N815


_decode_eslint = msgspec.json.Decoder(list[_EslintFile]).decode
_decode_ruff = msgspec.json.Decoder(list[_LinterMessage]).decode
_decode_pyright = msgspec.json.Decoder(_PyrightReport).decode


def read_verdict(text: str) -> bool | None:
    """Said by what is in them."""
    return None


def collect_failures(text: str, found: FailureCollector) -> None:
    begin = min((at for sign in "[{" if (at := text.find(sign)) >= 0), default=-1)
    body = text[begin : max(text.rfind("]"), text.rfind("}")) + 1] if begin >= 0 else ""
    for path, message in _parse_messages(body):
        warning = message.severity in (1, "warning", "information")
        rule = message.code or message.ruleId or message.rule
        found.add_place(path, f"{rule} {message.message}", warning=warning)


def _parse_messages(body: str) -> list[tuple[str, _LinterMessage]]:
    try:
        if '"generalDiagnostics"' in body:
            return [(one.file, one) for one in _decode_pyright(body).generalDiagnostics]
        if '"filePath"' in body:
            return [(file.filePath, one) for file in _decode_eslint(body) for one in file.messages]
        return [(one.filename, one) for one in _decode_ruff(body)]
    except (msgspec.MsgspecError, RecursionError):
        return []
