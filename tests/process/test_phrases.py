"""Phrases found by their first letters: the same as a pattern alone finds, and sooner."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.process.agent_claims import _SENTENCE_BREAK
from closeloop.process.detectors.kept_going_after_done import (
    _COMPLETION,
    _completion_start_automaton,
)
from closeloop.process.text_facts import (
    build_automaton,
    compile_phrases,
    find_first_match,
    find_matching_lines,
)
from closeloop.process.user_constraints import PASTED_BLOCK, QUOTED_LINE

KNOWN = ("read-?only", r"limit\w* (?:yourself )?to", "summari[sz]e", "wins?", "do not", "no other")
PLAIN = re.compile(rf"\b(?:{'|'.join(KNOWN)})\b")
holds = compile_phrases(*KNOWN)
PIECES = ["readonly", "read-only", "limits", " to", " yourself", "summarise", "win", "s", " ", "do",
          " not", "no other", "é", "\n", "-"]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_they_are_found_where_the_pattern_finds_them(text: str) -> None:
    assert holds(text) == (PLAIN.search(text) is not None)


SAID = ["all ", "the ", "work ", "fix ", "is ", "has been ", "now ", "complete", "done", ".", "!",
        "i have ", "i've ", "finished ", "all", "nothing ", "else ", "left", "\n", "é"]  # fmt: skip


@given(st.lists(st.sampled_from(SAID), max_size=12).map("".join))
def test_the_first_that_is_found_is_the_one_that_a_search_finds(said: str) -> None:
    found = find_first_match(_COMPLETION, _completion_start_automaton(), said)
    sought = _COMPLETION.search(said)
    assert (found and found.span()) == (sought and sought.span())


@given(st.text(" \t\n.!?a\u2028\x1c", max_size=20))
def test_sentences_end_where_the_plain_pattern_ends_them(text: str) -> None:
    assert _SENTENCE_BREAK.split(text) == re.split(r"(?<=[.!?])\s+|\n+", text)


MARKED = [
    "<code>",
    "</code>",
    "</CODE>",
    "<Issue>",
    "</issue>",
    "<",
    "a",
    "\n",
    "> b",
    " >",
    "</x>",
]


@given(st.lists(st.sampled_from(MARKED), max_size=12).map("".join))
def test_what_is_pasted_or_quoted_ends_where_the_plain_patterns_end_it(text: str) -> None:
    names = r"<(code|issue)>(?:.*?</\1>|[ \t]*\n.*\Z)"
    assert PASTED_BLOCK.sub("-", text) == re.sub(names, "-", text, flags=re.DOTALL | re.IGNORECASE)
    plain = re.sub(r"^[ \t]*>[^\n]*", "", text, flags=re.MULTILINE)
    assert QUOTED_LINE.sub("\n", "\n" + text)[1:] == plain


@given(st.lists(st.text("ab x", max_size=4), max_size=9))
def test_lines_are_told_by_their_place(lines: list[str]) -> None:
    search = build_automaton(("ab", "x"))
    wanted = [place for place, line in enumerate(lines) if "ab" in line or "x" in line]
    assert list(find_matching_lines(search, "\n".join(lines))) == wanted


def test_a_phrase_must_begin_plainly() -> None:
    with pytest.raises(AssertionError, match="plain letters"):
        compile_phrases(r"(?:a|b)c")
