"""New and bumped dependencies, and what speaks against them; nothing is asked over a network."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from closeloop.changes.change_sides import ChangeSides
from closeloop.changes.file_kinds import classify_file, is_lockfile
from closeloop.changes.risk.dependency_manifests import (
    Dependency,
    Ecosystem,
    Manifest,
    normalise_python_name,
    read_manifest,
)
from closeloop.changes.risk.popular_packages import imitated_package
from closeloop.records.finding import Unmeasured
from closeloop.records.inspection import Inspection
from closeloop.records.record import Record

_COPYLEFT = re.compile(r"\b(?:A|L)?GPL|GNU (?:Affero |Lesser )?General Public", re.IGNORECASE)
_LOCAL = re.compile(r"^(?:\.{1,2}(?:/|$)|file:|link:|workspace)")


class DependencyChange(Record):
    """One difference in what is depended on."""

    name: str
    path: str
    new: bool
    """Else it is another version of one that was there."""
    text: str
    warnings: tuple[str, ...] = ()


def find_dependency_changes(
    inspection: Inspection,
) -> tuple[list[DependencyChange], list[Unmeasured]]:
    """By comparing both sides of every manifest that was changed."""
    sides: ChangeSides = inspection.sides
    changes: list[DependencyChange] = []
    unread: list[Unmeasured] = []
    for file in inspection.change.files:
        if classify_file(file.path) != "manifest" or file.status == "deleted" or file.binary:
            continue
        old = file.old_path or file.path
        try:
            after = read_manifest(file.path, sides.read("after", file.path) or b"")
        except ValueError as error:
            unread.append(Unmeasured(rule="dependencies", reason=f"{file.path}: {error}"))
            continue
        try:
            before = read_manifest(old, sides.read("before", old) or b"{}")
        except ValueError:
            before = None
        if after is not None:
            changes += _compare_manifests(sides, file.path, before, after)
    return changes, unread


def _compare_manifests(
    sides: ChangeSides, path: str, before: Manifest | None, after: Manifest
) -> Iterator[DependencyChange]:
    old = before.dependencies if before else {}
    for name, wanted in after.dependencies.items():
        was = old.get(name)
        if was == wanted:
            continue
        if was is None:
            warnings = tuple(_dependency_warnings(sides, path, after.ecosystem, wanted))
            text = f"adds the dependency `{name}`" + (
                f" {wanted.version}" if wanted.version else ""
            )
            yield DependencyChange(name=name, path=path, new=True, text=text, warnings=warnings)
        else:
            now, then = (one.origin or one.version or "any" for one in (wanted, was))
            warnings = tuple(_origin_warnings(wanted)) if wanted.origin != was.origin else ()
            text = f"takes `{name}` {now}, took {then}"
            yield DependencyChange(name=name, path=path, new=False, text=text, warnings=warnings)
    for hook, command in after.scripts.items():
        if (before.scripts if before else {}).get(hook) != command:
            text = f"runs `{command[:80]}` on {hook}"
            yield DependencyChange(
                name=hook, path=path, new=True, text=text, warnings=("it runs on install",)
            )


def _dependency_warnings(
    sides: ChangeSides, path: str, ecosystem: Ecosystem, wanted: Dependency
) -> Iterator[str]:
    if (like := imitated_package(ecosystem, wanted.name)) and not wanted.origin:
        yield f"its name is one letter from `{like}`"
    yield from _origin_warnings(wanted)
    if not wanted.version and not wanted.origin and not _has_lockfile(sides, path):
        yield "no version is given, and there is no lock file"
    licence = _installed_licence(sides.root, ecosystem, wanted.name)
    if licence and _COPYLEFT.search(licence):
        yield f"its licence is {licence}"


def _origin_warnings(wanted: Dependency) -> Iterator[str]:
    if wanted.origin and not _LOCAL.match(wanted.origin):
        yield f"it comes from {wanted.origin[:100]}, not from the registry"


def _has_lockfile(sides: ChangeSides, path: str) -> bool:
    folder = posixpath.dirname(path)
    return any(
        is_lockfile(other) and posixpath.dirname(other) in (folder, "")
        for other in sides.tree("after")
    )


def _installed_licence(root: Path, ecosystem: Ecosystem, name: str) -> str | None:
    """As the installed package says, where it is installed beside the sources."""
    try:
        if ecosystem == "npm" and re.fullmatch(r"(?:@[\w.-]+/)?[\w.-]+", name) and ".." not in name:
            content = (root / "node_modules" / name / "package.json").read_bytes()[:200_000]
            licence = msgspec.json.decode(content).get("license")
            return licence if isinstance(licence, str) else None
        if ecosystem == "pypi":
            for place in (".venv", "venv"):
                for folder in (root / place).glob("lib/python3*/site-packages/*.dist-info"):
                    if normalise_python_name(folder.name.partition("-")[0]) == name:
                        return _metadata_licence(folder / "METADATA")
    except (OSError, ValueError, RecursionError, AttributeError):
        return None
    return None


def _metadata_licence(path: Path) -> str | None:
    head = path.read_text("utf-8", "replace")[:20_000].partition("\n\n")[0]
    stated = re.search(r"^(?:License-Expression|License):\s*(.{1,80})$", head, re.MULTILINE)
    listed = re.search(r"^Classifier: License ::.*:: (.{1,80})$", head, re.MULTILINE)
    chosen = stated or listed
    return chosen[1].strip() if chosen else None
