"""Who asks a code host: a token of the environment, or a GitHub App that is installed there.

An app is made from a manifest. It proves itself by a short-lived token signed with its private
key, and is given a token for one repository at a time. Keys are read from files when they are
needed and are in no record, message or log.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import anyio
import msgspec

from closeloop.changes.code_host import (
    GITHUB_API,
    GITLAB_API,
    CodeHostClient,
    CodeHostRefused,
    Pause,
    open_github,
    open_github_http,
    open_gitlab,
)
from closeloop.git import try_git_text
from closeloop.records.errors import BadInput
from closeloop.records.record import Record
from closeloop.text.wording import repository_name

HostKind = Literal["github", "gitlab"]
_HOST_APIS: dict[HostKind, tuple[str, str]] = {
    "github": ("GITHUB_API_URL", GITHUB_API),
    "gitlab": ("GITLAB_API_URL", GITLAB_API),
}
"""The variable that names another server, and where they usually are."""
_REPO_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_./-]{0,300}/[A-Za-z0-9_.-]{1,100}")

APP_ID_VARIABLE = "CLOSELOOP_GITHUB_APP_ID"
APP_KEY_VARIABLE = "CLOSELOOP_GITHUB_APP_KEY_FILE"
JWT_SECONDS = 540
"""GitHub takes ten minutes at the most."""
CLOCK_SKEW_SECONDS = 60
APP_EVENTS = (
    "check_run", "check_suite", "issue_comment", "merge_group", "pull_request",
    "pull_request_review", "pull_request_review_comment", "pull_request_review_thread", "push",
    "workflow_run",
)  # fmt: skip
APP_PERMISSIONS = {
    "actions": "read",
    "checks": "write",
    "contents": "read",
    "issues": "read",
    "merge_queues": "read",
    "metadata": "read",
    "pull_requests": "write",
}


class HostedRepository(Record):
    """Where a repository is at its host."""

    kind: HostKind
    repo: str
    """`owner/name`; at GitLab a group may have groups."""
    page: str
    """Its page, which with `.git` is also where git finds it."""


class AppCredentials(Record):
    """A GitHub App, and where its private key is."""

    app: str
    key_file: Path


class RegisteredApp(Record):
    """What GitHub says of an app that it made from a manifest; only files ever hold it."""

    id: int
    slug: str
    pem: str
    webhook_secret: str | None = None
    html_url: str = ""


class _Installation(Record):
    id: int
    suspended_at: str | None = None


class _InstallationToken(Record):
    token: str


def read_app_credentials(environ: Mapping[str, str]) -> AppCredentials | None:
    """The app that the environment names; None where it names none."""
    app, key_file = environ.get(APP_ID_VARIABLE, ""), environ.get(APP_KEY_VARIABLE, "")
    if not app and not key_file:
        return None
    if not app or not key_file:
        raise BadInput(f"A GitHub App needs both {APP_ID_VARIABLE} and {APP_KEY_VARIABLE}.")
    return AppCredentials(app=app, key_file=Path(key_file).expanduser())


def find_hosted_repository(clone: Path, environ: Mapping[str, str]) -> HostedRepository | None:
    """The repository that a clone came from, where its host is one that is known."""
    origin = try_git_text(clone, "remote", "get-url", "origin").strip()
    name = repository_name(origin)
    for kind in _HOST_APIS:
        api = urlsplit(find_host_api(kind, environ))
        web_host = api.netloc.removeprefix("api.")
        if _origin_host(origin) == web_host and _REPO_NAME.fullmatch(name):
            page = f"{api.scheme}://{web_host}/{name}"
            return HostedRepository(kind=kind, repo=name, page=page)
    return None


def find_host_api(kind: HostKind, environ: Mapping[str, str]) -> str:
    """Where a host's API is; a variable that is empty is one that is not set."""
    variable, usual = _HOST_APIS[kind]
    return environ.get(variable) or usual


def _origin_host(origin: str) -> str:
    if "://" in origin:
        parts = urlsplit(origin)
        # A port of SSH is none of the web's.
        return parts.netloc.rpartition("@")[2] if parts.scheme != "ssh" else parts.hostname or ""
    return origin.partition("@")[2].partition(":")[0]


def open_code_host(
    source: str, repo: str, environ: Mapping[str, str], pause: Pause = anyio.sleep
) -> AbstractAsyncContextManager[CodeHostClient] | None:
    """A repository at its host, with the credentials of the environment; None without any."""
    if source == "gitlab":
        token = environ.get("GITLAB_TOKEN", "")
        return open_gitlab(repo, token, find_host_api("gitlab", environ), pause) if token else None
    if source != "github":
        return None
    api = find_host_api("github", environ)
    if token := environ.get("GITHUB_TOKEN", ""):
        return open_github(repo, token, api, pause)
    app = read_app_credentials(environ)
    return open_github_app(repo, app, api, pause) if app else None


@asynccontextmanager
async def open_github_app(
    repo: str, app: AppCredentials, api: str = GITHUB_API, pause: Pause = anyio.sleep
) -> AsyncIterator[CodeHostClient]:
    """A repository as the app may use it; a token that runs out on the way is renewed."""
    address = api.rstrip("/")

    async def issue_token() -> str:
        return await issue_installation_token(repo, app, address, pause)

    token = await issue_token()
    async with open_github_http(address, token) as client:
        yield CodeHostClient(client, address, f"repos/{repo}", token, pause, issue_token)


async def issue_installation_token(
    repo: str, app: AppCredentials, api: str, pause: Pause = anyio.sleep
) -> str:
    """A token for that repository alone; CodeHostRefused where the app may not use it."""
    signed = sign_app_token(app, datetime.now(UTC))
    async with open_github_http(api, signed) as client:
        hub = CodeHostClient(client, api, f"repos/{repo}", signed, pause)
        try:
            installation = await hub.request_json("GET", "installation", _Installation)
        except CodeHostRefused as refused:
            if refused.status != 404:
                raise
            advice = f"The GitHub App {app.app} is not installed at {repo}: install it there"
            raise CodeHostRefused(advice, 404) from None
        if installation.suspended_at is not None:
            raise CodeHostRefused(
                f"The GitHub App {app.app} is suspended at {repo}: whoever installed it can "
                "unsuspend it in their settings",
                403,
            )
        apps = CodeHostClient(client, api, "app/installations", signed, pause)
        wanted = {"repositories": [repo.rpartition("/")[2]]}
        path = f"{installation.id}/access_tokens"
        return (await apps.request_json("POST", path, _InstallationToken, wanted)).token


def sign_app_token(app: AppCredentials, now: datetime) -> str:
    """What an app proves itself by: RS256 over its id and the time."""
    try:
        import jwt
    except ImportError:
        raise BadInput(
            "A GitHub App needs a package for signatures: pip install 'closeloop[github-app]'."
        ) from None
    try:
        key = app.key_file.read_bytes()
    except OSError as error:
        raise BadInput(f"The key {app.key_file} cannot be read ({error.strerror}).") from None
    seconds = int(now.timestamp())
    claims = {
        "iss": app.app,
        "iat": seconds - CLOCK_SKEW_SECONDS,
        "exp": seconds + JWT_SECONDS - CLOCK_SKEW_SECONDS,
    }
    try:
        return str(jwt.encode(claims, key, algorithm="RS256"))
    except (ValueError, TypeError, NotImplementedError, jwt.PyJWTError):
        # What the library says may quote the key.
        raise BadInput(
            f"{app.key_file} holds no private key of RSA: download it from the app's page, and "
            "install closeloop[github-app]."
        ) from None


# Making the app


def build_app_manifest(name: str, url: str, *, may_push: bool = False) -> dict[str, Any]:
    """What GitHub makes an app of: what it hears of, and what it may do."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise BadInput(f"{url!r} is no address for webhooks: give one that begins with https.")
    address = url.rstrip("/")
    return {
        "name": name,
        "url": address,
        "hook_attributes": {"url": f"{address}/webhooks/github", "active": True},
        "redirect_url": address,
        "public": False,
        "default_events": list(APP_EVENTS),
        "default_permissions": APP_PERMISSIONS | ({"contents": "write"} if may_push else {}),
    }


def render_manifest_form(
    manifest: dict[str, Any], state: str, organisation: str | None = None, host: str = "github.com"
) -> str:
    """A page with one button, which sends the manifest to GitHub."""
    owner = f"organizations/{quote(organisation, safe='')}/" if organisation else ""
    action = f"https://{host}/{owner}settings/apps/new?state={quote(state)}"
    value = html.escape(msgspec.json.encode(manifest).decode(), quote=True)
    return (
        '<!doctype html><meta charset="utf-8"><title>Make a GitHub App for closeloop</title>\n'
        f'<form action="{html.escape(action, quote=True)}" method="post">\n'
        f'<input type="hidden" name="manifest" value="{value}">\n'
        "<button>Make the GitHub App</button></form>\n"
    )


async def register_app(
    code: str, api: str = GITHUB_API, pause: Pause = anyio.sleep
) -> RegisteredApp:
    """Trade the code that GitHub answers a manifest with for the app's id and keys, once."""
    address = api.rstrip("/")
    async with open_github_http(address) as client:
        hub = CodeHostClient(client, address, "app-manifests", code, pause)
        path = f"{quote(code, safe='')}/conversions"
        return await hub.request_json("POST", path, RegisteredApp, again=False)


def save_registered_app(registered: RegisteredApp, folder: Path) -> tuple[Path, Path]:
    """Write the key, and the variables that name it, for nobody else to read; their files."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key_file = folder / f"github-app-{registered.id}.pem"
    variables_file = folder / f"github-app-{registered.id}.env"
    variables = {
        APP_ID_VARIABLE: str(registered.id),
        APP_KEY_VARIABLE: str(key_file),
        "CLOSELOOP_GITHUB_SECRET": registered.webhook_secret or "",
    }
    lines = "".join(f"{name}={value}\n" for name, value in variables.items() if value)
    for file, content in ((key_file, registered.pem), (variables_file, lines)):
        try:
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as output:
                os.fchmod(output.fileno(), 0o600)
                output.write(content)
        except OSError as error:
            raise BadInput(f"{file} cannot be written ({error.strerror}).") from None
    return key_file, variables_file
