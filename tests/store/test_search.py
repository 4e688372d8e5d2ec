"""Attempts have titles, and are found by what they say, on both engines."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from closeloop.attempts.attempt_saving import purge_secret
from closeloop.records.attempt import Attempt, AttemptFilter, AttemptSort, PageCursor, Usage
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.finding import Finding, Measurement
from closeloop.records.trace import AnyEvent, Command, Edit, Message, Session, Trace
from closeloop.store import Store, open_store
from closeloop.store.session_rows import session_key
from closeloop.store.sql_expressions import text
from closeloop.text.search_text import describe_attempt, find_snippet, fold_words, parse_search
from closeloop.traces.session_import import pack_session

START = datetime(2026, 3, 1, tzinfo=UTC)
REQUEST = "# Fix the rounding of refunds\n\nRefunds lose a cent when the naïve total is halved."


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        yield opened


def trace_of(*events: AnyEvent) -> Trace:
    return Trace(reader="x", reader_version=1, events=events)


def user(said: str, number: int = 1) -> Message:
    return Message(number=number, lane="r", role="user", text=said, intent="request")


def add(store: Store, name: str, *events: AnyEvent, **known: object) -> None:
    made = Attempt(id=name, origin="production", exit="finished", **known)  # type: ignore[arg-type]
    store.save_attempt(AttemptResult(attempt=made, trace=trace_of(*events)))


def found(store: Store, typed: str, **more: object) -> list[str]:
    wanted = AttemptFilter(q=typed, **more)  # type: ignore[arg-type]
    rows = [row.id for row in store.listing.list_page(wanted, 100)]
    assert store.listing.count_matches(wanted) == len(rows)
    return rows


# Titles


@pytest.mark.parametrize(
    ("said", "title"),
    [
        (REQUEST, "Fix the rounding of refunds"),
        ("Hi!\n\nplease make `total` a Decimal", "please make `total` a Decimal"),
        ("Consider the following PR description:\nUse Decimal", "Use Decimal"),
        ("<command-name>/review</command-name>", "/review"),
        ("<system-reminder>be kind</system-reminder>\nAdd a test", "Add a test"),
        ("<pr_description>\nTitle: Crash at zero\n</pr_description>", "Crash at zero"),
        ("word " * 60, "word " * 18 + "word…"),
        (
            "Four tests fail when a discount is spread over the lines of an\n`invoice`. Fix it.\n",
            "Four tests fail when a discount is spread over the lines of an `invoice`. Fix it.",
        ),
        (f"# {'Heading ' * 9}\nText", ("Heading " * 9).strip()),
    ],
)
def test_a_title_is_the_first_line_that_says_what_is_asked(said: str, title: str) -> None:
    attempt = Attempt(id="a", origin="production", exit="finished")
    assert describe_attempt(attempt, trace_of(user(said)))[0] == title


def test_the_rest_of_the_request_is_the_second_line() -> None:
    attempt = Attempt(id="a", origin="production", exit="finished")
    detail = describe_attempt(attempt, trace_of(user(REQUEST)))[1]
    assert detail == "Refunds lose a cent when the naïve total is halved."


def test_an_attempt_at_a_task_is_called_by_the_task_and_an_empty_one_by_nothing() -> None:
    attempt = Attempt(id="a", origin="experiment", task="cents", exit="finished")
    title, detail = describe_attempt(attempt, trace_of(user("Fix it.\nSoon.")))
    assert (title, detail) == ("cents", "Fix it. Soon.")
    nothing = Attempt(id="a", origin="production", exit="finished")
    assert describe_attempt(nothing, None) == (None, None)


def test_where_no_request_is_recorded_the_title_says_so_and_names_the_first_work() -> None:
    attempt = Attempt(id="a", origin="production", exit="finished")
    words = Message(number=1, lane="main", role="agent", text="Let me look around first.")
    command = Command(number=2, lane="main", command="ls -l src")
    edit = Edit(number=3, lane="main", path="src/total.py")
    for events, title in (
        ((words,), "(no request recorded)"),
        ((words, command), "(no request recorded) ls -l src"),
        ((words, command, edit), "(no request recorded) src/total.py"),
    ):
        assert describe_attempt(attempt, trace_of(*events)) == (title, None)
    assert describe_attempt(attempt, trace_of(user("hi"), words))[0] == "hi"


def test_a_request_of_spaces_and_marks_without_end_takes_no_time() -> None:
    attempt = Attempt(id="a", origin="production", exit="finished")
    for filler in (" ", "#", "text ", "* ", "<a "):
        describe_attempt(attempt, trace_of(user(f"{filler * 20_000}x")))


# Search


def test_an_attempt_is_found_by_its_request_messages_commands_and_paths(store: Store) -> None:
    add(
        store,
        "one",
        user(REQUEST),
        Command(number=2, lane="r", command="pytest -k halved", output="zebra"),
        Edit(number=3, lane="r", path="billing/refund_total.py"),
        Message(number=4, lane="r", role="agent", text="Everything adds up now."),
    )
    add(store, "two", user("Rename the invoices"))
    for typed in ("rounding", "ROUND", "pytest halved", "refund_total", "billing/refund", "adds up",
                  '"lose a cent"', "naive", "Fix refunds pytest"):  # fmt: skip
        assert found(store, typed) == ["one"], typed
    for typed in ("ounding", "zebra", '"cent a lose"', '"round"', "rounding invoices"):
        assert found(store, typed) == [], typed


def test_words_of_any_script_are_found(store: Store) -> None:
    add(store, "one", user("レビューを実施します。Größe prüfen"))
    assert found(store, "実施") == ["one"]
    assert found(store, "grosse") == []
    assert found(store, "grö pruf") == ["one"]
    assert found(store, "施実") == []


@pytest.mark.parametrize(
    "typed",
    [
        '"', "*", "a* OR b", "NEAR(a b)", "a AND NOT b", "words:a", "^a", "(((", "a & | ! <-> b",
        "'; DROP TABLE attempts; --", "a:*", "\x00", "a\x00b", "\ud800", "💥", "a" * 200, "{a b}",
        "-a", "a + b", "\\", "%", "_",
    ],
)  # fmt: skip
def test_no_text_is_taken_for_the_language_of_an_index(store: Store, typed: str) -> None:
    add(store, "one", user("a b"))
    assert set(found(store, typed)) <= {"one"}


def test_a_text_over_the_limits_of_an_index_is_found_from_its_beginning_to_its_end(
    store: Store,
) -> None:
    numbers = range(2, 200)
    pasted = [
        Command(
            number=number, lane="r", command=" ".join(f"x{number * 1000 + at}" for at in range(120))
        )
        for number in numbers
    ]
    add(
        store,
        "one",
        user("alpha"),
        *pasted,
        Message(number=999, lane="r", role="agent", text="omega"),
    )
    assert found(store, "alpha omega") == ["one"]
    assert found(store, f"x{150 * 1000 + 60}") == ["one"]


def test_what_the_rules_say_now_is_found_and_not_what_they_said(store: Store) -> None:
    add(store, "one", user("Mend the parser"))
    for basis, rule in (("b1", "standstill"), ("b2", "spiral")):
        finding = Finding(rule=rule, version=1, severity="warning", message=f"{rule} in tests")
        store.save_measurements([("one", basis, Measurement(rules="r", findings=(finding,)))])
    assert found(store, "parser spiral") == ["one"]
    assert found(store, "standstill") == []
    store.save_measurements([("one", "b3", Measurement(rules="r"))])
    assert found(store, "spiral") == []


def test_work_is_found_whichever_way_it_came(store: Store) -> None:
    session = Session(id="s", agent="pi", trace=trace_of(user("imported session")), started=START)
    packed = pack_session(session, "/home/shop", session_key(session, "file"))
    store.save_sessions([packed], [])
    add(store, "recorded", user("recorded attempt"))
    pull = Attempt(id="pull", origin="production", exit="finished", repo="o/r")
    bare = Session(id="o/r#1", agent="agent", trace=Trace(reader="pull-request", reader_version=1))
    store.pulls.save_pull_attempt(pull, bare, "Switch billing to Decimal")
    assert found(store, "imported") == [packed.attempt.id]
    assert found(store, "recorded") == ["recorded"]
    assert found(store, "billing decimal") == [], "a pull request is no session"
    titles = {row.id: row.title for row in store.list_attempts()}
    assert titles["pull"] == "Switch billing to Decimal"


def test_a_store_whose_index_is_gone_gets_it_back(store: Store) -> None:
    for number in range(3):
        add(store, f"a{number}", user(f"needle {number}"))
    store._write(lambda on: on.execute(text("DELETE FROM search_documents WHERE attempt <> 'a1'")))
    assert found(store, "needle") == ["a1"]
    assert store.search.index_missing() == 2
    assert found(store, "needle") == ["a0", "a1", "a2"]
    assert store.search.index_missing() == 0


def test_a_purged_secret_is_in_no_index_and_no_title(store: Store) -> None:
    add(
        store, "one", user("winterfell99 opens the door"), Command(number=2, lane="r", command="ls")
    )
    add(store, "two", user("another door"))
    assert found(store, "winterfell99") == ["one"]
    purge_secret(store, "winterfell99", purged_by="ann", apply=True)
    assert found(store, "winterfell99") == []
    assert found(store, "door") == ["one", "two"]
    assert "winterfell99" not in str(store.listing.load_row("one"))


def test_the_words_of_a_purged_secret_are_not_left_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    with open_store(str(file)) as store:
        add(store, "one", user("winterfell99 opens the door"))
        finding = Finding(rule="r", version=1, severity="info", message="winterfell99")
        for basis, findings in (("b1", (finding,)), ("b2", ())):
            store.save_measurements([("one", basis, Measurement(rules="r", findings=findings))])
        purge_secret(store, "winterfell99", purged_by="ann", apply=True)
    left = b"".join(one.read_bytes() for one in tmp_path.iterdir())
    assert b"winterfell99" not in left


def test_a_snippet_shows_where_the_words_stand(store: Store) -> None:
    add(store, "one", user(REQUEST + " " + "and so on " * 40))
    snippet = store.search.find_snippets(["one"], parse_search("cent"))["one"]
    assert snippet.match == "cent"
    assert snippet.before.endswith("Refunds lose a ")
    assert snippet.after.startswith(" when the naïve total")
    assert snippet.after.endswith("…")
    assert find_snippet("src/app.py", parse_search("app.p")) is not None
    assert find_snippet("nothing", parse_search("else")) is None


def test_words_are_folded_alike_for_texts_and_for_questions() -> None:
    assert fold_words("Café_au-LAIT 実施x").split() == ["cafe", "au", "lait", "実", "施", "x"]
    assert [phrase.words for phrase in parse_search('a-b "c d" e')] == [
        ("a", "b"),
        ("c", "d"),
        ("e",),
    ]


# Order and time


SORTED: dict[AttemptSort, list[int]] = {
    "newest": [5, 4, 3, 2, 1, 0, 6],
    "oldest": [0, 1, 2, 3, 4, 5, 6],
    "cost": [3, 2, 1, 0, 4, 5, 6],
    "turns": [0, 1, 2, 3, 4, 5, 6],
    "time": [5, 4, 3, 2, 1, 0, 6],
    "findings": [1, 2, 0, 3, 4, 5, 6],
}


@pytest.mark.parametrize("sort", SORTED)
@pytest.mark.parametrize("size", [1, 3, 50])
def test_a_list_in_any_order_is_walked_page_by_page(
    store: Store, sort: AttemptSort, size: int
) -> None:
    findings = {0: 0, 1: 2, 2: 1}
    for number in range(7):
        began = START + timedelta(hours=number) if number < 6 else None
        add(
            store,
            f"{number}",
            user("needle"),
            started=began,
            ended=began and began + timedelta(seconds=number + 1),
            usage=Usage(cost=float(number) if number < 4 else None),
        )
    one = Finding(rule="spiral", version=1, severity="warning", message="round and round")
    for number, count in findings.items():
        measured = Measurement(rules="r", findings=(one,) * count)
        store.save_measurements([(f"{number}", "b", measured)])
    seen: list[int] = []
    after = None
    wanted = AttemptFilter(q="needle")
    while rows := store.listing.list_page(wanted, size, after, sort=sort):
        seen += [int(row.id) for row in rows]
        last = rows[-1]
        values = {"cost": last.cost, "turns": last.turns, "time": last.seconds}
        value = findings.get(int(last.id)) if sort == "findings" else values.get(sort)
        after = PageCursor(started=last.started, id=last.id, value=value)
    assert seen == SORTED[sort]


def test_a_time_range_ends_before_its_end(store: Store) -> None:
    for hour in range(4):
        add(store, f"{hour}", user("needle"), started=START + timedelta(hours=hour))
    since, until = START + timedelta(hours=1), START + timedelta(hours=3)
    assert found(store, "needle", since=since, until=until) == ["2", "1"]
    assert found(store, "needle", since=until) == ["3"]


def test_a_list_is_narrowed_by_model_and_cost(store: Store) -> None:
    session = Session(id="s", agent="pi", model="m1", trace=trace_of(user("a")), started=START)
    packed = pack_session(session, None, session_key(session, "file"))
    store.save_sessions([packed], [])
    add(store, "dear", user("b"), usage=Usage(cost=2.0))
    listing = store.listing
    assert [row.id for row in listing.list_page(AttemptFilter(model="m1"), 9)] == [
        packed.attempt.id
    ]
    assert [row.id for row in listing.list_page(AttemptFilter(min_cost=2.0), 9)] == ["dear"]
    assert listing.list_page(AttemptFilter(min_cost=2.01), 9) == []
    assert listing.count_matches(AttemptFilter(), 1) == 1
    add(store, "cheap", user("c"), usage=Usage(cost=0.5))
    totals = listing.total_matches(AttemptFilter())
    assert (totals.attempts, totals.cost, totals.priced) == (3, 2.5, 2)
    nothing = listing.total_matches(AttemptFilter(min_cost=9))
    assert (nothing.attempts, nothing.cost, nothing.priced) == (0, None, 0)
