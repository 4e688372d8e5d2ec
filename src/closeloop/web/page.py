"""One page is one function, one view record and one template; the record is also its JSON.

`Page(path="/rules", show=rules, template="rules.html", about="…")` is served as HTML at `/rules`
and as JSON at `/api/rules`. `show` takes the page context and a query record, filled from the URL.
With `section` and `key` the page is in the navigation, in the group of its section in `NAVIGATION`.
A page whose query is a `TimeRange` shows the time-range picker.
"""

from __future__ import annotations

import gc
import hashlib
import re
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, cached_property
from http import HTTPStatus
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, Literal, ParamSpec, TypeVar, get_origin, get_type_hints
from urllib.parse import parse_qsl, quote

import anyio.to_thread
import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from closeloop import __version__
from closeloop.metrics.attempt_measuring import (
    measure_attempts,
    measurement_basis,
    project_rulebook,
)
from closeloop.metrics.attempt_table import AttemptTable, load_attempt_table
from closeloop.metrics.score_columns import ScoreCatalogue, project_scores
from closeloop.process.rulebook import Rulebook
from closeloop.process.trace_reading import build_reading
from closeloop.records.attempt import AttemptMarks, AttemptRow, TimeRange
from closeloop.records.change import TraceReading
from closeloop.records.errors import BadInput, Fault
from closeloop.records.finding import Measurement
from closeloop.records.record import Record
from closeloop.records.settings import Settings
from closeloop.records.trace import Trace
from closeloop.store import Store
from closeloop.store.metrics_section import AttemptSpan
from closeloop.text.wording import parse_moment
from closeloop.web.auth_middleware import Caller, caller_from_scope
from closeloop.web.render import render_template

# What pages share: the store, the project's settings, and recently read traces.
#
# Slow metrics: computed in background threads, cached, and recomputed when there is new data.
#
# A request waits a moment. Then it gets what is available: current values, earlier ones, or
# none yet, and whether they are current.

T = TypeVar("T")
WAIT_SECONDS = 0.12
"""Seconds that a page waits for a value."""
WAIT_PAUSE_SECONDS = 0.5
"""Seconds after a wait in vain in which a page does not wait again for its other values."""
REST_FACTOR = 5.0
"""A value that took one second to compute is not recomputed for this many seconds."""
SWITCH_INTERVAL_SECONDS = 0.0005
"""Thread switch interval in seconds, so that computations let requests proceed."""
MAX_ENTRIES = 64
MAX_QUEUED_JOBS = 16
"""Jobs queued at once; a request for more must be repeated."""


class CacheEntry:
    """One cached value, as computed last."""

    def __init__(self) -> None:
        self.mark: str | None = None
        self.value: Any = None
        self.fault: Exception | None = None
        self.rests_until = 0.0
        self.done = threading.Event()
        self.waits = False


class CachedValue(Generic[T]):
    """A value to show, and whether a newer one is being computed."""

    def __init__(self, value: T | None, *, fresh: bool) -> None:
        self.value = value
        self.fresh = fresh


CacheJob = Callable[[], tuple[str, Any]]
"""Returns the computed value and the store's mark that it belongs to."""
JobQueue = SimpleQueue[tuple[CacheEntry, str, CacheJob]]


class MetricCache:
    """Computes values in two threads, one for large and one for small jobs; safe to call from many
    threads."""

    def __init__(
        self,
        mark: Callable[[], str],
        work: Callable[[], AttemptTable],
        patience: float | None = WAIT_SECONDS,
    ) -> None:
        self.patience = patience
        """Seconds to wait for a value; None waits for a current one, however long that takes."""
        self._mark = mark
        self._count = work
        self._work = CacheEntry()
        self._made: OrderedDict[str, CacheEntry] = OrderedDict()
        self._lock = threading.Lock()
        self._large: JobQueue = SimpleQueue()
        self._small: JobQueue = SimpleQueue()
        self._begun = False
        self._tired = threading.local()

    def compute_from_work(self, key: str, make: Callable[[AttemptTable], T]) -> CachedValue[T]:
        """Return a value computed from all attempts."""

        def compute_value() -> tuple[str, T]:
            mark, work = self._load_current_work()
            return mark, make(work)

        return self._request_value(self._large, key, self._mark(), compute_value)

    def compute_from_store(self, key: str, mark: str, make: Callable[[], T]) -> CachedValue[T]:
        """Return a value computed from other data, recomputed when `mark` changes."""
        return self._request_value(self._small, key, mark, lambda: (mark, make()))

    def _request_value(
        self, line: JobQueue, key: str, mark: str, job: CacheJob
    ) -> CachedValue[Any]:
        with self._lock:
            entry = self._made.setdefault(key, CacheEntry())
            self._made.move_to_end(key)
            if len(self._made) > MAX_ENTRIES:
                self._made.popitem(last=False)
            is_stale = entry.mark != mark
            is_due = not entry.waits and self._may_recompute(entry)
            if is_stale and is_due and line.qsize() < MAX_QUEUED_JOBS:
                entry.waits = True
                entry.done.clear()
                line.put((entry, mark, job))
                self._start_threads()
        if is_stale and entry.waits:
            self._wait_for_entry(entry)
        if entry.fault is not None:
            raise entry.fault
        # New data may have arrived since the request, and be counted already.
        return CachedValue(entry.value, fresh=entry.mark in (mark, self._mark()))

    def _wait_for_entry(self, entry: CacheEntry) -> None:
        may_wait = (
            time.monotonic() - getattr(self._tired, "since", -WAIT_PAUSE_SECONDS)
            >= WAIT_PAUSE_SECONDS
        )
        if self.patience is None:
            entry.done.wait()
        elif may_wait and not entry.done.wait(self.patience):
            self._tired.since = time.monotonic()

    def _start_threads(self) -> None:
        if not self._begun:
            self._begun = True
            # A request releases the interpreter lock at each query and waits to regain it.
            sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
            for line in (self._large, self._small):
                threading.Thread(target=self._run_jobs, args=(line,), daemon=True).start()

    def _run_jobs(self, line: JobQueue) -> None:
        while True:
            entry, requested_mark, job = line.get()
            started_at = time.monotonic()
            mark: str | None
            value, fault = entry.value, None
            try:
                mark, value = job()
            except Exception as error:
                # Bad input stays bad; machine failures are retried.
                mark, fault = requested_mark if isinstance(error, BadInput) else None, error
            with self._lock:
                entry.mark, entry.value, entry.fault = mark, value, fault
                entry.rests_until = _rest_until(started_at)
                entry.waits = False
            entry.done.set()

    def _load_current_work(self) -> tuple[str, AttemptTable]:
        """Load all attempts; reload only if they changed and the last load is a while ago.

        Called only from the thread for large jobs.
        """
        mark, entry = self._mark(), self._work
        if entry.mark is None or (entry.mark != mark and self._may_recompute(entry)):
            started_at = time.monotonic()
            entry.value, entry.mark = self._count(), mark
            # Garbage collection over so many objects would delay some request, and there are no
            # cycles.
            gc.freeze()
            entry.rests_until = _rest_until(started_at)
        return entry.mark, entry.value

    def _may_recompute(self, entry: CacheEntry) -> bool:
        return self.patience is None or time.monotonic() >= entry.rests_until


def _rest_until(started_at: float) -> float:
    now = time.monotonic()
    return now + REST_FACTOR * (now - started_at)


Kept = TypeVar("Kept")
_NEVER_MARKED = (-2.0, "", "")
MAX_CACHED_EVENTS = 200_000
"""Events of all cached traces together; a single trace is cached whatever its size."""


class PageContext:
    """Shared by all pages of a server; safe to use from several threads."""

    def __init__(self, store: Store, settings: Settings | None = None, root: Path | None = None):
        self.store = store
        self.settings = settings or Settings()
        self.root = root or Path()
        self.user = "somebody"
        """Name of the user if nobody has logged in."""
        self.stopping = threading.Event()
        """Set when the server is about to stop: event streams end then."""
        self._traces: OrderedDict[str, Trace] = OrderedDict()
        self._derived: dict[str, dict[Any, Any]] = {}
        self._lock = threading.Lock()
        self._marking = threading.Lock()
        self._marked = _NEVER_MARKED
        self._measures_again = False
        """Whether the next computation measures outdated attempts again."""

    @cached_property
    def rulebook(self) -> Rulebook:
        """Return the rules with this project's settings."""
        return project_rulebook(self.settings)

    @cached_property
    def score_catalogue(self) -> ScoreCatalogue:
        """Return the declared scores; showing a page never runs a scorer."""
        return replace(project_scores(self.settings), scorers={})

    @cached_property
    def metric_cache(self) -> MetricCache:
        """Return the cache of metrics over all attempts."""
        return MetricCache(self.store_mark, self._count_work)

    def _count_work(self) -> AttemptTable:
        """Return all attempts; outdated ones as they are first, and measured again soon after.

        Measuring again may take minutes, during which pages would have nothing to show.
        """
        remeasure = self._measures_again or self.metric_cache.patience is None
        work = load_attempt_table(self.store, self.rulebook, remeasure=remeasure)
        if work.outdated:
            with self._marking:
                self._measures_again = True
                self._marked = _NEVER_MARKED
        return work

    def load_controls(self, work: AttemptTable, digests: Collection[str]) -> AttemptTable:
        """Return the table of these variants if controls are among them, else the given one.

        The table of all attempts has no controls.
        """
        if not any(work.variants[digest].is_control for digest in digests):
            return work
        span = AttemptSpan(variants=tuple(digests))
        return load_attempt_table(self.store, self.rulebook, span, remeasure=None)

    def store_mark(self) -> str:
        """Return a mark that changes when the store gets new data or is about to be measured
        again."""
        return self._refresh_marks()[1]

    def news_mark(self) -> str:
        """Return a mark that also changes when a plan is taken or released."""
        return self._refresh_marks()[2]

    def _refresh_marks(self) -> tuple[float, str, str]:
        """Read the marks at most once a second, for all callers."""
        with self._marking:
            if time.monotonic() - self._marked[0] > 1:
                mark = f"{self.store.listing.change_marker()}{'-again' * self._measures_again}"
                news_text = " ".join((mark, *sorted(self.store.plans.running_plan_ids())))
                self._marked = (time.monotonic(), mark, news_text)
            return self._marked

    def load_trace(self, attempt: str) -> Trace:
        """Load the events of an attempt by its full id, with a cache: they never change."""
        with self._lock:
            if (cached_trace := self._traces.get(attempt)) is not None:
                self._traces.move_to_end(attempt)
                return cached_trace
        loaded_trace = self.store.load_trace(attempt) or Trace(reader="none", reader_version=1)
        with self._lock:
            self._traces[attempt] = loaded_trace
            total = sum(len(trace.events) for trace in self._traces.values())
            while total > MAX_CACHED_EVENTS and len(self._traces) > 1:
                name, evicted_trace = self._traces.popitem(last=False)
                self._derived.pop(name, None)
                total -= len(evicted_trace.events)
        return loaded_trace

    def derive_from_trace(self, attempt: str, make: Callable[[Trace], Kept]) -> Kept:
        """Return a function's result for a trace, cached as long as the trace."""
        trace = self.load_trace(attempt)
        derived_values = self._derived.setdefault(attempt, {})
        if make not in derived_values:
            derived_values[make] = make(trace)
        value: Kept = derived_values[make]
        return value

    def load_trace_reading(self, attempt: str) -> TraceReading:
        """Load a trace as rules read it: steps, checks, iterations, handoffs."""
        return self.derive_from_trace(attempt, self._build_trace_reading)

    def _build_trace_reading(self, trace: Trace) -> TraceReading:
        return build_reading(trace, self.rulebook.own_checks)

    def load_attempt_marks(self, rows: Sequence[AttemptRow]) -> dict[str, AttemptMarks]:
        """Load a summary of the findings of attempts, with a flag if it is outdated."""
        bases = {row.id: measurement_basis(row, self.rulebook) for row in rows}
        return self.store.listing.load_marks(bases, bases)

    def load_measurement(self, row: AttemptRow, *, make: bool = True) -> Measurement | None:
        """Load the measurement of an attempt; with `make`, measure and save a missing one.

        Without `make` it is the last one, which may be outdated: see `load_attempt_marks`.
        """
        if row.events is None:
            return None
        if not make:
            measurement = self.store.load_measurements(
                {row.id: measurement_basis(row, self.rulebook)}
            ).get(row.id)
            return measurement or self.store.last_measurement(row.id)
        measured = next(iter(measure_attempts(self.store, [row], self.rulebook)), None)
        return measured.measurement if measured else self.store.last_measurement(row.id)


# The OpenAPI 3.1 document of an API, generated from its request and response records.

JSON_MEDIA_TYPE = "application/json"
TEXT_SCHEMA = {"type": "string"}
COMPONENT_REF = "#/components/schemas/{name}"
_PATH_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


class Problem(Record):
    """The error that is sent instead of an answer."""

    message: str
    """One sentence that says what to do."""


class ApiOperation(Record):
    """One operation of the API."""

    method: Literal["get", "post", "put", "patch", "delete"]
    path: str
    """Path in the router's syntax: `/api/evaluations/{id}`."""
    name: str
    summary: str
    """One line."""
    answer: Any = None
    """Type of the response; None if empty."""
    body: Any = None
    """Type of the request body, if any."""
    query: type[Record] | None = None
    """A record whose fields are the parameters of the path and the query string."""
    faults: tuple[int, ...] = ()
    """Statuses that are answered with a problem."""


def build_openapi_document(
    operations: Sequence[ApiOperation], title: str = "closeloop"
) -> dict[str, Any]:
    """Build the OpenAPI document, with every record once by its name."""
    kinds = [kind for operation in operations for kind in _operation_types(operation).values()]
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


def _operation_types(operation: ApiOperation) -> dict[str, Any]:
    parts = {"answer": operation.answer, "body": operation.body, "query": operation.query}
    parts["problem"] = Problem if operation.faults else None
    return {name: kind for name, kind in parts.items() if kind is not None}


def _describe_operation(
    operation: ApiOperation, schema: dict[str, Any], components: dict[str, Any]
) -> dict[str, Any]:
    description: dict[str, Any] = {"operationId": operation.name, "summary": operation.summary}
    in_path = _PATH_PARAMETER.findall(operation.path)
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
        _describe_response("The response.", schema["answer"]) if "answer" in schema else None
    )
    description["responses"] = (
        {"200": success_response} if success_response else {"204": {"description": "Success."}}
    )
    description["responses"] |= {
        str(status): _describe_response(HTTPStatus(status).phrase, schema["problem"])
        for status in operation.faults
    }
    return description


def _describe_response(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {JSON_MEDIA_TYPE: {"schema": schema}}}


Given = ParamSpec("Given")
Thing = TypeVar("Thing")
PageEndpoint = Callable[[Request], Awaitable[Response]]


class PageNotFound(BadInput):
    """What the URL names does not exist."""


class RefusedChoice(BadInput):
    """A choice that cannot be shown; `view` is the page with the reason, to choose again."""

    def __init__(self, reason: str, view: Record) -> None:
        super().__init__(reason)
        self.view = view


def find_or_404(find: Callable[Given, Thing], *given: Given.args, **more: Given.kwargs) -> Thing:
    """Call a function with the names from the URL; raise PageNotFound if it finds nothing."""
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
"""Sections of pages by group. Pages without a group, such as the settings, are tools."""
RANGE_FIELDS = ("since", "until")
"""URL parameters shared by pages with a time range."""
RANGE_PRESETS = {
    "24h": "Last 24 hours",
    "7d": "Last 7 days",
    "30d": "Last 30 days",
    "90d": "Last 90 days",
}


class NoQuery(Record):
    """The query of a page without parameters."""


class Page(Record):
    """A page, or with `part` a fragment of one that is loaded later."""

    path: str
    show: Callable[[PageContext, Any], Record]
    template: str
    about: str
    """One sentence about its content, for the list of keys and the API's description."""
    section: str = ""
    """Its section in the navigation."""
    key: str | None = None
    """Key that opens it after `g`, for a page in the navigation."""
    part: bool = False
    charts: bool = False
    api: str | None = None
    """Path of its record as JSON; by default `/api` and its path."""

    @property
    def record_path(self) -> str:
        return self.api or f"/api{self.path}"

    @property
    def query_type(self) -> type[Record]:
        """Return the record type that the URL fills."""
        hints = list(_resolve_type_hints(self.show).items())
        query_class: type[Record] = hints[1][1]
        return query_class

    @property
    def has_range(self) -> bool:
        """Check whether the time-range picker applies to it."""
        return issubclass(self.query_type, TimeRange)

    @property
    def view_type(self) -> type[Record]:
        view_class: type[Record] = _resolve_type_hints(self.show)["return"]
        return view_class


class PageLocation(Record):
    """The current page and user, for the layout around a page."""

    path: str
    query: str
    page: Page | None
    caller: Caller
    sections: tuple[Page, ...]
    news: str = ""
    """Mark of the data that the page shows; another mark means that there is newer data."""
    is_static: bool = False
    """Whether it is an exported file, without search and filters."""

    @property
    def groups(self) -> list[tuple[str, list[Page]]]:
        """Return the navigation groups with their pages, without pages that have no group."""
        pages = {page.section: page for page in self.sections}
        grouped = [
            (group, [pages[name] for name in names if name in pages])
            for group, names in NAVIGATION.items()
        ]
        return [(group, group_pages) for group, group_pages in grouped if group_pages]

    @property
    def group(self) -> str | None:
        """Return the group of the current page."""
        section = self.page.section if self.page else None
        return next((group for group, names in NAVIGATION.items() if section in names), None)

    @property
    def tools(self) -> list[Page]:
        """Return the pages that belong to no group."""
        grouped = {name for names in NAVIGATION.values() for name in names}
        return [page for page in self.sections if page.section not in grouped]

    @property
    def range_pairs(self) -> list[tuple[str, str]]:
        """Return the time range as URL parameters, which links to other pages carry along."""
        return [pair for pair in parse_qsl(self.query) if pair[0] in RANGE_FIELDS]

    @property
    def range_presets(self) -> dict[str, str]:
        return RANGE_PRESETS

    @property
    def range_label(self) -> str:
        """Return the time range as text."""
        range_values = dict(self.range_pairs)
        since, until = range_values.get("since", "all"), range_values.get("until", "all")
        if until != "all":
            return f"{since} to {until}" if since != "all" else f"Until {until}"
        return "All time" if since == "all" else RANGE_PRESETS.get(since, f"Since {since}")


def page_routes(pages: Iterable[Page], page_context: PageContext) -> list[Route]:
    """Return the HTML and JSON routes of every page."""
    all_pages = tuple(pages)
    sections = tuple(page for page in all_pages if page.key)
    page_route_list = []
    for page in all_pages:
        page_route_list.append(
            Route(page.path, _html_endpoint(page, page_context, sections), methods=["GET"])
        )
        page_route_list.append(
            Route(page.record_path, _json_endpoint(page, page_context), methods=["GET"])
        )
    return page_route_list


def page_operations(pages: Iterable[Page]) -> list[ApiOperation]:
    """Return the API operations of the pages' JSON."""
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
    """Parse a URL's parameters; empty ones are ignored."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    given_values: dict[str, Any] = {}
    # Rounded to the hour: results for a range such as `7d` can be cached for a while.
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    for name, value in query:
        if name in fields and value != "":
            if name in RANGE_FIELDS and issubclass(kind, TimeRange):
                moment = parse_moment(value, now, is_end=name == "until")
                if moment is not None and not 1970 < moment.year < 2200:
                    raise BadInput(f"{value!r} is not a valid date: give one after 1970.")
                given_values[name] = moment
            elif get_origin(fields[name].type) is tuple:
                given_values.setdefault(name, []).append(value)
            else:
                given_values[name] = value
    try:
        return msgspec.convert({**given_values, **path}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise BadInput(describe_bad_query(given_values, fields, error)) from error


def describe_bad_query(
    given_values: Mapping[str, Any],
    fields: Mapping[str, msgspec.structs.FieldInfo],
    error: msgspec.ValidationError,
) -> str:
    """Say which URL parameter is invalid and which values it may have."""
    name = str(error).partition("$.")[2].rstrip("`").partition("[")[0]
    limit = re.search(r"length <= (\d+)", str(error))
    if name in given_values and limit:
        subject = "The search text" if name == "q" else f"`{name}`"
        return f"{subject} is too long: at most {int(limit[1]):,} characters."
    if name in given_values and name in fields:
        value = str(given_values[name])[:80]
        reason = str(error).partition(" - at")[0]
        return f"Invalid value {value!r} for `{name}`: {reason[:1].lower()}{reason[1:]}."
    return f"The URL is not valid: {error}."


def _html_endpoint(
    page: Page, page_context: PageContext, sections: tuple[Page, ...]
) -> PageEndpoint:
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
                # Read first: data added while the page is rendered is new to it.
                location_drawn = (
                    location
                    if page.part
                    else msgspec.structs.replace(location, news=page_context.news_mark())
                )
                return 200, render_template(
                    page.template,
                    view=_build_view(page, page_context, request),
                    here=location_drawn,
                )
            except RefusedChoice as refused:
                return 400, render_template(page.template, view=refused.view, here=location)
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


def _json_endpoint(page: Page, page_context: PageContext) -> PageEndpoint:
    async def answer_json(request: Request) -> Response:
        def encode_view() -> tuple[int, bytes]:
            try:
                return 200, msgspec.json.encode(_build_view(page, page_context, request))
            except Fault as fault:
                return fault_status(fault), msgspec.json.encode({"message": str(fault)})

        status, body = await anyio.to_thread.run_sync(encode_view)
        return response_with_etag(request, body, JSON_MEDIA_TYPE, status)

    return answer_json


def _build_view(page: Page, page_context: PageContext, request: Request) -> Record:
    path_values = dict(request.path_params)
    if "caller" in page.query_type.__struct_fields__:
        path_values["caller"] = caller_or_local_user(request, page_context)
    return page.show(
        page_context,
        parse_page_query(page.query_type, path_values, request.query_params.multi_items()),
    )


def caller_or_local_user(request: Request, page_context: PageContext) -> str:
    """Return the caller's name; without a login on this machine, the user who runs the server."""
    return caller_from_scope(request.scope).name or page_context.user


def fault_status(fault: Fault) -> int:
    """Return the HTTP status for a fault, by who must act."""
    if isinstance(fault, PageNotFound):
        return 404
    return 400 if isinstance(fault, BadInput) else 500


def response_with_etag(request: Request, body: bytes, media_type: str, status: int) -> Response:
    """Return a response with an ETag: 304 without a body if the client already has it."""
    tag = f'W/"{hashlib.sha256(body).hexdigest()[:20]}"'
    headers = {"etag": tag, "cache-control": "private, no-cache", "vary": "cookie, authorization"}
    if status == 200 and tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(body, status, headers, media_type=media_type)


@cache
def _resolve_type_hints(show: Callable[..., Any]) -> dict[str, Any]:
    return get_type_hints(show, include_extras=True)
