"""How the files around a name write such things: what they look up, give and import."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from functools import cached_property
from pathlib import PurePosixPath

from closeloop.changes.names.surroundings import Surroundings
from closeloop.model.inspection import Inspection

MOST_FILES = 20
_LOOKED_UP = re.compile(rb"(?<![\w$])([\w$]*)(?=(?:\.|::)\s{0,40}([\w$]+))")


class Habits:
    """Asked for many names, so whatever is read is kept."""

    def __init__(self, inspection: Inspection, around: Surroundings) -> None:
        self.inspection, self.around = inspection, around
        self._looked_up: dict[str, Set[bytes]] = {}
        self._nearby: dict[str, Set[bytes]] = {}

    def beside(self, path: str) -> Sequence[str]:
        """The file itself, and some in its folder and the one above."""
        found = [path]
        for folder in PurePosixPath(path).parents[:2]:
            found += self.around.folders.get(str(folder), ())[:MOST_FILES]
        return list(dict.fromkeys(found))[:MOST_FILES]

    def looks_up(self, owner: str, name: str, path: str) -> bool:
        """Whether old lines around have `owner.name`; of no owner, `.name`."""
        if path not in self._nearby:
            self._nearby[path] = set[bytes]().union(*map(self._lookups, self.beside(path)))
        return f"{owner}.{name}".encode() in self._nearby[path]

    def _lookups(self, path: str) -> Set[bytes]:
        if path not in self._looked_up:
            pairs = set(_LOOKED_UP.findall(self._old(path)))
            names = {b"." + name for _, name in pairs}
            self._looked_up[path] = names | {b"%b.%b" % pair for pair in pairs}
        return self._looked_up[path]

    def gives(self, called: str, name: str, path: str) -> bool:
        """Whether files around have `name=` or `name:`, and what is called."""
        having = [one for one in self.beside(path) if name in self.around.words_of(one)]
        if not having:
            return False
        pattern = re.compile(rb"(?<![\w$.])" + re.escape(name.encode()) + rb"\s?[=:](?![=:])")
        return any(
            (not called or called in self.around.words_of(one))
            and pattern.search(self.inspection.sides.read("after", one) or b"")
            for one in having
        )

    def imports(self, module: str) -> Set[str]:
        """What other files take from a module."""
        return self._imported.get(module, frozenset())

    @cached_property
    def _imported(self) -> Mapping[str, Set[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for path, imports in self.inspection.index.imports().items():
            if path not in self.inspection.added:
                for one in imports:
                    if one.name:
                        found[one.module].add(one.name)
        return found

    def _old(self, path: str) -> bytes:
        """A file without the lines that are new."""
        content: bytes = self.inspection.sides.read("after", path) or b""
        added = self.inspection.added.get(path)
        if not added:
            return content
        lines = enumerate(content.split(b"\n"), 1)
        return b"\n".join(line for at, line in lines if at not in added)
