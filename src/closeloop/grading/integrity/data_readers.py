"""Data that only tests read: golden files, expectations and cases outside the folders of tests.

A file is such data when a test names it, and the product does not. Both are read as text, by the
string literals of their code, in any language. In doubt a file is the product's.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Callable, Collection, Iterator
from functools import cache

from closeloop.grading.integrity.base_sources import BaseSources, SourceText, folders_above
from closeloop.grading.integrity.data_paths import holds_expectations, is_data_path
from closeloop.grading.integrity.path_literals import (
    OWN_FOLDER,
    find_folder_literals,
    find_literals,
    fixed_part,
    list_name_patterns,
    reads_subfolders,
)
from closeloop.grading.integrity.product_data import is_requested, make_product_test

_TEMPORARY = re.compile(r"(?:tmp|temp)[\w.()]*\s*[/,]\s*[rbf]?[\"'`]$", re.IGNORECASE)
_SUBPROCESS = re.compile(r"\b(?:subprocess|child_process|execa|CliRunner|runpy|spawn)\b")
_PYTHON_IMPORT = re.compile(
    r"^\s*(?:from|import)\s+([\w.]+(?:\s+import\s+\(?[\w, ]+)?)", re.MULTILINE
)
_SCRIPT_IMPORT = re.compile(r"""(?:\bfrom|\bimport|\b(?:require|import)\()\s*["'`]([^"'`]+)""")
_SCRIPTS = (".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx")

FolderReader = tuple[str, str]
"""A glob of file names, and the test that reads them."""


def make_data_finder(
    read_sources: Callable[[], BaseSources | None], expected: Collection[str], prompt: str
) -> Callable[[str], str | None]:
    """A function from a path to a test that reads it as data; None where the product does as well.

    The base is read once, when the first path is asked for that may be data. `expected` are paths
    that count as if the base had them.
    """

    @cache
    def finder_in_base() -> Callable[[str], str | None]:
        sources = read_sources()
        return _make_finder(sources, expected) if sources else lambda _: None

    def find_reader(path: str) -> str | None:
        if not is_data_path(path) or is_requested(prompt, path):
            return None
        return finder_in_base()(path)

    return find_reader


def _make_finder(sources: BaseSources, expected: Collection[str]) -> Callable[[str], str | None]:
    folder_readers = cache(lambda folder: list(_readers_of_folder(sources, folder)))
    is_product_data = make_product_test(sources)

    @cache
    def find_reader(path: str) -> str | None:
        folder, _, name = path.rpartition("/")
        readers = folder_readers(folder)
        reader = next((test for glob, test in readers if fnmatch.fnmatch(name, glob)), None)
        # A file beside others of its name may be a case of its own, if tests compute the folder.
        if reader is None and (path in expected or sources.names[name]):
            reader = _reader_of_file(sources, path)
        return reader if reader is not None and not is_product_data(path) else None

    return find_reader


def _reader_of_file(sources: BaseSources, path: str) -> str | None:
    """A test that names a file, and checks the product with it."""
    for test in sources.tests:
        if _names_file(sources, test, path) and _checks_product(sources, test):
            return test.path
    return None


def _names_file(sources: BaseSources, test: SourceText, path: str) -> bool:
    """Whether a test names a file; where it computes the folder, by its name and what it shows."""
    folder, _, name = path.rpartition("/")
    for literal in find_literals(test.text, name):
        before, after = literal.groups()
        if after or _TEMPORARY.search(test.text[: literal.start()][-80:]):
            continue
        if before and _leads_to(sources, test, before + name, path):
            return True
        if "." not in name or fixed_part(before) not in ("", "/"):
            continue
        only = sources.names[name] <= 1 or folder in (test.folder, "")
        if only or holds_expectations(path) or _shows_folder(test, path):
            return True
    return False


def _shows_folder(test: SourceText, path: str) -> bool:
    """Whether a test names one of the folders that a path lies in."""
    names = (folder.rpartition("/")[2] for folder in folders_above(path))
    return any(literal for name in names for literal in find_literals(test.text, name))


def _readers_of_folder(sources: BaseSources, folder: str) -> Iterator[FolderReader]:
    """Tests that read the files of a folder without naming each, and which of them."""
    for place in folders_above(f"{folder}/x") if folder else ():
        for test in sources.tests:
            if not _names_folder(sources, test, place) or not _checks_product(sources, test):
                continue
            for reader in [test] if list_name_patterns(test.text) else _importers(sources, test):
                is_deeper = reads_subfolders(reader.text) or holds_expectations(folder)
                if place == folder or is_deeper:
                    yield from ((glob, test.path) for glob in list_name_patterns(reader.text))


def _names_folder(sources: BaseSources, test: SourceText, folder: str) -> bool:
    if folder == test.folder:
        return OWN_FOLDER.search(test.text) is not None
    above, _, name = folder.rpartition("/")
    for literal in find_folder_literals(test.text, name):
        before = literal[1]
        if _leads_to(sources, test, before + name, folder):
            return True
        only = sources.names[name] <= 1
        if not before and (only or any(find_literals(test.text, above.rpartition("/")[2]))):
            return True
    return False


def _leads_to(sources: BaseSources, test: SourceText, literal: str, path: str) -> bool:
    """Whether a path in a literal means a path of the base, seen from the test or from above it."""
    anchors = (*folders_above(test.path), "")
    targets = {posixpath.normpath(posixpath.join(anchor, literal)) for anchor in anchors}
    if path in targets:
        return True
    if not targets.isdisjoint(sources.files):
        return False
    parts = [part for part in fixed_part(literal).split("/") if part not in ("", ".", "..")]
    tail = "/".join(parts)
    return path == tail or (len(parts) > 1 and path.endswith(f"/{tail}"))


def _importers(sources: BaseSources, helper: SourceText) -> list[SourceText]:
    """The tests that may use what a module of theirs defines."""
    stem = helper.path.rpartition("/")[2].partition(".")[0]
    if stem == "conftest":
        return [test for test in sources.tests if test.path.startswith(helper.folder)]
    word = re.compile(rf"\b{re.escape(stem)}\b")
    return [test for test in sources.tests if stem in test.text and word.search(test.text)]


def _checks_product(sources: BaseSources, test: SourceText) -> bool:
    """Whether a test, or one that it helps, runs code of the product.

    One that looks at data only checks the data itself, which is then for the agent to write.
    """
    return _runs_product(sources, test) or any(
        _runs_product(sources, other) for other in _importers(sources, test)
    )


def _runs_product(sources: BaseSources, test: SourceText) -> bool:
    if test.path.endswith(".py"):
        names = _PYTHON_IMPORT.findall(test.text)
    elif test.path.endswith(_SCRIPTS):
        names = _SCRIPT_IMPORT.findall(test.text)
        if any(name.startswith(".") and not is_data_path(name.lstrip("./")) for name in names):
            return True
    else:
        return True
    words = {word for name in names for word in re.findall(r"\w+", name)}
    return not words.isdisjoint(sources.modules) or _SUBPROCESS.search(test.text) is not None
