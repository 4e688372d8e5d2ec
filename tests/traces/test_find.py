"""Files are found one by one, wherever they lie, and what cannot be looked at is named."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from closeloop.traces.file_source import (
    RecordingFile,
    UnreadablePath,
    default_folders,
    stat_recording,
    walk_files,
)
from closeloop.traces.session_import import repository_address


def paths(*places: Path) -> list[str]:
    return [Path(each.path).name for each in walk_files(places) if isinstance(each, RecordingFile)]


def test_every_file_below_a_folder_is_found_once(tmp_path: Path) -> None:
    for name in ("a/one", "a/b/two", "three", ".hidden/four"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert sorted(paths(tmp_path, tmp_path / "a")) == ["four", "one", "three", "two"]


def test_links_that_lead_in_circles_end(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/one").write_text("x")
    (tmp_path / "a/back").symlink_to(tmp_path)
    (tmp_path / "a/self").symlink_to(tmp_path / "a/self")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    found = list(walk_files([tmp_path]))
    assert [Path(each.path).name for each in found if isinstance(each, RecordingFile)] == ["one"]
    assert sorted(Path(each.path).name for each in found if isinstance(each, UnreadablePath)) == [
        "gone",
        "self",
    ]


def test_a_linked_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/one").write_text("x")
    (tmp_path / "start").mkdir()
    (tmp_path / "start/link").symlink_to(tmp_path / "real")
    assert paths(tmp_path / "start") == ["one"]


def test_pipes_are_not_opened_and_repositories_are_not_searched(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/object").write_text("x")
    assert paths(tmp_path) == []


def test_a_place_that_is_not_there_is_named(tmp_path: Path) -> None:
    (closed,) = walk_files([tmp_path / "absent"])
    assert closed == UnreadablePath(path=str(tmp_path / "absent"), why="No such file or directory")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_closed_folder_is_named_and_the_rest_is_found(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    (tmp_path / "one").write_text("x")
    found = list(walk_files([tmp_path]))
    (tmp_path / "closed").chmod(0o700)
    assert {type(each) for each in found} == {RecordingFile, UnreadablePath}


def test_names_that_are_no_text_are_found(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")).write_text("x")
    assert len(paths(tmp_path)) == 1


def test_what_is_still_in_a_databases_log_counts_as_a_change(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE t (x)")
    before = stat_recording(str(path))
    database.execute("INSERT INTO t VALUES (1)")
    database.commit()
    assert stat_recording(str(path)) != before
    database.close()


def test_agents_folders_are_found_where_they_exist(tmp_path: Path) -> None:
    assert default_folders(tmp_path) == []
    roo = ".config/Code/User/globalStorage/rooveterinaryinc.roo-cline/tasks"
    for name in (".claude/projects", ".codex/sessions", roo):
        (tmp_path / name).mkdir(parents=True)
    assert default_folders(tmp_path) == [
        tmp_path / ".claude/projects",
        tmp_path / ".codex/sessions",
        tmp_path / roo,
    ]


def test_a_repository_is_named_by_its_origin_without_credentials(tmp_path: Path) -> None:
    (tmp_path / "project/.git").mkdir(parents=True)
    (tmp_path / "project/src").mkdir()
    here = str(tmp_path / "project/src")
    assert repository_address(here) == str(tmp_path / "project")
    repository_address.cache_clear()
    (tmp_path / "project/.git/config").write_text(
        '[core]\n\tbare = false\n[remote "origin"]\n\tfetch = +refs\n'
        "\turl = https://ann:hunter2@git.example.org/billing.git\n"
    )
    assert repository_address(here) == "https://git.example.org/billing.git"
    assert repository_address("/no/longer/there") == "/no/longer/there"
    assert repository_address(None) is None
    repository_address.cache_clear()
