"""ignored-return: a sub-agent says what is wrong, and nobody listens."""

from __future__ import annotations

from typing import Any

import pytest
from rules import edit, found, pytest_run

from closeloop.records.finding import Unmeasured

LANES = {"child": "root"}
CLAIM = {"claim": "The importer is ported. Everything is done."}
FAILS = "etl/importer.py is ported. 2 tests still fail because the fixture server is too old."


def findings(report: str | None, *after: dict[str, Any]) -> Any:
    events = [
        {"user": "Port the importer"},
        {"handoff": {"brief": "Port etl/importer.py", "child": "child", "report": report}},
        {"lane": "child", **edit("etl/importer.py")},
        *after,
    ]
    return found("ignored-return", events, lanes=LANES)


def test_a_reported_failure_that_nobody_takes_up_is_found() -> None:
    (finding,) = findings(FAILS, CLAIM)
    assert finding.events == (4, 2)
    assert "2 tests still fail" in finding.message
    assert "Everything is done" in finding.message


def test_a_parent_that_says_all_is_done_does_not_listen() -> None:
    report = "I was not told how long and assumed 24 hours. Tests were not written."
    (finding,) = findings(report, {"say": "All is done: sessions expire, with tests."})
    assert "All is done" in finding.message


@pytest.mark.parametrize(
    "report",
    [
        "Ported. I could not migrate the stored records: the database is locked.",
        "Ported, but unable to reach the staging database.",
        "Ported. Not done: the nightly job.",
        "3 failed, 12 passed.",
        "The rest is still broken.",
        "The nightly job could not be migrated.",
        "I did not run the linter on the nightly job.",
        "Ported. I was not told how long a session lasts and assumed 24 hours.",
        "Ported; tests were not written.",
        "Ported. No tests were added.",
        "Ported. Skipped the nightly job.",
        "Ported. I left the nightly job for later.",
        "There is a TODO for the nightly job.",
        "The nightly job remains to be ported.",
        "The brief does not say which zone the nightly job is in.",
        "The nightly job has not been tested.",
        "Ich konnte den Nachtlauf nicht umstellen.",
        "Ich habe 24 Stunden angenommen.",
        "Les tests n'ont pas été écrits.",
        "J'ai supposé une durée de 24 heures.",
        "No se escribieron pruebas.",
        "Supuse una duración de 24 horas.",
        "Não foram escritos testes.",
        "Non ho scritto i test.",
        "Тесты не написаны.",
        "没有编写测试。",
        "テストは書いていません。",
    ],
)
def test_gaps_are_reported_in_many_words(report: str) -> None:
    assert len(findings(report, CLAIM)) == 1


@pytest.mark.parametrize(
    "report",
    [
        "Ported; all 12 tests pass.",
        "test_pages was failing because of the page size; that is over. No tests fail now.",
        "Tests fail without this change and pass with it.",
        "0 failed, 12 passed.",
        "10 failed login attempts lock the account, as the importer expects.",
        "I did not find any other caller.",
        "I did not touch any other file.",
        "Users are blocked after five tries.",
        "It raises ValueError when a record could not be parsed.",
        "Progress bar: skipped as requested.",
        "Empty lines are detected and skipped.",
        "I did not add any new dependencies.",
        "The zone was not handled, which caused the bug.",
        "No TODOs remain; all 12 tests pass.",
        "Docs were not updated: out of scope.",
        "Arguments are taken from left to right, not fixed indexing.",
        "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it"
        " was a file edit, the new_string was NOT written to the file).",
    ],
)
def test_what_only_sounds_like_a_gap_is_none(report: str) -> None:
    assert findings(report, CLAIM) == []


@pytest.mark.parametrize(
    "after",
    [
        [pytest_run(), CLAIM],
        [
            {"read": "tests/fixture_server.py"},
            edit("tests/fixture_server.py", after="old = 2"),
            CLAIM,
        ],
        [{"claim": "The importer is ported. Two tests fail: the fixture server is too old."}],
        [{"handoff": {"brief": "Bring the fixture server up to date."}}, CLAIM],
        [{"say": "The fixture server is too old; I look at it next."}, CLAIM],
        [{"say": "I stop here."}],
        [],
    ],
)
def test_acting_on_it_telling_it_or_claiming_nothing_is_right(after: list[dict[str, Any]]) -> None:
    assert findings(FAILS, *after) == []


def test_what_an_explorer_says_of_the_code_is_no_caveat_of_its_own() -> None:
    events = [
        {"user": "How does it retry?"},
        {"handoff": {"brief": "Explore", "child": "child", "report": "The retry is not tested."}},
        {"lane": "child", "read": "etl/retry.py"},
        {"claim": "It retries three times. Done."},
    ]
    assert found("ignored-return", events, lanes=LANES) == []


def test_without_reports_nothing_can_be_said() -> None:
    assert isinstance(findings(None, CLAIM), Unmeasured)
    assert found("ignored-return", []) == []
    assert found("ignored-return", [CLAIM]) == []


UNWRITTEN = "etl/importer.py is ported. Tests were not written."


@pytest.mark.parametrize(
    "after",
    [
        [edit("tests/test_importer.py", after="def test_pages(): assert pages() == 3"), CLAIM],
        [{"handoff": {"brief": "Write tests for the importer."}}, CLAIM],
        [{"claim": "The importer is ported. There are no tests for it yet."}],
        [{"claim": "Ported."}, {"user": "Thanks! Now the next one, the exporter, please."}, CLAIM],
    ],
)
def test_tests_that_were_not_written_are_taken_up_by_writing_or_telling(
    after: list[dict[str, Any]],
) -> None:
    assert findings(UNWRITTEN, *after) == []


def test_a_run_of_other_tests_writes_none() -> None:
    (finding,) = findings(UNWRITTEN, pytest_run(), CLAIM)
    assert "Tests were not written" in finding.message


def test_praise_of_the_same_thing_passes_nothing_on() -> None:
    claim = {"claim": "The importer is complete: sessions work for as long as they last."}
    assumed = "Ported. I was not told how long sessions last and assumed 24 hours."
    assert len(findings(assumed, claim)) == 1
    said = {"claim": "The importer is ported. Sessions last 24 hours, please confirm."}
    assert findings(assumed, said) == []
