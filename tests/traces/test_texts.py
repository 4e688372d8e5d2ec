from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from closeloop.text.untrusted import (
    MAX_TEXT_CHARS,
    SHORTENED,
    SkipCounts,
    clean_unicode,
    truncate_middle,
)

ANY = st.characters(exclude_categories=())


@given(st.text(alphabet=ANY))
def test_whatever_a_text_holds_it_can_be_stored(text: str) -> None:
    made = clean_unicode(text)
    assert made.encode().decode() == made
    assert "\0" not in made


def test_halves_that_belong_together_become_their_character() -> None:
    assert clean_unicode("a\ud83d\ude00b") == "a😀b"
    assert clean_unicode("a\ud83db") == "a\ufffdb"


def test_a_text_that_is_too_long_loses_its_middle_and_says_so() -> None:
    skipped: dict[str, int] = {}
    assert truncate_middle("x" * MAX_TEXT_CHARS, skipped) == "x" * MAX_TEXT_CHARS
    assert skipped == {}
    text = truncate_middle("head" + "x" * MAX_TEXT_CHARS + "tail", skipped)
    assert text.startswith("head")
    assert text.endswith("tail")
    assert "\n[8 characters left out]\n" in text
    assert skipped == {SHORTENED: 1}


def test_when_the_room_of_a_session_is_used_up_long_texts_are_kept_in_short() -> None:
    skipped = SkipCounts()
    skipped.room = 5000
    assert truncate_middle("x" * 4000, skipped) == "x" * 4000
    assert truncate_middle("x" * 4000, skipped) == "x" * 4000
    assert skipped == {}
    assert len(truncate_middle("x" * 4000, skipped)) < 2100
    assert truncate_middle("short", skipped) == "short"
    assert skipped == {SHORTENED: 1}
