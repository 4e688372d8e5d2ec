"""Export the pages as files that open from disk: every linked page, up to a limit.

Parts that need a server are omitted: forms, live updates, and links to pages that were not written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from hashlib import sha256
from html import unescape
from pathlib import Path
from urllib.parse import parse_qsl

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, compile_path

from closeloop.records.errors import BadInput, Fault
from closeloop.records.record import Record
from closeloop.records.trace import Trace
from closeloop.reviews.review_queue import load_open_task
from closeloop.store import Store
from closeloop.traces.otlp_export import export_otlp
from closeloop.traces.trace_export import ExportSource, export_atif, export_jsonl
from closeloop.web import render
from closeloop.web.auth_middleware import Caller
from closeloop.web.page import (
    Page,
    PageContext,
    PageLocation,
    PageNotFound,
    RefusedChoice,
    fault_status,
    find_or_404,
    parse_page_query,
)
from closeloop.web.pages import PAGES
from closeloop.web.render import render_template

MAX_PAGES = 1000
MAX_FRAGMENTS = 25
"""Fragments of one trace: 5,000 events."""
EXPORT_MARKER = ".closeloop-report"
SERVER_ONLY_PATHS = ("/review", "/settings", "/health")
"""Paths of pages that are useless without the server."""
_LOCAL_LINK = re.compile(r' (href|src)="(/[^"#]*)(#[^"]*)?"')
_LIVE_ATTRIBUTE = re.compile(
    r" hx-[a-z-]+=(?:\"[^\"]*\"|'[^']*')|<live-updates[^>]*></live-updates>"
)
_FORM_OR_JSON_LINK = re.compile(r"<form\b.*?</form>|<a [^>]*>This page as JSON</a>", re.DOTALL)
_LATER_FRAGMENT = re.compile(
    r'<section class="fragment waiting" data-first="(\d+)" hx-get="([^"]*)"[^>]*>.*?</section>',
    re.DOTALL,
)
_ICON_USE = re.compile(r'<use href="[^"]*#loop"\s*/>')
_ICON_SHAPE = re.compile(
    r'<symbol id="loop"[^>]*>(.*?)</symbol>|(<path id="loop"[^>]*/>)', re.DOTALL
)
_SCORE_CHOICE = re.compile(r"[?&]score=")
"""URLs of a list or comparison by a chosen score; the export has only those by default scores."""
_UNSAFE_CHARS = re.compile(r"[^\w.-]+")

ExportProgress = Callable[[int, int], None]
"""Called with the number of written pages and of all pages known so far."""


class ExportedPages(Record):
    """The number of written pages, and of linked pages beyond the limit."""

    written: int
    left_out: int


def export_pages(
    page_context: PageContext,
    folder: Path,
    report_progress: ExportProgress = lambda done, total: None,
) -> ExportedPages:
    """Write up to MAX_PAGES pages; the first page says if some were omitted."""
    page_context.metric_cache.patience = None
    prepare_export_folder(folder)
    site = StaticSite(page_context)
    for page_number, address in enumerate(site.found, 1):
        # Writing this page discovers others.
        (folder / site.names[address]).write_text(
            site.render_static_page(address), encoding="utf-8"
        )
        report_progress(page_number, len(site.found))
    for asset in render.load_assets().values():
        asset_file = folder / asset.address.lstrip("/")
        asset_file.parent.mkdir(parents=True, exist_ok=True)
        asset_file.write_bytes(asset.content)
    if site.left_out:
        index = folder / "index.html"
        text = index.read_text(encoding="utf-8")
        notice = render_template("export_limit.html", most=MAX_PAGES, left_out=len(site.left_out))
        index.write_text(text.replace("</main>", f"{notice}</main>", 1), encoding="utf-8")
    return ExportedPages(written=len(site.found), left_out=len(site.left_out))


def prepare_export_folder(folder: Path) -> None:
    """Create the folder, or accept one of an earlier export; raise BadInput for any other."""
    try:
        if folder.exists() and any(folder.iterdir()) and not (folder / EXPORT_MARKER).exists():
            raise BadInput(f"{folder} contains other files: choose a new folder.")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / EXPORT_MARKER).touch()
    except OSError as error:
        raise BadInput(
            f"{folder} cannot be written ({error.strerror}): choose another folder."
        ) from error


class StaticSite:
    """The pages to write, by URL, with their file names."""

    def __init__(self, page_context: PageContext) -> None:
        self.page_context = page_context
        self.pages = [(compile_path(page.path), page) for page in PAGES]
        self.sections = tuple(
            page for page in PAGES if page.key and page.path not in SERVER_ONLY_PATHS
        )
        self.names: dict[str, str] = {}
        self.found: list[str] = []
        """URLs, in the order in which they were found."""
        self.left_out: set[str] = set()
        """URLs of pages beyond the limit."""
        for page in self.sections:
            self.page_file_name(page.path)

    def page_file_name(self, address: str) -> str | None:
        """Return the file name of a page; None if it is not written."""
        if address not in self.names:
            page = next(iter(self._pages_at(address)), None)
            if (
                page is None
                or page.part
                or page.path in SERVER_ONLY_PATHS
                or _SCORE_CHOICE.search(address)
            ):
                return None
            if len(self.names) >= MAX_PAGES:
                self.left_out.add(address)
                return None
            self.names[address] = address_file_name(address)
            self.found.append(address)
        return self.names[address]

    def render_static_page(self, address: str) -> str:
        """Render a page for its file."""
        text = _LATER_FRAGMENT.sub(
            lambda match: self._render_fragment(*match.groups()), self.render_server_page(address)
        )
        text = _FORM_OR_JSON_LINK.sub("", _LIVE_ATTRIBUTE.sub("", text)).replace(
            'type="module"', "defer"
        )
        text = _ICON_USE.sub(lambda _: _icon_shape(), text)
        return _LOCAL_LINK.sub(lambda match: self._rewrite_link(*match.groups()), text)

    def render_server_page(self, address: str) -> str:
        """Render a page as the server would send it."""
        path, _, query = address.partition("?")
        page = next(self._pages_at(address))
        location = PageLocation(
            path=path,
            query=query,
            page=page,
            caller=Caller(),
            sections=self.sections,
            is_static=True,
        )
        params = next(
            path_values
            for (path_values, matching_page) in self._matching_pages(path)
            if matching_page is page
        )
        try:
            view = page.show(
                self.page_context, parse_page_query(page.query_type, params, parse_qsl(query))
            )
        except RefusedChoice as refused:
            view = refused.view
        except Fault as fault:
            return render_template("fault.html", why=str(fault), here=location)
        return render_template(page.template, view=view, here=location)

    def _pages_at(self, address: str) -> Iterator[Page]:
        return (page for _, page in self._matching_pages(address.partition("?")[0]))

    def _matching_pages(self, path: str) -> Iterator[tuple[dict[str, str], Page]]:
        for (pattern, _, _), page in self.pages:
            if match := pattern.match(path):
                yield match.groupdict(), page

    def _render_fragment(self, first: str, address: str) -> str:
        number = (int(first) - 1) // 200
        fragment_html = (
            self.render_server_page(unescape(address)) if number <= MAX_FRAGMENTS else ""
        )
        content_html = (
            fragment_html or f'<p class="dim">Events from {first} on are not in this copy.</p>'
        )
        return f'<section class="fragment" data-first="{first}">{content_html}</section>'

    def _rewrite_link(self, kind: str, address: str, anchor: str | None) -> str:
        if address.startswith(render.ASSET_PATH):
            return f' {kind}="{address.lstrip("/")}{anchor or ""}"'
        name = self.page_file_name(unescape(address))
        return f' {kind}="{name}{anchor or ""}"' if name else ""


def address_file_name(address: str) -> str:
    """Return a file name; all files are in one folder, so links need no path."""
    path, _, query = address.partition("?")
    plain = path.strip("/").replace("/", "_") or "index"
    name = _UNSAFE_CHARS.sub("-", plain)[:80]
    if query or name != plain:
        name += "-" + sha256(address.encode()).hexdigest()[:10]
    return f"{name}.html"


def _icon_shape() -> str:
    """Return the icon's SVG content: a page on disk cannot load it from another file."""
    shape = _ICON_SHAPE.search(render.load_assets()["icon.svg"].content.decode())
    return (shape[1] or shape[2]) if shape else ""


# Downloads of one attempt: its change as a patch, its trace in the formats of `closeloop export`.


def _join_lines(source: ExportSource, trace: Trace) -> bytes:
    lines: Iterator[bytes] = export_jsonl(source, trace)
    return b"".join(lines)


TRACE_FORMATS: dict[str, tuple[str, str, Callable[[ExportSource, Trace], bytes]]] = {
    "jsonl": ("events.jsonl", "application/x-ndjson", _join_lines),
    "atif": ("atif.json", "application/json", export_atif),
    "otlp": ("otlp.json", "application/json", export_otlp),
}
"""By format: the suffix after the attempt's id, the media type, and the writer."""


def download_routes(page_context: PageContext) -> list[Route]:
    async def download(request: Request) -> Response:
        name, kind = request.path_params["attempt"], request.path_params["kind"]
        try:
            file, media_type, content = await anyio.to_thread.run_sync(
                build_download, page_context.store, name, kind
            )
        except Fault as fault:
            text = render_template("refused.html", why=str(fault))
            return Response(text, fault_status(fault), media_type="text/html")
        headers = {
            "content-disposition": f'attachment; filename="{file}"',
            "cache-control": "private, no-cache",
        }
        return Response(content, headers=headers, media_type=media_type)

    return [Route("/attempts/{attempt}/export/{kind}", download, methods=["GET"])]


def build_download(store: Store, name: str, kind: str) -> tuple[str, str, bytes]:
    """Return the file's name, media type and content; raise PageNotFound if there is none."""
    attempt = find_or_404(store.load_attempt, name)
    load_open_task(store, attempt)
    if kind == "patch":
        change = store.load_change(attempt.id)
        if change is None or not change.patch:
            raise PageNotFound("This attempt has no recorded change.")
        return f"{attempt.id}.patch", "text/x-diff", change.patch.encode("utf-8", "replace")
    if kind not in TRACE_FORMATS:
        raise PageNotFound(
            f"There is no export {kind!r}: choose one of {', '.join(('patch', *TRACE_FORMATS))}."
        )
    trace = store.load_trace(attempt.id)
    if trace is None:
        raise PageNotFound("This attempt has no recorded trace.")
    ending, media_type, export = TRACE_FORMATS[kind]
    source = store.load_session(attempt.id) or attempt
    return f"{attempt.id}.{ending}", media_type, export(source, trace)
