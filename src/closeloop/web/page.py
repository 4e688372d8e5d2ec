"""One page is one function, one view record and one template; the record is also its JSON.

`Page(path="/rules", show=rules, template="rules.html")` is served as HTML at `/rules` and as JSON
at `/api/rules`. `show` takes the desk and a record of what was asked, filled from the address.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache
from typing import Any, ParamSpec, TypeVar, get_origin, get_type_hints
from urllib.parse import quote

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from closeloop.model.errors import BadInput, Fault
from closeloop.model.record import Record
from closeloop.web.access import Caller, caller_of
from closeloop.web.desk import Desk
from closeloop.web.openapi import Operation
from closeloop.web.render import render

Given = ParamSpec("Given")
Thing = TypeVar("Thing")
Endpoint = Callable[[Request], Awaitable[Response]]


class NotThere(BadInput):
    """What the address names does not exist."""


def found(find: Callable[Given, Thing], *given: Given.args, **more: Given.kwargs) -> Thing:
    """What a function finds by what the address names; NotThere where there is none."""
    try:
        return find(*given, **more)
    except BadInput as fault:
        raise NotThere(str(fault)) from fault


class Nothing(Record):
    """A page that asks for nothing."""


class Page(Record):
    """A page, or with `part` a piece of one that comes later."""

    path: str
    show: Callable[[Desk, Any], Record]
    template: str
    about: str
    """What is on it, in a sentence: for the list of keys and for the API's description."""
    section: str = ""
    """Where it belongs in the navigation."""
    key: str | None = None
    """Of a page that the navigation names: after `g`, this key opens it."""
    part: bool = False
    charts: bool = False
    api: str | None = None
    """Where its record is as JSON; `/api` and its path when not given."""

    @property
    def record_path(self) -> str:
        return self.api or f"/api{self.path}"

    @property
    def asks(self) -> type[Record]:
        """The record that the address fills."""
        hints = list(_hints(self.show).items())
        found: type[Record] = hints[1][1]
        return found

    @property
    def view(self) -> type[Record]:
        found: type[Record] = _hints(self.show)["return"]
        return found


class Here(Record):
    """Where somebody is, for the frame around a page."""

    path: str
    query: str
    page: Page | None
    caller: Caller
    sections: tuple[Page, ...]
    news: str = ""
    """What the page was drawn from: by another mark it knows that there is more."""


def routes(pages: Iterable[Page], desk: Desk) -> list[Route]:
    """Of every page its HTML and its JSON."""
    every = tuple(pages)
    sections = tuple(page for page in every if page.key)
    found = []
    for page in every:
        found.append(Route(page.path, _html(page, desk, sections), methods=["GET"]))
        found.append(Route(page.record_path, _json(page, desk), methods=["GET"]))
    return found


def operations(pages: Iterable[Page]) -> list[Operation]:
    """What the JSON of the pages is, for the API's description."""
    return [
        Operation(
            method="get",
            path=page.record_path,
            name=page.show.__name__,
            summary=page.about,
            answer=page.view,
            query=page.asks if msgspec.structs.fields(page.asks) else None,
            faults=(400, 401, 403, 404),
        )
        for page in pages
    ]


def asked(kind: type[Record], path: Mapping[str, Any], query: Iterable[tuple[str, str]]) -> Record:
    """What an address asks; a field that is left empty is not asked."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    given: dict[str, Any] = {}
    for name, value in query:
        if name in fields and value != "":
            if get_origin(fields[name].type) is tuple:
                given.setdefault(name, []).append(value)
            else:
                given[name] = value
    try:
        return msgspec.convert({**given, **path}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise BadInput(f"The address cannot be understood: {error}.") from error


def _html(page: Page, desk: Desk, sections: tuple[Page, ...]) -> Endpoint:
    async def answer(request: Request) -> Response:
        here = Here(
            path=quote(request.scope["path"]),
            query=request.url.query,
            page=page,
            caller=caller_of(request.scope),
            sections=sections,
        )

        def work() -> tuple[int, str]:
            try:
                # Looked up first: what is added while the page is drawn is news to it.
                drawn = here if page.part else msgspec.structs.replace(here, news=desk.news())
                return 200, render(page.template, view=_shown(page, desk, request), here=drawn)
            except Fault as fault:
                return status_of(fault), render("fault.html", why=str(fault), here=here)

        status, text = await anyio.to_thread.run_sync(work)
        return tagged(request, text.encode("utf-8", "replace"), "text/html", status)

    return answer


def _json(page: Page, desk: Desk) -> Endpoint:
    async def answer(request: Request) -> Response:
        def work() -> tuple[int, bytes]:
            try:
                return 200, msgspec.json.encode(_shown(page, desk, request))
            except Fault as fault:
                return status_of(fault), msgspec.json.encode({"message": str(fault)})

        status, body = await anyio.to_thread.run_sync(work)
        return tagged(request, body, "application/json", status)

    return answer


def _shown(page: Page, desk: Desk, request: Request) -> Record:
    given = dict(request.path_params)
    if "caller" in page.asks.__struct_fields__:
        given["caller"] = caller_name(request, desk)
    return page.show(desk, asked(page.asks, given, request.query_params.multi_items()))


def caller_name(request: Request, desk: Desk) -> str:
    """Whoever asks; on this machine, without a login, whoever runs the server."""
    return caller_of(request.scope).name or desk.user


def status_of(fault: Fault) -> int:
    """The status that says whose fault it is."""
    if isinstance(fault, NotThere):
        return 404
    return 400 if isinstance(fault, BadInput) else 500


def tagged(request: Request, body: bytes, media_type: str, status: int) -> Response:
    """An answer that is not sent again to whoever has it."""
    tag = f'W/"{hashlib.sha256(body).hexdigest()[:20]}"'
    headers = {"etag": tag, "cache-control": "private, no-cache", "vary": "cookie, authorization"}
    if status == 200 and tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(body, status, headers, media_type=media_type)


@cache
def _hints(show: Callable[..., Any]) -> dict[str, Any]:
    return get_type_hints(show, include_extras=True)
