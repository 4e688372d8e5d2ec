"""Phrases found by their first letters: the same as a pattern alone finds, and sooner."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.process.phrases import automaton, lines_with, phrases

KNOWN = ("read-?only", r"limit\w* (?:yourself )?to", "summari[sz]e", "wins?", "do not", "no other")
PLAIN = re.compile(rf"\b(?:{'|'.join(KNOWN)})\b")
holds = phrases(*KNOWN)
PIECES = ["readonly", "read-only", "limits", " to", " yourself", "summarise", "win", "s", " ", "do",
          " not", "no other", "é", "\n", "-"]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_they_are_found_where_the_pattern_finds_them(text: str) -> None:
    assert holds(text) == (PLAIN.search(text) is not None)


@given(st.lists(st.text("ab x", max_size=4), max_size=9))
def test_lines_are_told_by_their_place(lines: list[str]) -> None:
    search = automaton(("ab", "x"))
    wanted = [place for place, line in enumerate(lines) if "ab" in line or "x" in line]
    assert list(lines_with(search, "\n".join(lines))) == wanted


def test_a_phrase_must_begin_plainly() -> None:
    with pytest.raises(AssertionError, match="plain letters"):
        phrases(r"(?:a|b)c")
