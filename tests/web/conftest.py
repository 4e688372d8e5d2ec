"""A real browser, and a real server for it."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    expect,
    sync_playwright,
)

from closeloop.store import Store
from closeloop.web.app import build_web_app
from closeloop.web.page import PageContext
from patience import PATIENCE

NO_BROWSER = "NO CHROMIUM: install it, as with `apt install chromium`"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
expect.set_options(timeout=PATIENCE * 1000)

_contexts: list[BrowserContext] = []


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Open no longer than its file: meanwhile no other test can run an event loop."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip(NO_BROWSER)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
            timeout=PATIENCE * 1000,
        )
        yield opened
        opened.close()


Opened = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Opened]:
    """Opens pages; in the end, none of them may have complained."""
    complaints: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(message.text)

    def opened(**options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(PATIENCE * 1000)
        _contexts.append(context)
        page = context.new_page()
        page.on("console", heard)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        return page

    yield opened
    _close_pages()
    assert complaints == []


def _close_pages() -> None:
    while _contexts:
        _contexts.pop().close()


@contextmanager
def serving(store: Store, desk: PageContext | None = None, **options: Any) -> Iterator[str]:
    """The address of a server that runs in a thread of its own, and counts before it answers."""
    if desk is None:
        desk = PageContext(store)
        desk.metric_cache.patience = None
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        app = build_web_app(store, **{"token": None, "quiet": 0.1, "page_context": desk, **options})
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            # A page that looks for its server in vain would complain.
            _close_pages()
            desk.stopping.set()
            server.should_exit = True
            thread.join(PATIENCE)


@pytest.fixture(scope="session")
def serve() -> Callable[..., Any]:
    """`with serve(store) as address:`"""
    return serving
