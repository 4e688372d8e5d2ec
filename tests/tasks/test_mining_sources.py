"""Pull requests and agents' sessions as work: what was asked, what was accepted, what was said."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio
import pytest

import small_project
from closeloop.cli.mine import _print_mining_report, fetch_merged_pulls, origin_repo_name
from closeloop.records.attempt import Attempt
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.task import Acceptance, Task
from closeloop.records.trace import Edit, Lane, Message, Trace
from closeloop.store import open_store
from closeloop.tasks.miner import MiningResult
from closeloop.tasks.work_history import (
    ExportedPull,
    SourcedWork,
    find_linked_issue,
    gather_named_work,
    gather_pull_work,
    gather_session_work,
    list_past_work,
    read_pull_exports,
    read_saved_exports,
    with_source_tags,
)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A calculator that was mended once."""
    folder = small_project.build(tmp_path / "calculator")
    text = small_project.CALCULATOR.replace("a - b", "a + b")
    (folder / "calculator.py").write_text(text)
    small_project.git(folder, "commit", "-qam", "wip")
    return folder


def export(folder: Path, **pull: object) -> Path:
    line = {
        "pull": {
            "number": 7,
            "title": "Mend add",
            "body": "Fixes #3. Uses `+`.",
            "merged_at": "2024-05-01T12:00:00Z",
            "merge_commit_sha": small_project.git(folder, "rev-parse", "HEAD").strip(),
            "user": {"login": "bob", "id": 1},
            "unknown": [1],
            **pull,
        },
        "issue": {"title": "Sums are wrong", "body": "add(2, 3) gives -1."},
        "comments": [
            {"body": "Please add a test.", "user": {"login": "ann"}},
            {"body": "Done.", "user": {"login": "bob"}},
        ],
        "checks": [
            {"head_sha": "a" * 40, "name": "unit tests", "conclusion": "failure"},
            {"conclusion": "success"},
        ],
    }
    path = folder.parent / "pulls.jsonl"
    path.write_text(json.dumps(line) + "\n")
    return path


def test_a_merged_pull_request_asks_what_its_issue_asks(repo):
    gathered = gather_pull_work(list(read_pull_exports(export(repo))), repo)
    [given] = gathered.works
    assert given.work.message == "Sums are wrong\n\nadd(2, 3) gives -1."
    assert given.work.base == small_project.git(repo, "rev-parse", "HEAD^").strip()
    assert given.tags == ("pull-request", "reviewed", "failed-in-ci")
    assert given.rubric is not None
    assert "Please add a test." in given.rubric
    assert "unit tests: failure at aaaaaaa" in given.rubric
    assert "Done." not in given.rubric, "an author does not correct themselves"
    tags = {given.work.commit: ["scope-creep"]}
    (tagged,) = gather_pull_work(list(read_pull_exports(export(repo))), repo, tags).works
    assert tagged.tags == (*given.tags, "scope-creep")


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"merged_at": None}, "not merged"), ({"merge_commit_sha": "0" * 40}, "not in this clone")],
)
def test_what_was_not_accepted_is_passed_over(repo, changes, why):
    gathered = gather_pull_work(list(read_pull_exports(export(repo, **changes))), repo)
    assert gathered.works == ()
    assert why in gathered.passed_over["pull request 7"]


def test_an_export_that_is_none_is_refused(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"pull": {"number": "seven"}}\n')
    with pytest.raises(BadInput, match="line 1 is not a pull request"):
        list(read_pull_exports(tmp_path / "x.jsonl"))


def test_issues_are_linked_by_the_words_that_close_them():
    assert (
        find_linked_issue(ExportedPull(number=1, title="x", body="This fixes: #12 and #13")) == 12
    )
    assert find_linked_issue(ExportedPull(number=1, title="x", body="See #12")) is None


def test_tags_and_words_do_not_change_what_a_task_is(repo):
    task = Task(id="x", prompt="x", acceptance=Acceptance(run="x"), tags=("mined",), digest="d")
    given = SourcedWork(work=list_past_work(repo)[0], tags=("reviewed", "mined"), rubric="Said.")
    made = with_source_tags(task, given)
    assert (made.tags, made.rubric, made.digest) == (("mined", "reviewed"), "Said.", "d")
    assert with_source_tags(task, None) == task


# Sessions


def session(repo: Path, *, path: str = "calculator.py", day: int = 1) -> Attempt:
    return Attempt(
        id="session",
        origin="production",
        exit="finished",
        repo=str(repo),
        started=datetime(2024, 5, day, 11, tzinfo=UTC),
        ended=datetime(2024, 5, day, 11, 30, tzinfo=UTC),
    )


def trace(path: str) -> Trace:
    words = ("add subtracts, please mend it", "No, keep double as it is.")
    first, second = (
        Message(number=n, lane="main", role="user", text=text)
        for n, text in ((1, words[0]), (3, words[1]))
    )
    edit = Edit(number=2, lane="main", path=path, ok=True)
    return Trace(
        reader="x", reader_version=1, lanes=(Lane(id="main"),), events=(first, edit, second)
    )


@pytest.mark.parametrize(
    ("day", "path", "found"),
    [
        (1, "calculator.py", True),
        (1, "{repo}/calculator.py", True),
        (1, "other.py", False),
        (5, "calculator.py", False),
    ],
)
def test_a_session_is_the_work_whose_files_and_time_are_the_same(repo, day, path, found):
    with open_store(":memory:") as store:
        store.save_attempt(
            AttemptResult(attempt=session(repo, day=day), trace=trace(path.format(repo=repo)))
        )
        gathered = gather_session_work(store, repo, {"session": ("scope-creep",)})
    assert bool(gathered.works) == found
    if found:
        [given] = gathered.works
        assert given.work.message == "add subtracts, please mend it"
        assert given.tags == ("agent-session", "corrected", "scope-creep")
        assert "keep double" in (given.rubric or "")
    else:
        assert gathered.passed_over == {"session session": "no commit contains its change"}


# GitHub


@pytest.fixture
def github(repo: Path) -> Iterator[tuple[str, list[str]]]:
    """A server that plays GitHub; what it was asked."""
    asked: list[str] = []
    line = json.loads(export(repo).read_text())
    answers = {
        "pulls": [
            line["pull"],
            {**line["pull"], "number": 8, "merged_at": None},
            {**line["pull"], "number": 9, "body": None},
        ],
        "pulls/9/comments": [],
        "pulls/9/commits": [],
        "pulls/7/comments": line["comments"],
        "pulls/7/commits": [{"sha": "a" * 40}],
        f"commits/{'a' * 40}/check-runs": {"check_runs": line["checks"]},
        "issues/3": line["issue"],
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.partition("?")[0].removeprefix("/repos/ann/calculator/")
            asked.append(name)
            body = json.dumps(answers[name]).encode()
            # The first question about the second pull request is one too many.
            limited = name == "pulls/9/comments" and asked.count(name) == 1
            self.send_response(403 if limited else 200)
            if limited:
                self.send_header("x-ratelimit-remaining", "0")
                self.send_header("x-ratelimit-reset", str(int(time.time()) + 3600))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def test_github_is_asked_once_for_each_pull_request_whatever_its_limit(
    repo, github, monkeypatch, tmp_path
):
    address, asked = github
    monkeypatch.setenv("GITHUB_API_URL", address)
    monkeypatch.setenv("GITHUB_TOKEN", "t")
    small_project.git(repo, "remote", "add", "origin", "git@example.org:ann/calculator.git")
    kept = tmp_path / "kept/pulls.jsonl"
    with pytest.raises(MachineFailed, match=r"is reached for \d+ minutes"):
        anyio.run(fetch_merged_pulls, repo, kept)
    assert list(read_saved_exports(kept)) == [7]
    kept.write_bytes(kept.read_bytes() + b'{"pull": {"num')
    before = len(asked)
    first, second = anyio.run(fetch_merged_pulls, repo, kept)
    assert first == next(read_pull_exports(export(repo)))
    assert (second.pull.number, second.issue) == (9, None)
    again = ["pulls", "pulls/9/comments", "pulls/9/commits"]
    assert asked[before:] == again, "what is kept is not asked for again"
    assert list(read_saved_exports(kept)) == [7, 9]


def test_named_commits_are_the_work(repo):
    head, base = small_project.git(repo, "rev-parse", "HEAD", "HEAD^").split()
    for names in ("HEAD", head[:9], f"{base}..HEAD", f"HEAD,{head}"):
        gathered = gather_named_work(repo, names)
        assert [given.work.commit for given in gathered.works] == [head], names
    assert gather_named_work(repo, base).works == (), "the first commit has no parent"
    assert gather_named_work(repo, "HEAD..HEAD").works == ()
    assert gather_named_work(repo, "nowhere") is None
    assert gather_named_work(repo, "--all") is None


@pytest.mark.parametrize(
    ("source", "passed_over", "told"),
    [
        ("v1..v2", {}, "No work in these commits .* they are merges, or the first commit."),
        ("pulls", {"it was not merged": 3, "x": 1}, "No pull request here .* it was not merged."),
        ("export.jsonl", {}, "No pull request here .* there are no pull requests."),
        ("sessions", {}, "No session here .* no session is imported"),
        ("git", {"it changes no tests": 1}, "No commit here .* Mostly: it changes no tests."),
    ],
)
def test_a_source_without_work_says_so_in_its_own_words(capsys, source, passed_over, told):
    _print_mining_report(MiningResult(passed_over=passed_over), {}, 20, source)
    assert re.search(told, " ".join(capsys.readouterr().out.split()))


def test_a_clone_of_nowhere_has_no_name(repo):
    with pytest.raises(BadInput, match="no origin"):
        origin_repo_name(repo)
