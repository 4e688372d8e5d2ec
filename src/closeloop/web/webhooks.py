"""Webhooks of code hosts: `POST /webhooks/github` and `/webhooks/gitlab`.

A delivery is believed by its signature, kept in one transaction with whatever else has come, and
only then acknowledged. It is read later, beside: a burst costs nothing but room.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup
from msgspec.structs import replace
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from closeloop.model.errors import Fault, MachineFailed, ReadOnlyStore
from closeloop.model.record import Record
from closeloop.reviewing.lives import renew_all
from closeloop.reviewing.reading import read_arrivals
from closeloop.reviewing.schooling import learn_always
from closeloop.reviewing.sending import Target, send_all
from closeloop.reviews import gitlab, pulls_webhooks
from closeloop.reviews.authorship import Agents
from closeloop.store import Store
from closeloop.store.pulls import Arrival
from closeloop.traces.redact import redact_json
from closeloop.web.bodies import BodyMemory, Refused

BODY_LIMIT = 25 << 20
"""Bytes; GitHub sends no larger payload."""
LARGE_BODY = 1 << 20
"""Bytes; the signature of a larger one is checked beside, so that nobody waits for it."""
IDLE_SECONDS, TROUBLED_SECONDS = 1.0, 5.0
QUIET_SECONDS = 0.2
PATIENCE = 9
"""While deliveries come, reading takes one part of the time in so many and one."""
KINDS = {"github": frozenset(pulls_webhooks.EVENTS), "gitlab": frozenset(gitlab.EVENTS)}
_log = logging.getLogger(__name__)
_TOO_LONG = f"A payload may have {BODY_LIMIT >> 20} MiB."
_NAME = re.compile(r"[\w .:-]{1,200}", re.ASCII)


class Doors(Record):
    """What opens the webhooks of each host, and what is done with what comes."""

    github: str | None = None
    """The secret that its deliveries are signed with; none given, none are taken."""
    gitlab: str | None = None
    """The token that its deliveries bring."""
    agents: Agents = {}
    targets: tuple[Target, ...] = ()
    """Who is told of events."""
    learn: Callable[[], object] | None = None
    """What makes rules of what people said."""


class _Object(msgspec.Struct):
    """Any JSON object: only its form is looked at."""


_form = msgspec.json.Decoder(_Object)


class Webhooks:
    """An application with the webhooks before it and their work beside it."""

    def __init__(self, app: ASGIApp, store: Store, doors: Doors) -> None:
        self._app, self._store, self._doors = app, store, doors
        self._writer = Writer(store)
        self._memory = BodyMemory()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/webhooks/"):
            try:
                reply = await self._settled(scope, receive)
            except ClientDisconnect:
                return  # nobody is there to be answered
            await _reply(send, *reply)
        elif scope["type"] == "lifespan":
            async with anyio.create_task_group() as group:
                group.start_soon(self._writer.run)
                if not self._store.is_read_only:
                    self._start_work(group)
                await self._app(scope, receive, send)
                group.cancel_scope.cancel()
        else:
            await self._app(scope, receive, send)

    def _start_work(self, group: TaskGroup) -> None:
        """What goes on beside the requests, and writes what comes of it."""
        group.start_soon(self._read_all)
        group.start_soon(send_all, self._store, self._doors.targets)
        if self._doors.learn is not None:
            group.start_soon(learn_always, self._store, self._doors.learn)

    async def _settled(self, scope: Scope, receive: Receive) -> tuple[int, str]:
        """Keep a delivery, or say why not: a status, and words."""
        try:
            await self._writer.keep(await self._arrival(scope, receive))
        except Refused as refused:
            return refused.status, str(refused)
        except ReadOnlyStore as fault:
            return 403, str(fault)
        except Fault as fault:
            return 503, str(fault)
        return 202, ""

    async def _arrival(self, scope: Scope, receive: Receive) -> Arrival:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        source = scope["path"].removeprefix("/webhooks/")
        if source not in KINDS:
            raise Refused(404, f"Webhooks are those of {' and '.join(KINDS)}.")
        if scope["method"] != "POST":
            raise Refused(405, "Webhooks are sent by POST.")
        secret = getattr(self._doors, source)
        if secret is None:
            raise Refused(503, f"There is no secret for {source} here: set it and start again.")
        if source == "gitlab":
            demand_token(headers, secret)
        given = b"" if source == "gitlab" else signature(headers)
        body = await self._body(headers, receive)
        read = partial(_read_delivery, source, secret, given, headers, body)
        return await anyio.to_thread.run_sync(read) if len(body) > LARGE_BODY else read()

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 12 or int(length) > BODY_LIMIT:
            raise Refused(413, _TOO_LONG)
        return await self._memory.read_body(receive, BODY_LIMIT, _TOO_LONG)

    async def _read_all(self) -> None:
        """Read what has come; while more comes, receiving goes before."""
        renewed = False
        while True:
            before, began = self._writer.count, time.monotonic()
            try:
                if not renewed:
                    await anyio.to_thread.run_sync(renew_all, self._store, self._doors.agents)
                    renewed = True
                read = await anyio.to_thread.run_sync(
                    read_arrivals, self._store, self._doors.agents
                )
            except MachineFailed as fault:
                _log.warning("Deliveries wait to be read: %s", fault)
                await anyio.sleep(TROUBLED_SECONDS)
                continue
            except Exception:
                # What could not be read is kept, and tried again; receiving goes on.
                _log.exception("Deliveries cannot be read")
                await anyio.sleep(TROUBLED_SECONDS)
                continue
            if not read:
                await self._writer.wait(IDLE_SECONDS)
            elif self._writer.count != before:
                await self._writer.quiet(PATIENCE * (time.monotonic() - began))


class Waiting:
    """An arrival that is not kept yet."""

    def __init__(self, arrival: Arrival) -> None:
        self.arrival = arrival
        self.done = anyio.Event()
        self.trouble: Fault | None = None


class Writer:
    """Keeps arrivals: all that have come while the last ones were written go together."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[Waiting] = []
        self._came = anyio.Event()
        self.count = 0
        """How many have come."""

    async def keep(self, arrival: Arrival) -> None:
        """Return when it is kept; a Fault when it cannot be."""
        one = Waiting(arrival)
        self._waiting.append(one)
        self._came.set()
        await one.done.wait()
        if one.trouble is not None:
            raise one.trouble

    async def wait(self, seconds: float) -> None:
        """Until something comes, or so long."""
        with anyio.move_on_after(seconds):
            await self._came.wait()

    async def quiet(self, seconds: float) -> None:
        """Until nothing has come for a moment, or so long."""
        seen = -1
        with anyio.move_on_after(seconds):
            while seen != self.count:
                seen = self.count
                await anyio.sleep(QUIET_SECONDS)

    async def run(self) -> None:
        while True:
            await self._came.wait()
            batch, self._waiting, self._came = self._waiting, [], anyio.Event()
            self.count += len(batch)
            trouble: Fault | None = None
            try:
                arrivals = [one.arrival for one in batch]
                await anyio.to_thread.run_sync(self._arrive, arrivals)
            except Exception as error:
                # Nobody may wait for ever for an answer.
                why = "The delivery could not be kept: send it again."
                trouble = error if isinstance(error, Fault) else MachineFailed(why)
            for one in batch:
                one.trouble = trouble
                one.done.set()

    def _arrive(self, new: list[Arrival]) -> None:
        """What people wrote may hold a secret: it goes before anything is kept."""
        self._store.pulls.arrive(
            [replace(one, body=redact_json(one.body)) if one.body else one for one in new]
        )


def _read_delivery(
    source: str, secret: str, given: bytes, headers: dict[bytes, bytes], body: bytes
) -> Arrival:
    """Check the signature and the form of a delivery."""
    if source == "github":
        demand_signature(given, secret, body)
    demand_form(headers, body)
    return arrival(source, headers, body)


def demand_token(headers: dict[bytes, bytes], secret: str) -> None:
    """GitLab's deliveries bring the token itself."""
    if not hmac.compare_digest(headers.get(b"x-gitlab-token", b""), secret.encode()):
        raise Refused(401, "The token is missing or wrong.")


def signature(headers: dict[bytes, bytes]) -> bytes:
    given = headers.get(b"x-hub-signature-256", b"")
    if len(given) != len("sha256=") + 64:
        raise Refused(401, "The signature is missing: give the webhook a secret.")
    return given


def demand_signature(given: bytes, secret: str, body: bytes) -> None:
    """GitHub's deliveries are signed: nothing else tells who sent them."""
    right = hmac.digest(secret.encode(), body, "sha256").hex().encode()
    if not hmac.compare_digest(given, b"sha256=" + right):
        raise Refused(401, "The signature is wrong: use the secret of this server.")


def demand_form(headers: dict[bytes, bytes], body: bytes) -> None:
    kind = headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise Refused(415, "Set the webhook's content type to application/json.")
    try:
        _form.decode(body)
    except RecursionError:
        raise Refused(400, "The payload is nested too deeply.") from None
    except ValueError:
        raise Refused(400, "The payload is no JSON object.") from None


def arrival(source: str, headers: dict[bytes, bytes], body: bytes) -> Arrival:
    """What is kept of a delivery; of an event that is not read, only that it came."""
    if source == "github":
        event, name = headers.get(b"x-github-event", b""), headers.get(b"x-github-delivery", b"")
    else:
        event, name = headers.get(b"x-gitlab-event", b""), headers.get(b"idempotency-key", b"")
    given = (
        event.decode("latin-1"),
        (name or hashlib.sha256(body).hexdigest().encode()).decode("latin-1"),
    )
    if not all(map(_NAME.fullmatch, given)):
        raise Refused(400, "The headers do not say which event and delivery this is.")
    return Arrival(
        source=source,
        delivery=given[1],
        event=given[0],
        at=datetime.now(UTC),
        body=body if given[0] in KINDS[source] else None,
    )


async def _reply(send: Send, status: int, words: str) -> None:
    """Words for those who are refused; the others are answered in one piece."""
    body = msgspec.json.encode({"message": words}) if words else b""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status == 503:
        headers.append((b"retry-after", b"5"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
