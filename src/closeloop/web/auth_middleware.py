"""Authentication and limits of every request: hosts, callers, body sizes, rates and headers."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
import zlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, quote

import anyio
import anyio.to_thread
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from closeloop.records.record import Record
from closeloop.records.settings import ACCESS_SCOPES, AccessScope, ServeSettings
from closeloop.store import Store
from closeloop.text.wording import count_with_noun
from closeloop.web.render import render_template

# Request bodies, limited in size, memory and time; and refusals.


BODY_SECONDS = 120.0
"""Seconds that a client may take to send a body."""
MAX_HELD_BYTES = 256 << 20
"""Bytes of all bodies that one endpoint holds in memory at once."""
MAX_GZIP_MEMBERS = 1000
"""Members allowed in a gzip stream: each one costs time to begin."""
DECOMPRESS_SECONDS = 20.0
_PIECE_BYTES = 16 << 10
"""Bytes decompressed at a time; small, because the data after a member is copied."""


class RequestRefused(Exception):
    """A request that is refused, with the HTTP status that says why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class BodyMemory:
    """Limits the bytes of bodies in memory, over all requests to an endpoint."""

    def __init__(self, limit: int = MAX_HELD_BYTES) -> None:
        self.limit = limit
        self.used_bytes = 0

    async def read_body(self, receive: Receive, max_bytes: int, reason: str) -> bytes:
        """Receive a body; it counts towards the limit only until it is complete."""
        async with self.hold_body(receive, max_bytes, reason) as body:
            return body

    @asynccontextmanager
    async def hold_body(
        self, receive: Receive, max_bytes: int, reason: str
    ) -> AsyncIterator[bytes]:
        """Receive a body; it counts towards the limit while the block runs.

        Raises RequestRefused: 413 with `reason` above `max_bytes`, 408 if the body does not arrive
        in time, 503 if the bodies of all requests take too much memory. Raises ClientDisconnect
        if the client leaves.
        """
        chunks: list[bytes] = []
        size = 0
        try:
            with anyio.move_on_after(BODY_SECONDS) as timer:
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise ClientDisconnect
                    chunk = message.get("body", b"")
                    chunks.append(chunk)
                    size += len(chunk)
                    self.used_bytes += len(chunk)
                    if size > max_bytes:
                        raise RequestRefused(413, reason)
                    if self.used_bytes > self.limit:
                        raise RequestRefused(503, "The server is busy: send the request again.")
                    if not message.get("more_body"):
                        break
            if timer.cancelled_caught:
                raise RequestRefused(
                    408, f"The body did not arrive within {BODY_SECONDS:.0f} seconds."
                )
            yield chunks[0] if len(chunks) == 1 else b"".join(chunks)
        finally:
            self.used_bytes -= size


def decompress_gzip(body: bytes, max_bytes: int) -> bytes:
    """Decompress gzip of one or several members, in time linear to its size.

    Raises RequestRefused: 413 if it has too many members, becomes larger than `max_bytes` or takes
    too long; 400 if it is damaged.
    """
    content, offset, members = bytearray(), 0, 0
    deadline = time.monotonic() + DECOMPRESS_SECONDS
    while offset < len(body):
        members += 1
        if members > MAX_GZIP_MEMBERS:
            raise RequestRefused(
                413, f"A body may have at most {MAX_GZIP_MEMBERS} gzip members: send it as one."
            )
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            piece = body[offset : offset + _PIECE_BYTES]
            if not piece:
                raise RequestRefused(400, "The gzip body is truncated.")
            try:
                content += member.decompress(piece, max_bytes + 1 - len(content))
            except zlib.error as error:
                raise RequestRefused(400, "The body is not gzip.") from error
            if len(content) > max_bytes:
                raise RequestRefused(
                    413, f"A request may be at most {max_bytes >> 20} MiB uncompressed."
                )
            if time.monotonic() > deadline:
                raise RequestRefused(
                    413, "The body takes too long to decompress: send less at once."
                )
            offset += len(piece) - len(member.unused_data)
    return bytes(content)


def request_media_type(request: Request) -> str:
    """Return the media type that the request declares."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


# Parsing of forms.

MAX_FIELDS = 1000


def parse_form_fields(body: bytes) -> dict[str, list[str]]:
    """Return each form field with its values; empty if the body cannot be one of our forms."""
    try:
        return parse_qs(body.decode("utf-8", "replace"), max_num_fields=MAX_FIELDS)
    except ValueError:
        return {}


# Authentication and authorisation: decided once, before any page or endpoint runs.
#
# Without a token, anybody on this machine may read and send traces. Everything
# else needs a token, a browser login with one, or a user name set by a trusted proxy. Writes by
# a browser must come from our own pages: same origin, and the CSRF token of those pages.


LOOPBACK = ("127.0.0.1", "::1", "localhost")
OPEN_PATHS = ("/health", "/login", "/favicon.ico")
OPEN_FOLDERS = ("/static/", "/webhooks/")
"""Paths that need no token; webhooks are signed by their senders."""
READING_METHODS = ("GET", "HEAD", "OPTIONS")
WRITE_SCOPES: dict[str, AccessScope] = {"/v1/": "ingest", "/settings": "admin", "/logout": "read"}
"""Scope that a write below a path needs; `review` for any other path."""


class Caller(Record):
    """The sender of a request."""

    name: str | None = None
    """None: an anonymous user of this machine."""
    scopes: tuple[AccessScope, ...] = ()
    session: str | None = None
    """Secret of the browser's session, if it has one."""
    new: bool = False
    """Whether the response must set the session's cookie."""
    by_browser: bool = False
    """Whether a session cookie or proxy, not a token in the request, identifies the caller; writes
    must then come from our pages."""

    @property
    def csrf(self) -> str | None:
        """Return the token that our pages send with a write and that no other page can know."""
        return None if self.session is None else csrf_from_session(self.session)

    def may(self, scope: AccessScope) -> bool:
        return scope in self.scopes or "admin" in self.scopes


class AccessPolicy(Record):
    """Who may access the server."""

    store: Store
    token: str | None = None
    """The token from the environment; it has every scope."""
    is_open: bool = False
    """Whether anybody on this machine may read and send traces."""
    settings: ServeSettings = ServeSettings()

    def identify_caller(self, request: Request) -> Caller:
        """Identify the caller; one without scopes if the request proves nothing."""
        secret = bearer_token(request)
        if secret is not None:
            return self.caller_by_token(secret) or Caller()
        if (proxy_caller := self._caller_by_proxy(request)) is not None:
            return proxy_caller
        session = request.cookies.get(session_cookie_name(request))
        if session and (session_caller := self._caller_by_session(session)) is not None:
            return session_caller
        if not self.is_open:
            return Caller()
        if session is not None:
            return Caller(scopes=ACCESS_SCOPES, session=session, by_browser=True)
        if request.method in READING_METHODS:
            return Caller(scopes=ACCESS_SCOPES, session=secrets.token_urlsafe(32), new=True)
        return Caller(scopes=("ingest",))

    def caller_by_token(self, secret: str) -> Caller | None:
        if self.token is not None and hmac.compare_digest(secret.encode(), self.token.encode()):
            return Caller(name="the server's token", scopes=ACCESS_SCOPES)
        known_token = self.store.access.find_token(secret=secret)
        return (
            None
            if known_token is None
            else Caller(name=known_token.name, scopes=known_token.scopes)
        )

    def find_token_id(self, secret: str) -> str | None:
        """Return the id that a login stores for the token it was made with; None if unknown."""
        if self.token is not None and hmac.compare_digest(secret.encode(), self.token.encode()):
            return self._environment_token_id
        known_token = self.store.access.find_token(secret=secret)
        return None if known_token is None else known_token.id

    @property
    def _environment_token_id(self) -> str:
        """Return an id derived from the token, so that a new token ends logins by the old one."""
        return "environment " + hashlib.sha256((self.token or "").encode()).hexdigest()[:16]

    def _caller_by_session(self, session: str) -> Caller | None:
        name = self.store.access.find_login_token(session, datetime.now(UTC))
        if name is None:
            return None
        if self.token is not None and name == self._environment_token_id:
            return Caller(
                name="the server's token", scopes=ACCESS_SCOPES, session=session, by_browser=True
            )
        known_token = self.store.access.find_token(name=name)
        if known_token is None:
            return None
        return Caller(
            name=known_token.name, scopes=known_token.scopes, session=session, by_browser=True
        )

    def _caller_by_proxy(self, request: Request) -> Caller | None:
        """Return the user that a trusted proxy names in its header."""
        header = self.settings.user_header
        if header is None or peer_address(request) not in self.settings.proxies:
            return None
        name = request.headers.get(header)
        if not name:
            return None
        # The proxy logs people in; the browser's session only identifies our own pages.
        session = request.cookies.get(session_cookie_name(request))
        return Caller(
            name=name[:200],
            scopes=self.settings.user_scopes,
            session=session or secrets.token_urlsafe(32),
            new=session is None,
            by_browser=True,
        )


def required_scope(method: str, path: str) -> AccessScope | None:
    """Return the scope that a request needs; None if everybody may send it."""
    if path in OPEN_PATHS or path.startswith(OPEN_FOLDERS):
        return None
    if method in READING_METHODS:
        return "read"
    return next(
        (scope for start, scope in WRITE_SCOPES.items() if path.startswith(start)), "review"
    )


def bearer_token(request: Request) -> str | None:
    """Return the request's bearer token."""
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" and secret.strip() else None


def session_cookie_name(request: Request) -> str:
    """Return a cookie name with the port: browsers share cookies between the ports of a machine."""
    return f"closeloop_{request.url.port or 'session'}"


def csrf_from_session(session: str) -> str:
    return hashlib.sha256(b"csrf " + session.encode("utf-8", "replace")).hexdigest()[:32]


def is_same_origin(request: Request, hosts: Collection[str] = ()) -> bool:
    """Check whether the browser declares one of our own pages as the origin.

    Only the host is compared, because a proxy may terminate HTTPS for us.
    """
    origin = request.headers.get("origin")
    if origin is None:
        return request.headers.get("sec-fetch-site") == "same-origin"
    kind, _, host = origin.partition("://")
    return kind in ("http", "https") and host in (request.headers.get("host"), *hosts)


def peer_address(request: Request) -> str:
    """Return the address of the connection's peer; a proxy's address if there is a proxy."""
    return request.client.host if request.client else ""


def caller_from_scope(scope: Any) -> Caller:
    """Return the caller that the middleware stored in the scope."""
    caller: Caller = scope.get("state", {}).get("caller") or Caller()
    return caller


# Rate limits by address.

MAX_ADDRESSES = 10_000


class AddressRateLimit:
    """Limits the number of requests per address in a period of seconds."""

    def __init__(self, max_requests: int, seconds: float) -> None:
        self.most = max_requests
        self.rate = max_requests / seconds
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def count_request(self, address: str) -> float | None:
        """Count a request; return None if it may proceed, else the seconds until it may."""
        now = time.monotonic()
        allowance, last_time = self._left.pop(address, (float(self.most), now))
        allowance = min(float(self.most), allowance + (now - last_time) * self.rate)
        allowed = allowance >= 1
        self._left[address] = (allowance - 1 if allowed else allowance, now)
        if len(self._left) > MAX_ADDRESSES:
            self._left.popitem(last=False)
        return None if allowed else max(1.0, (1 - allowance) / self.rate)


MAX_FORM_BYTES = 1 << 20
READ_ONLY_MESSAGE = (
    "This server's store is read-only: start the server where the store is writable."
)
SECURITY_HEADERS = {
    "content-security-policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' data:",
            "font-src 'self'",
            "connect-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
SENDING_PATHS = ("/v1/", "/webhooks/")
"""Paths that programs write to, thousands of times a second; they have their own limits."""
STREAMED_PATHS = (*SENDING_PATHS, "/api/evaluations")
"""Paths whose bodies are read as a stream, up to their own limits."""
SESSION_SECONDS = 30 * 24 * 3600


class AuthMiddleware:
    """Passes a request on to the app, or refuses it."""

    def __init__(self, app: ASGIApp, access_policy: AccessPolicy) -> None:
        self.app = app
        self.access_policy = access_policy
        self.writes = AddressRateLimit(max_requests=600, seconds=60)
        self.logins = AddressRateLimit(max_requests=10, seconds=60)
        self.memory = BodyMemory()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            await self._answer_request(scope, receive, send)
        except ClientDisconnect:
            return  # the client has disconnected

    async def _answer_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        caller = Caller()
        refused = (
            self._refuse_wrong_host(request)
            or self._refuse_read_only(request)
            or self._refuse_too_many(request)
        )
        if refused is None:
            caller = await self._identify_caller(request)
            refused = _refuse_missing_scope(request, caller)
        if (
            refused is None
            and request.method not in READING_METHODS
            and is_buffered_write(request, caller)
        ):
            try:
                reason = f"A form may be at most {MAX_FORM_BYTES >> 20} MiB."
                body = await self.memory.read_body(receive, MAX_FORM_BYTES, reason)
                receive = _replay_body(body)
                refused = self._refuse_foreign_form(request, caller, body)
            except RequestRefused as problem:
                refused = refusal_response(request, problem.status, str(problem))
        scope.setdefault("state", {})["caller"] = caller
        await (refused or self.app)(scope, receive, _send_with_headers(send, request, caller))

    async def _identify_caller(self, request: Request) -> Caller:
        if (
            required_scope(request.method, request.url.path) is None
            and request.url.path != "/login"
        ):
            return Caller()
        return await anyio.to_thread.run_sync(self.access_policy.identify_caller, request)

    def _refuse_wrong_host(self, request: Request) -> Response | None:
        """Refuse a host name that is not ours: a web page may use its own name to reach us."""
        host = _host_name(request.headers.get("host", ""))
        if not self.access_policy.is_open or host in (
            *LOOPBACK,
            *self.access_policy.settings.hosts,
        ):
            return None
        return refusal_response(
            request,
            400,
            f"This server does not answer for the host {host[:100]!r}: use the address "
            "that it prints.",
        )

    def _refuse_read_only(self, request: Request) -> Response | None:
        if request.method in READING_METHODS or not self.access_policy.store.is_read_only:
            return None
        return refusal_response(request, 403, READ_ONLY_MESSAGE)

    def _refuse_foreign_form(
        self, request: Request, caller: Caller, body: bytes
    ) -> Response | None:
        if not needs_csrf_proof(request, caller):
            return None
        return _refuse_foreign_page(request, caller, body, self.access_policy.settings.hosts)

    def _limited_address(self, request: Request) -> str:
        """Return the address to count a request under; from a trusted proxy, the one that it
        reports."""
        peer = peer_address(request)
        if (
            self.access_policy.settings.user_header is None
            or peer not in self.access_policy.settings.proxies
        ):
            return peer
        return request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip() or peer

    def _refuse_too_many(self, request: Request) -> Response | None:
        path = request.url.path
        if request.method in READING_METHODS or path.startswith(SENDING_PATHS):
            return None
        limit = self.logins if path == "/login" else self.writes
        wait = limit.count_request(self._limited_address(request))
        if wait is None:
            return None
        wait_text = count_with_noun(round(wait), "second")
        response = refusal_response(request, 429, f"Too many requests: try again in {wait_text}.")
        response.headers["retry-after"] = f"{wait:.0f}"
        return response


def _host_name(header: str) -> str:
    """Return the host name of a header without its port, in lower case."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def is_buffered_write(request: Request, caller: Caller) -> bool:
    """Check whether a write's body is read before it is let in, which suits only small bodies."""
    return needs_csrf_proof(request, caller) or not request.url.path.startswith(STREAMED_PATHS)


def needs_csrf_proof(request: Request, caller: Caller) -> bool:
    """Check whether a write must prove that it comes from our own pages."""
    path = request.url.path
    if path.startswith(SENDING_PATHS):
        return False
    return path == "/login" or caller.by_browser


def _refuse_missing_scope(request: Request, caller: Caller) -> Response | None:
    scope = required_scope(request.method, request.url.path)
    if scope is None or caller.may(scope):
        return None
    if caller.name is not None:
        return refusal_response(request, 403, f"This token lacks the scope `{scope}`.")
    if request.method in READING_METHODS and "text/html" in request.headers.get("accept", ""):
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"/login?next={quote(request.url.path + query, safe='')}", 303)
    reason = (
        "This token is unknown or revoked: `closeloop admin token list` lists valid tokens."
        if request.headers.get("authorization", "").lower().startswith("bearer ")
        else "Send the header `Authorization: Bearer TOKEN`."
    )
    return JSONResponse({"message": reason}, 401, {"www-authenticate": "Bearer"})


def _refuse_foreign_page(
    request: Request, caller: Caller, body: bytes, hosts: Collection[str]
) -> Response | None:
    """Refuse a write that another site's page made a browser send."""
    if not is_same_origin(request, hosts):
        return refusal_response(
            request, 403, "This request did not come from a page of this server."
        )
    if request.url.path == "/login":
        return None
    csrf_given = request.headers.get("x-csrf-token") or _form_field(request.headers, body, "csrf")
    if caller.csrf is None or not hmac.compare_digest(csrf_given.encode(), caller.csrf.encode()):
        return refusal_response(request, 403, "The page is out of date: reload it and try again.")
    return None


def _form_field(headers: Mapping[str, str], body: bytes, name: str) -> str:
    if not headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return ""
    return parse_form_fields(body).get(name, [""])[0]


def _replay_body(body: bytes) -> Receive:
    """Return a `receive` that delivers a body that has already been read."""
    was_sent = False

    async def replay_message() -> Message:
        nonlocal was_sent
        if was_sent:
            return {"type": "http.disconnect"}
        was_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay_message


def _send_with_headers(send: Send, request: Request, caller: Caller) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
            if caller.new and caller.session:
                headers.append(
                    "set-cookie", session_cookie(request, caller.session, SESSION_SECONDS)
                )
        await send(message)

    return send_with_headers


def session_cookie(request: Request, secret: str, seconds: int) -> str:
    """Return the cookie of a browser's session, inaccessible to scripts and to other sites."""
    # A false claim of HTTPS only keeps the sender's own cookie from plain HTTP.
    scheme = request.headers.get("x-forwarded-proto", request.url.scheme)
    secure = "; Secure" if scheme == "https" else ""
    name = session_cookie_name(request)
    return f"{name}={secret}; Max-Age={seconds}; Path=/; HttpOnly; SameSite=Lax{secure}"


def refusal_response(request: Request, status: int, reason: str) -> Response:
    """Return a refusal: a page for people, a JSON record for programs."""
    if "text/html" in request.headers.get("accept", ""):
        from closeloop.web.render import render_template

        return Response(render_template("refused.html", why=reason), status, media_type="text/html")
    return JSONResponse({"message": reason}, status)


# Login with a token, and logout.


def login_routes(policy: AccessPolicy) -> list[Route]:
    async def show_login_form(request: Request) -> Response:
        text = render_template(
            "login.html", next=local_path(request.query_params.get("next")), why=None
        )
        return Response(text, media_type="text/html")

    async def log_in(request: Request) -> Response:
        form_values = parse_form_fields(await request.body())
        token, next_path = (
            form_values.get("token", [""])[0].strip(),
            local_path(form_values.get("next", ["/"])[0]),
        )
        name = await anyio.to_thread.run_sync(policy.find_token_id, token) if token else None
        if name is None:
            reason = "This token is unknown or revoked."
            return Response(
                render_template("login.html", next=next_path, why=reason),
                403,
                media_type="text/html",
            )
        secret = secrets.token_urlsafe(32)
        expires_at = datetime.now(UTC) + timedelta(seconds=SESSION_SECONDS)
        await anyio.to_thread.run_sync(policy.store.access.save_login, secret, name, expires_at)
        response = RedirectResponse(next_path, 303)
        response.headers.append("set-cookie", session_cookie(request, secret, SESSION_SECONDS))
        return response

    async def log_out(request: Request) -> Response:
        caller = caller_from_scope(request.scope)
        if caller.session is not None:
            now = datetime.now(UTC)
            await anyio.to_thread.run_sync(policy.store.access.revoke_login, caller.session, now)
        response = RedirectResponse("/login", 303)
        response.headers.append("set-cookie", session_cookie(request, "", 0))
        return response

    return [
        Route("/login", show_login_form, methods=["GET"]),
        Route("/login", log_in, methods=["POST"]),
        Route("/logout", log_out, methods=["POST"]),
    ]


def local_path(path: str | None) -> str:
    """Return the path if it is on this server, else `/`."""
    is_local = path is not None and path.startswith("/") and path[1:2] not in ("/", "\\")
    return path if is_local and path and path.isprintable() else "/"


# Error responses: no such page, or a page that failed.


async def answer_not_found(request: Request, error: Exception) -> Response:
    return _error_response(request, 404, "There is no page at this address.")


async def answer_server_error(request: Request, error: Exception) -> Response:
    return _error_response(request, 500, "This page could not be shown: see the server's log.")


def _error_response(request: Request, status: int, reason: str) -> Response:
    # An error may bypass the middleware that would have set these headers.
    response = refusal_response(request, status, reason)
    response.headers.update(SECURITY_HEADERS)
    return response
