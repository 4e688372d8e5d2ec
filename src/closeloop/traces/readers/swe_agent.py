"""SWE-agent's trajectories, 0.6 to 1.x: a step is an action with its observation."""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from closeloop.records.attempt import Exit, Usage
from closeloop.records.protocols import RecordingSource
from closeloop.records.trace import AnyEvent, Edit, Read, Session, Turn
from closeloop.traces.session_builder import SessionBuilder, derive_id
from closeloop.traces.tool_calls import split_shell_words
from closeloop.traces.untrusted_json import (
    as_amount,
    as_count,
    as_list,
    as_mapping,
    as_text,
    content_text,
    json_excerpt,
    make_usage,
    try_decode_json,
)

name = "swe-agent"
version = 2

MAX_LINE_CHARS = 200_000
_EDITOR_COMMANDS = frozenset(
    {"open", "filemap", "goto", "scroll_up", "scroll_down", "create", "edit", "insert"}
    | {"str_replace_editor", "submit"}
)
_ROLES = frozenset({"system", "user", "assistant", "tool"})
EXIT_BY_STATUS: dict[str, Exit] = {
    "exit_cost": "out_of_budget",
    "exit_context": "out_of_budget",
    "exit_total_execution_time": "out_of_time",
    "exit_command_timeout": "out_of_time",
    "exit_forfeit": "gave_up",
    "exit_command": "gave_up",
    "exit_format": "gave_up",
    "exit_api": "machine",
    "exit_environment_error": "machine",
    "skipped": "gave_up",
}
_REFUSAL_PREFIXES = (
    "Your proposed edit has introduced new syntax error(s)",
    "Your changes have NOT been applied",
    "Your edit was not applied",
    "Your search and replace strings are the same",
    "No replacement was performed",
    "No file open",
    "Usage: ",
    "usage: ",
    "Error: ",
    "ERROR:",
    "Invalid `",
    "The path ",
    "File already exists",
)
_SUCCESS_MARKERS = (
    "File updated.",
    "Text replaced.",
    "Replaced ",
    "[File: ",
    "has been edited.",
    "File created successfully",
    "Last edit to ",
)


def recognises(source: RecordingSource) -> bool:
    head = source.head
    if b'"trajectory"' not in head and b'"history"' not in head and b'"attempts"' not in head:
        return False
    document = as_mapping(source.document)
    attempts = as_list(document.get("attempts"))
    return _is_run(document) or any(
        isinstance(attempt, dict) and _is_run(attempt) for attempt in attempts[:3]
    )


def _is_run(record: Mapping[str, Any]) -> bool:
    steps = record.get("trajectory")
    first = as_list(record.get("history"))[:1]
    has_roles = all(as_text(as_mapping(item).get("role")) in _ROLES for item in first)
    if isinstance(steps, list):
        shaped = all(
            "action" in as_mapping(step) and "observation" in as_mapping(step) for step in steps[:2]
        )
        return (
            shaped and has_roles and bool(steps or first) and isinstance(record.get("info"), dict)
        )
    # Demonstrations may contain only the history.
    return (
        bool(first)
        and has_roles
        and "agent" in as_mapping(first[0])
        and "message_type" in as_mapping(first[0])
    )


def read(source: RecordingSource) -> Iterator[Session]:
    document = as_mapping(source.document)
    attempts = [
        attempt
        for attempt in as_list(document.get("attempts"))
        if isinstance(attempt, dict) and _is_run(attempt)
    ]
    # With several attempts, the file itself is a copy of the chosen one.
    for run in attempts or [document]:
        yield _build_session(run, source)


def _build_session(record: dict[str, Any], source: RecordingSource) -> Session:
    builder = SessionBuilder(name, version, source.skipped, several=True)
    info, history = as_mapping(record.get("info")), as_list(record.get("history"))
    system, request = _opening_messages(history)
    builder.add_user_message(request, "request")
    steps = record.get("trajectory")
    steps = steps if isinstance(steps, list) else _steps_from_history(history)
    shell = _SweAgentShell(builder)
    for step in steps:
        if isinstance(step, dict):
            shell.add_step(step)
        else:
            builder.add_note(json_excerpt(step), "unknown: step")
    status = as_text(info.get("exit_status"))
    outcome, cause = _session_outcome(status) if info else ("finished", None)
    summary = builder.claim_last_message(status or "") if outcome == "finished" and status else None
    if submission := as_text(info.get("submission")):
        builder.add_note(submission, "submission")
    config_fields = _config_fields(record.get("replay_config"), builder)
    return builder.build_session(
        id=_run_id(request, steps),
        agent=name,
        agent_version=builder.text_or_none(info.get("swe_agent_version")),
        system=builder.text_or_none(system),
        exit=outcome,
        cause=cause and builder.truncate_text(cause),
        usage=_stats_usage(info.get("model_stats")),
        summary=summary,
        directory=shell.directory,
        **config_fields,
    )


def _opening_messages(history: list[Any]) -> tuple[str, str]:
    """Return the system prompt, and the user's first message that is not a demonstration."""
    system = request = ""
    for item in history:
        message = as_mapping(item)
        role, text = message.get("role"), content_text(message.get("content"))
        if role == "system" and not system:
            system = text
        elif role == "user" and not message.get("is_demo"):
            request = text
            break
        elif role == "assistant" and not message.get("is_demo"):
            break
    return system, request


def _steps_from_history(history: list[Any]) -> list[Any]:
    """Return steps from the history of a demonstration."""
    steps: list[dict[str, Any]] = []
    for item in history:
        message = as_mapping(item)
        if message.get("is_demo"):
            continue
        if message.get("role") == "assistant":
            text = content_text(message.get("content"))
            steps.append(
                {"thought": message.get("thought") or text, "action": message.get("action")}
            )
        elif steps and message.get("message_type") == "observation":
            steps[-1]["observation"] = content_text(message.get("content"))
    return steps


def _run_id(request: str, steps: list[Any]) -> str:
    """No id is written. Execution times distinguish runs; without them, the whole content does."""
    step_fields = [as_mapping(step) for step in steps]
    timed = [step for step in step_fields[:3] if as_amount(step.get("execution_time"))]
    facts = [
        [str(step.get(key)) for key in ("response", "observation", "execution_time")]
        for step in (timed[:1] or step_fields)
    ]
    return derive_id(name, request, facts)


def _session_outcome(status: str | None) -> tuple[Exit, str | None]:
    if status == "submitted":
        return "finished", None
    if not status:
        return "crashed", "no exit status"
    # `submitted (exit_cost)`: the state at the limit was submitted.
    inner = status.removeprefix("submitted (").removesuffix(")").split(" ")[0]
    return EXIT_BY_STATUS.get(inner, "crashed"), status


def _stats_usage(record: object) -> Usage:
    """Return the agent's count of all calls; empty if it made none."""
    stats = as_mapping(record)
    sent_tokens, received_tokens = (
        as_count(stats.get("tokens_sent")),
        as_count(stats.get("tokens_received")),
    )
    cost = as_amount(stats.get("instance_cost")) or None
    if not sent_tokens and not received_tokens:
        sent_tokens = received_tokens = None
    return make_usage(sent_tokens, received_tokens, cost=cost)


def _config_fields(record: object, builder: SessionBuilder) -> dict[str, Any]:
    """Return the configuration, which newer versions write as a text."""
    config = as_mapping(try_decode_json(record) if isinstance(record, str) else record)
    model = as_mapping(as_mapping(config.get("agent")).get("model")).get("name")
    problem = as_mapping(config.get("problem_statement"))
    commit = as_mapping(as_mapping(config.get("env")).get("repo")).get("base_commit")
    instance = builder.text_or_none(problem.get("id"))
    return {
        "model": builder.text_or_none(model),
        "commit": builder.text_or_none(commit) if commit != "HEAD" else None,
        "links": {"instance": instance} if instance else {},
    }


class _SweAgentShell:
    """The agent's shell, with a file open in its editor."""

    def __init__(self, builder: SessionBuilder) -> None:
        self.builder = builder
        self.directory: str | None = None
        self.place = ""
        self.open = ""

    def add_step(self, step: dict[str, Any]) -> None:
        """Add an action and its result."""
        state = step.get("state")
        state = as_mapping(try_decode_json(state) if isinstance(state, str) else state)
        self.place = self.builder.text_or_none(state.get("working_dir")) or self.place
        open_file = self.builder.text_or_none(state.get("open_file"))
        self.open = open_file if open_file and open_file != "n/a" else self.open
        self.directory = self.directory or self.place or None
        action = as_text(step.get("action")) or ""
        thought = as_text(step.get("thought")) or (
            "" if action else as_text(step.get("response")) or ""
        )
        observation = step.get("observation")
        output = observation if isinstance(observation, str) else None
        if not action.strip() and (output or "").startswith(("Exited", "Environment died")):
            self.builder.turn = None
            self.builder.add_note(thought or output or "", "limit")
            return
        self.builder.begin_turn(Turn())
        for block in as_list(step.get("thinking_blocks")):
            self.builder.add_thought(as_text(as_mapping(block).get("thinking")) or "")
        if action.strip().split(" ")[0] == "submit":
            self.builder.add_agent_message(thought)
        else:
            self.builder.add_thought(thought)
        if not action.strip():
            self.builder.add_note(output or "no action", "format error")
            return
        event = self._add_action(action)
        if output is not None and not (output == "" and "state" in step and not state):
            # An action that was refused has neither an observation nor a state.
            self._finish_action(event, output)
        if seconds := as_amount(step.get("execution_time")):
            self.builder.update_event(event, seconds=seconds)

    def _add_action(self, action: str) -> AnyEvent:
        line, _, body = action.strip().partition("\n")
        program = line.split(" ", 1)[0]
        words: list[str] = []
        if program in _EDITOR_COMMANDS:
            words = _split_words(line if program != "str_replace_editor" and body else action)
        if words and not {"&&", "||", ";", "|", ">"} & set(words):
            match program:
                case "open" | "filemap" if len(words) > 1:
                    if program == "open":
                        self.open = self._absolute_path(words[1])
                    return self._add_read(words[1], _parse_line_number(words[2:]))
                case "goto" | "scroll_up" | "scroll_down" if self.open:
                    return self._add_read(self.open, None)
                case "create" if len(words) == 2:
                    self.open = self._absolute_path(words[1])
                    return self._add_edit(words[1], None, None, "create")
                case "edit" | "insert" if self.open:
                    return self._add_change(program, words[1:], action)
                case "str_replace_editor" if len(words) > 2:
                    return self._add_editor_call(words)
                case "submit":
                    return self.builder.add_tool_use(
                        "submit", {"text": " ".join(words[1:])} if words[1:] else {}
                    )
        return self.builder.add_command(action.strip("\n"), directory=self.place or None)

    def _add_read(self, path: str, first: int | None) -> AnyEvent:
        return self.builder.add(
            Read(**self.builder.event_fields(), path=self._absolute_path(path), first_line=first)
        )

    def _add_edit(self, path: str, before: str | None, after: str | None, action: Any) -> AnyEvent:
        return self.builder.add(
            Edit(
                **self.builder.event_fields(),
                path=self._absolute_path(path),
                action=action,
                before=None if before is None else self.builder.truncate_text(before),
                after=None if after is None else self.builder.truncate_text(after),
            )
        )

    def _add_change(self, program: str, words: list[str], action: str) -> AnyEvent:
        """`edit A:B` or `edit` with lines below, `edit OLD NEW`, `edit TEXT`, `insert TEXT`."""
        body = action.strip("\n").partition("\n")[2]
        lines = body.removesuffix("end_of_edit").removesuffix("\n")
        ranged = bool(words) and ":" in words[0] and words[0].replace(":", "").isdigit()
        if program == "edit" and (not words or ranged):
            return self._add_edit(self.open, None, lines, "change")
        arguments = _split_words(action)[1:] if body else words
        if program == "edit" and len(arguments) > 1:
            return self._add_edit(self.open, arguments[0], arguments[1], "change")
        return self._add_edit(self.open, None, arguments[0] if arguments else lines, "change")

    def _add_editor_call(self, words: list[str]) -> AnyEvent:
        editor_arguments: dict[str, Any] = {"command": words[1], "path": words[2]}
        for flag, value in itertools.pairwise(words[3:]):
            if flag.startswith("--"):
                editor_arguments.setdefault(flag[2:], value)
        return self.builder.add_call("str_replace_editor", editor_arguments)

    def _absolute_path(self, path: str) -> str:
        return self.builder.truncate_text(posixpath.normpath(posixpath.join(self.place, path)))

    def _finish_action(self, event: AnyEvent, output: str) -> None:
        start = output.lstrip()[:400]
        if isinstance(event, Edit | Read):
            refused = start.startswith(_REFUSAL_PREFIXES) or "NOT been applied" in output
            missing = isinstance(event, Read) and start.startswith("File ") and "not found" in start
            succeeded = any(sign in output for sign in _SUCCESS_MARKERS) or isinstance(event, Read)
            self.builder.add_result(
                event, output, False if refused or missing else succeeded or None
            )
            return
        finished = self.builder.add_result(event, output)
        timed_out = "EXECUTION TIMED OUT" in output[-200:] or (
            start.startswith("The command ") and "was cancelled because it took more than" in output
        )
        if timed_out and hasattr(finished, "stopped"):
            self.builder.update_event(finished, stopped="out of time")


def _split_words(line: str) -> list[str]:
    """Split as a shell does; empty if it is too long."""
    if len(line) > MAX_LINE_CHARS:
        return []
    try:
        return split_shell_words(line)
    except ValueError:
        return line.split()


def _parse_line_number(words: list[str]) -> int | None:
    return int(words[0]) if words and words[0].isdecimal() and len(words[0]) < 10 else None
