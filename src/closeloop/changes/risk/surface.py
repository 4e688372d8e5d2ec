"""How much a change touches: files, lines, modules, and how far it is spread."""

from __future__ import annotations

import math
from collections import Counter

from closeloop.changes.risk.history import lines_added
from closeloop.model.inspection import Inspection
from closeloop.model.record import Record

_ROOTS = frozenset(
    ("src", "lib", "source", "packages", "crates", "pkg", "internal", "app", "apps", "cmd")
)


class Surface(Record):
    """The size of a change, of what people write."""

    files: int
    added: int
    removed: int
    source_added: int | None
    """Lines added to sources, what its likelihood is told by; None where it touches none."""
    modules: int
    """Packages or top folders that it touches."""
    entropy: float
    """How evenly the lines are spread over the files: 0 all in one, 1 the same in each."""


def surface_of(inspection: Inspection) -> Surface:
    files = inspection.files
    lines = [file.added + file.removed for file in files]
    return Surface(
        files=len(files),
        added=sum(file.added for file in files),
        removed=sum(file.removed for file in files),
        source_added=lines_added((file.path, file.added) for file in files),
        modules=len(Counter(module_of(file.path) for file in files)),
        entropy=_entropy(lines),
    )


def module_of(path: str) -> str:
    """The package or top folder: `src/tally/days.py` belongs to `src/tally`."""
    folders = path.split("/")[:-1]
    deep = 2 if folders and folders[0] in _ROOTS else 1
    return "/".join(folders[:deep]) or "."


def _entropy(lines: list[int]) -> float:
    counted = [count for count in lines if count]
    total = sum(counted)
    if len(counted) < 2:
        return 0.0
    shares = [count / total for count in counted]
    return -sum(share * math.log2(share) for share in shares) / math.log2(len(counted))
