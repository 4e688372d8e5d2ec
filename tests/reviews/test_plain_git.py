"""Teams without a code host: merges, reverts and later fixes are read from git itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from github_team import CLAUDE, START

from closeloop.git import is_missing_object
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.reviews.authorship import merge_known_agents
from closeloop.reviews.pull_backfill import import_git_history
from closeloop.reviews.pull_lifecycle import load_pull
from closeloop.store import Store, open_store

AGENTS = merge_known_agents({})


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store(":memory:") as opened:
        yield opened


class Clone:
    """A repository in which time passes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now: datetime = START
        folder.mkdir()
        self.git("init", "-q", "-b", "main")
        self.commit("Start", "ann", "a.py", "x = 1\ny = 2\nz = 3\n")

    def git(self, *arguments: str, who: str = "ann") -> str:
        self.now += timedelta(hours=1)
        dated = {f"GIT_{role}_DATE": self.now.isoformat() for role in ("AUTHOR", "COMMITTER")}
        named = {f"GIT_{role}_NAME": who for role in ("AUTHOR", "COMMITTER")}
        addressed = {f"GIT_{role}_EMAIL": f"{who}@example.org" for role in ("AUTHOR", "COMMITTER")}
        env = {**os.environ, **dated, **named, **addressed, "GIT_CONFIG_GLOBAL": "/dev/null"}
        ran = ["git", "-c", "commit.gpgsign=false", *arguments]
        done = subprocess.run(ran, cwd=self.folder, env=env, capture_output=True, check=True)
        return done.stdout.decode().strip()

    def commit(self, message: str, who: str, path: str, content: str) -> str:
        (self.folder / path).write_text(content)
        self.git("add", ".")
        self.git("commit", "-qm", message, who=who)
        return self.git("rev-parse", "HEAD")

    def branch(self, name: str) -> None:
        self.git("checkout", "-qb", name)

    def merge(self, name: str, message: str) -> str:
        self.git("checkout", "-q", "main")
        self.git("merge", "-q", "--no-ff", "-m", message, name)
        return self.git("rev-parse", "HEAD")


def test_merges_reverts_and_fixes_are_read(tmp_path: Path, store: Store) -> None:
    clone = Clone(tmp_path / "clone")
    clone.branch("claude/add")
    clone.commit(f"Add b\n\n{CLAUDE}", "ann", "b.py", "def b():\n    return 1\n")
    clone.commit("Test b", "bob", "test_b.py", "assert True\n")
    clone.merge(
        "claude/add", "Merge pull request #4 from ann/claude/add\n\nAdd b\n\nReviewed-by: bob"
    )
    clone.commit("Fix crash in b", "cat", "b.py", "def b():\n    return 2\n")
    squashed = clone.commit(
        f"Add c (#5)\n\nTask-Id: c-1\nPrompt-Version: abc12345\n{CLAUDE}", "ann", "c.py", "c = 1\n"
    )
    clone.git("revert", "--no-edit", squashed)
    clone.commit("Straight to the main line", "ann", "d.py", "d = 1\n")

    assert import_git_history(clone.folder, None, store, AGENTS, lambda done: None) == 2
    name = str(clone.folder)
    merged = load_pull(name, 4, store, AGENTS)
    assert (merged.title, merged.branch, merged.agent) == ("Add b", "claude/add", "claude-code")
    assert [(edit.by, [file.path for file in edit.files or ()]) for edit in merged.edits] == [
        ("bob", ["test_b.py"])
    ]
    assert [(pointer.kind, pointer.how) for pointer in merged.pointers] == [("fix", "blame")]
    assert merged.reviewed
    squash = load_pull(name, 5, store, AGENTS)
    assert (squash.task, squash.prompt, squash.title) == ("c-1", "abc12345", "Add c")
    assert [(pointer.kind, pointer.how) for pointer in squash.pointers] == [("revert", "message")]
    deliveries = [store.pulls.load_delivery(row.id) for row in store.list_attempts()]
    assert [one.regressed for one in deliveries if one] == [True, True]
    assert [one.cycles for one in deliveries if one] == [None, None]


def test_a_merge_without_a_number_keeps_its_own(tmp_path: Path, store: Store) -> None:
    clone = Clone(tmp_path / "clone")
    clone.branch("feature")
    clone.commit("Work", "bob", "e.py", "e = 1\n")
    sha = clone.merge("feature", "Merge branch 'feature'")
    for _ in range(2):
        import_git_history(clone.folder, "ann/tally", store, AGENTS, lambda done: None)
    (row,) = store.pulls.list_pulls()
    assert (row.pull, row.branch, row.agent) == (int(sha[:8], 16), "feature", None)


def test_what_the_host_told_stays_and_git_adds_the_fixes(tmp_path: Path, store: Store) -> None:
    from github_team import REPO, Team

    from closeloop.reviews.pull_lifecycle import save_facts

    team = Team()
    number = team.open("ann", f"Add b\n\n{CLAUDE}", branch="claude/add")
    team.review(number, "bob", "approved")
    team.merge(number)
    clone = Clone(tmp_path / "clone")
    sha = clone.commit(f"Add b (#{number})", "ann", "b.py", "def b():\n    return 1\n")
    team.deliveries[-1][1]["pull_request"]["merge_commit_sha"] = sha
    save_facts(team.facts(), store, AGENTS)
    clone.commit("Fix crash in b", "cat", "b.py", "def b():\n    return 2\n")
    import_git_history(clone.folder, REPO, store, AGENTS, lambda done: None)
    pull = load_pull(REPO, number, store, AGENTS)
    assert (pull.source, pull.reviewed) == ("github", True)
    assert [pointer.how for pointer in pull.pointers] == ["blame"]


def test_no_message_can_hide_what_came_before_it(tmp_path: Path, store: Store) -> None:
    clone = Clone(tmp_path / "clone")
    clone.branch("claude/one")
    clone.commit(f"One\n\n{CLAUDE}", "ann", "b.py", "b = 1\n")
    clone.merge("claude/one", "Merge pull request #7 from ann/claude/one")
    clone.commit("Two\x01\x01 and more", "mallory", "c.py", "c = 1\n")
    assert import_git_history(clone.folder, None, store, AGENTS, lambda done: None) >= 1
    assert 7 in {row.pull for row in store.pulls.list_pulls(agent=True)}


def test_a_folder_with_a_telling_name_is_not_taken_for_what_git_says(
    tmp_path: Path, store: Store
) -> None:
    (tmp_path / "missing").mkdir()
    broken = Clone(tmp_path / "missing" / "bad tree")
    (broken.folder / ".git" / "HEAD").write_text("")
    with pytest.raises(MachineFailed, match="not a git repository"):
        import_git_history(broken.folder, None, store, AGENTS, lambda done: None)


@pytest.mark.parametrize(
    "said",
    [
        "could not fetch {} from promisor remote",
        "unable to read {}",
        "unable to read tree ({})",
        "bad tree object {}",
        "bad object HEAD~1",
        "missing blob object '{}'",
        "Could not read {}",
    ],
)
def test_what_git_says_of_content_that_it_lacks_is_understood(said: str) -> None:
    assert is_missing_object(f"Git says: {said.format('75e71c70e36ab1186bf1140cba5d25aa96be97e8')}")


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (("--depth", "2"), "git fetch --unshallow"),
        (("--filter=blob:none",), "git fetch --refetch --no-filter"),
        (("--filter=tree:0", "--no-checkout"), "git fetch --refetch --no-filter"),
    ],
)
def test_a_clone_that_lacks_a_part_is_refused_with_what_to_do(
    tmp_path: Path, store: Store, options: tuple[str, ...], advice: str
) -> None:
    whole = Clone(tmp_path / "whole")
    whole.git("config", "uploadpack.allowFilter", "true")
    for number in range(3):
        whole.commit(f"Count (#{number})", "ann", "a.py", f"x = {number}\n" * 9)
    part = tmp_path / "part"
    whole.git("clone", "-q", *options, whole.folder.as_uri(), str(part))
    with pytest.raises(BadInput) as refused:
        import_git_history(part, None, store, AGENTS, lambda done: None)
    assert advice in str(refused.value)
    assert str(refused.value).count(". ") == 0
    assert store.pulls.list_pulls() == []
    # What git tidies up afterwards it must not do while we read.
    command = ["git", "-c", "gc.autoDetach=false", *advice.split()[1:]]
    subprocess.run(command, cwd=part, check=True, capture_output=True)
    assert import_git_history(part, None, store, AGENTS, lambda done: None) == 3
