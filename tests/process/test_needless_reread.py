"""needless-reread: the same lines of the same file, for nothing."""

from __future__ import annotations

import pytest
from rules import edit, found

from closeloop.records.finding import Unmeasured

RULE = "needless-reread"
READ = {"read": {"path": "a.py", "text": "x = 1"}}
OTHER = {"read": {"path": "b.py", "text": "y = 2"}}
CAT = {"run": {"command": "cat a.py", "exit": 0, "output": "x = 1"}}


@pytest.mark.parametrize("look", [READ, CAT])
def test_three_times_the_same(look: dict) -> None:
    (finding,) = found(RULE, [look, {"say": "…"}, look, edit("b.py"), look])
    assert finding.events == (1, 3, 5)
    assert "3 times" in finding.message


def test_the_number_is_a_threshold() -> None:
    assert len(found(RULE, [READ, OTHER, READ], limits={"times": 2})) == 1
    assert found(RULE, [READ, OTHER, READ, OTHER, READ], limits={"times": 4}) == []


def test_searches_for_other_words_that_show_the_same_lines_are_other_reads() -> None:
    def search(words: str) -> dict:
        return {"run": {"command": f"grep -n {words} a.py", "exit": 0, "output": "1:x = 1"}}

    assert found(RULE, [search("x"), search("'x ='"), OTHER, search("= 1")]) == []
    (finding,) = found(RULE, [search("x"), OTHER, search("x"), OTHER, search("x")])
    assert finding.events == (1, 3, 5)


def test_twice_with_nothing_done_in_between_is_enough() -> None:
    (finding,) = found(RULE, [READ, {"say": "…"}, READ])
    assert finding.events == (1, 3)
    assert found(RULE, [CAT, CAT]) == []


def test_a_long_text_that_is_read_again_soon_is_enough() -> None:
    long = {"read": {"path": "a.py", "text": "x = 1\n" * 2_000}}
    search = {
        "run": {"command": "grep -n 'def total' a.py", "exit": 0, "output": "1600: def total"}
    }
    (finding,) = found(RULE, [long, search, long])
    assert finding.events == (1, 3)
    assert found(RULE, [long, *[edit("b.py")] * 4, long]) == []
    assert found(RULE, [long, edit("a.py"), long]) == []


def test_the_edit_that_failed_before_is_no_reason_to_look_again() -> None:
    failing = {"edit": {"path": "a.py", "before": "y", "ok": False, "error": "not found"}}
    (finding,) = found(RULE, [failing, READ, failing, READ, failing, READ])
    assert finding.events == (2, 4, 6)


def _lines(first: int) -> dict:
    return {"read": {"path": "a.py", "text": f"{first}", "first_line": first, "last_line": 99}}


@pytest.mark.parametrize(
    "events",
    [
        [READ, OTHER, READ],
        [READ, edit("a.py"), READ, OTHER, READ],
        [READ, OTHER, READ, {"run": {"command": "make generate", "exit": 0}}, READ],
        [READ, OTHER, READ, {"run": {"command": "sed -i s/1/2/ a.py", "exit": 0}}, READ],
        [READ, OTHER, READ, {"note": {"about": "compaction", "text": ""}}, READ],
        [READ, OTHER, READ, {"edit": {"path": "a.py", "ok": False, "error": "not found"}}, READ],
        [_lines(1), _lines(2), _lines(3)],
        [{"read": {"path": "a.py", "text": f"{n}"}} for n in range(3)],
        [{"run": {"command": "cat server.log", "exit": 0, "output": "up"}}] * 4,
    ],
)
def test_what_is_not_needless(events: list[dict]) -> None:
    said = found(RULE, events)
    assert isinstance(said, Unmeasured) or said == []


def test_each_lane_reads_for_itself() -> None:
    child = [{"lane": "child", **one} for one in (READ, OTHER, READ)]
    events = [READ, OTHER, *child, READ]
    assert found(RULE, events, lanes={"child": "root"}) == []


def test_another_lanes_change_is_a_reason_to_look_again() -> None:
    events = [READ, OTHER, READ, {"lane": "child", **edit("a.py")}, READ]
    assert found(RULE, events, lanes={"child": "root"}) == []


def test_reads_without_their_text_say_nothing() -> None:
    assert isinstance(found(RULE, [{"read": "a.py"}] * 3), Unmeasured)


def test_an_empty_trace_has_none() -> None:
    assert found(RULE, []) == []
