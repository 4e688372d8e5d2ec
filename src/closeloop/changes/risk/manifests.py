"""Manifests: the dependencies that a project names, in any common ecosystem."""

from __future__ import annotations

import configparser
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any
from xml.etree import ElementTree

import msgspec

from closeloop.changes.risk.popular_packages import Ecosystem
from closeloop.records.record import Record

_MAX_MANIFEST_BYTES = 2_000_000
_REQUIREMENT = re.compile(
    r"\s*([A-Za-z0-9][\w.-]{0,100})\s*(?:\[[^\]]{0,200}\])?\s*(@\s*\S{1,500}|[^;#@]{0,300})"
)
_GO_REQUIREMENT = re.compile(
    r"^\s*(?:require\s+)?([\w.-]{1,80}\.[\w.-]{1,20}/\S{1,200}|[\w.-]+\.[a-z]+)\s+(v\S+)", re.M
)
_GO_REPLACE = re.compile(
    r"^\s*(?:replace\s+)?(\S{1,200})(?: v\S+)?\s+=>\s+(\S{1,300})(?:\s+(v\S+))?", re.M
)
_GRADLE_DEPENDENCY = re.compile(
    r"\b(\w*(?:[iI]mplementation|[aA]pi|[cC]ompileOnly|[rR]untimeOnly|classpath|kapt))\b"
    r"[\s(]{1,5}(?:platform\()?[\"']([\w.-]+:[\w.-]+)(?::([^\"'@]{1,80}))?"
)
_GEM_LINE = re.compile(r"^\s*gem\s*\(?\s*[\"']([\w.-]{1,100})[\"'](.{0,300})", re.M)
_INSTALL_HOOKS = (
    "preinstall",
    "install",
    "postinstall",
    "prepare",
    "pre-install-cmd",
    "post-install-cmd",
)


class Dependency(Record):
    """One line of a manifest."""

    name: str
    version: str = ""
    """As written; nothing where any will do."""
    origin: str | None = None
    """Where it comes from, where not from the ecosystem's registry."""


class Manifest(Record):
    """What one manifest asks for, by name."""

    ecosystem: Ecosystem
    dependencies: Mapping[str, Dependency] = {}
    scripts: Mapping[str, str] = {}
    """Commands that run when it is installed."""


def read_manifest(path: str, content: bytes) -> Manifest | None:
    """None for files that are no manifests; ValueError for one that cannot be read."""
    ecosystem_reader = _find_reader(PurePosixPath(path).name)
    if ecosystem_reader is None:
        return None
    if len(content) > _MAX_MANIFEST_BYTES:
        raise ValueError("it is too large")
    ecosystem, reader = ecosystem_reader
    try:
        text = content.decode("utf-8-sig")
        dependencies = {one.name: one for one in reader(text)}
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
    """A line as pip takes it."""
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
            one for one in _read_table(table, normalise_python_name) if one.name != "python"
        )


def _read_table(
    table: Mapping[str, Any], named: Callable[[str], str] = str
) -> Iterator[Dependency]:
    """`name = "1.0"` or `name = { version = …, git = … }`."""
    for name, wanted in table.items():
        facts = wanted if isinstance(wanted, dict) else {"version": wanted}
        local = facts.get("path")
        origin = facts.get("git") or facts.get("url") or (f"./{local}" if local else None)
        version = facts.get("version") or facts.get("rev") or facts.get("tag") or ""
        workspace = "workspace" if facts.get("workspace") else ""
        yield Dependency(
            name=named(facts.get("package") or name),
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
    places = [data, data.get("workspace", {}), *data.get("target", {}).values()]
    for place in places:
        for kind in ("dependencies", "dev-dependencies", "build-dependencies"):
            yield from _read_table(place.get(kind, {}))


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
    for name, rest in _GEM_LINE.findall(text):
        origin = re.search(r"\b(?:git|github|path):\s*[\"']([^\"']{1,300})", rest)
        version = re.match(r"\s*,\s*[\"']([^\"']{1,80})[\"']", rest)
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
