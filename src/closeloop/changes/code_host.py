"""GitHub over HTTP: asked again when that may help, refused in plain words, read page by page."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import anyio
import httpx
import msgspec

from closeloop import __version__
from closeloop.providers.provider_connection import retry_delay
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.record import Record
from closeloop.text.wording import count_with_noun

GITHUB_API = "https://api.github.com"
GITLAB_API = "https://gitlab.com/api/v4"
MAX_TRIES = 5
RESPONSE_SECONDS = 30.0
"""For one answer."""
MAX_WAIT_SECONDS = 300.0
DEFAULT_LIMIT_SECONDS = 60.0
"""What GitHub asks for where it does not say how long its limit holds."""
MAX_BODY_BYTES = 32 << 20
MAX_PAGES = 100
_NEXT_LINK = re.compile(r'<([^<>]{1,2000})>;\s*rel="next"')
_LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")

Pause = Callable[[float], Awaitable[None]]
TokenSource = Callable[[], Awaitable[str]]
Kind = TypeVar("Kind")


class CodeHostRefused(MachineFailed):
    """GitHub understood us and said no."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class CodeHostReplyLost(MachineFailed):
    """No answer came; what was asked for may have been done, or not."""


class CodeHostReply(Record):
    status: int
    headers: Mapping[str, str]
    body: bytes


class CodeHostClient:
    """One repository at its host. Whatever this says, it does not say the token."""

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
        """What gives another token when this one has run out."""
        self._root = f"{api}/{root}"
        self._kind = "GitLab" if root.startswith("projects/") else "GitHub"
        self.host = urlsplit(api).netloc

    def git_header(self) -> str:
        """What git sends along over HTTP to be let in as we are."""
        user = "oauth2" if self._kind == "GitLab" else "x-access-token"
        secret = base64.b64encode(f"{user}:{self._token}".encode()).decode()
        return f"Authorization: Basic {secret}"

    async def wait_before_retry(self, number: int) -> None:
        """Wait before the next try, longer each time."""
        await self._pause(retry_delay(number, {}, datetime.now(UTC)))

    async def retry_lost_replies(self, doing: Callable[[], Awaitable[Kind]]) -> Kind:
        """What looks before it makes, done again as long as answers are lost."""
        for number in range(MAX_TRIES - 1):
            try:
                return await doing()
            except CodeHostReplyLost:
                await self.wait_before_retry(number)
        return await doing()

    async def fetch_login(self) -> str | None:
        """As whom we write; None where the token cannot tell."""
        # The token of a workflow may not read `/user`, but it may ask this.
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
        """What GitHub answers. With `again` off, Lost is raised at once where no answer comes."""
        answer = await self._request_with_retries(
            method, f"{self._root}/{path}", payload, again=again
        )
        return self._decode_reply(answer, kind)

    async def list_pages(self, path: str, kind: type[Kind]) -> AsyncIterator[Kind]:
        """A list, page by page."""
        url = f"{self._root}/{path}{'&' if '?' in path else '?'}per_page=100"
        for _ in range(MAX_PAGES):
            answer = await self._request_with_retries("GET", url)
            yield self._decode_reply(answer, kind)
            next_link = _NEXT_LINK.search(answer.headers.get("link", ""))
            # The token goes along: nowhere but where it was meant for.
            if not next_link or not next_link[1].startswith(f"{self._api}/"):
                return
            url = next_link[1]

    async def delete_path(self, path: str) -> None:
        """Delete what may be gone already."""
        try:
            await self._request_with_retries("DELETE", f"{self._root}/{path}")
        except CodeHostRefused as refused:
            if refused.status != 404:
                raise

    async def _request_with_retries(
        self, method: str, url: str, payload: Any = None, *, again: bool = True
    ) -> CodeHostReply:
        trouble = ""
        for number in range(MAX_TRIES):
            wait: float | None = None
            try:
                answer = await self._send_request(method, url, payload)
            except CodeHostReplyLost as lost:
                if not again:
                    raise
                trouble = str(lost)
            else:
                if answer.status < 300:
                    return answer
                if answer.status == 401 and self._renew is not None and number == 0:
                    self._token = await self._renew()
                    self._client.headers["authorization"] = f"Bearer {self._token}"
                    continue
                wait = self._rate_limit_wait(answer, number)
                trouble = f"{self.host} answered {answer.status}{self._error_message(answer.body)}"
                if wait is None and answer.status < 500:
                    raise CodeHostRefused(trouble, answer.status)
                if wait is None and not again:
                    raise CodeHostReplyLost(trouble)
            if number + 1 < MAX_TRIES:
                await (self.wait_before_retry(number) if wait is None else self._pause(wait))
        raise CodeHostReplyLost(f"{trouble} {MAX_TRIES} times: run the job again later.")

    async def _send_request(self, method: str, url: str, payload: Any) -> CodeHostReply:
        body = None if payload is None else msgspec.json.encode(payload)
        received = bytearray()
        try:
            with anyio.fail_after(RESPONSE_SECONDS):
                async with self._client.stream(method, url, content=body) as response:
                    async for chunk in response.aiter_bytes():
                        received += chunk
                        if len(received) > MAX_BODY_BYTES:
                            raise MachineFailed(f"{self.host} answers without end.")
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
        """Seconds to wait where too much was asked; None where that is not the trouble."""
        wait = rate_limit_seconds(answer, number, datetime.now(UTC))
        if wait is not None and wait > MAX_WAIT_SECONDS:
            raise MachineFailed(
                f"{self.host} takes no more requests for"
                f" {count_with_noun(round(wait / 60), 'minute')}: run the job again then."
            )
        return wait

    def _decode_reply(self, answer: CodeHostReply, kind: type[Kind]) -> Kind:
        try:
            return msgspec.json.decode(answer.body or b"null", type=kind)
        except (ValueError, RecursionError):
            raise MachineFailed(
                f"{self.host} answered with something else than {self._kind} does: "
                f"check {self._kind.upper()}_API_URL."
            ) from None

    def _error_message(self, body: bytes) -> str:
        """What the host says is wrong, as ` (…)`, or nothing."""
        try:
            told = msgspec.json.decode(body, type=_CodeHostError)
            texts = [*_list_error_texts(told.message), *_list_error_texts(told.errors)]
        except (ValueError, RecursionError):
            return ""
        message = " ".join(": ".join(texts).replace(self._token, "…").split())
        return f" ({message[:200].rstrip('.')})" if message else ""


class _CodeHostError(Record):
    """GitHub gives the reason of a `Validation Failed` apart; GitLab's message may be a list."""

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
            for one in value.values():
                yield from _list_error_texts(one)
        case list():
            for one in value:
                yield from _list_error_texts(one)


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
    """A connection while the block runs; `api` is another one with GitHub Enterprise."""
    async with open_github_http(api, require_token(token, "GitHub", "GITHUB_TOKEN")) as client:
        yield CodeHostClient(client, api.rstrip("/"), f"repos/{repo}", token, pause)


@asynccontextmanager
async def open_gitlab(
    project: str, token: str, api: str = GITLAB_API, pause: Pause = anyio.sleep
) -> AsyncIterator[CodeHostClient]:
    """The same for a project at GitLab, which has pages and limits as GitHub has."""
    headers = {"private-token": require_token(token, "GitLab", "GITLAB_TOKEN")}
    async with _open_http_client(api, headers) as client:
        root = f"projects/{quote(project, safe='')}"
        yield CodeHostClient(client, api.rstrip("/"), root, token, pause)


def require_token(token: str, host: str, variable: str) -> str:
    if not token or not token.isascii() or not token.isprintable():
        raise BadInput(f"There is no token for {host}: set {variable}.")
    return token


def open_github_http(api: str, token: str | None = None) -> httpx.AsyncClient:
    """What GitHub is asked through; without a token, as anybody."""
    headers = {"accept": "application/vnd.github+json", "x-github-api-version": "2022-11-28"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    return _open_http_client(api, headers)


def _open_http_client(api: str, headers: Mapping[str, str]) -> httpx.AsyncClient:
    parts = urlsplit(api)
    local = parts.hostname in _LOCAL_HOSTS
    if parts.scheme != "https" and not (local and parts.scheme == "http"):
        raise BadInput(f"A token is not sent to {api!r}: give an address that begins with https.")
    common = {"content-type": "application/json", "user-agent": f"closeloop/{__version__}"}
    # A proxy for the world outside would not find a server on this machine.
    return httpx.AsyncClient(
        headers={**common, **headers}, timeout=RESPONSE_SECONDS, trust_env=not local
    )


def rate_limit_seconds(answer: CodeHostReply, number: int, now: datetime) -> float | None:
    """How long a limit on requests holds, by the rules GitHub publishes; None for other answers."""
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
