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
from closeloop.changes.blobs import LARGEST, Blobs
from closeloop.model.record import Record

KEPT = (
    "autocrlf|eol|filemode|symlinks|ignorecase|precomposeunicode|trustctime|checkstat"
    "|excludesfile|attributesfile"
)
"""Settings by which git tells what a file's content and mode are."""
PATHS = ("core.excludesfile", "core.attributesfile")
CONFIG = """\
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
ATTRIBUTES = "* !diff\n"
"""A change must not be able to hide its lines by calling them binary."""


class Entry(Record):
    """What is at one path of a tree."""

    mode: str
    id: str


class Shadow:
    """Our folder, and how git is asked in it."""

    def __init__(self, repository: git.Repository | None, folder: Path, tree: Path) -> None:
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
        self.blobs = Blobs(self.tree, self.reading)

    def read(self, *arguments: str, stdin: bytes = b"") -> bytes:
        return git.run(self.tree, *arguments, env=self.reading, stdin=stdin)

    def write(self, *arguments: str, stdin: bytes = b"") -> bytes:
        return git.run(self.tree, *arguments, env=self.writing, stdin=stdin)

    def keep(self, content: bytes) -> str:
        """Write a blob of our own: its id."""
        whole = b"blob %d\0" % len(content) + content
        blob = hashlib.new(self.object_format, whole, usedforsecurity=False).hexdigest()
        path = self.folder / "objects" / blob[:2] / blob[2:]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(zlib.compress(whole, 0))
        return blob

    def lend(self, blobs: Iterable[str]) -> None:
        """Copy some of the repository's blobs to where commands that write can see them."""
        for blob in blobs:
            content = self.blobs.read(blob)
            if content is not None:
                self.keep(content)

    def listed(self, tree: str | None) -> dict[str, Entry]:
        """Everything in a tree, or in our index, by path."""
        if tree is None:
            found = self.read("ls-files", "-s", "-z")
        else:
            found = self.read("ls-tree", "-r", "-z", "--full-tree", tree)
        lines = (line.partition("\t") for line in git.text(found).split("\0")[:-1])
        entries = ((path, about.split(" ")) for about, _, path in lines)
        # A tree's line has a type before the id; an index's line, a stage after it.
        at = 1 if tree is None else 2
        return {path: Entry(mode=about[0], id=about[at]) for path, about in entries}


@contextmanager
def opened(repository: git.Repository | None, worked: bool = False) -> Iterator[Shadow]:
    """Make it in a temporary folder, for a working tree or an empty one, and take it away after."""
    with tempfile.TemporaryDirectory(prefix="closeloop-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        for inner in ("objects", "refs", "info", "tree"):
            (folder / inner).mkdir()
        sha256 = repository is not None and repository.object_format != "sha1"
        config = CONFIG.format(
            version=int(sha256), largest=LARGEST, format="sha256" if sha256 else "sha1"
        )
        (folder / "config").write_text(config if sha256 else config.partition("[ext")[0])
        (folder / "HEAD").write_text("ref: refs/heads/main\n")
        (folder / "info" / "attributes").write_text(ATTRIBUTES)
        tree = repository.root if repository and worked else folder / "tree"
        shadow = Shadow(repository, folder, tree)
        try:
            yield shadow
        finally:
            shadow.blobs.close()


def copy_index(repository: git.Repository, shadow: Shadow, index: Path | None = None) -> None:
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
        shadow.read("update-index", "--force-write-index")
    settings = _settings(repository)
    lines = "".join(f"\t{name} = {_quoted(value)}\n" for name, value in settings.items())
    with (shadow.folder / "config").open("a") as file:
        file.write(f"[core]\n{lines}")


def _settings(repository: git.Repository) -> Mapping[str, str]:
    asked = ("config", "-z", "--show-scope", "--get-regexp", f"^core\\.({KEPT})$")
    fields = (git.ask(repository, *asked) or "").split("\0")
    found = {}
    for scope, pair in zip(fields[::2], fields[1::2], strict=False):
        name, _, value = pair.partition("\n")
        if name not in PATHS:
            found[name.removeprefix("core.")] = value
        elif scope not in ("local", "worktree"):
            found[name.removeprefix("core.")] = str(Path(value).expanduser())
    return found


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
