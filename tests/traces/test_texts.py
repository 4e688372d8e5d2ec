from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from closeloop.traces.texts import SHORTENED, TEXT_CHARACTERS, clean, raw, shortened, tidy

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


def test_values_are_tidied_to_the_bottom() -> None:
    deep: object = "x"
    for _ in range(500):
        deep = [deep]
    tidied = tidy({"a\0": ["\ud800", 1 << 80, None, True, 1.5], "deep": deep})
    assert tidied["a\ufffd"] == ["\ufffd", str(1 << 80), None, True, 1.5]
    msgspec.msgpack.encode(tidied)


def test_a_record_nobody_knows_is_kept_within_bounds() -> None:
    assert raw({"a": 1}) == '{"a":1}'
    assert len(raw({"a": "x" * 100_000})) < 2100
