"""What a line does to the workspace, noted down program by program."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from closeloop.process.shell.command_splitting import ShellCommand, ShellWords

# A workspace may lie in a temporary folder; then something on its way says so.
_TEMPORARY_FOLDER = re.compile(
    r"/(?:dev|proc)/|(?:/private)?/(?:tmp|var/tmp|var/folders)(?:/|$)"
    r"(?!.*/?(?:workspaces?|repos?|worktrees?|projects?|checkouts?|testbed)/)"
)
UNKNOWN_PATH = re.compile(r"[$*?{}\[\]`<>]")
_TEMPORARY_NAME = re.compile(r"\$.*(?:te?mp|log)", re.I)
FILE_NAME = re.compile(r"\.[A-Za-z]\w{0,11}$|(?:^|/)(?:[A-Z]+file|README|LICENSE|CHANGELOG)$")


class CommandEffects:
    """What a line does, while it is told."""

    directory = ""
    writes = False
    waits = False
    temporary = False
    """A temporary file was made: what variables name is taken to be that one."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.read: list[str] = []

    def resolve_path(self, name: str) -> str:
        """A path as seen from where the line began."""
        return posixpath.normpath(posixpath.join(self.directory, name)) if self.directory else name

    def enter_folder(self, name: str) -> None:
        if not UNKNOWN_PATH.search(name) and name[:1] != "-":
            self.directory = posixpath.join(self.directory, name)

    def record_unnamed_change(self) -> None:
        """Something that the line does not name."""
        if not _TEMPORARY_FOLDER.match(self.directory):
            self.writes = True

    def record_writes(self, names: Iterable[str]) -> None:
        for name in names:
            if not name or UNKNOWN_PATH.search(name):
                is_temporary = "$" in name and (self.temporary or _TEMPORARY_NAME.search(name))
                if not is_temporary and not _TEMPORARY_FOLDER.match(name):
                    self.record_unnamed_change()
            elif not _TEMPORARY_FOLDER.match(path := self.resolve_path(name)):
                self.writes = True
                self.written.append(path)

    def record_reads(self, names: Iterable[str]) -> None:
        for name in names:
            if name and name != "-" and not UNKNOWN_PATH.search(name) and name[:5] != "/dev/":
                self.read.append(self.resolve_path(name))


ProgramEffect = Callable[[ShellWords, ShellCommand, CommandEffects], None]


def list_operands(words: ShellWords, values: frozenset[str] = frozenset()) -> ShellWords:
    """The words after the first that are no options and no values of options."""
    names: ShellWords = []
    rest = iter(words)
    next(rest, None)
    for word in rest:
        if word[:1] != "-" or word == "-":
            names.append(word)
        elif word in values:
            next(rest, None)
        elif word == "--":
            names.extend(rest)
    return names


@lru_cache(maxsize=32)
def _flag_matcher(letters: str) -> Callable[[str], re.Match[str] | None]:
    return re.compile(rf"-\w*[{letters}]").match


def has_flag(words: ShellWords, letters: str) -> bool:
    """One of the letters is among the short options."""
    return any(map(_flag_matcher(letters), words))
