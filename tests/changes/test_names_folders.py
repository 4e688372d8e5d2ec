"""Folders for the type checker: bounded in number, and never taken from who uses them."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from closeloop.changes.names import type_diagnostics
from closeloop.changes.names.type_diagnostics import lock_folder
from patience import PATIENCE


def make_folder(parent: Path, name: str, used: float) -> Path:
    """A folder with a file laid out, last used at that time."""
    folder = parent / name
    (folder / "tree").mkdir(parents=True)
    (folder / "tree" / "a.py").write_text("a = 1\n")
    (folder / "lock").touch()
    os.utime(folder / "lock", (used, used))
    return folder


def list_names(parent: Path) -> set[str]:
    return {one.name for one in parent.iterdir()}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type_diagnostics, "MAX_FOLDERS", 3)


def test_those_used_longest_ago_are_removed(tmp_path: Path) -> None:
    for used, name in enumerate(("e", "d", "c", "b", "a"), start=1):
        make_folder(tmp_path, name, used)
    with lock_folder(tmp_path / "new", PATIENCE):
        assert list_names(tmp_path) == {"a", "b", "new"}


def test_a_folder_that_is_used_again_stays(tmp_path: Path) -> None:
    for used, name in enumerate(("old", "b", "c"), start=1):
        make_folder(tmp_path, name, used)
    with lock_folder(tmp_path / "old", PATIENCE):
        pass
    with lock_folder(tmp_path / "new", PATIENCE):
        assert list_names(tmp_path) == {"old", "c", "new"}


def test_a_folder_in_use_is_not_removed(tmp_path: Path) -> None:
    make_folder(tmp_path, "busy", 1)
    with lock_folder(tmp_path / "busy", PATIENCE):
        os.utime(tmp_path / "busy" / "lock", (1, 1))
        for used, name in enumerate(("a", "b", "c"), start=2):
            make_folder(tmp_path, name, used)
        with lock_folder(tmp_path / "new", PATIENCE):
            assert (tmp_path / "busy" / "tree" / "a.py").exists()


def test_what_a_killed_process_left_half_removed_goes(tmp_path: Path) -> None:
    make_folder(tmp_path, "removed-a-1", 9)
    with lock_folder(tmp_path / "new", PATIENCE):
        assert list_names(tmp_path) == {"new"}


def test_many_at_once_each_have_their_folder_to_themselves(tmp_path: Path) -> None:
    def use_folder(number: int) -> bool:
        folder = tmp_path / str(number % 7)
        with lock_folder(folder, PATIENCE):
            mine = folder / "mine"
            mine.write_text(str(number))
            alone = mine.read_text() == str(number)
            mine.unlink()
            return alone

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use_folder, range(200)))
    with lock_folder(tmp_path / "last", PATIENCE):
        assert len(list_names(tmp_path)) == 3
