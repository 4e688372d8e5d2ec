"""Coming in with a token, and leaving again."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from closeloop.web.access import Door, caller_of
from closeloop.web.forms import fields
from closeloop.web.guard import SESSION_SECONDS, cookie
from closeloop.web.render import render


def login_routes(door: Door) -> list[Route]:
    async def form(request: Request) -> Response:
        text = render("login.html", next=local(request.query_params.get("next")), why=None)
        return Response(text, media_type="text/html")

    async def enter(request: Request) -> Response:
        given = fields(await request.body())
        token, place = given.get("token", [""])[0].strip(), local(given.get("next", ["/"])[0])
        name = await anyio.to_thread.run_sync(door.token_id, token) if token else None
        if name is None:
            why = "This token is not known, or no longer holds."
            return Response(render("login.html", next=place, why=why), 403, media_type="text/html")
        secret = secrets.token_urlsafe(32)
        until = datetime.now(UTC) + timedelta(seconds=SESSION_SECONDS)
        await anyio.to_thread.run_sync(door.store.access.log_in, secret, name, until)
        answer = RedirectResponse(place, 303)
        answer.headers.append("set-cookie", cookie(request, secret, SESSION_SECONDS))
        return answer

    async def leave(request: Request) -> Response:
        caller = caller_of(request.scope)
        if caller.session is not None:
            now = datetime.now(UTC)
            await anyio.to_thread.run_sync(door.store.access.log_out, caller.session, now)
        answer = RedirectResponse("/login", 303)
        answer.headers.append("set-cookie", cookie(request, "", 0))
        return answer

    return [
        Route("/login", form, methods=["GET"]),
        Route("/login", enter, methods=["POST"]),
        Route("/logout", leave, methods=["POST"]),
    ]


def local(place: str | None) -> str:
    """A place on this server to go on to; any other is not gone to."""
    plain = place is not None and place.startswith("/") and place[1:2] not in ("/", "\\")
    return place if plain and place and place.isprintable() else "/"
