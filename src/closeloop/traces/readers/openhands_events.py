"""OpenHands 0.x: a list of events, its folder of event files, or an evaluation's output lines."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from closeloop.records.attempt import Exit, Usage
from closeloop.records.protocols import RecordingSource
from closeloop.records.trace import AnyEvent, Command, Edit, Handoff, Read, Session, ToolUse, Turn
from closeloop.text.code_patterns import parse_expression, parse_python
from closeloop.traces.readers.openhands_sdk import read_first_value
from closeloop.traces.session_builder import ROOT_LANE, SessionBuilder, count_skip, derive_id
from closeloop.traces.untrusted_json import (
    as_amount,
    as_count,
    as_exit_code,
    as_list,
    as_mapping,
    as_text,
    content_text,
    json_excerpt,
    seconds_between,
    time_from_text,
    usage_from_openai,
    with_total_cost,
)

# OpenHands' events, in order: actions, and observations that name their action.


_EXIT_BY_STATE: dict[str, Exit] = {
    "error": "crashed",
    "rejected": "gave_up",
    "stopped": "gave_up",
    "rate_limited": "machine",
}
_FAILURE_PREFIXES = (
    "ERROR:",
    "[Your proposed edit has introduced new syntax error",
    "[Cell execution error",
)
_TOKEN_KEYS = ("prompt_tokens", "completion_tokens", "cache_read_tokens", "cache_write_tokens")
_ASIDE_ACTIONS = frozenset(
    {"change_agent_state", "condensation_request", "loop_recovery", "pause", "resume"}
)
MAX_CODE_CHARS = 200_000
_EDITOR = "print(file_editor(**"
_SKILLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "open_file": ("read_file", ("path", "first_line")),
    "create_file": ("create_file", ("path",)),
    "edit_file_by_replace": ("edit_file", ("path", "old_str", "new_str")),
    "insert_content_at_line": ("edit_file", ("path", "insert_line", "new_str")),
    "append_file": ("edit_file", ("path", "new_str")),
    "edit_file_by_line": ("edit_file", ("path", "start", "end", "new_str")),
}
_COMMON_PARAMETERS = {
    "file_name": "path",
    "filename": "path",
    "line_number": "first_line",
    "to_replace": "old_str",
    "new_content": "new_str",
    "content": "new_str",
}


class OpenhandsStream:
    """Builds a session. Delegates use the same stream until they report."""

    def __init__(self, reader: str, version: int, source: RecordingSource) -> None:
        self.builder = SessionBuilder(reader, version, source.skipped, several=True)
        self.actions: dict[int, AnyEvent] = {}
        self.waiting: AnyEvent | None = None
        self.delegates: list[tuple[AnyEvent, str, dict[str, float]]] = []
        self.responses: dict[str, int] = {}
        self.counted: dict[str, float] = {}
        self.asked = False
        self.requested = False
        self.system: str | None = None
        self.version: str | None = None
        self.model: str | None = None
        self.state: tuple[str, str | None] = ("", None)
        self.summary: str | None = None

    def add_event(self, record: Any) -> None:
        """Add one event of any kind."""
        event = as_mapping(record)
        self.builder.at = self.builder.record_time(time_from_text(event.get("timestamp")))
        kind, observation = event.get("action"), event.get("observation")
        if isinstance(kind, str):
            action_arguments = event.get("args")
            self._add_action(
                kind, event, action_arguments if isinstance(action_arguments, dict) else event
            )
        elif isinstance(observation, str):
            extras = event.get("extras")
            self._add_observation(observation, event, extras if isinstance(extras, dict) else event)
        else:
            self.builder.add_note(json_excerpt(record), "unknown: event")

    # Actions

    def _add_action(self, kind: str, event: dict[str, Any], arguments: dict[str, Any]) -> None:
        is_by_agent = event.get("source", "agent") == "agent"
        thought = arguments.get("thought")
        if is_by_agent and kind not in (
            "system",
            "message",
            "recall",
            "null",
            "change_agent_state",
        ):
            self._begin_turn(event)
            if isinstance(thought, str) and kind not in ("finish", "think"):
                self.builder.add_thought(thought)
        if handler := _ACTION_HANDLERS.get(kind):
            added_event = handler(self, event, arguments)
        elif kind in ("null", "start", "recall"):
            self.builder.count_skip("an empty event" if kind != "recall" else "a copy of a message")
            return
        elif kind in _ASIDE_ACTIONS:
            self.builder.add_note(_state_text(arguments), kind)
            return
        else:
            plain = {key: value for key, value in arguments.items() if key != "thought"}
            added_event = self.builder.add_tool_use(kind, plain, _call_id(event))
        if added_event is not None:
            number = event.get("id")
            if isinstance(number, int):
                self.actions[number] = added_event
            self.waiting = added_event

    def _add_system_prompt(self, event: dict[str, Any], arguments: dict[str, Any]) -> None:
        if self.system is None and isinstance(arguments.get("content"), str):
            self.system = self.builder.truncate_text(arguments["content"])
        self.version = self.version or self.builder.text_or_none(arguments.get("openhands_version"))

    def _add_message(self, event: dict[str, Any], arguments: dict[str, Any]) -> None:
        text = content_text(arguments.get("content"))
        if event.get("source", "agent" if self.requested else "user") != "agent":
            intent = "answer" if self.asked else None if self.requested else "request"
            self.builder.add_user_message(text, intent)  # type: ignore[arg-type]
            self.requested, self.asked = True, False
            return
        self._begin_turn(event)
        self.asked = bool(arguments.get("wait_for_response")) and "?" in text
        self.builder.add_agent_message(text, "question" if self.asked else None)
        self.summary = self.builder.truncate_text(text)

    def _add_command(self, event: dict[str, Any], arguments: dict[str, Any]) -> AnyEvent:
        line = as_text(arguments.get("command")) or ""
        return self.builder.add_command(
            line, _call_id(event), self.builder.text_or_none(arguments.get("cwd"))
        )

    def _add_cell(self, event: dict[str, Any], arguments: dict[str, Any]) -> AnyEvent:
        code = as_text(arguments.get("code")) or ""
        if skill_call := parse_skill_call(code):
            return self.builder.add_call(*skill_call, _call_id(event))
        return self.builder.add_tool_use("run_ipython", {"code": code}, _call_id(event))

    def _add_read(self, event: dict[str, Any], arguments: dict[str, Any]) -> AnyEvent:
        lines = [
            n for n in as_list(arguments.get("view_range"))[:2] if isinstance(n, int) and n > 0
        ]
        return self.builder.add(
            Read(
                **self.builder.event_fields(_call_id(event)),
                path=self.builder.truncate_text(as_text(arguments.get("path")) or ""),
                first_line=lines[0] if lines else None,
                last_line=lines[1] if len(lines) > 1 else None,
            )
        )

    def _add_write(self, event: dict[str, Any], arguments: dict[str, Any]) -> AnyEvent:
        return self._add_file_change(event, arguments, "create", None, arguments.get("content"))

    def _add_edit(self, event: dict[str, Any], arguments: dict[str, Any]) -> AnyEvent:
        code = arguments.get("translated_ipython_code")
        if isinstance(code, str):
            arguments = {**arguments, **parse_editor_arguments(code)}
        if arguments.get("command") == "view":
            return self._add_read(event, arguments)
        create = arguments.get("command") == "create"
        after = arguments.get("file_text") if create else arguments.get("new_str")
        after = after if isinstance(after, str) else as_text(arguments.get("content"))
        return self._add_file_change(
            event, arguments, "create" if create else "change", arguments.get("old_str"), after
        )

    def _add_file_change(
        self, event: Any, arguments: dict[str, Any], action: Any, before: Any, after: Any
    ) -> AnyEvent:
        return self.builder.add(
            Edit(
                **self.builder.event_fields(_call_id(event)),
                path=self.builder.truncate_text(as_text(arguments.get("path")) or ""),
                action=action,
                before=self.builder.truncate_text(before) if isinstance(before, str) else None,
                after=self.builder.truncate_text(after) if isinstance(after, str) else None,
            )
        )

    def _add_delegation(self, event: dict[str, Any], arguments: dict[str, Any]) -> AnyEvent:
        inputs = as_mapping(arguments.get("inputs"))
        brief = as_text(inputs.get("task")) or (json_excerpt(inputs) if inputs else "")
        lane = f"delegate-{len(self.delegates) + self.builder.next_number}"
        self.builder.open_lane(
            lane, self.builder.lane, self.builder.text_or_none(arguments.get("agent"))
        )
        handoff = self.builder.add(
            Handoff(
                **self.builder.event_fields(_call_id(event)),
                brief=self.builder.truncate_text(brief),
                child=lane,
            )
        )
        self.delegates.append((handoff, self.builder.lane, self.counted))
        self.builder.lane, self.builder.turn = lane, None
        return handoff

    def _add_thought(self, event: dict[str, Any], arguments: dict[str, Any]) -> None:
        self.builder.add_thought(as_text(arguments.get("thought")) or "", _call_id(event))

    def _add_claim(self, event: dict[str, Any], arguments: dict[str, Any]) -> None:
        outputs = as_mapping(arguments.get("outputs"))
        candidates = (
            arguments.get("final_thought"),
            arguments.get("thought"),
            outputs.get("content"),
        )
        text = next(
            (
                candidate
                for candidate in candidates
                if isinstance(candidate, str) and candidate.strip()
            ),
            "",
        )
        text = text or as_text(event.get("message")) or "finish"
        self.builder.add_agent_message(text, "claim", _call_id(event))
        if self.builder.lane == ROOT_LANE:
            self.summary = self.builder.truncate_text(text)
            self.state = ("finished", None)

    def _add_rejection(self, event: dict[str, Any], arguments: dict[str, Any]) -> None:
        text = as_text(as_mapping(arguments.get("outputs")).get("reason")) or as_text(
            arguments.get("thought")
        )
        self.builder.add_note(text or "reject", "reject")
        if self.builder.lane == ROOT_LANE:
            self.state = ("rejected", text)

    def _add_compaction(self, event: dict[str, Any], arguments: dict[str, Any]) -> None:
        self.builder.add_note(
            as_text(arguments.get("summary")) or json_excerpt(arguments), "compaction"
        )

    # Observations

    def _add_observation(self, kind: str, event: dict[str, Any], extras: dict[str, Any]) -> None:
        text = content_text(event.get("content"))
        action = self._take_action(event)
        if kind == "delegate" and self.delegates:
            self._finish_delegation(text or json_excerpt(as_mapping(extras.get("outputs"))), event)
        elif kind == "agent_state_changed":
            state = as_text(extras.get("agent_state")) or ""
            self.state = (state, as_text(extras.get("reason")))
            self.builder.add_note(f"{state} {extras.get('reason') or ''}".strip(), "state")
        elif kind == "user_rejected":
            if action is not None:
                self.builder.add_refusal(action, text)
            self.builder.add_user_message(text or "rejected", "correction")
        elif action is None:
            if kind in ("null", "think"):
                self.builder.count_skip("an empty event")
            else:
                note_kind = kind if kind in ("error", "recall") else f"unknown: {kind}"
                self.builder.add_note(text or json_excerpt(event), note_kind)
        else:
            self._finish_action(action, kind, text, extras)

    def _take_action(self, event: Mapping[str, Any]) -> AnyEvent | None:
        cause, waiting = event.get("cause"), self.waiting
        if isinstance(cause, int):
            return self.actions.pop(cause, None)
        if "id" in event or waiting is None:
            return None
        # Files without ids: what comes next is the result.
        self.waiting = None
        return waiting

    def _finish_action(
        self, action: AnyEvent, kind: str, text: str, extras: dict[str, Any]
    ) -> None:
        failed = kind == "error" or text.startswith(_FAILURE_PREFIXES)
        ok: bool | None = not failed
        if kind == "run_ipython" and isinstance(action, ToolUse):
            ok = False if "Traceback (most recent call last)" in text else None
        facts: dict[str, object] = {"seconds": seconds_between(action.at, self.builder.at)}
        finished_event = self.builder.add_result(action, text, ok)
        if isinstance(finished_event, Command):
            stated_code = as_mapping(extras.get("metadata")).get(
                "exit_code", extras.get("exit_code")
            )
            code = as_exit_code(stated_code)
            # -1 means that it was still running.
            if code is not None and code != -1:
                facts |= {"exit_code": code, "exit_from": "stated"}
        elif isinstance(finished_event, Edit):
            facts |= self._edit_fields(finished_event, text, extras, failed=failed)
        self.builder.update_event(finished_event, **facts)

    def _edit_fields(
        self, edit: Edit, text: str, extras: dict[str, Any], *, failed: bool
    ) -> dict[str, object]:
        """Return what the observation knows about a file before and after."""
        facts: dict[str, object] = {}
        patch = as_text(extras.get("diff")) or (text if text.startswith("--- ") else None)
        if patch and not failed:
            facts["patch"] = self.builder.truncate_text(patch)
        # Some versions report every file as missing.
        new = extras.get("prev_exist") is False and edit.before is None
        if new and not failed and not extras.get("old_content"):
            facts["action"] = "create"
        if edit.after is None and isinstance(extras.get("new_content"), str):
            facts["after"] = self.builder.truncate_text(extras["new_content"])
            if isinstance(extras.get("old_content"), str):
                facts["before"] = self.builder.truncate_text(extras["old_content"])
        return facts

    def _finish_delegation(self, text: str, event: Mapping[str, Any]) -> None:
        action, lane, parent_counts = self.delegates.pop()
        if parent_counts and self.counted["prompt_tokens"] < parent_counts["prompt_tokens"]:
            self.counted = parent_counts
        self.builder.lane, self.builder.turn = lane, action.turn
        finished_event = self.builder.add_result(action, text, ok=None)
        self.builder.update_event(
            finished_event, seconds=seconds_between(action.at, self.builder.at)
        )

    # Usage and end

    def _begin_turn(self, event: Mapping[str, Any]) -> None:
        """Count a provider message once, by its own usage or by a growing total."""
        answer = as_mapping(as_mapping(event.get("tool_call_metadata")).get("model_response"))
        response_id = as_text(answer.get("id"))
        model = self.builder.text_or_none(answer.get("model"))
        self.model = self.model or model
        metrics = as_mapping(event.get("llm_metrics"))
        usage = self._usage_growth(metrics) if metrics else self._stated_usage(answer.get("usage"))
        if response_id is not None and response_id in self.responses:
            self.builder.turn = self.responses[response_id]
            return
        turn = self.builder.begin_turn(Turn(usage=usage, model=model, at=self.builder.at))
        if response_id is not None:
            self.responses[response_id] = turn

    def _stated_usage(self, record: object) -> Usage:
        """Return the usage of an answer itself, which a growing total includes too."""
        for key in _TOKEN_KEYS[:2] if self.counted else ():
            self.counted[key] += as_count(as_mapping(record).get(key)) or 0
        return usage_from_openai(record)

    def _usage_growth(self, metrics: Mapping[str, Any]) -> Usage:
        """Return what was added since the last total."""
        totals = as_mapping(metrics.get("accumulated_token_usage"))
        current: dict[str, float] = {key: as_count(totals.get(key)) or 0 for key in _TOKEN_KEYS}
        current["cost"] = as_amount(metrics.get("accumulated_cost")) or 0.0
        if self.counted and current["prompt_tokens"] < self.counted["prompt_tokens"]:
            # A delegate with a count of its own.
            self.counted = dict.fromkeys(current, 0)
        grown = {key: max(value - self.counted.get(key, 0), 0) for key, value in current.items()}
        self.counted = current
        return usage_from_openai(
            {key: int(grown[key]) for key in _TOKEN_KEYS}, round(grown["cost"], 9)
        )

    def total_usage(self, metrics: Mapping[str, Any]) -> Usage:
        """Return the usage of all turns, or the evaluation's count if there is none."""
        turns = self.builder.total_usage()
        if turns.input_tokens is None and turns.output_tokens is None:
            turns = usage_from_openai(metrics.get("accumulated_token_usage"))
        return with_total_cost(turns, metrics.get("accumulated_cost"))

    def session_outcome(self, error: str | None) -> tuple[Exit, str | None]:
        """Return how it ended, by the evaluation or the agent's last state."""
        if error:
            limits = ("maximum iteration", "max budget", "budget")
            spent = any(limit in error.lower() for limit in limits)
            return ("out_of_budget" if spent else "crashed"), error
        state, reason = self.state
        return _EXIT_BY_STATE.get(state, "finished"), (
            reason or state
        ) if state in _EXIT_BY_STATE else None


_ACTION_HANDLERS: dict[
    str, Callable[[OpenhandsStream, dict[str, Any], dict[str, Any]], AnyEvent | None]
] = {
    "system": OpenhandsStream._add_system_prompt,
    "message": OpenhandsStream._add_message,
    "run": OpenhandsStream._add_command,
    "run_ipython": OpenhandsStream._add_cell,
    "read": OpenhandsStream._add_read,
    "write": OpenhandsStream._add_write,
    "edit": OpenhandsStream._add_edit,
    "delegate": OpenhandsStream._add_delegation,
    "think": OpenhandsStream._add_thought,
    "finish": OpenhandsStream._add_claim,
    "reject": OpenhandsStream._add_rejection,
    "condensation": OpenhandsStream._add_compaction,
}


def _call_id(event: Mapping[str, Any]) -> str | None:
    return as_text(as_mapping(event.get("tool_call_metadata")).get("tool_call_id"))


def _state_text(arguments: Mapping[str, Any]) -> str:
    return as_text(arguments.get("agent_state")) or json_excerpt(arguments)


def parse_skill_call(code: str) -> tuple[str, dict[str, Any]] | None:
    """Return the single helper call in a cell, as a tool's name and arguments."""
    name = code.partition("(")[0].strip()
    if name not in _SKILLS or len(code) > MAX_CODE_CHARS:
        return None
    try:
        body = parse_python(code.strip()).body
        call = body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None
        if not isinstance(call, ast.Call):
            return None
        tool, names = _SKILLS[name]
        call_arguments = dict(zip(names, map(ast.literal_eval, call.args), strict=False))
        for keyword in call.keywords:
            key = keyword.arg or ""
            call_arguments[_COMMON_PARAMETERS.get(key, key)] = ast.literal_eval(keyword.value)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None
    return tool, call_arguments


def parse_editor_arguments(code: str) -> dict[str, Any]:
    """Return the editor's arguments if it was called in a cell."""
    if not code.startswith(_EDITOR) or not code.endswith("))") or len(code) > MAX_CODE_CHARS:
        return {}
    try:
        editor_arguments = ast.literal_eval(parse_expression(code[len(_EDITOR) : -2]))
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return {}
    return (
        editor_arguments
        if isinstance(editor_arguments, dict)
        and all(isinstance(key, str) for key in editor_arguments)
        else {}
    )


name = "openhands-events"
version = 2

FORMAT_MARKERS = (b'"action"', b'"observation"', b'"instance_id"', b'"instruction"')


def recognises(source: RecordingSource) -> bool:
    if not any(sign in source.head for sign in FORMAT_MARKERS):
        return False
    first = read_first_value(source)
    if isinstance(first, dict):
        return _is_output(first) or _is_folder_event(first)
    return isinstance(first, list) and bool(first) and _is_list(first)


def _is_event(record: object) -> bool:
    event = as_mapping(record)
    kind = event.get("action", event.get("observation"))
    return isinstance(kind, str) and not {"role", "type", "kind"} & event.keys()


def _is_list(record: list[Any]) -> bool:
    return all(
        _is_event(event) and "timestamp" in event and "source" in event for event in record[:3]
    )


def _is_folder_event(record: Mapping[str, Any]) -> bool:
    """Whether it is one event of a session's folder."""
    has_content = "args" in record or "extras" in record
    return has_content and isinstance(record.get("id"), int) and _is_list([record])


def _is_output(record: Mapping[str, Any]) -> bool:
    """Whether it is a line of an evaluation: one instance."""
    history = as_list(record.get("history"))
    first = history[0] if history else None
    first = first[0] if isinstance(first, list) and first else first
    return _is_event(first) and ("instruction" in record or "instance_id" in record)


def parts(source: RecordingSource) -> Sequence[Path]:
    if not _is_folder_event(as_mapping(read_first_value(source))):
        return ()
    return [path for path in _list_event_files(source.path.parent) if path != source.path]


def owner(source: RecordingSource) -> Path | None:
    if not _is_folder_event(as_mapping(read_first_value(source))):
        return None
    first = next(iter(_list_event_files(source.path.parent)), source.path)
    return first if first != source.path and source.path.stem.isdecimal() else None


def _list_event_files(folder: Path) -> list[Path]:
    """Event files are named by number."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(".json")]
    except OSError:
        return []
    numbered = [(int(stem), name) for name in names if (stem := name[:-5]).isdecimal()]
    return [folder / name for _, name in sorted(numbered)]


def read(source: RecordingSource) -> Iterator[Session]:
    first_document = read_first_value(source)
    if isinstance(first_document, list):
        yield _build_session(
            OpenhandsStream(name, version, source), _flatten_history(first_document), {}
        )
    elif isinstance(first_document, dict) and _is_folder_event(first_document):
        numbered = source.path.stem.isdecimal()
        paths = _list_event_files(source.path.parent) if numbered else [source.path]
        events = (
            first_document if path == source.path else _load_event(source, path) for path in paths
        )
        yield _build_session(OpenhandsStream(name, version, source), events, {})
    else:
        for line in source.records():
            if isinstance(line, dict) and _is_output(line):
                stream, history = (
                    OpenhandsStream(name, version, source),
                    [*_flatten_history(as_list(line["history"]))],
                )
                if (instruction := as_text(line.get("instruction"))) and not any(
                    map(_is_request, history)
                ):
                    message_fields = {"content": instruction}
                    stream.add_event(
                        {"source": "user", "action": "message", "args": message_fields}
                    )
                yield _build_session(stream, iter(history), line)
            else:
                reason = "a line that is no instance"
                count_skip(source.skipped, reason)


def _is_request(event: Any) -> bool:
    fields = as_mapping(event)
    return fields.get("action") == "message" and fields.get("source", "user") == "user"


def _load_event(source: RecordingSource, path: Path) -> Any:
    return source.beside(path).document


def _flatten_history(history: list[Any]) -> Iterator[Any]:
    """Old files pair each action with its observation."""
    for event in history:
        if isinstance(event, list):
            yield from event
        else:
            yield event


def _build_session(
    stream: OpenhandsStream, events: Iterator[Any], line: Mapping[str, Any]
) -> Session:
    first: Any = None
    for event in events:
        first = first or event
        stream.add_event(event)
    builder = stream.builder
    outcome, cause = stream.session_outcome(as_text(line.get("error")))
    builder.mark_corrections()
    summary = builder.mark_claim() if outcome == "finished" else stream.summary
    metrics, metadata = as_mapping(line.get("metrics")), as_mapping(line.get("metadata"))
    patch = as_mapping(line.get("test_result")).get("git_patch") or line.get("git_patch")
    if isinstance(patch, str) and patch:
        builder.turn = None
        builder.add_note(patch, "submission")
    instance = builder.text_or_none(line.get("instance_id"))
    return builder.build_session(
        id=derive_id(
            name, first, instance, metadata.get("start_time"), metrics.get("accumulated_cost")
        ),
        agent="openhands",
        agent_version=stream.version,
        model=stream.model
        or builder.text_or_none(as_mapping(metadata.get("llm_config")).get("model")),
        system=stream.system,
        exit=outcome,
        cause=cause and builder.truncate_text(cause),
        usage=stream.total_usage(metrics),
        summary=summary,
        commit=builder.text_or_none(line.get("base_commit")),
        links={"instance": instance} if instance else {},
    )
