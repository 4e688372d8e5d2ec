"""A git folder of our own beside a repository: its objects are read, ours hold what is new.

Neither the repository's configuration nor its attributes can lead git to run anything, and its
index and objects stay as they are: git would even renew the date of an object that it writes
again, so whatever writes here does not see the repository's.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from closeloop import git
from closeloop.changes.blob_reader import MAX_BLOB_BYTES, BlobReader
from closeloop.records.record import Record

KEPT_SETTINGS = (
    "autocrlf|eol|filemode|symlinks|ignorecase|precomposeunicode|trustctime|checkstat"
    "|excludesfile|attributesfile"
)
"""Settings by which git tells what a file's content and mode are."""
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
"""A change must not be able to hide its lines by calling them binary."""


class TreeEntry(Record):
    """What is at one path of a tree."""

    mode: str
    id: str


class ShadowRepository:
    """Our folder, and how git is asked in it."""

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
        """Write a blob of our own: its id."""
        whole = b"blob %d\0" % len(content) + content
        blob = hashlib.new(self.object_format, whole, usedforsecurity=False).hexdigest()
        path = self.folder / "objects" / blob[:2] / blob[2:]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(zlib.compress(whole, 0))
        return blob

    def copy_blobs(self, blobs: Iterable[str]) -> None:
        """Copy some of the repository's blobs to where commands that write can see them."""
        for blob in blobs:
            content = self.blobs.read(blob)
            if content is not None:
                self.write_blob(content)

    def list_entries(self, tree: str | None) -> dict[str, TreeEntry]:
        """Everything in a tree, or in our index, by path."""
        if tree is None:
            listing = self.run_git_reading("ls-files", "-s", "-z")
        else:
            listing = self.run_git_reading("ls-tree", "-r", "-z", "--full-tree", tree)
        lines = (line.partition("\t") for line in git.decode_git_path(listing).split("\0")[:-1])
        entries = ((path, about.split(" ")) for about, _, path in lines)
        # A tree's line has a type before the id; an index's line, a stage after it.
        at = 1 if tree is None else 2
        return {path: TreeEntry(mode=about[0], id=about[at]) for path, about in entries}


@contextmanager
def open_shadow(
    repository: git.GitRepository | None, worked: bool = False
) -> Iterator[ShadowRepository]:
    """Make it in a temporary folder, for a working tree or an empty one, and take it away after."""
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
    """Take over which files are tracked, which are ignored, and how content is told."""
    sources = [(path, path.name) for path in repository.folder.glob("sharedindex.*")]
    for source, name in [(index or repository.folder / "index", "index"), *sources]:
        if source.is_file():
            # With its date: by it, git knows which files may have changed since unseen.
            shutil.copy2(source, shadow.folder / name)
    exclude = repository.shared / "info" / "exclude"
    if exclude.is_file():
        shutil.copyfile(exclude, shadow.folder / "info" / "exclude")
    if shadow.folder.is_relative_to(repository.root):
        with (shadow.folder / "info" / "exclude").open("a") as file:
            file.write(f"\n{shadow.folder.name}/\n")
    ours = shadow.folder / "index"
    if ours.exists() and b"sdir" in ours.read_bytes():
        # A sparse checkout names folders as trees, which commands that write could not open.
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
