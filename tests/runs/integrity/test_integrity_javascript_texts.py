"""What probes of JavaScript tests consist of: names, commands, reports."""

from __future__ import annotations

import re

import pytest

from closeloop.runs.integrity.javascript import build_probe, read_results
from closeloop.runs.integrity.probe import ProbeRequest


def request(**changes: object) -> ProbeRequest:
    given = {
        "command": "npx jest",
        "runner": "jest",
        "fail_to_pass": ("a.test.js > adds",),
        "sources": {"a.test.js": "it('adds', () => { expect(1).toBe(1) })\n"},
        "folder": "/work/.probe",
        "root": "/work",
        "pipe": "/work/.probe/pipe",
        "token": "5eed",
    }
    return ProbeRequest(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"fail_to_pass": ("b.test.js > adds",)},
        {"fail_to_pass": ("a.test.js > subtracts",)},
        {"fail_to_pass": ("a.test.js",)},
        {"sources": {"a.test.js": "it('adds', () => { this is not JavaScript"}},
        {"sources": {"a.test.js": "it('adds', () => { expect(a).toMatchSnapshot('name') })"}},
        {"sources": {"a.test.js": "it.failing('adds', () => { expect(1).toBe(2) })"}},
        {"command": "make test"},
    ],
)
def test_no_probe_is_made_of_what_cannot_be_found_or_told(changes: dict[str, object]) -> None:
    assert build_probe(request()) is not None
    assert build_probe(request(**changes)) is None


def test_a_probe_is_the_same_for_the_same_token_and_another_for_another() -> None:
    first = build_probe(request())
    assert first == build_probe(request())
    other = build_probe(request(token="0ther"))
    assert first is not None
    assert other is not None
    assert not {test.name for test in first.tests} & {test.name for test in other.tests}
    assert {*first.files} & {*other.files} == {"a.test.js", ".probe/reporter.cjs"}


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("src/a.test.ts", r"src/\w{12}\.test\.ts"),
        ("src/a.unit.spec.js", r"src/\w{12}\.unit\.spec\.js"),
        ("lib/a_test.js", r"lib/\w{12}_test\.js"),
        ("lib/cartSpec.js", r"lib/\w{12}Spec\.js"),
        ("test/test-a.mjs", r"test/test-\w{12}\.mjs"),
        ("test.js", r"\w{12}\.test\.js"),
        ("test/cart.js", r"test/\w{12}\.js"),
    ],
)
def test_copies_are_named_so_that_the_same_patterns_find_them(path: str, pattern: str) -> None:
    text = "it('adds', () => { expect(1).toBe(1) })\n"
    probe = build_probe(request(fail_to_pass=(f"{path} > adds",), sources={path: text}))
    assert probe is not None
    copies = [name for name in probe.files if not name.startswith(".probe/") and name != path]
    assert len(copies) == 1
    assert re.fullmatch(pattern, copies[0]), copies


@pytest.mark.parametrize(
    ("runner", "command", "kept"),
    [
        ("jest", "A=1 npx jest -c j.js --coverage src -t x && echo", "A=1 npx jest -c j.js --rep"),
        ("jest", "cd a && yarn jest --watchAll b | cat", "cd a && yarn jest --reporters=/work/"),
        ("jest", "npx jest a -- b", "npx jest --reporters=/work/.probe/reporter.cjs"),
        ("vitest", "vitest run a --config v.ts --bail 1", "vitest run --config v.ts --run"),
        ("mocha", "mocha -r ts-node/register -R dot 't/*.ts'", "mocha -r ts-node/register --rep"),
        ("mocha", "mocha --spec a.js --exit > out b.js", "mocha --exit > out --reporter"),
        ("node", "node --import tsx --test a b", "node --import tsx --test --test-reporter="),
    ],
)
def test_launchers_and_settings_stay_while_files_and_filters_of_the_command_go(
    runner: str, command: str, kept: str
) -> None:
    probe = build_probe(request(runner=runner, command=command))
    assert probe is not None
    assert probe.command.startswith(kept), probe.command


def test_a_report_is_believed_only_whole_and_from_one_hand() -> None:
    good = b"5 begin\n5 passed a\n5 failed b\n5 end 2\n"
    assert read_results(good) == {"a": "passed", "b": "failed"}
    for bad in (
        b"",
        b"5 begin\n",
        good[:-1],
        good.replace(b"5 end 2\n", b""),
        good.replace(b"end 2", b"end 1"),
        good.replace(b"5 passed", b"6 passed"),
        good + good.replace(b"5", b"6"),
        good + b"{}\n",
        b"\xff\xff\n" + good,
    ):
        assert read_results(bad) == {}
    twice = b"5 begin\n5 passed a\n5 failed a\n5 passed b\n5 passed b\n5 end 4\n"
    assert read_results(twice) == {"a": "mixed", "b": "passed"}
