"""Where tools are run: a prepared base, and either end of the change written over it."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from closeloop.changes.change_sides import ChangeSides
from closeloop.changes.file_kinds import classify_file
from closeloop.changes.shadow_repository import TreeEntry
from closeloop.records.errors import MachineFailed
from closeloop.records.inspection import ChangeSide
from closeloop.records.record import Record
from closeloop.sandbox.workspaces import Workspace, WorkspaceBase, WorkspacePool

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
