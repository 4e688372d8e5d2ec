"""Programs that wait, or ask how something is."""

from __future__ import annotations

from closeloop.process.shell.command_effects import (
    CommandEffects,
    ProgramEffect,
    has_flag,
    list_operands,
)
from closeloop.process.shell.command_splitting import ShellCommand, ShellWords, word_set

_POLL_VALUES = word_set("-n -f --namespace --file --context -R --repo")


def wait_effect(words: ShellWords, _part: ShellCommand, sheet: CommandEffects) -> None:
    sheet.waits = True


def waiting_subcommand_effect(*pairs: str) -> ProgramEffect:
    """It waits or polls if its words begin with one of these."""
    known = tuple(tuple(pair.split()) for pair in pairs)

    def effect(words: ShellWords, _part: ShellCommand, sheet: CommandEffects) -> None:
        names = tuple(list_operands(words, _POLL_VALUES)[:2])
        if any(names[: len(pair)] == pair for pair in known):
            sheet.waits = True

    return effect


def is_poll(words: ShellWords) -> bool:
    """A program that nobody knows asks how something is."""
    asks = len(words) > 1 and words[1] in ("wait", "status", "logs", "watch")
    return asks and words[0] not in ("hg", "svn", "jj")


def nc_effect(words: ShellWords, _part: ShellCommand, sheet: CommandEffects) -> None:
    sheet.waits = has_flag(words[1:], "z")
