"""The one way in which programs of others work: in a cage, with a gateway for a network.

    find ──► prepare its home ──► run, watched ──► gather what it left ──► say how it ended

What the program does badly is its exit; only what the user must mend is raised.
"""

from __future__ import annotations

import functools
import json
import shlex
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import msgspec

from closeloop.agents.agent_adapter import (
    FEEDBACK_QUESTION,
    Adapter,
    AgentCall,
    AgentCallRequest,
    AgentReport,
    InstalledProgram,
    compute_feedback_seconds,
    find_installed_program,
)
from closeloop.agents.trace_recorder import clean_for_storage, shorten_middle
from closeloop.records.attempt import Exit, Usage
from closeloop.records.errors import BadInput, Fault, MachineFailed, OutOfBudget, unknown_name_error
from closeloop.records.protocols import Assignment, ModelProxy, Recording, Work
from closeloop.records.record import Record
from closeloop.records.session import Exchange
from closeloop.records.task import Limits
from closeloop.records.trace import Trace
from closeloop.sandbox.program_execution import ProgramResult
from closeloop.sandbox.workspace_layout import SandboxPort, SharedFolder
from closeloop.sandbox.workspace_sandbox import WorkspaceSandbox

# The files that an agent left about its work, brought out of its cage.

MAX_RECORDING_BYTES = 64 << 20
GATHER_SECONDS = 20.0
_FILE_HEADER = struct.Struct(">IQ")


async def gather_recordings(
    cage: WorkspaceSandbox, patterns: Sequence[str]
) -> tuple[Recording, ...]:
    """Ordinary files below the home folder that the patterns mean, as many as there is room for.

    They are read from inside, where a path leads nowhere that the agent could not go itself.
    """
    if not patterns:
        return ()
    specification = {"root": cage.home, "patterns": list(patterns), "bytes": MAX_RECORDING_BYTES}
    argv = [*_gatherer_command(), json.dumps(specification)]
    ended = await cage.execute_command(argv, seconds=GATHER_SECONDS, keep=MAX_RECORDING_BYTES)
    return tuple(_unpack_recordings(ended.output.content))


def _unpack_recordings(content: bytes) -> Iterator[Recording]:
    """Whatever came, up to where it does not make sense any more."""
    offset = 0
    while len(content) - offset >= _FILE_HEADER.size:
        name, size = _FILE_HEADER.unpack_from(content, offset)
        start = offset + _FILE_HEADER.size
        offset = start + name + size
        if offset > len(content):
            return
        path = content[start : start + name].decode(errors="replace")
        yield Recording(path=path, content=content[start + name : offset])


@functools.cache
def _gatherer_command() -> tuple[str, ...]:
    source = Path(__file__).with_name("gatherer.py").read_text(encoding="utf-8")
    return (sys.executable, "-I", "-S", "-c", source)


GATEWAY_PORT = 8017
"""Where a program finds the gateway on the loopback of its cage."""
MAX_PRINTED_BYTES = 16 << 20
LOOK_SECONDS, LINGER_SECONDS, CLOSING_SECONDS = 0.25, 3.0, 0.05
"""Seconds between looks, that a program may linger when it is done, and to ask if all is over."""
FOREVER_SECONDS = 1e9
MIN_ERROR_STATUS = 400
MAX_ARGUMENT_BYTES = 128 << 10
"""Bytes that Linux takes for one argument."""
SHARED_SETTINGS = ("arguments", "program", "version")

AgentSettings = Mapping[str, str | int | float | bool]


class AgentWatcher:
    """Knows when a program is to be stopped: done, idle, or with nobody left to talk to."""

    def __init__(self, done: bytes | None, door: ModelProxy | None, idle_seconds: float) -> None:
        self.closed: OutOfBudget | Fault | None = None
        self._done = done
        self._door = door
        self._idle = idle_seconds
        self._tail = b""
        self._finished: float | None = None
        self._active = time.monotonic()
        self._asked = 0

    def receive_output(self, chunk: bytes) -> None:
        self._active = time.monotonic()
        if self._done is not None:
            if self._finished is None and self._done in self._tail + chunk:
                self._finished = self._active
            self._tail = (self._tail + chunk)[-len(self._done) :]

    async def wait_until_over(self) -> str:
        async with anyio.create_task_group() as group:
            if self._door is not None:
                group.start_soon(self._await_closing, self._door)
            why = await self._wait_for_reason()
            group.cancel_scope.cancel()
        return why

    async def _wait_for_reason(self) -> str:
        while True:
            if (why := self._find_stop_reason()) is not None:
                return why
            await anyio.sleep(LOOK_SECONDS)

    async def _await_closing(self, door: ModelProxy) -> None:
        self.closed = await door.closed()

    def _find_stop_reason(self) -> str | None:
        now = time.monotonic()
        door = self._door
        # Who waits for an answer is not idle: the provider may be slow, or let all wait in turn.
        if door is not None and (door.busy or len(door.exchanges) != self._asked):
            self._asked, self._active = len(door.exchanges), now
        if self.closed is not None:
            return "closed"
        if self._finished is not None and now - self._finished > LINGER_SECONDS:
            return "done"
        return "idle" if now - self._active > self._idle else None


class ProgramRun(Record):
    """A program that was started and is gone."""

    ended: ProgramResult
    closed: OutOfBudget | Fault | None
    asked: bool | None
    """Whether it asked its model anything; None where it has none."""
    refused: str | None = None
    """Why not one of its requests had an answer, where that is so."""


class HeadlessAgent:
    """An agent that is a program of others."""

    def __init__(self, adapter: Adapter, settings: AgentSettings | None = None) -> None:
        self.adapter = adapter
        self.settings: AgentSettings = settings or {}

    @property
    def name(self) -> str:
        return self.adapter.name

    @property
    def version(self) -> str | None:
        installed = self.locate_program()
        return installed.version if installed else None

    def prompt(self, system: str | None) -> tuple[str, str]:
        """What is added to the program's own prompt, which only its version can stand for."""
        return system or "", ""

    def locate_program(self) -> InstalledProgram | None:
        """The program, where it is on this machine."""
        program = str(self.settings.get("program", self.adapter.program))
        if not self.adapter.program:
            program = (split_setting(program, "program") or [""])[0]
        return find_installed_program(program, self.adapter.package) if program else None

    def with_settings(self, settings: AgentSettings) -> HeadlessAgent:
        """The same agent for a variant; BadInput where its settings or the program are wrong."""
        known = (*SHARED_SETTINGS, *self.adapter.settings)
        for name in settings:
            if name not in known:
                raise unknown_name_error(f"setting of the agent {self.name}", name, known)
        split_setting(settings.get("arguments", ""), "arguments")
        agent = type(self)(self.adapter, settings)
        installed = agent.require_program()
        wanted_version = settings.get("version")
        if wanted_version is not None and installed.version != str(wanted_version):
            raise BadInput(
                f"The agent {self.name} is here in version {installed.version or 'unknown'}, not"
                f" {wanted_version} as the variant says: install that one, or change the setting"
                " `version`."
            )
        oldest, installed_version = self.adapter.oldest, installed.version
        if (
            oldest is not None
            and installed_version is not None
            and _version_numbers(installed_version) < _version_numbers(oldest)
        ):
            raise BadInput(
                f"The agent {self.name} is here in version {installed_version}, and {oldest} is the"
                f" first that works: run `{self.adapter.install}`."
            )
        return agent

    def require_program(self) -> InstalledProgram:
        installed = self.locate_program()
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
        program_run = await self.run_program(assignment, assignment.prompt, limits.seconds)
        recordings = await gather_recordings(_require_sandbox(assignment), self.adapter.recordings)
        if self.adapter.prints:
            recordings += (
                Recording(path="printed.jsonl", content=program_run.ended.output.content),
            )
        report = self.adapter.understand(program_run.ended.output.content, recordings)
        exit_, cause = classify_exit(program_run, report, limits)
        feedback = None
        if assignment.feedback and exit_ == "finished" and self.adapter.again:
            feedback = await self.ask_for_feedback(
                assignment, compute_feedback_seconds(limits, began)
            )
        return Work(
            exit=exit_,
            cause=None if cause is None else clean_for_storage(shorten_middle(cause)),
            summary=None if report.text is None else clean_for_storage(shorten_middle(report.text)),
            trace=Trace(reader=self.name, reader_version=1),
            usage=assignment.door.usage if assignment.door else Usage(),
            recordings=recordings,
            feedback=feedback,
        )

    async def ask_for_feedback(self, assignment: Assignment, seconds: float) -> str | None:
        """What the agent lacked, by its own account; the workspace cannot be written meanwhile."""
        try:
            program_run = await self.run_program(assignment, FEEDBACK_QUESTION, seconds, again=True)
            recordings = await gather_recordings(
                _require_sandbox(assignment), self.adapter.recordings
            )
        except MachineFailed:  # the work itself is done
            return None
        report = self.adapter.understand(program_run.ended.output.content, recordings)
        ended_well = classify_exit(program_run, report, assignment.limits)[0] == "finished"
        return (
            clean_for_storage(shorten_middle(report.text)) if ended_well and report.text else None
        )

    async def run_program(
        self, assignment: Assignment, prompt: str, seconds: float, *, again: bool = False
    ) -> ProgramRun:
        """Run it once in its cage, watched."""
        installed, door = self.require_program(), assignment.door
        cage, address = equip_sandbox(
            _require_sandbox(assignment), installed, door, assignment.limits
        )
        use = AgentCallRequest(
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
        require_short_arguments(call)
        await write_agent_files(cage, call)
        if again:
            cage = cage.as_read_only()
        watch = AgentWatcher(self.adapter.done, door, assignment.limits.idle_seconds)
        exchanges_before = len(door.exchanges) if door else 0
        extra_arguments = split_setting(self.settings.get("arguments", ""), "arguments")
        ended = await cage.execute_command(
            [installed.path, *call.arguments, *extra_arguments],
            seconds=seconds,
            stdin=None if call.stdin is None else call.stdin.encode(errors="replace"),
            env=_search_path(cage, installed) | dict(call.env),
            keep=MAX_PRINTED_BYTES,
            watcher=watch,
        )
        if door is not None and watch.closed is None:
            with anyio.move_on_after(CLOSING_SECONDS):  # it may have ended because it was refused
                watch.closed = await door.closed()
        return ProgramRun(
            ended=ended,
            closed=watch.closed,
            asked=None if door is None else len(door.exchanges) > exchanges_before,
            refused=None
            if door is None
            else find_unanswered_cause(door.exchanges, exchanges_before),
        )


def split_setting(line: object, name: str) -> list[str]:
    """A setting that is split as a shell does."""
    try:
        return shlex.split(str(line))
    except ValueError as error:
        raise BadInput(f"The setting `{name}` cannot be split into words: {error}.") from error


def equip_sandbox(
    cage: WorkspaceSandbox, installed: InstalledProgram, door: ModelProxy | None, limits: Limits
) -> tuple[WorkspaceSandbox, str]:
    """A cage that shows the program and leads to the door, and the address to find it at."""
    view = cage.sandbox.view
    visible_paths = [*view.readable, *(link for link, _ in view.links)]
    shares = tuple(
        SharedFolder(source=path, target=path)
        for path in installed.shown
        if not any(path == each or path.startswith(each + "/") for each in visible_paths)
    )
    # How long it may be silent is judged by its watch, who also knows of its talk with the model.
    limits = msgspec.structs.replace(limits, idle_seconds=FOREVER_SECONDS)
    if door is None:
        return cage.with_access(shares, (), limits), "http://127.0.0.1:1"
    if cage.sandbox.isolated:
        address = f"http://127.0.0.1:{GATEWAY_PORT}"
        return cage.with_access(
            shares, (SandboxPort(number=GATEWAY_PORT, socket=door.socket),), limits
        ), address
    number = urlsplit(door.address).port or 0
    return cage.with_access(
        shares, (SandboxPort(number=number, socket=door.socket),), limits
    ), door.address


def require_short_arguments(call: AgentCall) -> None:
    """MachineFailed where a text is too long for the way in which the program takes it."""
    longest = max((len(each.encode(errors="replace")) for each in call.arguments), default=0)
    if longest >= MAX_ARGUMENT_BYTES:
        raise MachineFailed(
            f"This agent takes a prompt of {longest:,} bytes as an argument, which may have "
            f"{MAX_ARGUMENT_BYTES:,}: shorten it, or choose an agent that reads it from a file."
        )


async def write_agent_files(cage: WorkspaceSandbox, call: AgentCall) -> None:
    """The program's configuration."""
    for path, text in call.files.items():
        try:
            await cage.write(f"{cage.home}/{path}", text.encode(errors="replace"))
        except OSError as error:
            raise MachineFailed(f"The agent's home could not be prepared: {error}.") from error


def find_unanswered_cause(exchanges: Sequence[Exchange], first: int) -> str | None:
    """Why there was no answer to any request from that one on; None where there was one."""
    last = None
    for number in range(first, len(exchanges)):
        last = exchanges[number]
        if last.status < MIN_ERROR_STATUS and last.cause is None:
            return None
    return None if last is None else last.cause or f"status {last.status}"


def classify_exit(ran: ProgramRun, said: AgentReport, limits: Limits) -> tuple[Exit, str | None]:
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
        return "crashed", f"exit code {ended.exit_code}: {_last_printed_line(ended)}"
    if ran.asked is False:
        return "gave_up", "it ended without asking its model anything"
    if ran.refused is not None:
        return "crashed", f"it got no answer from its model: {ran.refused}"
    return "finished", None


def _last_printed_line(ended: ProgramResult) -> str:
    for printed in (ended.errors, ended.output):
        text = printed.content[-4096:].decode(errors="replace").strip()
        if text:
            return text.splitlines()[-1].strip()[:500]
    return "it printed nothing"


def _require_sandbox(assignment: Assignment) -> WorkspaceSandbox:
    if not isinstance(assignment.cage, WorkspaceSandbox):
        raise MachineFailed("A program of others needs a cage that closeloop has made.")
    return assignment.cage


def _search_path(cage: WorkspaceSandbox, installed: InstalledProgram) -> dict[str, str]:
    path = cage.sandbox.view.env["PATH"].split(":")
    return {"PATH": ":".join([*path, *(each for each in installed.search if each not in path)])}


def _version_numbers(version: str) -> list[int]:
    return [int(part) for part in version.partition("-")[0].split(".") if part.isdigit()]
