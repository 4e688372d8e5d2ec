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

from closeloop.changes.file_kinds import is_test_file, language_of
from closeloop.changes.names.near_names import find_nearest_name, find_slips
from closeloop.changes.names.suspect_names import NameUse, Suspect
from closeloop.records.inspection import Inspection

MAX_FILES = 2000
MAX_LINE_CHARS = 2000
_SHELL_FILES = re.compile(
    r"(.*/)?((GNU)?[Mm]akefile|(Docker|Container|just|Just|Proc)file[^/]*|[^/]*\.(sh|bash|mk|ya?ml))"
)
_SETTINGS_FILES = re.compile(r"(.*/)?[^/]*\.(toml|ya?ml|cfg|ini)")
_DEFINED_OPTION = re.compile(rb"--(?:no-)?([a-zA-Z][\w-]*)")
_GIVEN_OPTION = re.compile(r"(?:^|[\s\"'])--([a-zA-Z][\w-]*)")
_COMMAND_END = re.compile(r"\s--\s|[|;&]|\s#")
_KEY = re.compile(r"\s*[\"']?([A-Za-z][\w-]*)[\"']?\s*[=:]")
_TABLE = re.compile(r"\s*\[+\s*([^\]]+?)\s*\]+")
_CONSOLE_SCRIPT = re.compile(rb"[\"'\s]([\w.-]+)\s*=\s*[\w.]+:\w+")
_STANDARD_OPTIONS = frozenset({"help", "version"})


def find_unknown_flags(inspection: Inspection) -> Iterator[Suspect]:
    """What added lines give to the project's own commands, and these do not know."""
    project = _ProjectCommands(inspection)
    for file in inspection.files:
        added = inspection.added.get(file.path, frozenset())
        shell = _SHELL_FILES.fullmatch(file.path) is not None
        settings = _SETTINGS_FILES.fullmatch(file.path) is not None
        if not added or not (shell or settings or language_of(file.path)):
            continue
        content = inspection.sides.read("after", file.path) or b""
        lines = content.decode("utf-8", "replace").split("\n")
        table = ""
        for number, line in enumerate(lines, 1):
            if settings and (heading := _TABLE.match(line)):
                table = heading[1]
            if number in added and len(line) <= MAX_LINE_CHARS:
                if shell or language_of(file.path):
                    yield from project.check_options(file.path, number, line, shell)
                if settings:
                    yield from project.check_keys(file.path, number, line, table)


class _ProjectCommands:
    """What the project's commands are called, and what they take."""

    def __init__(self, inspection: Inspection) -> None:
        self.inspection = inspection

    def check_options(self, path: str, number: int, line: str, shell: bool) -> Iterator[Suspect]:
        if "--" not in line:
            return
        for command, rest in self._find_calls(line, shell):
            for option in _GIVEN_OPTION.findall(rest):
                if not self._accepts_option(option) and (
                    near := find_nearest_name(option, self.known_options)
                ):
                    yield _make_option_suspect(path, number, f"--{option}", f"--{near}", command)

    def check_keys(self, path: str, number: int, line: str, table: str) -> Iterator[Suspect]:
        """Settings in the project's own table or file."""
        own = PurePosixPath(path).stem.lstrip(".") in self.command_names or any(
            re.fullmatch(rf"tool\.{re.escape(name)}(\..*)?", table) for name in self.command_names
        )
        key = _KEY.match(line) if own else None
        if key is None or self._is_known_name(key[1]):
            return
        index = self.inspection.index
        near_names = find_slips(key[1].replace("-", "_"), lambda name: bool(index.defined(name)))
        if near_names:
            yield _make_option_suspect(path, number, key[1], near_names[0], None)

    @cached_property
    def command_names(self) -> frozenset[str]:
        read = self.inspection.sides.read
        commands: set[str] = set()
        pyproject = _parse_toml(read("after", "pyproject.toml"))
        for tables in (("project", "scripts"), ("tool", "poetry", "scripts")):
            commands.update(_nested_table(pyproject, *tables))
        package = _parse_json(read("after", "package.json"))
        named = package.get("bin")
        commands.update(named if isinstance(named, dict) else ())
        if isinstance(named, str) and isinstance(package.get("name"), str):
            commands.add(package["name"].rpartition("/")[2])
        commands.update(_read_console_scripts(read("after", "setup.cfg")))
        setup = read("after", "setup.py") or b""
        if b"console_scripts" in setup:
            commands.update(
                one.decode("utf-8", "replace") for one in _CONSOLE_SCRIPT.findall(setup)
            )
        commands.update(_cargo_binaries(_parse_toml(read("after", "Cargo.toml"))))
        return frozenset(commands)

    @cached_property
    def known_options(self) -> frozenset[str]:
        """Every option that a source file of the project spells out, tests left out."""
        options: set[bytes] = set()
        sides = self.inspection.sides
        wanted = (path for path in self.inspection.index.paths() if not is_test_file(path))
        for _, path in zip(range(MAX_FILES), wanted, strict=False):
            content = sides.read("after", path) or b""
            if path not in self.inspection.added:
                options.update(_DEFINED_OPTION.findall(content))
            else:
                added = self.inspection.added[path]
                for number, line in enumerate(content.split(b"\n"), 1):
                    if number not in added or b"subprocess" not in line:
                        options.update(_DEFINED_OPTION.findall(line))
        return frozenset(one.decode("utf-8", "replace") for one in options)

    def _find_calls(self, line: str, shell: bool) -> Iterator[tuple[str, str]]:
        """Own commands in a line, each with what it is given."""
        for command in self.command_names:
            quoted = r"[\"']" if not shell else r"(?:^|[\s\"'/`(])"
            after = r"[\"']\s*," if not shell else r"(?=\s)"
            for match in re.finditer(quoted + re.escape(command) + after, line):
                rest = line[match.end() :]
                end = _COMMAND_END.search(rest) if shell else None
                yield command, rest[: end.start()] if end else rest

    def _accepts_option(self, option: str) -> bool:
        plain = option.removeprefix("no-")
        return (
            plain in self.known_options or option in _STANDARD_OPTIONS or self._is_known_name(plain)
        )

    def _is_known_name(self, name: str) -> bool:
        snake = name.replace("-", "_")
        first, *rest = snake.split("_")
        camel = first + "".join(word.capitalize() for word in rest)
        index = self.inspection.index
        return any(index.known(one) for one in (snake, camel, camel[:1].upper() + camel[1:]))


def _make_option_suspect(path: str, line: int, text: str, near: str, where: str | None) -> Suspect:
    use = NameUse(path=path, line=line, language="python", text=text, kind="option")
    return Suspect(use=use, near=near, where=where, certain=where is not None)


def _parse_toml(content: bytes | None) -> dict[str, Any]:
    try:
        return tomllib.loads((content or b"").decode("utf-8", "replace"))
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


def _parse_json(content: bytes | None) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _nested_table(table: Any, *names: str) -> dict[str, Any]:
    for name in names:
        table = table.get(name) if isinstance(table, dict) else None
    return table if isinstance(table, dict) else {}


def _read_console_scripts(setup: bytes | None) -> Iterator[str]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string((setup or b"").decode("utf-8", "replace"))
        listed = parser.get("options.entry_points", "console_scripts", fallback="")
    except configparser.Error:
        return
    yield from (line.partition("=")[0].strip() for line in listed.splitlines() if "=" in line)


def _cargo_binaries(cargo: dict[str, Any]) -> Iterator[str]:
    listed = cargo.get("bin")
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict) and isinstance(one.get("name"), str):
            yield one["name"]
