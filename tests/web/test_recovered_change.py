"""The change of an imported session, put together from the edits in its recording."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from closeloop.process.edit_contents import recover_change
from closeloop.process.trace_reading import build_reading
from closeloop.records.attempt import Attempt
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.trace import AnyEvent, Command, Edit, Lane, Message, Trace
from closeloop.store import Store, open_store
from closeloop.web.app import build_web_app

HTML = {"accept": "text/html"}
ROOT = {"lane": "root"}
EVENTS: tuple[AnyEvent, ...] = (
    Message(number=1, role="user", text="<command-name>/mode</command-name>", **ROOT),
    Message(number=2, role="user", text="Round refunds to cents", intent="request", **ROOT),
    Edit(number=3, path="refund.py", before="a = 1\nb = 2", after="a = 3\nb = 2", ok=True, **ROOT),
    Edit(number=4, path="refund.py", before="a = 3", after="a = <script>", ok=True, **ROOT),
    Edit(number=5, path="kept.py", before="x", after="y", ok=True, **ROOT),
    Edit(number=6, path="kept.py", before="y", after="x", ok=True, **ROOT),
    Edit(number=7, path="failed.py", before="x", after="y", ok=False, **ROOT),
    Command(number=8, command="cat > note.md <<'EOF'\nhello\nEOF", exit_code=0, **ROOT),
    Command(number=9, command="pytest -q", exit_code=1, output="FAILED t.py::test_x", **ROOT),
)


def _trace(events: tuple[AnyEvent, ...] = EVENTS) -> Trace:
    return Trace(reader="made", reader_version=1, lanes=(Lane(id="root"),), events=events)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "closeloop.db")) as opened:
        for name in ("s1", "s2"):
            attempt = Attempt(id=name, origin="production", exit="finished")
            opened.save_attempt(AttemptResult(attempt=attempt, trace=_trace()))
        yield opened


def test_edits_at_one_place_become_one_hunk_and_undone_ones_are_left_out() -> None:
    files = {file.path: file for file in recover_change(build_reading(_trace()))}
    assert sorted(files) == ["note.md", "refund.py"]
    (hunk,) = files["refund.py"].hunks
    assert hunk.event == 4
    assert hunk.lines == ("-a = 1", "+a = <script>", " b = 2")
    assert (files["refund.py"].added, files["refund.py"].removed) == (1, 1)
    assert files["note.md"].status == "added"
    assert files["note.md"].hunks[0].lines == ("+hello",)


def test_a_file_created_and_deleted_again_is_no_change() -> None:
    events: tuple[AnyEvent, ...] = (
        Edit(number=1, path="tmp.py", action="create", after="x\n", ok=True, **ROOT),
        Command(number=2, command="rm tmp.py", exit_code=0, **ROOT),
    )
    assert recover_change(build_reading(_trace(events))) == ()


def test_a_file_whose_lines_are_not_recorded_has_no_counts() -> None:
    events: tuple[AnyEvent, ...] = (Edit(number=1, path="a.py", ok=True, **ROOT),)
    (file,) = recover_change(build_reading(_trace(events)))
    assert (file.is_complete, file.added, file.removed) == (False, None, None)


def test_a_patch_without_line_numbers_is_recovered() -> None:
    patch = "@@ def f():\n     x = 1\n-    y = 2\n+    y = 3\n"
    events: tuple[AnyEvent, ...] = (Edit(number=1, path="a.py", patch=patch, ok=True, **ROOT),)
    (file,) = recover_change(build_reading(_trace(events)))
    assert file.hunks[0].lines == ("     x = 1", "-    y = 2", "+    y = 3")


def test_diff_log_and_compare_show_what_the_recording_changed(store: Store) -> None:
    client = TestClient(build_web_app(store, token=None), base_url="http://127.0.0.1:4318")
    diff = client.get("/attempts/s1/diff", headers=HTML).text
    assert "Recovered from the recording" in diff
    assert "<script>" not in diff
    assert 'href="/attempts/s1#e4"' in diff
    log = client.get("/attempts/s1/log", headers=HTML).text
    assert "Round refunds to cents" in log
    assert "/mode" not in log.partition("<dt>Request")[2]
    assert "refund.py" in log
    assert "Recovered from the edits" in log
    pair = client.get("/compare?attempt=s1&attempt=s2", headers=HTML).text
    assert "recovered from the recording" in pair
    assert "the same in both" in pair
    assert "on record" not in pair
