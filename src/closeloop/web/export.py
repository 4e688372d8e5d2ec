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

from closeloop.model.errors import BadInput, Fault
from closeloop.web import assets
from closeloop.web.access import Caller
from closeloop.web.desk import Desk
from closeloop.web.page import Here, Page, asked
from closeloop.web.pages import PAGES
from closeloop.web.render import render

MOST_PAGES = 1000
MOST_FRAGMENTS = 25
"""Of one trace: 5,000 events."""
MARK = ".closeloop-report"
ALONE = ("/review", "/settings", "/health")
"""What is of no use without the server."""
_LINK = re.compile(r' (href|src)="(/[^"#]*)(#[^"]*)?"')
_LIVE = re.compile(r" hx-[a-z-]+=(?:\"[^\"]*\"|'[^']*')|<live-updates[^>]*></live-updates>")
_FORM = re.compile(r"<form\b.*?</form>|<a [^>]*>This page as JSON</a>", re.DOTALL)
_LATER = re.compile(
    r'<section class="fragment waiting" data-first="(\d+)" hx-get="([^"]*)"[^>]*>.*?</section>',
    re.DOTALL,
)
_ICON = re.compile(r'<use href="[^"]*#loop"\s*/>')
_SHAPE = re.compile(r'<symbol id="loop"[^>]*>(.*?)</symbol>|(<path id="loop"[^>]*/>)', re.DOTALL)
_ODD = re.compile(r"[^\w.-]+")

Tell = Callable[[int, int], None]
"""How many pages of how many that are known of are written now."""


def export(desk: Desk, folder: Path, tell: Tell = lambda done, of: None) -> int:
    """Write the pages; how many those were."""
    desk.counting.patience = None
    make_folder(folder)
    site = Site(desk)
    for done, address in enumerate(site.found, 1):
        # Others are found while this one is written.
        (folder / site.names[address]).write_text(site.written(address), encoding="utf-8")
        tell(done, len(site.found))
    for asset in assets.assets().values():
        place = folder / asset.address.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(asset.content)
    return len(site.found)


def make_folder(folder: Path) -> None:
    """A folder of ours, new or from before."""
    try:
        if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
            raise BadInput(f"{folder} holds other things: name a new folder.")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).touch()
    except OSError as error:
        raise BadInput(f"{folder} cannot be written ({error.strerror}): name another.") from error


class Site:
    """The pages that are written, by address, with the names of their files."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.pages = [(compile_path(page.path), page) for page in PAGES]
        self.sections = tuple(page for page in PAGES if page.key and page.path not in ALONE)
        self.names: dict[str, str] = {}
        self.found: list[str] = []
        """Addresses, in the order that they were come across."""
        for page in self.sections:
            self.name(page.path)

    def name(self, address: str) -> str | None:
        """The file of a page; None of what is not written."""
        if address not in self.names:
            page = next(iter(self._at(address)), None)
            if len(self.names) >= MOST_PAGES or page is None or page.part or page.path in ALONE:
                return None
            self.names[address] = file_name(address)
            self.found.append(address)
        return self.names[address]

    def written(self, address: str) -> str:
        """A page as its file holds it."""
        text = _LATER.sub(lambda found: self._fragment(*found.groups()), self.shown(address))
        text = _FORM.sub("", _LIVE.sub("", text)).replace('type="module"', "defer")
        text = _ICON.sub(lambda _: _loop(), text)
        return _LINK.sub(lambda found: self._link(*found.groups()), text)

    def shown(self, address: str) -> str:
        """A page as the server would send it."""
        path, _, query = address.partition("?")
        page = next(self._at(address))
        here = Here(path=path, query=query, page=page, caller=Caller(), sections=self.sections)
        params = next(found for (found, one) in self._matches(path) if one is page)
        try:
            view = page.show(self.desk, asked(page.asks, params, parse_qsl(query)))
        except Fault as fault:
            return render("fault.html", why=str(fault), here=here)
        return render(page.template, view=view, here=here)

    def _at(self, address: str) -> Iterator[Page]:
        return (page for _, page in self._matches(address.partition("?")[0]))

    def _matches(self, path: str) -> Iterator[tuple[dict[str, str], Page]]:
        for (pattern, _, _), page in self.pages:
            if found := pattern.match(path):
                yield found.groupdict(), page

    def _fragment(self, first: str, address: str) -> str:
        number = (int(first) - 1) // 200
        inside = self.shown(unescape(address)) if number <= MOST_FRAGMENTS else ""
        told = inside or f'<p class="dim">What comes from event {first} on is not in this copy.</p>'
        return f'<section class="fragment" data-first="{first}">{told}</section>'

    def _link(self, kind: str, address: str, place: str | None) -> str:
        if address.startswith(assets.PLACE):
            return f' {kind}="{address.lstrip("/")}{place or ""}"'
        name = self.name(unescape(address))
        return f' {kind}="{name}{place or ""}"' if name else ""


def file_name(address: str) -> str:
    """All files lie side by side, so links between them need no path."""
    path, _, query = address.partition("?")
    plain = path.strip("/").replace("/", "_") or "index"
    name = _ODD.sub("-", plain)[:80]
    if query or name != plain:
        name += "-" + sha256(address.encode()).hexdigest()[:10]
    return f"{name}.html"


def _loop() -> str:
    """The icon itself: a page on disk may not take it from another file."""
    shape = _SHAPE.search(assets.assets()["icon.svg"].content.decode())
    return (shape[1] or shape[2]) if shape else ""
