"""The public API: what callers of this repository's code notice of a change."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from closeloop.changes.kinds import is_test, language_of
from closeloop.changes.risk.api import golang, java
from closeloop.changes.risk.api.flat import Names, flat_changes
from closeloop.changes.risk.api.library import Library
from closeloop.changes.risk.api.members import ApiChange, Member
from closeloop.changes.risk.api.pythons import python_changes
from closeloop.changes.risk.api.rust import Crate
from closeloop.changes.risk.api.scripts import Package
from closeloop.changes.sources import Sides
from closeloop.model.change import FileChange
from closeloop.model.inspection import Inspection, Side

__all__ = ["ApiChange", "api_changes"]

_PACKAGES = re.compile(r"^(?:[a-z_]\w*\.)+(?=[A-Z])")
_APART = re.compile(
    r"(?:^|/)(?:tests?|__tests__|docs?|examples?|benchmarks?|bench|fixtures?|internal|scripts?|playground)/"
)


def api_changes(inspection: Inspection) -> list[ApiChange]:
    """Public names removed, renamed, or called differently, in the order of languages and files."""
    sides: Sides = inspection.sides
    files: dict[str, list[FileChange]] = {}
    for file in inspection.files:
        language = language_of(file.path)
        if language and file.status != "added" and not is_test(file.path):
            family: str = _FAMILY.get(language, language)
            files.setdefault(family, []).append(file)
    added = [file for file in inspection.files if file.status == "added"]
    found: list[ApiChange] = []
    for family, compare in _COMPARE.items():
        if family in files:
            found += compare(sides, files[family], added)
    return found


def _python(
    sides: Sides, files: Sequence[FileChange], added: Sequence[FileChange]
) -> Iterator[ApiChange]:
    before, after = (Library(_reader(sides, side), sides.tree(side)) for side in _SIDES)
    return python_changes(before, after, [*files, *added])


def _go(sides: Sides, files: Sequence[FileChange], _: object) -> Iterator[ApiChange]:
    changed = {file.old_path or file.path for file in files}
    for folder in sorted({_folder(path) for path in changed}):
        # A name may have moved to any other file of its package, and a type may be an alias.
        before, after = (
            golang.expanded(
                _written(
                    sides,
                    side,
                    [path for path in sides.tree(side) if _folder(path) == folder],
                    golang.is_public,
                    golang.names_of,
                )
            )
            for side in _SIDES
        )
        touched = {name: at for name, at in before.items() if at[0] in changed}
        yield from flat_changes(touched, after, partial(_in_folder, folder))


def _in_folder(folder: str, name: str) -> str:
    return f"{folder.rpartition('/')[2]}.{name}" if folder else name


def _java(
    sides: Sides, files: Sequence[FileChange], added: Sequence[FileChange]
) -> Iterator[ApiChange]:
    old = [file.old_path or file.path for file in files]
    new = [file.path for file in (*files, *added) if file.status != "deleted"]
    before = _written(sides, "before", old, java.is_public, java.names_of)
    after = _written(sides, "after", new, java.is_public, java.names_of)
    yield from flat_changes(before, after, lambda name: _PACKAGES.sub("", name))


def _rust(
    sides: Sides, files: Sequence[FileChange], added: Sequence[FileChange]
) -> Iterator[ApiChange]:
    before, after = (Crate(_reader(sides, side), sides.tree(side)) for side in _SIDES)
    old: dict[str, tuple[str, Member]] = {}
    new: dict[str, tuple[str, Member]] = {}
    for file in files:
        if not _APART.search(file.path):
            old |= before.names(file.old_path or file.path)
    for file in (*files, *added):
        new |= after.names(file.path)
    yield from flat_changes(old, new, lambda name: name.replace(".", "::"))


def _scripts(sides: Sides, files: Sequence[FileChange], _: object) -> Iterator[ApiChange]:
    before, after = (Package(_reader(sides, side), sides.tree(side)) for side in _SIDES)
    changed = {path for file in files for path in (file.path, file.old_path or file.path)}
    seen: set[str] = set()
    for file in files:
        found = before.manifest(file.old_path or file.path)
        if found is None or found[0] in seen or _APART.search(file.path):
            continue
        seen.add(found[0])
        for entry in sorted(before.entries(*found)):
            old = {
                n: at
                for n, at in before.names(entry).items()
                if at[0] in changed or entry in changed
            }
            now = after.manifest(entry)
            place = (
                entry
                if entry in sides.tree("after")
                else next(iter(after.entries(*now)), "")
                if now
                else ""
            )
            new = after.names(place) if place else {}
            yield from flat_changes(old, new)


def _written(
    sides: Sides,
    side: Side,
    paths: Sequence[str],
    is_public: Callable[[str], bool],
    names_of: Callable[[bytes], Mapping[str, Member]],
) -> Names:
    found: dict[str, tuple[str, Member]] = {}
    for path in paths:
        content = sides.read(side, path) if is_public(path) else None
        if content is not None:
            found |= {name: (path, member) for name, member in names_of(content).items()}
    return found


def _reader(sides: Sides, side: Side) -> Callable[[str], bytes | None]:
    return lambda path: sides.read(side, path)


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


_SIDES: tuple[Side, Side] = ("before", "after")
_FAMILY = {"typescript": "javascript", "tsx": "javascript"}
_COMPARE: dict[str, Callable[..., Iterator[ApiChange]]] = {
    "python": _python,
    "go": _go,
    "java": _java,
    "rust": _rust,
    "javascript": _scripts,
}
