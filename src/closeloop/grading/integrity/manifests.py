"""Manifests of packages: what an agent may change in them, without what steers the tests.

The sections that decide how tests are found and run come from the base, all else from the agent.
Texts are cut into sections, and the result is read again: where it does not say what it should,
the base's text is taken whole.
"""

from __future__ import annotations

import configparser
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any

from closeloop.records.record import Record

LARGEST_STATEMENT_LINES = 1_000
_PACKAGE_KEYS = ("scripts", "jest", "mocha", "vitest", "ava", "tap", "nyc", "c8", "babel")
_PYPROJECT_TABLES = re.compile(
    r"tool\.(?:pytest|coverage|tox|nox|hatch\.envs|pdm\.scripts|poe|taskipy)(?:\.|$)"
)
_CARGO_TABLES = re.compile(
    r"(?:test|bench|profile\.(?:test|bench)|(?:target\.[^.]+\.)?dev-dependencies|patch|replace)"
    r"(?:\.|$)"
)
"""Also what tests are built with: a library of assertions is one of these dependencies."""
_CARGO_KEYS = {
    "lib": ("test", "harness", "doctest", "bench"),
    "package": ("build", "autotests", "autobenches"),
}
_SETUP_SECTIONS = re.compile(r"tool:pytest|pytest|aliases|test|unittest|tox(?::.*)?|coverage:.*")
_TOML_HEADER = re.compile(r"\s*\[")
_INI_HEADER = re.compile(r"\[([^]]*)\]")

Tables = dict[str, Any]


class TomlStatement(Record):
    """A header or one `key = value` of a TOML file, with the comments above it."""

    table: str
    """The one that it stands in or begins: `tool.pytest.ini_options`."""
    key: str | None
    """None for a header."""
    text: str


def restore_manifest(path: str, agent_text: str, base_text: str) -> str:
    """The agent's manifest with all that steers tests as it is in the base.

    The base's text whole where the agent's cannot be read, or does not come out as it must.
    """
    restore = _RESTORERS.get(PurePosixPath(path).name)
    if restore is None:
        return base_text
    try:
        return restore(agent_text, base_text)
    except (ValueError, TypeError, AttributeError, RecursionError, configparser.Error):
        return base_text


def _restore_package(agent_text: str, base_text: str) -> str:
    agent, base = json.loads(agent_text), json.loads(base_text)
    if _chosen(agent, _PACKAGE_KEYS) == _chosen(base, _PACKAGE_KEYS):
        return agent_text
    restored = {
        key: base[key] if key in _PACKAGE_KEYS else value
        for key, value in agent.items()
        if key not in _PACKAGE_KEYS or key in base
    }
    restored |= _chosen(base, _PACKAGE_KEYS)
    indent = re.search(r"\n([ \t]+)\"", agent_text)
    text = json.dumps(restored, indent=indent[1] if indent else None, ensure_ascii=False)
    return text + "\n" * agent_text.endswith("\n")


def _chosen(tables: Tables, keys: tuple[str, ...]) -> Tables:
    return {key: tables[key] for key in keys if key in tables}


def _restore_pyproject(agent_text: str, base_text: str) -> str:
    return _restore_toml(agent_text, base_text, _PYPROJECT_TABLES, {})


def _restore_cargo(agent_text: str, base_text: str) -> str:
    restored = _restore_toml(agent_text, base_text, _CARGO_TABLES, _CARGO_KEYS)
    return restored if _targets(restored) == _targets(base_text) else base_text


def _targets(text: str) -> dict[str, Tables]:
    """Which programs of a crate are tested, and by their own harness."""
    tables = tomllib.loads(text)
    named = [(kind, table) for kind in ("bin", "example") for table in tables.get(kind, ())]
    chosen = {
        f"{kind} {table.get('name')}": _chosen(table, ("test", "harness")) for kind, table in named
    }
    return {name: keys for name, keys in chosen.items() if keys}


def _restore_toml(
    agent_text: str, base_text: str, tables: re.Pattern[str], keys: dict[str, tuple[str, ...]]
) -> str:
    agent, base = tomllib.loads(agent_text), tomllib.loads(base_text)
    if _split(agent, tables, keys)[0] == _split(base, tables, keys)[0]:
        return agent_text
    kept: list[str] = []
    base_statements = list(_read_statements(base_text))
    for statement in _read_statements(agent_text):
        if tables.match(statement.table) or statement.key in keys.get(statement.table, ()):
            continue
        kept.append(statement.text)
        if statement.key is None:
            kept += [
                other.text
                for other in base_statements
                if other.table == statement.table and other.key in keys.get(other.table, ())
            ]
    steering = [one.text for one in base_statements if tables.match(one.table)]
    text = "".join((*(_ended(part) for part in kept), *(_ended(part) for part in steering)))
    steers, rest = _split(tomllib.loads(text), tables, keys)
    is_right = steers == _split(base, tables, keys)[0] and rest == _split(agent, tables, keys)[1]
    return text if is_right else base_text


def _ended(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"


def _read_statements(text: str) -> Iterator[TomlStatement]:
    """The statements of a TOML file that is known to be right, in order."""
    table, pending = "", list[str]()
    for line in text.splitlines(keepends=True):
        pending.append(line)
        if len(pending) > LARGEST_STATEMENT_LINES:
            raise ValueError("a statement of too many lines")
        try:
            value = tomllib.loads("".join(pending))
        except tomllib.TOMLDecodeError:
            continue
        if not value:
            continue
        key = None if _TOML_HEADER.match(_first_code_line(pending)) else next(iter(value))
        table = _path_of(value) if key is None else table
        yield TomlStatement(table=table, key=key, text="".join(pending))
        pending = []
    if pending:
        yield TomlStatement(table=table, key="", text="".join(pending))


def _first_code_line(lines: list[str]) -> str:
    return next(line for line in lines if line.strip() and not line.lstrip().startswith("#"))


def _path_of(value: Any) -> str:
    """The dotted name of the one table that a header begins."""
    names = []
    while value:
        if isinstance(value, list):
            value = value[0]
        elif isinstance(value, dict):
            name, value = next(iter(value.items()))
            names.append(name)
        else:
            break
    return ".".join(names)


def _split(
    tables: Tables, pattern: re.Pattern[str], keys: dict[str, tuple[str, ...]]
) -> tuple[Tables, Tables]:
    """What steers tests, by dotted name, and everything else."""
    steering: Tables = {}

    def strip(value: Tables, above: str) -> Tables:
        rest: Tables = {}
        for name, part in value.items():
            path = f"{above}.{name}" if above else name
            if pattern.match(path) or name in keys.get(above, ()):
                steering[path] = part
            elif isinstance(part, dict):
                if inner := strip(part, path):
                    rest[name] = inner
            else:
                rest[name] = part
        return rest

    rest = strip(tables, "")
    return steering, rest


def _restore_setup(agent_text: str, base_text: str) -> str:
    agent, base = _read_setup(agent_text), _read_setup(base_text)
    if _steering(agent) == _steering(base):
        return agent_text
    parts = [
        text for name, text in _cut_setup(agent_text) if not _SETUP_SECTIONS.fullmatch(name.strip())
    ]
    parts += [
        text for name, text in _cut_setup(base_text) if _SETUP_SECTIONS.fullmatch(name.strip())
    ]
    text = "".join(map(_ended, parts))
    restored = _read_setup(text)
    others = {
        name: part for name, part in agent.items() if not _SETUP_SECTIONS.fullmatch(name.strip())
    }
    is_right = restored == {**others, **_steering(base)}
    return text if is_right else base_text


def _read_setup(text: str) -> Tables:
    parser = configparser.ConfigParser(interpolation=None, default_section="\0")
    parser.read_string(text)
    return {name: dict(parser[name]) for name in parser.sections()}


def _steering(sections: Tables) -> Tables:
    return {
        name: part for name, part in sections.items() if _SETUP_SECTIONS.fullmatch(name.strip())
    }


def _cut_setup(text: str) -> Iterator[tuple[str, str]]:
    name, lines = "", list[str]()
    for line in text.splitlines(keepends=True):
        if header := _INI_HEADER.match(line):
            yield name, "".join(lines)
            name, lines = header[1], []
        lines.append(line)
    yield name, "".join(lines)


_RESTORERS: dict[str, Callable[[str, str], str]] = {
    "package.json": _restore_package,
    "pyproject.toml": _restore_pyproject,
    "setup.cfg": _restore_setup,
    "Cargo.toml": _restore_cargo,
}
