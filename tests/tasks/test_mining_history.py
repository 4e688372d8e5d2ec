"""History is read as pieces of work that were accepted, and ranked."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from closeloop.records.change import FileChange
from closeloop.tasks.candidate_builder import (
    TaskCandidate,
    build_candidate,
    open_manifests,
    rank_work,
    score_work,
    survey_work,
)
from closeloop.tasks.change_parts import find_collection_rules
from closeloop.tasks.work_history import PastWork, is_shallow_clone, list_past_work

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WHO = {
    f"GIT_{who}_{what}": "someone@example.org"
    for who in ("AUTHOR", "COMMITTER")
    for what in ("NAME", "EMAIL")
}


class History:
    """A repository that grows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "-q", "-b", "main")
        self.commit("Start", {"shop.py": "A = 1\n", "test_shop.py": "def test_a():\n    pass\n"})

    def git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.folder), *arguments]
        env = {**os.environ, **WHO, "GIT_CONFIG_GLOBAL": "/dev/null"}
        return subprocess.run(
            command, check=True, capture_output=True, text=True, env=env
        ).stdout.strip()

    def commit(self, message: str, files: dict[str, str]) -> str:
        for name, text in files.items():
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def merge(self, branch: str, message: str) -> str:
        self.git("checkout", "-q", "main")
        self.git("merge", "-q", "--no-ff", branch, "-m", message)
        return self.git("rev-parse", "HEAD")

    def branch(self, name: str) -> None:
        self.git("checkout", "-q", "-b", name)


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "shop")


def test_a_pull_request_is_one_piece_of_work_with_its_title(history: History) -> None:
    history.branch("topic")
    history.commit("first\n\nWhy it is wanted.", {"shop.py": "A = 2\n"})
    history.commit("oops", {"shop.py": "A = 3\n"})
    merge = history.merge("topic", "Merge pull request #3 from me/topic\n\nCount to three")
    found = list_past_work(history.folder)
    assert [work.commit for work in found] == [merge]
    assert found[0].message == "Count to three\n\nWhy it is wanted."


def test_a_short_title_is_told_more_by_commits_that_speak_of_the_same(history: History) -> None:
    history.branch("topic")
    for message in ("Add totals", "Formatted with black", "Round totals half up", "add: totals"):
        history.commit(message, {"shop.py": f"A = '{message}'\n"})
    history.merge("topic", "Merge pull request #3 from me/topic\n\nAdd totals")
    assert list_past_work(history.folder)[0].message == "Add totals\n\nRound totals half up"


def test_a_pull_request_may_be_merged_under_its_own_title(history: History) -> None:
    history.branch("topic")
    history.commit("first", {"shop.py": "A = 2\n"})
    history.commit("Count better\n\nBy hand.", {"shop.py": "A = 3\n"})
    merge = history.merge("topic", "Count to three (#3)")
    found = list_past_work(history.folder)
    assert [work.commit for work in found] == [merge]
    assert found[0].message == "Count to three (#3)\n\nBy hand."


@pytest.mark.parametrize("message", ["Merge branch '8.1.x'", "Merge `stable` into `main` (#4)"])
def test_a_merged_release_branch_counts_by_its_own_commits(history: History, message: str) -> None:
    history.branch("8.1.x")
    fix = history.commit("Mend it", {"shop.py": "A = 2\n"})
    history.merge("8.1.x", message)
    assert [work.commit for work in list_past_work(history.folder)] == [fix]


def test_the_first_commit_is_no_work_and_a_shallow_clone_says_so(
    history: History, tmp_path: Path
) -> None:
    history.commit("Mend it", {"shop.py": "A = 2\n"})
    shallow = tmp_path / "shallow"
    source = f"file://{history.folder}"
    subprocess.run(["git", "clone", "-q", "--depth=1", source, str(shallow)], check=True)
    assert list_past_work(shallow) == []
    assert is_shallow_clone(shallow)
    assert not is_shallow_clone(history.folder)


def test_only_work_on_source_and_tests_is_a_candidate(history: History) -> None:
    history.commit("Docs", {"README.md": "read\n"})
    history.commit("Only source", {"shop.py": "A = 2\n"})
    history.commit("Only tests", {"test_shop.py": "def test_b():\n    pass\n"})
    both = history.commit(
        "Prices are never negative",
        {"shop.py": "A = 3\n", "test_shop.py": "def test_c():\n    pass\n", "CHANGES.md": "- x\n"},
    )
    with open_manifests(history.folder, "HEAD") as folder:
        rules = find_collection_rules(folder, "pytest")
    lode = survey_work(history.folder, rules, None, NOW)
    assert [work.commit for work in lode.works] == [both]
    assert sorted(lode.passed_over.values()) == [
        "it changes no source",
        "it changes no tests",
        "it changes no tests",
    ]
    found = build_candidate(history.folder, lode.works[0], rules)
    assert isinstance(found, TaskCandidate)
    assert found.source_files == ("shop.py",)
    assert found.test_files == ("test_shop.py",)
    assert "CHANGES" not in found.source + found.tests


@pytest.mark.parametrize(
    ("names", "large"),
    [
        (["a.json"] * 60 + ["gen/api_pb2.py", "vendor/b.go", "shop.py"], False),
        (["a.py"] * 13, True),
        (["a.py"] * 51, None),
        (["a.json"] * 51, None),
    ],
)
def test_only_code_that_people_write_makes_work_large(history: History, names, large) -> None:
    files = {}
    for number, name in enumerate(names):
        folder, _, file = name.rpartition("/")
        files[f"{folder or '.'}/{number}-{file}"] = "1\n"
    commit = history.commit(
        "Prices are never negative", files | {"test_shop.py": "def test_c():\n    pass\n"}
    )
    with open_manifests(history.folder, "HEAD") as folder:
        rules = find_collection_rules(folder, "pytest")
    survey = survey_work(history.folder, rules, None, NOW)
    if large is None:
        assert survey.passed_over[commit].startswith("it changes 51 files of code, too many")
        return
    found = build_candidate(history.folder, survey.works[0], rules)
    assert isinstance(found, TaskCandidate)
    assert found.large is large


def test_commits_whose_content_is_missing_are_passed_over_with_the_reason(history: History) -> None:
    tests = "def test_{}():\n    pass\n"
    works = [
        history.commit(
            f"Prices are {name}", {"shop.py": f"A = '{name}'\n", "test_shop.py": tests.format(name)}
        )
        for name in ("early", "lost", "after", "late")
    ]
    blob = history.git("rev-parse", f"{works[1]}:shop.py")
    (history.folder / ".git/objects" / blob[:2] / blob[2:]).unlink()
    with open_manifests(history.folder, "HEAD") as folder:
        rules = find_collection_rules(folder, "pytest")
    lode = survey_work(history.folder, rules, None, NOW)
    assert {work.commit for work in lode.works} == {works[0], works[3]}
    assert {*lode.passed_over} == {works[1], works[2]}
    assert all("this clone is partial" in why for why in lode.passed_over.values())


def test_a_name_that_the_base_has_somewhere_is_not_told(history: History) -> None:
    history.commit("Notes", {"notes.py": "def known(): ...\n"})
    history.commit(
        "Orders can be counted by day",
        {
            "shop.py": "def known(): ...\ndef by_day(): ...\n",
            "test_shop.py": "def test_a():\n    known()\n    by_day()\n",
        },
    )
    with open_manifests(history.folder, "HEAD") as folder:
        rules = find_collection_rules(folder, "pytest")
    found = build_candidate(history.folder, list_past_work(history.folder)[0], rules)
    assert isinstance(found, TaskCandidate)
    assert "Names to use: `shop.by_day`." in found.prompt


def work(message: str, year: int = 2025) -> PastWork:
    return PastWork(commit="c", base="b", at=datetime(year, 1, 1, tzinfo=UTC), message=message)


def lines(count: int) -> list[FileChange]:
    return [FileChange(path="a.py", status="changed", added=count)]


def test_an_hours_work_with_a_telling_message_comes_first() -> None:
    good = score_work("Fix rounding of totals in refunds", False, lines(25), lines(20))
    assert good > score_work("Fix rounding of totals in refunds", False, lines(700), lines(20))
    assert good > score_work("Fix rounding of totals in refunds", False, lines(1), lines(20))
    assert good > score_work("Refactor refunds and totals again", False, lines(25), lines(20))
    assert good > score_work("oops", False, lines(25), lines(20))
    assert good > 1 + score_work("Fix rounding of totals", False, lines(25), lines(20))
    assert good > score_work("Add more tests for rounding of totals", False, lines(25), lines(20))
    assert good > score_work("`shop.total`: add tests", False, lines(25), lines(20))
    assert good > score_work("test: fix rounding of totals in refunds", False, lines(25), lines(20))
    assert good > score_work("style(shop): fix rounding of totals", False, lines(25), lines(20))
    assert good < score_work(
        "fix(style): fix rounding of totals in refunds", False, lines(25), lines(20)
    )
    tests = "Fix tests being collected twice or more"
    assert good < 2 + score_work(tests, False, lines(25), lines(20))
    assert good < score_work("Fix rounding of totals in refunds", True, lines(25), lines(20))
    changed = [FileChange(path="test_a.py", status="changed", added=20, removed=20)]
    assert good > score_work("Fix rounding of totals in refunds", False, lines(25), changed)


def test_newer_work_comes_before_equal_older_work() -> None:
    old, new = work("a", 2019), work("b", 2025)
    assert rank_work([(1.0, old), (1.0, new)], NOW) == [new, old]
    assert rank_work([(9.0, old), (1.0, new)], NOW) == [old, new]
