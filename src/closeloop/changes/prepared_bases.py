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

from closeloop.changes.change_sides import ChangeSides
from closeloop.changes.check_context import differing_paths
from closeloop.changes.file_kinds import classify_file
from closeloop.records.inspection import ChangeSide
from closeloop.records.record import content_digest
from closeloop.sandbox.workspaces import WorkspaceBase, WorkspacePool

PREPARED_VERSION = 1
MAX_DIFFERING_FILES = 2_000
"""So many files from a prepared commit, a base of one's own is cheaper."""
_INSTALL_COMMAND = re.compile(
    r"(?:\S*/)?(?:"
    r"python[\d.]* -m venv|virtualenv|uv venv|uv sync|(?:poetry|pdm|bundle|composer) install"
    r"|npm (?:ci|install|i)|pnpm (?:install|i)|yarn(?: install)?|go mod download|cargo fetch"
    r")(?: [^&|;<>`$]*)?"
)
_PIP_INSTALL = re.compile(
    r"(?:(?:\S*/)?python[\d.]* -m pip|(?:\S*/)?pip[\d.]*|uv pip) install (.*)"
)
_REFERENCE_OPTIONS = ("-e", "--editable", "-r", "--requirement", "-c", "--constraint")
_SHELL_OPERATORS = ("|", "||", ";", "&", "<", ">", ">>")
_INSTALL_SCRIPTS = re.compile(rb'"(?:(?:pre|post)?install|(?:pre|post)?prepare)"\s*:')
_NATIVE_SOURCE = re.compile(r".*\.(?:c|cc|cpp|cxx|h|hpp|pyx|pxd|rs|f90|m)")


async def prepare_base(
    workspaces: WorkspacePool,
    sides: ChangeSides,
    side: ChangeSide,
    setup: Sequence[str],
    cache: Path,
) -> WorkspaceBase:
    """A base for one end of a change, of its own commit or of one that is set up just the same."""
    own = sides.base if side == "before" else sides.head
    assert own is not None
    repo = str(sides.root)
    note = (
        cache
        / "prepared"
        / content_digest(PREPARED_VERSION, repo, list(setup), _setup_inputs(sides, side, setup))[
            :32
        ]
    )
    with suppress(OSError, UnicodeDecodeError):
        commit = note.read_text("ascii")
        if (
            sides.entries_at_commit(commit)
            and len(differing_paths(sides, commit, side)) <= MAX_DIFFERING_FILES
        ):
            return await workspaces.prepare_base(repo, commit, setup)
    base = await workspaces.prepare_base(repo, own, setup)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(own, "ascii")
    return base


def _setup_inputs(sides: ChangeSides, side: ChangeSide, setup: Sequence[str]) -> object:
    """What setup depends on: some files where it is known to install only, else all of them."""
    if not setup:
        return None
    tree = sides.tree(side)
    if not all(installs_only(line) for line in setup) or _has_install_scripts(sides, side):
        return sides.base if side == "before" else sides.head
    named = {word for line in setup for word in line.split()}
    return [
        (path, blob)
        for path, blob in sorted(tree.items())
        if path in named
        or classify_file(path) in ("manifest", "lockfile")
        or _NATIVE_SOURCE.fullmatch(path)
    ]


def installs_only(line: str) -> bool:
    """Whether a command is seen to install dependencies, and the project at most by reference."""
    parts = [part.strip() for part in line.split("&&")]
    return all(part.startswith("cd ") or _is_install_command(part) for part in parts)


def _is_install_command(command: str) -> bool:
    if _INSTALL_COMMAND.fullmatch(command):
        return True
    match = _PIP_INSTALL.fullmatch(command)
    return match is not None and all(_are_references(match[1]))


def _are_references(arguments: str) -> Iterator[bool]:
    """Of what pip is given, whether a path is installed as it stands, and not as a copy."""
    try:
        words = shlex.split(arguments)
    except ValueError:
        yield False
        return
    before = ""
    for word in words:
        copied = word.startswith((".", "/")) and before not in _REFERENCE_OPTIONS
        yield not copied and word not in _SHELL_OPERATORS and not set(word) & set("`$")
        before = word


def _has_install_scripts(sides: ChangeSides, side: ChangeSide) -> bool:
    """Whether installing runs scripts of the project's own."""
    content = sides.read(side, "package.json")
    return content is not None and _INSTALL_SCRIPTS.search(content) is not None
