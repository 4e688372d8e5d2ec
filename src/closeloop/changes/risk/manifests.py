"""What a manifest asks for: the dependencies that a project names, in any common ecosystem."""

from __future__ import annotations

import configparser
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Literal
from xml.etree import ElementTree

import msgspec

from closeloop.model.record import Record

Ecosystem = Literal["pypi", "npm", "go", "crates", "maven", "rubygems", "packagist"]
_BYTES = 2_000_000
_REQUIREMENT = re.compile(
    r"\s*([A-Za-z0-9][\w.-]{0,100})\s*(?:\[[^\]]{0,200}\])?\s*(@\s*\S{1,500}|[^;#@]{0,300})"
)
_GO = re.compile(
    r"^\s*(?:require\s+)?([\w.-]{1,80}\.[\w.-]{1,20}/\S{1,200}|[\w.-]+\.[a-z]+)\s+(v\S+)", re.M
)
_GO_REPLACE = re.compile(
    r"^\s*(?:replace\s+)?(\S{1,200})(?: v\S+)?\s+=>\s+(\S{1,300})(?:\s+(v\S+))?", re.M
)
_GRADLE = re.compile(
    r"\b(\w*(?:[iI]mplementation|[aA]pi|[cC]ompileOnly|[rR]untimeOnly|classpath|kapt))\b"
    r"[\s(]{1,5}(?:platform\()?[\"']([\w.-]+:[\w.-]+)(?::([^\"'@]{1,80}))?"
)
_GEM = re.compile(r"^\s*gem\s*\(?\s*[\"']([\w.-]{1,100})[\"'](.{0,300})", re.M)
_HOOKS = ("preinstall", "install", "postinstall", "prepare", "pre-install-cmd", "post-install-cmd")


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
    found = _reader(PurePosixPath(path).name)
    if found is None:
        return None
    if len(content) > _BYTES:
        raise ValueError("it is too large")
    ecosystem, reader = found
    try:
        text = content.decode("utf-8-sig")
        dependencies = {one.name: one for one in reader(text)}
        scripts = _scripts(text) if PurePosixPath(path).suffix == ".json" else {}
    except (ValueError, TypeError, AttributeError, RecursionError, *_FAULTS) as error:
        raise ValueError(f"it cannot be parsed ({error})"[:200]) from None
    return Manifest(ecosystem=ecosystem, dependencies=dependencies, scripts=scripts)


_FAULTS = (ElementTree.ParseError, configparser.Error, msgspec.MsgspecError)
Reader = Callable[[str], Iterator[Dependency]]


def _reader(name: str) -> tuple[Ecosystem, Reader] | None:
    if re.fullmatch(r"(?:.*-)?(?:requirements|constraints).*\.(?:txt|in)", name):
        return "pypi", _requirements
    return _READERS.get(name)


def requirement(text: str) -> Dependency | None:
    """A line as pip takes it."""
    if origin := re.search(r"\b(?:git|hg)\+\S{1,500}|\bhttps?://\S{1,500}", text):
        name = re.search(r"#egg=([\w.-]+)", text) or re.match(r"\s*([\w.-]+)[^@]{0,200}@", text)
        fallback = origin[0].rstrip("/").rsplit("/", 1)[-1].removesuffix(".git")
        return Dependency(name=python_name(name[1] if name else fallback), origin=origin[0])
    matched = _REQUIREMENT.match(text)
    if not matched or text.lstrip().startswith("-"):
        return None
    return Dependency(name=python_name(matched[1]), version=matched[2].strip(" ()"))


def python_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirements(text: str) -> Iterator[Dependency]:
    for line in re.sub(r"\\\n", " ", text).splitlines():
        bare = re.sub(r"(?:^|\s)#.*|^\s*(?:-e|--editable)\s+", "", line).split(" --", 1)[0]
        if bare.strip() and (found := requirement(bare)):
            yield found


def _all(lines: Any) -> Iterator[Dependency]:
    for line in lines or ():
        if isinstance(line, str) and (found := requirement(line)):
            yield found


def _pyproject(text: str) -> Iterator[Dependency]:
    data = tomllib.loads(text)
    project = data.get("project", {})
    yield from _all(project.get("dependencies"))
    for group in (project.get("optional-dependencies", {}), data.get("dependency-groups", {})):
        for lines in group.values():
            yield from _all(lines)
    yield from _all(data.get("build-system", {}).get("requires"))
    poetry = data.get("tool", {}).get("poetry", {})
    tables = [poetry.get("dependencies", {}), poetry.get("dev-dependencies", {})]
    tables += [group.get("dependencies", {}) for group in poetry.get("group", {}).values()]
    for table in tables:
        yield from (one for one in _table(table, python_name) if one.name != "python")


def _table(table: Mapping[str, Any], named: Callable[[str], str] = str) -> Iterator[Dependency]:
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


def _setup_cfg(text: str) -> Iterator[Dependency]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.read_string(text)
    if parser.has_section("options"):
        for option in ("install_requires", "setup_requires", "tests_require"):
            yield from _all(parser.get("options", option, fallback="").splitlines())
    if parser.has_section("options.extras_require"):
        for _, lines in parser.items("options.extras_require"):
            yield from _all(lines.splitlines())


def _json_tables(*names: str) -> Reader:
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


def _scripts(text: str) -> dict[str, str]:
    scripts = msgspec.json.decode(text).get("scripts") or {}
    return {name: str(scripts[name]) for name in _HOOKS if name in scripts}


def _go_mod(text: str) -> Iterator[Dependency]:
    text = re.sub(r"//.*", "", text)
    text = re.sub(
        r"^(?:exclude|retract|module|go|toolchain)\b(?:\s*\([^)]*\)|.*)", "", text, flags=re.M
    )
    for name, version in _GO.findall(re.sub(r"^.*=>.*$", "", text, flags=re.M)):
        yield Dependency(name=name, version=version)
    for name, origin, version in _GO_REPLACE.findall(text):
        yield Dependency(name=f"{name} (replaced)", version=version, origin=origin)


def _cargo(text: str) -> Iterator[Dependency]:
    data = tomllib.loads(text)
    places = [data, data.get("workspace", {}), *data.get("target", {}).values()]
    for place in places:
        for kind in ("dependencies", "dev-dependencies", "build-dependencies"):
            yield from _table(place.get(kind, {}))


def _pom(text: str) -> Iterator[Dependency]:
    root = ElementTree.fromstring(text)  # noqa: S314  expat bounds entities, and the size is bounded above
    for element in root.iter():
        if element.tag.rsplit("}", 1)[-1] not in ("dependency", "plugin"):
            continue
        facts = {child.tag.rsplit("}", 1)[-1]: (child.text or "").strip() for child in element}
        if facts.get("artifactId"):
            name = f"{facts.get('groupId', '')}:{facts['artifactId']}"
            # Without a version the parent's dependencyManagement pins it.
            yield Dependency(name=name, version=facts.get("version", "managed"))


def _gradle(text: str) -> Iterator[Dependency]:
    for _, name, version in _GRADLE.findall(text):
        yield Dependency(
            name=name, version="" if version in ("+", "latest.release") else version or "managed"
        )


def _gemfile(text: str) -> Iterator[Dependency]:
    for name, rest in _GEM.findall(text):
        origin = re.search(r"\b(?:git|github|path):\s*[\"']([^\"']{1,300})", rest)
        version = re.match(r"\s*,\s*[\"']([^\"']{1,80})[\"']", rest)
        yield Dependency(
            name=name, version=version[1] if version else "", origin=origin[1] if origin else None
        )


_NPM = ("dependencies", "devDependencies", "peerDependencies", "optionalDependencies")
_READERS: dict[str, tuple[Ecosystem, Reader]] = {
    "pyproject.toml": ("pypi", _pyproject),
    "setup.cfg": ("pypi", _setup_cfg),
    "package.json": ("npm", _json_tables(*_NPM)),
    "go.mod": ("go", _go_mod),
    "Cargo.toml": ("crates", _cargo),
    "pom.xml": ("maven", _pom),
    "build.gradle": ("maven", _gradle),
    "build.gradle.kts": ("maven", _gradle),
    "Gemfile": ("rubygems", _gemfile),
    "composer.json": ("packagist", _json_tables("require", "require-dev")),
}
