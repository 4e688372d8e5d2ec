"""Facts in a text, and whether another text holds them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.process.text_facts import (
    TextFact,
    find_targets,
    is_same_path,
    normalise_words,
    parse_facts,
    prepare_text,
    split_sentences,
    states_fact,
    word_stems,
)
from patience import takes


def kinds(text: str) -> list[tuple[str, str]]:
    return [(fact.kind, fact.text) for fact in parse_facts(text)]


def held(fact: TextFact, text: str) -> bool:
    return states_fact(prepare_text(text), fact)


def only(text: str, kind: str) -> TextFact:
    (fact,) = (fact for fact in parse_facts(text) if fact.kind == kind)
    return fact


def test_the_clients_own_markup_states_nothing() -> None:
    text = (
        "<command-name>/review</command-name>\n<command-args>Fix `late_fee`.</command-args>\n"
        "<system-reminder>Do not touch db/schema.sql. At most 30 s.</system-reminder>"
    )
    assert kinds(text) == [("symbol", "late_fee")]
    assert kinds("Operation stopped by hook: do not touch db/schema.sql") == []


def test_a_request_is_taken_apart_into_its_facts() -> None:
    text = (
        'The fee is 5.00 EUR. Every letter says "please ignore this letter". Change `late_fee` in\n'
        "tally/reports.py. Do not touch tally/statements.py. It must pass `pytest -q tests/a.py`."
    )
    assert kinds(text) == [
        ("number", "5.00 EUR"),
        ("quote", "please ignore this letter"),
        ("symbol", "late_fee"),
        ("path", "tally/reports.py"),
        ("prohibition", "Do not touch tally/statements.py."),
        ("path", "tally/statements.py"),
        ("constraint", "It must pass `pytest -q tests/a.py`."),
        ("command", "pytest -q tests/a.py"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Never edit db/schema.sql.",
        "Please don't change the public interface.",
        "Don’t add new dependencies.",
        "`tally/statements.py` is being audited: leave it alone.",
        "Fix it without changing setup.cfg.",
        "config.yaml must not be modified.",
    ],
)
def test_what_the_work_must_not_do_is_a_prohibition(text: str) -> None:
    (fact,) = (fact for fact in parse_facts(text) if fact.kind == "prohibition")
    assert fact.always


@pytest.mark.parametrize(
    "text",
    [
        "The parser does not accept dates.",
        "Customers on hold never get one.",
        "I do not know where it comes from.",
        "The build should not fail.",
        "Nothing is added without a reason.",
    ],
)
def test_what_is_told_of_the_program_is_no_prohibition(text: str) -> None:
    assert not [fact for fact in parse_facts(text) if fact.kind == "prohibition"]


def test_lines_that_were_wrapped_are_one_sentence_and_list_items_are_several() -> None:
    text = (
        "`tally.reports.rule(width, mark)` stays where it is: the finance notebooks import\nit.\n"
        "- one\n- two\n3. three"
    )
    assert split_sentences(text)[1:] == ("one", "two", "three")
    assert split_sentences(text)[0].endswith("import it.")


def test_code_blocks_say_nothing_but_the_commands_that_check() -> None:
    text = "Run this:\n```sh\ncd app/\npytest -q tests/unit\n# do not touch x.py\n```\n"
    assert kinds(text) == [("command", "pytest -q tests/unit")]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("5.00 EUR", "it costs 5 €", True),
        ("5.00 EUR", "it costs 5 USD", False),
        ("5.00 EUR", "it costs 15.00 EUR", False),
        ("30 s", "a timeout of 30 seconds", True),
        ("30 s", "30ms", False),
        ("45 days", "7, 21 and 45 days", True),
        ("45 days", "after 45", True),
        ("3 days", "three days", True),
        ("50 %", "50 percent", True),
        ("-5 %", "5 %", False),
        ("1.2.3", "1.2", False),
    ],
)
def test_a_number_is_held_with_its_sign_and_unit(one: str, other: str, same: bool) -> None:
    assert held(TextFact(kind="number", text=one, sentence=one), other) is same


@pytest.mark.parametrize(
    ("path", "text", "same"),
    [
        ("src/tally/reminders.py", "write reminders.py", True),
        ("src/tally/reminders.py", "the module tally.reminders", True),
        ("src/tally/reminders.py", "about reminders in general", False),
        ("src/tally/__init__.py", "see __init__.py", False),
        ("src/tally/__init__.py", "see tally/__init__.py", True),
    ],
)
def test_a_file_may_be_named_by_its_last_parts(path: str, text: str, same: bool) -> None:
    assert held(TextFact(kind="path", text=path, sentence=path), text) is same


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("Do not edit db/schema.sql.", True),
        ("Leave schema.sql as it is.", True),
        ("Touch no other file.", True),
        ("Only change app/export.py.", True),
        ("Update db/schema.sql and add the column.", False),
        ("Add the column to app/export.py.", False),
    ],
)
def test_a_prohibition_is_held_in_other_words(text: str, same: bool) -> None:
    assert held(only("Never touch db/schema.sql.", "prohibition"), text) is same


def test_words_match_only_whole_and_without_regard_to_case_and_marks() -> None:
    assert normalise_words("On HOLD,") in normalise_words("who are on hold, however late")
    assert normalise_words("on hold") not in normalise_words("on holdings")


def test_targets_leave_out_what_is_to_be_left_alone_and_plain_words() -> None:
    text = (
        "Use `row` and `late_fee` in tally/reports.py. Do not touch tally/statements.py. And/or x."
    )
    assert find_targets(text) == ("late_fee", "tally/reports.py")


def test_addresses_dates_and_fractions_are_no_paths_and_no_numbers() -> None:
    assert kinds("See https://example.org/a/b.py on 2024-07-15, 06/07, and True/False.") == []


def test_paths_are_compared_by_their_ends() -> None:
    assert is_same_path("/home/me/project/src/a.py", "src/a.py")
    assert is_same_path("./src/a.py", "src/a.py")
    assert not is_same_path("src/aa.py", "a.py")
    assert not is_same_path("", "a.py")


def test_endings_do_not_make_another_word() -> None:
    assert word_stems(normalise_words("modifying files")) == word_stems(
        normalise_words("Edit the file")
    )


@given(st.text(max_size=300))
def test_any_text_holds_its_own_facts(text: str) -> None:
    whole = prepare_text(text)
    for fact in parse_facts(text):
        assert states_fact(whole, fact) or not normalise_words(fact.text).strip(), fact


@pytest.mark.parametrize(
    "part",
    [
        "a",
        "a+",
        "a/",
        "1,",
        "chang",
        "only ",
        "`",
        '"',
        "a_",
        "do not ",
        "leave ",
        "-",
        "(",
        "aB",
        "\n",
    ],
)
def test_no_text_takes_long(part: str) -> None:
    def read(number: int) -> None:
        text = part * (40_000 // len(part) + number)
        parse_facts(text)
        prepare_text(text)
        find_targets(text)

    assert takes(read, 2) < 2
