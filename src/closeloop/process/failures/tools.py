"""Which module reads which tool's output."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol

from ahocorasick_rs import AhoCorasick, Implementation

from closeloop.model.steps import Failures
from closeloop.process.failures import (
    cargo,
    ctest,
    go,
    java,
    jest,
    junit_xml,
    launch,
    mocha,
    php,
    places,
    playwright,
    pytest,
    reports,
    ruby,
    tap,
    traceback,
    unittest,
    vitest,
)
from closeloop.process.failures.found import Found


class Parser(Protocol):
    """What each of these modules has."""

    @property
    def marks(self) -> tuple[str, ...]: ...
    def verdict(self, text: str, /) -> bool | None: ...
    def gather(self, text: str, found: Found, /) -> None: ...


NAMED: dict[str, Parser] = {
    "pytest": pytest,
    "unittest": unittest,
    "jest": jest,
    "vitest": vitest,
    "playwright": playwright,
    "mocha": mocha,
    "tap": tap,
    "go": go,
    "cargo": cargo,
    "java": java,
    "ruby": ruby,
    "php": php,
    "ctest": ctest,
    "junit-xml": junit_xml,
    "json": reports,
    "places": places,
    "traceback": traceback,
    "launch": launch,
}
"""In the order in which an unknown tool's output is tried: the more telling first."""

_OF_TOOL = {
    "unittest": "django nose nose2 nosetests runtests stestr trial",
    "pytest": "py.test",
    "mocha": "cypress",
    "tap": "ava node",
    "go": "gotestsum",
    "cargo": "clippy nextest",
    "java": "dotnet gradle gradlew maven mvn",
    "ruby": "minitest rails rake rspec",
    "php": "paratest pest phpunit",
    "ctest": "gtest",
    "traceback": "compileall py_compile",
    "places": (
        "basedpyright biome black c++ cc clang clang++ clang-tidy cppcheck dmypy eslint flake8 g++ "
        "gcc gfortran golangci-lint isort javac kotlinc mypy nvcc oxlint phpstan psalm pycodestyle "
        "pydocstyle pylint pyre pyrefly pyright revive rubocop ruff rustc scalac shellcheck "
        "standard staticcheck stylelint swiftc tsc tslint ty vue-tsc xo yamllint zig"
    ),
}
_PARSERS = {tool: name for name, tools in _OF_TOOL.items() for tool in tools.split()}


def parser_of(tool: str) -> str | None:
    """The name of the parser for a tool such as `go test`; None for one that runs others."""
    first = tool.partition(" ")[0]
    return first if first in NAMED else _PARSERS.get(first)


def recognised(text: str) -> list[str]:
    """The parsers whose marks the output bears."""
    search, owners = _marks()
    marks = set(search.find_matches_as_strings("\n" + text, overlapping=True))
    if not marks:
        return []
    there = {name for mark in marks for name in owners[mark]}
    return [name for name in NAMED if name in there]


@cache
def _marks() -> tuple[AhoCorasick, dict[str, list[str]]]:
    """What finds all marks at once, and whose each of them is."""
    owners: dict[str, list[str]] = {}
    for name, parser in NAMED.items():
        for mark in parser.marks:
            owners.setdefault(mark, []).append(name)
    return AhoCorasick(list(owners), implementation=Implementation.DFA), owners


def failures_of(text: str, names: Sequence[str], *, warnings: bool) -> Failures | None:
    """What those parsers find, together."""
    found = Found()
    parser = ""
    for name in names:
        before = len(found.errors)
        NAMED[name].gather(text, found)
        parser = parser or (name if len(found.errors) > before else "")
    return found.told(parser or (names[0] if names else ""), warnings=warnings)


def failures_in(text: str, names: Sequence[str], *, warnings: bool = True) -> Failures | None:
    """What those parsers find; where that is nothing, the first other one that finds any."""
    if told := failures_of(text, names, warnings=warnings):
        return told
    for name in recognised(text):
        if name not in names and (told := failures_of(text, [name], warnings=warnings)):
            return told
    return None
