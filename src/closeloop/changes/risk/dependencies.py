"""Dependencies that a change adds or bumps, and what speaks against them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from closeloop.changes.change_sides import ChangeSides
from closeloop.changes.file_kinds import classify_file, is_lockfile
from closeloop.changes.risk.installed_packages import InstalledPackage, find_installed_package
from closeloop.changes.risk.manifests import Dependency, Manifest, read_manifest
from closeloop.changes.risk.online_packages import PackageQuery, PackageReport, ask_services
from closeloop.changes.risk.popular_packages import Ecosystem, imitated_package
from closeloop.changes.risk.vulnerabilities import (
    Advisory,
    list_vulnerabilities,
    read_advisories,
)
from closeloop.records.errors import BadInput
from closeloop.records.finding import Unmeasured
from closeloop.records.inspection import (
    Inspection,
)
from closeloop.records.record import Record
from closeloop.records.settings import CheckSettings

_COPYLEFT = re.compile(r"\b(?:A|L)?GPL|GNU (?:Affero |Lesser )?General Public", re.IGNORECASE)
_LOWEST_VERSION = re.compile(r"(?<![<!\d.])[=^~>v]*\s*(\d[\w.+-]*)")
_YOUNG = timedelta(days=30)
_ABANDONED = timedelta(days=3 * 365)
_LOCAL = re.compile(r"^(?:\.{1,2}(?:/|$)|file:|link:|workspace)")


class DependencyChange(Record):
    """One difference in what is depended on."""

    name: str
    path: str
    new: bool
    """Else it is another version of one that was there."""
    text: str
    warnings: tuple[str, ...] = ()
    package: PackageQuery | None = None
    """None for what is no package of a registry: code from elsewhere, a script."""


def find_dependency_changes(
    inspection: Inspection, cache: Path | None = None
) -> tuple[list[DependencyChange], list[Unmeasured]]:
    """By comparing both sides of every manifest that was changed."""
    sides: ChangeSides = inspection.sides
    settings: CheckSettings = inspection.settings or CheckSettings()
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
    advisories: list[Advisory] = []
    if settings.advisories and changes:
        try:
            advisories += read_advisories(sides.root / settings.advisories)
        except BadInput as fault:
            unread.append(Unmeasured(rule="advisories", reason=str(fault)))
    report = PackageReport()
    if settings.online:
        report = ask_services([one.package for one in changes if one.package], settings, cache)
    advisories += report.advisories
    now = datetime.now(UTC)
    changes = [_add_package_facts(one, advisories, report, now) for one in changes]
    return changes, [*unread, *report.unknown]


def _compare_manifests(
    sides: ChangeSides, path: str, before: Manifest | None, after: Manifest
) -> Iterator[DependencyChange]:
    old = before.dependencies if before else {}
    for name, wanted in after.dependencies.items():
        was = old.get(name)
        if was == wanted:
            continue
        installed = find_installed_package(sides.root, after.ecosystem, name) if not was else None
        if was is None:
            warnings = tuple(_dependency_warnings(sides, path, after.ecosystem, wanted, installed))
            text = f"adds the dependency `{name}`" + (
                f" {wanted.version}" if wanted.version else ""
            )
            if installed and installed.licence:
                text += f" ({installed.licence})"
        else:
            now, then = (one.origin or one.version or "any" for one in (wanted, was))
            warnings = tuple(_origin_warnings(wanted)) if wanted.origin != was.origin else ()
            text = f"takes `{name}` {now}, took {then}"
        yield DependencyChange(
            name=name,
            path=path,
            new=was is None,
            text=text,
            warnings=warnings,
            package=_identify_package(after.ecosystem, wanted, installed, was is None),
        )
    for hook, command in after.scripts.items():
        if (before.scripts if before else {}).get(hook) != command:
            text = f"runs `{command[:80]}` on {hook}"
            yield DependencyChange(
                name=hook, path=path, new=True, text=text, warnings=("it runs on install",)
            )


def _identify_package(
    ecosystem: Ecosystem, wanted: Dependency, installed: InstalledPackage | None, new: bool
) -> PackageQuery | None:
    """With the version that is installed, else the lowest that the manifest takes."""
    if wanted.origin and not _LOCAL.match(wanted.origin):
        return None
    lowest = _LOWEST_VERSION.search(wanted.version)
    version = installed.version if installed and installed.version else None
    return PackageQuery(
        ecosystem=ecosystem,
        name=wanted.name,
        version=version or (lowest[1] if lowest else None),
        new=new,
        public=not wanted.origin and not _LOCAL.match(wanted.version),
    )


def _dependency_warnings(
    sides: ChangeSides,
    path: str,
    ecosystem: Ecosystem,
    wanted: Dependency,
    installed: InstalledPackage | None,
) -> Iterator[str]:
    if (like := imitated_package(ecosystem, wanted.name)) and not wanted.origin:
        yield f"its name is one letter from `{like}`"
    yield from _origin_warnings(wanted)
    if not wanted.version and not wanted.origin and not _has_lockfile(sides, path):
        yield "no version is given, and there is no lock file"
    if installed and installed.licence and _COPYLEFT.search(installed.licence):
        yield f"its licence is {installed.licence}"


def _add_package_facts(
    change: DependencyChange, advisories: Sequence[Advisory], report: PackageReport, now: datetime
) -> DependencyChange:
    """The change with what is known of its package: its age, and vulnerabilities."""
    package = change.package
    if package is None:
        return change
    released = report.releases.get((package.ecosystem, package.name)) if change.new else None
    warnings = [*change.warnings, *_known_vulnerabilities(advisories, package)]
    text = change.text
    if released and released.first_release and released.newest_release:
        first, newest = released.first_release, released.newest_release
        text += f", first released {first.date()}, last {newest.date()}"
        if now - first < _YOUNG:
            warnings.append(f"its first release is younger than {_YOUNG.days} days")
        if now - newest > _ABANDONED:
            warnings.append("there was no release for 3 years")
    return msgspec.structs.replace(change, text=text, warnings=tuple(warnings))


def _known_vulnerabilities(advisories: Sequence[Advisory], package: PackageQuery) -> Iterator[str]:
    known = list_vulnerabilities(advisories, package.ecosystem, package.name, package.version)
    if known:
        more = f" and {len(known) - 3} more" if len(known) > 3 else ""
        of = f"version {package.version}" if package.version else "some version of it"
        yield f"{', '.join(known[:3])}{more} is known of {of}"


def _origin_warnings(wanted: Dependency) -> Iterator[str]:
    if wanted.origin and not _LOCAL.match(wanted.origin):
        yield f"it comes from {wanted.origin[:100]}, not from the registry"


def _has_lockfile(sides: ChangeSides, path: str) -> bool:
    folder = posixpath.dirname(path)
    return any(
        is_lockfile(other) and posixpath.dirname(other) in (folder, "")
        for other in sides.tree("after")
    )
