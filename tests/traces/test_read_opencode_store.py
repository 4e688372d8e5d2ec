"""OpenCode's database: the recorded one, one that is being written, and hostile ones."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from closeloop.records.trace import Handoff, Message, Session
from closeloop.traces.file_source import FileSource
from closeloop.traces.readers import opencode, opencode_store
from patience import takes

RECORDED = Path(__file__).parent / "fixtures" / "opencode"


def read(path: Path) -> list[Session]:
    source = FileSource(path)
    assert opencode_store.recognises(source)
    return list(opencode_store.read(source))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(shutil.copy(RECORDED / "opencode.db", tmp_path / "anything"))


def change(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as base:
        for statement in statements:
            base.execute(statement)
    base.close()


def test_the_database_tells_what_the_export_of_the_same_session_tells() -> None:
    (stored,) = read(RECORDED / "opencode.db")
    (exported,) = opencode.read(FileSource(RECORDED / "export.json"))
    assert stored.trace.events == exported.trace.events
    assert stored.trace.lanes == exported.trace.lanes
    assert (stored.id, stored.usage, stored.system) == (exported.id, exported.usage, None)


def test_a_database_is_left_as_it_was(store: Path) -> None:
    before = store.read_bytes()
    read(store)
    assert store.read_bytes() == before
    assert [path.name for path in store.parent.iterdir()] == [store.name]


def test_what_is_only_in_the_journal_is_read_too(store: Path) -> None:
    change(store, "PRAGMA journal_mode = WAL")
    writer = sqlite3.connect(store)
    writer.execute("PRAGMA wal_autocheckpoint = 0")
    child = writer.execute("SELECT id FROM session WHERE parent_id IS NOT NULL").fetchone()[0]
    data = json.dumps({"role": "user", "time": {"created": 1_900_000_000_000}})
    writer.execute("INSERT INTO message VALUES ('zzz', ?, 9e15, 9e15, ?)", (child, data))
    part = json.dumps({"type": "text", "text": "said later"})
    writer.execute("INSERT INTO part VALUES ('zzz', 'zzz', ?, 1, 1, ?)", (child, part))
    writer.commit()
    journal = store.with_name(store.name + "-wal")
    assert list(opencode_store.parts(FileSource(store))) == [journal]
    (session,) = read(store)
    said = [event.text for event in session.trace.events if isinstance(event, Message)]
    assert "said later" in said
    writer.close()


def test_a_child_whose_parent_is_gone_is_a_session_of_its_own(store: Path) -> None:
    parent = read(store)[0].id
    change(store, f"DELETE FROM session WHERE id = '{parent}'")
    (session,) = read(store)
    assert session.parent == parent
    assert len(session.trace.lanes) == 1


def test_sessions_that_are_each_others_parents_are_all_told_once(store: Path) -> None:
    change(
        store,
        "UPDATE session SET parent_id = (SELECT id FROM session AS o WHERE o.id != session.id)",
    )
    (session,) = read(store)
    assert len(session.trace.lanes) == 2
    assert len({(event.lane, event.call) for event in session.trace.events if event.call}) == 9


def test_a_child_nobody_mentions_is_not_lost(store: Path) -> None:
    change(store, 'DELETE FROM part WHERE data LIKE \'%"tool":"task"%\'')
    sessions = read(store)
    assert [len(session.trace.lanes) for session in sessions] == [1, 1]
    assert sessions[1].parent == sessions[0].id


def test_rows_that_are_not_json_are_counted(store: Path) -> None:
    change(store, "UPDATE part SET data = '{' WHERE data LIKE '%step-start%'",
           "UPDATE message SET data = x'00ff' WHERE data LIKE '%\"user\"%'")  # fmt: skip
    source = FileSource(store)
    (session,) = opencode_store.read(source)
    assert source.skipped == {"a part that is not JSON": 10, "a message that is not JSON": 2}
    assert session.trace.skipped == source.skipped
    assert any(isinstance(event, Handoff) for event in session.trace.events)


def test_half_a_surrogate_pair_in_a_row_costs_nothing_but_itself(store: Path) -> None:
    change(store, """UPDATE part SET data = replace(data, 'I look for it.', 'I look\\ud83d')""")
    (session,) = read(store)
    said = [event.text for event in session.trace.events if isinstance(event, Message)]
    assert "I look\ufffd" in said


def test_a_session_without_messages_is_counted(store: Path) -> None:
    change(store, "DELETE FROM message", "DELETE FROM part")
    source = FileSource(store)
    assert list(opencode_store.read(source)) == []
    assert source.skipped == {"a session without messages": 2}


@pytest.mark.parametrize(
    "trick",
    [
        "CREATE VIEW session AS SELECT * FROM gone",
        "CREATE TABLE session (id TEXT, parent_id TEXT, directory TEXT, version TEXT,"
        " time_created INT, time_updated AS (zeroblob(1000000000)) VIRTUAL)",
        "CREATE VIRTUAL TABLE session USING fts5(id, parent_id, directory, version, time_created,"
        " time_updated)",
    ],
)
def test_views_and_computed_columns_are_not_run(trick: str, store: Path) -> None:
    change(store, "ALTER TABLE session RENAME TO gone", trick)
    assert not opencode_store.recognises(FileSource(store))


def test_a_database_torn_in_the_middle_is_read_as_far_as_it_goes(store: Path) -> None:
    content = store.read_bytes()
    store.write_bytes(content[: len(content) // 2])
    source = FileSource(store)
    sessions = list(opencode_store.read(source))
    assert len(sessions) <= 1
    assert source.skipped


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    change(path, "CREATE TABLE session (id TEXT)")
    assert not opencode_store.recognises(FileSource(path))


def files(base: Path, root: Path) -> dict[str, Path]:
    """The same sessions as versions without a database kept them, by id."""

    def put(path: Path, told: dict[str, object]) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(told, indent=2))
        return path

    found = {}
    with sqlite3.connect(base) as rows:
        asked = "SELECT id, parent_id, directory, version, time_created, time_updated FROM session"
        for one, parent, folder, release, created, updated in rows.execute(asked):
            told = {"id": one, "version": release, "projectID": "p", "directory": folder}
            time = {"created": created, "updated": updated}
            found[one] = put(
                root / "session" / "p" / f"{one}.json", told | {"parentID": parent, "time": time}
            )
        for one, session, data in rows.execute("SELECT id, session_id, data FROM message"):
            told = json.loads(data) | {"id": one, "sessionID": session}
            put(root / "message" / session / f"{one}.json", told)
        asked = "SELECT id, message_id, session_id, data FROM part"
        for one, message, session, data in rows.execute(asked):
            told = json.loads(data) | {"id": one, "sessionID": session, "messageID": message}
            put(root / "part" / message / f"{one}.json", told)
    rows.close()
    return found


def test_the_files_of_older_versions_tell_what_the_database_tells(tmp_path: Path) -> None:
    (stored,) = read(RECORDED / "opencode.db")
    first, *children = files(RECORDED / "opencode.db", tmp_path).values()
    (session,) = read(first)
    assert session.trace.events == stored.trace.events
    assert (session.id, session.usage, session.copy) == (stored.id, stored.usage, None)
    every = sorted(path for path in tmp_path.rglob("*.json") if path != first)
    assert sorted(opencode_store.parts(FileSource(first))) == every
    assert {opencode_store.owner(FileSource(path)) for path in every} == {first}
    assert opencode_store.owner(FileSource(first)) is None
    assert children


def test_a_child_that_its_parent_never_mentions_is_told_by_itself(tmp_path: Path) -> None:
    found = files(RECORDED / "opencode.db", tmp_path)
    first = next(iter(found.values()))
    for part in (tmp_path / "part").rglob("*.json"):
        if '"task"' in part.read_text():
            part.unlink()
    assert [session.id for session in read(first)] == list(found)


def test_what_is_left_of_a_session_without_its_file_is_counted(tmp_path: Path) -> None:
    first, *_ = files(RECORDED / "opencode.db", tmp_path).values()
    message = next((tmp_path / "message" / first.stem).iterdir())
    first.unlink()
    source = FileSource(message)
    assert opencode_store.owner(source) is None
    assert list(opencode_store.read(source)) == []
    assert source.skipped == {"a message without its session": 1}


def test_an_id_never_leads_out_of_the_store(tmp_path: Path) -> None:
    first, *_ = files(RECORDED / "opencode.db", tmp_path / "store").values()
    told = json.loads(first.read_text()) | {"id": "../../outside", "parentID": None}
    first.write_text(json.dumps(told))
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "m.json").write_text("{}")
    source = FileSource(first)
    assert opencode_store.parts(source) == []
    assert list(opencode_store.read(source)) == []
    assert source.skipped == {"a session without messages": 1}


def test_files_of_sessions_that_are_each_others_parents_have_one_owner(tmp_path: Path) -> None:
    first, second, *_ = files(RECORDED / "opencode.db", tmp_path).values()
    for path, parent in ((first, second.stem), (second, first.stem)):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"parentID": parent}))
    owners = {opencode_store.owner(FileSource(path)) for path in (first, second)}
    assert owners == {None, min(first, second)}


def test_a_long_line_of_children_is_found_soon(tmp_path: Path) -> None:
    folder = tmp_path / "session" / "p"
    folder.mkdir(parents=True)
    told = {"projectID": "p", "directory": "/w", "version": "1", "time": {}}
    for one in range(2000):
        made = told | {"id": f"s{one}", "parentID": f"s{one - 1}"}
        (folder / f"s{one}.json").write_text(json.dumps(made))
    source = FileSource(folder / "s0.json")

    def work(_: int) -> None:
        assert len(opencode_store.find_session_family(source)) == 2000

    assert takes(work, 0.1) < 0.1
