"""Webhooks of code hosts: `POST /webhooks/github` and `/webhooks/gitlab`.

A delivery is authenticated by its signature, saved in one transaction with others that have
arrived, and only then acknowledged. It is parsed later, in the background: a burst only takes
storage.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup
from h11 import LocalProtocolError
from msgspec.structs import replace
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from closeloop.flow import receive_pull_requests
from closeloop.records.errors import Fault, MachineFailed, ReadOnlyStore
from closeloop.records.record import Record
from closeloop.reviews import host_pulls
from closeloop.reviews.authorship import AgentSignsByName
from closeloop.reviews.pull_board import RiskAssessment
from closeloop.reviews.pull_changes import OpenHost, run_change_worker
from closeloop.reviews.pull_lifecycle import refresh_all_pulls
from closeloop.reviews.rule_learning import run_learning_worker
from closeloop.reviews.webhook_delivery import WebhookTarget, send_all_events
from closeloop.store import Store
from closeloop.store.pull_section import WebhookArrival
from closeloop.text.redaction import redact_json
from closeloop.web.auth_middleware import BodyMemory, RequestRefused

BODY_LIMIT = 25 << 20
"""Bytes; GitHub sends no larger payload."""
LARGE_PAYLOAD_BYTES = 1 << 20
"""Bytes above which a signature is checked in a thread, so that other requests do not wait."""
IDLE_SECONDS, TROUBLED_SECONDS = 1.0, 5.0
QUIET_SECONDS = 0.2
READING_PAUSE_FACTOR = 9
"""While deliveries arrive, parsing pauses for this multiple of the time it took."""
EVENT_NAMES = {
    "github": frozenset(host_pulls.GITHUB_EVENTS),
    "gitlab": frozenset(host_pulls.GITLAB_EVENTS),
}
_log = logging.getLogger(__name__)
_TOO_LARGE_MESSAGE = f"A payload may be at most {BODY_LIMIT >> 20} MiB."
_HEADER_NAME = re.compile(r"[\w .:-]{1,200}", re.ASCII)


class WebhookConfiguration(Record):
    """Secrets of the webhooks of each host, and how deliveries are processed."""

    github: str | None = None
    """Secret that signs its deliveries; None refuses them all."""
    gitlab: str | None = None
    """Token that its deliveries carry."""
    agents: AgentSignsByName = {}
    targets: tuple[WebhookTarget, ...] = ()
    """Receivers of outgoing events."""
    learn: Callable[[], object] | None = None
    """Function that derives rules from comments."""
    open_host: OpenHost | None = None
    """Function that opens a code host to request diffs."""
    clones: tuple[Path, ...] = ()
    """Clones in which to look for diffs otherwise."""
    risk: RiskAssessment | None = None


class _JsonObject(msgspec.Struct):
    """Any JSON object; validates only the form."""


_object_decoder = msgspec.json.Decoder(_JsonObject)


class WebhookMiddleware:
    """An app with the webhooks in front of it and their work in the background."""

    def __init__(self, app: ASGIApp, store: Store, doors: WebhookConfiguration) -> None:
        self._app, self._store, self._doors = app, store, doors
        self._writer = ArrivalWriter(store)
        self._memory = BodyMemory()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(LocalProtocolError):  # uvicorn has refused what the client sent as not HTTP
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/webhooks/"):
            try:
                reply = await self._save_delivery(scope, receive)
            except ClientDisconnect:
                return  # the client has disconnected
            await _send_reply(send, *reply)
        elif scope["type"] == "lifespan":
            async with anyio.create_task_group() as group:
                group.start_soon(self._writer.run_batches)
                if not self._store.is_read_only:
                    self._start_background_work(group)
                await self._app(scope, receive, send)
                group.cancel_scope.cancel()
        else:
            await self._app(scope, receive, send)

    def _start_background_work(self, group: TaskGroup) -> None:
        """Start the background tasks that process deliveries."""
        group.start_soon(self._read_arrivals_forever)
        group.start_soon(send_all_events, self._store, self._doors.targets)
        if self._doors.open_host is not None:
            group.start_soon(
                run_change_worker,
                self._store,
                self._doors.agents,
                self._doors.open_host,
                self._doors.clones,
                self._doors.risk,
            )
        if self._doors.learn is not None:
            group.start_soon(run_learning_worker, self._store, self._doors.learn)

    async def _save_delivery(self, scope: Scope, receive: Receive) -> tuple[int, str]:
        """Save a delivery, or refuse it; return a status and a message."""
        try:
            await self._writer.save_arrival(await self._receive_arrival(scope, receive))
        except RequestRefused as refused:
            return refused.status, str(refused)
        except ReadOnlyStore as fault:
            return 403, str(fault)
        except Fault as fault:
            return 503, str(fault)
        return 202, ""

    async def _receive_arrival(self, scope: Scope, receive: Receive) -> WebhookArrival:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        source = scope["path"].removeprefix("/webhooks/")
        if source not in EVENT_NAMES:
            raise RequestRefused(404, f"Webhooks are supported for {' and '.join(EVENT_NAMES)}.")
        if scope["method"] != "POST":
            raise RequestRefused(405, "Send webhooks with POST.")
        secret = getattr(self._doors, source)
        if secret is None:
            raise RequestRefused(
                503, f"No secret is set for {source}: set it and restart the server."
            )
        if source == "gitlab":
            require_gitlab_token(headers, secret)
        signature_given = b"" if source == "gitlab" else signature_header(headers)
        body = await self._read_payload(headers, receive)
        read_delivery = partial(_read_delivery, source, secret, signature_given, headers, body)
        return (
            await anyio.to_thread.run_sync(read_delivery)
            if len(body) > LARGE_PAYLOAD_BYTES
            else read_delivery()
        )

    async def _read_payload(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 12 or int(length) > BODY_LIMIT:
            raise RequestRefused(413, _TOO_LARGE_MESSAGE)
        return await self._memory.read_body(receive, BODY_LIMIT, _TOO_LARGE_MESSAGE)

    async def _read_arrivals_forever(self) -> None:
        """Parse saved deliveries; while more arrive, receiving has priority."""
        is_renewed = False
        while True:
            count_before, started_at = self._writer.count, time.monotonic()
            try:
                if not is_renewed:
                    await anyio.to_thread.run_sync(
                        refresh_all_pulls, self._store, self._doors.agents
                    )
                    is_renewed = True
                read_count = await anyio.to_thread.run_sync(
                    receive_pull_requests, self._store, self._doors.agents
                )
            except MachineFailed as fault:
                _log.warning("Deliveries wait to be read: %s", fault)
                await anyio.sleep(TROUBLED_SECONDS)
                continue
            except Exception:
                # Unreadable deliveries are stored and retried; receiving continues.
                _log.exception("Deliveries cannot be read")
                await anyio.sleep(TROUBLED_SECONDS)
                continue
            if not read_count:
                await self._writer.wait_for_arrival(IDLE_SECONDS)
            elif self._writer.count != count_before:
                await self._writer.wait_until_quiet(
                    READING_PAUSE_FACTOR * (time.monotonic() - started_at)
                )


class PendingArrival:
    """An arrival that is not saved yet."""

    def __init__(self, arrival: WebhookArrival) -> None:
        self.arrival = arrival
        self.done = anyio.Event()
        self.trouble: Fault | None = None


class ArrivalWriter:
    """Saves arrivals: those that come during a write are saved together in the next one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[PendingArrival] = []
        self._came = anyio.Event()
        self.count = 0
        """Number of arrivals so far."""

    async def save_arrival(self, arrival: WebhookArrival) -> None:
        """Return once it is saved; raise a Fault if that fails."""
        pending = PendingArrival(arrival)
        self._waiting.append(pending)
        self._came.set()
        await pending.done.wait()
        if pending.trouble is not None:
            raise pending.trouble

    async def wait_for_arrival(self, seconds: float) -> None:
        """Wait for an arrival, for at most `seconds`."""
        with anyio.move_on_after(seconds):
            await self._came.wait()

    async def wait_until_quiet(self, seconds: float) -> None:
        """Wait until nothing has arrived for a moment, for at most `seconds`."""
        seen_count = -1
        with anyio.move_on_after(seconds):
            while seen_count != self.count:
                seen_count = self.count
                await anyio.sleep(QUIET_SECONDS)

    async def run_batches(self) -> None:
        while True:
            await self._came.wait()
            batch, self._waiting, self._came = self._waiting, [], anyio.Event()
            self.count += len(batch)
            fault: Fault | None = None
            try:
                arrivals = [pending.arrival for pending in batch]
                await anyio.to_thread.run_sync(self._save_batch, arrivals)
            except Exception as error:
                # No client may wait for an answer indefinitely.
                failure_text = "The delivery could not be saved: send it again."
                fault = error if isinstance(error, Fault) else MachineFailed(failure_text)
            for pending in batch:
                pending.trouble = fault
                pending.done.set()

    def _save_batch(self, new: list[WebhookArrival]) -> None:
        """Save arrivals, after removing secrets from what people wrote."""
        self._store.pulls.save_arrivals(
            [
                replace(arrival, body=redact_json(arrival.body)) if arrival.body else arrival
                for arrival in new
            ]
        )


def _read_delivery(
    source: str, secret: str, signature: bytes, headers: dict[bytes, bytes], body: bytes
) -> WebhookArrival:
    """Check the signature and the form of a delivery."""
    if source == "github":
        require_signature(signature, secret, body)
    require_json_object(headers, body)
    return build_arrival(source, headers, body)


def require_gitlab_token(headers: dict[bytes, bytes], secret: str) -> None:
    """Check the token that GitLab's deliveries carry."""
    if not hmac.compare_digest(headers.get(b"x-gitlab-token", b""), secret.encode()):
        raise RequestRefused(401, "The token is missing or wrong.")


def signature_header(headers: dict[bytes, bytes]) -> bytes:
    signature_value = headers.get(b"x-hub-signature-256", b"")
    if len(signature_value) != len("sha256=") + 64:
        raise RequestRefused(401, "The signature is missing: set a secret for the webhook.")
    return signature_value


def require_signature(signature: bytes, secret: str, body: bytes) -> None:
    """Check the signature of GitHub's deliveries, the only proof of their sender."""
    expected = hmac.digest(secret.encode(), body, "sha256").hex().encode()
    if not hmac.compare_digest(signature, b"sha256=" + expected):
        raise RequestRefused(401, "The signature is wrong: use the secret of this server.")


def require_json_object(headers: dict[bytes, bytes], body: bytes) -> None:
    kind = headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise RequestRefused(415, "Set the webhook's content type to application/json.")
    try:
        _object_decoder.decode(body)
    except RecursionError:
        raise RequestRefused(400, "The payload is nested too deeply.") from None
    except ValueError:
        raise RequestRefused(400, "The payload is not a JSON object.") from None


def build_arrival(source: str, headers: dict[bytes, bytes], body: bytes) -> WebhookArrival:
    """Build the record of a delivery; of an unused event only that it arrived."""
    if source == "github":
        event, name = headers.get(b"x-github-event", b""), headers.get(b"x-github-delivery", b"")
    else:
        event, name = headers.get(b"x-gitlab-event", b""), headers.get(b"idempotency-key", b"")
    event_and_delivery = (
        event.decode("latin-1"),
        (name or hashlib.sha256(body).hexdigest().encode()).decode("latin-1"),
    )
    if not all(map(_HEADER_NAME.fullmatch, event_and_delivery)):
        raise RequestRefused(400, "The headers do not name the event and the delivery.")
    return WebhookArrival(
        source=source,
        delivery=event_and_delivery[1],
        event=event_and_delivery[0],
        at=datetime.now(UTC),
        body=body if event_and_delivery[0] in EVENT_NAMES[source] else None,
    )


async def _send_reply(send: Send, status: int, message: str) -> None:
    """Send a reply: a message for refused requests, an empty body for others."""
    body = msgspec.json.encode({"message": message}) if message else b""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status == 503:
        headers.append((b"retry-after", b"5"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
