"""Where tools are run: prepared bases, either end of the change written out, and what they lack."""

from __future__ import annotations

import io
import re
import shlex
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from closeloop.changes.change_sides import ChangeSides
from closeloop.changes.file_kinds import classify_file, is_lfs_pointer
from closeloop.changes.shadow_repository import TreeEntry
from closeloop.records.errors import MachineFailed
from closeloop.records.inspection import (
    ChangeSide,
)
from closeloop.records.record import Record, content_digest
from closeloop.sandbox.workspaces import Workspace, WorkspaceBase, WorkspacePool
from closeloop.text.wording import matches_globs

BATCH_BYTES = 32 << 20
UNPACK_COMMAND = "tar -xf - --no-same-owner"
REMOVE_COMMAND = "xargs -0 -r rm -rf --"


class CheckContext(Record):
    """Both ends of a change, ready to be opened as workspaces."""

    workspaces: WorkspacePool
    bases: Mapping[ChangeSide, WorkspaceBase]
    """What each end is written over: set up, and near to it."""
    sides: ChangeSides
    setup: tuple[str, ...] = ()
    """Run again where an end differs from its base in what they read: manifests, lock files."""
    unready: Mapping[ChangeSide, str] = {}
    """Ends that cannot be set up, and what the setup printed."""
    bare: frozenset[ChangeSide] = frozenset()
    """Ends whose base was not set up: that is done in every workspace."""
    timeout: float = 900.0
    tell: Callable[[str], None] = lambda text: None


async def apply_side(bench: CheckContext, workspace: Workspace, side: ChangeSide) -> None:
    """Make a workspace of its base into one end of the change."""
    base = bench.bases[side]
    paths = differing_paths(bench.sides, base.commit, side)
    if paths:
        entries = bench.sides.list_entries(side)
        await _run_with_stdin(
            workspace, REMOVE_COMMAND, b"".join(path.encode() + b"\0" for path in paths)
        )
        for archive in _build_archives(bench.sides, [(path, entries.get(path)) for path in paths]):
            await _run_with_stdin(workspace, UNPACK_COMMAND, archive)
    if side in bench.bare or needs_setup(paths):
        await workspace.set_up(bench.setup)


def differing_paths(sides: ChangeSides, commit: str, side: ChangeSide) -> list[str]:
    """Paths that are not the same at one end of a change as in a commit; none outside of it."""
    commit_entries, wanted = sides.entries_at_commit(commit), sides.list_entries(side)
    paths = {
        path
        for path in commit_entries.keys() | wanted.keys()
        if commit_entries.get(path) != wanted.get(path)
    }
    return sorted(path for path in paths if not {"..", ".git"} & set(path.lower().split("/")))


def needs_setup(paths: Iterable[str]) -> bool:
    """Whether what a project is set up from is among them."""
    return any(classify_file(path) in ("manifest", "lockfile") for path in paths)


async def _run_with_stdin(workspace: Workspace, command: str, stdin: bytes) -> None:
    ran = await workspace.cage.run(command, stdin=stdin)
    if ran.exit_code != 0:
        output = ran.stopped or ran.output.strip()[-300:]
        raise MachineFailed(f"The change could not be written into a workspace: {output}")


def _build_archives(
    sides: ChangeSides, entries: Sequence[tuple[str, TreeEntry | None]]
) -> Iterable[bytes]:
    """What can be read of the files, in archives of a bearable size."""
    now, file = int(time.time()), io.BytesIO()
    archive = tarfile.open(fileobj=file, mode="w")  # noqa: SIM115 - begun anew when it is full
    for path, entry in entries:
        content = sides.read_blob(entry.id) if entry and entry.mode != "160000" else None
        if entry is None or content is None:
            continue
        member = tarfile.TarInfo(path)
        member.mtime, member.mode = now, 0o755 if entry.mode == "100755" else 0o644
        if entry.mode == "120000":
            member.type, member.linkname = tarfile.SYMTYPE, content.decode("utf-8", "replace")
            archive.addfile(member)
            continue
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
        if file.tell() > BATCH_BYTES:
            archive.close()
            yield file.getvalue()
            file = io.BytesIO()
            archive = tarfile.open(fileobj=file, mode="w")  # noqa: SIM115
    archive.close()
    yield file.getvalue()


# Bases that are set up already, for other commits too: setup is run only where it would differ.
#
# What installs dependencies reads manifests and lock files. While those stay the same, what was
# installed for one commit serves its neighbours, and only their files are written over it.

PREPARED_VERSION = 1
MAX_DIFFERING_FILES = 2_000
"""So many files from a prepared commit, a base of one's own is cheaper."""
_INSTALL_COMMAND = re.compile(
    r"(?:\S*/)?(?:"
    r"python[\d.]* -m venv|virtualenv|uv venv|uv sync|(?:poetry|pdm|bundle|composer) install"
    r"|npm (?:ci|install|i)|pnpm (?:install|i)|yarn(?: install)?|go mod download|cargo fetch"
    r"|pipenv install|hatch env create|go vet|go test -exec=true"
    r"|cargo test(?: --workspace)? --no-run|pre-commit install-hooks"
    r")(?: [^&|;<>`$]*)?"
)
_PIP_INSTALL = re.compile(
    r"(?:(?:\S*/)?python[\d.]* -m pip|(?:\S*/)?pip[\d.]*|(?:\S*/)?uv pip) install (.*)"
)
_REFERENCE_OPTIONS = ("-e", "--editable", "-r", "--requirement", "-c", "--constraint", "--python")
_SHELL_OPERATORS = ("|", "||", ";", "&", "<", ">", ">>")
_INSTALL_SCRIPTS = re.compile(rb'"(?:(?:pre|post)?install|(?:pre|post)?prepare)"\s*:')
_NATIVE_SOURCE = re.compile(r".*\.(?:c|cc|cpp|cxx|h|hpp|pyx|pxd|rs|f90|m)")


async def prepare_base(
    workspaces: WorkspacePool,
    sides: ChangeSides,
    side: ChangeSide,
    setup: Sequence[str],
    cache: Path,
    tell: Callable[[str], None] = lambda text: None,
) -> WorkspaceBase:
    """A base for one end of a change, of its own commit or of one that is set up just the same.

    What was set up with the change serves nobody else: its code may have run, and could have left
    something in a cache for the checks of others.
    """
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
            return await workspaces.prepare_base(repo, commit, setup, tell=tell)
    trusted = side == "before"
    base = await workspaces.prepare_base(repo, own, setup, lends=trusted, tell=tell)
    if trusted:
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
    parts = [part.strip() for part in line.removesuffix(" || true").split("&&")]
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


# What a workspace lacks, told before anybody wonders why tests fail for it.

SUBMODULE_MODE = "160000"
MAX_READ_FILES = 200
MAX_GLOBS = 100
_CONSEQUENCE = "what needs that content fails, without this change too"


def describe_missing_content(sides: ChangeSides) -> Iterator[str]:
    """A sentence for each kind of content that is not there, at either end."""
    modules = _submodule_paths(sides, "after")
    if modules:
        yield f"{_subject_phrase(modules, 'submodule')} empty in the workspaces: {_CONSEQUENCE}"
    pointers = list(_lfs_pointer_paths(sides))
    if pointers:
        yield (
            f"{_subject_phrase(pointers, 'file')} kept by Git LFS, and not in the workspaces:"
            f" {_CONSEQUENCE}"
        )
    large = [
        file.path
        for file in sides.change.files
        if (entry := sides.list_entries("after").get(file.path))
        and entry.mode != SUBMODULE_MODE
        and sides.read_blob(entry.id) is None
    ]
    if large:
        yield f"{_subject_phrase(large, 'changed file')} too large, and left out of the workspaces"


def _submodule_paths(sides: ChangeSides, side: ChangeSide) -> list[str]:
    return [
        path for path, entry in sides.list_entries(side).items() if entry.mode == SUBMODULE_MODE
    ]


def _lfs_pointer_paths(sides: ChangeSides) -> Iterator[str]:
    """Files that attributes give to LFS and whose content is a pointer; the first few are read."""
    tree = sides.tree("after")
    globs: list[str] = []
    for path in tree:
        if path == ".gitattributes" or path.endswith("/.gitattributes"):
            folder = path.removesuffix(".gitattributes")
            lines = (sides.read("after", path) or b"").splitlines()
            words = [line.split() for line in lines if b"filter=lfs" in line]
            globs += [_root_glob(folder, first) for first, *rest in words if b"filter=lfs" in rest]
    globs = [glob for glob in globs if len(glob) < 300 and glob.count("*") <= 6][:MAX_GLOBS]
    lfs_paths = [path for path in tree if matches_globs(path, globs)] if globs else []
    yield from (
        path
        for path in lfs_paths[:MAX_READ_FILES]
        if is_lfs_pointer(sides.read("after", path) or b"")
    )


def _root_glob(folder: str, pattern: bytes) -> str:
    """A pattern of an attributes file, seen from the root: one without a folder means any."""
    text = pattern.decode("utf-8", "replace")
    return f"{folder}{text.removeprefix('/')}" if "/" in text else f"{folder}**/{text}"


def _subject_phrase(paths: Sequence[str], noun: str) -> str:
    if len(paths) == 1:
        return f"the {noun} {paths[0]} is"
    return f"{len(paths)} {noun}s ({paths[0]}, …) are"
