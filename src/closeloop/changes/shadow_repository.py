"""A git folder of our own beside a repository: reads objects, indexes the work tree."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
import threading
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn

from msgspec.structs import replace

from closeloop import git
from closeloop.changes.file_kinds import LFS_POINTER_HEAD, is_lfs_pointer
from closeloop.records.change import FileChange
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.record import Record
from closeloop.text.patches import parse_patch

# Read a repository's objects through one process.

MAX_BLOB_BYTES = 5_000_000
"""Maximum bytes of a file that is read; larger ones are only reported."""


class BlobReader:
    """`git cat-file --batch`, started on first use."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder, self.env = folder, env
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None

    def read(self, blob: str) -> bytes | None:
        """Read a blob; None if the repository lacks it, it is no file, or it is over 5 MB."""
        if not blob.strip("0"):
            return None
        with self.lock:
            return self._read_object(blob)

    def _read_object(self, blob: str) -> bytes | None:
        process = self.process = self.process or self._start_process()
        assert process.stdin
        assert process.stdout
        process.stdin.write(blob.encode() + b"\n")
        process.stdin.flush()
        header = process.stdout.readline().split()
        if len(header) != 3:
            return None
        size = int(header[2])
        if size > MAX_BLOB_BYTES:
            # Cheaper than reading it to the end.
            self._kill_process()
            return None
        content = process.stdout.read(size + 1)[:-1]
        return content if header[1] == b"blob" else None

    def _start_process(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*git.FOREIGN_COMMAND, "cat-file", "--batch"],
            cwd=self.folder,
            env=git.git_environment(self.env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def close(self) -> None:
        with self.lock:
            self._kill_process()

    def _kill_process(self) -> None:
        if self.process:
            self.process.kill()
            self.process.communicate()
            self.process = None


KEPT_SETTINGS = (
    "autocrlf|eol|filemode|symlinks|ignorecase|precomposeunicode|trustctime|checkstat"
    "|excludesfile|attributesfile"
)
"""Settings that determine a file's content and mode in git."""
PATH_SETTINGS = ("core.excludesfile", "core.attributesfile")
CONFIG_TEMPLATE = """\
[core]
	repositoryformatversion = {version}
	bare = false
	safecrlf = false
	compression = 0
	fsync = none
	bigFileThreshold = {largest}
	untrackedCache = false
	splitIndex = false
[gc]
	auto = 0
[extensions]
	objectFormat = {format}
"""
ATTRIBUTES_TEXT = "* !diff\n"
"""Prevents a change from hiding its lines by declaring them binary."""


class TreeEntry(Record):
    """The entry at one path of a tree."""

    mode: str
    id: str


class ShadowRepository:
    """Our git folder, and how to run git in it."""

    def __init__(self, repository: git.GitRepository | None, folder: Path, tree: Path) -> None:
        self.folder = folder
        self.object_format = repository.object_format if repository else "sha1"
        self.tree = tree
        self.zeros = b"0" * (40 if self.object_format == "sha1" else 64)
        neutral = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        self.writing = {"GIT_DIR": str(folder), "GIT_WORK_TREE": str(self.tree), **neutral}
        self.reading = dict(self.writing)
        if repository:
            path = str(repository.shared / "objects").replace("\\", "\\\\").replace('"', '\\"')
            self.reading["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = f'"{path}"'
        self.blobs = BlobReader(self.tree, self.reading)

    def run_git_reading(self, *arguments: str, stdin: bytes = b"") -> bytes:
        return git.run_git(self.tree, *arguments, env=self.reading, stdin=stdin)

    def run_git_writing(self, *arguments: str, stdin: bytes = b"") -> bytes:
        return git.run_git(self.tree, *arguments, env=self.writing, stdin=stdin)

    def write_blob(self, content: bytes) -> str:
        """Write a blob of our own and return its id."""
        blob_bytes = b"blob %d\0" % len(content) + content
        blob = hashlib.new(self.object_format, blob_bytes, usedforsecurity=False).hexdigest()
        path = self.folder / "objects" / blob[:2] / blob[2:]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(zlib.compress(blob_bytes, 0))
        return blob

    def copy_blobs(self, blobs: Iterable[str]) -> None:
        """Copy some of the repository's blobs to where writing commands can see them."""
        for blob in blobs:
            content = self.blobs.read(blob)
            if content is not None:
                self.write_blob(content)

    def list_entries(self, tree: str | None) -> dict[str, TreeEntry]:
        """Return every entry of a tree, or of our index, by path."""
        if tree is None:
            listing = self.run_git_reading("ls-files", "-s", "-z")
        else:
            listing = self.run_git_reading("ls-tree", "-r", "-z", "--full-tree", tree)
        lines = (line.partition("\t") for line in git.decode_git_path(listing).split("\0")[:-1])
        entries = ((path, fields.split(" ")) for fields, _, path in lines)
        # A tree's line has a type before the id; an index's line, a stage after it.
        id_field = 1 if tree is None else 2
        return {path: TreeEntry(mode=fields[0], id=fields[id_field]) for path, fields in entries}


@contextmanager
def open_shadow(
    repository: git.GitRepository | None, worked: bool = False
) -> Iterator[ShadowRepository]:
    """Create it in a temporary folder, for a working tree or an empty one; remove it after use."""
    with tempfile.TemporaryDirectory(prefix="closeloop-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        for inner in ("objects", "refs", "info", "tree"):
            (folder / inner).mkdir()
        sha256 = repository is not None and repository.object_format != "sha1"
        config = CONFIG_TEMPLATE.format(
            version=int(sha256), largest=MAX_BLOB_BYTES, format="sha256" if sha256 else "sha1"
        )
        (folder / "config").write_text(config if sha256 else config.partition("[ext")[0])
        (folder / "HEAD").write_text("ref: refs/heads/main\n")
        (folder / "info" / "attributes").write_text(ATTRIBUTES_TEXT)
        tree = repository.root if repository and worked else folder / "tree"
        shadow = ShadowRepository(repository, folder, tree)
        try:
            yield shadow
        finally:
            shadow.blobs.close()


def copy_index(
    repository: git.GitRepository, shadow: ShadowRepository, index: Path | None = None
) -> None:
    """Copy which files are tracked, which are ignored, and the settings that determine content."""
    sources = [(path, path.name) for path in repository.folder.glob("sharedindex.*")]
    for source, name in [(index or repository.folder / "index", "index"), *sources]:
        if source.is_file():
            # With its modification time, by which git detects racily changed files.
            shutil.copy2(source, shadow.folder / name)
    exclude = repository.shared / "info" / "exclude"
    if exclude.is_file():
        shutil.copyfile(exclude, shadow.folder / "info" / "exclude")
    if shadow.folder.is_relative_to(repository.root):
        with (shadow.folder / "info" / "exclude").open("a") as file:
            file.write(f"\n{shadow.folder.name}/\n")
    own_index = shadow.folder / "index"
    if own_index.exists() and b"sdir" in own_index.read_bytes():
        # A sparse checkout lists folders as trees, which writing commands cannot open.
        shadow.run_git_reading("update-index", "--force-write-index")
    settings = _content_settings(repository)
    lines = "".join(f"\t{name} = {_quote_value(value)}\n" for name, value in settings.items())
    with (shadow.folder / "config").open("a") as file:
        file.write(f"[core]\n{lines}")


def _content_settings(repository: git.GitRepository) -> Mapping[str, str]:
    command = ("config", "-z", "--show-scope", "--get-regexp", f"^core\\.({KEPT_SETTINGS})$")
    fields = (git.query_git(repository, *command) or "").split("\0")
    settings = {}
    for scope, pair in zip(fields[::2], fields[1::2], strict=False):
        name, _, value = pair.partition("\n")
        if name not in PATH_SETTINGS:
            settings[name.removeprefix("core.")] = value
        elif scope not in ("local", "worktree"):
            settings[name.removeprefix("core.")] = str(Path(value).expanduser())
    return settings


def _quote_value(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


# Add the files of a work tree to our own index, as git would.

SUBMODULE_MODE = "160000"


class _WorktreePath(Record):
    """A path that is new, or differs from the index."""

    name: bytes
    mode: str | None = None
    """Mode in the index; None if it is not there."""
    blob: str | None = None


def index_worktree(
    repository: git.GitRepository, shadow: ShadowRepository, left_out: Collection[str] = ()
) -> list[FileChange]:
    """Update our index from the files, without some new ones; return those that cannot be read."""
    try:
        copy_index(repository, shadow)
        changed = [
            path
            for path in _list_changed_paths(shadow)
            if path.mode or git.decode_git_path(path.name) not in left_out
        ]
        return _update_index(repository, shadow, changed)
    except (OSError, git.GitFailed) as error:
        raise BadInput(f"The working tree cannot be read ({error}): try again.") from None


def index_staged_files(
    repository: git.GitRepository, shadow: ShadowRepository, index: Path | None
) -> None:
    """Copy the index alone, or that of a commit in progress."""
    try:
        copy_index(repository, shadow, index)
        _refuse_conflicts({line.partition(b"\t")[2] for line in _list_files(shadow, "-u")})
    except (OSError, git.GitFailed) as error:
        raise BadInput(f"The index cannot be read ({error}): try again.") from None


def _list_files(shadow: ShadowRepository, *options: str) -> list[bytes]:
    return shadow.run_git_reading("ls-files", "-z", *options).split(b"\0")[:-1]


def _update_index(
    repository: git.GitRepository, shadow: ShadowRepository, items: list[_WorktreePath]
) -> list[FileChange]:
    pointers = _lfs_paths(repository, shadow, items)
    links: dict[Path, bool] = {repository.root: False}
    unread, plain, entries = [], [], []
    for item in items:
        path = Path(repository.root, os.fsdecode(item.name))
        status = _file_status(path)
        if status is None or _is_behind_link(path.parent, links) or _is_gone(item, status):
            entries.append(b"0 %s\t%s\0" % (shadow.zeros, item.name))
        elif reason := _unreadable_reason(item, path, status, item.name in pointers):
            unread.append(_unread_change(item, status, reason))
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
        # Treated as large, they go into one pack instead of a file each.
        update = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
        names = b"".join(name + b"\0" for name in plain)
        shadow.run_git_writing("-c", "core.bigFileThreshold=1", *update, stdin=names)
    return unread


def _list_changed_paths(shadow: ShadowRepository) -> list[_WorktreePath]:
    paths: dict[bytes, _WorktreePath] = {}
    conflicts = set()
    for line in _list_files(shadow, "-t", "-u", "-m", "-d", "-o", "--exclude-standard"):
        tag, content = line[:1], line[2:]
        if tag == b"?":
            paths[content] = _WorktreePath(name=content)
            continue
        metadata, _, name = content.partition(b"\t")
        mode, blob, stage = metadata.decode().split(" ")
        paths[name] = _WorktreePath(name=name, mode=mode, blob=blob)
        if stage != "0":
            conflicts.add(name)
    _refuse_conflicts(conflicts)
    return list(paths.values())


def _refuse_conflicts(conflicts: set[bytes]) -> None:
    if conflicts:
        suffix = f" and {len(conflicts) - 1} more" if len(conflicts) > 1 else ""
        first = git.decode_git_path(min(conflicts))
        raise BadInput(f"Merge conflicts in {first}{suffix}: resolve them, `git add`, try again.")


def _unreadable_reason(
    item: _WorktreePath, path: Path, status: os.stat_result, pointer: bool
) -> str | None:
    """Return why a file must not be read; None if it may."""
    if item.name.endswith(b"/"):
        return "it is a separate repository"
    if not stat.S_ISREG(status.st_mode):
        return None
    if not os.access(path, os.R_OK):
        return "its permissions forbid it"
    if status.st_size > MAX_BLOB_BYTES and not pointer:
        return f"it is too large ({status.st_size:,} bytes)"
    return None


def _unread_change(item: _WorktreePath, status: os.stat_result, reason: str) -> FileChange:
    nested = item.name.endswith(b"/")
    return FileChange(
        path=git.decode_git_path(item.name.removesuffix(b"/")),
        status="changed" if item.mode else "added",
        binary=True,
        old_mode=item.mode,
        mode=SUBMODULE_MODE if nested else _git_mode(status).decode(),
        note=f"not read: {reason}",
    )


def _git_mode(status: os.stat_result) -> bytes:
    return b"100755" if status.st_mode & 0o100 else b"100644"


def _file_status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None


def _is_gone(item: _WorktreePath, status: os.stat_result) -> bool:
    """Return whether a folder, or something git cannot store, is in the file's place."""
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        return item.mode not in (None, SUBMODULE_MODE)
    return kind not in (stat.S_IFREG, stat.S_IFLNK)


def _is_behind_link(folder: Path, links: dict[Path, bool]) -> bool:
    """Return whether a folder, or a parent, is now a link: what is behind it is not ours."""
    if folder not in links:
        links[folder] = folder.is_symlink() or _is_behind_link(folder.parent, links)
    return links[folder]


def _has_crlf(path: Path, status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and b"\r\n" in path.read_bytes()


def _lfs_paths(
    repository: git.GitRepository, shadow: ShadowRepository, items: list[_WorktreePath]
) -> set[bytes]:
    """Return the paths for which git would store a pointer."""
    attributes = repository.root / ".gitattributes"
    uses_lfs = attributes.is_file() and b"filter=lfs" in attributes.read_bytes()
    if not items or not (uses_lfs or (repository.shared / "lfs").exists()):
        return set()
    names = b"".join(item.name + b"\0" for item in items)
    fields = shadow.run_git_writing("check-attr", "-z", "--stdin", "filter", stdin=names).split(
        b"\0"
    )
    return {name for name, value in zip(fields[::3], fields[2::3], strict=False) if value == b"lfs"}


def _lfs_pointer(path: Path, size: int) -> bytes:
    """Return the pointer that Git LFS stores for a file; an existing pointer stays as it is."""
    with path.open("rb") as file:
        if is_lfs_pointer(content := file.read(1024)):
            return content
        file.seek(0)
        oid = hashlib.file_digest(file, "sha256").hexdigest()
    return LFS_POINTER_HEAD + f"oid sha256:{oid}\nsize {size}\n".encode()


# Diff two trees: git's own patch, parsed as a stream.


MAX_PATCH_BYTES = 20_000_000
EMPTY_TREES = {
    "sha1": "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "sha256": "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}
"""The empty tree, which git knows without storing it."""
FILE_STATUSES: dict[str, Any] = {"A": "added", "D": "deleted", "R": "renamed", "C": "added"}
DIFF_HEADER = b"diff --git "

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
    """Entries of the changed paths before and after; None if there is none."""


class _RawDiffEntry(Record):
    """Git's raw entry of a file, before its patch."""

    path: str
    old_path: str
    old: TreeEntry
    new: TreeEntry
    status: str


_ParsedDiff = tuple[list[tuple[_RawDiffEntry, FileChange]], str]


def diff_trees(
    shadow: ShadowRepository, base: str | None, head: str | None, unread: Sequence[FileChange] = ()
) -> TreeDiff:
    """Diff two commits, or a commit and our index with the files that could not be read."""
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
                # Git ended prematurely.
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


def _raise_git_error(git_error: str, ends: Sequence[str]) -> NoReturn:
    if git.is_missing_object(git_error):
        command = " ".join(["git diff", *(end[:10] for end in ends)])
        raise BadInput(f"This clone lacks content of the change: `{command}` fetches it.")
    raise MachineFailed(f"Git cannot compute the change: {git_error}.")


def _parse_diff(stream: IO[bytes]) -> _ParsedDiff:
    raw, patch_start = _read_raw_section(stream)
    parts = _split_file_patches(stream, patch_start)
    files, texts, room = [], [], MAX_PATCH_BYTES
    for pair in _parse_raw_entries(raw):
        part = _next_part(parts)
        file = _build_file_change(pair, part)
        if pair.status == "T":
            # For a file that became a link, git reports a deletion and a new file.
            part, new_file = (
                part + (next_part := _next_part(parts)),
                _build_file_change(pair, next_part),
            )
            file = replace(
                file,
                added=new_file.added,
                binary=file.binary or new_file.binary,
                hunks=file.hunks + new_file.hunks,
            )
        if len(part) > room:
            part = part[: part.find(b"\n@@ ") + 1]
            file = replace(
                file, note=f"omitted from a patch of more than {MAX_PATCH_BYTES:,} bytes"
            )
        room -= len(part)
        texts.append(part.decode("utf-8", "replace"))
        files.append((pair, file))
    return files, "".join(texts)


def _next_part(parts: Iterator[bytes]) -> bytes:
    part = next(parts, None)
    if part is None:
        raise BadInput("Git returned fewer files than it announced: try again.")
    return part


def _read_raw_section(stream: IO[bytes]) -> tuple[bytes, bytes]:
    """Return what precedes the patch, and the beginning of the patch."""
    read = b""
    while b"\0\0" not in read[-(1 << 16) - 2 :]:
        chunk = stream.read(1 << 16)
        if not chunk:
            return read, b""
        read += chunk
    raw, _, patch_start = read.partition(b"\0\0")
    return raw, patch_start


def _split_file_patches(stream: IO[bytes], unfinished: bytes) -> Iterator[bytes]:
    """Yield the patch by file. No line of a file's content begins as a header does."""
    unfinished = unfinished.removeprefix(DIFF_HEADER)
    while chunk := stream.read(1 << 20):
        *complete, unfinished = (unfinished + chunk).split(b"\n" + DIFF_HEADER)
        for part in complete:
            yield DIFF_HEADER + part + b"\n"
    for part in unfinished.split(b"\n" + DIFF_HEADER) if unfinished else ():
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
        return "a submodule: only its commit is shown"
    if _LFS_POINTER.search(part[:3000]):
        return "a Git LFS pointer: its content is not downloaded"
    return None


def _mark_large_files(
    shadow: ShadowRepository, files: Sequence[tuple[_RawDiffEntry, FileChange]]
) -> Iterator[FileChange]:
    """Yield each binary file, marked if it is only too large to be compared."""
    doubtful = [pair for pair, file in files if file.binary and file.note is None]
    large = {}
    if doubtful:
        ids = [blob for pair in doubtful for blob in (pair.old.id, pair.new.id)]
        command = ("cat-file", "--batch-check=%(objectsize)")
        answers = shadow.run_git_reading(*command, stdin="\n".join(ids).encode()).split(b"\n")
        sizes = [int(answer) if answer.isdigit() else 0 for answer in answers]
        for pair, old, new in zip(doubtful, sizes[::2], sizes[1::2], strict=False):
            if max(old, new) > MAX_BLOB_BYTES:
                large[pair.path] = f"not read: it is too large ({max(old, new):,} bytes)"
    for _, file in files:
        yield replace(file, note=large[file.path]) if file.path in large else file
