"""A secret that got in is taken out of everything, and a tombstone says so."""

from __future__ import annotations

import io
import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from closeloop.attempts.attempt_saving import (
    ATTEMPTS_FOLDER,
    FinishedAttempt,
    UnsavedBatch,
    purge_known_forms,
    purge_secret,
    write_batch_file,
)
from closeloop.records import attempt as records
from closeloop.records.attempt import Attempt, CommandResult, Grade, Outcome
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.orchestration import (
    Orchestration,
    SubtaskExecution,
    SubtaskResult,
    SubtaskSpec,
)
from closeloop.records.task import Task
from closeloop.records.trace import Exchange, Lane, LogEvent, Message, ToolUse, Trace
from closeloop.store import open_store
from closeloop.store.plan_section import pack_exchanges
from closeloop.text.patches import parse_patch
from command_line import typed
from made_secrets import ANY, BASE32, make, readable, unpacked
from patience import PATIENCE

SECRET = 'Winter-"is"-coming-' + make(ANY, 12)
"""No form that redaction knows, and one that JSON has to escape."""
KEY = f"AK{'IA'}{make(BASE32, 16)}"
AT = datetime(2026, 5, 1, 12, tzinfo=UTC)


def patch_with(secret: str) -> str:
    return (
        "diff --git a/x.txt b/x.txt\nnew file mode 100644\n--- /dev/null\n+++ b/x.txt\n"
        f"@@ -0,0 +1,2 @@\n+{KEY}\n+{secret}\n"
    )


def exchange(secret: str) -> Exchange:
    asked = json.dumps({"messages": [{"role": "user", "content": f"use {secret}"}]}).encode()
    said = json.dumps({"text": secret}).encode()
    return Exchange(
        number=1, at=AT, path="/v1/messages", status=200, seconds=0.1, request=asked, response=said
    )


def fill(url: str, secret: str) -> None:
    """A store where a secret stands in every kind of record."""
    events = (
        Message(number=1, lane="root", role="user", text=f"use {secret}"),
        ToolUse(number=2, lane="root", name="x", arguments={"deep": [{secret: secret}]}),
    )
    trace = Trace(reader="r", reader_version=1, lanes=(Lane(id="root"),), events=events)
    ran = CommandResult(command="c", exit_code=1, seconds=0.1, output=secret)
    run = records.TestRun(when="after", commands=(ran,))
    made = AttemptResult(
        attempt=Attempt(
            id="one", origin="experiment", exit="crashed", cause=f"because {secret}", summary=secret
        ),
        trace=trace,
        change=parse_patch(patch_with(secret)),
        grade=Grade(
            attempt="one",
            grading="g",
            version=1,
            outcome=Outcome(result="fail", reasons=(secret,)),
            before=run,
            after=run,
        ),
        exchanges=(exchange(secret),),
        events=(LogEvent(kind="attempt.ended", at=AT, attempt="one", details={"why": secret}),),
    )
    part = SubtaskSpec(id="add", prompt=secret)
    plan = Orchestration(id="plan1", at=AT, request=secret, tasks=(part,), worker="w")
    execution = SubtaskExecution(
        plan="plan1",
        task="add",
        number=1,
        variant="w",
        agent="a",
        brief=secret,
        exit="finished",
        patch=patch_with(secret),
        started=AT,
        ended=AT,
    )
    with open_store(url) as store:
        store.save_attempt(made)
        store.save_task(Task(id="t", prompt=f"use {secret}", repo=None))
        store.plans.save_plan(plan)
        exchanges = pack_exchanges([exchange(secret)])
        store.plans.save([SubtaskResult(execution=execution, trace=trace, exchanges=exchanges)], [])


def contents(url: str) -> bytes:
    """All that a store holds, private bodies too, with exchanges unpacked."""
    driver = url.replace("postgresql:", "postgresql+psycopg:")
    engine = create_engine(driver if "://" in url else f"sqlite:///{url}")
    found: list[bytes] = []
    with engine.connect() as connection:
        dialect = engine.dialect.name
        listed = (
            "SELECT name FROM sqlite_schema WHERE type = 'table'"
            if dialect == "sqlite"
            else "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        )
        for (table,) in connection.execute(text(listed)).all():
            for row in connection.execute(text(f"SELECT * FROM {table}")).all():
                for value in row:
                    content = unpacked(bytes(value) if isinstance(value, memoryview) else value)
                    found += [content, content.replace(b"\\", b"")]
    engine.dispose()
    return b"\n".join(found)


def test_a_secret_is_removed_from_every_table_of_both_engines(store_url: str) -> None:
    fill(store_url, SECRET)
    bare = SECRET.replace('"', "").encode()
    assert SECRET.encode() in contents(store_url)
    with open_store(store_url) as store:
        counted = purge_secret(store, SECRET, purged_by="ann@here", apply=False)
        assert counted.records >= 8
        assert not counted.done
        assert SECRET.encode() in contents(store_url), "only counted"
        ids = [row.id for row in store.list_attempts()]
        result = purge_secret(store, SECRET, purged_by="ann@here", apply=True)
        assert result.places == counted.places
        assert [row.id for row in store.list_attempts()] == ids
        told = store.load_trace("one")
        assert told is not None
        assert told.events[0].text == "use [purged]"  # type: ignore[union-attr]
        assert store.load_attempt("one").cause == "because [purged]"
        (talk,) = store.load_exchanges("one")
        assert json.loads(talk.request)["messages"][0]["content"] == "use [purged]"
        (said,) = store.plans.load_exchanges("plan1", "add", 1)
        assert json.loads(said.response) == {"text": "[purged]"}
        exact = store.load_exact_change("one")
        assert exact is not None
        assert f"+{KEY}\n+[purged]\n" in exact.patch, "what was not named stays as it was"
        again = purge_secret(store, SECRET, purged_by="ann@here", apply=True)
        assert (again.records, again.purge) == (0, None)
        (tombstone,) = store.purges.list_purges()
    assert (tombstone.who, tombstone.kind, tombstone.records) == (
        "ann@here",
        "secret",
        result.records,
    )
    assert tombstone.digest.startswith("scrypt:")
    left = contents(store_url)
    assert SECRET.encode() not in left
    assert bare not in left.replace(b'"', b"")


def test_facts_stay_facts_after_a_purge(store_url: str) -> None:
    fill(store_url, SECRET)
    with open_store(store_url) as store:
        purge_secret(store, SECRET, purged_by="ann", apply=True)
        for table in ("attempts", "attempt_bodies", "blobs", "private_bodies", "purges"):
            with pytest.raises(Exception, match="are facts"), store._writer.begin() as connection:
                connection.execute_sql(f"DELETE FROM {table}")


def test_all_known_forms_are_removed_and_tasks_are_left(store_url: str) -> None:
    fill(store_url, KEY)
    with open_store(store_url) as store:
        result = purge_known_forms(store, purged_by="ann", apply=True)
        assert result.left == {"tasks": 1}
        assert store.load_exact_change("one") == store.load_change("one")
        assert store.purges.list_purges()[0].digest.startswith("blake2b:")
        assert purge_known_forms(store, purged_by="ann", apply=True).records == 0
        assert purge_secret(store, KEY, purged_by="ann", apply=True).places == {"tasks": 1}
    assert KEY.encode() not in contents(store_url)


def test_the_old_bytes_are_gone_from_the_file_and_its_log(tmp_path: Path) -> None:
    path = tmp_path / "closeloop.db"
    fill(str(path), SECRET)
    with closing(sqlite3.connect(path)) as connection:
        old = [row[0] for row in connection.execute("SELECT trace FROM attempt_bodies")]
        old += [row[0] for row in connection.execute("SELECT body FROM private_bodies")]
    assert all(body in written(path) for body in old)
    with open_store(str(path)) as store:
        purge_secret(store, SECRET, purged_by="ann", apply=True)
        assert not any(body in written(path) for body in old)
        assert SECRET.encode() not in written(path)


def written(database: Path) -> bytes:
    """The bytes of a SQLite store and of its log."""
    files = (database, *database.parent.glob(f"{database.name}-*"))
    return b"".join(file.read_bytes() for file in files)


KILLED = """
import os, signal, sys
from closeloop.attempts.attempt_saving import purge_secret
from closeloop.store import open_store, migrations

def die(*given):
    os.kill(os.getpid(), signal.SIGKILL)

setattr(migrations, sys.argv[3], die)
with open_store(sys.argv[1]) as store:
    store.purges._erase = die
    purge_secret(store, sys.argv[2], purged_by="ann", apply=True)
"""


@pytest.mark.parametrize(("moment", "changed"), [("_purge_columns", False), ("nothing", True)])
def test_a_purge_that_is_killed_leaves_the_old_or_the_new_state(
    tmp_path: Path, moment: str, changed: bool
) -> None:
    path = str(tmp_path / "closeloop.db")
    fill(path, SECRET)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, path, SECRET, moment], check=False, timeout=PATIENCE
    )
    assert done.returncode == -signal.SIGKILL
    assert (SECRET.encode() not in contents(path)) == changed
    with open_store(path) as store:
        with pytest.raises(Exception, match="are facts"), store._writer.begin() as connection:
            connection.execute_sql("DELETE FROM attempts")
        assert len(store.purges.list_purges()) == changed
        purge_secret(store, SECRET, purged_by="ann", apply=True)
        assert len(store.purges.list_purges()) == 1
    assert SECRET.encode() not in contents(path)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "closeloop.toml").write_text('store = ".closeloop/closeloop.db"\n')
    (tmp_path / ".closeloop").mkdir()
    fill(str(tmp_path / ".closeloop" / "closeloop.db"), SECRET)
    return tmp_path


def test_the_secret_comes_from_a_variable_a_file_or_standard_input(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = project / "secret.txt"
    place.write_text(SECRET + "\n")
    ways = [
        typed(project, "admin", "purge", "--file", "secret.txt", "--json"),
        typed(project, "admin", "purge", "--variable", "LEAKED", "--json", LEAKED=SECRET),
    ]
    monkeypatch.setattr(sys, "stdin", io.StringIO(SECRET + "\n"))
    ways.append(typed(project, "admin", "purge", "--json"))
    told = [json.loads(done.stdout) for done in ways]
    assert all(one == told[0] for one in told)
    assert told[0]["records"] >= 8
    assert not told[0]["done"]
    assert all(SECRET not in done.stdout + done.stderr for done in ways)


def test_what_was_put_aside_is_purged_too_and_files_are_named(project: Path) -> None:
    made = AttemptResult(
        attempt=Attempt(id="two", origin="experiment", exit="finished", summary=SECRET)
    )
    write_batch_file(
        UnsavedBatch(finished=(FinishedAttempt(made=made, job="j/1"),)),
        project / ATTEMPTS_FOLDER,
        "two",
    )
    (project / ".closeloop" / "notes.txt").write_text(SECRET)
    done = typed(project, "admin", "purge", "--variable", "LEAKED", "--yes", LEAKED=SECRET)
    assert done.returncode == 0, done.stderr
    assert "notes.txt" in done.stdout.replace("\n", "")
    assert list((project / ATTEMPTS_FOLDER).iterdir()) == []
    database = project / ".closeloop" / "closeloop.db"
    assert SECRET.encode() not in readable(database)
    with open_store(str(database)) as store:
        assert store.load_attempt("two").summary == "[purged]"
    listed = typed(project, "admin", "purge", "--list")
    assert "removed a secret from" in listed.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--variable", "NOT_SET_HERE"), "is not set"),
        (("--file", "nowhere.txt"), "cannot be read"),
        (("--file", "x", "--all-known"), "Choose one"),
        (("--variable", "SHORT"), "at least 8"),
        (("--variable", "EMPTY"), "The secret is empty"),
    ],
)
def test_bad_input_is_one_sentence(project: Path, arguments: tuple[str, ...], message: str) -> None:
    done = typed(project, "admin", "purge", *arguments, SHORT="abc", EMPTY=" ")
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
