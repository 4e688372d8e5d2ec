"""The end of a conversation: lanes joined to their calls, how it ended, what was claimed."""

from __future__ import annotations

from collections import deque

import msgspec

from closeloop.records.attempt import Exit
from closeloop.records.trace import AnyEvent, Command, Handoff, Message, Note, Thought
from closeloop.traces.claude.claude_conversation import ClaudeConversationBuilder
from closeloop.traces.session_builder import ROOT_LANE


def join_child_lanes(talk: ClaudeConversationBuilder) -> None:
    """Give every lane to the call that began it: by id, or by the words both begin with."""
    taken: set[str] = set()
    waiting = []
    for number in talk.kinds:
        event = talk.builder.events[number - 1]
        if isinstance(event, Handoff):
            child = next((one for one in (event.child, event.call) if one in talk.lanes), None)
            if child is None or child in taken or not _assign_lane(talk, event, child):
                waiting.append(event)
            else:
                taken.add(child)
    by_words: dict[str, deque[str]] = {}
    for lane, text in talk.asked.items():
        if lane not in taken:
            by_words.setdefault(text.strip(), deque()).append(lane)
    for event in waiting:
        lanes = by_words.get(event.brief.strip())
        if not lanes or not _assign_lane(talk, event, lanes.popleft()):
            talk.builder.finish(event, child=None)


def _assign_lane(talk: ClaudeConversationBuilder, event: Handoff, child: str) -> bool:
    above: str | None = event.lane
    while above is not None:
        if above == child:
            return False
        above = talk.lanes[above]
    talk.lanes[child] = event.lane
    talk.builder.open_lane(child, event.lane, talk.kinds[event.number] or None)
    talk.builder.finish(event, child=child)
    return True


def mark_final_claim(talk: ClaudeConversationBuilder, *, finished: bool) -> str | None:
    """The agent's last words; those that end a finished session are its claim."""
    ends = finished
    for place in range(len(talk.builder.events) - 1, -1, -1):
        event = talk.builder.events[place]
        if event.lane != ROOT_LANE or isinstance(event, Note | Thought):
            continue
        if isinstance(event, Message) and event.role == "agent":
            if ends and event.intent is None:
                talk.builder.events[place] = msgspec.structs.replace(event, intent="claim")
            return event.text
        ends = False
    return None


def session_outcome(talk: ClaudeConversationBuilder) -> tuple[Exit, str | None]:
    """How it ended, as far as the last events tell."""
    if talk.trouble is not None:
        return "machine", talk.trouble.strip().partition("\n")[0][:300]
    last = next((event for event in reversed(talk.builder.events) if _is_root_event(event)), None)
    if isinstance(last, Message) and last.intent == "interrupt":
        return "gave_up", "The user interrupted it."
    if last is None or isinstance(last, Message) or last.call is None:
        return "finished", None
    if isinstance(last, Command) and last.stopped == "rejected":
        return "gave_up", "The user refused a command."
    if talk.builder.find_open_call(ROOT_LANE, last.call) is not None:
        return "crashed", "The recording ends before a call's result."
    return "finished", None


def _is_root_event(event: AnyEvent) -> bool:
    return event.lane == ROOT_LANE and not isinstance(event, Note | Thought)
