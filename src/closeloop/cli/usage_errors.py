"""What is wrong with a command as it was typed, in one sentence, and where to read on."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from cyclopts import CoercionError, MissingArgumentError, UnusedCliTokensError

if TYPE_CHECKING:
    from cyclopts import CycloptsError

_VALUE_NAMES: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    datetime: "a day, such as 2026-11-01",
}


def explain_usage_error(error: CycloptsError) -> str:
    """The parser's own words are for programmers where they name types and tokens."""
    command = " ".join(("closeloop", *(error.command_chain or ())))
    return f"{_describe_error(error)} See `{command} --help`."


def _describe_error(error: CycloptsError) -> str:
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"{error.unused_tokens[0]!r} is more than this command takes."
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        if error.keyword:
            return f"{error.keyword} needs a value."
        name = error.argument.name
        by_place = error.argument.field_info.is_positional
        return f"{name.removeprefix('--').upper() if by_place else name} is missing."
    if isinstance(error, CoercionError) and error.token and error.target_type in _VALUE_NAMES:
        name = error.token.keyword or (error.argument.name if error.argument else "It")
        return f"{name} must be {_VALUE_NAMES[error.target_type]}, not {error.token.value!r}."
    return str(error)
