"""Contract tests for authors of plug-ins: one function for each kind of plug-in."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import anyio
import msgspec

from closeloop.changes.change_sides import ChangeQuery, open_sides
from closeloop.changes.repository_index import inspect_change, open_index
from closeloop.git import run_git
from closeloop.judges.rubric import load_rubric
from closeloop.metrics.score_columns import build_catalogue, read_scorer_answer
from closeloop.plugins import load_plugins
from closeloop.process.trace_reading import build_reading
from closeloop.records.attempt import Attempt, Usage, sum_usage
from closeloop.records.change import Change, Inspection
from closeloop.records.errors import MachineFailed
from closeloop.records.evaluation import JudgeCase, PosedQuestion, RubricAnswer, Subtask, TaskOutput
from closeloop.records.finding import Finding, Unmeasured
from closeloop.records.protocols import (
    Agent,
    Assignment,
    ChangeCheck,
    Detector,
    Encoder,
    Judge,
    Reader,
    ScoredAttempt,
    Scorer,
    Work,
)
from closeloop.records.settings import CheckSettings, SandboxSettings
from closeloop.records.task import Limits, Task, Variant
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Handoff,
    Lane,
    Message,
    ModelReply,
    ModelRequest,
    Read,
    Session,
    Trace,
)
from closeloop.text.redaction import redact_record
from closeloop.text.untrusted import MAX_TEXT_CHARS, find_seals
from closeloop.traces.file_source import FileSource, find_owner, installed_readers, list_parts
from closeloop.traces.tool_calls import has_result

# The contract of agents, as a test that an agent's author can call.
#
# from closeloop.contracts import check_agent
#
# def test_the_agent_keeps_the_contract(): check_agent(agent)


DONE_REPLY = ModelReply(text="It is done.", usage=Usage(input_tokens=10, output_tokens=3))


class FixedReplyModel:
    """A model that gives these replies in order, and records its requests."""

    name = "replies"

    def __init__(self, *replies: ModelReply) -> None:
        self.replies = replies
        self.requests: list[ModelRequest] = []

    async def reply(self, request: ModelRequest) -> ModelReply:
        self.requests.append(request)
        if len(self.requests) > len(self.replies):
            raise MachineFailed("There are no more replies: give the model as many as are asked.")
        return self.replies[len(self.requests) - 1]


def check_agent(agent: Agent, replies: Sequence[ModelReply] = (DONE_REPLY,)) -> Work:
    """Run the agent with a model that gives these replies, and check its result."""
    work = anyio.run(_run_agent, agent, replies)
    check_work(work)
    return work


def check_work(work: Work) -> None:
    """Raise AssertionError if an agent's work is not what the rest of closeloop relies on."""
    trace = work.trace
    turns = [turn.usage for lane in trace.lanes for turn in lane.turns]
    _require_rule(
        work.exit == "finished" or work.cause, f"An exit {work.exit!r} has a cause in words."
    )
    _require_rule(work.usage == sum_usage(turns), "The usage of the work is the sum of its turns'.")
    _require_rule(trace.lanes, "There is at least one lane.")
    _require_rule(_is_storable(trace), "The trace can be stored: its texts are valid UTF-8.")
    _check_lanes(trace)
    _check_events(trace)


def _is_storable(trace: Trace) -> bool:
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(trace), type=Trace) == trace
    except (ValueError, TypeError, OverflowError):
        return False


def _check_lanes(trace: Trace) -> None:
    seen_lanes: set[str] = set()
    for lane in trace.lanes:
        _require_rule(lane.id not in seen_lanes, f"The lane {lane.id!r} is there once.")
        _require_rule(
            lane.parent is None or lane.parent in seen_lanes,
            f"Lane {lane.id!r} follows its parent.",
        )
        seen_lanes.add(lane.id)
    _require_rule(
        sum(lane.parent is None for lane in trace.lanes) == 1, "Exactly one lane is the root."
    )


def _check_events(trace: Trace) -> None:
    lanes = {lane.id: lane for lane in trace.lanes}
    numbers = [event.number for event in trace.events]
    _require_rule(
        numbers == list(range(1, len(numbers) + 1)), "Events are numbered from 1, without gaps."
    )
    times = [event.at for event in trace.events if event.at is not None]
    _require_rule(all(a <= b for a, b in pairwise(times)), "Events stand in the order they began.")
    for event in trace.events:
        lane = lanes.get(event.lane)
        _require_rule(lane is not None, f"Event {event.number} is in a lane of the trace.")
        turns = len(lane.turns) if lane is not None else 0
        is_known = event.turn is None or 1 <= event.turn <= turns
        _require_rule(is_known, f"Event {event.number} belongs to a turn of its lane.")
    for name in lanes:
        lane_turns = [event.turn for event in trace.events if event.lane == name and event.turn]
        _require_rule(
            lane_turns == sorted(lane_turns), f"The turns of lane {name!r} follow each other."
        )
    for event in trace.events:
        if isinstance(event, Handoff) and event.child is not None:
            child = lanes.get(event.child)
            _require_rule(
                child is not None and child.parent == event.lane,
                f"The handoff in event {event.number} names a lane that it is the parent of.",
            )
            first = next(
                (candidate for candidate in trace.events if candidate.lane == event.child), event
            )
            _require_rule(
                event.number <= first.number, f"Lane {event.child!r} begins after its handoff."
            )


def _require_rule(condition: object, rule: str) -> None:
    if not condition:
        raise AssertionError(rule)


async def _run_agent(agent: Agent, replies: Sequence[ModelReply]) -> Work:
    from closeloop.sandbox.workspaces import WorkspacePool

    limits = Limits(seconds=60, turns=len(replies) + 10)
    with tempfile.TemporaryDirectory(prefix="closeloop-contract-") as folder:
        async with (
            WorkspacePool(Path(folder), SandboxSettings(kind="none")) as workspaces,
            workspaces.open(None, limits) as workspace,
        ):
            assignment = Assignment(
                prompt="Say that it is done.",
                system=None,
                sandbox=workspace.sandbox,
                model=FixedReplyModel(*replies),
                variant=Variant(name="contract", agent=agent.name, limits=limits),
                limits=limits,
                answer=lambda question: None,
            )
            return await agent.work(assignment)


# The contract of readers, as a test that a reader's author can call.


DAMAGED_COPIES = 12
"""Number of damaged copies read of each recording."""
MAX_FIELD_BYTES = 1 << 20
"""Total bytes of the copies that lack one field."""
MAX_COPIED_BYTES = 1 << 20
"""Maximum bytes of a recording that is damaged; small ones show the same faults."""
_SECRET = "AKIA" + "QYLPMN5HHHFPZAM2"
"""Looks like a key but is none; split, so that it is not redacted here."""
_ODD_VALUES: tuple[Any, ...] = (None, True, -1, 1.5, 2**70, "", "x", [], {}, [None], {"type": 7})

FOREIGN_FILES: dict[str, bytes] = {
    "an empty file": b"",
    "binary": bytes(range(256)) * 64,
    "half a document": b'{"messages": [{"role": "user", "content": "hel',
    "lists nested too deeply": b"[" * 100_000 + b"]" * 100_000,
    "empty records": b"{}\n{}\n{}\n",
    "a package": b'{"name": "x", "version": "1.0.0", "scripts": {"test": "jest"}}',
    "logs of a service": b'{"level": "info", "msg": "GET /", "time": 1700000000}\n' * 9,
    "chats for training": b'{"messages": [{"role": "user", "content": "a"}]}\n' * 5,
    "bare chat lines": b'{"role": "user", "content": "a"}\n{"role": "assistant", "content": "b"}\n',
    "another tool's events": b'{"type": "event", "id": 1, "timestamp": "2026-01-01T00:00:00Z"}\n',
    "Markdown": b"# Notes\n\n> quoted\n\n```python\nprint()\n```\n",
}
"""Files that are no agent's recordings."""


def check_reader(
    reader: Reader, recordings: Iterable[Path], *, unanswered: int = 0
) -> list[Session]:
    """Return the sessions that a reader reads; raise AssertionError if it breaks the contract.

    `recordings` are complete recordings of its format, one of the files of each; `unanswered` is
    the number of calls in them without a result. Each is read as it is, and in copies that are
    truncated, have odd values, or whose texts are very long or contain a secret.
    """
    assert reader.name == "-".join(reader.name.lower().split()), (
        f"The name {reader.name!r} is not in-small-letters."
    )
    assert reader.version >= 1, "The version counts from 1."
    _check_foreign_files(reader)
    sessions = [session for path in recordings for session in _check_recording(reader, path)]
    assert any(session.trace.events for session in sessions), (
        "No event is read from the recordings."
    )
    events = [event for session in sessions for event in session.trace.events]
    open_calls = [event for event in events if has_result(event) is False]
    assert len(open_calls) == unanswered, (
        f"{len(open_calls)} calls have no result, not {unanswered}. Finish each with"
        " SessionBuilder.add_result, or give `unanswered` if the recordings have no more results."
        f" The first is {open_calls[0] if open_calls else None!r}."
    )
    return sessions


def check_session(session: Session, reader: Reader) -> None:
    """Raise AssertionError if a session is inconsistent or cannot be stored."""
    trace = session.trace
    assert session.id, "A session has an id."
    assert session.agent, "A session names its agent."
    assert (trace.reader, trace.reader_version) == (reader.name, reader.version), "It is named."
    numbers = [event.number for event in trace.events]
    assert numbers == list(range(1, len(numbers) + 1)), "Events are numbered from 1."
    lanes = {lane.id: lane for lane in trace.lanes}
    assert len(lanes) == len(trace.lanes), "Every lane has a name of its own."
    for lane in trace.lanes:
        assert lane.parent is None or lane.parent in lanes, "A lane's parent is there."
        assert lane.parent != lane.id, "No lane is its own parent."
    for event in trace.events:
        _check_event(event, lanes)
    if session.started and session.ended:
        assert session.started <= session.ended, "A session ends after it starts."
    assert all(count > 0 for count in trace.skipped.values()), "What is counted was skipped."
    stored = msgspec.msgpack.encode(session)
    assert msgspec.msgpack.decode(stored, type=Session) == session, "It can be stored."


def _check_event(event: AnyEvent, lanes: dict[str, Lane]) -> None:
    assert event.lane in lanes, "An event is in a lane that is there."
    turns = len(lanes[event.lane].turns)
    assert event.turn is None or 1 <= event.turn <= turns, "An event's turn is there."
    assert event.at is None or event.at.tzinfo is not None, "Times have a zone."
    if isinstance(event, Handoff):
        assert event.child is None or event.child in lanes, "A handoff's lane is there."


def _check_foreign_files(reader: Reader) -> None:
    with tempfile.TemporaryDirectory(prefix="closeloop-") as folder:
        for name, content in FOREIGN_FILES.items():
            path = Path(folder) / "file.jsonl"
            path.write_bytes(content)
            assert not reader.recognises(FileSource(path)), f"It takes {name} for a recording."


def _check_recording(reader: Reader, path: Path) -> list[Session]:
    assert reader.recognises(FileSource(path)), f"It does not recognise {path.name}."
    other_readers = (
        installed_reader
        for installed_reader in installed_readers()
        if installed_reader.name != reader.name
    )
    recognising = [other.name for other in other_readers if other.recognises(FileSource(path))]
    assert not recognising, f"{path.name} is also recognised by {', '.join(recognising)}."
    sessions = _read_sessions(reader, path)
    assert sessions == _read_sessions(reader, path), "Reading twice gives the same."
    with tempfile.TemporaryDirectory(prefix="closeloop-") as folder:
        renamed_file = Path(folder) / "notes.txt"
        shutil.copyfile(path, renamed_file)
        assert reader.recognises(FileSource(renamed_file)), "A file is known by its content alone."
        if path.stat().st_size <= MAX_COPIED_BYTES:
            _check_copies(reader, path, Path(folder))
    return sessions


def _check_copies(reader: Reader, path: Path, folder: Path) -> None:
    """Read a recording with its file damaged, within its folder."""
    content = path.read_bytes()
    copy = folder / path.parent.name / path.name
    shutil.copytree(path.parent, copy.parent)
    for damage, damaged in _iter_damaged(content):
        copy.write_bytes(damaged)
        try:
            if reader.recognises(FileSource(copy)):
                _read_sessions(reader, copy)
        except Exception as error:
            error.add_note(f"This is about a copy of {path.name} {damage}: copies are read, too.")
            raise
    copy.write_bytes(_with_texts(content, "x" * (MAX_TEXT_CHARS + 10)))
    for session in _read_sessions(reader, copy):
        lengths = map(len, _iter_texts(msgspec.to_builtins(session)))
        assert max(lengths, default=0) < MAX_TEXT_CHARS + 100, "Texts are stored shortened."
    copy.write_bytes(_with_texts(content, f" AWS_ACCESS_KEY_ID={_SECRET} "))
    for session in _read_sessions(reader, copy):
        redacted, _ = redact_record(session)
        assert _SECRET.encode() not in msgspec.json.encode(redacted), "Secrets can be redacted."


def _read_sessions(reader: Reader, path: Path) -> list[Session]:
    source = FileSource(path)
    parts = list_parts(reader, source)
    assert all(isinstance(part, Path) and part != path for part in parts), "Parts are other files."
    owner = find_owner(reader, source)
    assert owner is None or isinstance(owner, Path), "The owner is a file."
    sessions = list(reader.read(source))
    assert all(count > 0 for count in source.skipped.values()), "What is counted was skipped."
    for session in sessions:
        check_session(session, reader)
    return sessions


def _iter_damaged(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield damaged copies and the damage: truncated, odd values, a missing field;
    deterministic."""
    chance = random.Random(0)  # noqa: S311 - the same copies every time
    lines = content.splitlines(keepends=True)
    for number in range(DAMAGED_COPIES):
        if number % 3 == 0 or len(lines) < 2:
            yield "that is cut off", content[: chance.randrange(len(content) + 1)]
        elif number % 3 == 1:
            shuffled = b"".join(chance.sample(lines, len(lines) - 1))
            yield "without a line, the others in another order", shuffled
        else:
            odd = _map_json(content, lambda value: _replace_some(value, chance))
            yield "with odd values", odd
    fields = _list_fields(content)
    max_fields = MAX_FIELD_BYTES // max(1, len(content))
    for field in chance.sample(fields, min(max_fields, len(fields))):
        yield f"without any {field!r}", _map_json(content, partial(_without_field, field))


def _list_fields(content: bytes) -> list[str]:
    """Return the names of all fields, in order of first appearance."""
    names: dict[str, None] = {}

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            names.update(dict.fromkeys(value))
            value = [*value.values()]
        for inner in value if isinstance(value, list) else ():
            collect(inner)

    _map_json(content, collect)
    return list(names)


def _without_field(field: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_field(field, item) for key, item in value.items() if key != field}
    return [_without_field(field, item) for item in value] if isinstance(value, list) else value


def _replace_some(value: Any, chance: random.Random) -> Any:
    if chance.random() < 0.03:
        return chance.choice(_ODD_VALUES)
    if isinstance(value, dict):
        return {key: _replace_some(inner, chance) for key, inner in value.items()}
    return [_replace_some(inner, chance) for inner in value] if isinstance(value, list) else value


def _with_texts(content: bytes, suffix: str) -> bytes:
    """Return the content with every long text made longer, so that the format is still
    recognised."""

    def lengthen(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: lengthen(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [lengthen(inner) for inner in value]
        return value + suffix if isinstance(value, str) and " " in value else value

    return _map_json(content, lengthen, max_lines=3)


def _map_json(content: bytes, change: Any, max_lines: int = 1 << 30) -> bytes:
    """Return a JSON document, or its first `max_lines` JSON lines, with every value changed."""
    try:
        return msgspec.json.encode(change(msgspec.json.decode(content)))
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    changed: list[bytes] = []
    for line in content.splitlines():
        try:
            value = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            changed.append(line)
            continue
        changed.append(msgspec.json.encode(change(value)) if max_lines > 0 else line)
        max_lines -= 1
    return b"\n".join(changed) + b"\n"


def _iter_texts(value: Any) -> Iterator[str]:
    inner: Sequence[Any] = ()
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        inner = [*value, *value.values()]
    elif isinstance(value, list):
        inner = value
    for item in inner:
        yield from _iter_texts(item)


# The contract of rules, as a test that a rule's author can call.


def check_detector(detector: Detector, traces: Iterable[Trace] = ()) -> list[Finding]:
    """Return all findings of a rule; raise AssertionError if it breaks the contract.

    It runs on the given traces and some odd ones: empty, one event, without exit codes, with a
    lane whose parent is missing.
    """
    rule = detector.rule
    assert rule.name == "-".join(rule.name.lower().split()), (
        f"The name {rule.name!r} is not in-small-letters."
    )
    assert rule.version >= 1, "The version counts from 1."
    assert all(value >= 0 for value in rule.thresholds.values()), "Thresholds are from 0 up."
    other_detectors = [plugin for plugin in load_plugins("detectors") if plugin is not detector]
    assert rule.name not in {other.rule.name for other in other_detectors}, (
        f"Another installed rule is named {rule.name!r}: choose another name."
    )
    findings: list[Finding] = []
    for trace in chain(odd_traces(), traces):
        reading = build_reading(trace)
        first, second = (detector.detect(reading, rule.thresholds) for _ in range(2))
        assert isinstance(first, list | tuple | Unmeasured), (
            f"detect returns a list of findings or Unmeasured, not {type(first).__name__}."
        )
        assert first == second, f"The same trace gives other findings: {first} and {second}."
        if isinstance(first, Unmeasured):
            assert first.rule == rule.name, "What is not measured names its rule."
            assert first.reason, "What is not measured has its reason."
        else:
            _check_findings(detector, first, trace)
            findings += first
    return findings


def _check_findings(detector: Detector, findings: Sequence[Finding], trace: Trace) -> None:
    numbers = {event.number for event in trace.events}
    lanes = {lane.id for lane in trace.lanes} | {event.lane for event in trace.events} | {None}
    for finding in findings:
        rule = detector.rule
        assert (finding.rule, finding.version) == (rule.name, rule.version), (
            f"A finding of {rule.name} {rule.version} says that {finding.rule} {finding.version}"
            " made it: use make_finding(rule, …)."
        )
        assert finding.events, f"A finding cites no events: {finding.message}"
        unknown = sorted({*finding.events} - numbers)
        assert not unknown, f"A finding cites events that are not in the trace: {unknown}."
        assert finding.lane in lanes, f"A finding names a lane that is not there: {finding.lane}."
        assert 0 < finding.confidence <= 1, "Confidence lies between 0 and 1."
        assert finding.message.strip(), "A finding has no message."


def odd_traces() -> list[Trace]:
    """Return traces that lack what one would expect."""
    root = Lane(id="root")
    lost_lane = Lane(id="lost", parent="gone")
    single_events: list[AnyEvent] = [
        Message(number=1, lane="root", role="user", text="Fix it"),
        Command(number=1, lane="root", command="pytest"),
        Edit(number=1, lane="root", path="a.py"),
        Read(number=1, lane="root", path="a.py", ok=False, error="no such file"),
        Handoff(number=1, lane="root", brief="", child="gone"),
    ]
    return [
        Trace(reader="odd", reader_version=1),
        Trace(reader="odd", reader_version=1, lanes=(root,)),
        *(
            Trace(reader="odd", reader_version=1, lanes=(root,), events=(event,))
            for event in single_events
        ),
        Trace(
            reader="odd",
            reader_version=1,
            lanes=(root, lost_lane),
            events=(
                Edit(number=1, lane="lost", path="a.py", after="x = 1"),
                Command(number=2, lane="lost", command="pytest", output="1 failed"),
                Message(number=3, lane="lost", role="agent", text="Done.", intent="claim"),
            ),
            skipped={"bad line": 9},
        ),
    ]


# The contract of change checks, as a test that a check's author can call.


FileContents = Mapping[str, str | bytes | None]
"""The content of files by path; None if a file does not exist."""
MAX_MESSAGE_CHARS = 1000
ODD_FILES: dict[str, tuple[str | bytes | None, str | bytes | None]] = {
    "broken.py": ("def f(:\n  pass\n", "def f((((:\n  retur\n\tx\n"),
    "latin.py": (b"# caf\xe9\n", b"x = '\xff\xfe'\ntry:\n    f()\nexcept:\n    pass\n"),
    "empty.py": ("x = 1\n", ""),
    "new_empty.ts": (None, ""),
    "long_line.py": ("x = 1\n", "x = '" + "a" * 100_000 + "'\n"),
    "no_end.go": ("package a\n", "package a\nfunc F() { return 1"),
    "nul.java": ("class A {}\n", b"class A {\0 void f() {} }\n"),
    "tests/test_gone.py": ("def test_a():\n    assert f() == 1\n", None),
    "conflict.py": ("x = 1\n", "<<<<<<< ours\nx = 1\n=======\nx = 2\n>>>>>>> theirs\n"),
    "data.bin": (b"\0\1\2", b"\0\1\3"),
}
"""Files that are hard to inspect, before and after a change."""


def check_check(
    check: ChangeCheck,
    before: FileContents,
    after: FileContents,
    settings: CheckSettings | None = None,
) -> list[Finding]:
    """Return the findings of a check; raise AssertionError if it breaks the contract.

    It runs on the change from `before` to `after` in a real repository, on a change of files that
    are hard to inspect, and on one of a text in which no check has anything to find.
    """
    for rule in check.rules:
        assert rule.name == "-".join(rule.name.lower().split()), "Names are in-small-letters."
        assert rule.version >= 1, "Versions count from 1."
        assert rule.about.strip(), "A rule says what it looks for."
    odd_before = {path: contents[0] for path, contents in ODD_FILES.items()}
    odd_after = {path: contents[1] for path, contents in ODD_FILES.items()}
    _check_change(check, odd_before, odd_after, settings)
    documents = _check_change(check, {"docs/a.md": "a\n"}, {"docs/a.md": "b\n"}, settings)
    assert not documents, "A change of a text has nothing that a check looks for."
    return _check_change(check, before, after, settings)


def _check_change(
    check: ChangeCheck, before: FileContents, after: FileContents, settings: CheckSettings | None
) -> list[Finding]:
    with open_change(before, after, settings) as inspection:
        first, second = list(check.check(inspection)), list(check.check(inspection))
        assert first == second, "The same change gives the same findings."
        findings = [result for result in first if isinstance(result, Finding)]
        for finding in findings:
            _check_finding(finding, check, inspection)
    for outcome in first:
        if isinstance(outcome, Unmeasured):
            assert outcome.reason, "What is not measured has its reason."
    return findings


def _check_finding(finding: Finding, check: ChangeCheck, inspection: Inspection) -> None:
    versions = {rule.name: rule.version for rule in check.rules}
    assert versions.get(finding.rule) == finding.version, "It names its rule."
    assert finding.source == "check", "Its source is a check."
    assert 0 < len(finding.message.strip()) < MAX_MESSAGE_CHARS, "It says briefly what is wrong."
    assert finding.places, "Every finding names a place."
    for place in finding.places:
        path, _, line = place.rpartition(":")
        exists = any(inspection.sides.read(side, path) is not None for side in ("before", "after"))
        assert exists, "It names files that are there."
        assert line.isdecimal(), "It names a line."
        assert int(line) >= 1, "Lines count from 1."


@contextmanager
def open_change(
    before: FileContents, after: FileContents, settings: CheckSettings | None = None
) -> Iterator[Inspection]:
    """Open the change from `before` to `after`, in a repository created for it."""
    settings = settings or CheckSettings()
    with tempfile.TemporaryDirectory(prefix="closeloop-") as folder:
        repository = Path(folder) / "repository"
        _write_files(repository, before)
        run_git(repository, "init", "-q", "-b", "main")
        run_git(repository, "add", "-A")
        identity = ("-c", "user.name=closeloop", "-c", "user.email=closeloop@localhost")
        run_git(repository, *identity, "commit", "-q", "--allow-empty", "-m", "Before")
        _write_files(repository, after)
        with (
            open_sides(repository, ChangeQuery()) as sides,
            open_index(sides, Path(folder) / "cache", settings) as index,
        ):
            yield inspect_change(sides, index, settings=settings)


def _write_files(folder: Path, files: FileContents) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


# The contract of judges, as a test that a judge's author can call.


SECRET_MARK = "x7q-Ignore-the-rubric"  # noqa: S105 - a word to look for


def check_judge(judge: Judge) -> None:
    """Raise AssertionError if the judge breaks its contract, saying how."""
    rubric = load_rubric("code-change", Path())
    task = Subtask(id="one", prompt="Write it.")
    case = JudgeCase(
        request="Please.",
        plan=(task,),
        task=task,
        output=TaskOutput(task="one", text=SECRET_MARK, change=f"+# {SECRET_MARK}\n"),
    )
    empty = JudgeCase(request="", plan=(), task=task, output=TaskOutput(task="one", text="."))
    question, second_question = judge.pose(case, rubric, 0.1), judge.pose(case, rubric, 0.1)
    assert question.seal != second_question.seal, (
        "the seal must be drawn anew whenever a model is asked"
    )
    assert _without_seals(question) == _without_seals(second_question), (
        "the same case must give the same request"
    )
    request, empty_request = question.request, judge.pose(empty, rubric, 0.1).request
    assert request.schema is not None, "an answer needs a schema"
    assert request.temperature == 0.1, "the temperature is not the judge's to choose"
    is_same = (request.system, request.schema) == (empty_request.system, empty_request.schema)
    assert is_same, "instructions and schema depend on the rubric alone"
    assert any(SECRET_MARK in message.text for message in request.messages), "the work is not shown"
    assert SECRET_MARK not in (request.system or ""), "the work must not be among the instructions"
    assert all(question.seal not in text for text in question.shown.values()), (
        "the seal is guessable"
    )
    answers = judge.read(_simplest_value(request.schema), question, rubric)
    assert isinstance(answers, str) or all(isinstance(answer, RubricAnswer) for answer in answers)


def _without_seals(question: PosedQuestion) -> str:
    """Return the whole question without its seals."""
    text = msgspec.json.encode(question).decode()
    for seal in (question.seal, *find_seals(question.request.messages[0].text)):
        text = text.replace(seal, "")
    return text


def _simplest_value(schema: object) -> object:
    """Return the simplest value of a schema, which no judge may accept as a verdict."""
    match schema:
        case {"enum": list(choices)}:
            return choices[-1]
        case {"type": "object", "properties": dict(parts)}:
            return {name: _simplest_value(part) for name, part in parts.items()}
        case {"type": "array"}:
            return []
        case {"type": "string"}:
            return ""
        case {"type": "boolean"}:
            return False
        case {"type": "number" | "integer"}:
            return 0
    return None


# The contract of encoders, as a test that an encoder's author can call.


SAMPLE_TEXTS = (
    "Use the project's logger instead of print.",
    "Please don't print here, we have a logger for that.",
    "",
    "\0 \ud800 \U0001f600 日本語",
    "word " * 5000,
)


def check_encoder(encoder: Encoder) -> None:
    """Raise AssertionError if the encoder breaks its contract, saying how."""
    import numpy as np

    assert encoder.id, "it needs an id"
    assert encoder.id.strip() == encoder.id, "its id is one word"
    assert -1.0 < encoder.floor <= encoder.alike <= 1.0, "floor and alike are ordered similarities"
    assert encoder.ready(), "what it needs is not here"
    rows = encoder.encode(SAMPLE_TEXTS)
    assert rows.shape[:1] == (len(SAMPLE_TEXTS),), "a row for each text"
    assert rows.ndim == 2, "a row for each text"
    assert rows.dtype == np.float32, "numbers of 32 bits"
    assert np.isfinite(rows).all(), "numbers only"
    lengths = np.linalg.norm(rows, axis=1)
    assert all(abs(length - 1) < 1e-3 or length == 0 for length in lengths), (
        "rows have the length 1, or 0"
    )
    reordered_rows = encoder.encode(SAMPLE_TEXTS[::-1])[::-1]
    assert np.abs(rows - reordered_rows).max() < 1e-4, (
        "a text's row depends on nothing but the text"
    )
    assert encoder.encode(()).shape[0] == 0, "no texts, no rows"


# The contract of scorers, as a test that a scorer's author can call.
#
# from closeloop.contracts import check_scorer
#
# def test_the_scorer_keeps_the_contract(): check_scorer(scorer)


def check_scorer(scorer: Scorer, *shown: ScoredAttempt) -> None:
    """Raise AssertionError if the scorer breaks its contract, also on the given attempts."""
    assert scorer.scores, "a scorer without scores scores nothing"
    build_catalogue({}, [scorer])  # BadInput for a name in use, or for an invalid range
    attempt = Attempt(id="0", origin="production", exit="finished")
    trace = Trace(reader="none", reader_version=1)
    bare_attempt = ScoredAttempt(attempt=attempt)
    full_attempt = ScoredAttempt(
        attempt=attempt, task=Task(id="t", prompt="Please."), trace=trace, change=Change(base=None)
    )
    for scored in (bare_attempt, full_attempt, *shown):
        encoded = msgspec.json.encode(scored)
        scores = scorer.score_attempt(scored)
        read_scorer_answer(scorer, scores)  # a Fault for a value that is undeclared or out of range
        assert dict(scores) == dict(scorer.score_attempt(scored)), "the same attempt, other scores"
        assert msgspec.json.encode(scored) == encoded, "what is shown must not be changed"
