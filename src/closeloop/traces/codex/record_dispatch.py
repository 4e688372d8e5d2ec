"""The records of a rollout, one after another."""

from __future__ import annotations

from typing import Any

from closeloop.traces.codex import event_handlers, response_handlers
from closeloop.traces.codex.codex_session import CodexSessionBuilder, RecordFields
from closeloop.traces.untrusted_json import as_label, json_excerpt

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
"""What tells of the machinery, or says again what another record says."""
_BARE_TYPES = frozenset({
    "message", "reasoning", "function_call", "function_call_output", "custom_tool_call",
    "custom_tool_call_output", "local_shell_call", "web_search_call",
})  # fmt: skip
"""What stands without an envelope in the files of 2025's first versions."""


def handle_record(reading: CodexSessionBuilder, record: Any) -> None:
    """One record, whatever it is."""
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
    reading: CodexSessionBuilder, kind: Any, told: RecordFields, record: RecordFields
) -> None:
    table = _HANDLER_TABLES.get(kind) if isinstance(kind, str) else None
    name = kind if table is None else told.get("type")
    if isinstance(name, str):
        handler = (_RECORD_HANDLERS if table is None else table).get(name)
        if handler is not None:
            handler(reading, told)
            return
        if name in _IGNORED_TYPES:
            return
    if "record_type" not in record:
        reading.lane.add_note(json_excerpt(record), f"unknown: {as_label(name) or 'record'}")


_RECORD_HANDLERS: dict[str, event_handlers.EventHandler] = {
    "turn_context": event_handlers.handle_turn_context,
    "compacted": event_handlers.handle_compaction_record,
    "token_usage_record": event_handlers.handle_usage,
    "inter_agent_communication": response_handlers.handle_agent_letter,
}
_HANDLER_TABLES = {
    "response_item": response_handlers.RESPONSE_HANDLERS,
    "event_msg": event_handlers.EVENT_HANDLERS,
}
