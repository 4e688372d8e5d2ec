"""Words of shell lines."""

from __future__ import annotations

import shlex

from hypothesis import example, given
from hypothesis import strategies as st

from closeloop.traces.tool_calls import split_shell_words
from patience import takes


@given(st.text(alphabet="ab \n\t\\'\"\u00a0é$#", max_size=40))
@example("''")
@example('a "" b')
@example('"a\\"b\\c\\\\"')
def test_words_are_those_of_a_posix_shell(line: str) -> None:
    try:
        wanted: list[str] | None = shlex.split(line)
    except ValueError:
        wanted = None
    try:
        found: list[str] | None = split_shell_words(line)
    except ValueError:
        found = None
    assert found == wanted


def test_a_long_line_takes_no_time() -> None:
    line = 'edit "' + "x = 'y'\\n" * 100_000 + '" end'
    assert len(split_shell_words(line)) == 3
    assert takes(lambda _: split_shell_words(line), 1) < 1
