"""A folder to look at, and what was found there."""

from __future__ import annotations

import configparser
import fnmatch
import json
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Any

from closeloop.records.record import Record

MAX_MANIFEST_BYTES = 1 << 20


class ProjectCommand(Record):
    """One command and the file that told us."""

    line: str
    source: str


class DetectedProject(Record):
    """What one kind of project, in one folder, is worked on with."""

    kind: str
    setup: tuple[ProjectCommand, ...] = ()
    test: ProjectCommand | None = None
    lint: ProjectCommand | None = None
    types: ProjectCommand | None = None
    build: ProjectCommand | None = None


class ManifestFolder:
    """A folder's manifests, read once. What cannot be read or parsed counts as not there."""

    def __init__(self, path: Path, files: tuple[str, ...]) -> None:
        self.path = path
        self.files = files
        """Paths of the files in it and below, from the folder."""
        self._known = frozenset(files)
        self._texts: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def find_first(self, *names: str) -> str | None:
        """The first of the names (globs) that is there."""
        for name in names:
            if name in self._known:
                return name
            if "*" in name:
                found = fnmatch.filter((path for path in self.files if "/" not in path), name)
                if found:
                    return min(found)
        return None

    def read_text(self, name: str) -> str:
        if name not in self._texts:
            self._texts[name] = self._load_text(name)
        return self._texts[name]

    def _load_text(self, name: str) -> str:
        if name not in self._known:
            return ""
        try:
            with (self.path / name).open("rb") as opened:
                return opened.read(MAX_MANIFEST_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""

    def read_toml(self, name: str) -> dict[str, Any]:
        try:
            return tomllib.loads(self.read_text(name))
        except (tomllib.TOMLDecodeError, RecursionError):
            return {}

    def read_json(self, name: str) -> dict[str, Any]:
        try:
            value = json.loads(self.read_text(name) or "{}")
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def section_names(self, name: str) -> frozenset[str]:
        """The section names of an ini file."""
        return frozenset(self._parse_ini(name).sections())

    def read_section(self, name: str, section: str) -> dict[str, str]:
        """What one section of an ini file says."""
        parser = self._parse_ini(name)
        found = parser.items(section) if parser.has_section(section) else []
        return {key: value or "" for key, value in found}

    def _parse_ini(self, name: str) -> configparser.RawConfigParser:
        parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
        try:
            parser.read_string(self.read_text(name))
        except configparser.Error:
            return configparser.RawConfigParser()
        return parser

    @cached_property
    def pyproject(self) -> dict[str, Any]:
        return self.read_toml("pyproject.toml")


def nested_table(value: Any, *path: str) -> dict[str, Any]:
    """The table at a path, or an empty one: manifests need not have the shape we expect."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}
