"""Programs that wait, or ask how something is."""

from __future__ import annotations

from closeloop.process.shell.sheet import Effect, Sheet, has_flag, operands
from closeloop.process.shell.split import Part, Words, wordset

_POLL_VALUES = wordset("-n -f --namespace --file --context -R --repo")


def waits(words: Words, _part: Part, sheet: Sheet) -> None:
    sheet.waits = True


def waits_if(*pairs: str) -> Effect:
    """It waits or polls if its words begin with one of these."""
    known = tuple(tuple(pair.split()) for pair in pairs)

    def effect(words: Words, _part: Part, sheet: Sheet) -> None:
        names = tuple(operands(words, _POLL_VALUES)[:2])
        if any(names[: len(pair)] == pair for pair in known):
            sheet.waits = True

    return effect


def polls(words: Words) -> bool:
    """A program that nobody knows asks how something is."""
    asks = len(words) > 1 and words[1] in ("wait", "status", "logs", "watch")
    return asks and words[0] not in ("hg", "svn", "jj")


def nc(words: Words, _part: Part, sheet: Sheet) -> None:
    sheet.waits = has_flag(words[1:], "z")
