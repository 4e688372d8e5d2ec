"""redone-work: handed on, and then done again."""

from __future__ import annotations

from typing import Any

from rules import edit, found

from closeloop.records.finding import Unmeasured

LANES = {"child": "root"}
FEE = "def late_fee(invoice, day):\n    return invoice.gross.share(LATE_FEE)\n"
ADDS = edit("tally/statements.py", before="x = 1", after=f"{FEE}x = 1")
FILES = ("a/one.py", "a/two.py", "a/three.py")


def findings(work: list[Any], after: list[Any], **known: Any) -> Any:
    events = [
        {"handoff": {"brief": "Add late_fee", "child": "child", "report": "Done."}},
        *({"lane": "child", **one} for one in work),
        *after,
    ]
    return found("redone-work", events, lanes=LANES, **known)


def test_the_same_lines_in_the_same_file_are_the_same_work() -> None:
    (finding,) = findings(
        [ADDS], [edit("tally/statements.py", before="y = 2", after=f"{FEE}y = 2")]
    )
    assert finding.events == (3, 2)
    assert "repeats the edit of its sub-agent in tally/statements.py" in finding.message


def test_taking_an_edit_back_is_found_too() -> None:
    back = edit("tally/statements.py", before=f"{FEE}x = 1", after="x = 1")
    (finding,) = findings([ADDS], [back])
    assert "undoes the edit" in finding.message
    restored = {"run": {"command": "git checkout -- tally/statements.py", "exit": 0, "output": ""}}
    (finding,) = findings([ADDS], [restored])
    assert finding.events == (3, 2)


def test_building_on_an_edit_is_no_redoing() -> None:
    more = edit("tally/statements.py", before="x = 1", after="x = late_fee(invoice, today)")
    assert findings([ADDS], [more]) == []


def test_the_same_lines_in_another_file_are_other_work() -> None:
    assert findings([ADDS], [edit("tally/reports.py", before="x = 1", after=f"{FEE}x = 1")]) == []


def test_short_lines_are_alike_by_accident() -> None:
    flag = edit("a.py", before="x", after="y = 1")
    assert findings([flag], [edit("a.py", before="z", after="y = 1")]) == []


def test_edits_before_the_handoff_are_not_repeated_by_it() -> None:
    events = [ADDS, {"handoff": {"brief": "Go on", "child": "child"}}, {"lane": "child", **ADDS}]
    assert found("redone-work", events, lanes=LANES) == []


def test_three_lookups_again_are_found_and_the_threshold_can_be_set() -> None:
    reads = [{"read": path} for path in FILES]
    (finding,) = findings(reads, reads)
    assert finding.events == (5, 2, 6, 3, 7, 4)
    assert finding.confidence < 0.8
    assert findings(reads, reads[:2]) == []
    assert len(findings(reads, reads[:2], limits={"lookups": 2})) == 1


def test_files_that_are_changed_are_read_for_good_reason() -> None:
    reads = [{"read": path} for path in FILES]
    assert findings(reads, [*reads, edit(FILES[0])]) == []
    assert findings([*reads, edit(FILES[0])], reads) == []


def test_other_lines_of_a_file_were_not_read_yet() -> None:
    first = [{"read": {"path": path, "first_line": 1, "last_line": 50}} for path in FILES]
    later = [{"read": {"path": path, "first_line": 90, "last_line": 99}} for path in FILES]
    inner = [{"read": {"path": path, "first_line": 10, "last_line": 20}} for path in FILES]
    assert findings(first, later) == []
    # The report may have pointed there.
    assert findings(first, inner) == []
    assert len(findings(first, first)) == 1


def test_a_few_of_many_lookups_are_used_not_redone() -> None:
    many = [{"read": f"etl/part{number}.py"} for number in range(12)]
    assert findings(many, many[:5]) == []
    assert len(findings(many, many[:6])) == 1
    assert len(findings(many, many[:5], limits={"share": 0.25})) == 1


def test_what_the_user_asks_next_is_looked_up_anew() -> None:
    reads = [{"read": path} for path in FILES]
    assert findings(reads, [{"user": "And what of the clock?"}, *reads]) == []


def test_the_same_searches_count_as_lookups() -> None:
    searches = [{"tool": {"name": "Grep", "arguments": {"pattern": p}, "ok": True}} for p in "abc"]
    assert len(findings(searches, searches)) == 1


def test_without_the_work_of_any_sub_agent_nothing_can_be_said() -> None:
    said = found("redone-work", [{"handoff": {"brief": "x"}}, ADDS])
    assert isinstance(said, Unmeasured)
    assert found("redone-work", []) == []
    assert found("redone-work", [{"lane": "lost", **ADDS}]) == []
