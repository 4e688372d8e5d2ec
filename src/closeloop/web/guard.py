"""The guard at the door: hosts, callers, limits and headers, around every answer."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping
from urllib.parse import quote

import anyio.to_thread
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from closeloop.model.plural import plural
from closeloop.web.access import (
    LOOPBACK,
    READING,
    Caller,
    Door,
    cookie_name,
    needed,
    peer_of,
    same_origin,
)
from closeloop.web.bodies import BodyMemory, Refused
from closeloop.web.forms import fields
from closeloop.web.limits import Limit

FORM_LIMIT = 1 << 20
READ_ONLY = "This server's store can only be read: start it where the store can be written."
HEADERS = {
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
SENDING = ("/v1/", "/webhooks/")
"""Machines write here, thousands of times a second, and limit themselves."""
STREAMED = (*SENDING, "/api/evaluations")
"""What is sent here is read as it comes, up to limits of its own."""
SESSION_SECONDS = 30 * 24 * 3600


class Guard:
    """Lets a request through, or answers it."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self.app = app
        self.door = door
        self.writes = Limit(most=600, seconds=60)
        self.logins = Limit(most=10, seconds=60)
        self.memory = BodyMemory()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            await self._answer(scope, receive, send)
        except ClientDisconnect:
            return  # nobody is there to be answered

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        caller = Caller()
        refused = self._wrong_host(request) or self._read_only(request) or self._too_many(request)
        if refused is None:
            caller = await self._identify(request)
            refused = _refused(request, caller)
        if refused is None and request.method not in READING and is_form(request, caller):
            try:
                why = f"A form may have {FORM_LIMIT >> 20} MiB."
                body = await self.memory.read_body(receive, FORM_LIMIT, why)
                receive = _again(body)
                refused = self._unfit(request, caller, body)
            except Refused as problem:
                refused = refusal(request, problem.status, str(problem))
        scope.setdefault("state", {})["caller"] = caller
        await (refused or self.app)(scope, receive, _dressed(send, request, caller))

    async def _identify(self, request: Request) -> Caller:
        if needed(request.method, request.url.path) is None and request.url.path != "/login":
            return Caller()
        return await anyio.to_thread.run_sync(self.door.identify, request)

    def _wrong_host(self, request: Request) -> Response | None:
        """A web page may try to reach us under a name of its own."""
        host = _host(request.headers.get("host", ""))
        if not self.door.is_open or host in (*LOOPBACK, *self.door.settings.hosts):
            return None
        return refusal(request, 400, f"This server is not called {host[:100]!r}.")

    def _read_only(self, request: Request) -> Response | None:
        if request.method in READING or not self.door.store.is_read_only:
            return None
        return refusal(request, 403, READ_ONLY)

    def _unfit(self, request: Request, caller: Caller, body: bytes) -> Response | None:
        if not needs_proof(request, caller):
            return None
        return _not_ours(request, caller, body, self.door.settings.hosts)

    def _address(self, request: Request) -> str:
        """Whose requests are counted together: what a proxy says, where one is believed."""
        peer = peer_of(request)
        if self.door.settings.user_header is None or peer not in self.door.settings.proxies:
            return peer
        return request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip() or peer

    def _too_many(self, request: Request) -> Response | None:
        path = request.url.path
        if request.method in READING or path.startswith(SENDING):
            return None
        limit = self.logins if path == "/login" else self.writes
        wait = limit.wait(self._address(request))
        if wait is None:
            return None
        later = plural(round(wait), "second")
        told = refusal(request, 429, f"Too many at once: try again in {later}.")
        told.headers["retry-after"] = f"{wait:.0f}"
        return told


def _host(header: str) -> str:
    """The name alone, as it was asked for."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def is_form(request: Request, caller: Caller) -> bool:
    """Whether a write is read before it is let in, which is only right for what is small."""
    return needs_proof(request, caller) or not request.url.path.startswith(STREAMED)


def needs_proof(request: Request, caller: Caller) -> bool:
    """Whether a write must show that it comes from our own pages."""
    path = request.url.path
    if path.startswith(SENDING):
        return False
    return path == "/login" or caller.by_browser


def _refused(request: Request, caller: Caller) -> Response | None:
    scope = needed(request.method, request.url.path)
    if scope is None or caller.may(scope):
        return None
    if caller.name is not None:
        return refusal(request, 403, f"This token lacks the scope `{scope}`.")
    if request.method in READING and "text/html" in request.headers.get("accept", ""):
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"/login?next={quote(request.url.path + query, safe='')}", 303)
    why = "Send the header `Authorization: Bearer TOKEN`."
    return JSONResponse({"message": why}, 401, {"www-authenticate": "Bearer"})


def _not_ours(
    request: Request, caller: Caller, body: bytes, hosts: Collection[str]
) -> Response | None:
    """Refuse what another page made a browser send."""
    if not same_origin(request, hosts):
        return refusal(request, 403, "This did not come from a page of this server.")
    if request.url.path == "/login":
        return None
    given = request.headers.get("x-csrf-token") or _field(request.headers, body, "csrf")
    if caller.csrf is None or not hmac.compare_digest(given.encode(), caller.csrf.encode()):
        return refusal(request, 403, "The page is out of date: reload it and try again.")
    return None


def _field(headers: Mapping[str, str], body: bytes, name: str) -> str:
    if not headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return ""
    return fields(body).get(name, [""])[0]


def _again(body: bytes) -> Receive:
    """What was read, for whoever comes next."""
    said = False

    async def receive() -> Message:
        nonlocal said
        if said:
            return {"type": "http.disconnect"}
        said = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


def _dressed(send: Send, request: Request, caller: Caller) -> Send:
    async def dressed(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            if caller.new and caller.session:
                headers.append("set-cookie", cookie(request, caller.session, SESSION_SECONDS))
        await send(message)

    return dressed


def cookie(request: Request, secret: str, seconds: int) -> str:
    """A browser's session, out of reach of scripts and of other sites."""
    # Whoever claims that a proxy speaks HTTPS only keeps their own cookie from plain HTTP.
    told = request.headers.get("x-forwarded-proto", request.url.scheme)
    secure = "; Secure" if told == "https" else ""
    name = cookie_name(request)
    return f"{name}={secret}; Max-Age={seconds}; Path=/; HttpOnly; SameSite=Lax{secure}"


def refusal(request: Request, status: int, why: str) -> Response:
    """For people a page, for programs a record."""
    if "text/html" in request.headers.get("accept", ""):
        from closeloop.web.render import render

        return Response(render("refused.html", why=why), status, media_type="text/html")
    return JSONResponse({"message": why}, status)
