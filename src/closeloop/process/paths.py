"""One name per file: agents call the same file by relative and by absolute paths."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable


class Places:
    """Knows where the project lies, from the paths that a trace names."""

    def __init__(self, paths: Iterable[str]) -> None:
        names = {path for path in paths if path}
        self.root = _root(names)
        self._plain: dict[str, str] = {}

    def plain(self, path: str) -> str:
        """The path below the project's root, or as it is when it lies elsewhere."""
        known = self._plain.get(path)
        if known is None:
            known = self._plain[path] = self._told(path)
        return known

    def _told(self, path: str) -> str:
        tidy = posixpath.normpath(path.replace("\\", "/")) if path else path
        if self.root and tidy.startswith(self.root + "/"):
            return tidy[len(self.root) + 1 :]
        return tidy


def _root(names: set[str]) -> str:
    """The folder that makes most relative paths the absolute ones that the trace also names."""
    ends: dict[str, list[str]] = {}
    absolute = []
    for name in names:
        tidy = posixpath.normpath(name.replace("\\", "/"))
        if tidy.startswith("/") or tidy[1:3] == ":/":
            absolute.append(tidy)
            ends.setdefault(posixpath.basename(tidy), []).append(tidy)
    votes: Counter[str] = Counter()
    for name in names:
        tidy = posixpath.normpath(name.replace("\\", "/"))
        if tidy in (".", "..") or tidy.startswith(("/", "../")) or tidy[1:3] == ":/":
            continue
        for full in ends.get(posixpath.basename(tidy), ())[:50]:
            if full.endswith("/" + tidy):
                votes[full[: -len(tidy) - 1]] += 1
    if votes:
        # Ties go to the shortest, then to the first by name: the same on every machine.
        return min(votes, key=lambda root: (-votes[root], len(root), root))
    return ""
