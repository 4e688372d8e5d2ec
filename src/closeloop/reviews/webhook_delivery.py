"""Turn webhooks of code hosts into facts, and send events to the team's own webhooks."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import msgspec

from closeloop import __version__
from closeloop.records.errors import BadInput, Fault, MachineFailed
from closeloop.records.pull_request import Fact
from closeloop.records.record import Record
from closeloop.records.settings import WebhookSettings
from closeloop.records.trace import LogEvent
from closeloop.reviews.host_pulls import read_github_event, read_gitlab_event
from closeloop.store import Store
from closeloop.store.fact_rows import current_owner, is_owner_dead
from closeloop.store.pull_section import UnreadArrival
from closeloop.text.wording import matches_wildcards

if TYPE_CHECKING:
    import httpx


WEBHOOK_READERS: dict[str, Callable[[str, bytes, datetime], list[Fact]]] = {
    "github": read_github_event,
    "gitlab": read_gitlab_event,
}
ARRIVALS_PER_BATCH = 50
ArrivalFolder = Callable[[Sequence[UnreadArrival]], None]
"""Updates pull requests from deliveries."""
_log = logging.getLogger(__name__)


def list_unread_arrivals(store: Store) -> list[UnreadArrival]:
    """Return some of the unread deliveries, oldest first."""
    return store.pulls.list_unread(ARRIVALS_PER_BATCH)


def fold_arrivals(arrivals: Sequence[UnreadArrival], fold: ArrivalFolder) -> None:
    """Process all at once; if that fails, one by one, skipping only those that fail."""
    try:
        fold(arrivals)
    except MachineFailed:
        raise
    except Exception:
        for arrival in arrivals:
            _fold_arrival(arrival, fold)


def _fold_arrival(arrival: UnreadArrival, fold: ArrivalFolder) -> None:
    try:
        fold([arrival])
    except MachineFailed:
        raise
    except Exception:
        _log.exception("A delivery of %s (%s) is left out", arrival.source, arrival.event)


def delete_arrivals(arrivals: Sequence[UnreadArrival], store: Store) -> None:
    """Delete deliveries that were read."""
    store.pulls.delete_arrivals([arrival.number for arrival in arrivals])


def facts_from_arrival(arrival: UnreadArrival) -> list[Fact]:
    """Return the facts of a delivery; none if it does not match its event."""
    try:
        return WEBHOOK_READERS[arrival.source](arrival.event, arrival.body, arrival.at)
    except (BadInput, KeyError):
        return []


# Events for the team's own webhooks: signed, in order, repeated until accepted.

RESPONSE_SECONDS = 10.0
"""Timeout in seconds of one response."""
LEASE_SECONDS = 60.0
POLL_SECONDS = 0.5
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 300.0
_LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")

PauseFunction = Callable[[float], Awaitable[None]]


class WebhookTarget(Record):
    """One webhook, with its signing key."""

    name: str
    url: str
    secret: str
    events: tuple[str, ...] = ("*",)

    @property
    def place(self) -> str:
        """The name under which the store saves its position."""
        return f"webhook:{self.name}"


def build_target(name: str, settings: WebhookSettings, secret: str | None) -> WebhookTarget:
    """Return a webhook's target; raise BadInput if nothing may be sent to it."""
    parts = urlsplit(settings.url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOCAL_HOSTS):
        raise BadInput(f"webhooks.{name}: the URL must start with https.")
    if not secret:
        raise BadInput(f"webhooks.{name}: set {settings.secret_env} to the signing key.")
    return WebhookTarget(name=name, url=settings.url, secret=secret, events=settings.events)


async def send_all_events(store: Store, targets: Sequence[WebhookTarget]) -> None:
    """Send events to every webhook until cancelled; none waits for another."""
    async with anyio.create_task_group() as group:
        for target in targets:
            group.start_soon(follow_target, store, target)


async def follow_target(
    store: Store, target: WebhookTarget, pause: PauseFunction = anyio.sleep
) -> None:
    """Send events in order. Of several processes, only one does."""
    failures = 0
    while True:
        try:
            claimed = await anyio.to_thread.run_sync(
                store.claim_job, target.place, current_owner(), LEASE_SECONDS, is_owner_dead
            )
            sent = await send_new_events(store, target) if claimed else 0
        except Fault:
            failures += 1
            await pause(min(FIRST_PAUSE * 2.0 ** min(failures - 1, 20), LONGEST_PAUSE))
            continue
        failures = 0
        if not sent:
            await pause(POLL_SECONDS)


async def send_new_events(store: Store, target: WebhookTarget) -> int:
    """Send the events since the last run, each until it is accepted; return how many were read."""
    import httpx

    position = await anyio.to_thread.run_sync(store.events.load_position, target.place)
    if position is None:
        # A new webhook receives events from now on.
        last = await anyio.to_thread.run_sync(store.events.last_number)
        await anyio.to_thread.run_sync(store.events.save_position, target.place, str(last))
        return 0
    events = await anyio.to_thread.run_sync(store.events.list_after, int(position), 100)
    local = urlsplit(target.url).hostname in _LOCAL_HOSTS
    deadline = anyio.current_time() + LEASE_SECONDS / 2
    async with httpx.AsyncClient(timeout=RESPONSE_SECONDS, trust_env=not local) as client:
        for event in events:
            if anyio.current_time() > deadline:
                break
            if matches_wildcards(event.kind, target.events):
                await _send_event(client, target, event)
            await anyio.to_thread.run_sync(
                store.events.save_position, target.place, str(event.number)
            )
    return len(events)


async def _send_event(client: httpx.AsyncClient, target: WebhookTarget, event: LogEvent) -> None:
    import httpx

    body = msgspec.json.encode(event)
    headers = {
        "content-type": "application/json",
        "user-agent": f"closeloop/{__version__}",
        "x-closeloop-event": event.kind,
        "x-closeloop-delivery": str(event.number),
        "x-closeloop-signature-256": sign_body(body, target.secret),
    }
    try:
        with anyio.fail_after(RESPONSE_SECONDS):
            response = await client.post(target.url, content=body, headers=headers)
    except (TimeoutError, httpx.HTTPError, httpx.InvalidURL) as error:
        raise MachineFailed(f"{target.name} does not answer ({type(error).__name__}).") from None
    if not response.is_success:
        raise MachineFailed(f"{target.name} answers {response.status_code}.")


def sign_body(body: bytes, secret: str) -> str:
    """Return the signature for the header, which the receiver recomputes and compares."""
    return f"sha256={hmac.digest(secret.encode(), body, 'sha256').hex()}"
