"""The report as other tools read it: SARIF, JUnit, GitLab, a check run, a terminal."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console

from closeloop.changes.report_formats import (
    REPORT_FORMATS,
    build_check_run,
    build_code_quality,
    build_sarif,
    check_run_output,
    parse_place,
    render_report,
    render_terminal_report,
)
from closeloop.records.change import ChangeReport, FixingResult, ToolRun
from closeloop.records.errors import BadInput
from closeloop.records.finding import Finding
from report_example import BAD, BLOBS, CHANGE, CLEAN, RULES, finding

SCHEMA = Path(__file__).resolve().parents[3] / "shared" / "sarif" / "sarif-schema-2.1.0.json"
ODD = "\x00\x1b[31m \ud800 \uffff & < > \" ' ]]> \u202e"
MENDED = replace(BAD, mending=FixingResult(tries=2, patch="/cache/mended/1f.patch"))
LEFT = replace(BAD, mending=FixingResult(tries=1, left=BAD.tools[:1], note="it ran out of time"))
EVENTS = Finding(rule="spiral", version=1, severity="warning", message="Six rounds.", events=(4, 9))


def odd() -> ChangeReport:
    """Signs that break formats, in every text."""
    return replace(
        BAD,
        title=ODD,
        reasons=(ODD,),
        findings=(finding(ODD, f"{ODD}.py:3"), finding(ODD, None), finding(ODD, "a b/ü.py")),
        tools=(ToolRun(name=ODD, command=ODD, after="failed", broke=(ODD,), output=ODD, note=ODD),),
    )


def test_a_format_that_does_not_exist_is_named_with_those_that_do():
    with pytest.raises(BadInput, match="Did you mean 'sarif'"):
        render_report("sarfi", BAD)


@pytest.mark.parametrize("format_", REPORT_FORMATS)
@pytest.mark.parametrize(
    "report", [BAD, CLEAN, odd(), MENDED, ChangeReport(change=CHANGE, title="", verdict="pass")]
)
def test_every_report_can_be_written_to_a_file(format_: str, report: ChangeReport):
    assert render_report(format_, report, RULES).encode().endswith(b"\n")


# Places


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("src/a.py:12", "src/a.py", 12),
        ("src/a.py", "src/a.py", None),
        ("a:b.py:3", "a:b.py", 3),
        ("a.py:0", "a.py", None),
        ("a.py:12345678901", "a.py:12345678901", None),
        ("new\nline.py:3", "new\nline.py", 3),
    ],
)
def test_a_place_is_a_path_and_perhaps_a_line(text: str, path: str, line: int | None):
    assert (parse_place(text).path, parse_place(text).line) == (path, line)


# SARIF


def check_sarif(made: dict[str, Any]) -> dict[str, Any]:
    """The essentials of SARIF 2.1.0, and what GitHub asks for beyond them."""
    assert made["version"] == "2.1.0"
    assert made["$schema"].startswith("https://")
    (run,) = made["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"]
    names = [rule["id"] for rule in driver["rules"]]
    assert len(names) == len(set(names))
    for result in run["results"]:
        assert result["message"]["text"]
        assert result["level"] in ("error", "warning", "note", "none")
        assert names[result["ruleIndex"]] == result["ruleId"]
        assert all(isinstance(value, str) for value in result["partialFingerprints"].values())
        for location in result["locations"]:
            physical = location["physicalLocation"]
            uri = physical["artifactLocation"]["uri"]
            assert uri
            assert uri.isascii()
            assert not uri.startswith("/")
            assert not set(uri) & set(' <>"\\^`{|}')
            assert physical.get("region", {}).get("startLine", 1) >= 1
        for suppression in result.get("suppressions", []):
            assert suppression["kind"] in ("inSource", "external")
    return run


@pytest.mark.parametrize("report", [BAD, CLEAN, odd()])
def test_sarif_has_what_its_readers_need(report: ChangeReport):
    check_sarif(json.loads(render_report("sarif", report, RULES)))


def test_sarif_places_findings_and_keeps_what_is_silenced_apart():
    run = check_sarif(json.loads(render_report("sarif", BAD, RULES)))
    first, second, third, silenced = run["results"]
    place = {"artifactLocation": {"uri": "tally/days.py"}, "region": {"startLine": 30}}
    assert first["locations"] == [{"physicalLocation": place}]
    assert [one["level"] for one in (first, second, third)] == ["warning", "error", "note"]
    assert silenced["suppressions"] == [{"kind": "external", "justification": "we mean it"}]
    assert "odd-name" in [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    (invocation,) = run["invocations"]
    notes = [one["message"]["text"] for one in invocation["toolExecutionNotifications"]]
    assert notes == [
        "unknown-name: tally/odd.py cannot be parsed",
        "coverage: there is no coverage data",
    ]


def test_sarif_names_the_events_of_an_attempt():
    (result,) = check_sarif(build_sarif([("1a2b", EVENTS)], ()))["results"]
    (location,) = result["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "attempts/1a2b"
    names = [one["fullyQualifiedName"] for one in location["logicalLocations"]]
    assert names == ["1a2b#4", "1a2b#9"]
    assert result["properties"]["events"] == [4, 9]


@pytest.mark.skipif(not SCHEMA.is_file(), reason="the published schema is not beside the checkout")
@pytest.mark.parametrize("report", [BAD, CLEAN, odd()])
def test_sarif_keeps_to_the_published_schema(report: ChangeReport):
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(
        json.loads(render_report("sarif", report, RULES)), json.loads(SCHEMA.read_text())
    )


# JUnit


def suites(report: ChangeReport) -> dict[str, ElementTree.Element]:
    text = render_report("junit", report)
    assert not set(text) & set("\ufffe\uffff"), "no XML may hold these"
    root = ElementTree.fromstring(text)
    assert root.tag == "testsuites"
    for element in (root, *root):
        counts = Counter(child.tag for child in element.iter())
        assert int(element.attrib["tests"]) == counts["testcase"]
        assert int(element.attrib["failures"]) == counts["failure"]
        assert int(element.attrib["errors"]) == counts["error"]
    for case in root.iter("testcase"):
        assert case.attrib.keys() >= {"name", "classname"}
        assert {child.tag for child in case} <= {"failure", "error", "skipped", "system-out"}
    return {suite.attrib["name"]: suite for suite in root}


def marks(suite: ElementTree.Element) -> list[tuple[str, str | None]]:
    return [(case.attrib["name"], next((one.tag for one in case), None)) for case in suite]


def test_junit_blames_the_change_for_what_it_did_and_for_nothing_else():
    found = suites(BAD)
    assert marks(found["test"]) == [("tests/test_days.py::test_leap_year", "failure")]
    assert marks(found["lint"]) == [("tally/cli.py:3 F401", "skipped"), ("ruff check .", "skipped")]
    assert [mark for _, mark in marks(found["findings"])] == ["failure", "system-out", "system-out"]
    assert marks(found["verdict"]) == [("main..feature", "failure")]


@pytest.mark.parametrize(
    ("before", "after", "mark"),
    [
        ("passed", "passed", None),
        ("failed", "passed", None),
        (None, "failed", "failure"),
        ("passed", "timed out", "error"),
        ("passed", "inert", "error"),
        ("passed", "machine trouble", "error"),
        ("inert", "inert", "skipped"),
        ("failed", "failed", "skipped"),
    ],
)
def test_junit_tells_what_did_not_run_from_what_failed(before: Any, after: Any, mark: str | None):
    tool = ToolRun(name="test", command="pytest", before=before, after=after)
    assert marks(suites(replace(CLEAN, tools=(tool,)))["test"]) == [("pytest", mark)]


@given(st.text(st.characters(exclude_categories=())))
def test_junit_is_xml_whatever_a_test_is_called(text: str):
    tool = ToolRun(name=text, command=text, after="failed", broke=(text,), output=text)
    suites(replace(BAD, tools=(tool,), title=text))


def test_junit_is_xml_with_every_odd_sign():
    assert suites(odd())


# GitLab


def test_gitlab_reads_this():
    assert build_code_quality(BAD)[0] == {
        "description": "`parse_day` does not exist in tally.days; did you mean `parse_date`?",
        "check_name": "hallucinated-api",
        "fingerprint": "8346885883bb3fe8e2d980481d405a86",
        "severity": "major",
        "location": {"path": "tally/days.py", "lines": {"begin": 12}},
    }


def test_gitlab_gets_every_finding_with_all_that_it_asks_for():
    for one in json.loads(render_report("gitlab", odd())):
        assert one.keys() == {"description", "check_name", "fingerprint", "severity", "location"}
        assert one["severity"] in ("info", "minor", "major", "critical", "blocker")
        assert not one["location"]["path"].startswith("./")
        assert one["location"]["lines"]["begin"] >= 1
    assert len(build_code_quality(odd())) == 3
    assert build_code_quality(CLEAN) == []


def prints(*findings: Finding) -> list[str]:
    return [one["fingerprint"] for one in build_code_quality(replace(BAD, findings=findings))]


def test_a_finding_stays_the_same_when_lines_move():
    before = finding("`f` is a copy of src/b.py:40.", "src/a.py:3")
    after = finding("`f` is a copy of src/b.py:52.", "src/a.py:9")
    assert prints(before) == prints(after)


def test_findings_are_not_taken_for_one_another():
    one, two = finding("x", "src/a.py:3"), finding("x", "src/a.py:9")
    other = [finding("y"), finding("x", "src/b.py:3"), finding("x", "src/a.py:3", rule="z")]
    assert len(set(prints(one, two, *other))) == 5
    assert set(prints(one)) < set(prints(one, two))


# A check run of GitHub


def test_a_check_run_keeps_to_what_github_takes():
    many = [finding("m" * 100_000, f"src/{n}.py:{n + 1}", rule="r" * 300) for n in range(120)]
    run = build_check_run(replace(BAD, title="t" * 9_000, findings=tuple(many)), blobs=BLOBS)
    assert len(run.annotations) == 120
    sizes = []
    for first in (0, 50, 100):
        made = check_run_output(run, first)
        assert len(made["title"]) <= 255
        assert len(made["summary"].encode()) <= 65_535
        sizes.append(len(made["annotations"]))
        for note in made["annotations"]:
            assert note["start_line"] == note["end_line"] >= 1
            assert note["annotation_level"] in ("notice", "warning", "failure")
            assert len(note["title"]) <= 255
            assert len(note["message"].encode()) <= 64 * 1024
    assert sizes == [50, 50, 20]


def test_a_check_run_shows_findings_at_their_lines():
    run = build_check_run(BAD)
    assert run.title == "Blocked: 1 newly failing in test; 1 error; 1 warning; risk high"
    assert run.annotations[0] == {
        "path": "tally/days.py",
        "start_line": 12,
        "end_line": 12,
        "annotation_level": "failure",
        "title": "hallucinated-api",
        "message": "`parse_day` does not exist in tally.days; did you mean `parse_date`?",
    }
    assert len(run.annotations) == 3


@pytest.mark.parametrize(
    ("verdict", "conclusion"), [("pass", "success"), ("warn", "neutral"), ("block", "failure")]
)
def test_a_verdict_is_a_conclusion(verdict: Any, conclusion: str):
    assert build_check_run(replace(BAD, verdict=verdict)).conclusion == conclusion


def test_a_finding_without_a_line_is_in_the_summary_only():
    report = replace(BAD, findings=(finding("Nowhere.", None), finding("A file.", "src/a.py")))
    run = build_check_run(report)
    assert run.annotations == ()
    assert "Nowhere." in run.summary
    assert "src/a.py" in run.summary


# What an agent mended


def test_what_an_agent_mended_is_told_wherever_there_is_a_place_for_it():
    added = "An agent fixed it in 2 tries: apply the fix with"
    assert f"{added} `git apply /cache/mended/1f.patch`." in printed(MENDED)
    assert f"{added} `git apply /cache/mended/1f.patch`." in render_report("markdown", MENDED)
    assert added in build_check_run(MENDED).summary
    (run,) = json.loads(render_report("sarif", MENDED))["runs"]
    assert run["properties"]["mended"] == "/cache/mended/1f.patch"
    assert 'name="mended" value="/cache/mended/1f.patch"' in render_report("junit", MENDED)


def test_what_an_agent_could_not_mend_is_documented():
    told_ = "An agent did not fix it in 1 try (it ran out of time); still worse than before: test."
    assert told_ in " ".join(printed(LEFT).split())
    page = render_report("markdown", LEFT)
    assert "Still broken after the agent's fix" in page


# A terminal


def printed(report: ChangeReport) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=100, markup=False, highlight=False, emoji=False)
    for part in render_terminal_report(report):
        console.print(part)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def test_a_terminal_shows_this():
    assert (
        printed(BAD)
        == """\
Blocked: 1 newly failing in test; 1 error; 1 warning; risk high
main..feature (2 files, +22 −13)

Risk high   12 % (8 % to 17 %) of changes of this size were reverted or fixed later, based on 900
changes
  Removes the public function `parse_date`.
  Larger than 83 % of changes.

Tools
       before  after
 test  passed  failed  12.2 s
 lint  failed  failed  0.3 s   1 failing before too
  broke  tests/test_days.py::test_leap_year
    E   assert 28 == 29
    1 failed, 41 passed in 0.3s

Findings
  error    tally/days.py:12  hallucinated-api  `parse_day` does not exist in tally.days; did you
mean `parse_date`?
  warning  tally/days.py:30  needless-copy  `leap` is a copy of `is_leap` in tally/calendar.py:40.
  info     tally/days.py:12  odd-name  `DoIt` is not named like the rest.
1 finding silenced.
not checked: unknown-name: tally/odd.py cannot be parsed
not checked: coverage: there is no coverage data\
"""
    )


def test_a_terminal_is_told_nothing_that_it_would_obey():
    text = printed(odd())
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\\u202e" in text
    assert "[31m" not in text, "colours are left out"


def test_a_terminal_shows_one_cause_once_and_the_tests_that_it_kept_from_running_in_a_line():
    names = tuple(f"shop/Test{number}" for number in range(40))
    test = replace(
        BAD.tools[0],
        after="not set up",
        broke=("shop: FAIL", *(f"{name}: did not run" for name in names)),
        lost=names,
        output="no route to the registry",
    )
    lint = replace(test, name="lint", broke=(), lost=())
    text = printed(replace(BAD, tools=(lint, test)))
    assert text.count("no route to the registry") == 1
    assert "  broke  shop: FAIL\n" in text
    line = "  broke  40 tests that no longer run, such as shop/Test0, shop/Test1, shop/Test2\n"
    assert line in text
    assert "did not run" not in text


def test_a_terminal_shows_the_first_of_many():
    many = tuple(finding(f"m{n}") for n in range(100))
    text = printed(replace(BAD, findings=many))
    assert "m39" in text
    assert "m40" not in text
    assert "… and 60 more" in text


def test_a_terminal_shows_few_of_many_that_fail_alike():
    alike = tuple(f"tests/test_days.py::test_{n}: AttributeError: no 'leap'" for n in range(30))
    other = ("tests/test_days.py::test_else: assert 1 == 2",)
    tool = replace(BAD.tools[0], broke=(*alike, *other), output="30 lines of a source file")
    text = printed(replace(BAD, tools=(tool,)))
    assert text.count("broke  ") == 4
    assert "… and 27 more: AttributeError: no 'leap'" in text
    assert "test_else: assert 1 == 2" in text
    assert "of a source file" not in text, "the messages say what is wrong"
