"""The public API: what callers of this repository's code notice of a change."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from closeloop.changes.change_sides import ChangeSides
from closeloop.changes.file_kinds import classify_file, is_test_file, language_of
from closeloop.changes.risk.api import go_api, java_api
from closeloop.changes.risk.api.api_members import (
    ApiChange,
    Member,
    PublicNames,
    compare_public_names,
)
from closeloop.changes.risk.api.python_library import PythonLibrary, compare_python_libraries
from closeloop.changes.risk.api.rust_api import Crate
from closeloop.changes.risk.api.script_api import ScriptPackage
from closeloop.records.change import (
    FileChange,
)
from closeloop.records.inspection import (
    ChangeSide,
    Inspection,
    SourceModule,
)

__all__ = ["ApiChange", "find_added_names", "find_api_changes"]

_PACKAGE_PREFIX = re.compile(r"^(?:[a-z_]\w*\.)+(?=[A-Z])")
_INTERNAL_FOLDERS = re.compile(
    r"(?:^|/)(?:tests?|__tests__|docs?|examples?|benchmarks?|bench|fixtures?|internal|scripts?|playground)/"
)


def find_api_changes(inspection: Inspection) -> list[ApiChange]:
    """Public names removed, renamed, or called differently, in the order of languages and files."""
    sides: ChangeSides = inspection.sides
    files: dict[str, list[FileChange]] = {}
    for file in inspection.files:
        language = language_of(file.path)
        if language and file.status != "added" and not is_test_file(file.path):
            family: str = _LANGUAGE_FAMILIES.get(language, language)
            files.setdefault(family, []).append(file)
    added = [file for file in inspection.files if file.status == "added"]
    changes: list[ApiChange] = []
    for family, compare in _COMPARERS.items():
        if family in files:
            changes += compare(sides, files[family], added)
    return changes


def find_added_names(inspection: Inspection) -> dict[str, str]:
    """Public functions, methods and types that none of the changed files had, with their places."""
    before: set[str] = set()
    added: dict[str, str] = {}
    for file in inspection.files:
        if not _may_be_public(file.path):
            continue
        old = inspection.modules.get(("before", file.old_path or file.path))
        before |= set(_public_definitions(old)) if old else set()
        new = inspection.modules.get(("after", file.path))
        for name, line in _public_definitions(new).items() if new else ():
            if line in inspection.added.get(file.path, ()):
                added.setdefault(name, f"{file.path}:{line}")
    return {name: place for name, place in added.items() if name not in before}


def _may_be_public(path: str) -> bool:
    private = any(re.match(r"_(?!_init__\.)", part) for part in path.split("/"))
    inner = private or is_test_file(path) or _INTERNAL_FOLDERS.search(path)
    return classify_file(path) == "source" and not inner


def _public_definitions(module: SourceModule) -> dict[str, int]:
    """What others can reach, with its line; not what is inside of a function."""
    types = {one.qualified: one.first_line for one in module.types if one.public}
    functions = {
        one.qualified: one.first_line
        for one in module.functions
        if one.public and one.qualified.rpartition(".")[0] in ("", *types)
    }
    return {**types, **functions}


def _compare_python(
    sides: ChangeSides, files: Sequence[FileChange], added: Sequence[FileChange]
) -> Iterator[ApiChange]:
    before, after = (PythonLibrary(_side_reader(sides, side), sides.tree(side)) for side in _SIDES)
    return compare_python_libraries(before, after, [*files, *added])


def _compare_go(sides: ChangeSides, files: Sequence[FileChange], _: object) -> Iterator[ApiChange]:
    changed = {file.old_path or file.path for file in files}
    for folder in sorted({_parent_folder(path) for path in changed}):
        # A name may have moved to any other file of its package, and a type may be an alias.
        before, after = (
            go_api.expand_aliases(
                _read_public_names(
                    sides,
                    side,
                    [path for path in sides.tree(side) if _parent_folder(path) == folder],
                    go_api.is_public_go_file,
                    go_api.read_go_names,
                )
            )
            for side in _SIDES
        )
        touched = {name: at for name, at in before.items() if at[0] in changed}
        yield from compare_public_names(touched, after, partial(_go_display_name, folder))


def _go_display_name(folder: str, name: str) -> str:
    return f"{folder.rpartition('/')[2]}.{name}" if folder else name


def _compare_java(
    sides: ChangeSides, files: Sequence[FileChange], added: Sequence[FileChange]
) -> Iterator[ApiChange]:
    old = [file.old_path or file.path for file in files]
    new = [file.path for file in (*files, *added) if file.status != "deleted"]
    before = _read_public_names(
        sides, "before", old, java_api.is_public_java_file, java_api.read_java_names
    )
    after = _read_public_names(
        sides, "after", new, java_api.is_public_java_file, java_api.read_java_names
    )
    yield from compare_public_names(before, after, lambda name: _PACKAGE_PREFIX.sub("", name))


def _compare_rust(
    sides: ChangeSides, files: Sequence[FileChange], added: Sequence[FileChange]
) -> Iterator[ApiChange]:
    before, after = (Crate(_side_reader(sides, side), sides.tree(side)) for side in _SIDES)
    old: dict[str, tuple[str, Member]] = {}
    new: dict[str, tuple[str, Member]] = {}
    for file in files:
        if not _INTERNAL_FOLDERS.search(file.path):
            old |= before.public_names(file.old_path or file.path)
    for file in (*files, *added):
        new |= after.public_names(file.path)
    yield from compare_public_names(old, new, lambda name: name.replace(".", "::"))


def _compare_scripts(
    sides: ChangeSides, files: Sequence[FileChange], _: object
) -> Iterator[ApiChange]:
    before, after = (ScriptPackage(_side_reader(sides, side), sides.tree(side)) for side in _SIDES)
    changed = {path for file in files for path in (file.path, file.old_path or file.path)}
    seen: set[str] = set()
    for file in files:
        manifest = before.find_manifest(file.old_path or file.path)
        if manifest is None or manifest[0] in seen or _INTERNAL_FOLDERS.search(file.path):
            continue
        seen.add(manifest[0])
        for entry in sorted(before.list_entries(*manifest)):
            old = {
                n: at
                for n, at in before.exported_names(entry).items()
                if at[0] in changed or entry in changed
            }
            now = after.find_manifest(entry)
            place = (
                entry
                if entry in sides.tree("after")
                else next(iter(after.list_entries(*now)), "")
                if now
                else ""
            )
            new = after.exported_names(place) if place else {}
            yield from compare_public_names(old, new)


def _read_public_names(
    sides: ChangeSides,
    side: ChangeSide,
    paths: Sequence[str],
    is_public: Callable[[str], bool],
    names_of: Callable[[bytes], Mapping[str, Member]],
) -> PublicNames:
    names: dict[str, tuple[str, Member]] = {}
    for path in paths:
        content = sides.read(side, path) if is_public(path) else None
        if content is not None:
            names |= {name: (path, member) for name, member in names_of(content).items()}
    return names


def _side_reader(sides: ChangeSides, side: ChangeSide) -> Callable[[str], bytes | None]:
    return lambda path: sides.read(side, path)


def _parent_folder(path: str) -> str:
    return path.rpartition("/")[0]


_SIDES: tuple[ChangeSide, ChangeSide] = ("before", "after")
_LANGUAGE_FAMILIES = {"typescript": "javascript", "tsx": "javascript"}
_COMPARERS: dict[str, Callable[..., Iterator[ApiChange]]] = {
    "python": _compare_python,
    "go": _compare_go,
    "java": _compare_java,
    "rust": _compare_rust,
    "javascript": _compare_scripts,
}
