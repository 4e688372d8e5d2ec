"""The repository around a change: what its files define, name and look like."""

from __future__ import annotations

from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from closeloop.changes.lines import altered
from closeloop.changes.shelf import Shelf
from closeloop.changes.skimming import skimmed, sources_of
from closeloop.changes.sources import Sides
from closeloop.changes.syntax import parse, words
from closeloop.model.globs import matches
from closeloop.model.inspection import Import, Language, Module
from closeloop.model.settings import CheckSettings

AT_HAND = 300
"""So many modules are held in memory."""


class RepositoryIndex:
    """Every source file after the change. What it reads is kept, by content, for the next time."""

    def __init__(self, sides: Sides, shelf: Shelf, settings: CheckSettings) -> None:
        self.sides, self.shelf, self.settings = sides, shelf, settings
        self.sources = {source.path: source for source in sources_of(sides, settings)}
        self._changed = {file.path for file in sides.change.files}
        self._places: dict[str, list[str]] = defaultdict(list)
        for source in self.sources.values():
            self._places[source.key].append(source.path)
        self._modules: OrderedDict[str, Module] = OrderedDict()
        self._unsaved: dict[str, bytes] = {}
        generated = {key for key, flag in self._outlines("generated") if flag}
        self._paths = [
            source.path
            for source in self.sources.values()
            if not source.vendored
            and source.key not in generated
            and not matches(source.path, settings.generated)
        ]
        self._own = set(self._paths)

    @property
    def notes(self) -> Sequence[str]:
        """What went wrong with the cache."""
        return self.shelf.notes

    def paths(self) -> Sequence[str]:
        """Source files of known languages, without generated and vendored ones."""
        return self._paths

    def module(self, path: str) -> Module | None:
        """The whole syntax of one file; None where there is no such source."""
        source = self.sources.get(path)
        return self.parsed(source.language, source.blob) if source else None

    def parsed(self, language: Language, blob: str) -> Module | None:
        """The syntax of some content at either end; None where it cannot be had."""
        key = f"{language}:{blob}"
        if key in self._modules:
            self._modules.move_to_end(key)
            return self._modules[key]
        module = self._kept(key) or self._new(key, language, blob)
        if module:
            self._modules[key] = module
            if len(self._modules) > AT_HAND:
                self._modules.popitem(last=False)
        return module

    def _kept(self, key: str) -> Module | None:
        kept = self._unsaved.get(key) or self.shelf.module(key)
        try:
            return msgspec.msgpack.decode(kept, type=Module) if kept else None
        except msgspec.DecodeError:
            return None

    def _new(self, key: str, language: Language, blob: str) -> Module | None:
        content = self.sides.read_blob(blob)
        if content is None:
            return None
        module = parse(language, content)
        self._unsaved[key] = msgspec.msgpack.encode(module)
        if len(self._unsaved) >= AT_HAND:
            self._save()
        return module

    def _save(self) -> None:
        self.shelf.add_modules(self._unsaved.items())
        self._unsaved.clear()

    def defined(self, name: str) -> Sequence[tuple[str, int]]:
        """Where something of that name is defined: path and line."""
        return self._definitions.get(name.encode(), ())

    def known(self, name: str) -> bool:
        """Whether the name occurs anywhere in the repository, the change's added lines left out."""
        return name.encode() in self._names

    def names(self) -> frozenset[str]:
        """Every word of the repository's sources, the change's added lines left out."""
        return frozenset(
            name.decode("utf-8", "replace") for name in self._names if not name[:1].isdigit()
        )

    def imports(self) -> Mapping[str, Sequence[Import]]:
        """By path, what each file imports; on which line is not kept."""
        found: dict[str, list[Import]] = {path: [] for path in self._paths}
        for key, lines in self._outlines("imports"):
            taken = [line.split("\t") for line in lines.decode().split("\n")] if lines else ()
            imports = [
                Import(module=module, name=name or None, alias=alias or None, line=0)
                for module, name, alias in taken
            ]
            for path in self._places[key]:
                if path in found:
                    found[path] = imports
        return found

    def copies(self, prints: Sequence[int]) -> Mapping[int, Sequence[tuple[str, int]]]:
        """Where each of these fingerprints occurs: path and line."""
        wanted = set(prints)
        found: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for paths, hashes, lines in self._prints:
            if not wanted.isdisjoint(hashes):
                for hashed, line in zip(hashes, lines, strict=True):
                    if hashed in wanted:
                        found[hashed].extend((path, line) for path in paths)
        return found

    def close(self) -> None:
        """Keep what was parsed."""
        self._save()
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
    def _definitions(self) -> Mapping[bytes, list[tuple[str, int]]]:
        found: dict[bytes, list[tuple[str, int]]] = defaultdict(list)
        for key, defined, lines in self._outlines("defined", "defined_lines"):
            if defined:
                for path in self._places[key]:
                    for name, line in zip(defined.split(b"\n"), array("I", lines), strict=True):
                        found[name].append((path, line))
        return found

    @cached_property
    def _names(self) -> set[bytes]:
        found: set[bytes] = set()
        for key, names in self._outlines("names"):
            if any(path not in self._changed for path in self._places[key]):
                found.update(names.split(b"\n"))
        added, _ = altered(self.sides.change)
        for path in self._changed & self.sources.keys():
            lines = (self.sides.read("after", path) or b"").split(b"\n")
            new = added.get(path, frozenset())
            found |= words(b"\n".join(line for at, line in enumerate(lines, 1) if at not in new))
        return found

    @cached_property
    def _prints(self) -> list[tuple[list[str], array[int], array[int]]]:
        found = []
        for key, hashes, lines in self._outlines("prints", "print_lines"):
            paths = [path for path in self._places[key] if path in self._own]
            if hashes and paths:
                found.append((paths, array("Q", hashes), array("I", lines)))
        return found

    def _outlines(self, *columns: str) -> Iterator[Sequence[Any]]:
        """The key and these parts of every file; what is missing is read now."""
        missing = dict.fromkeys(self._places)
        for row in self.shelf.columns(*columns):
            if row[0] in missing:
                del missing[row[0]]
                yield row
        sources = [self.sources[self._places[key][0]] for key in missing]
        for rows in skimmed(self.sides, sources):
            self.shelf.add(rows)
            for key, generated, outline in rows:
                parts = {"generated": generated, **msgspec.structs.asdict(outline)}
                yield (key, *(parts[column] for column in columns))
        if missing:
            self.shelf.tidy(self._places)


def open_index(sides: Sides, cache: Path, settings: CheckSettings) -> RepositoryIndex:
    """The index of a change's repository, with its cache in that folder. Close it after use."""
    return RepositoryIndex(sides, Shelf(cache), settings)
