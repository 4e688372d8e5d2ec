"""What the built-in agent can do: every tool is a function that records what it does."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from closeloop.model.attempt import Exit
from closeloop.model.errors import MachineFailed
from closeloop.model.protocols import Assignment
from closeloop.model.record import Record
from closeloop.model.trace import Command, Edit, Handoff, Read, ToolUse
from closeloop.runs.agents.recorder import Action, LaneRecorder
from closeloop.runs.agents.specs import ToolFailed
from closeloop.runs.agents.texts import bounded, valid

FILE_LIMIT = 1_000_000
"""Bytes of a file that is read or edited."""
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""What the machine lacks is no fault of the agent."""
MATCHES = 200
MATCH_LENGTH = 300
NO_ANSWER = "No answer is available; decide yourself and say what you assumed."


class Ending(Record):
    """How a lane ended."""

    exit: Exit
    cause: str | None = None
    summary: str | None = None


class Use(Record):
    """One use of a tool: by which lane, for which call, on what."""

    assignment: Assignment
    lane: LaneRecorder
    call: str
    converse: Callable[[LaneRecorder, str], Awaitable[Ending]]
    """Let a sub-agent work in its lane on a brief."""

    @contextmanager
    def action(self, kind: type[Action], **known: Any) -> Iterator[dict[str, Any]]:
        """Record what is done to the workspace; what the system refuses is the agent's to mend."""
        with self.lane.action(kind, call=self.call, **known) as result:
            try:
                yield result
            except OSError as error:
                why = error.strerror or str(error)
                if error.errno in SHORTAGES:
                    raise MachineFailed(
                        f"{why}: make room, or run fewer attempts at once."
                    ) from error
                raise ToolFailed(why) from error


async def run(use: Use, command: str, seconds: float | None = None) -> str:
    if seconds is not None:
        seconds = min(seconds, use.assignment.limits.command_seconds)
    with use.action(Command, command=command) as result:
        ran = await use.assignment.cage.run(command, seconds=seconds)
        output = valid(ran.output)
        result.update(output=bounded(output), stopped=ran.stopped)
        if ran.exit_code is not None:
            result.update(exit_code=ran.exit_code, exit_from="stated")
    if ran.exit_code is None:
        raise ToolFailed(f"no exit code: stopped, {ran.stopped or 'by the machine'}\n{output}")
    return f"exit code {ran.exit_code}\n{output}"


async def read(
    use: Use, path: str, first_line: int | None = None, last_line: int | None = None
) -> str:
    with use.action(Read, path=path, first_line=first_line, last_line=last_line) as result:
        content = await use.assignment.cage.read(path, FILE_LIMIT)
        if b"\0" in content:
            raise ToolFailed(f"{path} is not text: {len(content)} bytes.")
        text = content.decode("utf-8", "replace")
        if first_line is not None or last_line is not None:
            text = _lines(path, text, first_line or 1, last_line)
        result.update(text=bounded(text), ok=True)
    return text or "(the file is empty)"


async def write(use: Use, path: str, text: str) -> str:
    before, action = await _present(use, path)
    with use.action(Edit, path=path, action=action, before=before, after=text) as result:
        await use.assignment.cage.write(path, text.encode())
        result.update(ok=True)
    return f"{path} {'created' if action == 'create' else 'replaced'}."


async def edit(use: Use, path: str, old: str, new: str) -> str:
    cage = use.assignment.cage
    with use.action(Edit, path=path, before=old, after=new) as result:
        try:
            text = (await cage.read(path, FILE_LIMIT)).decode()
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


async def search(use: Use, pattern: str, path: str = ".") -> str:
    arguments = {"pattern": pattern, "path": path}
    grep = ["grep", "-rnIE", "--null", "--exclude-dir=.git", "-e", pattern, "--", path]
    with use.action(ToolUse, name="search", arguments=arguments) as result:
        ran = await use.assignment.cage.run(grep)
        output = bounded(_matches(valid(ran.output)))
        if ran.exit_code not in (0, 1):
            raise ToolFailed(f"The search failed: {ran.stopped or output}")
        result.update(output=output, ok=True)
    return output


async def ask(use: Use, question: str) -> str:
    use.lane.say("agent", question, "question", use.call)
    answer = use.assignment.answer(question)
    if answer:
        use.lane.say("user", answer, "answer", use.call)
    else:
        use.lane.say("system", NO_ANSWER, "answer", use.call)
    return answer or NO_ANSWER


async def delegate(use: Use, brief: str) -> str:
    child = use.lane.recorder.open(use.lane.id)
    with use.lane.action(Handoff, call=use.call, brief=brief, child=child.id) as result:
        ending = await use.converse(child, brief)
        result.update(report=ending.summary, ok=ending.exit == "finished")
    if ending.cause is not None:
        child.note(ending.cause, about=ending.exit)
        raise ToolFailed(f"The sub-agent gave up. {ending.summary or ending.cause}")
    return ending.summary or "(the sub-agent finished without a report)"


async def finish(use: Use, summary: str, done: bool = True) -> Ending:
    use.lane.say("agent", summary, "claim" if done else None, use.call)
    if done:
        return Ending(exit="finished", summary=summary)
    return Ending(exit="gave_up", cause="the agent said that it could not do it", summary=summary)


FUNCTIONS: Mapping[str, Callable[..., Awaitable[str | Ending]]] = {
    tool.__name__: tool for tool in (run, read, write, edit, search, ask, delegate, finish)
}


def _lines(path: str, text: str, first: int, last: int | None) -> str:
    lines = text.removesuffix("\n").split("\n")
    if first > len(lines) or (last is not None and last < first):
        raise ToolFailed(f"{path} has {len(lines)} lines: there are none from {first} to {last}.")
    return "\n".join(lines[first - 1 : last])


async def _present(use: Use, path: str) -> tuple[str | None, str]:
    """What a file holds before it is written, where that is text, and what writing it is."""
    try:
        return (await use.assignment.cage.read(path, FILE_LIMIT)).decode(), "change"
    except FileNotFoundError:
        return None, "create"
    except (OSError, UnicodeDecodeError):
        return None, "change"


def _matches(output: str) -> str:
    """grep's `path NUL line:text` as `path:line: text`, the first of them."""
    lines = output.removesuffix("\n").split("\n")
    shown = []
    for line in lines[:MATCHES]:
        path, found, rest = line.partition("\0")
        number, _, text = rest.partition(":")
        whole = f"{path.removeprefix('./')}:{number}: {text}" if found else line
        shown.append(whole[:MATCH_LENGTH])
    if len(lines) > MATCHES:
        shown.append(f"[… {len(lines) - MATCHES} more lines left out: narrow the search …]")
    return "\n".join(shown) or "No match."
