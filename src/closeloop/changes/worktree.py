"""The files as they lie in a work tree, taken into our own index as git would."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from closeloop import git
from closeloop.changes.blob_reader import MAX_BLOB_BYTES
from closeloop.changes.file_kinds import LFS_POINTER_HEAD, is_lfs_pointer
from closeloop.changes.shadow_repository import ShadowRepository, copy_index
from closeloop.records.change import FileChange
from closeloop.records.errors import BadInput
from closeloop.records.record import Record

SUBMODULE_MODE = "160000"


class _WorktreePath(Record):
    """A path that is new, or differs from the index."""

    name: bytes
    mode: str | None = None
    """In the index; None where it is not in it."""
    blob: str | None = None


def index_worktree(repository: git.GitRepository, shadow: ShadowRepository) -> list[FileChange]:
    """Bring our index up to date with the files; those that cannot be read are told instead."""
    try:
        copy_index(repository, shadow)
        return _update_index(repository, shadow, _list_changed_paths(shadow))
    except (OSError, git.GitFailed) as error:
        raise BadInput(f"The working tree cannot be read ({error}): try again.") from None


def index_staged_files(
    repository: git.GitRepository, shadow: ShadowRepository, index: Path | None
) -> None:
    """Take over the index alone, or the one of a commit under way."""
    try:
        copy_index(repository, shadow, index)
        _refuse_conflicts({line.partition(b"\t")[2] for line in _list_files(shadow, "-u")})
    except (OSError, git.GitFailed) as error:
        raise BadInput(f"The index cannot be read ({error}): try again.") from None


def _list_files(shadow: ShadowRepository, *options: str) -> list[bytes]:
    return shadow.run_git_reading("ls-files", "-z", *options).split(b"\0")[:-1]


def _update_index(
    repository: git.GitRepository, shadow: ShadowRepository, listed: list[_WorktreePath]
) -> list[FileChange]:
    pointers = _lfs_paths(repository, shadow, listed)
    links: dict[Path, bool] = {repository.root: False}
    unread, plain, entries = [], [], []
    for item in listed:
        path = Path(repository.root, os.fsdecode(item.name))
        status = _file_status(path)
        if status is None or _is_behind_link(path.parent, links) or _is_gone(item, status):
            entries.append(b"0 %s\t%s\0" % (shadow.zeros, item.name))
        elif why := _unreadable_reason(item, path, status, item.name in pointers):
            unread.append(_unread_change(item, status, why))
        elif item.name in pointers:
            blob = shadow.write_blob(_lfs_pointer(path, status.st_size))
            entries.append(b"%s %s\t%s\0" % (_git_mode(status), blob.encode(), item.name))
        else:
            plain.append(item.name)
            if item.blob and _has_crlf(path, status):
                # Whether its line ends are normalised depends on those that git has.
                shadow.copy_blobs([item.blob])
    if entries:
        shadow.run_git_writing("update-index", "-z", "--index-info", stdin=b"".join(entries))
    if plain:
        # As if they were large, they go into one pack, not each into a file of its own.
        update = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
        names = b"".join(name + b"\0" for name in plain)
        shadow.run_git_writing("-c", "core.bigFileThreshold=1", *update, stdin=names)
    return unread


def _list_changed_paths(shadow: ShadowRepository) -> list[_WorktreePath]:
    paths: dict[bytes, _WorktreePath] = {}
    conflicts = set()
    for line in _list_files(shadow, "-t", "-u", "-m", "-d", "-o", "--exclude-standard"):
        tag, rest = line[:1], line[2:]
        if tag == b"?":
            paths[rest] = _WorktreePath(name=rest)
            continue
        metadata, _, name = rest.partition(b"\t")
        mode, blob, stage = metadata.decode().split(" ")
        paths[name] = _WorktreePath(name=name, mode=mode, blob=blob)
        if stage != "0":
            conflicts.add(name)
    _refuse_conflicts(conflicts)
    return list(paths.values())


def _refuse_conflicts(conflicts: set[bytes]) -> None:
    if conflicts:
        more = f" and {len(conflicts) - 1} more" if len(conflicts) > 1 else ""
        first = git.decode_git_path(min(conflicts))
        raise BadInput(f"Merge conflicts in {first}{more}: resolve them, `git add`, try again.")


def _unreadable_reason(
    item: _WorktreePath, path: Path, about: os.stat_result, pointer: bool
) -> str | None:
    """Why a file is not to be read."""
    if item.name.endswith(b"/"):
        return "it is a repository of its own"
    if not stat.S_ISREG(about.st_mode):
        return None
    if not os.access(path, os.R_OK):
        return "its permissions forbid it"
    if about.st_size > MAX_BLOB_BYTES and not pointer:
        return f"it is too large ({about.st_size:,} bytes)"
    return None


def _unread_change(item: _WorktreePath, about: os.stat_result, why: str) -> FileChange:
    nested = item.name.endswith(b"/")
    return FileChange(
        path=git.decode_git_path(item.name.removesuffix(b"/")),
        status="changed" if item.mode else "added",
        binary=True,
        old_mode=item.mode,
        mode=SUBMODULE_MODE if nested else _git_mode(about).decode(),
        note=f"not read: {why}",
    )


def _git_mode(about: os.stat_result) -> bytes:
    return b"100755" if about.st_mode & 0o100 else b"100644"


def _file_status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None


def _is_gone(item: _WorktreePath, about: os.stat_result) -> bool:
    """Whether a folder, or what git cannot keep, lies where the file was."""
    kind = stat.S_IFMT(about.st_mode)
    if kind == stat.S_IFDIR:
        return item.mode not in (None, SUBMODULE_MODE)
    return kind not in (stat.S_IFREG, stat.S_IFLNK)


def _is_behind_link(folder: Path, known: dict[Path, bool]) -> bool:
    """Whether a folder, or one above it, is a link by now: what is behind it is not ours."""
    if folder not in known:
        known[folder] = folder.is_symlink() or _is_behind_link(folder.parent, known)
    return known[folder]


def _has_crlf(path: Path, about: os.stat_result) -> bool:
    return stat.S_ISREG(about.st_mode) and b"\r\n" in path.read_bytes()


def _lfs_paths(
    repository: git.GitRepository, shadow: ShadowRepository, listed: list[_WorktreePath]
) -> set[bytes]:
    """Those of which git would keep a pointer."""
    attributes = repository.root / ".gitattributes"
    used = attributes.is_file() and b"filter=lfs" in attributes.read_bytes()
    if not listed or not (used or (repository.shared / "lfs").exists()):
        return set()
    names = b"".join(item.name + b"\0" for item in listed)
    fields = shadow.run_git_writing("check-attr", "-z", "--stdin", "filter", stdin=names).split(
        b"\0"
    )
    return {name for name, value in zip(fields[::3], fields[2::3], strict=False) if value == b"lfs"}


def _lfs_pointer(path: Path, size: int) -> bytes:
    """What Git LFS keeps in git for a file; a file that is a pointer already stays as it is."""
    with path.open("rb") as file:
        if is_lfs_pointer(content := file.read(1024)):
            return content
        file.seek(0)
        oid = hashlib.file_digest(file, "sha256").hexdigest()
    return LFS_POINTER_HEAD + f"oid sha256:{oid}\nsize {size}\n".encode()
