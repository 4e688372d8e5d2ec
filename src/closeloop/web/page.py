"""One page is one function, one view record and one template; the record is also its JSON.

`Page(path="/rules", show=rules, template="rules.html", about="…")` is served as HTML at `/rules`
and as JSON at `/api/rules`. `show` takes the desk and a record of what was asked, filled from the
address. With `section` and `key` the page is in the navigation, in the group that `NAVIGATION` puts
its section into. A page whose query is a `TimeRange` shows the time-range picker.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from http import HTTPStatus
from typing import Any, Literal, ParamSpec, TypeVar, get_origin, get_type_hints
from urllib.parse import parse_qsl, quote

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from closeloop import __version__
from closeloop.records.attempt import TimeRange
from closeloop.records.errors import BadInput, Fault
from closeloop.records.record import Record
from closeloop.text.wording import parse_moment
from closeloop.web.access import Caller, caller_from_scope
from closeloop.web.page_context import PageContext
from closeloop.web.render import render_template

# The OpenAPI 3.1 document of an API, made from the records that go in and come out.

JSON_MEDIA_TYPE = "application/json"
TEXT_SCHEMA = {"type": "string"}
COMPONENT_REF = "#/components/schemas/{name}"
_PATH_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


class Problem(Record):
    """Why there is no answer."""

    message: str
    """One sentence that says what to do."""


class ApiOperation(Record):
    """One thing that can be asked for."""

    method: Literal["get", "post", "put", "patch", "delete"]
    path: str
    """As the router has it: `/api/evaluations/{id}`."""
    name: str
    summary: str
    """One line."""
    answer: Any = None
    """The type that comes out; None for nothing."""
    body: Any = None
    """The type that goes in, where one does."""
    query: type[Record] | None = None
    """A record whose fields are the parameters in the address, before and after its `?`."""
    faults: tuple[int, ...] = ()
    """Statuses that come with a problem."""


def build_openapi_document(
    operations: Sequence[ApiOperation], title: str = "closeloop"
) -> dict[str, Any]:
    """The whole of it; every record once, by its name."""
    kinds = [kind for one in operations for kind in _operation_types(one).values()]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=COMPONENT_REF)
    schema_iterator = iter(schemas)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        schema = {name: next(schema_iterator) for name in _operation_types(operation)}
        path = _PATH_PARAMETER.sub(r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method] = _describe_operation(
            operation, schema, components
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation_types(one: ApiOperation) -> dict[str, Any]:
    parts = {"answer": one.answer, "body": one.body, "query": one.query}
    parts["problem"] = Problem if one.faults else None
    return {name: kind for name, kind in parts.items() if kind is not None}


def _describe_operation(
    one: ApiOperation, schema: dict[str, Any], components: dict[str, Any]
) -> dict[str, Any]:
    description: dict[str, Any] = {"operationId": one.name, "summary": one.summary}
    in_path = _PATH_PARAMETER.findall(one.path)
    fields: dict[str, Any] = {}
    if "query" in schema:
        fields = components[schema["query"]["$ref"].rpartition("/")[2]]
    query_schemas, required = fields.get("properties", {}), fields.get("required", [])
    parameters = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": query_schemas.get(name, TEXT_SCHEMA),
        }
        for name in in_path
    ]
    parameters += [
        {"name": name, "in": "query", "required": name in required, "schema": part}
        for name, part in query_schemas.items()
        if name not in in_path and not part.get("readOnly")
    ]
    if parameters:
        description["parameters"] = parameters
    if "body" in schema:
        description["requestBody"] = {
            "required": True,
            "content": {JSON_MEDIA_TYPE: {"schema": schema["body"]}},
        }
    success_response = (
        _describe_response("The answer.", schema["answer"]) if "answer" in schema else None
    )
    description["responses"] = (
        {"200": success_response} if success_response else {"204": {"description": "It is done."}}
    )
    description["responses"] |= {
        str(status): _describe_response(HTTPStatus(status).phrase, schema["problem"])
        for status in one.faults
    }
    return description


def _describe_response(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {JSON_MEDIA_TYPE: {"schema": schema}}}


Given = ParamSpec("Given")
Thing = TypeVar("Thing")
PageEndpoint = Callable[[Request], Awaitable[Response]]


class PageNotFound(BadInput):
    """What the address names does not exist."""


def find_or_404(find: Callable[Given, Thing], *given: Given.args, **more: Given.kwargs) -> Thing:
    """What a function finds by what the address names; PageNotFound where there is none."""
    try:
        return find(*given, **more)
    except BadInput as fault:
        raise PageNotFound(str(fault)) from fault


NAVIGATION: dict[str, tuple[str, ...]] = {
    "Overview": ("Overview", "Cost"),
    "Sessions": ("Sessions", "Triage", "Plans", "Insights"),
    "Experiments": ("Experiments", "Compare", "Trials", "Prompts", "Metrics", "Gate"),
    "Pull requests": ("Pull requests", "Review", "Team rules"),
    "Tasks": ("Tasks",),
    "Trust": ("Trust", "Rules", "Judges"),
}
"""By group, the sections of pages in it. What has no group, such as the settings, is a tool."""
RANGE_FIELDS = ("since", "until")
"""Parameters of an address that pages with a time range share."""
RANGE_PRESETS = {
    "24h": "Last 24 hours",
    "7d": "Last 7 days",
    "30d": "Last 30 days",
    "90d": "Last 90 days",
}


class NoQuery(Record):
    """A page that asks for nothing."""


class Page(Record):
    """A page, or with `part` a piece of one that comes later."""

    path: str
    show: Callable[[PageContext, Any], Record]
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
    def query_type(self) -> type[Record]:
        """The record that the address fills."""
        hints = list(_resolve_type_hints(self.show).items())
        query_class: type[Record] = hints[1][1]
        return query_class

    @property
    def has_range(self) -> bool:
        """Whether the time-range picker narrows what is on it."""
        return issubclass(self.query_type, TimeRange)

    @property
    def view_type(self) -> type[Record]:
        view_class: type[Record] = _resolve_type_hints(self.show)["return"]
        return view_class


class PageLocation(Record):
    """Where somebody is, for the frame around a page."""

    path: str
    query: str
    page: Page | None
    caller: Caller
    sections: tuple[Page, ...]
    news: str = ""
    """What the page was drawn from: by another mark it knows that there is more."""
    is_static: bool = False
    """Whether it is a file: nothing can be searched or narrowed there."""

    @property
    def groups(self) -> list[tuple[str, list[Page]]]:
        """The navigation: its groups, each with its pages; those of no group are left out."""
        pages = {page.section: page for page in self.sections}
        grouped = [
            (group, [pages[name] for name in names if name in pages])
            for group, names in NAVIGATION.items()
        ]
        return [(group, found) for group, found in grouped if found]

    @property
    def group(self) -> str | None:
        """The group of the page that is shown."""
        section = self.page.section if self.page else None
        return next((group for group, names in NAVIGATION.items() if section in names), None)

    @property
    def tools(self) -> list[Page]:
        """Pages that belong to no group."""
        grouped = {name for names in NAVIGATION.values() for name in names}
        return [page for page in self.sections if page.section not in grouped]

    @property
    def range_pairs(self) -> list[tuple[str, str]]:
        """The time range as the address has it: it travels along to other pages."""
        return [pair for pair in parse_qsl(self.query) if pair[0] in RANGE_FIELDS]

    @property
    def range_presets(self) -> dict[str, str]:
        return RANGE_PRESETS

    @property
    def range_label(self) -> str:
        """The time range in words."""
        chosen = dict(self.range_pairs)
        since, until = chosen.get("since", "all"), chosen.get("until", "all")
        if until != "all":
            return f"{since} to {until}" if since != "all" else f"Until {until}"
        return "All time" if since == "all" else RANGE_PRESETS.get(since, f"Since {since}")


def page_routes(pages: Iterable[Page], desk: PageContext) -> list[Route]:
    """Of every page its HTML and its JSON."""
    all_pages = tuple(pages)
    sections = tuple(page for page in all_pages if page.key)
    page_route_list = []
    for page in all_pages:
        page_route_list.append(
            Route(page.path, _html_endpoint(page, desk, sections), methods=["GET"])
        )
        page_route_list.append(Route(page.record_path, _json_endpoint(page, desk), methods=["GET"]))
    return page_route_list


def page_operations(pages: Iterable[Page]) -> list[ApiOperation]:
    """What the JSON of the pages is, for the API's description."""
    return [
        ApiOperation(
            method="get",
            path=page.record_path,
            name=page.show.__name__,
            summary=page.about,
            answer=page.view_type,
            query=page.query_type if msgspec.structs.fields(page.query_type) else None,
            faults=(400, 401, 403, 404),
        )
        for page in pages
    ]


def parse_page_query(
    kind: type[Record], path: Mapping[str, Any], query: Iterable[tuple[str, str]]
) -> Record:
    """What an address asks; a field that is left empty is not asked."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    given_values: dict[str, Any] = {}
    # By the hour: what is derived of a range such as `7d` can be kept for a while.
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    for name, value in query:
        if name in fields and value != "":
            if name in RANGE_FIELDS and issubclass(kind, TimeRange):
                moment = parse_moment(value, now, is_end=name == "until")
                if moment is not None and not 1970 < moment.year < 2200:
                    raise BadInput(f"{value!r} is no time of work: name one after 1970.")
                given_values[name] = moment
            elif get_origin(fields[name].type) is tuple:
                given_values.setdefault(name, []).append(value)
            else:
                given_values[name] = value
    try:
        return msgspec.convert({**given_values, **path}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise BadInput(f"The address cannot be understood: {error}.") from error


def _html_endpoint(page: Page, desk: PageContext, sections: tuple[Page, ...]) -> PageEndpoint:
    async def answer_html(request: Request) -> Response:
        location = PageLocation(
            path=quote(request.scope["path"]),
            query=request.url.query,
            page=page,
            caller=caller_from_scope(request.scope),
            sections=sections,
        )

        def render_page() -> tuple[int, str]:
            try:
                # Looked up first: what is added while the page is drawn is news to it.
                location_drawn = (
                    location
                    if page.part
                    else msgspec.structs.replace(location, news=desk.news_mark())
                )
                return 200, render_template(
                    page.template, view=_build_view(page, desk, request), here=location_drawn
                )
            except Fault as fault:
                return fault_status(fault), render_template(
                    "fault.html", why=str(fault), here=location
                )

        status, text = await anyio.to_thread.run_sync(render_page)
        return response_with_etag(request, text.encode("utf-8", "replace"), "text/html", status)

    return answer_html


def respond_with_json(
    content: Any, status: int, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(msgspec.json.encode(content), status, headers, media_type=JSON_MEDIA_TYPE)


def _json_endpoint(page: Page, desk: PageContext) -> PageEndpoint:
    async def answer_json(request: Request) -> Response:
        def encode_view() -> tuple[int, bytes]:
            try:
                return 200, msgspec.json.encode(_build_view(page, desk, request))
            except Fault as fault:
                return fault_status(fault), msgspec.json.encode({"message": str(fault)})

        status, body = await anyio.to_thread.run_sync(encode_view)
        return response_with_etag(request, body, JSON_MEDIA_TYPE, status)

    return answer_json


def _build_view(page: Page, desk: PageContext, request: Request) -> Record:
    path_values = dict(request.path_params)
    if "caller" in page.query_type.__struct_fields__:
        path_values["caller"] = caller_or_local_user(request, desk)
    return page.show(
        desk, parse_page_query(page.query_type, path_values, request.query_params.multi_items())
    )


def caller_or_local_user(request: Request, desk: PageContext) -> str:
    """Whoever asks; on this machine, without a login, whoever runs the server."""
    return caller_from_scope(request.scope).name or desk.user


def fault_status(fault: Fault) -> int:
    """The status that says whose fault it is."""
    if isinstance(fault, PageNotFound):
        return 404
    return 400 if isinstance(fault, BadInput) else 500


def response_with_etag(request: Request, body: bytes, media_type: str, status: int) -> Response:
    """An answer that is not sent again to whoever has it."""
    tag = f'W/"{hashlib.sha256(body).hexdigest()[:20]}"'
    headers = {"etag": tag, "cache-control": "private, no-cache", "vary": "cookie, authorization"}
    if status == 200 and tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(body, status, headers, media_type=media_type)


@cache
def _resolve_type_hints(show: Callable[..., Any]) -> dict[str, Any]:
    return get_type_hints(show, include_extras=True)
