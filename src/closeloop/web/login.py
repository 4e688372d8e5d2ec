"""Coming in with a token, and leaving again."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from closeloop.web.access import AccessPolicy, caller_from_scope
from closeloop.web.auth_middleware import SESSION_SECONDS, session_cookie
from closeloop.web.form_fields import parse_form_fields
from closeloop.web.render import render_template


def login_routes(door: AccessPolicy) -> list[Route]:
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
        name = await anyio.to_thread.run_sync(door.find_token_id, token) if token else None
        if name is None:
            why = "This token is not known, or no longer holds."
            return Response(
                render_template("login.html", next=next_path, why=why), 403, media_type="text/html"
            )
        secret = secrets.token_urlsafe(32)
        until = datetime.now(UTC) + timedelta(seconds=SESSION_SECONDS)
        await anyio.to_thread.run_sync(door.store.access.save_login, secret, name, until)
        response = RedirectResponse(next_path, 303)
        response.headers.append("set-cookie", session_cookie(request, secret, SESSION_SECONDS))
        return response

    async def log_out(request: Request) -> Response:
        caller = caller_from_scope(request.scope)
        if caller.session is not None:
            now = datetime.now(UTC)
            await anyio.to_thread.run_sync(door.store.access.revoke_login, caller.session, now)
        response = RedirectResponse("/login", 303)
        response.headers.append("set-cookie", session_cookie(request, "", 0))
        return response

    return [
        Route("/login", show_login_form, methods=["GET"]),
        Route("/login", log_in, methods=["POST"]),
        Route("/logout", log_out, methods=["POST"]),
    ]


def local_path(place: str | None) -> str:
    """A place on this server to go on to; any other is not gone to."""
    is_local = place is not None and place.startswith("/") and place[1:2] not in ("/", "\\")
    return place if is_local and place and place.isprintable() else "/"
