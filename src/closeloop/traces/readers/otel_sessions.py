"""Builds sessions from spans of conversations, in any order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from closeloop.records.attempt import Usage
from closeloop.records.record import Record
from closeloop.records.trace import UNKNOWN_AGENT, AnyEvent, Handoff, Message, Session, Turn
from closeloop.traces.message_parts import (
    MessagePart,
    PartRole,
    RequestHistory,
    handoff_from_call,
    id_text,
    parse_message_parts,
    result_text,
)
from closeloop.traces.session_builder import ROOT_LANE, SessionBuilder, count_skip, is_bare_id
from closeloop.traces.trace_export import (
    EXPORT_KEY,
    SessionExtras,
    parse_session_extras,
    restore_event,
)
from closeloop.traces.untrusted_json import (
    as_amount,
    as_count,
    clean_text,
    make_usage,
    uncached_input_tokens,
    unfold_json,
)

# Spans of OpenTelemetry and its relatives: the kind of each, by the names its emitter used.


SpanKind = Literal["agent", "model", "tool"]
_KIND_BY_NAME: dict[str, SpanKind] = {
    "chat": "model", "generate_content": "model", "text_completion": "model", "llm": "model",
    "completion": "model", "generation": "model", "call_llm": "model", "execute_tool": "tool",
    "tool": "tool", "ai.toolcall": "tool", "invoke_agent": "agent", "agent": "agent",
}  # fmt: skip
_OTHER_KINDS = frozenset(
    {
        "create_agent",
        "embeddings",
        "embedding",
        "retrieval",
        "retriever",
        "chain",
        "invoke_workflow",
        "plan",
        "workflow",
        "evaluator",
        "guardrail",
        "reranker",
    }
)
_KIND_ATTRIBUTES = ("gen_ai.operation.name", "openinference.span.kind", "langfuse.observation.type",
               "traceloop.span.kind", "langsmith.span.kind", "ai.operationId",
               "llm.request.type")  # fmt: skip
_INPUT_TOKENS = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.prompt_tokens",
    "llm.token_count.prompt",
    "llm.usage.prompt_tokens",
    "ai.usage.inputTokens",
    "ai.usage.promptTokens",
)
_OUTPUT_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens",
           "llm.token_count.completion", "llm.usage.completion_tokens", "ai.usage.outputTokens",
           "ai.usage.completionTokens")  # fmt: skip
_CACHE_READ = ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens",
               "llm.token_count.prompt_details.cache_read", "ai.usage.cachedInputTokens",
               "gen_ai.usage.details.cache_read_tokens",
               "gen_ai.usage.input_tokens.cached")  # fmt: skip
_CACHE_WRITE = ("gen_ai.usage.cache_creation.input_tokens",
                "gen_ai.usage.cache_creation_input_tokens",
                "gen_ai.usage.details.cache_write_tokens",
                "llm.token_count.prompt_details.cache_write")  # fmt: skip
_REASONING = ("gen_ai.usage.reasoning.output_tokens", "gen_ai.usage.reasoning_tokens",
              "llm.token_count.completion_details.reasoning", "ai.usage.reasoningTokens",
              "gen_ai.usage.details.reasoning_tokens")  # fmt: skip
_COST = ("gen_ai.usage.cost", "gen_ai.usage.total_cost", "llm.cost.total", "operation.cost")
_ROLE_BY_INPUT_EVENT = {"gen_ai.system.message": "system", "gen_ai.user.message": "user",
          "gen_ai.assistant.message": "assistant", "gen_ai.tool.message": "tool"}  # fmt: skip
_DETAILS_EVENT = "gen_ai.client.inference.operation.details"


class OtelSpan(Record):
    """One span from any file. Attributes are plain JSON values."""

    trace: str
    id: str
    parent: str | None = None
    name: str = ""
    start: datetime | None = None
    end: datetime | None = None
    attributes: dict[str, Any] = {}
    resource: dict[str, Any] = {}
    scope: str | None = None
    failed: bool | None = None
    """None if not stated."""
    error: str | None = None
    events: tuple[tuple[str, dict[str, Any]], ...] = ()


def span_kind(span: OtelSpan) -> SpanKind | None:
    """Return what it records: an agent, one reply of a model, one tool call, or none of these."""
    attributes = span.attributes
    for name in _KIND_ATTRIBUTES:
        value = attributes.get(name)
        if not isinstance(value, str):
            continue
        if value.endswith((".doGenerate", ".doStream")):
            return "model"
        kind_name = value.lower()
        if kind_name in _KIND_BY_NAME:
            return _KIND_BY_NAME[kind_name]
        if kind_name in _OTHER_KINDS:
            return None
    if "gen_ai.tool.name" in attributes or "gen_ai.tool.call.id" in attributes:
        return "tool"
    if "gen_ai.request.model" in attributes and any(
        name.startswith("gen_ai.usage.") for name in attributes
    ):
        return "model"
    return "agent" if "gen_ai.agent.name" in attributes else None


def first_attribute(attributes: Mapping[str, Any], *names: str) -> Any:
    """Return the first of these attributes that exists."""
    for name in names:
        if (value := attributes.get(name)) is not None:
            return value
    return None


def span_model(span: OtelSpan) -> str | None:
    """Return the model that replied, or the requested one."""
    names = ("gen_ai.response.model", "ai.response.model", "gen_ai.request.model",
             "llm.model_name", "ai.model.id", "llm.response.model", "llm.request.model",
             "model_name")  # fmt: skip
    return clean_text(first_attribute(span.attributes, *names))


def span_agent(span: OtelSpan) -> str | None:
    """Return the agent's name."""
    names = ("gen_ai.agent.name", "agent.name", "agent_name", "graph.node.id", "gen_ai.agent.id")
    agent_name = clean_text(first_attribute(span.attributes, *names))
    if agent_name is None and span_kind(span) == "agent":
        agent_name = span.name.removeprefix("invoke_agent").strip()
        match = re.search(r"\[(.+)\]$", agent_name)
        agent_name = match[1] if match else agent_name
    return agent_name or None


def usage_from_span(span: OtelSpan) -> Usage:
    """Return the usage of one reply. The conventions include cached input."""
    attributes = span.attributes
    input_tokens, output_tokens = (
        as_count(first_attribute(attributes, *_INPUT_TOKENS)),
        as_count(first_attribute(attributes, *_OUTPUT_TOKENS)),
    )
    if not input_tokens and not output_tokens:
        # A model call without input and output tokens was not counted.
        return Usage()
    read, write = (
        as_count(first_attribute(attributes, *_CACHE_READ)),
        as_count(first_attribute(attributes, *_CACHE_WRITE)),
    )
    cost = as_amount(first_attribute(attributes, *_COST))
    return make_usage(
        uncached_input_tokens(input_tokens, read, write),
        output_tokens,
        read=read,
        write=write,
        reasoning=as_count(first_attribute(attributes, *_REASONING)),
        cost=cost,
    )


def input_parts(span: OtelSpan) -> list[MessagePart]:
    """Return the input of a model or agent, usually the whole conversation."""
    attributes = span.attributes
    system = parse_message_parts(attributes.get("gen_ai.system_instructions"), "system")
    messages = parse_message_parts(
        first_attribute(attributes, "gen_ai.input.messages", "ai.prompt.messages"), "user"
    )
    messages = messages or _parse_numbered_messages(attributes, "llm.input_messages.")
    messages = messages or _parse_numbered_messages(attributes, "gen_ai.prompt.")
    messages = messages or _parts_from_events(span, is_input=True)
    if not messages:
        names = ("gen_ai.prompt", "ai.prompt", "input.value", "traceloop.entity.input")
        messages = parse_message_parts(first_attribute(attributes, *names), "user")
    return system + messages


def output_parts(span: OtelSpan) -> list[MessagePart]:
    """Return the output of a model or agent."""
    attributes = span.attributes
    messages = parse_message_parts(attributes.get("gen_ai.output.messages"), "agent")
    messages = messages or _parse_numbered_messages(attributes, "llm.output_messages.")
    messages = messages or _parse_numbered_messages(attributes, "gen_ai.completion.")
    if not messages and ("ai.response.text" in attributes or "ai.response.toolCalls" in attributes):
        thought = clean_text(attributes.get("ai.response.reasoning"))
        messages = [MessagePart("agent", "thought", thought)] if thought else []
        messages += parse_message_parts(attributes.get("ai.response.text"), "agent")
        messages += parse_message_parts(attributes.get("ai.response.toolCalls"), "agent")
    messages = messages or _parts_from_events(span, is_input=False)
    if not messages:
        names = ("gen_ai.completion", "gen_ai.output", "output.value", "traceloop.entity.output")
        messages = parse_message_parts(first_attribute(attributes, *names), "agent")
    return messages


def call_from_span(span: OtelSpan) -> MessagePart:
    """Return a tool call: name, id and arguments."""
    attributes = span.attributes
    name = first_attribute(
        attributes,
        "gen_ai.tool.name",
        "tool.name",
        "ai.toolCall.name",
        "tool_name",
        "traceloop.entity.name",
    )
    call_id = first_attribute(
        attributes, "gen_ai.tool.call.id", "tool_call.id", "tool.id", "ai.toolCall.id"
    )
    arguments = first_attribute(
        attributes,
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.args",
        "tool.parameters",
        "tool_arguments",
        "ai.toolCall.args",
        "gcp.vertex.agent.tool_call_args",
        "traceloop.entity.input",
        "input.value",
    )
    arguments = _tool_events(span)[0] if arguments is None else arguments
    short_name = span.name.removeprefix("execute_tool ").removeprefix("tool.")
    [call] = parse_message_parts(
        {"type": "tool_call", "id": call_id, "name": name or short_name, "arguments": arguments},
        "agent",
    )
    return call


def span_result(span: OtelSpan) -> Any:
    """Return the tool's output; None if not recorded."""
    names = ("gen_ai.tool.call.result", "gen_ai.tool.message", "tool_response",
             "ai.toolCall.result", "gcp.vertex.agent.tool_response", "gen_ai.output",
             "traceloop.entity.output", "output.value")  # fmt: skip
    result = first_attribute(span.attributes, *names)
    return _tool_events(span)[1] if result is None else result


def _tool_events(span: OtelSpan) -> tuple[Any, Any]:
    """Return a tool's arguments and output from its span's events."""
    bodies = {name: _event_body(attributes) for name, attributes in reversed(span.events)}
    message = bodies.get("gen_ai.tool.message", {}).get("content")
    answer = bodies.get("gen_ai.choice", {}).get("message")
    # In Strands a tool's message contains its arguments; in others, its result.
    message_is_input = answer is not None or "strands" in (span.scope or "")
    return (message, answer) if message_is_input else (None, message)


def span_conversation(span: OtelSpan) -> str | None:
    """Return the conversation that a span names."""
    names = ("gen_ai.conversation.id", "session.id", "langfuse.session.id", "thread.id",
             "langsmith.trace.session_id")  # fmt: skip
    return id_text(first_attribute(span.attributes, *names))


def _parse_numbered_messages(attributes: Mapping[str, Any], prefix: str) -> list[MessagePart]:
    """Join messages that are spread over numbered attributes."""
    tree: dict[str, Any] = {}
    role: PartRole = "agent" if "completion" in prefix or "output" in prefix else "user"
    for name, value in attributes.items():
        if name.startswith(prefix):
            _set_nested_value(tree, name[len(prefix) :].split("."), value)
    return parse_message_parts(
        [_unwrap_names(numbered_value) for numbered_value in _numbered_values(tree)], role
    )


def _set_nested_value(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for step in path[:-1]:
        inner = tree.setdefault(step, {})
        if not isinstance(inner, dict):
            return
        tree = inner
    tree[path[-1]] = value


def _numbered_values(tree: Mapping[str, Any]) -> list[Any]:
    numbered = [(int(key), value) for key, value in tree.items() if key.isdecimal()]
    return [value for _, value in sorted(numbered, key=lambda pair: pair[0])]


def _unwrap_names(value: Any) -> Any:
    """Remove the names that OpenInference puts around each message, content and call."""
    if not isinstance(value, dict):
        return value
    if value and all(key.isdecimal() for key in value):
        return [_unwrap_names(numbered_value) for numbered_value in _numbered_values(value)]
    for name in ("message", "message_content", "tool_call"):
        if name in value and isinstance(value[name], dict):
            return _unwrap_names(value[name])
    plain = {key: _unwrap_names(item) for key, item in value.items()}
    if "contents" in plain and "content" not in plain:
        plain["content"] = plain.pop("contents")
    return plain


def _parts_from_events(span: OtelSpan, *, is_input: bool) -> list[MessagePart]:
    """Return messages that older conventions store as events of the span."""
    parts: list[MessagePart] = []
    for name, attributes in span.events:
        if is_input and name in _ROLE_BY_INPUT_EVENT:
            parts += parse_message_parts(
                {"role": _ROLE_BY_INPUT_EVENT[name], **_event_body(attributes)}, "user"
            )
        elif is_input and name == "gen_ai.content.prompt":
            parts += parse_message_parts(attributes.get("gen_ai.prompt"), "user")
        elif not is_input and name == "gen_ai.choice":
            body = _event_body(attributes)
            parts += parse_message_parts(
                body.get("message") or {"role": "assistant", **body}, "agent"
            )
        elif not is_input and name == "gen_ai.content.completion":
            parts += parse_message_parts(attributes.get("gen_ai.completion"), "agent")
        elif name == _DETAILS_EVENT:
            direction = "input" if is_input else "output"
            parts += parse_message_parts(
                attributes.get(f"gen_ai.{direction}.messages"), "user" if is_input else "agent"
            )
    return parts


def _event_body(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event's attributes, or the JSON stored in one of them."""
    for name in ("body", "gen_ai.event.content", "event_body"):
        inner = unfold_json(attributes.get(name))
        if isinstance(inner, dict):
            return inner
    return dict(attributes)


NO_AGENT = "a trace without an agent's spans"
OTHER_SPAN = "a span of something else than an agent"
_EARLIEST = datetime.min.replace(tzinfo=UTC)
_LATEST = datetime.max.replace(tzinfo=UTC)


def sessions_from_spans(
    spans: Iterable[OtelSpan], reader: str, version: int, skipped: dict[str, int]
) -> Iterator[Session]:
    """Yield one session per conversation, or per trace if none is named or we wrote it."""
    traces: dict[str, dict[str, OtelSpan]] = {}
    for span in spans:
        # A span that is sent again, as exporters do, is the same span.
        traces.setdefault(span.trace, {})[span.id] = span
    groups: dict[tuple[str, str], list[OtelSpan]] = {}
    for trace, trace_spans in traces.items():
        conversations = {name for span in trace_spans.values() if (name := span_conversation(span))}
        group = conversations.pop() if len(conversations) == 1 else trace
        own_trace = trace if _is_own_export(trace_spans.values()) else ""
        groups.setdefault((group or "unknown", own_trace), []).extend(trace_spans.values())
    for (name, _), members in groups.items():
        kinds = {span.id: kind for span in members if (kind := span_kind(span))}
        if kinds:
            yield _SpanSession(
                members, kinds, SessionBuilder(reader, version, skipped, several=True)
            ).build_session(name)
        else:
            count_skip(skipped, NO_AGENT)


def _is_own_export(spans: Iterable[OtelSpan]) -> bool:
    """Whether closeloop wrote them."""
    return all(f"{EXPORT_KEY}.order" in span.attributes for span in spans)


class _SpanSession:
    """Builds one conversation."""

    def __init__(
        self, spans: list[OtelSpan], kinds: dict[str, SpanKind], builder: SessionBuilder
    ) -> None:
        self.spans = {span.id: span for span in spans}
        self.kinds = kinds
        self.builder = builder
        self.dialogue = RequestHistory(builder)
        self.own = _is_own_export(spans)
        """Then nothing in it is repeated, and it contains more."""
        self.root: OtelSpan | None = None
        self.lanes: dict[str, str] = {}
        self.names: dict[str, str | None] = {ROOT_LANE: None}
        self.tools: dict[str, int] = {}
        self.usages: dict[tuple[str, str], tuple[int, Usage]] = {}
        self._drop_other_spans()

    def _drop_other_spans(self) -> None:
        """Drop a model span around another that repeats it, and spans that are not an agent's."""
        other_count = len(self.spans) - len(self.kinds)
        if other_count:
            self.builder.count_skip(OTHER_SPAN, other_count)
        models = [span for span in self.spans.values() if self.kinds.get(span.id) == "model"]
        for span in models:
            outer_span = self._span_above(span)
            if outer_span is not None and self.kinds[outer_span.id] == "model":
                del self.kinds[outer_span.id]

    def build_session(self, name: str) -> Session:
        for _, span, begins in sorted(self._iter_moments(), key=lambda moment: moment[0]):
            if not begins:
                self.dialogue.add_request(output_parts(span), self._lane_of_span(span), span.end)
            elif self.kinds[span.id] == "agent":
                self._begin_agent(span)
            elif self.kinds[span.id] == "model":
                self._add_reply(span)
            else:
                self._add_tool_use(span)
        self._complete_trace()
        root, spans = self.root, self.spans.values()
        times = [time for span in spans for time in (span.start, span.end) if time]
        failed = root is not None and root.failed
        extras = (
            parse_session_extras(unfold_json(root.attributes.get(f"{EXPORT_KEY}.session")))
            if root
            else None
        )
        extras = extras or SessionExtras(
            exit="crashed" if failed else "finished",
            cause=root.error if root and failed else None,
            started=min(times, default=None),
            ended=max(times, default=None),
            summary=self.builder.mark_claim(),
            user=self._find_attribute("user.id", "enduser.id", "langfuse.user.id"),
        )
        return self.builder.build_session(
            id=name,
            agent=self._agent_name(),
            agent_version=self._find_attribute("gen_ai.agent.version", "service.version"),
            system=self.dialogue.system,
            **msgspec.structs.asdict(extras),
        )

    def _complete_trace(self) -> None:
        """Use the agents' own counts if no model reply was recorded."""
        if "model" not in self.kinds.values():
            for span in self.spans.values():
                usage = usage_from_span(span)
                if usage != Usage() and self.kinds.get(span.id) and self._span_above(span) is None:
                    self.builder.add_turn(self._lane_of_span(span), _turn_from_span(span, usage))
        self._fill_handoffs()
        self.builder.drop_unknown_children(self.names)

    def _fill_handoffs(self) -> None:
        """What agents were asked and said last, where only their own lanes tell it."""
        briefs: dict[str, str] = {}
        reports: dict[str, str] = {}
        for event in self.builder.events:
            if isinstance(event, Message) and event.role == "user":
                briefs.setdefault(event.lane, event.text)
            elif isinstance(event, Message) and event.role == "agent":
                reports[event.lane] = event.text
        for event in self.builder.events if not self.own else ():
            if isinstance(event, Handoff) and event.child and event.report is None:
                brief = event.brief or briefs.get(event.child, "")
                handoff_texts = {"brief": brief, "report": reports.get(event.child)}
                self.builder.replace_event(msgspec.structs.replace(event, **handoff_texts))

    def _agent_name(self) -> str:
        agent_name = span_agent(self.root) if self.root else None
        if agent_name is not None and is_bare_id(agent_name):
            return UNKNOWN_AGENT
        scopes = (span.scope for span in self.spans.values() if span.scope)
        agent_name = agent_name or self._find_attribute("service.name", "langfuse.trace.name")
        return agent_name or next(scopes, UNKNOWN_AGENT)

    def _find_attribute(self, *names: str) -> str | None:
        """Return the first of these that any span or its resource has."""
        spans = [self.root] if self.root else []
        for span in (*spans, *self.spans.values()):
            value = clean_text(first_attribute(span.attributes, *names)) or clean_text(
                first_attribute(span.resource, *names)
            )
            if value and not value.startswith("unknown_service"):
                return value
        return None

    def _iter_moments(self) -> Iterator[tuple[tuple[int, datetime, int], OtelSpan, bool]]:
        """Yield where each span begins and each agent ends, in time order."""
        for index, span in enumerate(self._iter_parents_first()):
            kind = self.kinds.get(span.id)
            order = as_count(span.attributes.get(f"{EXPORT_KEY}.order")) if self.own else None
            start = None if self.own else span.start
            if kind is not None:
                yield (order or 0, start or _EARLIEST, index), span, True
            if kind == "agent" and not self.own:
                yield (0, span.end or _LATEST, index + len(self.spans)), span, False

    def _iter_parents_first(self) -> Iterator[OtelSpan]:
        """Yield parents before children: files contain spans in the order they ended."""
        children: dict[str, list[OtelSpan]] = {}
        for span in self.spans.values():
            children.setdefault(span.parent if span.parent in self.spans else "", []).append(span)
        seen_ids: set[str] = set()
        # Spans that contain each other, which only a damaged file has, come last.
        pending = [*reversed(self.spans.values()), *reversed(children.get("", []))]
        while pending:
            span = pending.pop()
            if span.id not in seen_ids:
                seen_ids.add(span.id)
                yield span
                pending.extend(reversed(children.get(span.id, [])))

    def _span_above(self, span: OtelSpan) -> OtelSpan | None:
        """Return the nearest surrounding span of an agent, model or tool."""
        seen_ids = {span.id}
        parent = self.spans.get(span.parent or "")
        while parent is not None and parent.id not in seen_ids:
            if parent.id in self.kinds:
                return parent
            seen_ids.add(parent.id)
            parent = self.spans.get(parent.parent or "")
        return None

    def _lane_of_span(self, span: OtelSpan) -> str:
        """Return the lane of the surrounding agent."""
        seen_ids: set[str] = set()
        outer_span: OtelSpan | None = span
        while outer_span is not None and outer_span.id not in seen_ids:
            if outer_span.id in self.lanes:
                return self.lanes[outer_span.id]
            seen_ids.add(outer_span.id)
            outer_span = self._span_above(outer_span)
        return ROOT_LANE

    def _begin_agent(self, span: OtelSpan) -> None:
        """Begin an agent, or continue one whose span is inside another of its own."""
        outer_span = self._span_above(span)
        seen_ids: set[str] = set()
        while (
            outer_span is not None
            and self.kinds[outer_span.id] == "model"
            and outer_span.id not in seen_ids
        ):
            seen_ids.add(outer_span.id)
            outer_span = self._span_above(outer_span)
        outer_lane, name = self._lane_of_span(span), span_agent(span)
        is_tool_call = outer_span is not None and self.kinds[outer_span.id] == "tool"
        if self.root is None and not is_tool_call:
            self.root = span
        is_same_agent = not self.own and name in (None, self.names[outer_lane])
        if not is_tool_call and (self.root is span or is_same_agent):
            self.names[outer_lane] = self.names[outer_lane] or name
            self.lanes[span.id] = self.builder.open_lane(outer_lane, agent=name)
        else:
            self._open_child_lane(span, outer_lane, outer_span)
        self.dialogue.add_request(input_parts(span), self.lanes[span.id], span.start)

    def _open_child_lane(
        self, span: OtelSpan, outer_lane: str, outer_span: OtelSpan | None
    ) -> None:
        """Open the lane of another agent, called by a tool, an agent, or nobody visible."""
        stated_lane = clean_text(span.attributes.get(f"{EXPORT_KEY}.lane")) or span.id
        lane = span.id if stated_lane in self.names else stated_lane
        self.names[lane] = span_agent(span)
        self.lanes[span.id] = self.builder.open_lane(lane, outer_lane, self.names[lane])
        if self.own or outer_span is None:
            return
        brief = "\n".join(part.text for part in input_parts(span) if part[:2] == ("user", "text"))
        if outer_span.id in self.tools:
            event = self.builder.events[self.tools[outer_span.id] - 1]
            self.builder.replace_event(handoff_from_call(event, lane, brief))
        elif self.kinds[outer_span.id] == "agent":
            text = "\n".join(part.text for part in output_parts(span) if part.kind == "text")
            self.builder.add(
                Handoff(
                    number=self.builder.next_number,
                    lane=outer_lane,
                    at=span.start,
                    brief=brief,
                    seconds=_span_seconds(span),
                    child=lane,
                    report=text or None,
                    ok=_span_success(span),
                )
            )

    def _add_reply(self, span: OtelSpan) -> None:
        """Add one model message and its input."""
        lane = self._lane_of_span(span)
        if self.own:
            for part in input_parts(span):
                self.dialogue.add_part(part, lane, span.start)
        else:
            self.dialogue.add_request(input_parts(span), lane, span.start)
        turn = self._add_turn(span, lane)
        for part in output_parts(span):
            self.dialogue.add_reply_part(part, lane, span.end or span.start, turn)
        if span.failed:
            self.builder.add_note(span.error or "", about="model error", lane=lane, at=span.end)

    def _add_turn(self, span: OtelSpan, lane: str) -> int | None:
        """Spans that name the same reply and count nothing else are one."""
        if self.own and as_count(span.attributes.get(f"{EXPORT_KEY}.turn")) == 0:
            return None
        turn = self._own_turn(span) or _turn_from_span(span, usage_from_span(span))
        model, usage = turn.model, turn.usage
        reply_id = id_text(first_attribute(span.attributes, "gen_ai.response.id", "ai.response.id"))
        if reply_id and (lane, reply_id) in self.usages:
            number, before = self.usages[lane, reply_id]
            if usage in (before, Usage()):
                return number
        number = self.builder.add_turn(lane, turn)
        if reply_id:
            self.usages[lane, reply_id] = (number, usage)
        if model:
            self.builder.models[model] += 1
        return number

    def _own_turn(self, span: OtelSpan) -> Turn | None:
        try:
            value = unfold_json(span.attributes.get(f"{EXPORT_KEY}.reply")) if self.own else None
            return msgspec.convert(value, Turn) if isinstance(value, dict) else None
        except msgspec.ValidationError:
            return None

    def _add_tool_use(self, span: OtelSpan) -> None:
        """Add a tool call: requested by a model, or without a model's message."""
        lane, call = self._lane_of_span(span), call_from_span(span)
        event = self.dialogue.find_open_call(lane, call)
        if event is None:
            self.dialogue.mark_known(call, lane)
            event = self.dialogue.add_part(
                call, lane, span.start, self.builder.count_turns(lane) or None
            )
            assert event is not None
        event = self.dialogue.complete_call(event, call)
        result = span_result(span)
        output = span.error if result is None else result_text(result)
        if output is not None or span.failed is not None:
            event = self.dialogue.finish_call(event, output, _span_success(span))
            result_part = MessagePart("tool", "result", output or "", call.name, call.id)
            self.dialogue.mark_known(result_part, lane)
        event = self._with_times(event, span)
        self.builder.replace_event(event)
        self.tools[span.id] = event.number

    def _with_times(self, event: AnyEvent, span: OtelSpan) -> AnyEvent:
        if self.own:
            self.dialogue.close_call(event)
            return restore_event(event, unfold_json(span.attributes.get(f"{EXPORT_KEY}.event")))
        return msgspec.structs.replace(
            event, at=span.start or event.at, seconds=_span_seconds(span)
        )


def _turn_from_span(span: OtelSpan, usage: Usage) -> Turn:
    return Turn(usage=usage, model=span_model(span), at=span.start, seconds=_span_seconds(span))


def _span_seconds(span: OtelSpan) -> float | None:
    if span.start is None or span.end is None or span.end < span.start:
        return None
    return (span.end - span.start).total_seconds()


def _span_success(span: OtelSpan) -> bool | None:
    return None if span.failed is None else not span.failed
