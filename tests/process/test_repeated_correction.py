"""repeated-correction: said twice, and heard neither time."""

from __future__ import annotations

import pytest
from rules import edit, found

from closeloop.records.finding import Unmeasured

RULE = "repeated-correction"
START = [{"user": "Add logging to the importer"}, edit()]


def _twice(first: str, second: str, **intent: str) -> object:
    said = [{"user": first, **intent}, edit(), {"user": second, **intent}]
    return found(RULE, [*START, *said])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("No, use the logging module, not print.", "I said use the logging module, not print!"),
        ("Don't put imports inside functions.", "Again: don't put the imports inside functions"),
        ("You forgot the German translation file.", "The German translation file is still wrong"),
    ],
)
def test_the_same_thing_twice(first: str, second: str) -> None:
    (finding,) = _twice(first, second)
    assert finding.events == (5, 3)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Don't use print in the importer.", "The date format should be ISO instead."),
        (
            "Please remove the retry loop from fetch.",
            "Please keep the retry loop in fetch instead.",
        ),
        ("Looks good, now the exporter too.", "Looks good, now the printer too."),
        ("No.", "No."),
        ("Still wrong, try again.", "Still wrong, try again."),
        (
            "$ pytest\nFAIL tests/test_a.py should pass",
            "$ pytest\nFAIL tests/test_a.py should pass",
        ),
        ("The user doesn't want to proceed with this tool use.",) * 2,
    ],
)
def test_what_is_no_repetition(first: str, second: str) -> None:
    assert _twice(first, second) == []


def test_a_marked_correction_needs_no_telling_words() -> None:
    first, second = "Importer logs belong in stderr", "Logs of the importer belong in stderr"
    assert len(_twice(first, second, intent="correction")) == 1


def test_a_message_that_was_only_sent_twice() -> None:
    again = {"user": "No, use the logging module, not print."}
    assert found(RULE, [*START, again, again]) == []


def test_the_request_pasted_again_is_no_correction() -> None:
    request = {"user": "Do not use print in the importer module, use logging."}
    assert found(RULE, [request, edit(), request]) == []


def test_without_words_of_the_user_nothing_can_be_said() -> None:
    assert isinstance(found(RULE, [edit()]), Unmeasured)
    assert isinstance(found(RULE, []), Unmeasured)
