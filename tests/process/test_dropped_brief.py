"""dropped-brief: what was asked, and did not reach the sub-agent."""

from __future__ import annotations

from typing import Any

import pytest
from rules import found

from closeloop.records.finding import Finding, Unmeasured
from closeloop.records.task import Task

ASKED = "Add a `total` column to the export in app/export.py. Do not touch app/ledger.py."
LANES = {"child": "root"}
EXPORT = {"path": "app/export.py", "before": "a = 1", "after": "a = 2"}


def findings(
    asked: str, brief: str, *work: dict[str, Any], after: tuple[Any, ...] = (), **known: Any
) -> list[Finding]:
    events = [
        {"user": asked},
        {"handoff": {"brief": brief, "child": "child", "report": "Done."}},
        *({"lane": "child", **one} for one in (work or ({"edit": EXPORT},))),
        *after,
    ]
    said = found("dropped-brief", events, lanes=LANES, **known)
    assert not isinstance(said, Unmeasured), said
    return list(said)


def planted(*facts: str) -> Task:
    return Task(id="t", prompt="", facts=facts)


def test_each_handoff_must_hold_each_planted_fact() -> None:
    events = [
        {"user": "12.50 EUR, on hold"},
        {"handoff": {"brief": "It costs 12.50 EUR, unless they are ON HOLD."}},
        {"handoff": {"brief": "It costs 12.50 USD; there is a hold-up."}},
    ]
    (finding,) = found("dropped-brief", events, task=planted("12.50 EUR", "on hold"))
    assert finding.events == (3,)
    assert finding.confidence == 1.0
    assert "2 of 2" in finding.message
    assert "12.50 EUR" in finding.message


def test_with_planted_facts_nothing_else_is_asked_for() -> None:
    brief = "Add a `total` column to the export in app/export.py; it is 5 EUR."
    assert findings(ASKED, brief, task=planted("5 EUR")) == []


def test_a_prohibition_that_was_left_out_and_broken_cites_the_edit() -> None:
    work = {"edit": {"path": "/proj/app/ledger.py", "before": "a", "after": "b"}}
    (finding,) = findings(ASKED, "Add a `total` column to the export in app/export.py.", work)
    assert finding.events == (2, 3)
    assert finding.confidence > 0.9
    assert "violated it" in finding.message


def test_a_prohibition_on_a_file_beside_those_of_the_brief_must_not_be_left_out() -> None:
    (finding,) = findings(ASKED, "Add a `total` column to app/export.py.")
    assert finding.events == (2,)
    assert "app/ledger.py" in finding.message


@pytest.mark.parametrize(
    "brief",
    [
        "Add a `total` column to app/export.py. Leave app/ledger.py alone.",
        "Add a `total` column to app/export.py and change nothing else.",
        "Only edit app/export.py: add a `total` column.",
    ],
)
def test_a_prohibition_in_other_words_is_there(brief: str) -> None:
    assert findings(ASKED, brief) == []


def test_a_prohibition_on_another_part_of_the_project_is_not_beyond_doubt() -> None:
    asked = "Restyle the page in web/page.css. Do not touch db/schema.sql."
    work = {"edit": {"path": "web/page.css", "before": "a", "after": "b"}}
    assert findings(asked, "Make the page in web/page.css blue.", work) == []


def test_who_only_reads_needs_no_restriction_on_edits() -> None:
    brief = "Find out how app/export.py makes its columns."
    assert findings(ASKED, brief, {"read": {"path": "app/export.py", "text": "a = 1"}}) == []


def test_what_the_sub_agent_reads_itself_was_not_lost() -> None:
    read = {"read": {"path": "TASK.md", "text": ASKED}}
    assert findings(ASKED, "Do app/export.py as TASK.md says.", read, {"edit": EXPORT}) == []


def test_what_the_sub_agent_was_told_beside_the_brief_counts_as_brief() -> None:
    told = {"user": "Rules for all: never edit app/ledger.py."}
    assert findings(ASKED, "Add a `total` column to app/export.py.", told, {"edit": EXPORT}) == []


def test_not_committing_is_the_affair_of_the_parent() -> None:
    asked = "Add a `total` column to the export in app/export.py. Do not commit."
    assert findings(asked, "Add a `total` column to the export in app/export.py.") == []


def test_a_number_that_is_asked_for_must_not_be_left_out() -> None:
    asked = "The session cookie must expire 45 minutes after the last request."
    brief = "Let the session cookie expire after the last request, and test it."
    (finding,) = findings(asked, brief)
    assert "45 minutes" in finding.message


@pytest.mark.parametrize(
    "asked",
    [
        "Fix the crash of the session cookie that is described in issue 1234.",
        "The session cookie expired 45 minutes after the last request.",
    ],
)
def test_a_number_that_is_only_told_may_be_left_out(asked: str) -> None:
    assert (
        findings(asked, "Fix the crash: the session cookie expired after the last request.") == []
    )


PARSER = (
    "Write a date parser in src/dates.py. Never fall back to local time; 10,000 dates in under "
    "50 ms."
)
DATES = {"edit": {"path": "src/dates.py", "action": "create", "after": "def parse(): ..."}}


def test_requirements_of_the_part_that_is_handed_on_must_not_be_left_out() -> None:
    (finding,) = findings(PARSER, "Write a date parser in src/dates.py.", DATES)
    assert "50 ms" in finding.message
    assert "local time" in finding.message


@pytest.mark.parametrize(
    "asked",
    [
        "Add src/dates.py with `parse_date`. It must never fall back to local time.",
        "We need `parse_date` in src/dates.py that never falls back to local time.",
        "Write `parse_date` in src/dates.py without using the local time zone.",
        "Write `parse_date` in src/dates.py. It must not raise on empty input.",
        "Write `parse_date` in src/dates.py. Don't swallow errors of the parser.",
        "Write `parse_date` in src/dates.py.\n\nRules:\n- no new dependencies",
    ],
)
def test_a_requirement_may_stand_in_many_words(asked: str) -> None:
    assert len(findings(asked, "Create `parse_date` in src/dates.py.", DATES)) == 1


@pytest.mark.parametrize(
    ("asked", "brief"),
    [
        (PARSER, "Write a parser of dates in src/dates.py. No local time! 10000 dates in 50ms."),
        (PARSER, "In src/dates.py write a date parser. Read docs/dates.md first. " + "So " * 40),
        (PARSER, "Review the date parser in src/dates.py."),
        ("Write `parse_date` in src/dates.py. I don't know which zone it uses.",
         "Write `parse_date` in src/dates.py."),
        ("`parse_date` in src/dates.py is slow: it took more than 30 s. Fix it.",
         "Fix `parse_date` in src/dates.py, it is slow."),
        ("Write `parse_date` in src/dates.py. You must ask me before you add a package.",
         "Write `parse_date` in src/dates.py."),
        ("Write `parse_date` in src/dates.py. Write docs/dates.md; it must be short.",
         "Write `parse_date` in src/dates.py."),
    ],
)  # fmt: skip
def test_what_is_told_otherwise_or_is_no_affair_of_the_part_is_not_missing(
    asked: str, brief: str
) -> None:
    assert findings(asked, brief, DATES) == []


def test_what_another_sub_agent_is_told_the_parent_has_split_off() -> None:
    asked = "Write `parse_date` in src/dates.py. It must be tested with at least 20 zones."
    other = {"handoff": {"brief": "Test `parse_date` with at least 20 zones.", "report": "Done."}}
    brief = "Write `parse_date` in src/dates.py."
    assert len(findings(asked, brief, DATES)) == 1
    assert findings(asked, brief, DATES, after=(other,)) == []


def test_what_a_client_puts_into_the_users_words_was_not_asked() -> None:
    asked = (
        "<command-message>go</command-message>\n<system-reminder>You must never answer in more "
        "than 4 lines.</system-reminder>\nWrite `parse_date` in src/dates.py, for all the zones."
    )
    brief = "Write `parse_date` in src/dates.py, for all the zones."
    assert findings(asked, brief, DATES) == []


def test_only_what_was_asked_last_counts_with_its_answers() -> None:
    events = [
        {"user": "Only look around and tell me about the classes. Do not edit app/ledger.py."},
        {"say": "It has two classes."},
        {"user": "Good. Now add a `total` column to the export in app/export.py and the ledger."},
        {"ask": "Which ledger?"},
        {"user": "The new one.", "intent": "answer"},
        {"handoff": {"brief": "Add a `total` column to app/export.py.", "child": "child"}},
        {"lane": "child", "edit": EXPORT},
    ]
    assert found("dropped-brief", events, lanes=LANES) == []


def test_a_sub_agent_that_is_not_on_record_is_judged_by_its_brief() -> None:
    events = [{"user": ASKED}, {"handoff": {"brief": "Add a `total` column to app/export.py."}}]
    assert len(found("dropped-brief", events)) == 1


def test_the_task_says_what_was_asked_where_the_trace_does_not() -> None:
    events = [{"handoff": {"brief": "Add a `total` column to app/export.py."}}]
    assert len(found("dropped-brief", events, task=Task(id="t", prompt=ASKED))) == 1
    said = found("dropped-brief", events)
    assert isinstance(said, Unmeasured)
    assert "the request" in said.reason


@pytest.mark.parametrize("events", [[], [{"user": "Hello"}], [{"lane": "lost", "say": "Hi"}]])
def test_without_a_handoff_nothing_is_lost(events: list[Any]) -> None:
    assert found("dropped-brief", events) == []
