"""Reports are kept where there is a store, and an attempt's change is checked on its own base."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from closeloop.changes.check_verdict import save_report
from closeloop.cli import main
from closeloop.records.attempt import Attempt
from closeloop.records.experiment_plan import AttemptResult
from closeloop.records.task import Task
from closeloop.store import open_store
from closeloop.text.patches import parse_patch
from report_example import BAD, finding

STORE = ".closeloop/closeloop.db"
CODE = "def total(prices):\n    return sum(prices)\n"
PATCH = (
    "diff --git a/cart.py b/cart.py\n--- a/cart.py\n+++ b/cart.py\n@@ -1,2 +1,3 @@\n"
    " def total(prices):\n+    prices = list(prices)\n     return sum(prices)\n"
)


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
    made = subprocess.run(
        ["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return made.stdout.strip()


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "cart.py").write_text(CODE)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "Start")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CLOSELOOP_STORE", raising=False)
    return folder


def checked(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as left:
        main(["check", "--tier", "quality", "--json", *arguments])
    printed = capsys.readouterr()
    assert left.value.code == code, printed
    return printed.out or printed.err


def with_attempt(repo: Path, split: str) -> str:
    """A store with one attempt, after which the repository went on; the commit it began from."""
    base = git(repo, "rev-parse", "HEAD")
    task = Task(id="t", prompt="p", base=base, split=split, digest="d", grading="g")  # type: ignore[arg-type]
    made = Attempt(
        id="abcdef123456", origin="experiment", exit="finished", task="t", task_digest="d"
    )
    (repo / ".closeloop").mkdir()
    with open_store(str(repo / STORE)) as store:
        store.save_task(task)
        store.save_attempt(AttemptResult(attempt=made, change=parse_patch(PATCH, base=base)))
    (repo / "cart.py").write_text("def other():\n    return 1\n")
    git(repo, "commit", "-q", "-am", "Go on")
    return base


def test_a_check_makes_no_store(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repo / "cart.py").write_text(CODE + "\n\nprint(1)\n")
    checked(capsys)
    assert not (repo / ".closeloop").exists()
    said = checked(capsys, "attempt:abc", code=2)
    assert "No store exists" in said
    assert not (repo / ".closeloop").exists()


def test_files_that_closeloop_writes_are_left_out_until_git_tracks_them(
    repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repo / "cart.py").write_text(CODE + "\n\ndef more(prices):\n    return prices\n")
    script = "name: hasty\ndialogues:\n  - turns:\n      - do: {finish: {summary: Done.}}\n"
    (repo / "models").mkdir()
    (repo / "models" / "hasty.yaml").write_text(script)
    (repo / "models" / "deploy.yaml").write_text("on: push\n")
    (repo / "closeloop.toml").write_text("")
    (repo / "tasks").mkdir()
    for name in ("a.md", "a.patch", "a.tests.patch", "jobs.py"):
        (repo / "tasks" / name).write_text("text = 1\n")
    with pytest.raises(SystemExit):
        main(["check", "--tier", "quality", "--json"])
    printed = capsys.readouterr()
    changed = [file["path"] for file in json.loads(printed.out)["change"]["files"]]
    assert changed == ["cart.py", "models/deploy.yaml", "tasks/jobs.py"]
    assert (
        "closeloop: left out: closeloop.toml, 1 file in models/ and 3 files in tasks/ "
        "(only for closeloop, not tracked by git)\n" in printed.err
    )
    subprocess.run(["git", "add", "tasks/a.md"], cwd=repo, check=True)
    changed = [file["path"] for file in json.loads(checked(capsys))["change"]["files"]]
    assert changed == ["cart.py", "models/deploy.yaml", "tasks/a.md", "tasks/jobs.py"]


def test_a_report_is_kept_where_there_is_a_store(
    repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_attempt(repo, "dev")
    (repo / "cart.py").write_text(CODE + "\n\ndef more(prices):\n    return prices\n")
    told = json.loads(checked(capsys))
    with open_store(str(repo / STORE)) as store:
        (row,) = store.reports.list_reports(10)
        found = store.reports.load_report(row.number)
    assert found is not None
    kept = found[1]
    assert (row.attempt, row.title, row.base) == (None, "working tree", told["change"]["base"])
    assert kept.tiers == ("quality",)
    assert [one.rule for one in kept.findings] == [one["rule"] for one in told.get("findings", [])]
    assert kept.change.files
    assert kept.change.patch == ""


def test_an_attempt_is_checked_on_the_commit_that_it_began_from(
    repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = with_attempt(repo, "dev")
    told = json.loads(checked(capsys, "attempt:abc"))
    assert told["change"]["base"] == base
    assert [file["path"] for file in told["change"]["files"]] == ["cart.py"]
    with open_store(str(repo / STORE)) as store:
        (row,) = store.reports.list_reports(10, attempt="abcdef123456")
    assert row.title == f"attempt-abcdef123456 on {base}"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("attempt:zzz",), "No attempt begins with 'zzz'"),
        (("attempt:abc", "--staged"), "Give only one of"),
    ],
)
def test_what_is_no_attempt_is_told_in_a_sentence(
    repo: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], why: str
) -> None:
    with_attempt(repo, "dev")
    assert why in checked(capsys, *arguments, code=2)


def test_an_attempt_at_a_sealed_task_stays_sealed(
    repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_attempt(repo, "held-out")
    said = checked(capsys, "attempt:abc", code=2)
    assert "stays sealed" in said
    assert "cart" not in said
    with open_store(str(repo / STORE)) as store:
        assert store.reports.list_reports(10) == []


def test_a_secret_in_a_report_is_not_kept() -> None:
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" + "k1L2m3N4o5P6q7R8"
    report = replace(BAD, findings=(finding(f"`{secret}` is written out."),), title=secret)
    with open_store(":memory:") as store:
        found = store.reports.load_report(save_report(report, store, None))
        assert found is not None
        row, kept = found
    assert secret not in kept.findings[0].message
    assert "[redacted" in kept.findings[0].message
    assert secret not in row.title
