"""Settings that loosen security come from who is trusted, never from the change under check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from closeloop.records.settings import ModelSettings, SandboxSettings, Settings, VariantSettings
from closeloop.trust import (
    HARMLESS_SETTINGS,
    LOOSENING_SETTINGS,
    list_setting_names,
    restrict_settings,
)
from command_line import typed
from small_project import git

ROOT = Path(__file__).parent.parent
TOKEN = "tok-48151623"
TOOLS = ("--tier", "tools")
QUALITY = ("--tier", "quality")


class Listener(BaseHTTPRequestHandler):
    """Writes down who asks, and with which key."""

    heard: list[str] = []

    def do_POST(self) -> None:
        self.heard.append(f"{self.path} {self.headers.get('authorization')}")
        self.send_error(500)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def listener() -> Iterator[HTTPServer]:
    Listener.heard.clear()
    with HTTPServer(("127.0.0.1", 0), Listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A project whose test command tries to get out, and to tell what it sees."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    write(folder, "")
    (folder / "code.py").write_text("a = 1\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "Start")
    return folder


def write(folder: Path, more: str, top: str = "") -> None:
    """The configuration with a test command that escapes where it can."""
    outside = folder.parent / "escaped"
    command = (
        f"touch {outside} 2>/dev/null; echo seen-$CI_TOKEN-$(cat {folder.parent}/secret); false"
    )
    (folder / "closeloop.toml").write_text(
        f"{top}\n[commands]\ntest = {json.dumps(command)}\n{more}\n"
    )
    (folder.parent / "secret").write_text("outside-secret")


LOOSE = (
    '[sandbox]\nkind = "none"\nenv = ["CI_TOKEN"]\nread = ["../secret"]\nhosts = ["evil.example"]\n'
)


def check(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    given = {"XDG_CACHE_HOME": str(folder.parent / "cache"), "CI_TOKEN": TOKEN, **environ}
    return typed(folder, "check", *arguments, **given)


def said(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join((done.stdout + done.stderr).split())


def worktree(folder: Path) -> tuple[str, ...]:
    (folder / "code.py").write_text("a = 2\n")
    return ()


def staged(folder: Path) -> tuple[str, ...]:
    worktree(folder)
    git(folder, "add", "-A")
    return ("--staged",)


def branch(folder: Path) -> tuple[str, ...]:
    git(folder, "checkout", "-qb", "feature")
    staged(folder)
    git(folder, "commit", "-qm", "Change")
    return ("main..feature",)


def patched(folder: Path) -> tuple[str, ...]:
    worktree(folder)
    (folder.parent / "change.patch").write_text(git(folder, "diff"))
    return ("--patch", str(folder.parent / "change.patch"))


@pytest.mark.parametrize("form", [worktree, staged, branch, patched])
def test_a_change_cannot_take_its_own_check_out_of_the_sandbox(repo: Path, form) -> None:
    write(repo, LOOSE)
    done = check(repo, *form(repo), *TOOLS, "--json")
    assert not (repo.parent / "escaped").exists()
    assert TOKEN not in done.stdout
    assert "outside-secret" not in done.stdout
    told = said(done)
    names = "sandbox.kind, sandbox.read, sandbox.env, sandbox.hosts"
    commit = git(repo, "rev-parse", "main").strip()[:12]
    assert f"Ignored in closeloop.toml: {names}. The change being checked may have written" in told
    assert f"put them in the commit before the change ({commit}) or in" in told


def test_what_was_committed_before_the_change_is_believed(repo: Path) -> None:
    write(repo, LOOSE)
    git(repo, "commit", "-qam", "Trust our own tests")
    done = check(repo, *worktree(repo), *TOOLS, "--json")
    assert (repo.parent / "escaped").exists()
    assert "Ignored" not in done.stderr


def test_the_users_own_configuration_is_believed_and_the_project_wins_over_it(repo: Path) -> None:
    home = repo.parent / "config"
    (home / "closeloop").mkdir(parents=True)
    own = home / "closeloop" / "config.toml"
    own.write_text('[sandbox]\nkind = "none"\nenv = ["CI_TOKEN"]\n[check]\ntimeout = 7.0\n')
    git(repo, "rm", "-q", "--cached", "closeloop.toml")
    done = check(repo, *worktree(repo), *TOOLS, "--json", XDG_CONFIG_HOME=str(home))
    assert (repo.parent / "escaped").exists()
    assert "Ignored" not in done.stderr
    from closeloop.cli.config import load_project

    found = load_project(repo, environ={"XDG_CONFIG_HOME": str(home)}).settings
    assert (found.sandbox.kind, found.check.timeout) == ("none", 7.0)
    write(repo, '[sandbox]\nkind = "bwrap"\n')
    found = load_project(repo, environ={"XDG_CONFIG_HOME": str(home)}).settings
    assert (found.sandbox.kind, found.sandbox.env) == ("bwrap", ("CI_TOKEN",))
    own.write_text("[sandbox]\nkin = 1\n")
    assert str(own) in said(check(repo, *TOOLS, XDG_CONFIG_HOME=str(home)))


def test_a_change_cannot_have_keys_or_code_sent_to_an_address_of_its_own(
    repo: Path, listener: HTTPServer
) -> None:
    url = f"http://127.0.0.1:{listener.server_port}/v1"
    theirs = (
        f'[models.reviewer]\nprovider = "openai"\nmodel = "m"\nbase_url = "{url}"\n'
        f'key_file = "../secret"\nretries = 0\n[check]\nmodel = "reviewer"\n'
    )
    write(repo, theirs)
    done = check(repo, *worktree(repo), *QUALITY)
    assert Listener.heard == []
    assert "Ignored in closeloop.toml: models.reviewer, check.model" in said(done)
    write(repo, '[models.reviewer]\nprovider = "openai"\nmodel = "m"\nkey_env = "NO_KEY"\n')
    git(repo, "commit", "-qam", "Name a reviewer")
    write(repo, theirs)
    check(repo, *worktree(repo), *QUALITY, "--model", "reviewer")
    assert Listener.heard == []
    git(repo, "commit", "-qam", "Say where it is")
    (repo / "code.py").write_text("a = 3\n")
    check(repo, *QUALITY)
    assert "Bearer outside-secret" in Listener.heard[0]


def test_a_change_cannot_lower_the_bar_it_is_measured_by(repo: Path) -> None:
    (repo / "code.py").write_text("a = 1\n")
    test = 'test = "grep -q 1 code.py"'
    (repo / "closeloop.toml").write_text(f"[commands]\n{test}\n")
    git(repo, "commit", "-qam", "Test the code")
    (repo / "closeloop.toml").write_text(f'[commands]\n{test}\n[check]\ngate = "informational"\n')
    done = check(repo, *worktree(repo), *TOOLS)
    assert done.returncode == 1
    assert "Ignored in closeloop.toml: check.gate" in said(done)


def test_only_ignored_settings_that_a_check_uses_are_reported(repo: Path) -> None:
    (repo / "closeloop.toml").write_text(
        '[commands]\ntest = "true"\n[sandbox]\nkind = "none"\n'
        '[variants.solid]\nagent = "builtin"\nmodel = "m"\n[run]\nbudget = 9.0\n'
    )
    assert "Ignored" not in said(check(repo, *worktree(repo), *QUALITY))
    wrong = check(repo, "--base", "none-such", *TOOLS)
    assert (wrong.returncode, "Ignored" in said(wrong)) == (2, False)
    told = said(check(repo, *QUALITY, "--fix", "solid"))
    assert "Ignored in closeloop.toml: variants.solid. The change being checked may have" in told
    assert "to use it. closeloop: " in told
    assert "'solid'" in told


def test_to_delete_or_to_hide_the_file_loosens_nothing(repo: Path) -> None:
    (repo / "sub").mkdir()
    (repo / "closeloop.toml").write_text('[check]\ngate = "strict"\n')
    (repo / "sub" / "code.py").write_text("b = 1\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "Be strict")
    worktree(repo)
    (repo / "sub" / "closeloop.toml").write_text('[sandbox]\nkind = "none"\n')
    hidden = check(repo / "sub", *QUALITY, "--json")
    assert json.loads(hidden.stdout)["gate"] == "strict"
    (repo / "closeloop.toml").unlink()
    deleted = check(repo, *QUALITY, "--json")
    assert json.loads(deleted.stdout)["gate"] == "strict"


def test_a_store_and_a_cache_that_a_change_names_or_ships_are_left_alone(repo: Path) -> None:
    elsewhere = repo.parent / "elsewhere.db"
    elsewhere.write_bytes(b"somebody's")
    write(repo, "", top=f'store = "{elsewhere}"\ncache = "{repo.parent}/theirs"')
    done = check(repo, *worktree(repo), *QUALITY)
    assert "Ignored in closeloop.toml: store, cache" in said(done)
    assert not (repo.parent / "theirs").exists()
    write(repo, "", top='cache = ".closeloop/cache"')
    (repo / ".closeloop" / "cache").mkdir(parents=True)
    (repo / ".closeloop" / "closeloop.db").write_bytes(b"hostile")
    (repo / ".closeloop" / "cache" / "poison").write_bytes(b"hostile")
    git(repo, "add", "-A", "-f")
    git(repo, "commit", "-qm", "Ship a store and a cache")
    (repo / "code.py").write_text("a = 4\n")
    done = check(repo, *QUALITY)
    assert done.returncode == 0
    assert "The store .closeloop/closeloop.db is ignored: git tracks it" in said(done)
    assert "The cache .closeloop/cache is ignored: git tracks it" in said(done)
    assert [path.name for path in (repo / ".closeloop" / "cache").iterdir()] == ["poison"]


def test_in_a_workflow_only_the_file_of_the_target_branch_is_read(
    repo: Path, tmp_path: Path
) -> None:
    (repo / "closeloop.toml").write_text('[commands]\ntest = "grep -q 1 code.py"\n')
    git(repo, "commit", "-qam", "Test the code")
    base = git(repo, "rev-parse", "HEAD").strip()
    (repo / "closeloop.toml").write_text('[commands]\ntest = "true"\n')
    branch(repo)
    end = {"repo": {"full_name": "owner/project"}}
    pull = {"number": 1, "title": "Change", "base": {**end, "sha": base}}
    pull["head"] = {**end, "sha": git(repo, "rev-parse", "HEAD").strip()}
    event = tmp_path / "event.json"
    event.write_text(
        json.dumps({"repository": {"full_name": "owner/project"}, "pull_request": pull})
    )
    done = check(
        repo, "--github", *TOOLS, GITHUB_EVENT_PATH=str(event), GITHUB_API_URL="http://127.0.0.1:9"
    )
    assert "closeloop.toml of the pull request is ignored" in said(done)
    assert "Blocked: test failed" in done.stdout


def test_an_agents_tool_for_checks_believes_no_more_than_the_command(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mcp")
    import anyio

    from closeloop.cli.mcp import ChangeArguments, check_wished_change

    write(repo, LOOSE)
    worktree(repo)
    monkeypatch.chdir(repo)
    monkeypatch.setenv("XDG_CACHE_HOME", str(repo.parent / "cache"))
    anyio.run(check_wished_change, ChangeArguments(tiers=("tools",)))
    assert not (repo.parent / "escaped").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
def test_a_file_of_another_user_loosens_nothing() -> None:
    program = (
        "import os, sys; from pathlib import Path; from closeloop.cli.config import load_project\n"
        "from closeloop.cli.console import print_warning\n"
        "import closeloop.trust\n"
        "load_project(Path(sys.argv[1])); print_warning('ready')  # imports what is needed\n"
        "os.setgid(12345); os.setuid(12345)\n"
        "environ = {'XDG_CONFIG_HOME': '/dev/null'}\n"
        "settings = load_project(Path(sys.argv[1]), environ=environ).settings\n"
        "print(settings.sandbox.kind, settings.check.complexity)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        file = Path(folder) / "closeloop.toml"
        file.write_text('[sandbox]\nkind = "none"\n[check]\ncomplexity = 7\n')
        for owner, kind in ((12345, "none"), (23456, "auto"), (0, "none")):
            os.chown(file, owner, owner)
            command = [sys.executable, "-c", program, folder]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.stdout == f"{kind} 7\n", done.stderr
            told = " ".join(done.stderr.split())
            assert ("belongs to another user" in told) == (owner == 23456)


def test_modules_in_a_folder_are_not_taken_for_those_of_python(tmp_path: Path) -> None:
    sessions = ROOT / "tests" / "traces" / "fixtures"
    for name in ("multiprocessing", "msgspec", "tomllib"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    command = [sys.executable, "-m", "closeloop", "import", str(sessions / "codex"), "--jobs", "2"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert not (tmp_path / "ran").exists()


def test_the_action_starts_python_without_modules_of_the_pull_request(tmp_path: Path) -> None:
    lines = (ROOT / "action.yml").read_text().splitlines()
    starts = [line for line in lines if '$PYTHON"' in line or 'bin/python"' in line]
    assert len(starts) == 3
    assert all('python" -I ' in line.replace("PYTHON", "python") for line in starts)


# The table


def test_every_setting_is_classified() -> None:
    """A new setting fails here until somebody has said whether it loosens security."""
    known = set(list_setting_names())
    assert known == set(LOOSENING_SETTINGS) | HARMLESS_SETTINGS
    assert HARMLESS_SETTINGS.isdisjoint(LOOSENING_SETTINGS)


def test_every_setting_that_loosens_security_is_documented() -> None:
    page = (ROOT / "docs" / "sandbox.md").read_text().partition("## What is trusted")[2]
    missing = [name for name in LOOSENING_SETTINGS if f"`{name.replace('*', 'NAME')}`" not in page]
    assert missing == []


def test_of_named_records_those_are_taken_that_loosen_nothing() -> None:
    ours = ModelSettings(provider="openai", model="a", key_env="OURS")
    theirs = ModelSettings(provider="openai", model="a", key_env="THEIRS", timeout=5)
    trusted = Settings(models={"known": ours, "gone": ours})
    tree = Settings(
        models={"known": theirs, "new": theirs},
        variants={
            "harmless": VariantSettings(jobs=3),
            "prompted": VariantSettings(prompt="/etc/x"),
        },
        sandbox=SandboxSettings(read=("/etc",)),
        tasks="evals",
    )
    made = restrict_settings(tree, trusted)
    assert made.settings.models["known"].key_env == "OURS"
    assert made.settings.models["known"].timeout == 5
    assert set(made.settings.models) == {"known", "gone"}
    assert set(made.settings.variants) == {"harmless"}
    assert made.ignored == (
        *("tasks", "sandbox.read", "models.known.key_env", "models.new"),
        "variants.prompted",
    )


def test_nothing_is_ignored_where_both_say_the_same() -> None:
    settings = Settings(sandbox=SandboxSettings(kind="none"))
    assert restrict_settings(settings, settings).ignored == ()
