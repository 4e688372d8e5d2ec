"""The records of a rollout, one after another."""

from __future__ import annotations

from typing import Any

from closeloop.traces.codex import events, responses
from closeloop.traces.codex.reading import Reading, Told
from closeloop.traces.untrusted import label, raw

_QUIET = frozenset({
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
_OLD = frozenset({
    "message", "reasoning", "function_call", "function_call_output", "custom_tool_call",
    "custom_tool_call_output", "local_shell_call", "web_search_call",
})  # fmt: skip
"""What stands without an envelope in the files of 2025's first versions."""


def take(reading: Reading, record: Any) -> None:
    """One record, whatever it is."""
    if not isinstance(record, dict):
        reading.lane.note(raw(record), "unknown: record")
        return
    kind, told = record.get("type"), record.get("payload")
    if "payload" not in record and isinstance(kind, str) and kind in _OLD:
        kind, told = "response_item", record
    elif not isinstance(told, dict):
        told = {}
    reading.at(record.get("timestamp"))
    if kind == "session_meta" or (kind is None and not reading.meta):
        reading.opens(told or record)
    elif not reading.forked or not reading.inherits(record, kind, told):
        reading.begun = True
        _take(reading, kind, told, record)


def _take(reading: Reading, kind: Any, told: Told, record: Told) -> None:
    table = _TABLES.get(kind) if isinstance(kind, str) else None
    name = kind if table is None else told.get("type")
    if isinstance(name, str):
        handler = (_RECORDS if table is None else table).get(name)
        if handler is not None:
            handler(reading, told)
            return
        if name in _QUIET:
            return
    if "record_type" not in record:
        reading.lane.note(raw(record), f"unknown: {label(name) or 'record'}")


_RECORDS: dict[str, events.Take] = {
    "turn_context": events.context,
    "compacted": events.summary,
    "token_usage_record": events.usage,
    "inter_agent_communication": responses.letter,
}
_TABLES = {"response_item": responses.RESPONSES, "event_msg": events.EVENTS}
