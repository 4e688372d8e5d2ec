"""How much a change touches: files, lines, modules, and how far it is spread."""

from __future__ import annotations

import math
from collections import Counter

from closeloop.changes.risk.change_history import count_source_lines
from closeloop.records.inspection import Inspection
from closeloop.records.record import Record

_SOURCE_ROOTS = frozenset(
    ("src", "lib", "source", "packages", "crates", "pkg", "internal", "app", "apps", "cmd")
)


class ChangeSize(Record):
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


def measure_change_size(inspection: Inspection) -> ChangeSize:
    files = inspection.files
    lines = [file.added + file.removed for file in files]
    return ChangeSize(
        files=len(files),
        added=sum(file.added for file in files),
        removed=sum(file.removed for file in files),
        source_added=count_source_lines((file.path, file.added) for file in files),
        modules=len(Counter(package_folder(file.path) for file in files)),
        entropy=_line_entropy(lines),
    )


def package_folder(path: str) -> str:
    """The package or top folder: `src/tally/days.py` belongs to `src/tally`."""
    folders = path.split("/")[:-1]
    deep = 2 if folders and folders[0] in _SOURCE_ROOTS else 1
    return "/".join(folders[:deep]) or "."


def _line_entropy(lines: list[int]) -> float:
    counted = [count for count in lines if count]
    total = sum(counted)
    if len(counted) < 2:
        return 0.0
    shares = [count / total for count in counted]
    return -sum(share * math.log2(share) for share in shares) / math.log2(len(counted))
