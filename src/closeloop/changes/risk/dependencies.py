"""Dependencies that a change adds or bumps, and known problems with them."""

from __future__ import annotations

import configparser
import os
import posixpath
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree import ElementTree

import msgspec

from closeloop.changes.change_sides import ChangeSides
from closeloop.changes.file_kinds import classify_file, is_lockfile
from closeloop.changes.risk.online_packages import (
    Advisory,
    Ecosystem,
    PackageQuery,
    PackageReport,
    ask_services,
    imitated_package,
    list_vulnerabilities,
    read_advisories,
)
from closeloop.records.change import Inspection
from closeloop.records.errors import BadInput
from closeloop.records.finding import Unmeasured
from closeloop.records.record import Record
from closeloop.records.settings import CheckSettings
from closeloop.sandbox.machine_view import is_own_environment
from closeloop.text.wording import compile_lazily

# Manifests: the dependencies that a project declares, in any common ecosystem.


_MAX_MANIFEST_BYTES = 2_000_000
_REQUIREMENT = compile_lazily(
    r"\s*([A-Za-z0-9][\w.-]{0,100})\s*(?:\[[^\]]{0,200}\])?\s*(@\s*\S{1,500}|[^;#@]{0,300})"
)
_GO_REQUIREMENT = compile_lazily(
    r"^\s*(?:require\s+)?([\w.-]{1,80}\.[\w.-]{1,20}/\S{1,200}|[\w.-]+\.[a-z]+)\s+(v\S+)", re.M
)
_GO_REPLACE = compile_lazily(
    r"^\s*(?:replace\s+)?(\S{1,200})(?: v\S+)?\s+=>\s+(\S{1,300})(?:\s+(v\S+))?", re.M
)
_GRADLE_DEPENDENCY = compile_lazily(
    r"\b(\w*(?:[iI]mplementation|[aA]pi|[cC]ompileOnly|[rR]untimeOnly|classpath|kapt))\b"
    r"[\s(]{1,5}(?:platform\()?[\"']([\w.-]+:[\w.-]+)(?::([^\"'@]{1,80}))?"
)
_GEM_LINE = compile_lazily(r"^\s*gem\s*\(?\s*[\"']([\w.-]{1,100})[\"'](.{0,300})", re.M)
_INSTALL_HOOKS = (
    "preinstall",
    "install",
    "postinstall",
    "prepare",
    "pre-install-cmd",
    "post-install-cmd",
)


class Dependency(Record):
    """One dependency of a manifest."""

    name: str
    version: str = ""
    """As written; empty if any version will do."""
    origin: str | None = None
    """Its source, if not the ecosystem's registry."""


class Manifest(Record):
    """The dependencies of one manifest, by name."""

    ecosystem: Ecosystem
    dependencies: Mapping[str, Dependency] = {}
    scripts: Mapping[str, str] = {}
    """Commands that run on installation."""


def read_manifest(path: str, content: bytes) -> Manifest | None:
    """Read a manifest; None for other files, ValueError if it cannot be read."""
    ecosystem_reader = _find_reader(PurePosixPath(path).name)
    if ecosystem_reader is None:
        return None
    if len(content) > _MAX_MANIFEST_BYTES:
        raise ValueError("it is too large")
    ecosystem, reader = ecosystem_reader
    try:
        text = content.decode("utf-8-sig")
        dependencies = {dependency.name: dependency for dependency in reader(text)}
        scripts = _install_scripts(text) if PurePosixPath(path).suffix == ".json" else {}
    except (ValueError, TypeError, AttributeError, RecursionError, *_PARSE_ERRORS) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"it cannot be parsed ({reason})"[:200]) from None
    return Manifest(ecosystem=ecosystem, dependencies=dependencies, scripts=scripts)


_PARSE_ERRORS = (ElementTree.ParseError, configparser.Error, msgspec.MsgspecError)
ManifestReader = Callable[[str], Iterator[Dependency]]


def _find_reader(name: str) -> tuple[Ecosystem, ManifestReader] | None:
    if re.fullmatch(r"(?:.*-)?(?:requirements|constraints).*\.(?:txt|in)", name):
        return "pypi", _read_requirements
    return _READERS.get(name)


def parse_requirement(text: str) -> Dependency | None:
    """Parse a line in pip's format."""
    if origin := re.search(r"\b(?:git|hg)\+\S{1,500}|\bhttps?://\S{1,500}", text):
        name = re.search(r"#egg=([\w.-]+)", text) or re.match(r"\s*([\w.-]+)[^@]{0,200}@", text)
        fallback = origin[0].rstrip("/").rsplit("/", 1)[-1].removesuffix(".git")
        return Dependency(
            name=normalise_python_name(name[1] if name else fallback), origin=origin[0]
        )
    matched = _REQUIREMENT.match(text)
    if not matched or text.lstrip().startswith("-"):
        return None
    return Dependency(name=normalise_python_name(matched[1]), version=matched[2].strip(" ()"))


def normalise_python_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _read_requirements(text: str) -> Iterator[Dependency]:
    for line in re.sub(r"\\\n", " ", text).splitlines():
        bare = re.sub(r"(?:^|\s)#.*|^\s*(?:-e|--editable)\s+", "", line).split(" --", 1)[0]
        if bare.strip() and (dependency := parse_requirement(bare)):
            yield dependency


def _parse_requirements(lines: Any) -> Iterator[Dependency]:
    for line in lines or ():
        if isinstance(line, str) and (dependency := parse_requirement(line)):
            yield dependency


def _read_pyproject(text: str) -> Iterator[Dependency]:
    data = tomllib.loads(text)
    project = data.get("project", {})
    yield from _parse_requirements(project.get("dependencies"))
    for group in (project.get("optional-dependencies", {}), data.get("dependency-groups", {})):
        for lines in group.values():
            yield from _parse_requirements(lines)
    yield from _parse_requirements(data.get("build-system", {}).get("requires"))
    poetry = data.get("tool", {}).get("poetry", {})
    tables = [poetry.get("dependencies", {}), poetry.get("dev-dependencies", {})]
    tables += [group.get("dependencies", {}) for group in poetry.get("group", {}).values()]
    for table in tables:
        yield from (
            dependency
            for dependency in _read_table(table, normalise_python_name)
            if dependency.name != "python"
        )


def _read_table(
    table: Mapping[str, Any], normalise_name: Callable[[str], str] = str
) -> Iterator[Dependency]:
    """Yield dependencies from `name = "1.0"` or `name = { version = …, git = … }`."""
    for name, requirement in table.items():
        facts = requirement if isinstance(requirement, dict) else {"version": requirement}
        local = facts.get("path")
        origin = facts.get("git") or facts.get("url") or (f"./{local}" if local else None)
        version = facts.get("version") or facts.get("rev") or facts.get("tag") or ""
        workspace = "workspace" if facts.get("workspace") else ""
        yield Dependency(
            name=normalise_name(facts.get("package") or name),
            version=str(version if version != "*" else "") or workspace,
            origin=str(origin) if origin else None,
        )


def _read_setup_cfg(text: str) -> Iterator[Dependency]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.read_string(text)
    if parser.has_section("options"):
        for option in ("install_requires", "setup_requires", "tests_require"):
            yield from _parse_requirements(parser.get("options", option, fallback="").splitlines())
    if parser.has_section("options.extras_require"):
        for _, lines in parser.items("options.extras_require"):
            yield from _parse_requirements(lines.splitlines())


def _json_reader(*names: str) -> ManifestReader:
    def read(text: str) -> Iterator[Dependency]:
        data = msgspec.json.decode(text)
        for name in names:
            for package, version in (data.get(name) or {}).items():
                if package == "php" or package.startswith("ext-"):
                    continue
                far = re.match(r"(?:git|https?|file|link|github:|[\w-]+/[\w.-]+(?:#|$))", version)
                loose = version in ("*", "latest", "", "x")
                yield Dependency(
                    name=package,
                    version="" if loose or far else version,
                    origin=version if far else None,
                )

    return read


def _install_scripts(text: str) -> dict[str, str]:
    scripts = msgspec.json.decode(text).get("scripts") or {}
    return {name: str(scripts[name]) for name in _INSTALL_HOOKS if name in scripts}


def _read_go_mod(text: str) -> Iterator[Dependency]:
    text = re.sub(r"//.*", "", text)
    text = re.sub(
        r"^(?:exclude|retract|module|go|toolchain)\b(?:\s*\([^)]*\)|.*)", "", text, flags=re.M
    )
    for name, version in _GO_REQUIREMENT.findall(re.sub(r"^.*=>.*$", "", text, flags=re.M)):
        yield Dependency(name=name, version=version)
    for name, origin, version in _GO_REPLACE.findall(text):
        yield Dependency(name=f"{name} (replaced)", version=version, origin=origin)


def _read_cargo(text: str) -> Iterator[Dependency]:
    data = tomllib.loads(text)
    tables = [data, data.get("workspace", {}), *data.get("target", {}).values()]
    for table in tables:
        for kind in ("dependencies", "dev-dependencies", "build-dependencies"):
            yield from _read_table(table.get(kind, {}))


def _read_pom(text: str) -> Iterator[Dependency]:
    root = ElementTree.fromstring(text)  # noqa: S314  expat bounds entities, and the size is bounded above
    for element in root.iter():
        if element.tag.rsplit("}", 1)[-1] not in ("dependency", "plugin"):
            continue
        facts = {child.tag.rsplit("}", 1)[-1]: (child.text or "").strip() for child in element}
        if facts.get("artifactId"):
            name = f"{facts.get('groupId', '')}:{facts['artifactId']}"
            # Without a version the parent's dependencyManagement pins it.
            yield Dependency(name=name, version=facts.get("version", "managed"))


def _read_gradle(text: str) -> Iterator[Dependency]:
    for _, name, version in _GRADLE_DEPENDENCY.findall(text):
        yield Dependency(
            name=name, version="" if version in ("+", "latest.release") else version or "managed"
        )


def _read_gemfile(text: str) -> Iterator[Dependency]:
    for name, arguments in _GEM_LINE.findall(text):
        origin = re.search(r"\b(?:git|github|path):\s*[\"']([^\"']{1,300})", arguments)
        version = re.match(r"\s*,\s*[\"']([^\"']{1,80})[\"']", arguments)
        yield Dependency(
            name=name, version=version[1] if version else "", origin=origin[1] if origin else None
        )


_NPM_TABLES = ("dependencies", "devDependencies", "peerDependencies", "optionalDependencies")
_READERS: dict[str, tuple[Ecosystem, ManifestReader]] = {
    "pyproject.toml": ("pypi", _read_pyproject),
    "setup.cfg": ("pypi", _read_setup_cfg),
    "package.json": ("npm", _json_reader(*_NPM_TABLES)),
    "go.mod": ("go", _read_go_mod),
    "Cargo.toml": ("crates", _read_cargo),
    "pom.xml": ("maven", _read_pom),
    "build.gradle": ("maven", _read_gradle),
    "build.gradle.kts": ("maven", _read_gradle),
    "Gemfile": ("rubygems", _read_gemfile),
    "composer.json": ("packagist", _json_reader("require", "require-dev")),
}


# Metadata of packages installed beside the sources: version and licence.


_ENVIRONMENT_FOLDERS = (".venv", "venv", "env", ".env")
_ENVIRONMENT_VARIABLES = ("VIRTUAL_ENV", "CONDA_PREFIX")
_MAX_METADATA_CHARS = 20_000
_LICENCE_TEXTS = (
    ("Apache-2.0", "Apache License"),
    ("MPL-2.0", "Mozilla Public License"),
    ("AGPL", "GNU AFFERO GENERAL PUBLIC LICENSE"),
    ("LGPL", "GNU LESSER GENERAL PUBLIC LICENSE"),
    ("GPL", "GNU GENERAL PUBLIC LICENSE"),
    ("MIT", "Permission is hereby granted, free of charge"),
    ("BSD", "Redistribution and use in source and binary forms"),
    ("ISC", "Permission to use, copy, modify, and/or distribute"),
)
"""Texts that identify a licence file without a name."""


class InstalledPackage(Record):
    """An installed package, by its own metadata."""

    version: str | None = None
    licence: str | None = None


def find_environments(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield Python environments: those inside these folders, then the activated one, unless it was
    made for closeloop alone."""
    for folder in folders:
        for name in _ENVIRONMENT_FOLDERS:
            if (folder / name / "pyvenv.cfg").is_file():
                yield folder / name
    for variable in _ENVIRONMENT_VARIABLES:
        activated = Path(os.environ.get(variable, ""))
        is_environment = any((activated / mark).exists() for mark in ("pyvenv.cfg", "conda-meta"))
        if activated.is_absolute() and is_environment and not is_own_environment(activated):
            yield activated


def find_installed_package(
    folders: Sequence[Path], ecosystem: Ecosystem, name: str
) -> InstalledPackage | None:
    """Return the package if one of these folders has it installed and readable; else None."""
    is_npm_name = re.fullmatch(r"(?:@[\w.-]+/)?[\w.-]+", name) and ".." not in name
    for folder in folders if ecosystem == "npm" and is_npm_name else ():
        with suppress(OSError, ValueError, RecursionError, AttributeError):
            return _read_package_json(folder / "node_modules" / name)
    if ecosystem == "pypi":
        with suppress(OSError, ValueError, RecursionError, AttributeError):
            return _find_distribution(folders, name)
    return None


def _read_package_json(folder: Path) -> InstalledPackage:
    facts = msgspec.json.decode((folder / "package.json").read_bytes()[:200_000])
    licence, version = facts.get("license"), facts.get("version")
    return InstalledPackage(
        version=version if isinstance(version, str) else None,
        licence=licence[:80] if isinstance(licence, str) else None,
    )


def _find_distribution(folders: Sequence[Path], name: str) -> InstalledPackage | None:
    for environment in find_environments(folders):
        for ending, file in (("dist-info", "METADATA"), ("egg-info", "PKG-INFO")):
            for folder in environment.glob(f"lib/python3*/site-packages/*.{ending}"):
                stem = re.sub(r"[-_.]+", "-", folder.name.partition("-")[0]).lower()
                if stem == name and folder.is_dir():
                    return _read_metadata(folder, file)
    return None


def _read_metadata(folder: Path, file: str) -> InstalledPackage:
    head = (folder / file).read_text("utf-8", "replace")[:_MAX_METADATA_CHARS].partition("\n\n")[0]
    version = re.search(r"^Version:\s*(\S{1,80})", head, re.MULTILINE)
    licence_line = re.search(r"^License-Expression:\s*(.{1,80})$", head, re.MULTILINE) or re.search(
        r"^License:\s*(.{1,80})$", head, re.MULTILINE
    )
    classifier = re.search(r"^Classifier: License ::.*:: (.{1,80})$", head, re.MULTILINE)
    match = licence_line or classifier
    licence = match[1].strip() if match else None
    if licence is None or licence.upper() == "UNKNOWN":
        licence = _licence_of_text(folder)
    return InstalledPackage(version=version[1] if version else None, licence=licence)


def _licence_of_text(folder: Path) -> str | None:
    """Identify the licence by the text of its file, if the metadata names none."""
    for path in sorted(folder.rglob("*LICEN[CS]E*"))[:3]:
        text = path.read_text("utf-8", "replace")[:3_000]
        for name, phrase in _LICENCE_TEXTS:
            if phrase in text:
                return name
    return None


_COPYLEFT = compile_lazily(r"\b(?:A|L)?GPL|GNU (?:Affero |Lesser )?General Public", re.IGNORECASE)
_LOWEST_VERSION = compile_lazily(r"(?<![<!\d.])[=^~>v]*\s*(\d[\w.+-]*)")
_YOUNG = timedelta(days=30)
_ABANDONED = timedelta(days=3 * 365)
_LOCAL = compile_lazily(r"^(?:\.{1,2}(?:/|$)|file:|link:|workspace)")


class DependencyChange(Record):
    """One difference in the dependencies."""

    name: str
    path: str
    new: bool
    """Whether it is new; else it is another version of an existing one."""
    text: str
    warnings: tuple[str, ...] = ()
    package: PackageQuery | None = None
    """None if it is not a package of a registry: code from elsewhere, a script."""


def find_dependency_changes(
    inspection: Inspection, cache: Path | None = None
) -> tuple[list[DependencyChange], list[Unmeasured]]:
    """Compare both sides of every changed manifest."""
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
            changes += _compare_manifests(inspection, file.path, before, after)
    advisories: list[Advisory] = []
    if settings.advisories and changes:
        try:
            advisories += read_advisories(sides.root / settings.advisories)
        except BadInput as fault:
            unread.append(Unmeasured(rule="advisories", reason=str(fault)))
    report = PackageReport()
    if settings.online:
        report = ask_services(
            [change.package for change in changes if change.package], settings, cache
        )
    advisories += report.advisories
    now = datetime.now(UTC)
    changes = [_add_package_facts(change, advisories, report, now) for change in changes]
    return changes, [*unread, *report.unknown]


def _compare_manifests(
    inspection: Inspection, path: str, before: Manifest | None, after: Manifest
) -> Iterator[DependencyChange]:
    sides: ChangeSides = inspection.sides
    old = before.dependencies if before else {}
    for name, dependency in after.dependencies.items():
        previous = old.get(name)
        if previous == dependency:
            continue
        installed = (
            find_installed_package(inspection.installed, after.ecosystem, name)
            if not previous
            else None
        )
        if previous is None:
            warnings = tuple(
                _dependency_warnings(sides, path, after.ecosystem, dependency, installed)
            )
            text = f"adds the dependency `{name}`" + (
                f" {dependency.version}" if dependency.version else ""
            )
            if installed and installed.licence:
                text += f" ({installed.licence})"
        else:
            new_version, old_version = (
                side.origin or side.version or "any" for side in (dependency, previous)
            )
            warnings = (
                tuple(_origin_warnings(dependency)) if dependency.origin != previous.origin else ()
            )
            text = f"changes `{name}` to {new_version}, was {old_version}"
        yield DependencyChange(
            name=name,
            path=path,
            new=previous is None,
            text=text,
            warnings=warnings,
            package=_identify_package(after.ecosystem, dependency, installed, previous is None),
        )
    for hook, command in after.scripts.items():
        if (before.scripts if before else {}).get(hook) != command:
            text = f"runs `{command[:80]}` on {hook}"
            yield DependencyChange(
                name=hook, path=path, new=True, text=text, warnings=("it runs on install",)
            )


def _identify_package(
    ecosystem: Ecosystem, dependency: Dependency, installed: InstalledPackage | None, new: bool
) -> PackageQuery | None:
    """Build the query with the installed version, else the lowest that the manifest accepts."""
    if dependency.origin and not _LOCAL.match(dependency.origin):
        return None
    lowest = _LOWEST_VERSION.search(dependency.version)
    version = installed.version if installed and installed.version else None
    return PackageQuery(
        ecosystem=ecosystem,
        name=dependency.name,
        version=version or (lowest[1] if lowest else None),
        new=new,
        public=not dependency.origin and not _LOCAL.match(dependency.version),
    )


def _dependency_warnings(
    sides: ChangeSides,
    path: str,
    ecosystem: Ecosystem,
    dependency: Dependency,
    installed: InstalledPackage | None,
) -> Iterator[str]:
    if (like := imitated_package(ecosystem, dependency.name)) and not dependency.origin:
        yield f"its name differs by one letter from `{like}`"
    yield from _origin_warnings(dependency)
    if not dependency.version and not dependency.origin and not _has_lockfile(sides, path):
        yield "no version is given, and there is no lock file"
    if installed and installed.licence and _COPYLEFT.search(installed.licence):
        yield f"its licence is {installed.licence}"


def _add_package_facts(
    change: DependencyChange, advisories: Sequence[Advisory], report: PackageReport, now: datetime
) -> DependencyChange:
    """Add the package's age and vulnerabilities to the change."""
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
            warnings.append(f"its first release is less than {_YOUNG.days} days old")
        if now - newest > _ABANDONED:
            warnings.append("there was no release for 3 years")
    return msgspec.structs.replace(change, text=text, warnings=tuple(warnings))


def _known_vulnerabilities(advisories: Sequence[Advisory], package: PackageQuery) -> Iterator[str]:
    advisory_ids = list_vulnerabilities(
        advisories, package.ecosystem, package.name, package.version
    )
    if advisory_ids:
        suffix = f" and {len(advisory_ids) - 3} more" if len(advisory_ids) > 3 else ""
        version_text = f"version {package.version}" if package.version else "some version of it"
        yield f"{', '.join(advisory_ids[:3])}{suffix} affects {version_text}"


def _origin_warnings(dependency: Dependency) -> Iterator[str]:
    if dependency.origin and not _LOCAL.match(dependency.origin):
        yield f"it comes from {dependency.origin[:100]}, not from the registry"


def _has_lockfile(sides: ChangeSides, path: str) -> bool:
    folder = posixpath.dirname(path)
    return any(
        is_lockfile(other_path) and posixpath.dirname(other_path) in (folder, "")
        for other_path in sides.tree("after")
    )
