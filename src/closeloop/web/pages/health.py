"""Settings and health: what holds here, how full the store is, and who may come in."""

from __future__ import annotations

import re

import msgspec

from closeloop import __version__
from closeloop.flow import describe_sandbox
from closeloop.plugins import PluginKind, installed_plugins
from closeloop.records.access_tokens import AccessToken
from closeloop.records.record import Record
from closeloop.web.page import NoQuery, Page
from closeloop.web.page_context import PageContext

PLUGIN_KINDS: tuple[PluginKind, ...] = (
    "agents",
    "readers",
    "detectors",
    "checks",
    "judges",
    "encoders",
)
_URL_LOGIN = re.compile(r"://[^/@\s\"]{1,300}@")


class HealthView(Record):
    """How this server stands."""

    version: str
    root: str
    store: str
    """Where facts are kept, without a password."""
    sandbox: str
    """What confines agents on this machine, and what is not enforced."""
    counts: dict[str, int]
    plugins: dict[str, tuple[str, ...]]
    """By kind, the names of what is installed."""
    tokens: tuple[AccessToken, ...]
    settings: str
    """As JSON, without what opens a door."""


def health(desk: PageContext, asked: NoQuery) -> HealthView:
    settings = msgspec.json.format(msgspec.json.encode(desk.settings), indent=2).decode()
    return HealthView(
        version=__version__,
        root=str(desk.root.absolute()),
        store=_hide_url_logins(desk.settings.store),
        sandbox=describe_sandbox(desk.settings.sandbox),
        counts=desk.store.listing.count_records(),
        plugins={kind: tuple(sorted(installed_plugins(kind))) for kind in PLUGIN_KINDS},
        tokens=tuple(desk.store.access.list_tokens()),
        settings=_hide_url_logins(settings),
    )


def _hide_url_logins(text: str) -> str:
    """Addresses without the name and password in them."""
    return _URL_LOGIN.sub("://", text)


PAGES = (
    Page(
        path="/settings",
        show=health,
        template="health.html",
        about="What holds here: settings, plug-ins, tokens, and how full the store is.",
        section="Settings",
        key="s",
    ),
)
