"""Lay a change open: what checks are given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from closeloop.changes.index import RepositoryIndex
from closeloop.changes.kinds import is_generated, is_lockfile, is_vendored, language_of
from closeloop.changes.lines import altered
from closeloop.changes.sources import Sides
from closeloop.model.change import FileChange
from closeloop.model.inspection import Inspection, Language, Module, Side
from closeloop.model.settings import CheckSettings
from closeloop.model.task import Task


def inspect(
    sides: Sides,
    index: RepositoryIndex,
    *,
    task: Task | None = None,
    request: str | None = None,
    settings: CheckSettings | None = None,
) -> Inspection:
    """The change with its syntax at both ends, for the files that people write."""
    settings = settings or CheckSettings()
    files = tuple(file for file in sides.change.files if _is_written(sides, file, settings))
    added, removed = altered(sides.change)
    return Inspection(
        change=sides.change,
        sides=sides,
        index=index,
        files=files,
        added=added,
        removed=removed,
        modules=_Modules(sides, index, files),
        task=task,
        request=request if request is not None or task is None else task.prompt,
        settings=settings,
    )


def _is_written(sides: Sides, file: FileChange, settings: CheckSettings) -> bool:
    if file.binary or is_lockfile(file.path) or is_vendored(file.path, settings.vendored):
        return False
    side: Side = "before" if file.status == "deleted" else "after"
    content = sides.read(side, file.path) or b""
    return not is_generated(file.path, content, settings.generated)


class _Modules(Mapping[tuple[Side, str], Module]):
    """Parsed when asked for: a change of ten thousand files must not fill the memory."""

    def __init__(self, sides: Sides, index: RepositoryIndex, files: tuple[FileChange, ...]) -> None:
        self._index = index
        self._blobs: dict[tuple[Side, str], tuple[Language, str]] = {}
        for file in files:
            places: tuple[tuple[Side, str], ...] = (
                ("before", file.old_path or file.path),
                ("after", file.path),
            )
            for side, path in places:
                language, blob = language_of(path), sides.tree(side).get(path)
                if language and blob and blob.strip("0"):
                    self._blobs[side, path] = (language, blob)

    def __getitem__(self, place: tuple[Side, str]) -> Module:
        module = self._index.parsed(*self._blobs[place])
        if module is None:
            raise KeyError(place)
        return module

    def __iter__(self) -> Iterator[tuple[Side, str]]:
        return iter(self._blobs)

    def __len__(self) -> int:
        return len(self._blobs)
