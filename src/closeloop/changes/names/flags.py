"""Options and settings that the project's own command line does not have.

Only commands that the repository itself defines are looked at, and only what nobody ever wrote
down is told, where something much like it was.
"""

from __future__ import annotations

import configparser
import re
import tomllib
from collections.abc import Iterator
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

import msgspec

from closeloop.changes.kinds import is_test, language_of
from closeloop.changes.names.near import nearest, slips
from closeloop.changes.names.suspects import Suspect, Use
from closeloop.model.inspection import Inspection

MOST_FILES = 2000
LONGEST_LINE = 2000
_SHELLS = re.compile(
    r"(.*/)?((GNU)?[Mm]akefile|(Docker|Container|just|Just|Proc)file[^/]*|[^/]*\.(sh|bash|mk|ya?ml))"
)
_SETTINGS = re.compile(r"(.*/)?[^/]*\.(toml|ya?ml|cfg|ini)")
_OPTION = re.compile(rb"--(?:no-)?([a-zA-Z][\w-]*)")
_GIVEN = re.compile(r"(?:^|[\s\"'])--([a-zA-Z][\w-]*)")
_END = re.compile(r"\s--\s|[|;&]|\s#")
_KEY = re.compile(r"\s*[\"']?([A-Za-z][\w-]*)[\"']?\s*[=:]")
_TABLE = re.compile(r"\s*\[+\s*([^\]]+?)\s*\]+")
_SCRIPT = re.compile(rb"[\"'\s]([\w.-]+)\s*=\s*[\w.]+:\w+")
_ALWAYS = frozenset({"help", "version"})


def unknown_flags(inspection: Inspection) -> Iterator[Suspect]:
    """What added lines give to the project's own commands, and these do not know."""
    project = _Project(inspection)
    for file in inspection.files:
        added = inspection.added.get(file.path, frozenset())
        shell = _SHELLS.fullmatch(file.path) is not None
        settings = _SETTINGS.fullmatch(file.path) is not None
        if not added or not (shell or settings or language_of(file.path)):
            continue
        content = inspection.sides.read("after", file.path) or b""
        lines = content.decode("utf-8", "replace").split("\n")
        table = ""
        for number, line in enumerate(lines, 1):
            if settings and (heading := _TABLE.match(line)):
                table = heading[1]
            if number in added and len(line) <= LONGEST_LINE:
                if shell or language_of(file.path):
                    yield from project.options(file.path, number, line, shell)
                if settings:
                    yield from project.keys(file.path, number, line, table)


class _Project:
    """What the project's commands are called, and what they take."""

    def __init__(self, inspection: Inspection) -> None:
        self.inspection = inspection

    def options(self, path: str, number: int, line: str, shell: bool) -> Iterator[Suspect]:
        if "--" not in line:
            return
        for command, rest in self._calls(line, shell):
            for option in _GIVEN.findall(rest):
                if not self._takes(option) and (near := nearest(option, self.defined)):
                    yield _suspect(path, number, f"--{option}", f"--{near}", command)

    def keys(self, path: str, number: int, line: str, table: str) -> Iterator[Suspect]:
        """Settings in the project's own table or file."""
        own = PurePosixPath(path).stem.lstrip(".") in self.commands or any(
            re.fullmatch(rf"tool\.{re.escape(name)}(\..*)?", table) for name in self.commands
        )
        found = _KEY.match(line) if own else None
        if found is None or self._is_known(found[1]):
            return
        index = self.inspection.index
        near = slips(found[1].replace("-", "_"), lambda name: bool(index.defined(name)))
        if near:
            yield _suspect(path, number, found[1], near[0], None)

    @cached_property
    def commands(self) -> frozenset[str]:
        read = self.inspection.sides.read
        found: set[str] = set()
        pyproject = _toml(read("after", "pyproject.toml"))
        for tables in (("project", "scripts"), ("tool", "poetry", "scripts")):
            found.update(_inside(pyproject, *tables))
        package = _json(read("after", "package.json"))
        named = package.get("bin")
        found.update(named if isinstance(named, dict) else ())
        if isinstance(named, str) and isinstance(package.get("name"), str):
            found.add(package["name"].rpartition("/")[2])
        found.update(_declared(read("after", "setup.cfg")))
        setup = read("after", "setup.py") or b""
        if b"console_scripts" in setup:
            found.update(one.decode("utf-8", "replace") for one in _SCRIPT.findall(setup))
        found.update(_binaries(_toml(read("after", "Cargo.toml"))))
        return frozenset(found)

    @cached_property
    def defined(self) -> frozenset[str]:
        """Every option that a source file of the project spells out, tests left out."""
        found: set[bytes] = set()
        sides = self.inspection.sides
        wanted = (path for path in self.inspection.index.paths() if not is_test(path))
        for _, path in zip(range(MOST_FILES), wanted, strict=False):
            content = sides.read("after", path) or b""
            if path not in self.inspection.added:
                found.update(_OPTION.findall(content))
            else:
                added = self.inspection.added[path]
                for number, line in enumerate(content.split(b"\n"), 1):
                    if number not in added or b"subprocess" not in line:
                        found.update(_OPTION.findall(line))
        return frozenset(one.decode("utf-8", "replace") for one in found)

    def _calls(self, line: str, shell: bool) -> Iterator[tuple[str, str]]:
        """Own commands in a line, each with what it is given."""
        for command in self.commands:
            quoted = r"[\"']" if not shell else r"(?:^|[\s\"'/`(])"
            after = r"[\"']\s*," if not shell else r"(?=\s)"
            for found in re.finditer(quoted + re.escape(command) + after, line):
                rest = line[found.end() :]
                end = _END.search(rest) if shell else None
                yield command, rest[: end.start()] if end else rest

    def _takes(self, option: str) -> bool:
        plain = option.removeprefix("no-")
        return plain in self.defined or option in _ALWAYS or self._is_known(plain)

    def _is_known(self, name: str) -> bool:
        snake = name.replace("-", "_")
        first, *rest = snake.split("_")
        camel = first + "".join(word.capitalize() for word in rest)
        index = self.inspection.index
        return any(index.known(one) for one in (snake, camel, camel[:1].upper() + camel[1:]))


def _suspect(path: str, line: int, text: str, near: str, where: str | None) -> Suspect:
    use = Use(path=path, line=line, language="python", text=text, kind="option")
    return Suspect(use=use, near=near, where=where, certain=where is not None)


def _toml(content: bytes | None) -> dict[str, Any]:
    try:
        return tomllib.loads((content or b"").decode("utf-8", "replace"))
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


def _json(content: bytes | None) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _inside(table: Any, *names: str) -> dict[str, Any]:
    for name in names:
        table = table.get(name) if isinstance(table, dict) else None
    return table if isinstance(table, dict) else {}


def _declared(setup: bytes | None) -> Iterator[str]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string((setup or b"").decode("utf-8", "replace"))
        listed = parser.get("options.entry_points", "console_scripts", fallback="")
    except configparser.Error:
        return
    yield from (line.partition("=")[0].strip() for line in listed.splitlines() if "=" in line)


def _binaries(cargo: dict[str, Any]) -> Iterator[str]:
    listed = cargo.get("bin")
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict) and isinstance(one.get("name"), str):
            yield one["name"]
