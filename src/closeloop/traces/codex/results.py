"""The results of calls, and what Codex's events tell of the same calls besides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from closeloop.model.trace import Command, Edit, Handoff, Message, Read, ToolUse
from closeloop.traces.calls import command_in
from closeloop.traces.codex import patches, scripts
from closeloop.traces.codex.lane import Lane
from closeloop.traces.codex.outputs import (
    Output,
    duration,
    output_of,
    reply_in,
)
from closeloop.traces.untrusted import decoded, exit_code, items, mapping, raw

_DONE = "Success. Updated the following files"
_NEAR = 1000
"""So many events after a script may be what it did."""


def take_output(lane: Lane, call: Any, content: Any) -> None:
    """A result, for the oldest call with this id that has none."""
    lane.hears()
    output = output_of(content)
    group, again = lane.closed(call)
    if not group:
        lane.note(output.text, "a result without a call")
        return
    text = lane.text(output.text)
    if output.stopped == "rejected":
        lane.told(text, "user", "correction")
    for number in group:
        if again:
            _more(lane, number, text)
        else:
            _finish(lane, number, output, text)


def _more(lane: Lane, number: int, text: str) -> None:
    """A script may say something before it ends."""
    event = lane.event(number)
    if isinstance(event, ToolUse | Command):
        before = f"{event.output}\n" if event.output else ""
        lane.builder.finish(event, output=lane.text(before + text))


def _finish(lane: Lane, number: int, output: Output, text: str) -> None:
    event = lane.event(number)
    finish = lane.builder.finish
    match event:
        case Command():
            _ran(lane, event, output, text)
        case Edit():
            ok = _applied(output) if event.ok is None else event.ok
            finish(event, ok=ok, error=text if ok is False else None)
        case Read():
            failed = output.ok is False
            told = {"error": text} if failed else {"text": text}
            finish(event, ok=output.ok, **told)
        case Handoff():
            _handed(lane, number, text)
        case Message():
            finish(event)
            _answered(lane, text)
        case ToolUse():
            finish(event, output=text, ok=_worked_out(output) if event.ok is None else event.ok)
            _used(lane, event, output, text)


def _used(lane: Lane, event: ToolUse, output: Output, text: str) -> None:
    """What a tool's result says of other calls."""
    if event.name == "exec":
        _scripted(lane, event, text)
    elif event.name == "write_stdin":
        _continued(lane, (event.arguments or {}).get("session_id"), output)
    elif text.startswith("{") and event.name.endswith(("wait_agent", "wait")):
        for agent, status in mapping(mapping(decoded(text)).get("status")).items():
            lane.handoffs.returned(agent, status)


def _scripted(lane: Lane, event: ToolUse, text: str) -> None:
    """The command that a script ran, in versions that keep no event of its end."""
    given = scripts.command_in((event.arguments or {}).get("input"))
    said = scripts.printed(text)
    if given is None or said is None:
        return
    later = lane.builder.events[event.number : event.number + _NEAR]
    if any(isinstance(one, Command) and one.lane == lane.name for one in later):
        return
    told = mapping(decoded(said)) if said.startswith("{") else {}
    code, output = exit_code(told.get("exit_code")), told.get("output")
    result = Output(
        output if isinstance(output, str) else said, None, code, None if code is None else "parsed"
    )
    for number in lane.did("exec_command", dict(given), None):
        _finish(lane, number, result, result.text)
    lane.closed(None)


def _worked_out(output: Output) -> bool | None:
    if output.ok is None and output.text.startswith(("Script completed\n", "Script failed\n")):
        return output.text.startswith("Script completed")
    return output.ok


def _ran(lane: Lane, event: Command, output: Output, text: str) -> None:
    told: dict[str, Any] = {"output": text}
    if event.exit_from is None:
        told |= {"exit_code": output.exit_code, "exit_from": output.exit_from}
    if event.seconds is None and output.session is None:
        told["seconds"] = output.seconds
    if stopped := output.stopped:
        told["stopped"] = stopped
    lane.builder.finish(event, **told)
    if output.session is not None and event.exit_from is None:
        lane.runs(event.number, output.session, output.text)


def _continued(lane: Lane, session: Any, output: Output) -> None:
    """More of a process that its command left running."""
    number = lane.running(session)
    command = None if number is None else lane.event(number)
    if number is None or not isinstance(command, Command):
        return
    lane.streams(number, output.text)
    if output.exit_code is not None:
        if command.exit_from is None:
            told = {"exit_code": output.exit_code, "exit_from": output.exit_from}
            lane.builder.finish(command, **told)
        lane.ends(number)


def _applied(output: Output) -> bool | None:
    if output.exit_code is not None:
        return output.exit_code == 0
    if output.ok is not None:
        return output.ok
    if _DONE in output.text[:2000]:
        return True
    start = output.text[:200].lower()
    return False if "fail" in start or "error" in start or "rejected" in start else None


def _handed(lane: Lane, number: int, text: str) -> None:
    told = decoded(text) if text.startswith("{") else None
    agent, path = mapping(told).get("agent_id"), mapping(told).get("task_name")
    if isinstance(agent, str):
        lane.handoffs.taken(number, agent, path)
    elif isinstance(path, str):
        lane.handoffs.named(number, path)
    elif not isinstance(told, dict):
        lane.handoffs.refused(number, text)
    lane.builder.finish(lane.event(number))


def _answered(lane: Lane, text: str) -> None:
    told = mapping(decoded(text)) if text.startswith("{") else {}
    answers = mapping(told.get("answers"))
    if not answers:
        lane.note(text, "a question without an answer")
        return
    words = [
        word
        for answer in answers.values()
        for word in items(mapping(answer).get("answers") if isinstance(answer, dict) else answer)
    ]
    lane.told("\n".join(word for word in words if isinstance(word, str)), "user", "answer")


def take_command(lane: Lane, call: Any, told: Mapping[str, Any]) -> None:
    """The end of a process, told by an event: for a call, or for a script's own."""
    group = lane.group(call)
    told_output = told.get("aggregated_output") or told.get("stdout") or ""
    output = told_output if isinstance(told_output, str) else ""
    if told.get("source") == "user_shell":
        lane.note(f"{command_in(told)}\n{output}", "the user's own command")
        return
    if group is None:
        directory = told.get("cwd")
        where = directory.removeprefix("file://") if isinstance(directory, str) else None
        command = command_in(told)
        if command is None:
            lane.note(raw(told), "unknown: command")
            return
        group = lane.did("exec_command", {"cmd": command, "workdir": where}, call)
        lane.closed(call)
    code = exit_code(told.get("exit_code"))
    for number in group:
        event = lane.event(number)
        if isinstance(event, Command):
            known: dict[str, Any] = {"seconds": duration(told.get("duration"))}
            if code is not None:
                known |= {"exit_code": code, "exit_from": "stated"}
            if event.output is None:
                known["output"] = lane.text(output)
            lane.builder.finish(event, **known)
            if output:
                lane.ends(number, output if event.output is not None else None)


def take_change(lane: Lane, call: Any, told: Mapping[str, Any]) -> None:
    """A patch that was applied or not, told by an event."""
    group = lane.group(call)
    if group is None:
        group = lane.changed(patches.in_changes(told.get("changes")), call)
    ok = told.get("success")
    if not isinstance(ok, bool):
        ok = {"completed": True, "failed": False, "declined": False}.get(str(told.get("status")))
    error = told.get("stderr") if ok is False else None
    for number in group:
        event = lane.event(number)
        if isinstance(event, Edit):
            said = lane.text(error) if isinstance(error, str) and error else None
            lane.builder.finish(event, ok=ok, error=said)


def take_tool(lane: Lane, call: Any, told: Mapping[str, Any]) -> None:
    """The end of a call to another server's tool, told by an event."""
    group = lane.group(call)
    result = told.get("result") or told.get("error")
    if group is None:
        server, tool = told.get("server"), str(told.get("tool") or "tool")
        arguments = told.get("arguments")
        name = f"mcp__{server}__{tool}" if isinstance(server, str) else tool
        given = arguments if isinstance(arguments, dict) else None
        group = lane.did(name, given, call)
        lane.closed(call)
    for number in group:
        event = lane.event(number)
        if isinstance(event, ToolUse):
            known: dict[str, Any] = {"ok": _worked(told, result)}
            if event.output is None and (reply := reply_in(result)) is not None:
                known["output"] = lane.text(reply)
            if event.seconds is None:
                known["seconds"] = duration(told.get("duration"))
            lane.builder.finish(event, **known)


def _worked(told: Mapping[str, Any], result: Any) -> bool | None:
    if told.get("error"):
        return False
    if isinstance(success := told.get("success"), bool):
        return success
    outcome = mapping(result)
    if "Err" in outcome:
        return False
    inner = mapping(outcome.get("Ok")) or outcome
    failed = inner.get("isError", inner.get("is_error"))
    if isinstance(failed, bool):
        return not failed
    status = told.get("status")
    return {"completed": True, "failed": False}.get(status) if isinstance(status, str) else None
