"""What the built-in agent can do: every tool is a function that records what it does."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from closeloop.agents.hostile_text import replace_surrogates, shorten_middle
from closeloop.agents.tool_specs import ToolFailed
from closeloop.agents.trace_recorder import LaneRecorder, RecordedAction
from closeloop.records.attempt import Exit
from closeloop.records.errors import MachineFailed
from closeloop.records.protocols import Assignment
from closeloop.records.record import Record
from closeloop.records.trace import Command, Edit, Handoff, Read, ToolUse

MAX_FILE_BYTES = 1_000_000
"""Bytes of a file that is read or edited."""
SHORTAGE_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""What the machine lacks is no fault of the agent."""
MAX_MATCHES = 200
MAX_MATCH_CHARS = 300
NO_ANSWER = "No answer is available; decide yourself and say what you assumed."


class LaneEnding(Record):
    """How a lane ended."""

    exit: Exit
    cause: str | None = None
    summary: str | None = None


class ToolInvocation(Record):
    """One use of a tool: by which lane, for which call, on what."""

    assignment: Assignment
    lane: LaneRecorder
    call: str
    converse: Callable[[LaneRecorder, str], Awaitable[LaneEnding]]
    """Let a sub-agent work in its lane on a brief."""

    @contextmanager
    def record_action(self, kind: type[RecordedAction], **known: Any) -> Iterator[dict[str, Any]]:
        """Record what is done to the workspace; what the system refuses is the agent's to mend."""
        with self.lane.record_action(kind, call=self.call, **known) as result:
            try:
                yield result
            except OSError as error:
                why = error.strerror or str(error)
                if error.errno in SHORTAGE_ERRNOS:
                    raise MachineFailed(
                        f"{why}: make room, or run fewer attempts at once."
                    ) from error
                raise ToolFailed(why) from error


async def run(use: ToolInvocation, command: str, seconds: float | None = None) -> str:
    if seconds is not None:
        seconds = min(seconds, use.assignment.limits.command_seconds)
    with use.record_action(Command, command=command) as result:
        ran = await use.assignment.cage.run(command, seconds=seconds)
        output = replace_surrogates(ran.output)
        result.update(output=shorten_middle(output), stopped=ran.stopped)
        if ran.exit_code is not None:
            result.update(exit_code=ran.exit_code, exit_from="stated")
    if ran.exit_code is None:
        raise ToolFailed(f"no exit code: stopped, {ran.stopped or 'by the machine'}\n{output}")
    return f"exit code {ran.exit_code}\n{output}"


async def read(
    use: ToolInvocation, path: str, first_line: int | None = None, last_line: int | None = None
) -> str:
    with use.record_action(Read, path=path, first_line=first_line, last_line=last_line) as result:
        content = await use.assignment.cage.read(path, MAX_FILE_BYTES)
        if b"\0" in content:
            raise ToolFailed(f"{path} is not text: {len(content)} bytes.")
        text = content.decode("utf-8", "replace")
        if first_line is not None or last_line is not None:
            text = _select_lines(path, text, first_line or 1, last_line)
        result.update(text=shorten_middle(text), ok=True)
    return text or "(the file is empty)"


async def write(use: ToolInvocation, path: str, text: str) -> str:
    before, action = await _read_before_write(use, path)
    with use.record_action(Edit, path=path, action=action, before=before, after=text) as result:
        await use.assignment.cage.write(path, text.encode())
        result.update(ok=True)
    return f"{path} {'created' if action == 'create' else 'replaced'}."


async def edit(use: ToolInvocation, path: str, old: str, new: str) -> str:
    cage = use.assignment.cage
    with use.record_action(Edit, path=path, before=old, after=new) as result:
        try:
            text = (await cage.read(path, MAX_FILE_BYTES)).decode()
        except UnicodeDecodeError as error:
            raise ToolFailed(f"{path} is not UTF-8 text: change it with a command.") from error
        if not old or old == new:
            raise ToolFailed("old must not be empty, and new must differ from it.")
        if (count := text.count(old)) != 1:
            raise ToolFailed(
                f"old occurs {count} times in {path}, not once: read the file again and give the "
                f"passage exactly as it stands, with enough around it to be unique."
            )
        await cage.write(path, text.replace(old, new).encode())
        result.update(ok=True)
    return f"{path} changed."


async def search(use: ToolInvocation, pattern: str, path: str = ".") -> str:
    arguments = {"pattern": pattern, "path": path}
    grep = ["grep", "-rnIE", "--null", "--exclude-dir=.git", "-e", pattern, "--", path]
    with use.record_action(ToolUse, name="search", arguments=arguments) as result:
        ran = await use.assignment.cage.run(grep)
        output = shorten_middle(_format_matches(replace_surrogates(ran.output)))
        if ran.exit_code not in (0, 1):
            raise ToolFailed(f"The search failed: {ran.stopped or output}")
        result.update(output=output, ok=True)
    return output


async def ask(use: ToolInvocation, question: str) -> str:
    use.lane.add_message("agent", question, "question", use.call)
    answer = use.assignment.answer(question)
    if answer:
        use.lane.add_message("user", answer, "answer", use.call)
    else:
        use.lane.add_message("system", NO_ANSWER, "answer", use.call)
    return answer or NO_ANSWER


async def delegate(use: ToolInvocation, brief: str) -> str:
    child = use.lane.recorder.open_lane(use.lane.id)
    with use.lane.record_action(Handoff, call=use.call, brief=brief, child=child.id) as result:
        ending = await use.converse(child, brief)
        result.update(report=ending.summary, ok=ending.exit == "finished")
    if ending.cause is not None:
        child.add_note(ending.cause, about=ending.exit)
        raise ToolFailed(f"The sub-agent gave up. {ending.summary or ending.cause}")
    return ending.summary or "(the sub-agent finished without a report)"


async def finish(use: ToolInvocation, summary: str, done: bool = True) -> LaneEnding:
    use.lane.add_message("agent", summary, "claim" if done else None, use.call)
    if done:
        return LaneEnding(exit="finished", summary=summary)
    return LaneEnding(
        exit="gave_up", cause="the agent said that it could not do it", summary=summary
    )


TOOL_FUNCTIONS: Mapping[str, Callable[..., Awaitable[str | LaneEnding]]] = {
    tool.__name__: tool for tool in (run, read, write, edit, search, ask, delegate, finish)
}


def _select_lines(path: str, text: str, first: int, last: int | None) -> str:
    lines = text.removesuffix("\n").split("\n")
    if first > len(lines) or (last is not None and last < first):
        raise ToolFailed(f"{path} has {len(lines)} lines: there are none from {first} to {last}.")
    return "\n".join(lines[first - 1 : last])


async def _read_before_write(use: ToolInvocation, path: str) -> tuple[str | None, str]:
    """What a file holds before it is written, where that is text, and what writing it is."""
    try:
        return (await use.assignment.cage.read(path, MAX_FILE_BYTES)).decode(), "change"
    except FileNotFoundError:
        return None, "create"
    except (OSError, UnicodeDecodeError):
        return None, "change"


def _format_matches(output: str) -> str:
    """grep's `path NUL line:text` as `path:line: text`, the first of them."""
    lines = output.removesuffix("\n").split("\n")
    shown_lines = []
    for line in lines[:MAX_MATCHES]:
        path, separator, rest = line.partition("\0")
        number, _, text = rest.partition(":")
        match_line = f"{path.removeprefix('./')}:{number}: {text}" if separator else line
        shown_lines.append(match_line[:MAX_MATCH_CHARS])
    if len(lines) > MAX_MATCHES:
        shown_lines.append(
            f"[… {len(lines) - MAX_MATCHES} more lines left out: narrow the search …]"
        )
    return "\n".join(shown_lines) or "No match."
