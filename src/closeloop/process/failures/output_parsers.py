"""Which module reads which tool's output."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol

from ahocorasick_rs import AhoCorasick, Implementation

from closeloop.process.failures import (
    cargo_output,
    ctest_output,
    go_output,
    java_output,
    jest_output,
    junit_xml_output,
    launch_errors,
    linter_json,
    mocha_output,
    php_output,
    playwright_output,
    pytest_output,
    ruby_output,
    source_places,
    tap_output,
    traceback_output,
    unittest_output,
    vitest_output,
)
from closeloop.process.failures.failure_collector import FailureCollector
from closeloop.records.trace_steps import CheckFailures


class OutputParser(Protocol):
    """What each of these modules has."""

    @property
    def marks(self) -> tuple[str, ...]: ...
    def read_verdict(self, text: str, /) -> bool | None: ...
    def collect_failures(self, text: str, found: FailureCollector, /) -> None: ...


PARSERS_BY_NAME: dict[str, OutputParser] = {
    "pytest": pytest_output,
    "unittest": unittest_output,
    "jest": jest_output,
    "vitest": vitest_output,
    "playwright": playwright_output,
    "mocha": mocha_output,
    "tap": tap_output,
    "go": go_output,
    "cargo": cargo_output,
    "java": java_output,
    "ruby": ruby_output,
    "php": php_output,
    "ctest": ctest_output,
    "junit-xml": junit_xml_output,
    "json": linter_json,
    "places": source_places,
    "traceback": traceback_output,
    "launch": launch_errors,
}
"""In the order in which an unknown tool's output is tried: the more telling first."""

_TOOLS_BY_PARSER = {
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
_PARSER_BY_TOOL = {tool: name for name, tools in _TOOLS_BY_PARSER.items() for tool in tools.split()}


def find_parser_name(tool: str) -> str | None:
    """The name of the parser for a tool such as `go test`; None for one that runs others."""
    first = tool.partition(" ")[0]
    return first if first in PARSERS_BY_NAME else _PARSER_BY_TOOL.get(first)


def recognise_parsers(text: str) -> list[str]:
    """The parsers whose marks the output bears."""
    search, owners = _build_mark_search()
    marks = set(search.find_matches_as_strings("\n" + text, overlapping=True))
    if not marks:
        return []
    parser_names = {name for mark in marks for name in owners[mark]}
    return [name for name in PARSERS_BY_NAME if name in parser_names]


@cache
def _build_mark_search() -> tuple[AhoCorasick, dict[str, list[str]]]:
    """What finds all marks at once, and whose each of them is."""
    owners: dict[str, list[str]] = {}
    for name, parser in PARSERS_BY_NAME.items():
        for mark in parser.marks:
            owners.setdefault(mark, []).append(name)
    return AhoCorasick(list(owners), implementation=Implementation.DFA), owners


def run_parsers(text: str, names: Sequence[str], *, warnings: bool) -> CheckFailures | None:
    """What those parsers find, together."""
    collector = FailureCollector()
    parser = ""
    for name in names:
        before = len(collector.errors)
        PARSERS_BY_NAME[name].collect_failures(text, collector)
        parser = parser or (name if len(collector.errors) > before else "")
    return collector.build_failures(parser or (names[0] if names else ""), warnings=warnings)


def find_failures(
    text: str, names: Sequence[str], *, warnings: bool = True
) -> CheckFailures | None:
    """What those parsers find; where that is nothing, the first other one that finds any."""
    if failures := run_parsers(text, names, warnings=warnings):
        return failures
    for name in recognise_parsers(text):
        if name not in names and (failures := run_parsers(text, [name], warnings=warnings)):
            return failures
    return None
