"""How the files around a name write such things: what they look up, give and import."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from functools import cached_property
from pathlib import PurePosixPath

from closeloop.changes.names.name_scopes import NameEnvironment
from closeloop.records.inspection import Inspection

MAX_FILES = 20
_LOOKUP = re.compile(rb"(?<![\w$])([\w$]*)(?=(?:\.|::)\s{0,40}([\w$]+))")


class NearbyUsage:
    """Asked for many names, so whatever is read is kept."""

    def __init__(self, inspection: Inspection, around: NameEnvironment) -> None:
        self.inspection, self.around = inspection, around
        self._looked_up: dict[str, Set[bytes]] = {}
        self._nearby: dict[str, Set[bytes]] = {}

    def list_nearby_files(self, path: str) -> Sequence[str]:
        """The file itself, and some in its folder and the one above."""
        paths = [path]
        for folder in PurePosixPath(path).parents[:2]:
            paths += self.around.folders.get(str(folder), ())[:MAX_FILES]
        return list(dict.fromkeys(paths))[:MAX_FILES]

    def has_lookup(self, owner: str, name: str, path: str) -> bool:
        """Whether old lines around have `owner.name`; of no owner, `.name`."""
        if path not in self._nearby:
            self._nearby[path] = set[bytes]().union(
                *map(self._read_lookups, self.list_nearby_files(path))
            )
        return f"{owner}.{name}".encode() in self._nearby[path]

    def _read_lookups(self, path: str) -> Set[bytes]:
        if path not in self._looked_up:
            pairs = set(_LOOKUP.findall(self._read_old_lines(path)))
            names = {b"." + name for _, name in pairs}
            self._looked_up[path] = names | {b"%b.%b" % pair for pair in pairs}
        return self._looked_up[path]

    def has_keyword(self, called: str, name: str, path: str) -> bool:
        """Whether files around have `name=` or `name:`, and what is called."""
        having = [
            one for one in self.list_nearby_files(path) if name in self.around.file_words(one)
        ]
        if not having:
            return False
        pattern = re.compile(rb"(?<![\w$.])" + re.escape(name.encode()) + rb"\s?[=:](?![=:])")
        return any(
            (not called or called in self.around.file_words(one))
            and pattern.search(self.inspection.sides.read("after", one) or b"")
            for one in having
        )

    def imported_names(self, module: str) -> Set[str]:
        """What other files take from a module."""
        return self._names_by_module.get(module, frozenset())

    @cached_property
    def _names_by_module(self) -> Mapping[str, Set[str]]:
        names_by_module: dict[str, set[str]] = defaultdict(set)
        for path, imports in self.inspection.index.imports().items():
            if path not in self.inspection.added:
                for one in imports:
                    if one.name:
                        names_by_module[one.module].add(one.name)
        return names_by_module

    def _read_old_lines(self, path: str) -> bytes:
        """A file without the lines that are new."""
        content: bytes = self.inspection.sides.read("after", path) or b""
        added = self.inspection.added.get(path)
        if not added:
            return content
        lines = enumerate(content.split(b"\n"), 1)
        return b"\n".join(line for at, line in lines if at not in added)
