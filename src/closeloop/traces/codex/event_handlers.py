"""What Codex tells of the work besides: tasks, tokens, ends of calls, other agents."""

from __future__ import annotations

from collections.abc import Callable

from closeloop.records.trace import Handoff
from closeloop.traces.codex.codex_outputs import codex_content_text
from closeloop.traces.codex.codex_results import apply_command_end, apply_patch_end, apply_tool_end
from closeloop.traces.codex.codex_session import CodexSessionBuilder, RecordFields
from closeloop.traces.untrusted_json import as_label, as_list, as_mapping, json_excerpt


def handle_task_start(reading: CodexSessionBuilder, told: RecordFields) -> None:
    reading.running = reading.tasks = True
    reading.lane.stopped = None
    reading.talk.interrupted = False


def handle_task_complete(reading: CodexSessionBuilder, told: RecordFields) -> None:
    reading.talk.flush_pending()
    reading.running, reading.tasks = False, True
    reading.lane.stopped = None
    # A task that an error ended has no last message, whatever was said in it before.
    if told.get("last_agent_message", "") is not None:
        reading.lane.mark_last_claim()


def handle_turn_abort(reading: CodexSessionBuilder, told: RecordFields) -> None:
    reading.talk.flush_pending()
    reason = as_label(told.get("reason")) or "aborted"
    reading.running = False
    reading.lane.stopped = reason
    if reason == "interrupted" and not reading.talk.interrupted and not reading.is_child:
        reading.lane.add_incoming_message(reason, "user", "interrupt")
    reading.lane.add_note(json_excerpt(told), "turn aborted")


def handle_token_count(reading: CodexSessionBuilder, told: RecordFields) -> None:
    info = as_mapping(told.get("info"))
    reading.lane.add_token_counts(info.get("total_token_usage"), info.get("last_token_usage"))


def handle_usage(reading: CodexSessionBuilder, told: RecordFields) -> None:
    reading.lane.add_token_counts(told.get("thread_token_usage"), told.get("usage"))


def handle_turn_context(reading: CodexSessionBuilder, told: RecordFields) -> None:
    model = as_label(told.get("model"))
    mode = as_label(as_mapping(told.get("collaboration_mode")).get("mode"))
    if model and reading.lane.model and model != reading.lane.model:
        reading.lane.add_note(f"{reading.lane.model} → {model}", "model")
    if mode and reading.lane.mode and mode != reading.lane.mode:
        reading.lane.add_note(f"{reading.lane.mode} → {mode}", "mode")
    reading.lane.model, reading.lane.mode = model or reading.lane.model, mode or reading.lane.mode


def handle_compaction_record(reading: CodexSessionBuilder, told: RecordFields) -> None:
    message = told.get("message")
    _add_compaction(reading, "record", message if isinstance(message, str) else "")


def handle_compaction_event(reading: CodexSessionBuilder, told: RecordFields) -> None:
    _add_compaction(reading, "event", "")


def _add_compaction(reading: CodexSessionBuilder, kind: str, text: str) -> None:
    """A record and an event tell of each; the first of them counts."""
    reading.lane.end_turn()
    if reading.compacted not in (None, kind):
        reading.compacted = None
    else:
        reading.compacted = kind
        reading.lane.add_note(text, "compaction")


def handle_rollback(reading: CodexSessionBuilder, told: RecordFields) -> None:
    reading.lane.end_turn()
    reading.lane.add_note(json_excerpt(told), "rewind")


def handle_user_message(reading: CodexSessionBuilder, told: RecordFields) -> None:
    reading.talk.add_user_event(told.get("message"))


def handle_agent_message(reading: CodexSessionBuilder, told: RecordFields) -> None:
    reading.talk.add_agent_event(told.get("message"))


def handle_error(reading: CodexSessionBuilder, told: RecordFields) -> None:
    message = told.get("message")
    reading.lane.add_note(message if isinstance(message, str) else json_excerpt(told), "error")


def handle_goal(reading: CodexSessionBuilder, told: RecordFields) -> None:
    reading.lane.add_note(json_excerpt(told), "goal")


def handle_command_end(reading: CodexSessionBuilder, told: RecordFields) -> None:
    apply_command_end(reading.lane, told.get("call_id"), told)


def handle_patch_end(reading: CodexSessionBuilder, told: RecordFields) -> None:
    apply_patch_end(reading.lane, told.get("call_id"), told)


def handle_tool_end(reading: CodexSessionBuilder, told: RecordFields) -> None:
    call = as_mapping(told.get("invocation"))
    apply_tool_end(reading.lane, told.get("call_id"), {**call, **told})


def handle_agent_spawn(reading: CodexSessionBuilder, told: RecordFields) -> None:
    for number in reading.lane.call_events(told.get("call_id")) or ():
        reading.lane.handoffs.assign_thread(number, told.get("new_thread_id"))


def handle_agents_wait(reading: CodexSessionBuilder, told: RecordFields) -> None:
    for agent, status in as_mapping(told.get("statuses")).items():
        reading.lane.handoffs.add_status(agent, status)
    for entry in as_list(told.get("agent_statuses")):
        entry_fields = as_mapping(entry)
        reading.lane.handoffs.add_status(entry_fields.get("thread_id"), entry_fields.get("status"))


def handle_agent_interaction(reading: CodexSessionBuilder, told: RecordFields) -> None:
    reading.lane.handoffs.add_status(told.get("receiver_thread_id"), told.get("status"))


def handle_agent_activity(reading: CodexSessionBuilder, told: RecordFields) -> None:
    call = told.get("event_id") or told.get("id")
    for number in reading.lane.call_events(call) or ():
        agent, path = told.get("agent_thread_id"), told.get("agent_path")
        reading.lane.handoffs.assign_thread(number, agent, path)


def handle_review_start(reading: CodexSessionBuilder, told: RecordFields) -> None:
    """A review is work for another thread, which Codex itself hands over."""
    hint = told.get("user_facing_hint") or told.get("prompt")
    brief = hint if isinstance(hint, str) else json_excerpt(told)
    reading.reviews += reading.lane.add_script_call("spawn_agent", {"message": brief}, "review")


def handle_review_end(reading: CodexSessionBuilder, told: RecordFields) -> None:
    output = told.get("review_output")
    for number in reading.lane.close_call("review")[0] or ():
        event = reading.lane.event_at(number)
        if isinstance(event, Handoff):
            report = json_excerpt(output) if output else None
            reading.lane.builder.finish(event, report=report, ok=bool(output) or None)


def handle_item(reading: CodexSessionBuilder, told: RecordFields) -> None:
    item = as_mapping(told.get("item"))
    kind = item.get("type")
    handler = _ITEM_HANDLERS.get(kind) if isinstance(kind, str) else None
    if handler is not None:
        handler(reading, item)
    elif not isinstance(kind, str) or kind not in _REDUNDANT_ITEMS:
        reading.lane.add_note(json_excerpt(item), f"unknown: {as_label(kind) or 'item'}")


def _handle_user_item(reading: CodexSessionBuilder, item: RecordFields) -> None:
    reading.talk.add_user_event(codex_content_text(item.get("content")))


def _handle_agent_item(reading: CodexSessionBuilder, item: RecordFields) -> None:
    reading.talk.add_agent_event(codex_content_text(item.get("content")), "item")


def _handle_command_item(reading: CodexSessionBuilder, item: RecordFields) -> None:
    apply_command_end(reading.lane, item.get("id"), item)


def _handle_change_item(reading: CodexSessionBuilder, item: RecordFields) -> None:
    apply_patch_end(reading.lane, item.get("id"), item)


def _handle_tool_item(reading: CodexSessionBuilder, item: RecordFields) -> None:
    apply_tool_end(reading.lane, item.get("id"), item)


def _handle_plan_item(reading: CodexSessionBuilder, item: RecordFields) -> None:
    text = item.get("text")
    reading.lane.add_note(text if isinstance(text, str) else json_excerpt(item), "plan")


def _handle_agents_item(reading: CodexSessionBuilder, item: RecordFields) -> None:
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


EventHandler = Callable[[CodexSessionBuilder, RecordFields], None]
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
_REDUNDANT_ITEMS = frozenset(
    {"Reasoning", "WebSearch", "ImageView", "ImageGeneration", "HookPrompt"}
)
