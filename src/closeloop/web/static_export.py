"""The same pages as files that open from disk: every page that links lead to, up to a limit.

What needs a server is left out: forms, live updates, and links to what was not written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from hashlib import sha256
from html import unescape
from pathlib import Path
from urllib.parse import parse_qsl

from starlette.routing import compile_path

from closeloop.records.errors import BadInput, Fault
from closeloop.web import render
from closeloop.web.access import Caller
from closeloop.web.page import Page, PageLocation, parse_page_query
from closeloop.web.page_context import PageContext
from closeloop.web.pages import PAGES
from closeloop.web.render import render_template

MAX_PAGES = 1000
MAX_FRAGMENTS = 25
"""Of one trace: 5,000 events."""
EXPORT_MARKER = ".closeloop-report"
SERVER_ONLY_PATHS = ("/review", "/settings", "/health")
"""What is of no use without the server."""
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
"""A list or a comparison by one of many scores: the copy has them by those that decide."""
_UNSAFE_CHARS = re.compile(r"[^\w.-]+")

ExportProgress = Callable[[int, int], None]
"""How many pages of how many that are known of are written now."""


def export_pages(
    desk: PageContext, folder: Path, tell: ExportProgress = lambda done, of: None
) -> int:
    """Write the pages; how many those were."""
    desk.metric_cache.patience = None
    prepare_export_folder(folder)
    site = StaticSite(desk)
    for done, address in enumerate(site.found, 1):
        # Others are found while this one is written.
        (folder / site.names[address]).write_text(
            site.render_static_page(address), encoding="utf-8"
        )
        tell(done, len(site.found))
    for asset in render.load_assets().values():
        asset_file = folder / asset.address.lstrip("/")
        asset_file.parent.mkdir(parents=True, exist_ok=True)
        asset_file.write_bytes(asset.content)
    return len(site.found)


def prepare_export_folder(folder: Path) -> None:
    """A folder of ours, new or from before."""
    try:
        if folder.exists() and any(folder.iterdir()) and not (folder / EXPORT_MARKER).exists():
            raise BadInput(f"{folder} holds other things: name a new folder.")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / EXPORT_MARKER).touch()
    except OSError as error:
        raise BadInput(f"{folder} cannot be written ({error.strerror}): name another.") from error


class StaticSite:
    """The pages that are written, by address, with the names of their files."""

    def __init__(self, desk: PageContext) -> None:
        self.desk = desk
        self.pages = [(compile_path(page.path), page) for page in PAGES]
        self.sections = tuple(
            page for page in PAGES if page.key and page.path not in SERVER_ONLY_PATHS
        )
        self.names: dict[str, str] = {}
        self.found: list[str] = []
        """Addresses, in the order that they were come across."""
        for page in self.sections:
            self.page_file_name(page.path)

    def page_file_name(self, address: str) -> str | None:
        """The file of a page; None of what is not written."""
        if address not in self.names:
            page = next(iter(self._pages_at(address)), None)
            if (
                len(self.names) >= MAX_PAGES
                or page is None
                or page.part
                or page.path in SERVER_ONLY_PATHS
                or _SCORE_CHOICE.search(address)
            ):
                return None
            self.names[address] = address_file_name(address)
            self.found.append(address)
        return self.names[address]

    def render_static_page(self, address: str) -> str:
        """A page as its file holds it."""
        text = _LATER_FRAGMENT.sub(
            lambda found: self._render_fragment(*found.groups()), self.render_server_page(address)
        )
        text = _FORM_OR_JSON_LINK.sub("", _LIVE_ATTRIBUTE.sub("", text)).replace(
            'type="module"', "defer"
        )
        text = _ICON_USE.sub(lambda _: _icon_shape(), text)
        return _LOCAL_LINK.sub(lambda found: self._rewrite_link(*found.groups()), text)

    def render_server_page(self, address: str) -> str:
        """A page as the server would send it."""
        path, _, query = address.partition("?")
        page = next(self._pages_at(address))
        here = PageLocation(
            path=path,
            query=query,
            page=page,
            caller=Caller(),
            sections=self.sections,
            is_static=True,
        )
        params = next(found for (found, one) in self._matching_pages(path) if one is page)
        try:
            view = page.show(self.desk, parse_page_query(page.query_type, params, parse_qsl(query)))
        except Fault as fault:
            return render_template("fault.html", why=str(fault), here=here)
        return render_template(page.template, view=view, here=here)

    def _pages_at(self, address: str) -> Iterator[Page]:
        return (page for _, page in self._matching_pages(address.partition("?")[0]))

    def _matching_pages(self, path: str) -> Iterator[tuple[dict[str, str], Page]]:
        for (pattern, _, _), page in self.pages:
            if found := pattern.match(path):
                yield found.groupdict(), page

    def _render_fragment(self, first: str, address: str) -> str:
        number = (int(first) - 1) // 200
        fragment_html = (
            self.render_server_page(unescape(address)) if number <= MAX_FRAGMENTS else ""
        )
        content_html = (
            fragment_html
            or f'<p class="dim">What comes from event {first} on is not in this copy.</p>'
        )
        return f'<section class="fragment" data-first="{first}">{content_html}</section>'

    def _rewrite_link(self, kind: str, address: str, place: str | None) -> str:
        if address.startswith(render.ASSET_PATH):
            return f' {kind}="{address.lstrip("/")}{place or ""}"'
        name = self.page_file_name(unescape(address))
        return f' {kind}="{name}{place or ""}"' if name else ""


def address_file_name(address: str) -> str:
    """All files lie side by side, so links between them need no path."""
    path, _, query = address.partition("?")
    plain = path.strip("/").replace("/", "_") or "index"
    name = _UNSAFE_CHARS.sub("-", plain)[:80]
    if query or name != plain:
        name += "-" + sha256(address.encode()).hexdigest()[:10]
    return f"{name}.html"


def _icon_shape() -> str:
    """The icon itself: a page on disk may not take it from another file."""
    shape = _ICON_SHAPE.search(render.load_assets()["icon.svg"].content.decode())
    return (shape[1] or shape[2]) if shape else ""
