"""The source code of a base: its tests and the product, each file with its text."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from closeloop.grading.integrity.data_paths import CODE, PAGES, ending_of, holds_expectations
from closeloop.records.change import Change
from closeloop.records.record import Record
from closeloop.text.patches import parse_hunk_lines, split_patch_by_file

MAX_FILES = 50_000
"""A base with more files is not searched."""
MAX_SOURCE_BYTES = 512 << 10
"""What is larger was not written by hand."""
MAX_TOTAL_BYTES = 64 << 20
_SKIPPED_FOLDERS = frozenset({"node_modules", "site-packages", "__pycache__", "venv"})
_BUILT_FOLDER_MARKS = frozenset({"CACHEDIR.TAG", "pyvenv.cfg"})
_METADATA = frozenset(
    {"pyproject.toml", "setup.cfg", "MANIFEST.in", "package.json", "Cargo.toml", "composer.json"}
)
_DEPLOYMENT = re.compile(r"(?:Dockerfile|Containerfile)(?:\..*)?|.*\.dockerfile|.*compose\.ya?ml")
_GO_EMBED = re.compile(r"^//go:embed[ \t]+(.+)$", re.MULTILINE)
_SHELL_WORD = re.compile(r"[\w./*-]+")
_RUST_TESTS = "#[cfg(test)]"


class SourceText(Record):
    """A file and its text, or the lines that a patch adds to it."""

    path: str
    text: str

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]


class BaseSources(Record):
    """What is known of a base to tell who reads its data."""

    files: frozenset[str]
    tests: Sequence[SourceText]
    product: Sequence[SourceText]
    metadata: Sequence[SourceText]
    names: Counter[str]
    """How many files and folders of the base have a name."""
    product_folders: frozenset[str]
    """Folders with source code of the product, directly or further down."""
    modules: frozenset[str]
    """What the product's files of code, and their folders, are called."""


def read_base_sources(
    root: str, patches: Iterable[Change], is_test: Callable[[str, str], bool]
) -> BaseSources | None:
    """Read the code of a base, and the lines that patches add; None for a base that is too large.

    `is_test` decides by a file's path and text. Code called like golden files serves tests too: it
    writes them.
    """
    files = _list_files(root)
    sources = _read_sources(root, files) if files is not None else None
    if files is None or sources is None:
        return None
    tests: list[SourceText] = []
    product: list[SourceText] = []
    added = [source for patch in patches for source in list_added_sources(patch)]
    for source in (*sources, *added):
        if is_test(source.path, source.text) or holds_expectations(source.path):
            tests.append(source)
        elif source.path.endswith(".rs") and _RUST_TESTS in source.text:
            code, _, inline = source.text.partition(_RUST_TESTS)
            product.append(SourceText(path=source.path, text=code))
            tests.append(SourceText(path=source.path, text=inline))
        else:
            product.append(source)
    folders = {folder for path in files for folder in folders_above(path)}
    paths = {source.path for source in product if ending_of(source.path) in CODE}
    product_folders = frozenset(folder for path in paths for folder in folders_above(path))
    modules = (path.rpartition("/")[2].partition(".")[0] for path in (*paths, *product_folders))
    return BaseSources(
        files=frozenset(files),
        tests=tests,
        product=[source for source in product if not _is_metadata(source.path)],
        metadata=[source for source in product if _is_metadata(source.path)],
        names=Counter(path.rpartition("/")[2] for path in (*files, *folders)),
        product_folders=product_folders,
        modules=frozenset(modules),
    )


def folders_above(path: str) -> list[str]:
    """The folders that a path lies in, the innermost first, without the root."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[:length]) for length in range(len(parts), 0, -1)]


def _list_files(root: str) -> list[str] | None:
    """The ordinary files below a folder, without hidden, installed and built ones."""
    found: list[str] = []
    for folder, folders, names in os.walk(root):
        inside = os.path.relpath(folder, root).replace(os.sep, "/")
        if inside != "." and not _BUILT_FOLDER_MARKS.isdisjoint(names):
            folders.clear()
            continue
        folders[:] = [name for name in folders if name[0] != "." and name not in _SKIPPED_FOLDERS]
        found += names if inside == "." else [f"{inside}/{name}" for name in names]
        if len(found) > MAX_FILES:
            return None
    return found


def _read_sources(root: str, files: Iterable[str]) -> list[SourceText] | None:
    found: list[SourceText] = []
    total = 0
    for path in files:
        if not _may_name_data(path):
            continue
        text = _read_text(Path(root, path))
        if text is None:
            continue
        total += len(text)
        if total > MAX_TOTAL_BYTES:
            return None
        found.append(SourceText(path=path, text=_with_quoted_names(path, text)))
    return found


def _may_name_data(path: str) -> bool:
    ending, name = ending_of(path), path.rpartition("/")[2]
    return ending in CODE or ending in PAGES or _is_metadata(path) or _is_deployment(name)


def _is_metadata(path: str) -> bool:
    return path.rpartition("/")[2] in _METADATA or path.endswith(".gemspec")


def _is_deployment(name: str) -> bool:
    return _DEPLOYMENT.fullmatch(name) is not None


def _read_text(path: Path) -> str | None:
    try:
        about = path.lstat()
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_SOURCE_BYTES:
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _with_quoted_names(path: str, text: str) -> str:
    """Quote the names of files where a language does without: embedded ones of Go, and shells."""
    if path.endswith(".go"):
        return _GO_EMBED.sub(lambda line: " ".join(f'"{word}"' for word in line[1].split()), text)
    if path.endswith((".sh", ".bash")) or _is_deployment(path.rpartition("/")[2]):
        return text + " ".join(f'"{word}"' for word in _SHELL_WORD.findall(text))
    return text


def list_added_sources(change: Change) -> Iterator[SourceText]:
    """The lines that a patch adds to each file of code."""
    for path, section in split_patch_by_file(change.patch):
        added = [line[1:] for sign, _, line in parse_hunk_lines(section) if sign == "+"]
        if added and _may_name_data(path):
            yield SourceText(path=path, text=_with_quoted_names(path, "\n".join(added)))
