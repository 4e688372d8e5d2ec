"""Lay a change open: what checks are given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from closeloop.changes.change_sides import ChangeSides
from closeloop.changes.file_kinds import is_generated, is_lockfile, is_vendored, language_of
from closeloop.changes.repository_index import RepositoryIndex
from closeloop.records.change import FileChange
from closeloop.records.diff_lines import find_changed_lines
from closeloop.records.inspection import ChangeSide, Inspection, Language, SourceModule
from closeloop.records.settings import CheckSettings
from closeloop.records.task import Task


def inspect_change(
    sides: ChangeSides,
    index: RepositoryIndex,
    *,
    task: Task | None = None,
    request: str | None = None,
    settings: CheckSettings | None = None,
) -> Inspection:
    """The change with its syntax at both ends, for the files that people write."""
    settings = settings or CheckSettings()
    files = tuple(file for file in sides.change.files if _is_written(sides, file, settings))
    added, removed = find_changed_lines(sides.change)
    return Inspection(
        change=sides.change,
        sides=sides,
        index=index,
        files=files,
        added=added,
        removed=removed,
        modules=_ChangedModules(sides, index, files),
        task=task,
        request=request if request is not None or task is None else task.prompt,
        settings=settings,
    )


def _is_written(sides: ChangeSides, file: FileChange, settings: CheckSettings) -> bool:
    if file.binary or is_lockfile(file.path) or is_vendored(file.path, settings.vendored):
        return False
    side: ChangeSide = "before" if file.status == "deleted" else "after"
    content = sides.read(side, file.path) or b""
    return not is_generated(file.path, content, settings.generated)


class _ChangedModules(Mapping[tuple[ChangeSide, str], SourceModule]):
    """Parsed when asked for: a change of ten thousand files must not fill the memory."""

    def __init__(
        self, sides: ChangeSides, index: RepositoryIndex, files: tuple[FileChange, ...]
    ) -> None:
        self._index = index
        self._blobs: dict[tuple[ChangeSide, str], tuple[Language, str]] = {}
        for file in files:
            places: tuple[tuple[ChangeSide, str], ...] = (
                ("before", file.old_path or file.path),
                ("after", file.path),
            )
            for side, path in places:
                language, blob = language_of(path), sides.tree(side).get(path)
                if language and blob and blob.strip("0"):
                    self._blobs[side, path] = (language, blob)

    def __getitem__(self, place: tuple[ChangeSide, str]) -> SourceModule:
        module = self._index.parse_blob(*self._blobs[place])
        if module is None:
            raise KeyError(place)
        return module

    def __iter__(self) -> Iterator[tuple[ChangeSide, str]]:
        return iter(self._blobs)

    def __len__(self) -> int:
        return len(self._blobs)
