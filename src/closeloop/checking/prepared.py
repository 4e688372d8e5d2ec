"""Bases that are set up already, for other commits too: setup is run only where it would differ.

What installs dependencies reads manifests and lock files. While those stay the same, what was
installed for one commit serves its neighbours, and only their files are written over it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from closeloop.changes.kinds import kind_of
from closeloop.changes.sources import Sides
from closeloop.checking.bench import differing
from closeloop.model.inspection import Side
from closeloop.model.record import digest
from closeloop.runs.workspaces import Base, Workspaces

VERSION = 1
FARTHEST = 2_000
"""So many files from a prepared commit, a base of one's own is cheaper."""
_INSTALLS = re.compile(
    r"(?:\S*/)?(?:"
    r"python[\d.]* -m venv|virtualenv|uv venv|uv sync|(?:poetry|pdm|bundle|composer) install"
    r"|npm (?:ci|install|i)|pnpm (?:install|i)|yarn(?: install)?|go mod download|cargo fetch"
    r")(?: [^&|;<>`$]*)?"
)
_PIP = re.compile(r"(?:(?:\S*/)?python[\d.]* -m pip|(?:\S*/)?pip[\d.]*|uv pip) install (.*)")
_REFERS = ("-e", "--editable", "-r", "--requirement", "-c", "--constraint")
_OPERATORS = ("|", "||", ";", "&", "<", ">", ">>")
_SCRIPTS = re.compile(rb'"(?:(?:pre|post)?install|(?:pre|post)?prepare)"\s*:')
_NATIVE = re.compile(r".*\.(?:c|cc|cpp|cxx|h|hpp|pyx|pxd|rs|f90|m)")


async def prepare(
    workspaces: Workspaces, sides: Sides, side: Side, setup: Sequence[str], cache: Path
) -> Base:
    """A base for one end of a change, of its own commit or of one that is set up just the same."""
    own = sides.base if side == "before" else sides.head
    assert own is not None
    repo = str(sides.root)
    note = cache / "prepared" / digest(VERSION, repo, list(setup), _read(sides, side, setup))[:32]
    with suppress(OSError, UnicodeDecodeError):
        commit = note.read_text("ascii")
        if sides.at(commit) and len(differing(sides, commit, side)) <= FARTHEST:
            return await workspaces.base(repo, commit, setup)
    base = await workspaces.base(repo, own, setup)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(own, "ascii")
    return base


def _read(sides: Sides, side: Side, setup: Sequence[str]) -> object:
    """What setup depends on: some files where it is known to install only, else all of them."""
    if not setup:
        return None
    tree = sides.tree(side)
    if not all(installs_only(line) for line in setup) or _builds(sides, side):
        return sides.base if side == "before" else sides.head
    named = {word for line in setup for word in line.split()}
    return [
        (path, blob)
        for path, blob in sorted(tree.items())
        if path in named or kind_of(path) in ("manifest", "lockfile") or _NATIVE.fullmatch(path)
    ]


def installs_only(line: str) -> bool:
    """Whether a command is seen to install dependencies, and the project at most by reference."""
    parts = [part.strip() for part in line.split("&&")]
    return all(part.startswith("cd ") or _installs(part) for part in parts)


def _installs(command: str) -> bool:
    if _INSTALLS.fullmatch(command):
        return True
    found = _PIP.fullmatch(command)
    return found is not None and all(_by_reference(found[1]))


def _by_reference(arguments: str) -> Iterator[bool]:
    """Of what pip is given, whether a path is installed as it stands, and not as a copy."""
    try:
        words = shlex.split(arguments)
    except ValueError:
        yield False
        return
    before = ""
    for word in words:
        copied = word.startswith((".", "/")) and before not in _REFERS
        yield not copied and word not in _OPERATORS and not set(word) & set("`$")
        before = word


def _builds(sides: Sides, side: Side) -> bool:
    """Whether installing runs scripts of the project's own."""
    content = sides.read(side, "package.json")
    return content is not None and _SCRIPTS.search(content) is not None
