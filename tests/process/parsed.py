"""What a parser makes of an output, in tests."""

from __future__ import annotations

from closeloop.process.check_results import PARSERS_BY_NAME
from closeloop.process.failure_collector import FailureCollector, strip_terminal_codes
from closeloop.records.change import CheckFailures


def parsed(parser: str, text: str) -> CheckFailures:
    """What it finds; there must be something."""
    found = FailureCollector()
    PARSERS_BY_NAME[parser].collect_failures(strip_terminal_codes(text), found)
    told = found.build_failures(parser)
    assert told is not None
    return told


def keys(parser: str, text: str) -> list[str]:
    return list(parsed(parser, text).errors)


def verdict(parser: str, text: str) -> bool | None:
    return PARSERS_BY_NAME[parser].read_verdict(strip_terminal_codes(text))
