"""What differs between two trees: git's own patch, read as it comes."""

from __future__ import annotations

import re
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NoReturn

from msgspec.structs import replace

from closeloop import git
from closeloop.changes.file_kinds import LFS_POINTER_HEAD
from closeloop.changes.shadow_repository import MAX_BLOB_BYTES, ShadowRepository, TreeEntry
from closeloop.records.change import FileChange
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.record import Record
from closeloop.text.patches import parse_patch

MAX_PATCH_BYTES = 20_000_000
EMPTY_TREES = {
    "sha1": "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "sha256": "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}
"""The tree without files, which git knows without having it."""
FILE_STATUSES: dict[str, Any] = {"A": "added", "D": "deleted", "R": "renamed", "C": "added"}
DIFF_HEADER = b"diff --git "
SUBMODULE_MODE = "160000"
_LFS_POINTER = re.compile(
    rb"\n@@ [^\n]*\n(?:[ +-]%s){1,2}[ +-]oid sha256:[0-9a-f]{64}\n" % re.escape(LFS_POINTER_HEAD)
)
DIFF_OPTIONS = (
    *("--raw", "-z", "-p", "-M", "--full-index"),
    *("--no-ext-diff", "--no-textconv", "--no-color"),
)


class TreeDiff(Record):
    """Files that differ, and their patch."""

    base: str | None
    head: str | None
    files: tuple[FileChange, ...] = ()
    patch: str = ""
    before: Mapping[str, TreeEntry | None] = {}
    after: Mapping[str, TreeEntry | None] = {}
    """What the changed paths were and are; None where there is, or was, nothing."""


class _RawDiffEntry(Record):
    """What git says of a file before its patch."""

    path: str
    old_path: str
    old: TreeEntry
    new: TreeEntry
    status: str


_ParsedDiff = tuple[list[tuple[_RawDiffEntry, FileChange]], str]


def diff_trees(
    shadow: ShadowRepository, base: str | None, head: str | None, unread: Sequence[FileChange] = ()
) -> TreeDiff:
    """From one commit to another, or to our index and those files that could not be read."""
    start = base or EMPTY_TREES[shadow.object_format]
    which = ("diff-index", "--cached") if head is None else ("diff-tree", "-r")
    ends = [start, head] if head else [start]
    pairs, patch = _run_git_diff(shadow, ends, *which, *DIFF_OPTIONS, *ends, "--")
    unread_entries = {file.path: _unread_entry(file, start) for file in unread}
    files = [file for file in _mark_large_files(shadow, pairs) if file.path not in unread_entries]
    return TreeDiff(
        base=base,
        head=head,
        files=tuple(sorted([*files, *unread], key=lambda file: file.path)),
        patch=patch,
        before=_existing_entries((pair.old_path, pair.old) for pair, _ in pairs),
        after=_existing_entries((pair.path, pair.new) for pair, _ in pairs) | unread_entries,
    )


def _run_git_diff(shadow: ShadowRepository, ends: Sequence[str], *arguments: str) -> _ParsedDiff:
    result: _ParsedDiff | BadInput
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(
            [*git.FOREIGN_COMMAND, *arguments],
            cwd=shadow.tree,
            env=git.git_environment(shadow.reading),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as process:
            assert process.stdout
            watch = threading.Timer(git.GIT_SECONDS, process.kill)
            watch.start()
            try:
                result = _parse_diff(process.stdout)
            except BadInput as error:
                # Git ended in the middle, for a reason of its own.
                result = error
            except BaseException:
                process.kill()
                raise
            finally:
                watch.cancel()
        if process.returncode != 0:
            errors.seek(0)
            _raise_git_error(git.summarise_git_error(errors.read()), ends)
    if isinstance(result, BadInput):
        raise result
    return result


def _unread_entry(file: FileChange, like: str) -> TreeEntry | None:
    if file.status == "deleted":
        return None
    return TreeEntry(mode=file.mode or "100644", id="0" * len(like))


def _existing_entries(pairs: Iterable[tuple[str, TreeEntry]]) -> dict[str, TreeEntry | None]:
    return {path: entry if entry.id.strip("0") else None for path, entry in pairs}


def _raise_git_error(said: str, ends: Sequence[str]) -> NoReturn:
    if git.is_missing_object(said):
        command = " ".join(["git diff", *(end[:10] for end in ends)])
        raise BadInput(f"This clone lacks content of the change: `{command}` fetches it.")
    raise MachineFailed(f"Git cannot tell the change: {said}.")


def _parse_diff(stream: IO[bytes]) -> _ParsedDiff:
    raw, rest = _read_raw_section(stream)
    parts = _split_file_patches(stream, rest)
    files, texts, room = [], [], MAX_PATCH_BYTES
    for pair in _parse_raw_entries(raw):
        part = _next_part(parts)
        file = _build_file_change(pair, part)
        if pair.status == "T":
            # Of a file that became a link, git tells the one as deleted, the other as new.
            part, other = part + (more := _next_part(parts)), _build_file_change(pair, more)
            file = replace(
                file,
                added=other.added,
                binary=file.binary or other.binary,
                hunks=file.hunks + other.hunks,
            )
        if len(part) > room:
            part = part[: part.find(b"\n@@ ") + 1]
            file = replace(file, note=f"left out of a patch of over {MAX_PATCH_BYTES:,} bytes")
        room -= len(part)
        texts.append(part.decode("utf-8", "replace"))
        files.append((pair, file))
    return files, "".join(texts)


def _next_part(parts: Iterator[bytes]) -> bytes:
    part = next(parts, None)
    if part is None:
        raise BadInput("Git told of fewer files than it announced: try again.")
    return part


def _read_raw_section(stream: IO[bytes]) -> tuple[bytes, bytes]:
    """What stands before the patch, and the beginning of the patch."""
    read = b""
    while b"\0\0" not in read[-(1 << 16) - 2 :]:
        chunk = stream.read(1 << 16)
        if not chunk:
            return read, b""
        read += chunk
    raw, _, rest = read.partition(b"\0\0")
    return raw, rest


def _split_file_patches(stream: IO[bytes], begun: bytes) -> Iterator[bytes]:
    """The patch, file by file. No line of a file's content begins as a header does."""
    begun = begun.removeprefix(DIFF_HEADER)
    while chunk := stream.read(1 << 20):
        *whole, begun = (begun + chunk).split(b"\n" + DIFF_HEADER)
        for part in whole:
            yield DIFF_HEADER + part + b"\n"
    for part in begun.split(b"\n" + DIFF_HEADER) if begun else ():
        yield DIFF_HEADER + part.removesuffix(b"\n") + b"\n"


def _parse_raw_entries(raw: bytes) -> Iterator[_RawDiffEntry]:
    fields = iter(git.decode_git_path(raw).split("\0"))
    for metadata in fields:
        if not metadata:
            return
        old_mode, mode, old, new, status = metadata.removeprefix(":").split(" ")
        old_path = next(fields)
        path = next(fields) if status[0] in "RC" else old_path
        yield _RawDiffEntry(
            path=path,
            old_path=old_path,
            old=TreeEntry(mode=old_mode, id=old),
            new=TreeEntry(mode=mode, id=new),
            status=status[0],
        )


def _build_file_change(pair: _RawDiffEntry, part: bytes) -> FileChange:
    read = parse_patch(part.decode("utf-8", "replace")).files[0]
    return FileChange(
        path=pair.path,
        status=FILE_STATUSES.get(pair.status, "changed"),
        old_path=pair.old_path if pair.status == "R" else None,
        added=read.added,
        removed=read.removed,
        binary=read.binary or _LFS_POINTER.search(part[:3000]) is not None,
        hunks=read.hunks,
        old_mode=None if pair.status == "A" else pair.old.mode,
        mode=None if pair.status == "D" else pair.new.mode,
        note=_content_note(pair, part),
    )


def _content_note(pair: _RawDiffEntry, part: bytes) -> str | None:
    if SUBMODULE_MODE in (pair.old.mode, pair.new.mode):
        return "a submodule: only its commit is told"
    if _LFS_POINTER.search(part[:3000]):
        return "a pointer of Git LFS: its content is not here"
    return None


def _mark_large_files(
    shadow: ShadowRepository, found: Sequence[tuple[_RawDiffEntry, FileChange]]
) -> Iterator[FileChange]:
    """Tell of each binary file whether it is one, or only too large to be compared."""
    doubtful = [pair for pair, file in found if file.binary and file.note is None]
    large = {}
    if doubtful:
        ids = [blob for pair in doubtful for blob in (pair.old.id, pair.new.id)]
        command = ("cat-file", "--batch-check=%(objectsize)")
        answers = shadow.run_git_reading(*command, stdin="\n".join(ids).encode()).split(b"\n")
        sizes = [int(answer) if answer.isdigit() else 0 for answer in answers]
        for pair, old, new in zip(doubtful, sizes[::2], sizes[1::2], strict=False):
            if max(old, new) > MAX_BLOB_BYTES:
                large[pair.path] = f"not read: it is too large ({max(old, new):,} bytes)"
    for _, file in found:
        yield replace(file, note=large[file.path]) if file.path in large else file
