"""Runs wrapped programs as agents: in a sandbox, with the gateway as the only network.

find ──► prepare its home ──► run, watched ──► collect its files ──► classify its exit

A mistake of the program is its exit; only what the user must fix is raised.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import anyio
import msgspec

from closeloop.records.attempt import Exit, Usage
from closeloop.records.errors import BadInput, Fault, MachineFailed, OutOfBudget, unknown_name_error
from closeloop.records.protocols import Assignment, ModelProxy, Recording, Work
from closeloop.records.record import Record
from closeloop.records.task import Limits
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Exchange,
    Handoff,
    Lane,
    Message,
    ModelReply,
    ModelToolCall,
    Note,
    Read,
    ToolUse,
    Trace,
    Turn,
)
from closeloop.sandbox.machine_view import SandboxPort, SharedFolder
from closeloop.sandbox.program_execution import ProgramResult
from closeloop.sandbox.workspace_sandbox import WorkspaceSandbox

# The trace of an attempt, written during the attempt.
#
# A model's output is untrusted: it is validated and bounded here before use.

MAX_RESULT_CHARS = 30_000
"""Characters of one tool result, as the model and the trace receive it."""
MAX_MESSAGE_CHARS = 1_000_000
"""Characters of one message, and bytes of one call's arguments."""
INVALID_NAME_CHARS = re.compile(r"[^a-zA-Z0-9_-]")
"""Characters in a tool's name that providers reject."""
CUT_OFF_MESSAGE = "the reply was cut off at the length limit in this call; send it again, smaller"


def shorten_middle(text: str, limit: int = MAX_RESULT_CHARS) -> str:
    """Return the text, or its start and end with the number of characters left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, so that the text can be encoded as UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def clean_for_storage(text: str) -> str:
    """Return the text fit for a database column: valid, bounded and without NUL."""
    return shorten_middle(replace_surrogates(text).replace("\0", "\ufffd"))


def sanitise_reply(reply: ModelReply) -> ModelReply:
    """Return the reply fit to be stored, sent back and acted on."""
    calls = [_sanitise_call(call) for call in reply.calls]
    if calls and reply.stop == "length":
        calls[-1] = msgspec.structs.replace(calls[-1], arguments={}, malformed=CUT_OFF_MESSAGE)
    text = shorten_middle(replace_surrogates(reply.text), MAX_MESSAGE_CHARS).strip()
    return msgspec.structs.replace(reply, text=text, calls=tuple(calls))


def _sanitise_call(call: ModelToolCall) -> ModelToolCall:
    """Return the call, marked as malformed if its arguments cannot be encoded."""
    malformed, arguments = call.malformed, call.arguments
    try:
        size = len(msgspec.json.encode(arguments))
        if size > MAX_MESSAGE_CHARS:
            malformed = f"{size} bytes of arguments, of {MAX_MESSAGE_CHARS} allowed"
    except (TypeError, ValueError, RecursionError) as error:
        malformed = f"arguments that cannot be written as JSON: {error}"
    if malformed is not None:
        arguments, malformed = {}, shorten_middle(replace_surrogates(malformed), 1_000)
    return ModelToolCall(
        id=replace_surrogates(call.id)[:200],
        name=INVALID_NAME_CHARS.sub("_", call.name)[:64] or "_",
        arguments=arguments,
        malformed=malformed,
    )


MAX_TRACE_CHARS = 64_000_000
"""Characters: a hundred times the trace of honest work."""

Clock = Callable[[], datetime]
RecordedAction = Command | Edit | Read | ToolUse | Handoff
MessageIntent = Literal["request", "question", "answer", "claim"]


class TraceRecorder:
    """All lanes of one attempt. Events are numbered by their start."""

    def __init__(self, agent: str, clock: Clock) -> None:
        self.agent = agent
        self.clock = clock
        self.events: list[AnyEvent] = []
        self.lanes: list[LaneRecorder] = []
        self.size = 0

    def open_lane(self, parent: str | None = None) -> LaneRecorder:
        """Open a new lane: the root first, then sub-agents."""
        lane = LaneRecorder(self, f"sub-{len(self.lanes)}" if self.lanes else "root", parent)
        self.lanes.append(lane)
        return lane

    @property
    def turns(self) -> int:
        return sum(len(lane.turns) for lane in self.lanes)

    def build_trace(self) -> Trace:
        """Build the trace so far; an action in progress has no result yet."""
        lanes = tuple(
            Lane(id=lane.id, parent=lane.parent, agent=self.agent, turns=tuple(lane.turns))
            for lane in self.lanes
        )
        return Trace(reader=self.agent, reader_version=1, lanes=lanes, events=tuple(self.events))


class LaneRecorder:
    """One lane of a recorder."""

    def __init__(self, recorder: TraceRecorder, name: str, parent: str | None) -> None:
        self.recorder = recorder
        self.id = name
        self.parent = parent
        self.turns: list[Turn] = []

    def add_turn(self, reply: ModelReply, started_at: datetime) -> None:
        """Add one provider message; the following events belong to it."""
        seconds = (self.recorder.clock() - started_at).total_seconds()
        self.turns.append(
            Turn(usage=reply.usage, model=reply.model, at=started_at, seconds=seconds)
        )

    def add_message(
        self,
        role: Literal["user", "agent", "system"],
        text: str,
        intent: MessageIntent | None = None,
        call: str | None = None,
    ) -> None:
        self._add_event(Message, role=role, text=text, intent=intent, call=call)

    def add_note(self, text: str, about: str, call: str | None = None) -> None:
        self._add_event(Note, text=clean_for_storage(text), about=about, call=call)

    @contextmanager
    def record_action(self, kind: type[RecordedAction], **known: Any) -> Iterator[dict[str, Any]]:
        """Record an action from its start; the body fills in its result."""
        if self.recorder.size > MAX_TRACE_CHARS:
            raise OutOfBudget("trace limit")
        event, result = self._add_event(kind, **known), dict[str, Any]()
        try:
            yield result
        except Exception as error:
            result = _failure_fields(kind, clean_for_storage(str(error)))
            raise
        except BaseException:
            result = _failure_fields(kind, "interrupted")
            raise
        finally:
            self._end_event(event, result)

    def _add_event(self, kind: type[AnyEvent], **fields: Any) -> AnyEvent:
        recorder = self.recorder
        event = kind(
            number=len(recorder.events) + 1,
            lane=self.id,
            turn=len(self.turns) or None,
            at=recorder.clock(),
            **fields,
        )
        recorder.events.append(event)
        recorder.size += _count_text_chars(fields)
        return event

    def _end_event(self, event: AnyEvent, result: dict[str, Any]) -> None:
        recorder = self.recorder
        assert event.at is not None
        seconds = (recorder.clock() - event.at).total_seconds()
        recorder.events[event.number - 1] = msgspec.structs.replace(
            event, seconds=seconds, **result
        )
        recorder.size += _count_text_chars(result)


def _failure_fields(kind: type[RecordedAction], reason: str) -> dict[str, Any]:
    if kind is Command:
        return {"stopped": reason}
    if kind is ToolUse:
        return {"ok": False, "output": reason}
    return {"ok": False} if kind is Handoff else {"ok": False, "error": reason}


def _count_text_chars(fields: dict[str, Any]) -> int:
    return sum(len(value) for value in fields.values() if isinstance(value, str))


# How an external program is called, how its output is read, and where it is installed.


MAX_TAIL_BYTES = 4 << 20
"""Bytes at the end of a program's output that are searched for its last message."""
PLACEHOLDER_KEY = "closeloop"
"""Passed to programs that require a key; the real key never reaches them."""


class AgentCallRequest(Record):
    """The input of a program's call."""

    prompt: str
    system: str | None
    model: str
    address: str
    """Address of the gateway, `http://127.0.0.1:PORT`, which accepts every format."""
    home: str
    workspace: str
    turns: int
    settings: Mapping[str, str | int | float | bool]
    again: bool = False
    """Whether to continue the existing session."""


class AgentCall(Record):
    """How to start a program."""

    arguments: Sequence[str]
    env: Mapping[str, str] = {}
    files: Mapping[str, str] = {}
    """Files to write before, by paths relative to the home folder."""
    stdin: str | None = None


class AgentReport(Record):
    """How it ended, according to itself."""

    text: str | None = None
    """Its last message."""
    exit: Exit | None = None
    """Set if it says more than the exit code."""
    cause: str | None = None


class Adapter(Record):
    """One wrapped program."""

    name: str
    program: str
    """Its name in PATH."""
    package: str | None = None
    """The package that contains it, used to find its version."""
    install: str
    """The command that installs it."""
    oldest: str | None = None
    """The first version known to work."""
    call: Callable[[AgentCallRequest], AgentCall]
    understand: Callable[[bytes, Sequence[Recording]], AgentReport]
    """Reads its output and recordings."""
    recordings: Sequence[str] = ()
    """Patterns below the home folder; a star also matches folders."""
    prints: bool = False
    """Whether its output is its recording."""
    done: bytes | None = None
    """Printed when the work is done, by a program that does not exit."""
    again: bool = True
    """Whether it can continue a session."""
    needs_model: bool = True
    settings: Sequence[str] = ()
    """Names of its own settings."""


def iterate_last_json_lines(printed: bytes) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects printed one per line, last first."""
    for line in reversed(printed[-MAX_TAIL_BYTES:].splitlines()):
        if line[:1] == b"{":
            try:
                value = msgspec.json.decode(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                yield value


def find_text(value: Any, *path: str) -> str | None:
    """Return the text at that path, if there is one."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) and value.strip() else None


def join_text_parts(content: Any) -> str | None:
    """Return the text in a provider's list of parts."""
    parts = content if isinstance(content, list) else []
    return "".join(find_text(part, "text") or "" for part in parts) or None


def openai_environment(use: AgentCallRequest) -> dict[str, str]:
    """Return variables that point OpenAI's libraries and similar ones to the gateway."""
    address = f"{use.address}/v1"
    return {
        "OPENAI_BASE_URL": address,
        "OPENAI_API_BASE": address,
        "OPENAI_API_KEY": PLACEHOLDER_KEY,
    }


# Questions to every agent after its work.

FEEDBACK_QUESTION = """\
The work is over; change nothing any more. For those who write such requests and look after this \
repository: which information, context or instructions were missing, wrong or hard to find, so \
that you lost time or had to guess? Answer in a few plain sentences, the most useful first. If \
nothing was missing, say so.
"""
MAX_FEEDBACK_SECONDS, GRACE_SECONDS = 600.0, 20.0
"""Seconds for the answer, and by how many it may exceed the attempt's time."""


def compute_feedback_seconds(limits: Limits, started: float) -> float:
    """Return how many seconds an agent may take to answer; `started` is by the monotonic clock."""
    remaining = limits.seconds + GRACE_SECONDS - (time.monotonic() - started)
    return max(1.0, min(MAX_FEEDBACK_SECONDS, remaining))


# External programs on this machine: location, version, and requirements.

VERSION_SECONDS = 60.0
MAX_SHEBANG_BYTES = 256
_NUMBER = re.compile(r"\d+(?:\.\d+){1,3}[\w.+-]{0,40}")


class InstalledProgram(Record):
    """An installed program."""

    path: str
    """Resolved, without links."""
    version: str | None
    shown: tuple[str, ...]
    """Paths that a sandbox must expose for it to run."""
    search: tuple[str, ...] = ()
    """Folders of interpreters that it looks up by name."""


def find_installed_program(name: str, package: str | None = None) -> InstalledProgram | None:
    """Find a program by its path or its name in PATH; None if there is none."""
    program_path = shutil.which(str(Path(name).expanduser()))
    if program_path is None:
        return None
    real_path = os.path.realpath(program_path)
    return _inspect_program(real_path, package, Path(real_path).stat().st_mtime_ns)


@functools.cache
def _inspect_program(real_path: str, package: str | None, changed: int) -> InstalledProgram:
    parts, search = _find_needed_paths(real_path)
    # Asking an arbitrary program for its version is unsafe: a hash of its content is used.
    version = (
        (_packaged_version(real_path, package) or _printed_version(real_path))
        if package
        else _digest_file(real_path)
    )
    paths = tuple(dict.fromkeys(parts))
    return InstalledProgram(path=real_path, version=version, shown=paths, search=tuple(search))


def _find_needed_paths(path: str) -> tuple[list[str], list[str]]:
    """Return the paths of a file's installation and of its interpreter, and folders to search."""
    paths, search_folders = _installation_paths(path), []
    shebang = _read_shebang(path)
    if shebang and Path(shebang[0]).name == "env":
        names = [word for word in shebang[1:] if not word.startswith("-") and "=" not in word]
        shebang = [shutil.which(names[0]) or ""] if names else []
        search_folders += [str(Path(shebang[0]).parent)] if shebang and shebang[0] else []
    if shebang and Path(shebang[0]).is_file():
        paths += [
            *_installation_paths(shebang[0]),
            *_installation_paths(os.path.realpath(shebang[0])),
        ]
    return paths, search_folders


def _installation_paths(path: str) -> list[str]:
    """Return all packages of a Node program, the environment of a Python one, else the file."""
    parents = Path(path).parents
    modules = [folder for folder in parents if folder.name == "node_modules"]
    if modules:
        return [str(modules[-1])]
    for folder in parents:
        if (folder / "pyvenv.cfg").is_file():
            return _prefix_folders(folder) if Path.home().is_relative_to(folder) else [str(folder)]
    bin_, prefix = parents[0], parents[0].parent
    if bin_.name == "bin" and any((prefix / "lib").glob("python3*")):
        return _prefix_folders(prefix)  # an interpreter needs its library
    return [path]


def _prefix_folders(folder: Path) -> list[str]:
    """Return only the program folders of an installation, which may be a home or the whole
    system."""
    names = ("bin", "lib", "lib64", "include")
    return [str(folder / name) for name in names if (folder / name).is_dir()]


def _read_shebang(path: str) -> list[str]:
    with Path(path).open("rb") as file:
        head = file.read(MAX_SHEBANG_BYTES)
    return os.fsdecode(head[2:].splitlines()[0]).split() if head[:2] == b"#!" else []


def _digest_file(real_path: str) -> str:
    with Path(real_path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def _packaged_version(real_path: str, package: str) -> str | None:
    """Return the version from the package, without starting the program."""
    for folder in Path(real_path).parents:
        manifest = folder / "package.json"
        if (
            manifest.is_file()
            and (package_manifest := _read_package_manifest(manifest)).get("name") == package
        ):
            return str(package_manifest.get("version") or "") or None
        if (folder / "pyvenv.cfg").is_file():
            name = re.sub(r"[-_.]+", "_", package)
            for dist_info in folder.glob(f"lib/python3*/site-packages/{name}-*.dist-info"):
                return dist_info.name.removesuffix(".dist-info").rpartition("-")[2]
    return None


def _read_package_manifest(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _printed_version(real_path: str) -> str | None:
    """Return the version that the program prints, run in an empty home."""
    with tempfile.TemporaryDirectory(prefix="closeloop-version-") as folder:
        env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": folder, "TERM": "dumb"}
        try:
            completed = subprocess.run(
                [real_path, "--version"],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=VERSION_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
    version_match = _NUMBER.search(completed.stdout[:4096].decode(errors="replace"))
    return version_match[0] if version_match else None


# The files that an agent left about its work, copied out of its sandbox.

MAX_RECORDING_BYTES = 64 << 20
GATHER_SECONDS = 20.0
_FILE_HEADER = struct.Struct(">IQ")


async def gather_recordings(
    sandbox: WorkspaceSandbox, patterns: Sequence[str]
) -> tuple[Recording, ...]:
    """Collect regular files below the home folder that match the patterns, within the size limit.

    They are read from inside the sandbox, where no path leads outside.
    """
    if not patterns:
        return ()
    specification = {"root": sandbox.home, "patterns": list(patterns), "bytes": MAX_RECORDING_BYTES}
    argv = [*_gatherer_command(), json.dumps(specification)]
    result = await sandbox.execute_command(argv, seconds=GATHER_SECONDS, keep=MAX_RECORDING_BYTES)
    return tuple(_unpack_recordings(result.output.content))


def _unpack_recordings(content: bytes) -> Iterator[Recording]:
    """Yield what can be parsed."""
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
"""Loopback port of the gateway inside the sandbox."""
MAX_PRINTED_BYTES = 16 << 20
LOOK_SECONDS, LINGER_SECONDS, CLOSING_SECONDS = 0.25, 3.0, 0.05
"""Seconds between polls, that a finished program may linger, and to ask whether all is over."""
FOREVER_SECONDS = 1e9
MIN_ERROR_STATUS = 400
MAX_ARGUMENT_BYTES = 128 << 10
"""Maximum bytes of one argument on Linux."""
SHARED_SETTINGS = ("arguments", "program", "version")

AgentSettings = Mapping[str, str | int | float | bool]


class AgentWatcher:
    """Decides when to stop a program: done, idle, or without a model."""

    def __init__(
        self, end_marker: bytes | None, proxy: ModelProxy | None, idle_seconds: float
    ) -> None:
        self.closed: OutOfBudget | Fault | None = None
        self._done = end_marker
        self._door = proxy
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
            reason = await self._wait_for_reason()
            group.cancel_scope.cancel()
        return reason

    async def _wait_for_reason(self) -> str:
        while True:
            if (reason := self._find_stop_reason()) is not None:
                return reason
            await anyio.sleep(LOOK_SECONDS)

    async def _await_closing(self, proxy: ModelProxy) -> None:
        self.closed = await proxy.closed()

    def _find_stop_reason(self) -> str | None:
        now = time.monotonic()
        proxy = self._door
        # An agent that waits for an answer is not idle: the provider may be slow or limit requests.
        if proxy is not None and (proxy.busy or len(proxy.exchanges) != self._asked):
            self._asked, self._active = len(proxy.exchanges), now
        if self.closed is not None:
            return "closed"
        if self._finished is not None and now - self._finished > LINGER_SECONDS:
            return "done"
        return "idle" if now - self._active > self._idle else None


class ProgramRun(Record):
    """A finished run of a program."""

    ended: ProgramResult
    closed: OutOfBudget | Fault | None
    asked: bool | None
    """Whether it sent any request to its model; None without a model."""
    refused: str | None = None
    """Why none of its requests was answered, if so."""


class HeadlessAgent:
    """An agent that is a wrapped program."""

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
        """Return what is added to the program's own prompt, which is identified by its version."""
        return system or "", ""

    def locate_program(self) -> InstalledProgram | None:
        """Find the program on this machine."""
        program = str(self.settings.get("program", self.adapter.program))
        if not self.adapter.program:
            program = (split_setting(program, "program") or [""])[0]
        return find_installed_program(program, self.adapter.package) if program else None

    def with_settings(self, settings: AgentSettings) -> HeadlessAgent:
        """Return the agent with a variant's settings; BadInput if the settings or the program are
        wrong."""
        known_settings = (*SHARED_SETTINGS, *self.adapter.settings)
        for name in settings:
            if name not in known_settings:
                raise unknown_name_error(f"setting of the agent {self.name}", name, known_settings)
        split_setting(settings.get("arguments", ""), "arguments")
        agent = type(self)(self.adapter, settings)
        installed = agent.require_program()
        wanted_version = settings.get("version")
        if wanted_version is not None and installed.version != str(wanted_version):
            raise BadInput(
                f"The agent {self.name} is installed in version "
                f"{installed.version or 'unknown'}, but the variant requires "
                f"{wanted_version}: install that version, or change the setting "
                "`version`."
            )
        oldest, installed_version = self.adapter.oldest, installed.version
        if (
            oldest is not None
            and installed_version is not None
            and _version_numbers(installed_version) < _version_numbers(oldest)
        ):
            raise BadInput(
                f"The agent {self.name} is installed in version {installed_version}, "
                f"but the oldest supported version is {oldest}: run "
                f"`{self.adapter.install}`."
            )
        return agent

    def require_program(self) -> InstalledProgram:
        installed = self.locate_program()
        if installed is None:
            program = self.settings.get("program", self.adapter.program)
            raise BadInput(
                f"The agent {self.name} is not installed: there is no program "
                f"{str(program)!r}. Run `{self.adapter.install}`, or set its path in "
                "the setting `program`."
            )
        return installed

    async def work(self, assignment: Assignment) -> Work:
        """Run the program to its end, and collect its files."""
        limits, started = assignment.limits, time.monotonic()
        if assignment.model_proxy is None and self.adapter.needs_model:
            raise BadInput(f"The agent {self.name} needs a model: give one with --model.")
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
                assignment, compute_feedback_seconds(limits, started)
            )
        return Work(
            exit=exit_,
            cause=None if cause is None else clean_for_storage(shorten_middle(cause)),
            summary=None if report.text is None else clean_for_storage(shorten_middle(report.text)),
            trace=Trace(reader=self.name, reader_version=1),
            usage=assignment.model_proxy.usage if assignment.model_proxy else Usage(),
            recordings=recordings,
            feedback=feedback,
        )

    async def ask_for_feedback(self, assignment: Assignment, seconds: float) -> str | None:
        """Ask what the agent lacked; the workspace is read-only meanwhile."""
        try:
            program_run = await self.run_program(
                assignment, FEEDBACK_QUESTION, seconds, is_follow_up=True
            )
            recordings = await gather_recordings(
                _require_sandbox(assignment), self.adapter.recordings
            )
        except MachineFailed:  # the work itself is complete
            return None
        report = self.adapter.understand(program_run.ended.output.content, recordings)
        ended_well = classify_exit(program_run, report, assignment.limits)[0] == "finished"
        return (
            clean_for_storage(shorten_middle(report.text)) if ended_well and report.text else None
        )

    async def run_program(
        self, assignment: Assignment, prompt: str, seconds: float, *, is_follow_up: bool = False
    ) -> ProgramRun:
        """Run it once in its sandbox, watched."""
        installed, proxy = self.require_program(), assignment.model_proxy
        sandbox, address = equip_sandbox(
            _require_sandbox(assignment), installed, proxy, assignment.limits
        )
        request = AgentCallRequest(
            prompt=prompt,
            system=assignment.system,
            model=proxy.name if proxy else "none",
            address=address,
            home=sandbox.home,
            workspace=sandbox.root,
            turns=assignment.limits.turns,
            settings=self.settings,
            again=is_follow_up,
        )
        call = self.adapter.call(request)
        require_short_arguments(call)
        await write_agent_files(sandbox, call)
        if is_follow_up:
            sandbox = sandbox.as_read_only()
        watcher = AgentWatcher(self.adapter.done, proxy, assignment.limits.idle_seconds)
        exchanges_before = len(proxy.exchanges) if proxy else 0
        extra_arguments = split_setting(self.settings.get("arguments", ""), "arguments")
        result = await sandbox.execute_command(
            [installed.path, *call.arguments, *extra_arguments],
            seconds=seconds,
            stdin=None if call.stdin is None else call.stdin.encode(errors="replace"),
            env=_search_path(sandbox, installed) | dict(call.env),
            keep=MAX_PRINTED_BYTES,
            watcher=watcher,
        )
        if proxy is not None and watcher.closed is None:
            with anyio.move_on_after(CLOSING_SECONDS):  # it may have ended because it was refused
                watcher.closed = await proxy.closed()
        return ProgramRun(
            ended=result,
            closed=watcher.closed,
            asked=None if proxy is None else len(proxy.exchanges) > exchanges_before,
            refused=None
            if proxy is None
            else find_unanswered_cause(proxy.exchanges, exchanges_before),
        )


def split_setting(line: object, name: str) -> list[str]:
    """Split a setting as a shell does."""
    try:
        return shlex.split(str(line))
    except ValueError as error:
        raise BadInput(f"The setting `{name}` cannot be split into words: {error}.") from error


def equip_sandbox(
    workspace_sandbox: WorkspaceSandbox,
    installed: InstalledProgram,
    proxy: ModelProxy | None,
    limits: Limits,
) -> tuple[WorkspaceSandbox, str]:
    """Return a sandbox with the program and the proxy, and the proxy's address in it."""
    view = workspace_sandbox.sandbox.view
    visible_paths = [*view.readable, *(link for link, _ in view.links)]
    shares = tuple(
        SharedFolder(source=path, target=path)
        for path in installed.shown
        if not any(
            path == visible_path or path.startswith(visible_path + "/")
            for visible_path in visible_paths
        )
    )
    # Its watcher limits silence, and also knows about its requests to the model.
    limits = msgspec.structs.replace(limits, idle_seconds=FOREVER_SECONDS)
    if proxy is None:
        return workspace_sandbox.with_access(shares, (), limits), "http://127.0.0.1:1"
    if workspace_sandbox.sandbox.isolated:
        address = f"http://127.0.0.1:{GATEWAY_PORT}"
        return workspace_sandbox.with_access(
            shares, (SandboxPort(number=GATEWAY_PORT, socket=proxy.socket),), limits
        ), address
    number = urlsplit(proxy.address).port or 0
    return workspace_sandbox.with_access(
        shares, (SandboxPort(number=number, socket=proxy.socket),), limits
    ), proxy.address


def require_short_arguments(call: AgentCall) -> None:
    """MachineFailed if a text is too long for an argument."""
    longest = max(
        (len(argument.encode(errors="replace")) for argument in call.arguments), default=0
    )
    if longest >= MAX_ARGUMENT_BYTES:
        raise MachineFailed(
            f"This agent takes its prompt of {longest:,} bytes as an argument, which "
            f"may have at most {MAX_ARGUMENT_BYTES:,}: shorten it, or choose an agent "
            "that reads it from a file."
        )


async def write_agent_files(sandbox: WorkspaceSandbox, call: AgentCall) -> None:
    """Write the program's configuration."""
    for path, text in call.files.items():
        try:
            await sandbox.write(f"{sandbox.home}/{path}", text.encode(errors="replace"))
        except OSError as error:
            raise MachineFailed(f"The agent's home could not be prepared: {error}.") from error


def find_unanswered_cause(exchanges: Sequence[Exchange], first: int) -> str | None:
    """Return why no request from that one on was answered; None if one was."""
    last = None
    for number in range(first, len(exchanges)):
        last = exchanges[number]
        if last.status < MIN_ERROR_STATUS and last.cause is None:
            return None
    return None if last is None else last.cause or f"status {last.status}"


def classify_exit(
    program_run: ProgramRun, report: AgentReport, limits: Limits
) -> tuple[Exit, str | None]:
    """Return the exit and, unless it succeeded, its cause."""
    result = program_run.ended
    if isinstance(program_run.closed, OutOfBudget):
        return "out_of_budget", str(program_run.closed)
    if program_run.closed is not None:
        return "machine", str(program_run.closed)
    if result.stopped == "out of time":
        return "out_of_time", "time limit"
    if result.stopped == "idle":
        return "idle", f"it produced no output and no request for {limits.idle_seconds:g} seconds"
    if result.stopped not in (None, "done"):
        return "crashed", result.stopped
    if report.exit is not None:
        return report.exit, report.cause or "it says so"
    if result.stopped is None and result.exit_code != 0:
        return "crashed", f"exit code {result.exit_code}: {_last_printed_line(result)}"
    if program_run.asked is False:
        return "gave_up", "it ended without a request to its model"
    if program_run.refused is not None:
        return "crashed", f"it got no reply from its model: {program_run.refused}"
    return "finished", None


def _last_printed_line(result: ProgramResult) -> str:
    for printed in (result.errors, result.output):
        text = printed.content[-4096:].decode(errors="replace").strip()
        if text:
            return text.splitlines()[-1].strip()[:500]
    return "it printed nothing"


def _require_sandbox(assignment: Assignment) -> WorkspaceSandbox:
    if not isinstance(assignment.sandbox, WorkspaceSandbox):
        raise MachineFailed("A program of others needs a cage that closeloop has made.")
    return assignment.sandbox


def _search_path(
    workspace_sandbox: WorkspaceSandbox, installed: InstalledProgram
) -> dict[str, str]:
    path = workspace_sandbox.sandbox.view.env["PATH"].split(":")
    return {
        "PATH": ":".join([*path, *(folder for folder in installed.search if folder not in path)])
    }


def _version_numbers(version: str) -> list[int]:
    return [int(part) for part in version.partition("-")[0].split(".") if part.isdigit()]
