"""Settings and health: what holds here, how full the store is, and who may come in."""

from __future__ import annotations

import re

import msgspec

from closeloop import __version__
from closeloop.flow import describe_sandbox
from closeloop.model.access import Token
from closeloop.model.record import Record
from closeloop.plugins import Kind, known
from closeloop.web.desk import Desk
from closeloop.web.page import Nothing, Page

KINDS: tuple[Kind, ...] = ("agents", "readers", "detectors", "checks", "judges", "encoders")
_LOGIN = re.compile(r"://[^/@\s\"]{1,300}@")


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
    tokens: tuple[Token, ...]
    settings: str
    """As JSON, without what opens a door."""


def health(desk: Desk, asked: Nothing) -> HealthView:
    settings = msgspec.json.format(msgspec.json.encode(desk.settings), indent=2).decode()
    return HealthView(
        version=__version__,
        root=str(desk.root.absolute()),
        store=_shown(desk.settings.store),
        sandbox=describe_sandbox(desk.settings.sandbox),
        counts=desk.store.listing.counts(),
        plugins={kind: tuple(sorted(known(kind))) for kind in KINDS},
        tokens=tuple(desk.store.access.tokens()),
        settings=_shown(settings),
    )


def _shown(text: str) -> str:
    """Addresses without the name and password in them."""
    return _LOGIN.sub("://", text)


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
