from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from closeloop.traces.texts import SHORTENED, TEXT_CHARACTERS, Skipped, clean, shortened

ANY = st.characters(exclude_categories=())


@given(st.text(alphabet=ANY))
def test_whatever_a_text_holds_it_can_be_stored(text: str) -> None:
    made = clean(text)
    assert made.encode().decode() == made
    assert "\0" not in made


def test_halves_that_belong_together_become_their_character() -> None:
    assert clean("a\ud83d\ude00b") == "a😀b"
    assert clean("a\ud83db") == "a\ufffdb"


def test_a_text_that_is_too_long_loses_its_middle_and_says_so() -> None:
    skipped: dict[str, int] = {}
    assert shortened("x" * TEXT_CHARACTERS, skipped) == "x" * TEXT_CHARACTERS
    assert skipped == {}
    text = shortened("head" + "x" * TEXT_CHARACTERS + "tail", skipped)
    assert text.startswith("head")
    assert text.endswith("tail")
    assert "\n[8 characters left out]\n" in text
    assert skipped == {SHORTENED: 1}


def test_when_the_room_of_a_session_is_used_up_long_texts_are_kept_in_short() -> None:
    skipped = Skipped()
    skipped.room = 5000
    assert shortened("x" * 4000, skipped) == "x" * 4000
    assert shortened("x" * 4000, skipped) == "x" * 4000
    assert skipped == {}
    assert len(shortened("x" * 4000, skipped)) < 2100
    assert shortened("short", skipped) == "short"
    assert skipped == {SHORTENED: 1}
