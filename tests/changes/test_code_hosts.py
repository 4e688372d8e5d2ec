"""A GitHub App, the Action and GitLab against hosts that keep to their published rules."""

from __future__ import annotations

import json
import logging
import re
import stat
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from closeloop.changes.code_host import (
    AppCredentials,
    CodeHostClient,
    CodeHostRefused,
    build_app_manifest,
    open_code_host,
    open_github,
    open_github_app,
    open_gitlab,
    read_app_credentials,
    render_manifest_form,
    sign_app_token,
)
from closeloop.changes.report_publishing import publish_report, read_pull_event
from closeloop.cli import main
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.reviews.pull_changes import fetch_github_change, fetch_gitlab_change
from code_hosts import FULL, READ_ONLY, CodeHosts, serving_host
from report_example import BAD, BASE, HEAD

REPO = "ann/tally"
TOKEN = "ghp_" + "t" * 36


@pytest.fixture
def app(app_key: tuple[bytes, bytes], tmp_path: Path) -> AppCredentials:
    file = tmp_path / "app.pem"
    file.write_bytes(app_key[0])
    return AppCredentials(app="4711", key_file=file)


def file_entry(number: int) -> dict[str, Any]:
    return {
        "sha": f"{number:040x}",
        "filename": f"src/f{number}.py",
        "status": "modified",
        "additions": 1,
        "deletions": 1,
        "changes": 2,
        "patch": f"@@ -1 +1 @@\n-{number}\n+{number + 1}",
    }


class Repository:
    """Files of pull requests, check runs, comments and labels: what the host answers from."""

    def __init__(self, files: int = 3) -> None:
        self.files = [file_entry(number) for number in range(files)]
        self.runs: dict[int, dict[str, Any]] = {}
        self.comments: list[dict[str, Any]] = []
        self.labels: list[str] = []

    def answer(self, method: str, path: str, payload: Any) -> tuple[int, Any]:
        path = path.removeprefix(f"/repos/{REPO}/")
        if path.endswith("/files"):
            return 200, self.files
        if re.fullmatch(r"pulls/\d+", path):
            return 200, {"number": 7, "head": {"sha": HEAD}}
        if "check-runs" in path:
            return self._check_runs(method, path, payload)
        if path.startswith("issues/") and path.endswith("comments"):
            return self._comments(method, payload)
        if path.endswith("labels") and path.startswith("issues/"):
            self.labels += (payload or {}).get("labels", [])
            return 200, [{"name": name} for name in self.labels]
        if path == "labels":
            return 201, payload
        if path == "/graphql":
            return 200, {"data": {"viewer": {"login": "closeloop[bot]"}}}
        return 404, "Not Found"

    def _check_runs(self, method: str, path: str, payload: Any) -> tuple[int, Any]:
        if method == "GET":
            return 200, {"total_count": len(self.runs), "check_runs": [*self.runs.values()]}
        number = 1 if method == "POST" else int(path.rpartition("/")[2])
        run = {"id": number, "html_url": None, **self.runs.get(number, {}), **payload}
        run["output"] = {"annotations_count": 0}
        self.runs[number] = run
        return (201 if method == "POST" else 200), run

    def _comments(self, method: str, payload: Any) -> tuple[int, Any]:
        if method == "GET":
            return 200, self.comments
        user = {"login": "closeloop[bot]", "type": "Bot"}
        made = {"id": 1, "user": user, "html_url": "https://x/1", "body": payload["body"]}
        self.comments.append(made)
        return 201, made


def github(files: int = 3, **known: Any) -> tuple[CodeHosts, Repository]:
    repository = Repository(files)
    host = CodeHosts("github", repository.answer)
    host.tokens[TOKEN] = FULL
    for name, value in known.items():
        setattr(host, name, value)
    return host, repository


def ask(
    opened: Callable[[Callable[[float], Awaitable[None]]], Any],
    doing: Callable[[CodeHostClient], Awaitable[Any]],
) -> tuple[Any, list[float]]:
    """What comes of it, and the pauses that were asked for, none of which is made."""
    waits: list[float] = []

    async def pause(seconds: float) -> None:
        waits.append(seconds)

    async def go() -> Any:
        async with opened(pause) as hub:
            return await doing(hub)

    return anyio.run(go), waits


def files_of(hub: CodeHostClient) -> Awaitable[Any]:
    return fetch_github_change(hub, 7)


# The app


def test_an_app_reads_all_pages_with_a_token_for_one_repository(app, app_key):
    host, _ = github(250, app_key=app_key[1])
    with serving_host(host):
        change, waits = ask(lambda pause: open_github_app(REPO, app, host.address, pause), files_of)
    assert (len(change.files), waits) == (250, [])
    assert host.asked[:2] == [
        f"GET /repos/{REPO}/installation",
        "POST /app/installations/12/access_tokens",
    ]
    assert host.asked.count(f"GET /repos/{REPO}/pulls/7/files") == 3


def test_a_token_of_an_app_that_runs_out_is_renewed_on_the_way(app, app_key):
    host, _ = github(250, app_key=app_key[1])
    host.uses_left[f"ghs_{1:036d}"] = 1
    with serving_host(host):
        change, _ = ask(lambda pause: open_github_app(REPO, app, host.address, pause), files_of)
    assert (len(change.files), host.issued) == (250, 2)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"suspended": True}, "suspended at ann/tally: whoever installed it can unsuspend it"),
        ({"installed": False}, "not installed at ann/tally: install it there"),
    ],
)
def test_an_app_that_may_not_ask_says_what_to_do(app, app_key, state, says):
    host, _ = github(app_key=app_key[1], **state)
    with serving_host(host), pytest.raises(CodeHostRefused, match=says):
        ask(lambda pause: open_github_app(REPO, app, host.address, pause), files_of)
    assert host.issued == 0


def test_another_key_is_refused_and_neither_key_nor_token_is_told(app, app_key, tmp_path, caplog):
    rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
    forms = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
    public = other.public_bytes(forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo)
    host, _ = github(app_key=public)
    with (
        caplog.at_level(logging.DEBUG),
        serving_host(host),
        pytest.raises(MachineFailed, match="401") as refused,
    ):
        ask(lambda pause: open_github_app(REPO, app, host.address, pause), files_of)
    told = f"{refused.value} {caplog.text} {app!r}"
    key = app_key[0].decode()
    assert not any(line in told for line in key.splitlines()[1:-1])
    assert "Bearer" not in told
    assert "eyJ" not in told


def test_without_the_package_or_a_key_the_message_says_what_to_do(app, tmp_path, monkeypatch):
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    with pytest.raises(BadInput, match="cannot be read"):
        sign_app_token(AppCredentials(app="1", key_file=tmp_path / "none.pem"), now)
    (tmp_path / "bad.pem").write_text("no key")
    with pytest.raises(BadInput, match="contains no RSA private key"):
        sign_app_token(AppCredentials(app="1", key_file=tmp_path / "bad.pem"), now)
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(BadInput, match=r"pip install 'closeloop\[github-app\]'"):
        sign_app_token(app, now)


def test_the_environment_says_who_asks(app, app_key, tmp_path):
    assert open_code_host("github", REPO, {}) is None
    assert open_code_host("gitlab", REPO, {"GITHUB_TOKEN": TOKEN}) is None
    with pytest.raises(BadInput, match="needs both"):
        read_app_credentials({"CLOSELOOP_GITHUB_APP_ID": "4711"})
    host, _ = github(app_key=app_key[1])
    with serving_host(host):
        environ = {
            "CLOSELOOP_GITHUB_APP_ID": "4711",
            "CLOSELOOP_GITHUB_APP_KEY_FILE": str(app.key_file),
            "GITHUB_API_URL": host.address,
        }
        change, _ = ask(lambda pause: open_code_host("github", REPO, environ, pause), files_of)
    assert len(change.files) == 3


def test_a_manifest_asks_for_what_is_used_and_no_more():
    manifest = build_app_manifest("ours", "https://closeloop.example/")
    assert manifest["hook_attributes"]["url"] == "https://closeloop.example/webhooks/github"
    assert manifest["default_permissions"]["contents"] == "read"
    assert not manifest["public"]
    from closeloop.reviews.host_pulls import GITHUB_EVENTS

    assert set(GITHUB_EVENTS) <= {*manifest["default_events"]}
    pushing = build_app_manifest("ours", "https://closeloop.example", may_push=True)
    assert pushing["default_permissions"]["contents"] == "write"
    form = render_manifest_form(manifest, "s1", "acme")
    assert "https://github.com/organizations/acme/settings/apps/new?state=s1" in form
    with pytest.raises(BadInput, match="https"):
        build_app_manifest("ours", "http://closeloop.example")


def test_registering_writes_keys_for_nobody_else_and_prints_none(tmp_path, monkeypatch, capsys):
    secrets = {"pem": "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n", "webhook_secret": "s3cret-hook"}
    told = {"id": 9, "slug": "ours", "client_secret": "s3cret", "html_url": "https://x", **secrets}
    host = CodeHosts("github", lambda method, path, payload: (201, told))
    with serving_host(host):
        monkeypatch.setenv("GITHUB_API_URL", host.address)
        with pytest.raises(SystemExit) as left:
            main(["admin", "app", "register", "the-code", "--out", str(tmp_path / "keys")])
    assert left.value.code == 0
    key_file, variables = tmp_path / "keys/github-app-9.pem", tmp_path / "keys/github-app-9.env"
    assert key_file.read_text() == secrets["pem"]
    assert "CLOSELOOP_GITHUB_SECRET=s3cret-hook" in variables.read_text()
    assert {stat.S_IMODE(file.stat().st_mode) for file in (key_file, variables)} == {0o600}
    printed = "".join(capsys.readouterr())
    assert "MIIE" not in printed
    assert "s3cret" not in printed


# Limits


def test_the_limit_of_the_hour_is_waited_for(app):
    host, _ = github(250, remaining=1)
    with serving_host(host):
        change, (wait,) = ask(lambda pause: open_github(REPO, TOKEN, host.address, pause), files_of)
    assert len(change.files) == 250
    assert 35 < wait <= 41


def test_who_asks_too_fast_waits_as_long_as_is_said_else_longer_each_time():
    host, _ = github(secondary=[{"retry-after": "17"}, {}, {}])
    with serving_host(host):
        change, waits = ask(lambda pause: open_github(REPO, TOKEN, host.address, pause), files_of)
    assert (len(change.files), waits) == (3, [17.0, 120.0, 240.0])


def test_gitlab_s_pages_and_limits_are_kept_and_large_files_are_not_called_empty():
    entry = {"a_mode": "100644", "b_mode": "100644", "new_file": False, "renamed_file": False}
    entry |= {"deleted_file": False}
    files = [
        {**entry, "old_path": f"f{n}", "new_path": f"f{n}", "diff": "@@ -1 +1 @@\n-a\n+b\n"}
        for n in range(120)
    ]
    files.append({**entry, "old_path": "big", "new_path": "big", "diff": "", "too_large": True})
    host = CodeHosts("gitlab", lambda method, path, payload: (200, files))
    host.tokens["glpat-1"], host.secondary = FULL, [{"retry-after": "3"}]
    with serving_host(host):
        change, waits = ask(
            lambda pause: open_gitlab("group/sub/tally", "glpat-1", host.address, pause),
            lambda hub: fetch_gitlab_change(hub, 4),
        )
    assert waits == [3.0]
    assert (len(change.files), change.files[0].added) == (121, 1)
    assert (change.files[-1].note or "").startswith("not read")


# The Action


def event_file(tmp_path: Path, **event: Any) -> Path:
    path = tmp_path / "event.json"
    repository = {"full_name": REPO, "html_url": f"https://github.com/{REPO}"}
    path.write_text(json.dumps({"repository": repository, **event}))
    return path


def test_the_action_reports_on_what_a_merge_queue_tries_by_a_check_run_alone(tmp_path):
    group = {
        "head_sha": HEAD,
        "base_sha": BASE,
        "head_ref": f"refs/heads/gh-readonly-queue/main/pr-7-{BASE}",
    }
    pull = read_pull_event(event_file(tmp_path, action="checks_requested", merge_group=group))
    assert (pull.number, pull.head, pull.base, pull.queued) == (7, HEAD, BASE, True)
    host, repository = github()
    with serving_host(host):
        told, _ = ask(
            lambda pause: open_github(REPO, TOKEN, host.address, pause),
            lambda hub: publish_report(hub, pull, BAD),
        )
    assert told.notes == ()
    assert [run["head_sha"] for run in repository.runs.values()] == [HEAD]
    assert (repository.comments, repository.labels) == ([], [])


def test_the_action_on_a_fork_has_no_secrets_and_leaves_its_report_in_the_job(tmp_path):
    ends = {
        "base": {"sha": BASE, "repo": {"full_name": REPO}},
        "head": {"sha": HEAD, "repo": {"full_name": "mallory/tally"}},
    }
    pull = read_pull_event(event_file(tmp_path, pull_request={"number": 7, **ends}))
    host, repository = github()
    host.tokens[TOKEN] = READ_ONLY
    summary = tmp_path / "summary.md"
    with serving_host(host):
        told, _ = ask(
            lambda pause: open_github(REPO, TOKEN, host.address, pause),
            lambda hub: publish_report(hub, pull, BAD, summary),
        )
    assert any("from a fork the token is read-only" in note for note in told.notes)
    assert "closeloop" in summary.read_text()
    assert (repository.runs, repository.comments) == ({}, [])


def test_the_action_tells_a_pull_request_in_the_form_that_github_describes(tmp_path):
    ends = {
        "base": {"sha": BASE, "repo": {"full_name": REPO}},
        "head": {"sha": HEAD, "repo": {"full_name": REPO}},
    }
    pull = read_pull_event(event_file(tmp_path, pull_request={"number": 7, **ends}))
    host, repository = github()
    with serving_host(host):
        told, _ = ask(
            lambda pause: open_github(REPO, TOKEN, host.address, pause),
            lambda hub: publish_report(hub, pull, BAD),
        )
    assert told.notes == ()
    assert (len(repository.runs), len(repository.comments)) == (1, 1)
    assert repository.labels == ["risk:high"]
