"""An import reads what is new, once, and says what it could not read."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from closeloop.flow import import_sessions
from closeloop.records.trace import ImportSummary, Message, SessionFilter
from closeloop.store import Store, open_store
from closeloop.traces import session_import
from closeloop.traces.readers import pi
from made_secrets import readable


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where recordings lie: not where the store does."""
    (tmp_path / "recorded").mkdir()
    return tmp_path / "recorded"


FIXTURES = Path(__file__).parents[1] / "traces" / "fixtures"
SECRET = f"gh{'p'}_" + "x9Kd7Lm2Qp4Rt6Vw8Yz1Bc3Fg5Hj0Nn7Ss2A"


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        yield opened


def bring_in(
    store: Store, *places: Path, jobs: int = 1, session_filter: SessionFilter | None = None
) -> ImportSummary:
    return import_sessions(
        places,
        store,
        session_filter=session_filter or SessionFilter(),
        jobs=jobs,
        report_progress=lambda tally: None,
    )


def new(tally: ImportSummary) -> int:
    return sum(count.new for count in tally.formats.values())


def session(path: Path, *texts: str, name: str = "one", directory: str = "/tmp/billing") -> Path:
    """A session of pi: a request and what was said to it."""
    at = "2026-11-15T05:46:0{}.000Z"
    rows: list[dict[str, Any]] = [
        {"type": "session", "version": 3, "id": name, "timestamp": at.format(0), "cwd": directory}
    ]
    for number, text in enumerate(texts, 1):
        said = {"role": "user", "content": [{"type": "text", "text": text}]}
        rows.append(
            {
                "type": "message",
                "id": f"m{number}",
                "parentId": f"m{number - 1}" if number > 1 else None,
                "timestamp": at.format(number),
                "message": said,
            }
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def texts(store: Store, attempt: str) -> list[str]:
    trace = store.load_trace(attempt)
    assert trace is not None
    return [event.text for event in trace.events if isinstance(event, Message)]


def test_a_second_import_adds_nothing_and_reads_nothing(store: Store, folder: Path) -> None:
    shutil.copytree(FIXTURES, folder / "all")
    first = bring_in(store, folder / "all")
    rows = store.list_attempts()
    assert new(first) >= len(rows) > 10
    assert all(row.origin == "production" and row.agent for row in rows)
    second = bring_in(store, folder / "all")
    assert second.formats == {}
    assert second.unchanged > 10
    assert second.others == first.others
    assert store.list_attempts() == rows


def test_the_same_sessions_elsewhere_are_known_by_their_content(store: Store, folder: Path) -> None:
    session(folder / "a/x.jsonl", "hello")
    session(folder / "b/y.txt", "hello")
    assert new(bring_in(store, folder)) == 1
    assert len(store.list_attempts()) == 1


def test_a_session_that_grew_is_a_new_version(store: Store, folder: Path) -> None:
    file = session(folder / "x.jsonl", "hello")
    bring_in(store, folder)
    (before,) = store.list_attempts()
    for said in (["hello", "again"], ["hello", "again", "and again"]):
        session(file, *said)
        assert new(bring_in(store, folder)) == 1
    (after,) = store.list_attempts()
    assert texts(store, after.id) == ["hello", "again", "and again"]
    middle = store.load_attempt(after.parent or "")
    assert middle.parent == before.id
    assert texts(store, before.id) == ["hello"]


def test_an_older_copy_of_a_session_does_not_hide_the_newer(store: Store, folder: Path) -> None:
    session(folder / "a.jsonl", "hello", "again")
    session(folder / "b.jsonl", "hello")
    assert new(bring_in(store, folder)) == 2
    (row,) = store.list_attempts()
    assert texts(store, row.id) == ["hello", "again"]


def test_sessions_with_one_id_that_began_apart_stay_apart(store: Store, folder: Path) -> None:
    session(folder / "x.jsonl", "hello")
    other = session(folder / "y.jsonl", "something else")
    other.write_text(other.read_text().replace("2026-11-15", "2026-11-14"))
    bring_in(store, folder)
    assert len(store.list_attempts()) == 2


def test_an_attempt_says_what_the_files_say(store: Store, folder: Path) -> None:
    (folder / "project/.git").mkdir(parents=True)
    session(folder / "x.jsonl", "hello", directory=str(folder / "project"))
    bring_in(store, folder / "x.jsonl")
    (row,) = store.list_attempts()
    assert (row.agent, row.repo) == ("pi", str(folder / "project"))
    made = store.load_attempt(row.id)
    assert made.started == datetime(2026, 11, 15, 5, 46, 1, tzinfo=UTC)
    assert made.repo == str(folder / "project")
    told = store.load_session(row.id)
    assert told is not None
    assert (told.id, told.directory, told.trace.events) == ("one", made.repo, ())


def test_secrets_never_reach_the_store(store: Store, folder: Path) -> None:
    session(folder / "x.jsonl", f"use {SECRET} for it", name=SECRET)
    tally = bring_in(store, folder)
    assert tally.redacted["github-token"] >= 2
    (row,) = store.list_attempts()
    assert texts(store, row.id) == ["use [redacted: github-token] for it"]
    told = store.load_session(row.id)
    assert told is not None
    assert SECRET not in repr(told)


def test_several_workers_save_what_one_does(store: Store, folder: Path) -> None:
    for number in range(150):
        session(folder / f"in/{number}.jsonl", f"hello {number}", name=f"s{number}")
    with open_store(str(folder.parent / "serial.db")) as serial:
        assert new(bring_in(serial, folder / "in")) == 150
        assert new(bring_in(store, folder / "in", jobs=2)) == 150
        assert {row.id for row in store.list_attempts()} == {
            row.id for row in serial.list_attempts()
        }


def test_what_is_not_wanted_now_can_be_had_later(store: Store, folder: Path) -> None:
    session(folder / "x.jsonl", "hello", directory="/tmp/billing/src")
    session(folder / "y.jsonl", "other", directory="/tmp/other", name="two")
    some = bring_in(store, folder, session_filter=SessionFilter(repo="/tmp/billing"))
    assert (new(some), some.unwanted) == (1, 1)
    none = bring_in(
        store, folder, session_filter=SessionFilter(since=datetime(2099, 1, 1, tzinfo=UTC))
    )
    assert (new(none), none.unwanted) == (0, 2)
    late = bring_in(
        store, folder, session_filter=SessionFilter(since=datetime(2026, 11, 16, tzinfo=UTC))
    )
    assert new(late) == 0
    assert new(bring_in(store, folder)) == 1


def test_a_newer_reader_reads_again(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(folder / "x.jsonl", "hello")
    bring_in(store, folder)
    monkeypatch.setattr(pi, "version", pi.version + 1)
    again = bring_in(store, folder)
    assert again.formats["pi"].sessions == 1
    # What it reads is the same, so it is the same attempt.
    assert again.formats["pi"].new == 0


def test_a_new_reader_gets_to_see_what_nobody_knew(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "x.log").write_text("something else\n")
    assert bring_in(store, folder).others == 1
    monkeypatch.setattr(pi, "version", pi.version + 1)
    monkeypatch.setattr(pi, "recognises", lambda source: source.head.startswith(b"something"))
    monkeypatch.setattr(pi, "read", lambda source: iter(()))
    assert bring_in(store, folder).formats["pi"].files == 1


def test_a_part_that_grew_makes_its_whole_recording_new(store: Store, folder: Path) -> None:
    shutil.copytree(FIXTURES / "claude_code", folder / "in")
    bring_in(store, folder)
    (before,) = store.list_attempts()
    (child,) = (folder / "in").rglob("agent-*.jsonl")
    lines = child.read_text().splitlines()
    child.write_text("\n".join(lines[:-1]) + "\n")
    again = bring_in(store, folder)
    assert new(again) == 1
    (after,) = store.list_attempts()
    assert after.parent == before.id
    assert bring_in(store, folder).formats == {}


def test_a_part_of_a_recording_with_a_session_is_not_empty(store: Store, folder: Path) -> None:
    shutil.copytree(FIXTURES / "claude_code", folder / "in")
    (child,) = (folder / "in").rglob("agent-*.jsonl")
    assert new(bring_in(store, child)) == 1
    again = bring_in(store, child)
    assert (again.unchanged, again.empty) == (1, 0)


def test_records_that_nobody_knows_are_counted(store: Store, folder: Path) -> None:
    path = session(folder / "one.jsonl", "Do it.")
    strange = {"type": "weather", "id": "w", "parentId": "m1", "timestamp": "2026-11-15T05:46:09Z"}
    path.write_text(path.read_text() + (json.dumps(strange) + "\n") * 2)
    count = bring_in(store, folder).formats["pi"]
    assert count.skipped == {"unknown, kept as a note": 2}


def test_a_reader_that_fails_costs_one_file(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(folder / "a.jsonl", "hello")
    session(folder / "b.jsonl", "fine", name="two")
    kept = pi.read

    def read(source: Any) -> Any:
        if source.path.name == "a.jsonl":
            raise KeyError("surprise")
        return kept(source)

    with monkeypatch.context() as patch:
        patch.setattr(pi, "read", read)
        tally = bring_in(store, folder)
    assert (new(tally), tally.unreadable) == (1, 1)
    assert tally.troubles == (f"{folder / 'a.jsonl'}: KeyError: 'surprise'",)
    assert new(bring_in(store, folder)) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(store: Store, folder: Path) -> None:
    session(folder / "x.jsonl", "hello").chmod(0)
    tally = bring_in(store, folder)
    assert tally.troubles == (f"{folder / 'x.jsonl'}: Permission denied",)


def test_a_recording_with_more_than_fits_goes_by_way_of_a_file(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(FIXTURES / "opencode", folder / "in")
    with open_store(str(folder.parent / "other.db")) as other:
        bring_in(other, folder / "in")
        monkeypatch.setattr(session_import, "SPILL_BYTES", 1)
        bring_in(store, folder / "in")
        assert {row.id for row in store.list_attempts()} == {
            row.id for row in other.list_attempts()
        }


def test_names_that_are_no_text_are_no_trouble(store: Store, folder: Path) -> None:
    file = session(folder / "x.jsonl", "hello")
    file.rename(os.fsdecode(os.fsencode(folder) + b"/\xff.jsonl"))
    assert new(bring_in(store, folder)) == 1
    assert bring_in(store, folder).unchanged == 1


def test_nor_are_they_where_a_recording_has_several_files(store: Store, folder: Path) -> None:
    odd = os.fsdecode(os.fsencode(folder) + b"/\xff")
    shutil.copytree(FIXTURES / "claude_code", odd)
    tally = bring_in(store, folder)
    assert (new(tally), tally.troubles) == (1, ())
    assert new(bring_in(store, folder)) == 0


def test_a_cost_is_computed_only_where_the_files_have_none(store: Store, folder: Path) -> None:
    shutil.copy(FIXTURES / "claude_code" / "a203041f-2c65-4a67-8a4d-c0f4c7e79e41.jsonl", folder)
    file = next(folder.glob("*.jsonl"))
    content = file.read_text()
    bring_in(store, folder)
    models = {row.model for row in store.list_attempts()}
    content = content.replace(f'"model":"{models.pop()}"', '"model":"claude-sonnet-4-5-20250929"')
    file.write_text(content)
    bring_in(store, folder)
    (row,) = store.list_attempts()
    usage = store.load_attempt(row.id).usage
    assert usage.cost is not None
    assert usage.cost > 0
    assert usage.cost_from == "prices"


def test_a_secret_in_the_path_of_a_recording_is_not_stored(folder: Path, tmp_path: Path) -> None:
    secret = f"AK{'IA'}" + "Q7XJ3M5KZB2WTR4D"
    place = folder / secret
    place.mkdir()
    session(place / "one.jsonl", "Fix it.", directory=f"/tmp/{secret}/billing")
    with open_store(str(tmp_path / "closeloop.db")) as store:
        assert new(bring_in(store, folder)) == 1
        again = bring_in(store, folder)
        assert (new(again), again.unchanged) == (0, 1)
    assert secret.encode() not in readable(tmp_path / "closeloop.db")
