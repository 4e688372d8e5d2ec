"""Look into a shell line far enough to see which programs it starts."""

from __future__ import annotations

import re

from closeloop.records.record import Record

_TOKEN = re.compile(
    r"""(?P<space>[ \t]+|\\\n)
    |(?P<comment>\#[^\n]*)
    |(?P<word>(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|\$\([^()]*\)|`[^`]*`|&>|[<>]&|[^\s;|&()'"\\`])+)
    |(?P<operator>&&|\|\||[;|&()\n])""",
    re.VERBOSE | re.DOTALL,
)
_QUOTED = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)""", re.DOTALL)


class ShellWord(Record):
    """A word of a shell line and where it stands in it."""

    text: str
    start: int
    end: int


def simple_commands(line: str) -> list[list[ShellWord]]:
    """The words of each simple command; [] when the line cannot be understood."""
    commands: list[list[ShellWord]] = [[]]
    place = 0
    while place < len(line):
        token = _TOKEN.match(line, place)
        if token is None:
            return []
        place = token.end()
        if token["word"] is not None:
            text = _QUOTED.sub(lambda quoted: next(filter(None, quoted.groups()), ""), token[0])
            commands[-1].append(ShellWord(text=text, start=token.start(), end=token.end()))
        elif token["operator"] is not None:
            commands.append([])
    return [words for words in commands if words]
