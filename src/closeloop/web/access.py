"""Who calls, and whether they may: decided once, before any page or endpoint is asked.

On this machine reading is open and so is sending traces, as long as no token is set. Everything
else needs a token, a browser's login by one, or the name that a trusted proxy vouches for. What a
browser writes must come from our own pages: same origin, and the token that those pages hold.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request

from closeloop.records.record import Record
from closeloop.records.settings import ACCESS_SCOPES, AccessScope, ServeSettings
from closeloop.store import Store

LOOPBACK = ("127.0.0.1", "::1", "localhost")
OPEN_PATHS = ("/health", "/login", "/favicon.ico")
OPEN_FOLDERS = ("/static/", "/webhooks/")
"""Webhooks are signed by whoever sends them."""
READING_METHODS = ("GET", "HEAD", "OPTIONS")
WRITE_SCOPES: dict[str, AccessScope] = {"/v1/": "ingest", "/settings": "admin", "/logout": "read"}
"""What writing below a path needs; `review` anywhere else."""


class Caller(Record):
    """Whoever sent a request."""

    name: str | None = None
    """None is nobody in particular, on this machine."""
    scopes: tuple[AccessScope, ...] = ()
    session: str | None = None
    """The secret of the browser's session, where it has one."""
    new: bool = False
    """Whether the browser has yet to be told of its session."""
    by_browser: bool = False
    """Whether only the browser's session says so: then a write must come from our pages."""

    @property
    def csrf(self) -> str | None:
        """What our pages send along with a write, and no other page can know."""
        return None if self.session is None else csrf_from_session(self.session)

    def may(self, scope: AccessScope) -> bool:
        return scope in self.scopes or "admin" in self.scopes


class AccessPolicy(Record):
    """Who is let in."""

    store: Store
    token: str | None = None
    """The one that the environment gives; it may do everything."""
    is_open: bool = False
    """Whether anybody on this machine may read and send traces."""
    settings: ServeSettings = ServeSettings()

    def identify_caller(self, request: Request) -> Caller:
        """Whoever calls; somebody without scopes where that cannot be told."""
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
        """What a login remembers of the token it was made with."""
        if self.token is not None and hmac.compare_digest(secret.encode(), self.token.encode()):
            return self._environment_token_id
        known_token = self.store.access.find_token(secret=secret)
        return None if known_token is None else known_token.id

    @property
    def _environment_token_id(self) -> str:
        """Another token in the environment ends the logins by the last one."""
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
        """Whom a proxy names that we were told to trust."""
        header = self.settings.user_header
        if header is None or peer_address(request) not in self.settings.proxies:
            return None
        name = request.headers.get(header)
        if not name:
            return None
        # The proxy logs people in; the browser's session is only there to know our own pages.
        session = request.cookies.get(session_cookie_name(request))
        return Caller(
            name=name[:200],
            scopes=self.settings.user_scopes,
            session=session or secrets.token_urlsafe(32),
            new=session is None,
            by_browser=True,
        )


def required_scope(method: str, path: str) -> AccessScope | None:
    """What a request needs; None where anybody may."""
    if path in OPEN_PATHS or path.startswith(OPEN_FOLDERS):
        return None
    if method in READING_METHODS:
        return "read"
    return next(
        (scope for start, scope in WRITE_SCOPES.items() if path.startswith(start)), "review"
    )


def bearer_token(request: Request) -> str | None:
    """The token that a request holds up."""
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" and secret.strip() else None


def session_cookie_name(request: Request) -> str:
    """Browsers share cookies between the ports of a machine."""
    return f"closeloop_{request.url.port or 'session'}"


def csrf_from_session(session: str) -> str:
    return hashlib.sha256(b"csrf " + session.encode("utf-8", "replace")).hexdigest()[:32]


def is_same_origin(request: Request, hosts: Collection[str] = ()) -> bool:
    """Whether a browser says that one of our own pages asks.

    A proxy may speak HTTPS for us, so only the host is compared.
    """
    origin = request.headers.get("origin")
    if origin is None:
        return request.headers.get("sec-fetch-site") == "same-origin"
    kind, _, host = origin.partition("://")
    return kind in ("http", "https") and host in (request.headers.get("host"), *hosts)


def peer_address(request: Request) -> str:
    """The address that a request came from: a proxy's, where there is one."""
    return request.client.host if request.client else ""


def caller_from_scope(scope: Any) -> Caller:
    """Whoever the guard let in."""
    caller: Caller = scope.get("state", {}).get("caller") or Caller()
    return caller
