"""The repository around a change: what its files define, name and look like."""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from closeloop.changes.change_sides import ChangeSides
from closeloop.changes.file_kinds import is_generated, is_lockfile, is_vendored, language_of
from closeloop.changes.layout_changes import find_layout_changes
from closeloop.changes.parse_cache import ParseCache, list_source_files, read_outlines
from closeloop.changes.syntax import extract_words, parse_module
from closeloop.records.change import (
    FileChange,
)
from closeloop.records.inspection import (
    ChangeSide,
    Inspection,
    Language,
    SourceImport,
    SourceModule,
)
from closeloop.records.settings import CheckSettings
from closeloop.records.task import Task
from closeloop.text.patches import find_changed_lines
from closeloop.text.wording import matches_globs

MAX_CACHED_MODULES = 300
"""So many modules are held in memory."""


class RepositoryIndex:
    """Every source file after the change. What it reads is kept, by content, for the next time."""

    def __init__(self, sides: ChangeSides, shelf: ParseCache, settings: CheckSettings) -> None:
        self.sides, self.shelf, self.settings = sides, shelf, settings
        self.sources = {source.path: source for source in list_source_files(sides, settings)}
        self._changed = {file.path for file in sides.change.files}
        self._places: dict[str, list[str]] = defaultdict(list)
        for source in self.sources.values():
            self._places[source.cache_key].append(source.path)
        self._modules: OrderedDict[str, SourceModule] = OrderedDict()
        self._unsaved: dict[str, bytes] = {}
        generated = {key for key, flag in self._read_outlines("generated") if flag}
        self._paths = [
            source.path
            for source in self.sources.values()
            if not source.is_vendored
            and source.cache_key not in generated
            and not matches_globs(source.path, settings.generated)
        ]
        self._own = set(self._paths)

    @property
    def notes(self) -> Sequence[str]:
        """What went wrong with the cache."""
        return self.shelf.notes

    def paths(self) -> Sequence[str]:
        """Source files of known languages, without generated and vendored ones."""
        return self._paths

    def module(self, path: str) -> SourceModule | None:
        """The whole syntax of one file; None where there is no such source."""
        source = self.sources.get(path)
        return self.parse_blob(source.language, source.blob) if source else None

    def parse_blob(self, language: Language, blob: str) -> SourceModule | None:
        """The syntax of some content at either end; None where it cannot be had."""
        key = f"{language}:{blob}"
        if key in self._modules:
            self._modules.move_to_end(key)
            return self._modules[key]
        module = self._load_cached_module(key) or self._parse_new_module(key, language, blob)
        if module:
            self._modules[key] = module
            if len(self._modules) > MAX_CACHED_MODULES:
                self._modules.popitem(last=False)
        return module

    def _load_cached_module(self, key: str) -> SourceModule | None:
        encoded = self._unsaved.get(key) or self.shelf.read_module(key)
        try:
            return msgspec.msgpack.decode(encoded, type=SourceModule) if encoded else None
        except msgspec.DecodeError:
            return None

    def _parse_new_module(self, key: str, language: Language, blob: str) -> SourceModule | None:
        content = self.sides.read_blob(blob)
        if content is None:
            return None
        module = parse_module(language, content)
        self._unsaved[key] = msgspec.msgpack.encode(module)
        if len(self._unsaved) >= MAX_CACHED_MODULES:
            self._save_modules()
        return module

    def _save_modules(self) -> None:
        self.shelf.add_modules(self._unsaved.items())
        self._unsaved.clear()

    def defined(self, name: str) -> Sequence[tuple[str, int]]:
        """Where something of that name is defined: path and line."""
        return self._definition_places.get(name.encode(), ())

    def known(self, name: str) -> bool:
        """Whether the name occurs anywhere in the repository, the change's added lines left out."""
        return name.encode() in self._known_words

    def list_names(self) -> frozenset[str]:
        """Every word of the repository's sources, the change's added lines left out."""
        return frozenset(
            name.decode("utf-8", "replace") for name in self._known_words if not name[:1].isdigit()
        )

    def count_files(self, names: Iterable[str]) -> Mapping[str, int]:
        """In how many files each of these names occurs."""
        wanted = {name.encode() for name in names}
        counts: Counter[bytes] = Counter()
        for key, words in self._read_outlines("names"):
            for word in wanted.intersection(words.split(b"\n")):
                counts[word] += len(self._places[key])
        return {word.decode(): count for word, count in counts.items()}

    def imports(self) -> Mapping[str, Sequence[SourceImport]]:
        """By path, what each file imports; on which line is not kept."""
        imports_by_path: dict[str, list[SourceImport]] = {path: [] for path in self._paths}
        for key, lines in self._read_outlines("imports"):
            fields = [line.split("\t") for line in lines.decode().split("\n")] if lines else ()
            imports = [
                SourceImport(module=module, name=name or None, alias=alias or None, line=0)
                for module, name, alias in fields
            ]
            for path in self._places[key]:
                if path in imports_by_path:
                    imports_by_path[path] = imports
        return imports_by_path

    def copies(self, prints: Sequence[int]) -> Mapping[int, Sequence[tuple[str, int]]]:
        """Where each of these fingerprints occurs: path and line."""
        wanted = set(prints)
        places: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for paths, hashes, lines in self._fingerprint_rows:
            if not wanted.isdisjoint(hashes):
                for hashed, line in zip(hashes, lines, strict=True):
                    if hashed in wanted:
                        places[hashed].extend((path, line) for path in paths)
        return places

    def close(self) -> None:
        """Keep what was parsed."""
        self._save_modules()
        self.shelf.close()

    def __enter__(self) -> RepositoryIndex:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @cached_property
    def _definition_places(self) -> Mapping[bytes, list[tuple[str, int]]]:
        definitions: dict[bytes, list[tuple[str, int]]] = defaultdict(list)
        for key, defined, lines in self._read_outlines("defined", "defined_lines"):
            if defined:
                for path in self._places[key]:
                    for name, line in zip(defined.split(b"\n"), array("I", lines), strict=True):
                        definitions[name].append((path, line))
        return definitions

    @cached_property
    def _known_words(self) -> set[bytes]:
        known_words: set[bytes] = set()
        for key, names in self._read_outlines("names"):
            if any(path not in self._changed for path in self._places[key]):
                known_words.update(names.split(b"\n"))
        added, _ = find_changed_lines(self.sides.change)
        for path in self._changed & self.sources.keys():
            lines = (self.sides.read("after", path) or b"").split(b"\n")
            new = added.get(path, frozenset())
            known_words |= extract_words(
                b"\n".join(line for at, line in enumerate(lines, 1) if at not in new)
            )
        return known_words

    @cached_property
    def _fingerprint_rows(self) -> list[tuple[list[str], array[int], array[int]]]:
        rows = []
        for key, hashes, lines in self._read_outlines("prints", "print_lines"):
            paths = [path for path in self._places[key] if path in self._own]
            if hashes and paths:
                rows.append((paths, array("Q", hashes), array("I", lines)))
        return rows

    def _read_outlines(self, *columns: str) -> Iterator[Sequence[Any]]:
        """The key and these parts of every file; what is missing is read now."""
        missing = dict.fromkeys(self._places)
        for row in self.shelf.read_columns(*columns):
            if row[0] in missing:
                del missing[row[0]]
                yield row
        sources = [self.sources[self._places[key][0]] for key in missing]
        for rows in read_outlines(self.sides, sources):
            self.shelf.add_outlines(rows)
            for key, generated, outline in rows:
                parts = {"generated": generated, **msgspec.structs.asdict(outline)}
                yield (key, *(parts[column] for column in columns))
        if missing:
            self.shelf.drop_stale_rows(self._places)


def open_index(sides: ChangeSides, cache: Path, settings: CheckSettings) -> RepositoryIndex:
    """The index of a change's repository, with its cache in that folder. Close it after use."""
    return RepositoryIndex(sides, ParseCache(cache), settings)


# Lay a change open: what checks are given.


def inspect_change(
    sides: ChangeSides,
    index: RepositoryIndex,
    *,
    task: Task | None = None,
    request: str | None = None,
    settings: CheckSettings | None = None,
) -> Inspection:
    """The change with its syntax at both ends, for the files that people write.

    Files that were only formatted anew are left out: nothing in them is this change's doing.
    """
    settings = settings or CheckSettings()
    written = [file for file in sides.change.files if _is_written(sides, file, settings)]
    layout = find_layout_changes(sides, written)
    files = tuple(file for file in written if file.path not in layout)
    added, removed = find_changed_lines(sides.change)
    if layout:
        added = {path: lines for path, lines in added.items() if path not in layout}
        removed = {path: lines for path, lines in removed.items() if path not in layout}
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
