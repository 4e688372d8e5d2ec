"""Linters' JSON: Ruff, ESLint and Pyright."""

from __future__ import annotations

import msgspec

from closeloop.model.record import Record
from closeloop.process.failures.found import Found

marks = ('"generalDiagnostics"', '"filePath"', '"end_location"')


class _Message(Record):
    message: str = ""
    code: str | None = None
    """Ruff's."""
    filename: str = ""
    ruleId: str | None = None  # noqa: N815
    rule: str = ""
    """Pyright's."""
    file: str = ""
    severity: int | str = "error"


class _File(Record):
    """One of ESLint's."""

    filePath: str  # noqa: N815
    messages: list[_Message]


class _Pyright(Record):
    generalDiagnostics: list[_Message]  # noqa: N815


_eslint = msgspec.json.Decoder(list[_File]).decode
_ruff = msgspec.json.Decoder(list[_Message]).decode
_pyright = msgspec.json.Decoder(_Pyright).decode


def verdict(text: str) -> bool | None:
    """Said by what is in them."""
    return None


def gather(text: str, found: Found) -> None:
    begin = min((at for sign in "[{" if (at := text.find(sign)) >= 0), default=-1)
    body = text[begin : max(text.rfind("]"), text.rfind("}")) + 1] if begin >= 0 else ""
    for path, message in _messages(body):
        warning = message.severity in (1, "warning", "information")
        rule = message.code or message.ruleId or message.rule
        found.place(path, f"{rule} {message.message}", warning=warning)


def _messages(body: str) -> list[tuple[str, _Message]]:
    try:
        if '"generalDiagnostics"' in body:
            return [(one.file, one) for one in _pyright(body).generalDiagnostics]
        if '"filePath"' in body:
            return [(file.filePath, one) for file in _eslint(body) for one in file.messages]
        return [(one.filename, one) for one in _ruff(body)]
    except (msgspec.MsgspecError, RecursionError):
        return []
