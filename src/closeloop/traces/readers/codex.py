"""Codex rollouts: the JSONL files under `~/.codex/sessions`, compressed or not."""

from __future__ import annotations

import heapq
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import date, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from closeloop.records.attempt import Exit
from closeloop.records.protocols import RecordingSource
from closeloop.records.record import content_digest
from closeloop.records.trace import Handoff, Message, Session
from closeloop.traces.readers.codex_lane import CodexRollout, RecordFields
from closeloop.traces.readers.codex_results import (
    apply_command_end,
    apply_output,
    apply_patch_end,
    apply_tool_end,
)
from closeloop.traces.session_builder import ROOT_LANE, SessionBuilder
from closeloop.traces.untrusted_json import (
    as_label,
    as_list,
    as_mapping,
    as_text,
    content_text,
    json_excerpt,
    time_from_text,
    try_decode_json,
)

# The records of a Codex rollout, each handled by its type.


_REDUNDANT_ITEMS = frozenset(
    {"Reasoning", "WebSearch", "ImageView", "ImageGeneration", "HookPrompt"}
)
_IGNORED_TYPES = frozenset({
    "additional_tools", "agent_reasoning", "agent_reasoning_raw_content", "background_event",
    "compaction", "compaction_trigger", "context_compaction", "exec_command_begin",
    "ghost_snapshot", "image_generation_end", "inter_agent_communication_metadata",
    "item_started", "mcp_tool_call_begin", "patch_apply_begin", "plan_update",
    "security_risk_score", "session_configured", "session_state", "thread_name_updated",
    "thread_settings_applied", "turn_diff", "web_search_begin", "web_search_end",
    "world_state", "collab_agent_spawn_begin", "collab_waiting_begin", "collab_close_begin",
    "collab_agent_interaction_begin", "collab_resume_begin",
})  # fmt: skip
"""Records about internals, or that repeat another record."""
_BARE_TYPES = frozenset({
    "message", "reasoning", "function_call", "function_call_output", "custom_tool_call",
    "custom_tool_call_output", "local_shell_call", "web_search_call",
})  # fmt: skip
"""Records without an envelope in files of early 2025."""


def handle_message(reading: CodexRollout, record: RecordFields) -> None:
    reading.conversation.add_model_message(record)


def handle_reasoning(reading: CodexRollout, record: RecordFields) -> None:
    texts = [content_text(record.get("summary")), content_text(record.get("content"))]
    text = "\n".join(text for text in texts if text)
    if text:
        reading.lane.add_thought(text)
    else:
        reading.lane.open_turn()


def handle_function_call(reading: CodexRollout, record: RecordFields) -> None:
    raw_arguments = record.get("arguments")
    arguments = try_decode_json(raw_arguments)
    if not isinstance(arguments, dict):
        arguments = {"arguments": raw_arguments} if raw_arguments else None
    hidden = as_list(record.get("encrypted_function_args"))
    if arguments is not None and "message" in hidden:
        arguments["message"] = f"[encrypted] {arguments.get('task_name') or ''}".strip()
    reading.lane.add_call(_tool_name(record), arguments, record.get("call_id"))


def handle_custom_tool_call(reading: CodexRollout, record: RecordFields) -> None:
    reading.lane.add_call(_tool_name(record), {"input": record.get("input")}, record.get("call_id"))


def handle_local_shell_call(reading: CodexRollout, record: RecordFields) -> None:
    action = as_mapping(record.get("action"))
    shell_arguments = {"command": action.get("command"), "workdir": action.get("working_directory")}
    reading.lane.add_call("local_shell", shell_arguments, record.get("call_id") or record.get("id"))


def handle_tool_search_call(reading: CodexRollout, record: RecordFields) -> None:
    raw_arguments = record.get("arguments")
    arguments = raw_arguments if isinstance(raw_arguments, dict) else try_decode_json(raw_arguments)
    reading.lane.add_call("tool_search", as_mapping(arguments), record.get("call_id"))


def handle_web_search_call(reading: CodexRollout, record: RecordFields) -> None:
    _add_hosted_call(reading, "web_search", record)


def handle_image_generation_call(reading: CodexRollout, record: RecordFields) -> None:
    _add_hosted_call(reading, "image_generation", record)


def _add_hosted_call(reading: CodexRollout, name: str, record: RecordFields) -> None:
    hosted_arguments = record.get("action") or {"prompt": record.get("revised_prompt")}
    call = record.get("id") or record.get("call_id")
    for number in reading.lane.add_call(name, as_mapping(hosted_arguments), call):
        ok = {"completed": True, "failed": False}.get(str(record.get("status")))
        reading.lane.builder.finish(reading.lane.event_at(number), ok=ok)
    reading.lane.close_call(call)


def handle_output(reading: CodexRollout, record: RecordFields) -> None:
    content = record.get("output")
    if content is None and "tools" in record:
        content = json_excerpt(record["tools"])
    apply_output(reading.lane, record.get("call_id"), content)


def handle_agent_letter(reading: CodexRollout, record: RecordFields) -> None:
    """Add a message from one agent to another."""
    content, author = record.get("content"), record.get("author")
    hidden = [as_mapping(part).get("encrypted_content") for part in as_list(content)]
    texts = [content_text(content), *(text for text in hidden if isinstance(text, str))]
    text = "".join(texts)
    report = text.partition("Payload:\n")[2]
    if "Message Type: FINAL_ANSWER" in text[:200]:
        reading.lane.end_turn()
        if reading.lane.handoffs.add_report(author, report, ok=True):
            return
    if reading.lane.requested or "Message Type: NEW_TASK" not in text[:200]:
        reading.lane.end_turn()
        reading.lane.add_note(text, f"a message from {as_label(author) or 'an agent'}")
        return
    reading.lane.requested = True
    reading.lane.add_incoming_message(text, "user", "request")


def _tool_name(record: RecordFields) -> str:
    name, namespace = as_label(record.get("name")) or "tool", as_label(record.get("namespace"))
    return f"{namespace}/{name}" if namespace and namespace.startswith("mcp__") else name


ResponseHandler = Callable[[CodexRollout, RecordFields], None]
RESPONSE_HANDLERS: dict[str, ResponseHandler] = {
    "message": handle_message,
    "agent_message": handle_agent_letter,
    "reasoning": handle_reasoning,
    "function_call": handle_function_call,
    "custom_tool_call": handle_custom_tool_call,
    "local_shell_call": handle_local_shell_call,
    "tool_search_call": handle_tool_search_call,
    "web_search_call": handle_web_search_call,
    "image_generation_call": handle_image_generation_call,
    "function_call_output": handle_output,
    "custom_tool_call_output": handle_output,
    "tool_search_output": handle_output,
}


def handle_task_start(reading: CodexRollout, record: RecordFields) -> None:
    reading.running = reading.tasks = True
    reading.lane.stopped = None
    reading.conversation.interrupted = False


def handle_task_complete(reading: CodexRollout, record: RecordFields) -> None:
    reading.conversation.flush_pending()
    reading.running, reading.tasks = False, True
    reading.lane.stopped = None
    # A task ended by an error has no last message, whatever messages precede it.
    if record.get("last_agent_message", "") is not None:
        reading.lane.mark_last_claim()


def handle_turn_abort(reading: CodexRollout, record: RecordFields) -> None:
    reading.conversation.flush_pending()
    reason = as_label(record.get("reason")) or "aborted"
    reading.running = False
    reading.lane.stopped = reason
    if reason == "interrupted" and not reading.conversation.interrupted and not reading.is_child:
        reading.lane.add_incoming_message(reason, "user", "interrupt")
    reading.lane.add_note(json_excerpt(record), "turn aborted")


def handle_token_count(reading: CodexRollout, record: RecordFields) -> None:
    info = as_mapping(record.get("info"))
    reading.lane.add_token_counts(info.get("total_token_usage"), info.get("last_token_usage"))


def handle_usage(reading: CodexRollout, record: RecordFields) -> None:
    reading.lane.add_token_counts(record.get("thread_token_usage"), record.get("usage"))


def handle_turn_context(reading: CodexRollout, record: RecordFields) -> None:
    model = as_label(record.get("model"))
    mode = as_label(as_mapping(record.get("collaboration_mode")).get("mode"))
    if model and reading.lane.model and model != reading.lane.model:
        reading.lane.add_note(f"{reading.lane.model} → {model}", "model")
    if mode and reading.lane.mode and mode != reading.lane.mode:
        reading.lane.add_note(f"{reading.lane.mode} → {mode}", "mode")
    reading.lane.model, reading.lane.mode = model or reading.lane.model, mode or reading.lane.mode


def handle_compaction_record(reading: CodexRollout, record: RecordFields) -> None:
    message = record.get("message")
    _add_compaction(reading, "record", message if isinstance(message, str) else "")


def handle_compaction_event(reading: CodexRollout, record: RecordFields) -> None:
    _add_compaction(reading, "event", "")


def _add_compaction(reading: CodexRollout, kind: str, text: str) -> None:
    """A record and an event report each compaction; the first counts."""
    reading.lane.end_turn()
    if reading.compacted not in (None, kind):
        reading.compacted = None
    else:
        reading.compacted = kind
        reading.lane.add_note(text, "compaction")


def handle_rollback(reading: CodexRollout, record: RecordFields) -> None:
    reading.lane.end_turn()
    reading.lane.add_note(json_excerpt(record), "rewind")


def handle_user_message(reading: CodexRollout, record: RecordFields) -> None:
    reading.conversation.add_user_event(record.get("message"))


def handle_agent_message(reading: CodexRollout, record: RecordFields) -> None:
    reading.conversation.add_agent_event(record.get("message"))


def handle_error(reading: CodexRollout, record: RecordFields) -> None:
    message = record.get("message")
    reading.lane.add_note(message if isinstance(message, str) else json_excerpt(record), "error")


def handle_goal(reading: CodexRollout, record: RecordFields) -> None:
    reading.lane.add_note(json_excerpt(record), "goal")


def handle_command_end(reading: CodexRollout, record: RecordFields) -> None:
    apply_command_end(reading.lane, record.get("call_id"), record)


def handle_patch_end(reading: CodexRollout, record: RecordFields) -> None:
    apply_patch_end(reading.lane, record.get("call_id"), record)


def handle_tool_end(reading: CodexRollout, record: RecordFields) -> None:
    call = as_mapping(record.get("invocation"))
    apply_tool_end(reading.lane, record.get("call_id"), {**call, **record})


def handle_agent_spawn(reading: CodexRollout, record: RecordFields) -> None:
    for number in reading.lane.call_events(record.get("call_id")) or ():
        reading.lane.handoffs.assign_thread(number, record.get("new_thread_id"))


def handle_agents_wait(reading: CodexRollout, record: RecordFields) -> None:
    for agent, status in as_mapping(record.get("statuses")).items():
        reading.lane.handoffs.add_status(agent, status)
    for entry in as_list(record.get("agent_statuses")):
        entry_fields = as_mapping(entry)
        reading.lane.handoffs.add_status(entry_fields.get("thread_id"), entry_fields.get("status"))


def handle_agent_interaction(reading: CodexRollout, record: RecordFields) -> None:
    reading.lane.handoffs.add_status(record.get("receiver_thread_id"), record.get("status"))


def handle_agent_activity(reading: CodexRollout, record: RecordFields) -> None:
    call = record.get("event_id") or record.get("id")
    for number in reading.lane.call_events(call) or ():
        agent, path = record.get("agent_thread_id"), record.get("agent_path")
        reading.lane.handoffs.assign_thread(number, agent, path)


def handle_review_start(reading: CodexRollout, record: RecordFields) -> None:
    """A review is work for another thread, which Codex itself starts."""
    request = record.get("user_facing_hint") or record.get("prompt")
    brief = request if isinstance(request, str) else json_excerpt(record)
    reading.reviews += reading.lane.add_script_call("spawn_agent", {"message": brief}, "review")


def handle_review_end(reading: CodexRollout, record: RecordFields) -> None:
    output = record.get("review_output")
    for number in reading.lane.close_call("review")[0] or ():
        event = reading.lane.event_at(number)
        if isinstance(event, Handoff):
            report = json_excerpt(output) if output else None
            reading.lane.builder.finish(event, report=report, ok=bool(output) or None)


def handle_item(reading: CodexRollout, record: RecordFields) -> None:
    item = as_mapping(record.get("item"))
    kind = item.get("type")
    handler = _ITEM_HANDLERS.get(kind) if isinstance(kind, str) else None
    if handler is not None:
        handler(reading, item)
    elif not isinstance(kind, str) or kind not in _REDUNDANT_ITEMS:
        reading.lane.add_note(json_excerpt(item), f"unknown: {as_label(kind) or 'item'}")


def _handle_user_item(reading: CodexRollout, item: RecordFields) -> None:
    reading.conversation.add_user_event(content_text(item.get("content")))


def _handle_agent_item(reading: CodexRollout, item: RecordFields) -> None:
    reading.conversation.add_agent_event(content_text(item.get("content")), "item")


def _handle_command_item(reading: CodexRollout, item: RecordFields) -> None:
    apply_command_end(reading.lane, item.get("id"), item)


def _handle_change_item(reading: CodexRollout, item: RecordFields) -> None:
    apply_patch_end(reading.lane, item.get("id"), item)


def _handle_tool_item(reading: CodexRollout, item: RecordFields) -> None:
    apply_tool_end(reading.lane, item.get("id"), item)


def _handle_plan_item(reading: CodexRollout, item: RecordFields) -> None:
    text = item.get("text")
    reading.lane.add_note(text if isinstance(text, str) else json_excerpt(item), "plan")


def _handle_agents_item(reading: CodexRollout, item: RecordFields) -> None:
    group, threads = (
        reading.lane.call_events(item.get("id")),
        as_list(item.get("receiver_thread_ids")),
    )
    if group is None and item.get("tool") in ("spawn_agent", "send_input"):
        group = reading.lane.add_script_call(
            "spawn_agent", {"message": item.get("prompt")}, item.get("id")
        )
        reading.lane.close_call(item.get("id"))
    for number in group or ():
        reading.lane.handoffs.assign_thread(number, threads[0] if threads else None)
    for agent, status in as_mapping(item.get("agents_states")).items():
        reading.lane.handoffs.add_status(agent, status)


EventHandler = Callable[[CodexRollout, RecordFields], None]
EVENT_HANDLERS: dict[str, EventHandler] = {
    "task_started": handle_task_start,
    "turn_started": handle_task_start,
    "task_complete": handle_task_complete,
    "turn_complete": handle_task_complete,
    "turn_aborted": handle_turn_abort,
    "token_count": handle_token_count,
    "user_message": handle_user_message,
    "agent_message": handle_agent_message,
    "context_compacted": handle_compaction_event,
    "thread_rolled_back": handle_rollback,
    "thread_goal_updated": handle_goal,
    "error": handle_error,
    "stream_error": handle_error,
    "warning": handle_error,
    "exec_command_end": handle_command_end,
    "patch_apply_end": handle_patch_end,
    "mcp_tool_call_end": handle_tool_end,
    "collab_agent_spawn_end": handle_agent_spawn,
    "collab_waiting_end": handle_agents_wait,
    "collab_agent_interaction_end": handle_agent_interaction,
    "collab_close_end": handle_agent_interaction,
    "collab_resume_end": handle_agent_interaction,
    "sub_agent_activity": handle_agent_activity,
    "entered_review_mode": handle_review_start,
    "exited_review_mode": handle_review_end,
    "item_completed": handle_item,
}
_ITEM_HANDLERS: dict[str, EventHandler] = {
    "UserMessage": _handle_user_item,
    "AgentMessage": _handle_agent_item,
    "CommandExecution": _handle_command_item,
    "FileChange": _handle_change_item,
    "McpToolCall": _handle_tool_item,
    "DynamicToolCall": _handle_tool_item,
    "CollabAgentToolCall": _handle_agents_item,
    "SubAgentActivity": handle_agent_activity,
    "Plan": _handle_plan_item,
    "ContextCompaction": handle_compaction_event,
    "EnteredReviewMode": handle_review_start,
    "ExitedReviewMode": handle_review_end,
}


def handle_record(reading: CodexRollout, record: Any) -> None:
    """Handle one record of any kind."""
    if not isinstance(record, dict):
        reading.lane.add_note(json_excerpt(record), "unknown: record")
        return
    kind, payload = record.get("type"), record.get("payload")
    if "payload" not in record and isinstance(kind, str) and kind in _BARE_TYPES:
        kind, payload = "response_item", record
    elif not isinstance(payload, dict):
        payload = {}
    reading.set_time(record.get("timestamp"))
    if kind == "session_meta" or (kind is None and not reading.meta):
        reading.open_thread(payload or record)
    elif not reading.forked or not reading.is_inherited_record(record, kind, payload):
        reading.begun = True
        _dispatch_record(reading, kind, payload, record)


def _dispatch_record(
    reading: CodexRollout, kind: Any, fields: RecordFields, record: RecordFields
) -> None:
    table = _HANDLER_TABLES.get(kind) if isinstance(kind, str) else None
    name = kind if table is None else fields.get("type")
    if isinstance(name, str):
        handler = (_RECORD_HANDLERS if table is None else table).get(name)
        if handler is not None:
            handler(reading, fields)
            return
        if name in _IGNORED_TYPES:
            return
    if "record_type" not in record:
        reading.lane.add_note(json_excerpt(record), f"unknown: {as_label(name) or 'record'}")


_RECORD_HANDLERS: dict[str, EventHandler] = {
    "turn_context": handle_turn_context,
    "compacted": handle_compaction_record,
    "token_usage_record": handle_usage,
    "inter_agent_communication": handle_agent_letter,
}
_HANDLER_TABLES = {"response_item": RESPONSE_HANDLERS, "event_msg": EVENT_HANDLERS}


name = "codex"
version = 3

_FIRST_LINE = re.compile(
    rb'\s*\{"timestamp":"[^"]*",(?:"ordinal":\d+,)?"type":"session_meta","payload":\{'
)
_RECORD_TYPES = frozenset(
    {"session_meta", "response_item", "event_msg", "turn_context", "compacted"}
)
_OPENING = object()
_EXITS: dict[str, Exit] = {"budget_limited": "out_of_budget"}
MAX_DAYS_APART = 31
"""Days after a thread's start in which its children are sought."""
MAX_FOLDER_FILES = 5000
"""In a folder with more files, only those with Codex's file names are examined."""
HEAD_BYTES = 16 << 10
_HEADER_KEYS = re.compile(rb'"(id|parent_thread_id|timestamp)"\s*:\s*"([^"\\]{1,100})"')
_thread_cache: dict[str, tuple[int, dict[str, CodexThread]]] = {}


def recognises(source: RecordingSource) -> bool:
    # The first line contains the system prompt: it may be longer than the part that was read.
    if _FIRST_LINE.match(source.head):
        return True
    lines = source.lines[:4]
    return bool(lines) and (_is_old_format(lines) or all(_has_envelope(line) for line in lines))


def _has_envelope(line: Any) -> bool:
    if not isinstance(line, dict) or not isinstance(line.get("timestamp"), str):
        return False
    kind, payload = line.get("type"), line.get("payload")
    if not isinstance(kind, str) or kind not in _RECORD_TYPES or not isinstance(payload, dict):
        return False
    return kind in ("session_meta", "turn_context", "compacted") or "type" in payload


def _is_old_format(lines: Sequence[Any]) -> bool:
    """Whether a file is of the first versions: no envelopes, and a first line without a type."""
    first = lines[0]
    return (
        isinstance(first, dict)
        and {"id", "timestamp", "instructions"} <= first.keys()
        and "type" not in first
        and all(isinstance(line, dict) and line.keys() & {"type", "record_type"}
                for line in lines[1:])
    )  # fmt: skip


def parts(source: RecordingSource) -> Sequence[Path]:
    return [thread.path for thread in list_descendant_threads(source)]


def owner(source: RecordingSource) -> Path | None:
    return find_starter_file(source)


def read(source: RecordingSource) -> Iterator[Session]:
    builder = SessionBuilder(name, version, source.skipped)
    children = list_descendant_threads(source)
    lanes = {child.id: child.id for child in children}
    root = CodexRollout(builder, ROOT_LANE, lanes)
    readings = [root]
    if children:
        streams = [_iter_timed_records(source, root)]
        for child in children:
            reading = CodexRollout(builder, child.id, lanes)
            builder.open_lane(child.id, lanes.get(child.parent or "", ROOT_LANE))
            readings.append(reading)
            streams.append(_iter_timed_records(source.beside(child.path), reading, child))
        for _, reading, record in heapq.merge(*streams, key=lambda item: item[0]):
            if record is not _OPENING:
                handle_record(reading, record)
    else:
        for record in source.records():
            handle_record(root, record)
    for reading in readings:
        reading.finish()
        builder.open_lane(reading.lane.name, agent=_agent_name(reading))
    _join_reviews(builder, readings)
    builder.mark_corrections()
    if root.meta or builder.events:
        yield _build_session(source, builder, readings)


def _iter_timed_records(
    source: RecordingSource, reading: CodexRollout, child: CodexThread | None = None
) -> Iterator[tuple[str, CodexRollout, Any]]:
    """Yield records with the time by which the threads' files are merged."""
    latest = ""
    if child is not None:
        # The file is opened only when needed: there may be many.
        latest = child.began
        yield latest, reading, _OPENING
    for record in source.records():
        time = record.get("timestamp") if isinstance(record, dict) else None
        if isinstance(time, str) and time > latest:
            latest = time
        yield latest, reading, record


def _agent_name(reading: CodexRollout) -> str | None:
    meta = reading.meta
    fields = {**as_mapping(_spawn_info(meta)), **meta}
    return (
        as_label(fields.get("agent_role"))
        or as_label(fields.get("agent_nickname"))
        or _subagent_kind(meta)
    )


def _subagent_kind(meta: dict[str, Any]) -> str | None:
    return as_label(as_mapping(meta.get("source")).get("subagent"))


def _join_reviews(builder: SessionBuilder, readings: Sequence[CodexRollout]) -> None:
    """A review's thread is marked only in its first line, so they are joined in order."""
    for reading in readings:
        thread_id = reading.meta.get("id")
        reviews = [
            reading.lane.name
            for reading in readings
            if _subagent_kind(reading.meta) == "review"
            and reading.meta.get("parent_thread_id") == thread_id
        ]
        for number, lane in zip(reading.reviews, reviews, strict=False):
            event = builder.events[number - 1]
            if isinstance(event, Handoff):
                builder.finish(event, child=lane)


def _build_session(
    source: RecordingSource, builder: SessionBuilder, readings: Sequence[CodexRollout]
) -> Session:
    root = readings[0]
    meta, git = root.meta, as_mapping(root.meta.get("git"))
    models: Counter[str] = sum((reading.lane.models for reading in readings), Counter())
    ends = [reading.ended_at for reading in readings if reading.ended_at is not None]
    last_message = (
        None if root.lane.last_words is None else root.lane.event_at(root.lane.last_words)
    )
    ending, cause = _session_exit(root)
    parent = as_label(as_mapping(_spawn_info(meta)).get("parent_thread_id")) or as_label(
        meta.get("parent_thread_id")
    )
    links = {"repository": git.get("repository_url"), "forked from": meta.get("forked_from_id")}
    return builder.build_session(
        id=as_label(meta.get("id")) or content_digest(source.head),
        agent="codex",
        agent_version=as_label(meta.get("cli_version")),
        model=models.most_common(1)[0][0] if models else root.lane.model,
        system=_system_prompt(root),
        started=time_from_text(meta.get("timestamp")) or root.started_at,
        ended=max(ends, default=None),
        exit=ending,
        cause=cause,
        summary=last_message.text if isinstance(last_message, Message) else None,
        directory=as_label(meta.get("cwd")),
        branch=as_label(git.get("branch")),
        commit=as_label(git.get("commit_hash")),
        parent=parent,
        links={
            key: label for key, value in links.items() if (label := as_label(value)) is not None
        },
    )


def _spawn_info(meta: dict[str, Any]) -> Any:
    return as_mapping(as_mapping(meta.get("source")).get("subagent")).get("thread_spawn")


def _system_prompt(root: CodexRollout) -> str | None:
    instructions = root.meta.get("base_instructions") or root.meta.get("instructions")
    text = (
        instructions
        if isinstance(instructions, str)
        else as_text(as_mapping(instructions).get("text"))
    )
    return root.conversation.system if text is None else root.lane.builder.truncate_text(text)


def _session_exit(root: CodexRollout) -> tuple[Exit, str | None]:
    if root.lane.stopped is not None:
        return _EXITS.get(root.lane.stopped, "gave_up"), f"The turn was {root.lane.stopped}."
    if root.running:
        return "gave_up", "The recording ends within a turn."
    return "finished", None


class CodexThread(NamedTuple):
    """The first line of a rollout."""

    id: str
    parent: str | None
    began: str
    path: Path


def read_thread_header(source: RecordingSource) -> CodexThread | None:
    """Return the thread of a file, by its first line."""
    line = source.head[:HEAD_BYTES].lstrip().partition(b"\n")[0]
    if b'"session_meta"' not in line[:300]:
        return None
    started, thread_id, parent = "", "", ""
    for key, value in _HEADER_KEYS.findall(line.partition(b'"base_instructions"')[0]):
        text = value.decode(errors="replace")
        if key == b"id":
            thread_id = thread_id or text
        elif key == b"parent_thread_id":
            parent = parent or text
        else:
            started = started or text
    return CodexThread(thread_id, parent or None, started, source.path) if thread_id else None


def list_descendant_threads(source: RecordingSource) -> list[CodexThread]:
    """Return the threads that this one started, recursively, if their files exist."""
    root = read_thread_header(source)
    if root is None:
        return []
    threads_by_parent: dict[str, list[CodexThread]] = {}
    known_ids = {root.id}
    for folder in _day_folders(source.path.parent, range(MAX_DAYS_APART + 1)):
        for thread in _threads_in_folder(folder, source).values():
            if thread.parent is not None:
                threads_by_parent.setdefault(thread.parent, []).append(thread)
    descendants: list[CodexThread] = []
    pending = [root.id]
    while pending:
        for thread in threads_by_parent.get(pending.pop(), ()):
            if thread.id not in known_ids:
                known_ids.add(thread.id)
                descendants.append(thread)
                pending.append(thread.id)
    return sorted(descendants, key=lambda thread: (thread.began, thread.id))


def find_starter_file(source: RecordingSource) -> Path | None:
    """Return the file of the thread that started this one, directly or not."""
    thread = read_thread_header(source)
    known_ids, top = set(), None
    while thread is not None and thread.parent is not None and thread.id not in known_ids:
        known_ids.add(thread.id)
        folders = _day_folders(thread.path.parent, range(0, -MAX_DAYS_APART - 1, -1))
        parent = thread.parent
        candidates = (_threads_in_folder(folder, source).get(parent) for folder in folders)
        thread = next((candidate for candidate in candidates if candidate is not None), None)
        top = thread or top
    if top is None or top.path == source.path:
        return None
    # Both directions must agree: a part that its owner does not list would be lost.
    descendant_paths = (child.path for child in list_descendant_threads(source.beside(top.path)))
    return top.path if source.path in descendant_paths else None


@lru_cache(maxsize=256)
def _day_folders(folder: Path, days: range) -> Sequence[str]:
    """Return the folder and those of the days around it; cached, as most files of a day need the
    same."""
    try:
        day = date(*(int(name) for name in folder.parts[-3:]))
        other_days = [day + timedelta(days=distance) for distance in days[1:]]
    except (ValueError, TypeError, OverflowError):
        return (str(folder),)
    top = folder.parents[2]
    return (str(folder), *(f"{top}/{o.year:04}/{o.month:02}/{o.day:02}" for o in other_days))


def _threads_in_folder(folder: str, source: RecordingSource) -> dict[str, CodexThread]:
    """Return the threads in a folder; cached until a file is added or removed."""
    # Most do not exist, and every file refers to all of them: this is the fastest test.
    if not os.access(folder, os.F_OK):
        return {}
    try:
        stamp = os.stat(folder).st_mtime_ns  # noqa: PTH116
    except OSError:
        return {}
    if folder in _thread_cache and _thread_cache[folder][0] == stamp:
        return _thread_cache[folder][1]
    threads = _scan_folder(folder, source)
    # A folder that changed just now may change again within the same clock tick.
    if time.time_ns() - stamp > 1_000_000_000:
        if len(_thread_cache) > MAX_FOLDER_FILES:
            _thread_cache.clear()
        _thread_cache[folder] = (stamp, threads)
    return threads


def _scan_folder(folder: str, source: RecordingSource) -> dict[str, CodexThread]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_file())
    except OSError:
        return {}
    if len(names) > MAX_FOLDER_FILES:
        names = [name for name in names if name.startswith("rollout-")]
    threads: dict[str, CodexThread] = {}
    for name in names:
        thread = read_thread_header(source.beside(Path(folder, name)))
        if thread is not None:
            threads.setdefault(thread.id, thread)
    return threads
