"""Our readers beside Harbor's converters: the same calls and results, or a reason why not.

python bench/harbor.py HARBOR_PYTHON [FOLDER…]    the fixtures, or any recordings

HARBOR_PYTHON is the interpreter of an environment that has harbor. Exits with 1 where a difference
has no reason below.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from closeloop.records.trace import AnyEvent, Edit, Message, Session, Thought, Trace
from closeloop.traces.file_source import (
    FileSource,
    RecordingFile,
    find_owner,
    find_reader,
    list_parts,
    walk_files,
)
from closeloop.traces.tool_calls import has_result
from harness import Bench
from table import Row, build_row

HERE = Path(__file__).parent
FIXTURES = HERE.parent / "tests" / "traces" / "fixtures"
FORMATS = (
    "atif", "claude-code", "codex", "copilot-cli", "gemini", "mini-swe-agent", "opencode-run",
    "openhands-events", "pi", "qwen", "swe-agent",
)  # fmt: skip
"""What both read."""


class Call(NamedTuple):
    """A call, as one of the two tells it."""

    id: str | None
    name: str
    done: bool
    said: bool = False
    """We tell it as words (a question, a claim, a thought): its result is no fact of its own."""
    nothing: bool = False
    """Its result has no text."""
    failed: bool = False
    below: bool = False
    """Made by a sub-agent."""


class Recording(NamedTuple):
    format: str
    files: list[Path]
    ours: list[Call]
    tokens: int
    theirs: list[Call]


class Reason(NamedTuple):
    """Why one of the two has a call, or a call's result, that the other has not."""

    format: str
    kind: str
    """One of `KINDS`."""
    why: str
    holds: Callable[[Call, Recording], bool]


OURS, THEIRS, OUR_RESULT, THEIR_RESULT = KINDS = (
    "a call that only we have",
    "a call that only Harbor has",
    "a result that only we have",
    "a result that only Harbor has",
)
LATE = "for Harbor a result that does not follow its call at once is another call"
REASONS = [
    Reason("atif", OURS, "a sub-agent named by an observation without a call is a handoff",
           lambda call, _: call.id is None and call.name == "Handoff"),
    Reason("claude-code", OURS, "Harbor joins the agents of a session and knows a call by its id: "
           "of an id that two agents use, one call is left",
           lambda call, on: call.below and call.id in {one.id for one in on.theirs}),
    Reason("claude-code", OUR_RESULT, "a command that printed nothing has no result for Harbor",
           lambda call, _: call.nothing),
    Reason("codex", OURS, "Harbor leaves out the calls that code mode made by itself",
           lambda call, _: (call.id or "").startswith("exec-")),
    Reason("codex", OURS, "Harbor leaves out a call whose result never came",
           lambda call, _: not call.done),
    Reason("codex", THEIRS, "Harbor counts the parent's history that a forked child repeats",
           lambda _, on: any(b'"forked_from_id"' in head(path) for path in on.files)),
    Reason("mini-swe-agent", OURS, "Harbor reads no commands of format 1, which has no tool calls",
           lambda call, on: call.id is None and not on.theirs),
    Reason("opencode-run", OUR_RESULT, "Harbor leaves out the error of a call that failed",
           lambda call, _: call.failed),
    Reason("openhands-events", OUR_RESULT, LATE, lambda call, _: call.name == "Handoff"),
    Reason("openhands-events", THEIRS, LATE,
           lambda _, on: any(call.name == "Handoff" for call in on.ours)),
    Reason("qwen", OURS, "Harbor reads chats, not the stream",
           lambda _, on: not on.theirs),
    Reason("qwen", OURS, "Harbor does not read the telemetry of a sub-agent without a file",
           lambda call, _: call.below and call.id is None),
    Reason("swe-agent", OUR_RESULT, "an action that printed nothing has no result for Harbor",
           lambda call, _: call.nothing),
]  # fmt: skip


def head(path: Path) -> bytes:
    return FileSource(path).head


def is_said(event: AnyEvent) -> bool:
    """Whether a call is told as words."""
    ours = isinstance(event, Thought) or (isinstance(event, Message) and event.role == "agent")
    return ours and event.call is not None


def calls(trace: Trace) -> Iterator[Call]:
    """What the agent called, in order; a call that edits several files is one."""
    seen: set[tuple[str, str, int | None]] = set()
    for event in trace.events:
        below = event.lane != trace.lanes[0].id
        done = has_result(event)
        if is_said(event):
            yield Call(event.call, type(event).__name__, False, said=True, below=below)
        if done is None:
            continue
        if isinstance(event, Edit) and event.call:
            if (event.lane, event.call, event.turn) in seen:
                continue
            seen.add((event.lane, event.call, event.turn))
        told = [getattr(event, name, None) for name in ("output", "text", "report", "error")]
        yield Call(
            event.call,
            type(event).__name__,
            done,
            nothing=not any(told),
            failed=getattr(event, "ok", None) is False,
            below=below,
        )


def tokens(session: Session) -> int:
    """All that was read and written, from a cache or not."""
    used = session.usage
    counts = (used.input_tokens, used.cache_read_tokens, used.cache_write_tokens)
    return sum(count or 0 for count in (*counts, used.output_tokens))


def recordings(folders: list[Path]) -> Iterator[Recording]:
    """Everything in some folders that both can read, as we read it."""
    for file in walk_files(folders):
        if not isinstance(file, RecordingFile):
            continue
        source = FileSource(Path(file.path))
        reader = find_reader(source)
        if reader is None or reader.name not in FORMATS or find_owner(reader, source) is not None:
            continue
        files = [source.path, *list_parts(reader, source)]
        sessions = list(reader.read(source))
        ours = [call for session in sessions for call in calls(session.trace)]
        yield Recording(reader.name, files, ours, sum(map(tokens, sessions)), [])


def asked(peer: str, found: list[Recording]) -> list[dict[str, Any]]:
    """What Harbor makes of the same files."""
    question = [
        {
            "format": each.format,
            "files": [
                [str(path), os.path.relpath(path, each.files[0].parent)] for path in each.files
            ],
        }
        for each in found
    ]
    # -P: beside this script lies another `harbor`.
    script = [peer, "-P", str(HERE / "peer_harbor.py")]
    done = subprocess.run(
        script, check=True, input=json.dumps(question).encode(), stdout=subprocess.PIPE
    )
    return list(json.loads(done.stdout))


def matched(each: Recording) -> Iterator[tuple[Call | None, Call | None]]:
    """Every call as both tell it: by id, then, without ids, by order."""
    waiting: defaultdict[str | None, list[Call]] = defaultdict(list)
    for call in each.theirs:
        waiting[call.id].append(call)
    alone = []
    for call in each.ours:
        if waiting[call.id]:
            yield call, waiting[call.id].pop(0)
        else:
            alone.append(call)
    rest = [call for some in waiting.values() for call in some]
    for call in alone:
        yield call, (rest.pop(0) if call.id is None and rest else None)
    for call in rest:
        yield None, call


def difference(ours: Call | None, theirs: Call | None) -> str | None:
    """What one of them has and the other has not."""
    if theirs is None:
        return OURS
    if ours is None:
        return THEIRS
    if ours.said or ours.done == theirs.done:
        return None
    return OUR_RESULT if ours.done else THEIR_RESULT


class Findings:
    """What came of all recordings, by format."""

    def __init__(self) -> None:
        self.rows: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.explained: Counter[tuple[str, str, str]] = Counter()
        self.unexplained: list[str] = []
        self.unread: list[str] = []

    def add(self, each: Recording, tokens: int) -> None:
        row = self.rows[each.format]
        row.update(files=1, tokens=each.tokens, their_tokens=tokens)
        for ours, theirs in matched(each):
            row.update(calls=ours is not None, their_calls=theirs is not None)
            if ours is None or not ours.said:
                row.update(results=bool(ours and ours.done))
                row.update(their_results=bool(theirs and theirs.done))
            if kind := difference(ours, theirs):
                self._explain(each, kind, ours or theirs)

    def _explain(self, each: Recording, kind: str, call: Call | None) -> None:
        assert call is not None
        for reason in REASONS:
            if (reason.format, reason.kind) == (each.format, kind) and reason.holds(call, each):
                self.rows[each.format].update(explained=1)
                self.explained[each.format, kind, reason.why] += 1
                return
        self.rows[each.format].update(unexplained=1)
        self.unexplained.append(f"{each.files[0]}: {kind}: {call.name} {call.id}")

    def tell(self) -> None:
        for one in self.unread:
            print(f"Harbor does not read {one}")
        names = ("files", "calls", "their_calls", "results", "their_results", "tokens",
                 "their_tokens", "explained", "unexplained")  # fmt: skip
        print(f"\n{'format':17}" + "".join(f"{name.replace('_', ' '):>14}" for name in names))
        for form, row in sorted(self.rows.items()):
            print(f"{form:17}" + "".join(f"{row[name]:14,}" for name in names))
        print()
        for (form, kind, why), times in sorted(self.explained.items()):
            print(f"{times:4} × {form}: {kind}: {why}")
        for one in self.unexplained:
            print(f"UNEXPLAINED  {one}")


def measure(bench: Bench) -> Iterator[Row]:
    """How many calls or results differ from Harbor's without a reason, on the fixtures."""
    python = bench.peer_python(".venv-harbor", "harbor")
    findings = compare_readers(python, [FIXTURES])
    calls = sum(row["calls"] for row in findings.rows.values())
    name = f"of {calls} calls, those unlike Harbor's converter"
    yield build_row(name, [len(findings.unexplained)], "", budget=0)


def compare_readers(peer: str, folders: list[Path]) -> Findings:
    found = list(recordings(folders))
    findings = Findings()
    for each, answer in zip(found, asked(peer, found), strict=True):
        if "trouble" in answer:
            findings.unread.append(f"{each.files[0].name} ({each.format}): {answer['trouble']}")
        else:
            each.theirs.extend(Call(*call) for call in answer["calls"])
            findings.add(each, answer["tokens"])
    return findings


def main(peer: str, folders: list[Path]) -> int:
    findings = compare_readers(peer, folders)
    findings.tell()
    return 1 if findings.unexplained else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], [Path(name) for name in sys.argv[2:]] or [FIXTURES]))
