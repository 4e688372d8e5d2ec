"""What Codex tells of the work besides: tasks, tokens, ends of calls, other agents."""

from __future__ import annotations

from collections.abc import Callable

from closeloop.model.trace import Handoff
from closeloop.traces.codex.outputs import spoken
from closeloop.traces.codex.reading import Reading, Told
from closeloop.traces.codex.results import take_change, take_command, take_tool
from closeloop.traces.untrusted import items, label, mapping, raw


def started(reading: Reading, told: Told) -> None:
    reading.running = reading.tasks = True
    reading.lane.stopped = None
    reading.talk.interrupted = False


def complete(reading: Reading, told: Told) -> None:
    reading.talk.settle()
    reading.running, reading.tasks = False, True
    reading.lane.stopped = None
    # A task that an error ended has no last message, whatever was said in it before.
    if told.get("last_agent_message", "") is not None:
        reading.lane.claims()


def aborted(reading: Reading, told: Told) -> None:
    reading.talk.settle()
    reason = label(told.get("reason")) or "aborted"
    reading.running = False
    reading.lane.stopped = reason
    if reason == "interrupted" and not reading.talk.interrupted and not reading.is_child:
        reading.lane.told(reason, "user", "interrupt")
    reading.lane.note(raw(told), "turn aborted")


def tokens(reading: Reading, told: Told) -> None:
    info = mapping(told.get("info"))
    reading.lane.counts(info.get("total_token_usage"), info.get("last_token_usage"))


def usage(reading: Reading, told: Told) -> None:
    reading.lane.counts(told.get("thread_token_usage"), told.get("usage"))


def context(reading: Reading, told: Told) -> None:
    model = label(told.get("model"))
    mode = label(mapping(told.get("collaboration_mode")).get("mode"))
    if model and reading.lane.model and model != reading.lane.model:
        reading.lane.note(f"{reading.lane.model} → {model}", "model")
    if mode and reading.lane.mode and mode != reading.lane.mode:
        reading.lane.note(f"{reading.lane.mode} → {mode}", "mode")
    reading.lane.model, reading.lane.mode = model or reading.lane.model, mode or reading.lane.mode


def summary(reading: Reading, told: Told) -> None:
    message = told.get("message")
    _compaction(reading, "record", message if isinstance(message, str) else "")


def compaction(reading: Reading, told: Told) -> None:
    _compaction(reading, "event", "")


def _compaction(reading: Reading, kind: str, text: str) -> None:
    """A record and an event tell of each; the first of them counts."""
    reading.lane.hears()
    if reading.compacted not in (None, kind):
        reading.compacted = None
    else:
        reading.compacted = kind
        reading.lane.note(text, "compaction")


def rolled_back(reading: Reading, told: Told) -> None:
    reading.lane.hears()
    reading.lane.note(raw(told), "rewind")


def heard(reading: Reading, told: Told) -> None:
    reading.talk.heard(told.get("message"))


def said(reading: Reading, told: Told) -> None:
    reading.talk.said(told.get("message"))


def error(reading: Reading, told: Told) -> None:
    message = told.get("message")
    reading.lane.note(message if isinstance(message, str) else raw(told), "error")


def goal(reading: Reading, told: Told) -> None:
    reading.lane.note(raw(told), "goal")


def command_end(reading: Reading, told: Told) -> None:
    take_command(reading.lane, told.get("call_id"), told)


def patch_end(reading: Reading, told: Told) -> None:
    take_change(reading.lane, told.get("call_id"), told)


def tool_end(reading: Reading, told: Told) -> None:
    call = mapping(told.get("invocation"))
    take_tool(reading.lane, told.get("call_id"), {**call, **told})


def spawned(reading: Reading, told: Told) -> None:
    for number in reading.lane.group(told.get("call_id")) or ():
        reading.lane.handoffs.taken(number, told.get("new_thread_id"))


def waited(reading: Reading, told: Told) -> None:
    for agent, status in mapping(told.get("statuses")).items():
        reading.lane.handoffs.returned(agent, status)
    for entry in items(told.get("agent_statuses")):
        known = mapping(entry)
        reading.lane.handoffs.returned(known.get("thread_id"), known.get("status"))


def interacted(reading: Reading, told: Told) -> None:
    reading.lane.handoffs.returned(told.get("receiver_thread_id"), told.get("status"))


def activity(reading: Reading, told: Told) -> None:
    call = told.get("event_id") or told.get("id")
    for number in reading.lane.group(call) or ():
        agent, path = told.get("agent_thread_id"), told.get("agent_path")
        reading.lane.handoffs.taken(number, agent, path)


def reviewing(reading: Reading, told: Told) -> None:
    """A review is work for another thread, which Codex itself hands over."""
    hint = told.get("user_facing_hint") or told.get("prompt")
    brief = hint if isinstance(hint, str) else raw(told)
    reading.reviews += reading.lane.did("spawn_agent", {"message": brief}, "review")


def reviewed(reading: Reading, told: Told) -> None:
    output = told.get("review_output")
    for number in reading.lane.closed("review")[0] or ():
        event = reading.lane.event(number)
        if isinstance(event, Handoff):
            report = raw(output) if output else None
            reading.lane.builder.finish(event, report=report, ok=bool(output) or None)


def item(reading: Reading, told: Told) -> None:
    item = mapping(told.get("item"))
    kind = item.get("type")
    take = _ITEMS.get(kind) if isinstance(kind, str) else None
    if take is not None:
        take(reading, item)
    elif not isinstance(kind, str) or kind not in _TWINS:
        reading.lane.note(raw(item), f"unknown: {label(kind) or 'item'}")


def _item_user(reading: Reading, item: Told) -> None:
    reading.talk.heard(spoken(item.get("content")))


def _item_agent(reading: Reading, item: Told) -> None:
    reading.talk.said(spoken(item.get("content")), "item")


def _item_command(reading: Reading, item: Told) -> None:
    take_command(reading.lane, item.get("id"), item)


def _item_change(reading: Reading, item: Told) -> None:
    take_change(reading.lane, item.get("id"), item)


def _item_tool(reading: Reading, item: Told) -> None:
    take_tool(reading.lane, item.get("id"), item)


def _item_plan(reading: Reading, item: Told) -> None:
    text = item.get("text")
    reading.lane.note(text if isinstance(text, str) else raw(item), "plan")


def _item_agents(reading: Reading, item: Told) -> None:
    group, threads = reading.lane.group(item.get("id")), items(item.get("receiver_thread_ids"))
    if group is None and item.get("tool") in ("spawn_agent", "send_input"):
        group = reading.lane.did("spawn_agent", {"message": item.get("prompt")}, item.get("id"))
        reading.lane.closed(item.get("id"))
    for number in group or ():
        reading.lane.handoffs.taken(number, threads[0] if threads else None)
    for agent, status in mapping(item.get("agents_states")).items():
        reading.lane.handoffs.returned(agent, status)


Take = Callable[[Reading, Told], None]
EVENTS: dict[str, Take] = {
    "task_started": started,
    "turn_started": started,
    "task_complete": complete,
    "turn_complete": complete,
    "turn_aborted": aborted,
    "token_count": tokens,
    "user_message": heard,
    "agent_message": said,
    "context_compacted": compaction,
    "thread_rolled_back": rolled_back,
    "thread_goal_updated": goal,
    "error": error,
    "stream_error": error,
    "warning": error,
    "exec_command_end": command_end,
    "patch_apply_end": patch_end,
    "mcp_tool_call_end": tool_end,
    "collab_agent_spawn_end": spawned,
    "collab_waiting_end": waited,
    "collab_agent_interaction_end": interacted,
    "collab_close_end": interacted,
    "collab_resume_end": interacted,
    "sub_agent_activity": activity,
    "entered_review_mode": reviewing,
    "exited_review_mode": reviewed,
    "item_completed": item,
}
_ITEMS: dict[str, Take] = {
    "UserMessage": _item_user,
    "AgentMessage": _item_agent,
    "CommandExecution": _item_command,
    "FileChange": _item_change,
    "McpToolCall": _item_tool,
    "DynamicToolCall": _item_tool,
    "CollabAgentToolCall": _item_agents,
    "SubAgentActivity": activity,
    "Plan": _item_plan,
    "ContextCompaction": compaction,
    "EnteredReviewMode": reviewing,
    "ExitedReviewMode": reviewed,
}
_TWINS = frozenset({"Reasoning", "WebSearch", "ImageView", "ImageGeneration", "HookPrompt"})
