"""What landed is read once, with what of it was reverted or repaired."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace
from risk_repository import DAY, START, commit, git

from closeloop.changes.risk import history_factor, surface_factor
from closeloop.changes.risk.change_history import (
    ChangeSize,
    FileHistory,
    History,
    commit_title,
    is_fix_message,
    list_file_histories,
    read_history,
)
from closeloop.changes.risk.risk_model import RiskModel


def body(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    commit(root, {"a.py": body("one = 1", "two = 2"), "README.md": "A\n"}, "Start")
    commit(root, {"a.py": body("one = 1", "two = 3")}, "Count better", at=START + DAY, author="bob")
    commit(root, {"b.py": body("b = 1")}, "Add b", at=START + 2 * DAY)
    commit(root, {"a.py": body("one = 1", "two = 2")}, "Fix the crash", at=START + 5 * DAY)
    return root


def read(root: Path, tmp_path: Path) -> History:
    return read_history(root, git(root, "rev-parse", "HEAD"), tmp_path / "cache")


def wrong(history: History) -> list[bool]:
    return [one.went_wrong for one in history.past]


def test_a_step_whose_lines_a_fix_replaces_went_wrong(repository: Path, tmp_path: Path) -> None:
    assert wrong(read(repository, tmp_path)) == [False, True, False, False]


def test_a_repair_after_a_long_time_is_not_held_against_it(
    repository: Path, tmp_path: Path
) -> None:
    late = START + 200 * DAY
    commit(repository, {"b.py": body("b = 2")}, "Fix b", at=late)

    assert not read(repository, tmp_path).past[2].went_wrong


def test_a_fix_of_words_blames_nobody(repository: Path, tmp_path: Path) -> None:
    commit(repository, {"b.py": body("b = 2")}, "Fix typo in docs", at=START + 6 * DAY)

    assert not read(repository, tmp_path).past[2].went_wrong


def test_a_revert_is_found_by_commit_and_by_title(repository: Path, tmp_path: Path) -> None:
    third = git(repository, "rev-parse", "HEAD~1")
    message = f"Undo\n\nThis reverts commit {third}."
    commit(repository, {"b.py": None}, message, at=START + 6 * DAY)
    merged = 'Merge pull request #7 from x/y\n\nRevert "Count better"'
    commit(repository, {"a.py": "x = 1\n"}, merged, at=START + 7 * DAY)

    assert [one.reverted for one in read(repository, tmp_path).past][:4] == [
        False,
        True,
        True,
        False,
    ]


def test_a_merge_counts_as_one_step_with_all_that_it_brought(
    repository: Path, tmp_path: Path
) -> None:
    git(repository, "checkout", "-q", "-b", "side")
    commit(repository, {"c.py": body("c = 1")}, "Part one", at=START + 6 * DAY)
    commit(repository, {"c.py": body("c = 1", "d = 2")}, "Part two", at=START + 7 * DAY)
    git(repository, "checkout", "-q", "main")
    git(repository, "merge", "-q", "--no-ff", "-m", "Merge side", "side", at=START + 8 * DAY)

    history = read(repository, tmp_path)

    assert len(history.past) == 5
    assert history.past[-1].added == 2


def test_only_lines_of_sources_are_counted(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    commit(root, {"a.py": body("a", "b"), "tests/test_a.py": body("c"), "poetry.lock": body("d")})

    assert read(root, tmp_path).past[0].added == 2


def test_a_file_keeps_its_history_through_a_rename(repository: Path, tmp_path: Path) -> None:
    git(repository, "mv", "a.py", "moved.py")
    commit(repository, {}, "Move", at=START + 6 * DAY)

    history = list_file_histories(read(repository, tmp_path), ["moved.py", "unknown.py"])

    assert set(history) == {"moved.py"}
    moved = history["moved.py"]
    assert (moved.changes, moved.fixes, moved.authors, moved.last) == (4, 1, 2, START + 6 * DAY)


def test_what_was_kept_is_carried_on_to_a_later_commit(repository: Path, tmp_path: Path) -> None:
    for number in range(40):
        commit(repository, {"c.py": body(f"c = {number}")}, at=START + 10 * DAY + number)
    first = read(repository, tmp_path)
    commit(repository, {"a.py": body("one = 5")}, "Grow", at=START + 30 * DAY)

    grown = read(repository, tmp_path)
    anew = read_history(repository, grown.head, tmp_path / "other")

    assert grown.labelled == len(first.past) == len(grown.past) - 1
    assert grown.past[-1] == anew.past[-1]
    assert list_file_histories(grown, ["a.py"]) == list_file_histories(anew, ["a.py"])


def test_a_damaged_cache_is_read_anew(repository: Path, tmp_path: Path) -> None:
    whole = read(repository, tmp_path)
    for kept in (tmp_path / "cache" / "history").iterdir():
        kept.write_bytes(b"\xff nonsense")

    assert read(repository, tmp_path) == whole


@pytest.mark.parametrize("head", ["--output=stolen", "0" * 40, "HEAD"])
def test_a_history_of_another_commit_than_its_name_says_is_read_anew(
    repository: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, head: str
) -> None:
    whole = read(repository, tmp_path)
    (kept,) = (tmp_path / "cache" / "history").iterdir()
    foreign = msgspec.msgpack.encode(replace(whole, head=head, past=(), paths=()))
    kept.write_bytes(foreign)
    if head != "0" * 40:
        kept.with_name(f"{head}.msgpack").write_bytes(foreign)

    assert read(repository, tmp_path) == whole
    assert f"{kept} was damaged, and the history is read again." in caplog.messages


def test_what_other_code_has_kept_is_read_anew(repository: Path, tmp_path: Path) -> None:
    whole = read(repository, tmp_path)
    (kept,) = (tmp_path / "cache" / "history").iterdir()
    others = replace(whole, code="of other code", past=(), paths=())
    kept.write_bytes(msgspec.msgpack.encode(others))

    assert read(repository, tmp_path) == whole


def test_a_shallow_clone_says_what_is_missing(repository: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--depth", "2", repository.as_uri(), str(clone))

    history = read(clone, tmp_path)

    assert len(history.past) == 2
    assert "unshallow" in (history.cut or "")
    git(clone, "fetch", "-q", "--unshallow")
    whole = read(clone, tmp_path)
    assert whole.cut is None
    assert len(whole.past) > 2


def test_before_the_first_commit_there_is_no_history(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")

    assert read_history(tmp_path, None, tmp_path / "cache").past == ()


def test_content_that_looks_like_a_patch_or_a_header_is_only_content(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    odd = "--- a/x.py\n+++ b/y.py\n@@ -1,1 +1,1 @@\ndiff --git a/x b/x\n"
    commit(root, {"a.py": odd + "last"}, "Odd\n\n\x01 body")
    commit(root, {"a.py": odd + "last\n"}, "End the line")
    commit(root, {"with space.py": "a\n", "ü.py": "b\n"}, "Names")

    history = read(root, tmp_path)

    assert [one.added for one in history.past] == [5, 1, 2]
    assert set(history.paths) == {"a.py", "with space.py", "ü.py"}


@pytest.mark.parametrize(
    ("message", "fixes"),
    [
        ("Fix crash on empty input", True),
        ("Merge pull request #3 from a/b\n\nFixed a regression in parsing (#3)", True),
        ("fix typo", False),
        ("Fix flake8 warnings", False),
        ('Revert "Fix crash"', False),
        ("Add prefixes", False),
        ("", False),
    ],
)
def test_a_title_says_whether_it_repairs(message: str, fixes: bool) -> None:
    assert is_fix_message(message) is fixes


@given(some.text())
def test_any_message_has_a_title_of_one_line(message: str) -> None:
    assert len(commit_title(message).splitlines()) <= 1


def reverted(history: History) -> list[str]:
    """Of what a test adds to the four steps that are there."""
    return [one.id for one in history.past[4:] if one.reverted]


def test_a_revert_inside_a_merged_branch_is_found(repository: Path, tmp_path: Path) -> None:
    """By the commit, which came with a merge itself, and lies on no main line."""
    git(repository, "checkout", "-q", "-b", "more")
    more = commit(repository, {"c.py": body("c = 1")}, "Add c", at=START + 6 * DAY)
    git(repository, "checkout", "-q", "main")
    git(repository, "merge", "-q", "--no-ff", "-m", "Merge pull request #7 from a/more", "more")
    merge = git(repository, "rev-parse", "HEAD")
    git(repository, "checkout", "-q", "-b", "other")
    commit(repository, {"d.py": body("d = 1")}, "Add d", at=START + 7 * DAY)
    words = f'Revert "Add c"\n\nThis reverts commit {more}.'
    commit(repository, {"c.py": body("c = 2", "e = 3")}, words, at=START + 8 * DAY)
    git(repository, "checkout", "-q", "main")
    git(repository, "merge", "-q", "--no-ff", "-m", "Merge pull request #8 from a/other", "other")

    assert reverted(read(repository, tmp_path)) == [merge]


@pytest.mark.parametrize(
    "words",
    [
        "Reverts #7",
        'Revert "Merge pull request #7 from a/more"',
        'Refs #12 -- Reverted "Add c".',
        "[4.2.x] Reverted `Add c`",
        "revert: Add c",
    ],
)
def test_a_revert_is_known_by_many_words(repository: Path, tmp_path: Path, words: str) -> None:
    git(repository, "checkout", "-q", "-b", "more")
    commit(repository, {"c.py": body("c = 1")}, "Add c", at=START + 6 * DAY)
    git(repository, "checkout", "-q", "main")
    git(repository, "merge", "-q", "--no-ff", "-m", "Merge pull request #7 from a/more", "more")
    merge = git(repository, "rev-parse", "HEAD")
    commit(repository, {"c.py": body("c = 2", "e = 3")}, words, at=START + 8 * DAY)

    assert reverted(read(repository, tmp_path)) == [merge]


def test_an_exact_inverse_that_does_not_say_so_is_a_revert(
    repository: Path, tmp_path: Path
) -> None:
    undone = commit(
        repository, {"a.py": body("one = 9", "two = 2", "six = 6")}, "Count", at=START + 6 * DAY
    )
    after = {"a.py": body("one = 1", "two = 2"), "NEWS.md": "Less\n"}
    commit(repository, after, "Simplify counting", at=START + 7 * DAY)

    assert reverted(read(repository, tmp_path)) == [undone]


def test_what_a_branch_undoes_of_itself_never_landed(repository: Path, tmp_path: Path) -> None:
    git(repository, "checkout", "-q", "-b", "more")
    more = commit(repository, {"c.py": body("c = 1")}, "Add c", at=START + 6 * DAY)
    words = f'Revert "Add c"\n\nThis reverts commit {more}.'
    commit(repository, {"c.py": None, "d.py": body("d = 1")}, words, at=START + 7 * DAY)
    git(repository, "checkout", "-q", "main")
    git(repository, "merge", "-q", "--no-ff", "-m", "Merge pull request #7 from a/more", "more")

    assert reverted(read(repository, tmp_path)) == []


@pytest.mark.parametrize(
    ("changes", "fixes", "reverts", "text"),
    [
        (12, 3, 1, "of 12 past changes of a.py, 3 fixed something and 1 was reverted: mistakes"),
        (4, 0, 1, "of 4 past changes of a.py, 1 was reverted: mistakes were made there before"),
        (5, 0, 0, "none of the 5 past changes of a.py was a fix or a revert"),
    ],
)
def test_the_past_of_a_file_is_a_reason(changes: int, fixes: int, reverts: int, text: str) -> None:
    past = FileHistory(changes=changes, fixes=fixes, reverts=reverts, authors=2, last=0)
    factor = history_factor({"a.py": past})
    assert factor is not None
    assert factor.text.startswith(text)


def test_a_short_past_without_fixes_is_no_reason() -> None:
    past = FileHistory(changes=4, fixes=0, reverts=0, authors=2, last=0)
    assert history_factor({"a.py": past}) is None
    assert history_factor({}) is None


@pytest.mark.parametrize(
    ("rank", "past", "text"),
    [
        (0.001, 212, "nearly all of the 212 past changes here add as many lines or more"),
        (
            0.28,
            0,
            "72 % of changes in other projects add as many lines or more, and smaller changes go"
            " wrong less often in most projects",
        ),
        (
            0.9,
            212,
            "90 % of the 212 past changes here add fewer lines, and larger changes go wrong more"
            " often in most projects",
        ),
        (0.999, 212, "nearly all of the 212 past changes here add fewer lines"),
    ],
)
def test_the_size_of_a_change_says_why_it_counts(rank: float, past: int, text: str) -> None:
    size = ChangeSize(files=1, modules=1, added=9, removed=0, entropy=0.0, source_added=9)
    factor = surface_factor(size, rank, RiskModel(past=past), 1)
    assert f"adds 9 lines to source files, in 1 file of 1 module; {text}" in factor.text
