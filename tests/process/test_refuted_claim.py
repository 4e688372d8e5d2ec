"""refuted-claim: the user tried it, and it is not so."""

from __future__ import annotations

import pytest
from rules import edit, found, pytest_run

from closeloop.records.finding import Unmeasured

RULE = "refuted-claim"
ASK = {"user": "The menu does not close on a phone."}
DONE = {"say": "Done! The menu now closes properly."}


def refuted(*events: dict) -> list[tuple[int, ...]]:
    return [finding.events for finding in found(RULE, [ASK, edit("menu.js"), *events])]


def test_the_claim_is_cited_with_the_users_words() -> None:
    (finding,) = found(RULE, [ASK, edit("menu.js"), DONE, {"user": "Still doesn't work."}])
    assert finding.events == (3, 4)
    assert "Done!" in finding.message
    assert "Still doesn't work." in finding.message


def test_only_the_next_words_of_the_user_refute() -> None:
    other = {"user": "Make it blue."}
    assert refuted(DONE, other, edit("menu.css"), {"user": "doesn't work"}) == []
    blue = {"say": "Done, it is blue."}
    assert refuted(DONE, other, edit("a"), blue, {"user": "it is not working"}) == [(6, 7)]


def test_a_fault_must_be_one_of_what_was_claimed() -> None:
    assert refuted(DONE, {"user": "The menu does not close on my tablet, it is broken"}) == [(3, 4)]
    assert refuted(DONE, {"user": "the invoice export is failing since Monday"}) == []


@pytest.mark.parametrize(
    ("words", "refutes"),
    [
        ("That didn't fix it.", True),
        ("Yes, but it is still not working.", True),
        ("menu.js is still wrong", True),
        ("The menu is still there. Also make the header blue.", True),
        ("The invoice export is still broken.", False),
        ("You forgot the invoice export.", False),
        ("Separately, it doesn't work in Safari.", False),
        ("I see another issue: it is not working with a mouse.", False),
        ("The menu also doesn't work with a mouse.", False),
        ("You're right, that is wrong.", False),
        ("hey man, the app still crashes", True),
        ("That's not what I asked for.", True),
        ("Still doesn't work, maybe there's a step missing in the build?", True),
        ("Maybe it still doesn't work on Windows.", False),
        ("Rename the export. Write a log of the invoices. It's not working.", False),
    ],
)
def test_the_words_must_be_about_the_claim(words: str, refutes: bool) -> None:
    assert bool(refuted(DONE, {"user": words})) is refutes


def test_a_review_claims_nothing_that_can_be_refuted() -> None:
    review = [{"user": "Review the menu."}, {"say": "The menu is fixed. It works as expected."}]
    assert refuted(DONE, *review, {"user": "it doesn't work"}) == []


def test_checks_that_fail_refute_any_claim() -> None:
    assert refuted(pytest_run(), DONE, {"user": "the tests are failing on CI"}) == [(4, 5)]


@pytest.mark.parametrize(
    "words",
    [
        {"say": "I changed the menu, but could not try it."},
        {"say": "Shall I close it on touch?"},
        {"ask": "Which phone?"},
    ],
)
def test_where_nothing_is_claimed_nothing_is_refuted(words: dict) -> None:
    assert refuted(words, {"user": "Still doesn't work."}) == []


def test_a_stop_or_a_text_of_the_client_refutes_nothing() -> None:
    assert refuted(DONE, {"user": "it doesn't work", "intent": "interrupt"}) == []
    notice = "<task-notification>the tests are failing</task-notification>"
    assert refuted(DONE, {"user": notice}) == []


def test_without_words_of_the_user_nothing_can_be_said() -> None:
    assert isinstance(found(RULE, [edit()]), Unmeasured)
    assert isinstance(found(RULE, []), Unmeasured)
    assert found(RULE, [ASK]) == []
