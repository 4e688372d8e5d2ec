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
from closeloop.changes.blobs import LARGEST
from closeloop.changes.kinds import POINTER
from closeloop.changes.shadow import Entry, Shadow
from closeloop.model.change import FileChange
from closeloop.model.errors import BadInput, MachineFailed
from closeloop.model.patches import parse
from closeloop.model.record import Record

PATCH_BYTES = 20_000_000
EMPTY = {
    "sha1": "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "sha256": "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}
"""The tree without files, which git knows without having it."""
STATUS: dict[str, Any] = {"A": "added", "D": "deleted", "R": "renamed", "C": "added"}
HEADER = b"diff --git "
SUBMODULE = "160000"
_POINTER = re.compile(
    rb"\n@@ [^\n]*\n(?:[ +-]%s){1,2}[ +-]oid sha256:[0-9a-f]{64}\n" % re.escape(POINTER)
)
OPTIONS = (
    *("--raw", "-z", "-p", "-M", "--full-index"),
    *("--no-ext-diff", "--no-textconv", "--no-color"),
)


class Difference(Record):
    """Files that differ, and their patch."""

    base: str | None
    head: str | None
    files: tuple[FileChange, ...] = ()
    patch: str = ""
    before: Mapping[str, Entry | None] = {}
    after: Mapping[str, Entry | None] = {}
    """What the changed paths were and are; None where there is, or was, nothing."""


class _Pair(Record):
    """What git says of a file before its patch."""

    path: str
    old_path: str
    old: Entry
    new: Entry
    status: str


_Told = tuple[list[tuple[_Pair, FileChange]], str]


def tell(
    shadow: Shadow, base: str | None, head: str | None, unread: Sequence[FileChange] = ()
) -> Difference:
    """From one commit to another, or to our index and those files that could not be read."""
    start = base or EMPTY[shadow.object_format]
    which = ("diff-index", "--cached") if head is None else ("diff-tree", "-r")
    ends = [start, head] if head else [start]
    pairs, patch = _asked(shadow, ends, *which, *OPTIONS, *ends, "--")
    lost = {file.path: _unknown(file, start) for file in unread}
    files = [file for file in _sized(shadow, pairs) if file.path not in lost]
    return Difference(
        base=base,
        head=head,
        files=tuple(sorted([*files, *unread], key=lambda file: file.path)),
        patch=patch,
        before=_side((pair.old_path, pair.old) for pair, _ in pairs),
        after=_side((pair.path, pair.new) for pair, _ in pairs) | lost,
    )


def _asked(shadow: Shadow, ends: Sequence[str], *arguments: str) -> _Told:
    found: _Told | BadInput
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(
            [*git.COMMAND, *arguments],
            cwd=shadow.tree,
            env=git.environment(shadow.reading),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as process:
            assert process.stdout
            watch = threading.Timer(git.SECONDS, process.kill)
            watch.start()
            try:
                found = _read(process.stdout)
            except BadInput as error:
                # Git ended in the middle, for a reason of its own.
                found = error
            except BaseException:
                process.kill()
                raise
            finally:
                watch.cancel()
        if process.returncode != 0:
            errors.seek(0)
            _refuse(git.said(errors.read()), ends)
    if isinstance(found, BadInput):
        raise found
    return found


def _unknown(file: FileChange, like: str) -> Entry | None:
    if file.status == "deleted":
        return None
    return Entry(mode=file.mode or "100644", id="0" * len(like))


def _side(pairs: Iterable[tuple[str, Entry]]) -> dict[str, Entry | None]:
    return {path: entry if entry.id.strip("0") else None for path, entry in pairs}


def _refuse(said: str, ends: Sequence[str]) -> NoReturn:
    if git.lacks(said):
        command = " ".join(["git diff", *(end[:10] for end in ends)])
        raise BadInput(f"This clone lacks content of the change: `{command}` fetches it.")
    raise MachineFailed(f"Git cannot tell the change: {said}.")


def _read(stream: IO[bytes]) -> _Told:
    raw, rest = _head(stream)
    parts = _parts(stream, rest)
    found, kept, room = [], [], PATCH_BYTES
    for pair in _pairs(raw):
        part = _next(parts)
        file = _file(pair, part)
        if pair.status == "T":
            # Of a file that became a link, git tells the one as deleted, the other as new.
            part, other = part + (more := _next(parts)), _file(pair, more)
            file = replace(
                file,
                added=other.added,
                binary=file.binary or other.binary,
                hunks=file.hunks + other.hunks,
            )
        if len(part) > room:
            part = part[: part.find(b"\n@@ ") + 1]
            file = replace(file, note=f"left out of a patch of over {PATCH_BYTES:,} bytes")
        room -= len(part)
        kept.append(part.decode("utf-8", "replace"))
        found.append((pair, file))
    return found, "".join(kept)


def _next(parts: Iterator[bytes]) -> bytes:
    part = next(parts, None)
    if part is None:
        raise BadInput("Git told of fewer files than it announced: try again.")
    return part


def _head(stream: IO[bytes]) -> tuple[bytes, bytes]:
    """What stands before the patch, and the beginning of the patch."""
    read = b""
    while b"\0\0" not in read[-(1 << 16) - 2 :]:
        chunk = stream.read(1 << 16)
        if not chunk:
            return read, b""
        read += chunk
    raw, _, rest = read.partition(b"\0\0")
    return raw, rest


def _parts(stream: IO[bytes], begun: bytes) -> Iterator[bytes]:
    """The patch, file by file. No line of a file's content begins as a header does."""
    begun = begun.removeprefix(HEADER)
    while chunk := stream.read(1 << 20):
        *whole, begun = (begun + chunk).split(b"\n" + HEADER)
        for part in whole:
            yield HEADER + part + b"\n"
    for part in begun.split(b"\n" + HEADER) if begun else ():
        yield HEADER + part.removesuffix(b"\n") + b"\n"


def _pairs(raw: bytes) -> Iterator[_Pair]:
    fields = iter(git.text(raw).split("\0"))
    for about in fields:
        if not about:
            return
        old_mode, mode, old, new, status = about.removeprefix(":").split(" ")
        old_path = next(fields)
        path = next(fields) if status[0] in "RC" else old_path
        yield _Pair(
            path=path,
            old_path=old_path,
            old=Entry(mode=old_mode, id=old),
            new=Entry(mode=mode, id=new),
            status=status[0],
        )


def _file(pair: _Pair, part: bytes) -> FileChange:
    read = parse(part.decode("utf-8", "replace")).files[0]
    return FileChange(
        path=pair.path,
        status=STATUS.get(pair.status, "changed"),
        old_path=pair.old_path if pair.status == "R" else None,
        added=read.added,
        removed=read.removed,
        binary=read.binary or _POINTER.search(part[:3000]) is not None,
        hunks=read.hunks,
        old_mode=None if pair.status == "A" else pair.old.mode,
        mode=None if pair.status == "D" else pair.new.mode,
        note=_note(pair, part),
    )


def _note(pair: _Pair, part: bytes) -> str | None:
    if SUBMODULE in (pair.old.mode, pair.new.mode):
        return "a submodule: only its commit is told"
    if _POINTER.search(part[:3000]):
        return "a pointer of Git LFS: its content is not here"
    return None


def _sized(shadow: Shadow, found: Sequence[tuple[_Pair, FileChange]]) -> Iterator[FileChange]:
    """Tell of each binary file whether it is one, or only too large to be compared."""
    doubtful = [pair for pair, file in found if file.binary and file.note is None]
    large = {}
    if doubtful:
        ids = [blob for pair in doubtful for blob in (pair.old.id, pair.new.id)]
        asked = ("cat-file", "--batch-check=%(objectsize)")
        answers = shadow.read(*asked, stdin="\n".join(ids).encode()).split(b"\n")
        sizes = [int(answer) if answer.isdigit() else 0 for answer in answers]
        for pair, old, new in zip(doubtful, sizes[::2], sizes[1::2], strict=False):
            if max(old, new) > LARGEST:
                large[pair.path] = f"not read: it is too large ({max(old, new):,} bytes)"
    for _, file in found:
        yield replace(file, note=large[file.path]) if file.path in large else file
