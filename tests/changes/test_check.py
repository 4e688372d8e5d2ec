"""`closeloop check`, as it is typed: three tiers, one verdict, and the repository as it was."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from closeloop.changes.check_verdict import decide_verdict
from closeloop.records.change import Risk, ToolRun
from closeloop.records.finding import Finding
from closeloop.records.settings import CheckSettings
from command_line import typed
from patience import PATIENCE, until
from small_project import pytest_command
from warm_pytest import PYTHON

pytestmark = pytest.mark.usefixtures("warm_python")

PYTEST = pytest_command(PYTHON)
CODE = "def total(prices):\n    return sum(prices)\n"
TESTS = "from cart import total\n\n\ndef test_total():\n    assert total([1, 2]) == 3\n"


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "cart.py").write_text(CODE)
    (folder / "test_cart.py").write_text(TESTS)
    (folder / "closeloop.toml").write_text(
        f'[commands]\ntest = "{PYTEST}"\n[sandbox]\nkind = "none"\n[check]\ntimeout = {PATIENCE}\n'
    )
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "Start")
    return folder


def start(repo: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "closeloop", "check", *arguments],
        cwd=repo,
        env={**os.environ, "XDG_CACHE_HOME": str(repo.parent / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def checked(repo: Path, *arguments: str) -> tuple[int, str, str]:
    cache = str(repo.parent / "cache")
    result = typed(repo, "check", *arguments, XDG_CACHE_HOME=cache)
    return result.returncode, result.stdout, result.stderr


def content(repo: Path) -> str:
    """All of a repository, git's own files too."""
    made = hashlib.sha256()
    for path in sorted(repo.rglob("*")):
        made.update(str(path).encode())
        made.update(path.read_bytes() if path.is_file() else b"")
    return made.hexdigest()


def test_a_clean_change_passes_and_nothing_is_touched(repo: Path) -> None:
    (repo / "cart.py").write_text(CODE.replace("prices)", "prices, start=0)", 1))
    (repo / "cart.py").write_text(CODE + "\n\ndef most(prices):\n    return max(prices)\n")
    (repo / "test_cart.py").write_text(
        TESTS.replace("total\n\n", "most, total\n\n", 1)
        + "\n\ndef test_most():\n    assert most([1, 2]) == 2\n"
    )
    before = content(repo)
    code, out, err = checked(repo, "--json")
    report = json.loads(out)
    assert (code, report["verdict"]) == (0, "pass"), (report, err)
    assert report["risk"]["level"] == "low"
    assert [run["after"] for run in report["tools"]] == ["passed"]
    assert content(repo) == before


def test_a_first_check_logs_its_stages_and_knows_what_setup_installed(repo: Path) -> None:
    config = (repo / "closeloop.toml").read_text()
    (repo / "closeloop.toml").write_text(
        config.replace("test =", 'setup = ["sh install.sh"]\ntest =')
    )
    library = ".venv/lib/python3.12/site-packages"
    (repo / "install.sh").write_text(
        f"mkdir -p {library}\necho 'home = /usr/bin' > .venv/pyvenv.cfg\n"
        f"echo 'def whiten(): ...' > {library}/paint.py\n"
    )
    git(repo, "add", ".")
    git(repo, "commit", "-q", "-m", "Set up")
    most = "\n\ndef most(prices):\n    paint.whiten()\n    paint.whitne()\n    return max(prices)\n"
    (repo / "cart.py").write_text(f"import paint\n\n{CODE}{most}")
    (repo / "test_cart.py").write_text("def test_nothing():\n    assert True\n")
    code, out, err = checked(repo, "--json")
    report = json.loads(out)
    assert (code, report["tools"][0]["ran"]) == (1, 1)
    (name,) = (one for one in report["findings"] if one["rule"] == "hallucinated-name")
    assert "did you mean `whiten`?" in name["message"], "setup installed the package"
    stages = re.findall(r"(?m)^closeloop: \[\d+ s\] (.+)$", err)
    (copying,) = (stage for stage in stages if stage.startswith("copying commit "))
    stages = [stage for stage in stages if "a processor" not in stage]  # others were testing
    assert [stage for stage in stages if not stage.endswith("the change")] == [
        "preparing the base",
        copying,
        "setting up, 1 of 1: sh install.sh",
        "code quality",
        "risk from the repository's history",
    ]
    assert {"reading the change", "test before the change", "test after the change"} <= {*stages}


def test_a_change_that_breaks_a_test_blocks_and_says_which(repo: Path) -> None:
    (repo / "cart.py").write_text(CODE.replace("sum(prices)", "sum(prices) + 1"))
    with start(repo) as process:
        out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "test_total" in out


def test_a_change_that_stops_the_tests_blocks_where_one_was_red_before(repo: Path) -> None:
    (repo / "test_cart.py").write_text(f"{TESTS}\n\ndef test_red():\n    assert total([1]) == 2\n")
    git(repo, "commit", "-q", "-am", "Leave one red")
    (repo / "conftest.py").write_text("import nowhere_at_all\n")
    code, out, err = checked(repo, "--tier", "tools")
    assert code == 1, err
    assert out.startswith("Blocked: 1 no longer running in test")
    assert "mended" not in out


def test_a_range_a_patch_and_one_tier_can_be_named(repo: Path, tmp_path: Path) -> None:
    git(repo, "checkout", "-q", "-b", "feature")
    (repo / "cart.py").write_text(CODE + "\n\ndef least(prices):\n    return min(prices)\n")
    git(repo, "commit", "-q", "-am", "Add least")
    code, out, _ = checked(repo, "main..feature", "--tier", "risk", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["tools"] == []
    assert report["risk"]
    patch = tmp_path / "fix.patch"
    diff = subprocess.run(["git", "diff", "main"], cwd=repo, capture_output=True, check=True)
    patch.write_bytes(diff.stdout)
    git(repo, "checkout", "-q", "main")
    code, out, err = checked(repo, "--patch", str(patch), "--tier", "quality", "--format", "sarif")
    assert code == 0, err
    assert json.loads(out)["version"] == "2.1.0"


def test_one_run_writes_a_report_for_everybody(repo: Path, tmp_path: Path) -> None:
    (repo / "cart.py").write_text(CODE.replace("sum(prices)", "sum(prices) + 1"))
    git(repo, "add", "cart.py")
    (repo / "cart.py").write_text(CODE)  # what is staged counts, and not this
    files = {name: tmp_path / name for name in ("markdown", "sarif", "junit", "gitlab", "json")}
    formats = [f"--format={name}={path}" for name, path in files.items()]
    code, out, err = checked(repo, "--staged", *formats)
    assert code == 1, err
    assert out.startswith("Blocked: 1 newly failing in test")
    assert "### ⛔ Blocked" in files["markdown"].read_text()
    assert json.loads(files["sarif"].read_text())["version"] == "2.1.0"
    assert json.loads(files["gitlab"].read_text()) == []
    assert "<testsuites" in files["junit"].read_text()
    assert json.loads(files["json"].read_text())["title"] == "the staged changes"


def test_a_commit_that_changes_nothing_is_let_through(repo: Path) -> None:
    (repo / "cart.py").write_text("not staged")
    code, out, err = checked(repo, "--staged")
    assert (code, out) == (0, "")
    assert "No change in the staged changes" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "No change in"),
        (("--format", "sarfi"), "Did you mean 'sarif'"),
        (("--format", "sarif=/nowhere/x"), "has no valid file name"),
        (("--format", "sarif", "--json"), "standard output"),
        (("--format", "terminal=x"), "only be printed"),
        (("main", "--staged"), "only one"),
        (("nowhere..main",), "nowhere"),
        (("main", "--patch", "x"), "only one"),
        (("--github",), "GITHUB_EVENT_PATH"),
        (("--patch", "missing.patch"), "missing.patch"),
    ],
)
def test_bad_input_is_told_in_a_sentence(
    repo: Path, arguments: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_EVENT_PATH", raising=False)
    code, _, err = checked(repo, *arguments)
    assert code == 2
    assert told in err
    assert "Traceback" not in err


def test_what_cannot_be_parsed_hides_no_other_tier(repo: Path) -> None:
    (repo / "cart.py").write_bytes(b"def total(prices:\n    return \xff\xfe sum(prices)\n")
    code, out, err = checked(repo, "--json")
    report = json.loads(out)
    assert code == 1, err
    assert report["risk"]
    assert report["tools"][0]["after"] == "failed"


def test_killing_it_midway_leaves_the_repository_as_it_was(repo: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    slow = f"import time\n    open({str(begun)!r}, 'w').close()\n    time.sleep(60)\n"
    (repo / "test_cart.py").write_text(f"{TESTS}\n\ndef test_slow():\n    {slow}")
    before = content(repo)
    with start(repo) as process:
        assert until(begun.exists)
        process.send_signal(signal.SIGKILL)
    assert content(repo) == before


ERROR = Finding(rule="r", version=1, severity="error", message="…", source="check")
WARNING = Finding(rule="r", version=1, severity="warning", message="…", source="check")
RED = ToolRun(name="test", command="t", before="failed", after="failed", already=("a",))
BROKEN = ToolRun(name="test", command="t", before="passed", after="failed", broke=("a",))
HIGH = Risk(level="high", reasons=("…",))


@pytest.mark.parametrize(
    ("settings", "tools", "findings", "risk", "verdict"),
    [
        ({}, [], [], None, "pass"),
        ({}, None, [], None, "unverified"),
        ({"gate": "strict"}, None, [], None, "block"),
        ({}, [RED], [], None, "warn"),
        ({"gate": "strict"}, [RED], [], None, "block"),
        ({}, [BROKEN], [], None, "block"),
        ({"gate": "informational"}, [BROKEN], [ERROR], HIGH, "warn"),
        ({}, [], [WARNING], None, "warn"),
        ({}, [], [ERROR], None, "block"),
        ({"block_at": "warning"}, [], [WARNING], None, "block"),
        ({"block_at": "never"}, [], [ERROR], None, "warn"),
        ({}, [], [], HIGH, "warn"),
        ({"hold_at": "medium"}, [], [], HIGH, "block"),
        ({"hold_at": "critical"}, [], [], HIGH, "warn"),
    ],
)
def test_the_settings_say_what_blocks(
    settings: dict[str, str],
    tools: list[ToolRun] | None,
    findings: list[Finding],
    risk: Risk | None,
    verdict: str,
) -> None:
    unverified = "no test command is known" if tools is None else None
    given = CheckSettings(**settings)  # type: ignore[arg-type]
    found = decide_verdict(given, tools or [], findings, risk, unverified=unverified)
    assert found.verdict == verdict
    assert bool(found.reasons) == (verdict != "pass")
    assert found.held == (settings.get("hold_at") == "medium")


def test_reasons_are_told_in_words_that_a_reviewer_needs() -> None:
    late = ToolRun(name="types", command="t", before="passed", after="timed out")
    settings = CheckSettings(gate="strict", hold_at="high")
    found = decide_verdict(settings, [BROKEN, RED, late], [ERROR, ERROR, WARNING], HIGH)
    assert found.reasons == (
        "1 newly failing in test",
        "test failed, as without this change",
        "types timed out",
        "2 errors",
        "its risk is high, which needs a person's approval",
    )
