"""What a parser makes of an output, in tests."""

from __future__ import annotations

from closeloop.model.steps import Failures
from closeloop.process.failures.found import Found
from closeloop.process.failures.tools import NAMED
from closeloop.process.normalise import plain


def parsed(parser: str, text: str) -> Failures:
    """What it finds; there must be something."""
    found = Found()
    NAMED[parser].gather(plain(text), found)
    told = found.told(parser)
    assert told is not None
    return told


def keys(parser: str, text: str) -> list[str]:
    return list(parsed(parser, text).errors)


def verdict(parser: str, text: str) -> bool | None:
    return NAMED[parser].verdict(plain(text))
