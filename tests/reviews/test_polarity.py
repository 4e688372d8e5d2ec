"""Whether two remarks want the same or the contrary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from team import contraries, paraphrases

from closeloop.reviews.remark_polarity import (
    common_wording,
    comparable_words,
    compare_remarks,
    remark_parts,
)

TYPICAL = """use don't never add remove tests the logger instead of print in migrations not without
please should avoid , . keep before after no data"""
WORDS = st.lists(st.sampled_from(TYPICAL.split()), max_size=12).map(" ".join)


@pytest.mark.parametrize(("one", "other"), list(contraries()))
def test_contraries_are_never_taken_for_the_same(one: str, other: str) -> None:
    assert compare_remarks(one, other) != "same"
    assert compare_remarks(other, one) != "same"
    assert comparable_words(one) != comparable_words(other)


@pytest.mark.parametrize(
    "turn",
    [
        "Don't {}", "Never {}", "Please do not {}", "Avoid this: {}", "Stop to {}", "Undo: {}",
        "No need to {}", "It is wrong to {}", "We don't want to {}", "Nobody should {}", "{} Not!",
        "You must not {}", "Forget about this: {}", "I disagree with this: {}", "{} Just kidding.",
        "Under no circumstances {}", "It's a myth that one should {}", "{} Never do that.",
    ],
)  # fmt: skip
def test_no_turn_of_a_rule_is_taken_for_the_rule(turn: str) -> None:
    for rule in (one["text"] for one in paraphrases()):
        turned = turn.format(f"{rule[0].lower()}{rule[1:]}")
        assert compare_remarks(rule, turned) != "same", turned


def test_most_opposites_are_seen_and_hardly_a_paraphrase_is_taken_for_one() -> None:
    rules = paraphrases()
    opposites = [(rule["text"], other) for rule in rules for other in rule["opposite"]]
    same = [(rule["text"], other) for rule in rules for other in rule["same"]]
    seen = sum(compare_remarks(*pair) == "opposite" for pair in opposites)
    wrong = sum(compare_remarks(*pair) == "opposite" for pair in same)
    assert seen / len(opposites) > 0.9
    assert wrong / len(same) < 0.05


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Do we really need this to be configurable?", "Make this configurable."),
        ("Does this need to be public?", "This must be public."),
        ("Please change this to non-exported.", "This must be public."),
        ("Indent by spaces, not tabs.", "Indent by tabs instead of spaces."),
        ("Is this blank line necessary?", "I would love a new line here."),
        ("Use single quotes.", "Use double quotes."),
        ("The error of `app.stop` is not checked", "No need to check the error here."),
    ],
)
def test_doubts_contrasts_and_antonyms_want_the_contrary(one: str, other: str) -> None:
    assert compare_remarks(one, other) == "opposite"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Can you file an issue for this?", "Please create an issue so we don't forget."),
        ("Why is this public?", "Does this need to be public?"),
        ("Couldn't we use type hints here?", "Please use type hints."),
    ],
)
def test_purposes_and_polite_questions_turn_nothing_round(one: str, other: str) -> None:
    assert compare_remarks(one, other) != "opposite"


def test_a_remark_is_compared_by_its_sentences_in_plain_words() -> None:
    said = "Thanks for the patch! `fooBar()` is fine as it stands. Could you please use isEmpty()?"
    assert remark_parts(said)[1:] == ["this is fine as it stands", "use is empty ?"]
    assert common_wording("Please drop the docstring.") == "remove the documentation"
    assert remark_parts("") == [""]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Compare with == here.", "Compare with != here."),
        ("Return x > 0.", "Return x < 0."),
        ("Use -1 for nothing.", "Use 1 for nothing."),
        ("👍 Ship logs to the collector.", "👎 Ship logs to the collector."),
    ],
)
def test_signs_that_are_no_letters_make_a_difference(one: str, other: str) -> None:
    assert comparable_words(one) != comparable_words(other)
    assert compare_remarks(one, other) != "same"


def test_the_same_words_are_the_same_whatever_their_case_and_marks() -> None:
    assert comparable_words("Don’t  PRINT here!") == comparable_words("don't print here")
    assert compare_remarks("Add tests.", "please add tests") == "same"


@given(WORDS, WORDS)
def test_it_is_the_same_both_ways_and_nothing_is_its_own_contrary(one: str, other: str) -> None:
    assert compare_remarks(one, other) == compare_remarks(other, one)
    assert compare_remarks(one, one) != "opposite"


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_text_has_a_relation_to_any_other(one: str, other: str) -> None:
    assert compare_remarks(one, other) in ("same", "opposite", "unclear")
