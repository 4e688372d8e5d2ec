"""Pull requests with their diff, their size, their agent and whoever asked for them."""

from __future__ import annotations

import subprocess
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from team import AGENTS, REPO, day

from closeloop.changes.code_host import open_code_host
from closeloop.cli import main
from closeloop.metrics.attempt_measuring import project_rulebook
from closeloop.metrics.attempt_table import load_attempt_table
from closeloop.metrics.metric_figures import compute_metrics
from closeloop.records.attempt import Attempt, Usage
from closeloop.records.errors import BadInput
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.orchestration import DeliveryBranch
from closeloop.records.pull_request import Fact, FileEdit, PullCommit, PullDescription, PullExtent
from closeloop.records.settings import Settings
from closeloop.records.task import Variant
from closeloop.reviews.host_pulls import GithubFile
from closeloop.reviews.pull_board import RiskAssessment, list_board
from closeloop.reviews.pull_changes import (
    GitlabFileDiff,
    _log_failures,
    change_from_clone,
    change_from_github,
    change_from_gitlab,
    fetch_missing_changes,
    list_pulls_without_change,
    run_change_worker,
)
from closeloop.reviews.pull_lifecycle import load_pull, save_facts
from closeloop.store import Store, open_store
from closeloop.store.event_section import delivery_step_key
from closeloop.text.patches import parse_patch, sum_line_counts
from code_hosts import FULL, CodeHosts, serving_host

HEAD = "c0ffee" * 6 + "c0ff"
TOKEN = "ghp_" + "q" * 36
FILES = [
    {"sha": "a", "filename": "shop.py", "status": "modified", "additions": 1, "deletions": 1,
     "changes": 2, "patch": "@@ -1 +1 @@\n-a\n+b"},
]  # fmt: skip


@pytest.fixture
def store(store_url: str) -> Store:
    return open_store(store_url)


def described(number: int = 1, **changes: Any) -> list[Fact]:
    """What a webhook alone tells of a pull request."""
    known: dict[str, Any] = {
        "title": "Round prices",
        "author": "copilot-swe-agent[bot]",
        "bot": True,
        "branch": f"copilot/{number}",
        "base": "main",
        "head": HEAD,
        "opened": day(0),
    }
    what = PullDescription(**(known | changes))
    key = f"{number}-{what.state}-{what.head}"
    return [Fact(source="github", repo=REPO, pull=number, at=day(0), key=key, what=what)]


def committed(number: int, message: str, sha: str = HEAD) -> Fact:
    what = PullCommit(sha=sha, at=day(0), message=message, author="copilot")
    return Fact(source="github", repo=REPO, pull=number, at=day(0), key=f"c{number}", what=what)


def fetched(
    store: Store, host: CodeHosts | None, *clones: Path, risk: RiskAssessment | None = None
) -> Any:
    environ = {"GITHUB_TOKEN": TOKEN, "GITHUB_API_URL": host.address} if host else {}
    return anyio.run(
        fetch_missing_changes,
        store,
        AGENTS,
        list_pulls_without_change(store),
        partial(open_code_host, environ=environ),
        clones,
        risk,
    )


def test_a_pull_request_known_by_webhook_alone_gets_its_diff_from_the_api(store: Store) -> None:
    save_facts(described(), store, AGENTS)
    row = store.pulls.load_pull(REPO, 1)
    assert row is not None
    assert (row.has_change, row.added, row.removed) == (False, None, None)
    secret = "ghp_aB3dE6gH9jK2mN5pQ8sT1vW4xY7zA0cF1bD2"
    files = [
        {"sha": "a", "filename": "shop.py", "status": "modified", "additions": 2, "deletions": 1,
         "changes": 3, "patch": f"@@ -1 +1,2 @@\n-price = 1\n+price = 2\n+key = '{secret}'"},
        {"sha": "b", "filename": "logo.png", "status": "added", "additions": 0, "deletions": 0,
         "changes": 0},
    ]  # fmt: skip
    host = CodeHosts("github", lambda method, path, payload: (200, files))
    host.tokens[TOKEN] = FULL
    with serving_host(host):
        told = fetched(store, host)
    assert (told.fetched, told.from_clone, told.missing) == (1, 0, {})
    row = store.pulls.load_pull(REPO, 1)
    assert row is not None
    assert (row.has_change, row.files, row.added, row.removed) == (True, 2, 2, 1)
    change = store.pulls.load_change(REPO, 1, HEAD)
    assert change is not None
    assert "+price = 2" in change.patch
    assert secret not in change.patch
    assert [file.path for file in change.files if file.binary] == ["logo.png"]


def test_what_cannot_be_had_is_told_and_is_not_zero(store: Store) -> None:
    save_facts(described(), store, AGENTS)
    told = fetched(store, None)
    assert told.fetched == 0
    assert "there is no token for its host" in told.missing[f"{REPO}#1"]
    row = store.pulls.load_pull(REPO, 1)
    assert row is not None
    assert (row.has_change, row.added) == (False, None)


def test_a_server_fetches_the_diff_by_itself_and_keeps_the_token_to_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "closeloop.db"
    host = CodeHosts("github", lambda method, path, payload: (200, FILES))
    host.tokens[TOKEN] = FULL

    async def serve_until_fetched() -> None:
        environ = {"GITHUB_TOKEN": TOKEN, "GITHUB_API_URL": host.address}
        opener = partial(open_code_host, environ=environ)
        async with anyio.create_task_group() as group:
            group.start_soon(run_change_worker, store, AGENTS, opener, ())
            while list_pulls_without_change(store):  # noqa: ASYNC110 - a row, which wakes nobody
                await anyio.sleep(0.01)
            group.cancel_scope.cancel()

    with open_store(str(path)) as store, caplog.at_level("DEBUG"), serving_host(host):
        save_facts([*described(), *described(2)], store, AGENTS)
        anyio.run(serve_until_fetched)
    assert TOKEN not in caplog.text
    stored = b"".join(file.read_bytes() for file in tmp_path.glob("closeloop.db*"))
    assert TOKEN.encode() not in stored


def git(folder: Path, *arguments: str) -> str:
    command = ("git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_without_a_token_the_diff_comes_from_the_clone(store: Store, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    git(clone, "init", "-q", "-b", "main")
    git(clone, "remote", "add", "origin", f"https://github.com/{REPO}.git")
    (clone / "shop.py").write_text("price = 1\n")
    git(clone, "add", ".")
    git(clone, "commit", "-qm", "one")
    git(clone, "checkout", "-qb", "copilot/1")
    (clone / "shop.py").write_text("price = 2\nname = 3\n")
    git(clone, "commit", "-qam", "two")
    head = git(clone, "rev-parse", "HEAD")
    git(clone, "checkout", "-q", "main")
    save_facts(described(head=head), store, AGENTS)
    told = fetched(store, None, clone)
    assert (told.fetched, told.from_clone) == (1, 1)
    row = store.pulls.load_pull(REPO, 1)
    assert row is not None
    assert (row.files, row.added, row.removed) == (1, 2, 1)


def test_the_risk_of_what_is_fetched_is_told_by_the_clone_or_by_the_diff_alone(
    store: Store, tmp_path: Path
) -> None:
    clone, risk = tmp_path / "clone", RiskAssessment(cache=tmp_path / "cache")
    clone.mkdir()
    git(clone, "init", "-q", "-b", "main")
    git(clone, "remote", "add", "origin", f"https://github.com/{REPO}.git")
    git(clone, "commit", "-qm", "one", "--allow-empty")
    git(clone, "checkout", "-qb", "copilot/1")
    (clone / "schema.sql").write_text("CREATE TABLE a (x TEXT);\n")
    git(clone, "add", ".")
    git(clone, "commit", "-qm", "two")
    save_facts(described(1, head=git(clone, "rev-parse", "HEAD")), store, AGENTS)
    save_facts([*described(2), *described(3, head="d" * 40)], store, AGENTS)
    schema = {"sha": "a", "filename": "migrations/1.sql", "status": "added", "deletions": 0}
    lines = {"additions": 1, "changes": 1, "patch": "@@ -0,0 +1 @@\n+CREATE TABLE a (x TEXT);"}
    hidden = {"additions": 9, "changes": 9}
    answers = {1: FILES, 2: [schema | lines], 3: [schema | hidden]}
    host = CodeHosts("github", lambda _, path, __: (200, answers[int(path.split("/")[-2])]))
    host.tokens[TOKEN] = FULL
    with serving_host(host):
        assert fetched(store, host, clone, risk=risk).fetched == 3
    rows = {row.pull: row for row in store.pulls.list_pulls()}
    # Of the first only the clone shows a schema; of the last nobody told the lines.
    assert [rows[number].risk for number in (1, 2, 3)] == ["critical", "critical", None]


def test_a_pull_request_merged_as_it_was_is_not_taken_for_its_last_commit(
    store: Store, tmp_path: Path
) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "remote", "add", "origin", f"https://github.com/{REPO}.git")
    for number in range(3):
        (tmp_path / f"{number}.py").write_text("price = 1\n")
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-qm", str(number))
    head = git(tmp_path, "rev-parse", "HEAD")
    merged = {"state": "merged", "merged": day(1), "closed": day(1), "merge_commit": head}
    save_facts(described(head=head, **merged), store, AGENTS)
    told = fetched(store, None, tmp_path)
    assert (told.fetched, [*told.missing]) == (0, [f"{REPO}#1"])


def test_a_diff_that_cannot_be_read_keeps_no_other_from_being_fetched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host = CodeHosts("github", lambda method, path, payload: (200, FILES))
    host.tokens[TOKEN] = FULL

    def opener(source: str, repo: str) -> Any:
        opened.append(repo)
        if len(opened) == 1:
            raise BadInput("A GitHub App needs both.")
        environ = {"GITHUB_TOKEN": TOKEN, "GITHUB_API_URL": host.address}
        return open_code_host(source, repo, environ)

    async def serve_until_fetched() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(run_change_worker, store, AGENTS, opener, ())
            with anyio.move_on_after(20):
                while len(list_pulls_without_change(store)) > 1:  # noqa: ASYNC110 - as above
                    await anyio.sleep(0.01)
            group.cancel_scope.cancel()

    opened: list[str] = []
    with open_store(str(tmp_path / "closeloop.db")) as store, serving_host(host):
        save_facts([*described(), *described(2)], store, AGENTS)
        anyio.run(serve_until_fetched)
        assert len(list_pulls_without_change(store)) == 1
    assert "A GitHub App needs both." in caplog.text


def test_sizes_of_an_earlier_commit_are_not_those_of_the_newest(store: Store) -> None:
    later = described(head="d" * 40)[0]
    facts = [*described(added=5, removed=2, files=1), Fact(**{**as_fields(later), "at": day(1)})]
    save_facts(facts, store, AGENTS)
    assert load_pull(REPO, 1, store, AGENTS).added is None


def as_fields(fact: Fact) -> dict[str, Any]:
    return {name: getattr(fact, name) for name in Fact.__struct_fields__}


def test_files_without_counts_leave_the_size_unknown(store: Store) -> None:
    for number, added in ((1, None), (2, 4)):
        edits = (FileEdit(path="a.py", added=3, removed=0), FileEdit(path="b.py", added=added))
        extent = PullExtent(files=edits)
        listed = Fact(
            source="github", repo=REPO, pull=number, at=day(0), key=f"e{number}", what=extent
        )
        save_facts([*described(number), listed], store, AGENTS)
    rows = {row.pull: row for row in store.pulls.list_pulls()}
    assert (rows[1].files, rows[1].added) == (2, None)
    assert (rows[2].files, rows[2].added) == (2, 7)


def test_a_renamed_file_whose_name_git_would_quote_keeps_its_lines() -> None:
    file = GithubFile(
        filename='new\u00a0"name".py', previous_filename="old\tname.py", status="renamed",
        additions=1, deletions=1, patch="@@ -1 +1 @@\n-a\n+b",
    )  # fmt: skip
    change = change_from_github([file])
    assert "+b" in change.patch
    (read,) = parse_patch(change.patch).files
    assert (read.path, read.old_path) == (file.filename, file.previous_filename)


def test_a_file_too_large_for_its_host_keeps_the_counts_that_are_told() -> None:
    change = change_from_github(
        [
            GithubFile(filename="big.py", additions=9000, deletions=1),
            GithubFile(
                filename='odd "name".py', additions=1, deletions=0, patch="@@ -0,0 +1 @@\n+x"
            ),
        ]
    )
    assert sum_line_counts(change.files) == (9001, 1)
    assert [file.path for file in parse_patch(change.patch).files] == ["big.py", 'odd "name".py']
    hidden = change_from_github([GithubFile(filename="new.bin", status="added")])
    assert (hidden.files[0].binary, hidden.files[0].note is not None) == (True, True)


def test_a_patch_without_a_hunk_leaves_the_number_of_lines_unknown() -> None:
    told = "Diff suppressed."
    of_github = change_from_github([GithubFile(filename="a.py", patch=told)])
    of_gitlab = change_from_gitlab([GitlabFileDiff(new_path="a.py", diff=told)])
    assert sum_line_counts(of_github.files) == sum_line_counts(of_gitlab.files) == (None, None)
    counted = GithubFile(filename="a.py", patch=told, additions=5, deletions=1)
    assert sum_line_counts(change_from_github([counted]).files) == (5, 1)


def test_a_huge_diff_of_a_clone_is_read_as_far_as_one_of_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("closeloop.reviews.pull_changes.MAX_PATCH_CHARS", 2_000)
    run = partial(git, tmp_path)
    run("init", "-q", "-b", "main")
    run("remote", "add", "origin", f"https://github.com/{REPO}")
    (tmp_path / "moved.py").write_text("one\ntwo\nthree\n")
    run("add", ".")
    run("commit", "-qm", "Start")
    run("switch", "-qc", "topic")
    (tmp_path / "a.py").write_text("first\n")
    (tmp_path / "big.py").write_text("x = 1\n" * 5_000)
    (tmp_path / "pixel.bin").write_bytes(bytes(range(256)) * 9)
    run("mv", "moved.py", "other.py")
    run("add", ".")
    run("commit", "-qm", "More")
    with open_store(":memory:") as store:
        save_facts(described(), store, AGENTS)
        (row,) = store.pulls.list_pulls()
    change = change_from_clone(tmp_path, row, run("rev-parse", "topic").strip(), "main")
    assert change is not None
    assert len(change.patch) < 2_000
    assert "+first" in change.patch
    assert [(one.path, one.status, one.added) for one in change.files] == [
        ("a.py", "added", 1), ("big.py", "added", 5_000), ("other.py", "renamed", 0),
        ("pixel.bin", "added", 0),
    ]  # fmt: skip
    assert (change.files[1].note or "").startswith("not read")
    assert change.files[3].binary


# Whose work it is


@pytest.mark.parametrize(
    ("changes", "message", "asked_by"),
    [
        ({}, "Add", None),
        ({"assignees": ("copilot", "bob")}, "Add", "bob"),
        (
            {"assignees": ("bob",)},
            "Add\n\nCo-authored-by: Ann <7+ann@users.noreply.github.com>",
            "bob",
        ),
        ({}, "Add\n\nCo-authored-by: Ann <7+ann@users.noreply.github.com>", None),
        ({}, "Add\n\nCo-authored-by: dependabot[bot] <x@y.z>", None),
        ({}, "Add\n\nRequested-By: cat", None),
        ({"author": "dan", "bot": False}, "Add\n\nRequested-By: the boss", "dan"),
    ],
)
def test_the_person_who_asked_is_named_and_never_the_bot(
    changes: dict[str, Any], message: str, asked_by: str | None
) -> None:
    with open_store(":memory:") as store:
        save_facts([*described(**changes), committed(1, message)], store, AGENTS)
        row = store.pulls.load_pull(REPO, 1)
        assert row is not None
        assert (row.asked_by, row.agent) == (asked_by, "copilot")


def test_metrics_by_user_and_agent_name_the_person_and_the_program(store: Store) -> None:
    save_facts(described(), store, AGENTS)
    merged = described(state="merged", merged=day(1), closed=day(1), assignees=("ann",))
    save_facts([Fact(**{**as_fields(merged[0]), "at": day(1)})], store, AGENTS)
    work = load_attempt_table(store, project_rulebook(Settings()))
    figures = compute_metrics(work, ("user", "agent"), ("merge rate",)).figures
    assert [(one.group, one.value) for one in figures] == [
        ({"user": "ann", "agent": "copilot"}, 1.0)
    ]


def test_our_own_branch_is_the_work_of_the_agent_that_was_run(store: Store) -> None:
    store.save_variant(Variant(name="careful", agent="codex", digest="v1"))
    attempt = Attempt(
        id="abc123", origin="experiment", exit="finished", started=day(2), variant="v1",
        usage=Usage(cost=1.25),
    )  # fmt: skip
    store.save_attempt(AttemptResult(attempt=attempt))
    facts = described(branch="closeloop/task/abc123", author="ann", bot=False)
    (pull,) = save_facts(facts, store, AGENTS)
    assert (pull.attempt, pull.agent) == ("abc123", "codex")
    delivery = store.pulls.load_delivery("abc123")
    assert delivery is not None
    # The attempt began two days after the pull request was opened: no time to it is known.
    assert delivery.seconds_to_open is None
    (row,) = list_board(store, store.pulls.list_pulls(), store.pulls.list_pulls())
    assert row.cost == 1.25


def save_delivered_attempt(store: Store, commit: str | None = None) -> None:
    attempt = Attempt(id="abc123", origin="production", exit="finished", started=day(-1))
    store.save_attempt(AttemptResult(attempt=attempt))
    if commit is not None:
        branch = DeliveryBranch(name="closeloop/task/abc123", commit=commit, base="b" * 40)
        store.steps.save_step(delivery_step_key("abc123", "branched"), branch, [])


@pytest.mark.parametrize(
    ("changes", "message", "linked"),
    [
        ({"branch": "closeloop/task/abc123"}, "Add", True),
        ({"branch": "closeloop/task/abc123", "fork": True}, "Add", False),
        ({"branch": "mine"}, "Add\n\nAttempt-Id: abc123", True),
        ({"branch": "mine", "fork": True}, "Add\n\nAttempt-Id: abc123", False),
        ({"branch": "closeloop/task/abc123", "head": "e" * 40}, "Add", False),
        ({"branch": "mine", "head": "e" * 40}, "Add\n\nAttempt-Id: abc123", False),
    ],
)
def test_only_the_delivered_commit_in_our_own_repository_leads_back_to_the_attempt(
    store: Store, changes: dict[str, Any], message: str, linked: bool
) -> None:
    save_delivered_attempt(store, commit=HEAD)
    commit = committed(1, message, changes.get("head", HEAD))
    save_facts([*described(**changes), commit], store, AGENTS)
    row = store.pulls.load_pull(REPO, 1)
    assert row is not None
    assert (row.attempt == "abc123") is linked


def test_a_trailer_names_no_attempt_whose_branch_was_never_recorded(store: Store) -> None:
    save_delivered_attempt(store)
    told = described(branch="mine", author="ann", bot=False, body="Attempt-Id: abc123")
    save_facts([*told, committed(1, "Add\n\nAttempt-Id: abc123", HEAD)], store, AGENTS)
    row = store.pulls.load_pull(REPO, 1)
    assert row is not None
    assert row.attempt != "abc123"


COPY: dict[str, Any] = {
    "branch": "backport", "author": "ann", "bot": False, "state": "closed", "closed": day(2),
    "body": "Picked.\n\nAttempt-Id: abc123",
}  # fmt: skip
MERGED: dict[str, Any] = {
    "branch": "closeloop/task/abc123", "state": "merged", "merged": day(1), "closed": day(1),
}  # fmt: skip


@pytest.mark.parametrize("copy_first", [True, False])
def test_a_copied_trailer_says_nothing_of_what_became_of_the_work(
    store: Store, copy_first: bool
) -> None:
    save_delivered_attempt(store)
    facts = [described(1, **MERGED), described(2, **COPY)]
    for told in reversed(facts) if copy_first else facts:
        save_facts(told, store, AGENTS)
    save_facts(described(2, **(COPY | {"head": "d" * 40})), store, AGENTS)
    copy = store.pulls.load_pull(REPO, 2)
    delivery = store.pulls.load_delivery("abc123")
    assert copy is not None
    assert copy.attempt != "abc123"
    assert delivery is not None
    assert delivery.merged is True


def test_the_life_of_our_own_pull_request_has_its_size(store: Store) -> None:
    save_delivered_attempt(store)
    save_facts(described(1, **MERGED), store, AGENTS)
    change = parse_patch("--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n-a\n+b\n+c\n")
    store.pulls.save_change(REPO, 1, HEAD, change, day(1))
    pull = load_pull(REPO, 1, store, AGENTS)
    assert (pull.attempt, pull.added, pull.removed) == ("abc123", 2, 1)


def test_time_to_a_pull_request_is_told_where_the_work_came_first(store: Store) -> None:
    started = day(0) - timedelta(hours=2)
    attempt = Attempt(id="abc124", origin="experiment", exit="finished", started=started)
    store.save_attempt(AttemptResult(attempt=attempt))
    save_facts(described(branch="closeloop/task/abc124"), store, AGENTS)
    delivery = store.pulls.load_delivery("abc124")
    assert delivery is not None
    assert delivery.seconds_to_open == 7200


# Together


def test_the_command_lists_what_deserves_care_with_unknown_sizes_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_TOKEN", "CLOSELOOP_STORE"):
        monkeypatch.delenv(name, raising=False)
    with open_store(str(tmp_path / ".closeloop" / "closeloop.db")) as store:
        save_facts(described(1, title="Small", labels=("risk:low",)), store, AGENTS)
        attempt = Attempt(
            id="abc125", origin="experiment", exit="finished", usage=Usage(cost=0.0042)
        )
        store.save_attempt(AttemptResult(attempt=attempt))
        grave = {"title": "Grave", "labels": ("risk:critical",), "branch": "closeloop/t/abc125"}
        save_facts(described(2, **grave), store, AGENTS)
    with pytest.raises(SystemExit):
        main(["list", "pulls"])
    printed = capsys.readouterr().out
    assert "$0.0042" in printed
    assert printed.index("Grave") < printed.index("Small")
    assert "+0" not in printed
    with pytest.raises(SystemExit):
        main(["list", "pulls", "--fetch"])
    assert "there is no token" in " ".join(capsys.readouterr().out.split())


def test_one_reason_for_many_missing_diffs_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    names = [f"ann/tally#{number}" for number in range(7)]
    _log_failures({"there is no token.": names, "it is gone": names[:1]})
    assert [record.getMessage() for record in caplog.records] == [
        "The diffs of ann/tally#0, ann/tally#1, ann/tally#2, ann/tally#3, ann/tally#4 and 2 more"
        " are unknown: there is no token.",
        "The diff of ann/tally#0 is unknown: it is gone.",
    ]
