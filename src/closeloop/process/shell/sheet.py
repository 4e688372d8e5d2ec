"""What a line does to the workspace, noted down program by program."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from closeloop.process.shell.split import Part, Words

# A workspace may lie in a temporary folder; then something on its way says so.
_TEMPORARY = re.compile(
    r"/(?:dev|proc)/|(?:/private)?/(?:tmp|var/tmp|var/folders)(?:/|$)"
    r"(?!.*/?(?:workspaces?|repos?|worktrees?|projects?|checkouts?|testbed)/)"
)
UNKNOWN = re.compile(r"[$*?{}\[\]`<>]")
_TEMPORARY_NAME = re.compile(r"\$.*(?:te?mp|log)", re.I)
FILE = re.compile(r"\.[A-Za-z]\w{0,11}$|(?:^|/)(?:[A-Z]+file|README|LICENSE|CHANGELOG)$")


class Sheet:
    """What a line does, while it is told."""

    directory = ""
    writes = False
    waits = False
    temporary = False
    """A temporary file was made: what variables name is taken to be that one."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.read: list[str] = []

    def place(self, name: str) -> str:
        """A path as seen from where the line began."""
        return posixpath.normpath(posixpath.join(self.directory, name)) if self.directory else name

    def enter(self, name: str) -> None:
        if not UNKNOWN.search(name) and name[:1] != "-":
            self.directory = posixpath.join(self.directory, name)

    def changed(self) -> None:
        """Something that the line does not name."""
        if not _TEMPORARY.match(self.directory):
            self.writes = True

    def wrote(self, names: Iterable[str]) -> None:
        for name in names:
            if not name or UNKNOWN.search(name):
                known = "$" in name and (self.temporary or _TEMPORARY_NAME.search(name))
                if not known and not _TEMPORARY.match(name):
                    self.changed()
            elif not _TEMPORARY.match(path := self.place(name)):
                self.writes = True
                self.written.append(path)

    def showed(self, names: Iterable[str]) -> None:
        for name in names:
            if name and name != "-" and not UNKNOWN.search(name) and name[:5] != "/dev/":
                self.read.append(self.place(name))


Effect = Callable[[Words, Part, Sheet], None]


def operands(words: Words, values: frozenset[str] = frozenset()) -> Words:
    """The words after the first that are no options and no values of options."""
    found: Words = []
    rest = iter(words)
    next(rest, None)
    for word in rest:
        if word[:1] != "-" or word == "-":
            found.append(word)
        elif word in values:
            next(rest, None)
        elif word == "--":
            found.extend(rest)
    return found


@lru_cache(maxsize=32)
def _among(letters: str) -> Callable[[str], re.Match[str] | None]:
    return re.compile(rf"-\w*[{letters}]").match


def has_flag(words: Words, letters: str) -> bool:
    """One of the letters is among the short options."""
    return any(map(_among(letters), words))
