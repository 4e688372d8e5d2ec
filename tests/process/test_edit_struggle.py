"""edit-struggle: attempts to change one file that come to nothing."""

from __future__ import annotations

from rules import found, pytest_run

from closeloop.records.finding import Unmeasured

ASK = {"user": "Keep the offset in patches.py."}


def miss(text: str, path: str = "patches.py", **more: object) -> dict:
    missed = {"path": path, "before": text, "after": text + "!", "ok": False, "error": "not found"}
    return {"edit": missed, **more}


def good(text: str, path: str = "patches.py") -> dict:
    return {"edit": {"path": path, "before": text, "after": f"{text} and some more of it"}}


def struggles(*events: dict, **known: object) -> bool:
    return bool(found("edit-struggle", [ASK, *events], **known))


def test_four_attempts_in_vain_are_a_struggle_and_the_limit_can_be_set() -> None:
    misses = [miss(text) for text in "abcd"]
    assert struggles(*misses)
    assert not struggles(*misses[:3])
    assert struggles(*misses[:3], limits={"attempts": 3})


def test_a_run_in_between_begins_a_new_count_and_a_look_does_not() -> None:
    a, b, c, d = (miss(text) for text in "abcd")
    assert not struggles(a, b, pytest_run(), c, d)
    assert struggles(a, b, {"read": "patches.py"}, {"run": "grep -n x patches.py"}, c, d)
    assert not struggles(a, b, miss("c", "other.py"), miss("d", "other.py"))


def test_to_put_in_the_same_again_is_in_vain() -> None:
    again = good("join")
    assert struggles(again, again, again, miss("x"), again)
    assert not struggles(*(good(text) for text in "abcdef"))
    assert not struggles(
        miss("a"), *(good(text) for text in "bcdefg"), miss("h"), miss("i"), miss("j")
    )


def test_what_was_never_tried_or_cannot_be_learnt_from_does_not_count() -> None:
    cancelled = miss("a")
    cancelled["edit"] |= {"error": "Sibling tool call errored"}
    assert not struggles(cancelled, *(miss(text) for text in "bcd"))
    assert not struggles(*(miss(text, turn=2) for text in "abcd"))
    assert not struggles(*[miss("a")] * 5), "repeated-failure speaks of these"


def test_without_results_it_cannot_be_measured() -> None:
    unknown = {"edit": {"path": "a.py", "before": "a", "after": "b", "ok": None}}
    assert isinstance(found("edit-struggle", [ASK, unknown]), Unmeasured)
