"""GitHub and GitLab over HTTP: retries, readable errors, pagination."""

from __future__ import annotations

import base64
import html
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import quote, urlsplit

import anyio
import httpx
import msgspec

from closeloop import __version__
from closeloop.git import try_git_text
from closeloop.providers.provider_connection import retry_delay
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.record import Record
from closeloop.text.wording import count_with_noun, repository_name

GITHUB_API = "https://api.github.com"
GITLAB_API = "https://gitlab.com/api/v4"
MAX_TRIES = 5
RESPONSE_SECONDS = 30.0
"""Timeout in seconds of one response."""
MAX_WAIT_SECONDS = 300.0
DEFAULT_LIMIT_SECONDS = 60.0
"""Seconds to wait if GitHub does not say how long its rate limit holds."""
MAX_BODY_BYTES = 32 << 20
MAX_PAGES = 100
_NEXT_LINK = re.compile(r'<([^<>]{1,2000})>;\s*rel="next"')
_LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")

Pause = Callable[[float], Awaitable[None]]
TokenSource = Callable[[], Awaitable[str]]
Kind = TypeVar("Kind")


class CodeHostRefused(MachineFailed):
    """GitHub refused the request."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class CodeHostReplyLost(MachineFailed):
    """No response arrived; the request may or may not have been carried out."""


class CodeHostReply(Record):
    status: int
    headers: Mapping[str, str]
    body: bytes


class CodeHostClient:
    """One repository at its host. Never prints the token."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        api: str,
        root: str,
        token: str,
        pause: Pause,
        renew: TokenSource | None = None,
    ) -> None:
        self._client, self._api, self._token, self._pause = client, api, token, pause
        self._renew = renew
        """Returns another token when this one has expired."""
        self._root = f"{api}/{root}"
        self._kind = "GitLab" if root.startswith("projects/") else "GitHub"
        self.host = urlsplit(api).netloc

    def git_header(self) -> str:
        """Return the HTTP header with which git authenticates as this client."""
        user = "oauth2" if self._kind == "GitLab" else "x-access-token"
        secret = base64.b64encode(f"{user}:{self._token}".encode()).decode()
        return f"Authorization: Basic {secret}"

    async def wait_before_retry(self, number: int) -> None:
        """Wait before the next try, longer each time."""
        await self._pause(retry_delay(number, {}, datetime.now(UTC)))

    async def retry_lost_replies(self, operation: Callable[[], Awaitable[Kind]]) -> Kind:
        """Repeat an operation that checks before it writes, as long as responses are lost."""
        for number in range(MAX_TRIES - 1):
            try:
                return await operation()
            except CodeHostReplyLost:
                await self.wait_before_retry(number)
        return await operation()

    async def fetch_login(self) -> str | None:
        """Return the login that we write as; None if the token does not reveal it."""
        # The token of a workflow may not read `/user`, but may read this.
        url = f"{self._api.removesuffix('/v3')}/graphql"
        try:
            answer = await self._request_with_retries("POST", url, {"query": "{viewer{login}}"})
            return self._decode_reply(answer, _ViewerReply).data.viewer.login
        except MachineFailed:
            return None

    async def request_json(
        self,
        method: str,
        path: str,
        kind: type[Kind],
        payload: dict[str, Any] | None = None,
        *,
        again: bool = True,
    ) -> Kind:
        """Send a request and decode the response.

        Without `again`, a lost reply is raised at once.
        """
        answer = await self._request_with_retries(
            method, f"{self._root}/{path}", payload, again=again
        )
        return self._decode_reply(answer, kind)

    async def list_pages(self, path: str, kind: type[Kind]) -> AsyncIterator[Kind]:
        """Yield the pages of a list."""
        url = f"{self._root}/{path}{'&' if '?' in path else '?'}per_page=100"
        for _ in range(MAX_PAGES):
            answer = await self._request_with_retries("GET", url)
            yield self._decode_reply(answer, kind)
            next_link = _NEXT_LINK.search(answer.headers.get("link", ""))
            # The token is sent too: only to the host that it is for.
            if not next_link or not next_link[1].startswith(f"{self._api}/"):
                return
            url = next_link[1]

    async def delete_path(self, path: str) -> None:
        """Delete a resource; not an error if it is already gone."""
        try:
            await self._request_with_retries("DELETE", f"{self._root}/{path}")
        except CodeHostRefused as refused:
            if refused.status != 404:
                raise

    async def _request_with_retries(
        self, method: str, url: str, payload: Any = None, *, again: bool = True
    ) -> CodeHostReply:
        error_text = ""
        for number in range(MAX_TRIES):
            wait: float | None = None
            try:
                answer = await self._send_request(method, url, payload)
            except CodeHostReplyLost as lost:
                if not again:
                    raise
                error_text = str(lost)
            else:
                if answer.status < 300:
                    return answer
                if answer.status == 401 and self._renew is not None and number == 0:
                    self._token = await self._renew()
                    self._client.headers["authorization"] = f"Bearer {self._token}"
                    continue
                wait = self._rate_limit_wait(answer, number)
                error_text = (
                    f"{self.host} answered {answer.status}{self._error_message(answer.body)}"
                )
                if wait is None and answer.status < 500:
                    raise CodeHostRefused(error_text, answer.status)
                if wait is None and not again:
                    raise CodeHostReplyLost(error_text)
            if number + 1 < MAX_TRIES:
                await (self.wait_before_retry(number) if wait is None else self._pause(wait))
        raise CodeHostReplyLost(f"{error_text} {MAX_TRIES} times: run the job again later.")

    async def _send_request(self, method: str, url: str, payload: Any) -> CodeHostReply:
        body = None if payload is None else msgspec.json.encode(payload)
        received = bytearray()
        try:
            with anyio.fail_after(RESPONSE_SECONDS):
                async with self._client.stream(method, url, content=body) as response:
                    async for chunk in response.aiter_bytes():
                        received += chunk
                        if len(received) > MAX_BODY_BYTES:
                            raise MachineFailed(f"{self.host} sends an endless response.")
        except (TimeoutError, httpx.TimeoutException):
            raise CodeHostReplyLost(
                f"{self.host} did not answer in {RESPONSE_SECONDS:g} s"
            ) from None
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise CodeHostReplyLost(
                f"{self.host} could not be reached ({type(error).__name__})"
            ) from None
        return CodeHostReply(
            status=response.status_code, headers=response.headers, body=bytes(received)
        )

    def _rate_limit_wait(self, answer: CodeHostReply, number: int) -> float | None:
        """Return the seconds to wait if rate limited; None otherwise."""
        wait = rate_limit_seconds(answer, number, datetime.now(UTC))
        if wait is not None and wait > MAX_WAIT_SECONDS:
            raise MachineFailed(
                f"The rate limit of {self.host} is reached for "
                f"{count_with_noun(round(wait / 60), 'minute')}: run the job again "
                "then."
            )
        return wait

    def _decode_reply(self, answer: CodeHostReply, kind: type[Kind]) -> Kind:
        try:
            return msgspec.json.decode(answer.body or b"null", type=kind)
        except (ValueError, RecursionError):
            raise MachineFailed(
                f"The response of {self.host} is not in the format of {self._kind}: "
                f"check {self._kind.upper()}_API_URL."
            ) from None

    def _error_message(self, body: bytes) -> str:
        """Return the host's error message as ` (…)`, or an empty string."""
        try:
            host_error = msgspec.json.decode(body, type=_CodeHostError)
            texts = [*_list_error_texts(host_error.message), *_list_error_texts(host_error.errors)]
        except (ValueError, RecursionError):
            return ""
        message = " ".join(": ".join(texts).replace(self._token, "…").split())
        return f" ({message[:200].rstrip('.')})" if message else ""


class _CodeHostError(Record):
    """Error body. GitHub lists reasons of `Validation Failed`; GitLab's message may be a list."""

    message: Any = None
    errors: Any = None


def _list_error_texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case {"message": str(text)}:
            yield text
        case {"field": str(field), "code": str(code)}:
            yield f"{field} {code}"
        case dict():
            for item in value.values():
                yield from _list_error_texts(item)
        case list():
            for element in value:
                yield from _list_error_texts(element)


class _ViewerLogin(Record):
    login: str


class _ViewerData(Record):
    viewer: _ViewerLogin


class _ViewerReply(Record):
    data: _ViewerData


@asynccontextmanager
async def open_github(
    repo: str, token: str, api: str = GITHUB_API, pause: Pause = anyio.sleep
) -> AsyncIterator[CodeHostClient]:
    """Open a client while the block runs; `api` differs for GitHub Enterprise."""
    async with open_github_http(api, require_token(token, "GitHub", "GITHUB_TOKEN")) as client:
        yield CodeHostClient(client, api.rstrip("/"), f"repos/{repo}", token, pause)


@asynccontextmanager
async def open_gitlab(
    project: str, token: str, api: str = GITLAB_API, pause: Pause = anyio.sleep
) -> AsyncIterator[CodeHostClient]:
    """Open a client for a GitLab project, whose pages and limits work as GitHub's."""
    headers = {"private-token": require_token(token, "GitLab", "GITLAB_TOKEN")}
    async with _open_http_client(api, headers) as client:
        root = f"projects/{quote(project, safe='')}"
        yield CodeHostClient(client, api.rstrip("/"), root, token, pause)


def require_token(token: str, host: str, variable: str) -> str:
    if not token or not token.isascii() or not token.isprintable():
        raise BadInput(f"There is no token for {host}: set {variable}.")
    return token


def open_github_http(api: str, token: str | None = None) -> httpx.AsyncClient:
    """Open an HTTP client for GitHub; anonymous without a token."""
    headers = {"accept": "application/vnd.github+json", "x-github-api-version": "2022-11-28"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    return _open_http_client(api, headers)


def _open_http_client(api: str, headers: Mapping[str, str]) -> httpx.AsyncClient:
    parts = urlsplit(api)
    local = parts.hostname in _LOCAL_HOSTS
    if parts.scheme != "https" and not (local and parts.scheme == "http"):
        raise BadInput(f"A token is not sent to {api!r}: give a URL that starts with https.")
    common = {"content-type": "application/json", "user-agent": f"closeloop/{__version__}"}
    # A proxy for external hosts would not reach a server on this machine.
    return httpx.AsyncClient(
        headers={**common, **headers}, timeout=RESPONSE_SECONDS, trust_env=not local
    )


def rate_limit_seconds(answer: CodeHostReply, number: int, now: datetime) -> float | None:
    """Return how long a rate limit holds, by GitHub's published rules; None for other responses."""
    if answer.status not in (403, 429):
        return None
    after = answer.headers.get("retry-after", "")
    if re.fullmatch(r"\d{1,9}", after):
        return float(after)
    reset = answer.headers.get("x-ratelimit-reset", "")
    if answer.headers.get("x-ratelimit-remaining") == "0" and re.fullmatch(r"\d{1,12}", reset):
        return max(float(reset) - now.timestamp(), 0.0) + 1.0
    if answer.status == 429 or b"rate limit" in answer.body[:2000].lower():
        return DEFAULT_LIMIT_SECONDS * 2.0**number
    return None


# Authentication at a code host: a token from the environment, or an installed GitHub App.
#
# An app is created from a manifest. It authenticates with a short-lived token signed by its private
# key, and receives a token for one repository at a time. Keys are read from files on demand and
# never appear in a record, message or log.


HostKind = Literal["github", "gitlab"]
_HOST_APIS: dict[HostKind, tuple[str, str]] = {
    "github": ("GITHUB_API_URL", GITHUB_API),
    "gitlab": ("GITLAB_API_URL", GITLAB_API),
}
"""Per host: the variable that names another server, and the default API."""
_REPO_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_./-]{0,300}/[A-Za-z0-9_.-]{1,100}")

APP_ID_VARIABLE = "CLOSELOOP_GITHUB_APP_ID"
APP_KEY_VARIABLE = "CLOSELOOP_GITHUB_APP_KEY_FILE"
JWT_SECONDS = 540
"""Lifetime in seconds of a signed token; GitHub allows ten minutes at most."""
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
    """The address of a repository at its host."""

    kind: HostKind
    repo: str
    """`owner/name`; at GitLab groups may be nested."""
    page: str
    """Its page; with `.git` appended, its clone URL."""


class AppCredentials(Record):
    """A GitHub App and the path of its private key."""

    app: str
    key_file: Path


class RegisteredApp(Record):
    """GitHub's reply for an app created from a manifest; stored only in files."""

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
    """Return the app that the environment names; None if it names none."""
    app, key_file = environ.get(APP_ID_VARIABLE, ""), environ.get(APP_KEY_VARIABLE, "")
    if not app and not key_file:
        return None
    if not app or not key_file:
        raise BadInput(f"A GitHub App needs both {APP_ID_VARIABLE} and {APP_KEY_VARIABLE}.")
    return AppCredentials(app=app, key_file=Path(key_file).expanduser())


def find_hosted_repository(clone: Path, environ: Mapping[str, str]) -> HostedRepository | None:
    """Return the repository that a clone came from, if its host is known."""
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
    """Return a host's API address; an empty variable counts as unset."""
    variable, usual = _HOST_APIS[kind]
    return environ.get(variable) or usual


def _origin_host(origin: str) -> str:
    if "://" in origin:
        parts = urlsplit(origin)
        # An SSH port is not an HTTP port.
        return parts.netloc.rpartition("@")[2] if parts.scheme != "ssh" else parts.hostname or ""
    return origin.partition("@")[2].partition(":")[0]


def open_code_host(
    source: str, repo: str, environ: Mapping[str, str], pause: Pause = anyio.sleep
) -> AbstractAsyncContextManager[CodeHostClient] | None:
    """Open a repository at its host with the environment's credentials; None without any."""
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
    """Open a repository as the app; a token that expires meanwhile is renewed."""
    address = api.rstrip("/")

    async def issue_token() -> str:
        return await issue_installation_token(repo, app, address, pause)

    token = await issue_token()
    async with open_github_http(address, token) as client:
        yield CodeHostClient(client, address, f"repos/{repo}", token, pause, issue_token)


async def issue_installation_token(
    repo: str, app: AppCredentials, api: str, pause: Pause = anyio.sleep
) -> str:
    """Return a token for that repository only; CodeHostRefused if the app has no access."""
    signed = sign_app_token(app, datetime.now(UTC))
    async with open_github_http(api, signed) as client:
        host_client = CodeHostClient(client, api, f"repos/{repo}", signed, pause)
        try:
            installation = await host_client.request_json("GET", "installation", _Installation)
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
        payload = {"repositories": [repo.rpartition("/")[2]]}
        path = f"{installation.id}/access_tokens"
        return (await apps.request_json("POST", path, _InstallationToken, payload)).token


def sign_app_token(app: AppCredentials, now: datetime) -> str:
    """Sign the token that authenticates an app: RS256 over its id and the time."""
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
        # The library's message may quote the key.
        raise BadInput(
            f"{app.key_file} contains no RSA private key: download it from the app's "
            "page, and install closeloop[github-app]."
        ) from None


# Creating the app


def build_app_manifest(name: str, url: str, *, may_push: bool = False) -> dict[str, Any]:
    """Build the manifest that GitHub creates an app from: its events and permissions."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise BadInput(f"{url!r} is not a valid URL for webhooks: give one that starts with https.")
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
    """Render a page with one button, which sends the manifest to GitHub."""
    owner = f"organizations/{quote(organisation, safe='')}/" if organisation else ""
    action = f"https://{host}/{owner}settings/apps/new?state={quote(state)}"
    value = html.escape(msgspec.json.encode(manifest).decode(), quote=True)
    return (
        '<!doctype html><meta charset="utf-8"><title>Create a GitHub App for '
        f'closeloop</title>\n<form action="{html.escape(action, quote=True)}" '
        f'method="post">\n<input type="hidden" name="manifest" value="{value}">\n'
        "<button>Create the GitHub App</button></form>\n"
    )


async def register_app(
    code: str, api: str = GITHUB_API, pause: Pause = anyio.sleep
) -> RegisteredApp:
    """Exchange GitHub's code for the app's id and keys; works once."""
    address = api.rstrip("/")
    async with open_github_http(address) as client:
        host_client = CodeHostClient(client, address, "app-manifests", code, pause)
        path = f"{quote(code, safe='')}/conversions"
        return await host_client.request_json("POST", path, RegisteredApp, again=False)


def save_registered_app(registered: RegisteredApp, folder: Path) -> tuple[Path, Path]:
    """Write the key and the variables that name it, readable by the owner only; return both
    paths."""
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
