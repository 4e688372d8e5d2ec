"""One name per file: agents call the same file by relative and by absolute paths."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Mapping

_UNTIDY_PART = re.compile(r"/\.{0,2}(?:/|$)|^\.{1,2}(?:/|$)")
"""What is to be made plain in a path: `a//b`, `./a`, `a/../b`, `a/`."""


class ProjectPaths:
    """Knows where the project lies, from the paths that a trace names."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._tidy = {path: _tidy_path(path) for path in paths if path}
        self.root = _find_root(self._tidy)
        self._plain: dict[str, str] = {} if self.root else self._tidy

    def normalise_path(self, path: str) -> str:
        """The path below the project's root, or as it is when it lies elsewhere."""
        normalised_path = self._plain.get(path)
        if normalised_path is None:
            normalised_path = self._plain[path] = self._relative_path(path)
        return normalised_path

    def _relative_path(self, path: str) -> str:
        tidy = self._tidy.get(path) or _tidy_path(path)
        if self.root and tidy.startswith(self.root + "/"):
            return tidy[len(self.root) + 1 :]
        return tidy


def _tidy_path(path: str) -> str:
    if "\\" in path:
        path = path.replace("\\", "/")
    if path[:1] == "." or path[-1:] == "/" or "//" in path or "/." in path:
        return posixpath.normpath(path) if _UNTIDY_PART.search(path) else path
    return path


def _is_absolute(tidy: str) -> bool:
    return tidy[:1] == "/" or tidy[1:3] == ":/"


def _find_root(names: Mapping[str, str]) -> str:
    """The folder that makes most relative paths the absolute ones that the trace also names."""
    ends: dict[str, list[str]] = {}
    relative = []
    for tidy in names.values():
        if _is_absolute(tidy):
            ends.setdefault(tidy.rpartition("/")[2], []).append(tidy)
        elif tidy not in (".", "..") and not tidy.startswith("../"):
            relative.append(tidy)
    votes: Counter[str] = Counter()
    for tidy in relative if ends else ():
        for full in ends.get(tidy.rpartition("/")[2], ())[:50]:
            if full.endswith("/" + tidy):
                votes[full[: -len(tidy) - 1]] += 1
    if votes:
        # Ties go to the shortest, then to the first by name: the same on every machine.
        return min(votes, key=lambda root: (-votes[root], len(root), root))
    return ""
