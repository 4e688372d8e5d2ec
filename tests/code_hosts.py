"""GitHub and GitLab on this machine, by their published rules: who may ask what, in which form.

Every request and every answer is held against `code_host_schemas.json`; what does not fit is a
violation, which tests look for at the end. What the repository holds comes from an inner answer.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from patience import PATIENCE

SCHEMAS: dict[str, list[dict[str, Any]]] = json.loads(
    Path(__file__).with_name("code_host_schemas.json").read_text(encoding="utf-8")
)
MAX_PAGE = 100
MAX_JWT_SECONDS = 600
FULL = {"pull_requests": "write", "checks": "write", "contents": "read", "api": "write"}
READ_ONLY = dict.fromkeys(FULL, "read")
"""What a workflow of a pull request from a fork is given: no secrets, and nothing to write."""
NOT_ACCESSIBLE = "Resource not accessible by integration"
TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}
Inner = Callable[[str, str, Any], "tuple[int, Any]"]
"""Method, path and payload; the status and what is answered. A list is cut into pages."""


class CodeHosts:
    """One host. Tests set what it holds, whom it lets in, and what goes wrong."""

    def __init__(self, kind: str, inner: Inner) -> None:
        self.kind, self.inner = kind, inner
        self.operations = SCHEMAS[kind]
        self.tokens: dict[str, dict[str, str]] = {}
        """By token, what it may do."""
        self.uses_left: dict[str, int] = {}
        """After so many requests a token has run out."""
        self.app_key: Any = None
        """The public key of the app, and its id."""
        self.app_id = "4711"
        self.installed, self.suspended = True, False
        self.remaining: int | None = None
        """Requests until the limit of the hour; it is lifted when it was told once."""
        self.secondary: list[dict[str, str]] = []
        """Refusals for asking too fast, one each, with these headers."""
        self.asked: list[str] = []
        self.violations: list[str] = []
        self.issued = 0
        self.address = ""
        self._lock = threading.Lock()

    async def answer(self, request: Request) -> Response:
        body = await request.body()
        payload = json.loads(body) if body else None
        with self._lock:
            return self._answer(request, payload)

    def _answer(self, request: Request, payload: Any) -> Response:
        path = request.scope["raw_path"].decode().partition("?")[0]
        line = f"{request.method} {path}"
        self.asked.append(line)
        operation = next((one for one in self.operations if re.fullmatch(one["call"], line)), None)
        if operation is None:
            self.violations.append(f"no such operation: {line}")
            return self._refuse(404, "Not Found")
        refusal = self._refuse_limits() or self._refuse_stranger(request, operation)
        if refusal is not None:
            return refusal
        self._check(f"request of {line}", operation.get("request"), payload, operation)
        status, told = self._app_answer(line) or self.inner(request.method, path, payload)
        if status >= 400:
            return self._refuse(status, str(told))
        if status != operation["status"]:
            self.violations.append(f"{line} answers {status}, not {operation['status']}")
        for one in told if isinstance(told, list) else [told]:
            self._check(f"answer to {line}", operation["response"], one)
        if not operation.get("paged"):
            return JSONResponse(told, status)
        return self._page(request, told)

    def _refuse(self, status: int, message: str, **headers: str) -> Response:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return JSONResponse({"message": message}, status, names)

    def _refuse_limits(self) -> Response | None:
        if self.secondary:
            headers = self.secondary.pop(0)
            message = "You have exceeded a secondary rate limit. Please wait a few minutes."
            return JSONResponse(
                {"message": message}, 429 if self.kind == "gitlab" else 403, headers
            )
        if self.remaining is None:
            return None
        self.remaining -= 1
        if self.remaining >= 0:
            return None
        self.remaining = None
        reset = str(int(time.time()) + 40)
        return self._refuse(
            403, "API rate limit exceeded", x_ratelimit_remaining="0", x_ratelimit_reset=reset
        )

    def _refuse_stranger(self, request: Request, operation: dict[str, Any]) -> Response | None:
        """By what the operation asks of whoever calls it."""
        if operation["auth"] == "none":
            return None
        header = "private-token" if self.kind == "gitlab" else "authorization"
        token = request.headers.get(header, "").removeprefix("Bearer ")
        if operation["auth"] == "jwt":
            return None if self._is_app(token) else self._refuse(401, "A JSON web token is needed")
        if token not in self.tokens or self.uses_left.get(token) == 0:
            return self._refuse(401, "Bad credentials")
        if token in self.uses_left:
            self.uses_left[token] -= 1
        what, _, level = operation.get("needs", "").partition(":")
        allowed = self.tokens[token].get(what)
        if what and (allowed is None or (level == "write" and allowed != "write")):
            return self._refuse(403, NOT_ACCESSIBLE)
        return None

    def _is_app(self, token: str) -> bool:
        import jwt

        try:
            wanted = {"require": ["exp", "iat", "iss"]}
            claims = jwt.decode(token, self.app_key, algorithms=["RS256"], options=wanted)
        except jwt.PyJWTError:
            return False
        lasts = claims["exp"] - claims["iat"]
        return str(claims["iss"]) == self.app_id and lasts <= MAX_JWT_SECONDS

    def _app_answer(self, line: str) -> tuple[int, Any] | None:
        """What the host itself says of apps."""
        if line.endswith("/installation"):
            if not self.installed:
                return 404, "Not Found"
            since = "2026-01-01T00:00:00Z" if self.suspended else None
            return 200, {
                "id": 12,
                "app_id": int(self.app_id),
                "account": {"login": "ann"},
                "permissions": FULL,
                "events": [],
                "suspended_at": since,
            }
        if line.endswith("/access_tokens"):
            if self.suspended:
                return 403, "This installation has been suspended"
            self.issued += 1
            token = f"ghs_{self.issued:036d}"
            self.tokens[token] = FULL
            return 201, {"token": token, "expires_at": "2026-01-01T01:00:00Z"}
        return None

    def _check(
        self,
        where: str,
        fields: dict[str, str] | None,
        value: Any,
        rules: dict[str, Any] | None = None,
    ) -> None:
        """Every field is there and of its type; a request has no others."""
        optional = (rules or {}).get("optional", ())
        if fields is None or not isinstance(value, dict):
            if fields is not None or value is not None:
                self.violations.append(f"{where} is no object as described: {value!r:.80}")
            return
        for name, kinds in fields.items():
            if name not in value:
                if name not in optional:
                    self.violations.append(f"{where} lacks {name}")
            elif not any(TYPES[kind](value[name]) for kind in kinds.split("|")):
                self.violations.append(f"{where}: {name} is no {kinds}")
        if rules is not None and (more := value.keys() - fields.keys()):
            self.violations.append(f"{where} has {sorted(more)}, which nobody reads")

    def _page(self, request: Request, told: list[Any]) -> Response:
        number = int(request.query_params.get("page", "1"))
        size = int(request.query_params.get("per_page", "30"))
        if size > MAX_PAGE:
            self.violations.append(f"a page of {size}")
        headers = {}
        if number * size < len(told):
            path = request.scope["raw_path"].decode().partition("?")[0]
            url = f"{self.address}{path}?per_page={size}&page={number + 1}"
            headers["link"] = f'<{url}>; rel="next", <{url}>; rel="last"'
        return JSONResponse(told[(number - 1) * size : number * size], headers=headers)


@contextmanager
def serving_host(host: CodeHosts) -> Iterator[CodeHosts]:
    """The host on a port of its own while the block runs; it must find nothing to object to."""
    every = ["GET", "POST", "PATCH", "DELETE"]
    application = Starlette(routes=[Route("/{path:path}", host.answer, methods=every)])
    quiet = {"log_config": None, "lifespan": "off", "timeout_keep_alive": 600}
    server = uvicorn.Server(uvicorn.Config(application, port=0, **quiet))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        host.address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        yield host
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
    assert host.violations == []
