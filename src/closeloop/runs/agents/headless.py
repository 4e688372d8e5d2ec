"""The one way in which programs of others work: in a cage, with a gateway for a network.

    find ──► prepare its home ──► run, watched ──► gather what it left ──► say how it ended

What the program does badly is its exit; only what the user must mend is raised.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import anyio
import msgspec

from closeloop.model.attempt import Exit, Usage
from closeloop.model.errors import BadInput, Fault, MachineFailed, OutOfBudget, unknown
from closeloop.model.exchange import Exchange
from closeloop.model.protocols import Assignment, Door, Recording, Work
from closeloop.model.record import Record
from closeloop.model.trace import Trace
from closeloop.model.variant import Limits
from closeloop.runs.agents.adapter import Adapter, Call, Said, Use
from closeloop.runs.agents.feedback import QUESTION, seconds_left
from closeloop.runs.agents.gathering import gather
from closeloop.runs.agents.programs import Installed, find
from closeloop.runs.agents.texts import bounded, plain
from closeloop.runs.sandbox.cage import Cage
from closeloop.runs.sandbox.place import Port, Share
from closeloop.runs.sandbox.process import Ended

PORT = 8017
"""Where a program finds the gateway on the loopback of its cage."""
PRINTED = 16 << 20
LOOK, LINGER, HURRY = 0.25, 3.0, 0.05
"""Seconds between looks, that a program may linger when it is done, and to ask if all is over."""
FOREVER = 1e9
BAD_REQUEST = 400
ARGUMENT = 128 << 10
"""Bytes that Linux takes for one argument."""
SETTINGS = ("arguments", "program", "version")

Settings = Mapping[str, str | int | float | bool]


class Watch:
    """Knows when a program is to be stopped: done, idle, or with nobody left to talk to."""

    def __init__(self, done: bytes | None, door: Door | None, idle_seconds: float) -> None:
        self.closed: OutOfBudget | Fault | None = None
        self._done = done
        self._door = door
        self._idle = idle_seconds
        self._tail = b""
        self._finished: float | None = None
        self._active = time.monotonic()
        self._asked = 0

    def hear(self, chunk: bytes) -> None:
        self._active = time.monotonic()
        if self._done is not None:
            if self._finished is None and self._done in self._tail + chunk:
                self._finished = self._active
            self._tail = (self._tail + chunk)[-len(self._done) :]

    async def over(self) -> str:
        async with anyio.create_task_group() as group:
            if self._door is not None:
                group.start_soon(self._listen, self._door)
            why = await self._found()
            group.cancel_scope.cancel()
        return why

    async def _found(self) -> str:
        while True:
            if (why := self._reason()) is not None:
                return why
            await anyio.sleep(LOOK)

    async def _listen(self, door: Door) -> None:
        self.closed = await door.closed()

    def _reason(self) -> str | None:
        now = time.monotonic()
        door = self._door
        # Who waits for an answer is not idle: the provider may be slow, or let all wait in turn.
        if door is not None and (door.busy or len(door.exchanges) != self._asked):
            self._asked, self._active = len(door.exchanges), now
        if self.closed is not None:
            return "closed"
        if self._finished is not None and now - self._finished > LINGER:
            return "done"
        return "idle" if now - self._active > self._idle else None


class Run(Record):
    """A program that was started and is gone."""

    ended: Ended
    closed: OutOfBudget | Fault | None
    asked: bool | None
    """Whether it asked its model anything; None where it has none."""
    refused: str | None = None
    """Why not one of its requests had an answer, where that is so."""


class Headless:
    """An agent that is a program of others."""

    def __init__(self, adapter: Adapter, settings: Settings | None = None) -> None:
        self.adapter = adapter
        self.settings: Settings = settings or {}

    @property
    def name(self) -> str:
        return self.adapter.name

    @property
    def version(self) -> str | None:
        installed = self.installed()
        return installed.version if installed else None

    def prompt(self, system: str | None) -> tuple[str, str]:
        """What is added to the program's own prompt, which only its version can stand for."""
        return system or "", ""

    def installed(self) -> Installed | None:
        """The program, where it is on this machine."""
        program = str(self.settings.get("program", self.adapter.program))
        if not self.adapter.program:
            program = (words(program, "program") or [""])[0]
        return find(program, self.adapter.package) if program else None

    def with_settings(self, settings: Settings) -> Headless:
        """The same agent for a variant; BadInput where its settings or the program are wrong."""
        known = (*SETTINGS, *self.adapter.settings)
        for name in settings:
            if name not in known:
                raise unknown(f"setting of the agent {self.name}", name, known)
        words(settings.get("arguments", ""), "arguments")
        agent = type(self)(self.adapter, settings)
        installed = agent.needed()
        wanted = settings.get("version")
        if wanted is not None and installed.version != str(wanted):
            raise BadInput(
                f"The agent {self.name} is here in version {installed.version or 'unknown'}, not "
                f"{wanted} as the variant says: install that one, or change the setting `version`."
            )
        oldest, here = self.adapter.oldest, installed.version
        if oldest is not None and here is not None and _numbers(here) < _numbers(oldest):
            raise BadInput(
                f"The agent {self.name} is here in version {here}, and {oldest} is the first that "
                f"works: run `{self.adapter.install}`."
            )
        return agent

    def needed(self) -> Installed:
        installed = self.installed()
        if installed is None:
            program = self.settings.get("program", self.adapter.program)
            raise BadInput(
                f"The agent {self.name} is not installed, as there is no program {str(program)!r}: "
                f"run `{self.adapter.install}`, or name its path in the setting `program`."
            )
        return installed

    async def work(self, assignment: Assignment) -> Work:
        """Let the program work to its end, and bring out what it left."""
        limits, began = assignment.limits, time.monotonic()
        if assignment.door is None and self.adapter.needs_model:
            raise BadInput(f"The agent {self.name} needs a model: name one with --model.")
        ran = await self.start(assignment, assignment.prompt, limits.seconds)
        recordings = await gather(_cage(assignment), self.adapter.recordings)
        if self.adapter.prints:
            recordings += (Recording(path="printed.jsonl", content=ran.ended.output.content),)
        said = self.adapter.understand(ran.ended.output.content, recordings)
        exit_, cause = how_it_ended(ran, said, limits)
        feedback = None
        if assignment.feedback and exit_ == "finished" and self.adapter.again:
            feedback = await self.ask(assignment, seconds_left(limits, began))
        return Work(
            exit=exit_,
            cause=None if cause is None else plain(bounded(cause)),
            summary=None if said.text is None else plain(bounded(said.text)),
            trace=Trace(reader=self.name, reader_version=1),
            usage=assignment.door.usage if assignment.door else Usage(),
            recordings=recordings,
            feedback=feedback,
        )

    async def ask(self, assignment: Assignment, seconds: float) -> str | None:
        """What the agent lacked, by its own account; the workspace cannot be written meanwhile."""
        try:
            ran = await self.start(assignment, QUESTION, seconds, again=True)
            recordings = await gather(_cage(assignment), self.adapter.recordings)
        except MachineFailed:  # the work itself is done
            return None
        said = self.adapter.understand(ran.ended.output.content, recordings)
        ended_well = how_it_ended(ran, said, assignment.limits)[0] == "finished"
        return plain(bounded(said.text)) if ended_well and said.text else None

    async def start(
        self, assignment: Assignment, prompt: str, seconds: float, *, again: bool = False
    ) -> Run:
        """Run it once in its cage, watched."""
        installed, door = self.needed(), assignment.door
        cage, address = fitted(_cage(assignment), installed, door, assignment.limits)
        use = Use(
            prompt=prompt,
            system=assignment.system,
            model=door.name if door else "none",
            address=address,
            home=cage.home,
            workspace=cage.root,
            turns=assignment.limits.turns,
            settings=self.settings,
            again=again,
        )
        call = self.adapter.call(use)
        demand_room(call)
        await write(cage, call)
        if again:
            cage = cage.frozen()
        watch = Watch(self.adapter.done, door, assignment.limits.idle_seconds)
        asked = len(door.exchanges) if door else 0
        more = words(self.settings.get("arguments", ""), "arguments")
        ended = await cage.execute(
            [installed.path, *call.arguments, *more],
            seconds=seconds,
            stdin=None if call.stdin is None else call.stdin.encode(errors="replace"),
            env=_search(cage, installed) | dict(call.env),
            keep=PRINTED,
            watcher=watch,
        )
        if door is not None and watch.closed is None:
            with anyio.move_on_after(HURRY):  # it may have ended because it was refused
                watch.closed = await door.closed()
        return Run(
            ended=ended,
            closed=watch.closed,
            asked=None if door is None else len(door.exchanges) > asked,
            refused=None if door is None else unanswered(door.exchanges, asked),
        )


def words(line: object, name: str) -> list[str]:
    """A setting that is split as a shell does."""
    try:
        return shlex.split(str(line))
    except ValueError as error:
        raise BadInput(f"The setting `{name}` cannot be split into words: {error}.") from error


def fitted(cage: Cage, installed: Installed, door: Door | None, limits: Limits) -> tuple[Cage, str]:
    """A cage that shows the program and leads to the door, and the address to find it at."""
    view = cage.sandbox.view
    there = [*view.readable, *(link for link, _ in view.links)]
    shares = tuple(
        Share(source=path, target=path)
        for path in installed.shown
        if not any(path == each or path.startswith(each + "/") for each in there)
    )
    # How long it may be silent is judged by its watch, who also knows of its talk with the model.
    limits = msgspec.structs.replace(limits, idle_seconds=FOREVER)
    if door is None:
        return cage.equipped(shares, (), limits), "http://127.0.0.1:1"
    if cage.sandbox.isolated:
        address = f"http://127.0.0.1:{PORT}"
        return cage.equipped(shares, (Port(number=PORT, socket=door.socket),), limits), address
    number = urlsplit(door.address).port or 0
    return cage.equipped(shares, (Port(number=number, socket=door.socket),), limits), door.address


def demand_room(call: Call) -> None:
    """MachineFailed where a text is too long for the way in which the program takes it."""
    longest = max((len(each.encode(errors="replace")) for each in call.arguments), default=0)
    if longest >= ARGUMENT:
        raise MachineFailed(
            f"This agent takes a prompt of {longest:,} bytes as an argument, which may have "
            f"{ARGUMENT:,}: shorten it, or choose an agent that reads it from a file."
        )


async def write(cage: Cage, call: Call) -> None:
    """The program's configuration."""
    for path, text in call.files.items():
        try:
            await cage.write(f"{cage.home}/{path}", text.encode(errors="replace"))
        except OSError as error:
            raise MachineFailed(f"The agent's home could not be prepared: {error}.") from error


def unanswered(exchanges: Sequence[Exchange], first: int) -> str | None:
    """Why there was no answer to any request from that one on; None where there was one."""
    last = None
    for number in range(first, len(exchanges)):
        last = exchanges[number]
        if last.status < BAD_REQUEST and last.cause is None:
            return None
    return None if last is None else last.cause or f"status {last.status}"


def how_it_ended(ran: Run, said: Said, limits: Limits) -> tuple[Exit, str | None]:
    """The exit and, unless all went well, its cause."""
    ended = ran.ended
    if isinstance(ran.closed, OutOfBudget):
        return "out_of_budget", str(ran.closed)
    if ran.closed is not None:
        return "machine", str(ran.closed)
    if ended.stopped == "out of time":
        return "out_of_time", "time limit"
    if ended.stopped == "idle":
        return "idle", f"it neither said nor asked anything for {limits.idle_seconds:g} seconds"
    if ended.stopped not in (None, "done"):
        return "crashed", ended.stopped
    if said.exit is not None:
        return said.exit, said.cause or "it says so"
    if ended.stopped is None and ended.exit_code != 0:
        return "crashed", f"exit code {ended.exit_code}: {_last_line(ended)}"
    if ran.asked is False:
        return "gave_up", "it ended without asking its model anything"
    if ran.refused is not None:
        return "crashed", f"it got no answer from its model: {ran.refused}"
    return "finished", None


def _last_line(ended: Ended) -> str:
    for printed in (ended.errors, ended.output):
        text = printed.content[-4096:].decode(errors="replace").strip()
        if text:
            return text.splitlines()[-1].strip()[:500]
    return "it printed nothing"


def _cage(assignment: Assignment) -> Cage:
    if not isinstance(assignment.cage, Cage):
        raise MachineFailed("A program of others needs a cage that closeloop has made.")
    return assignment.cage


def _search(cage: Cage, installed: Installed) -> dict[str, str]:
    path = cage.sandbox.view.env["PATH"].split(":")
    return {"PATH": ":".join([*path, *(each for each in installed.search if each not in path)])}


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.partition("-")[0].split(".") if part.isdigit()]
