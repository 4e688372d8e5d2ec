"""Spans of OpenTelemetry and its relatives: what each one is, by the names its emitter used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from closeloop.records.attempt import Usage
from closeloop.records.record import Record
from closeloop.traces.message_parts import MessagePart, PartRole, id_text, parse_message_parts
from closeloop.traces.provider_values import make_usage, uncached_input_tokens
from closeloop.traces.untrusted_json import as_amount, as_count, clean_text, unfold_json

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
    """One span, whatever file it came from. Attributes are plain JSON values."""

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
    """None where nobody says how it went."""
    error: str | None = None
    events: tuple[tuple[str, dict[str, Any]], ...] = ()


def span_kind(span: OtelSpan) -> SpanKind | None:
    """What it records: an agent at work, one reply of a model, one use of a tool; or none of it."""
    attributes = span.attributes
    for name in _KIND_ATTRIBUTES:
        value = attributes.get(name)
        if not isinstance(value, str):
            continue
        if value.endswith((".doGenerate", ".doStream")):
            return "model"
        stated = value.lower()
        if stated in _KIND_BY_NAME:
            return _KIND_BY_NAME[stated]
        if stated in _OTHER_KINDS:
            return None
    if "gen_ai.tool.name" in attributes or "gen_ai.tool.call.id" in attributes:
        return "tool"
    if "gen_ai.request.model" in attributes and any(
        name.startswith("gen_ai.usage.") for name in attributes
    ):
        return "model"
    return "agent" if "gen_ai.agent.name" in attributes else None


def first_attribute(given: Mapping[str, Any], *names: str) -> Any:
    """The first of these attributes that is there."""
    for name in names:
        if (value := given.get(name)) is not None:
            return value
    return None


def span_model(span: OtelSpan) -> str | None:
    """The model that replied, or the one that was asked."""
    names = ("gen_ai.response.model", "ai.response.model", "gen_ai.request.model",
             "llm.model_name", "ai.model.id", "llm.response.model", "llm.request.model",
             "model_name")  # fmt: skip
    return clean_text(first_attribute(span.attributes, *names))


def span_agent(span: OtelSpan) -> str | None:
    """The agent's name."""
    names = ("gen_ai.agent.name", "agent.name", "agent_name", "graph.node.id", "gen_ai.agent.id")
    agent_name = clean_text(first_attribute(span.attributes, *names))
    if agent_name is None and span_kind(span) == "agent":
        agent_name = span.name.removeprefix("invoke_agent").strip()
        inside = re.search(r"\[(.+)\]$", agent_name)
        agent_name = inside[1] if inside else agent_name
    return agent_name or None


def usage_from_span(span: OtelSpan) -> Usage:
    """What one reply used. Input counts of the conventions include what came from a cache."""
    attributes = span.attributes
    input_tokens, output_tokens = (
        as_count(first_attribute(attributes, *_INPUT_TOKENS)),
        as_count(first_attribute(attributes, *_OUTPUT_TOKENS)),
    )
    if not input_tokens and not output_tokens:
        # A model that read nothing and said nothing was not counted at all.
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
    """What a model or an agent was given: the whole conversation, as a rule."""
    attributes = span.attributes
    system = parse_message_parts(attributes.get("gen_ai.system_instructions"), "system")
    messages = parse_message_parts(
        first_attribute(attributes, "gen_ai.input.messages", "ai.prompt.messages"), "user"
    )
    messages = messages or _parse_numbered_messages(attributes, "llm.input_messages.")
    messages = messages or _parse_numbered_messages(attributes, "gen_ai.prompt.")
    messages = messages or _parts_from_events(span, asked=True)
    if not messages:
        names = ("gen_ai.prompt", "ai.prompt", "input.value", "traceloop.entity.input")
        messages = parse_message_parts(first_attribute(attributes, *names), "user")
    return system + messages


def output_parts(span: OtelSpan) -> list[MessagePart]:
    """What a model or an agent said and asked to be done."""
    attributes = span.attributes
    messages = parse_message_parts(attributes.get("gen_ai.output.messages"), "agent")
    messages = messages or _parse_numbered_messages(attributes, "llm.output_messages.")
    messages = messages or _parse_numbered_messages(attributes, "gen_ai.completion.")
    if not messages and ("ai.response.text" in attributes or "ai.response.toolCalls" in attributes):
        thought = clean_text(attributes.get("ai.response.reasoning"))
        messages = [MessagePart("agent", "thought", thought)] if thought else []
        messages += parse_message_parts(attributes.get("ai.response.text"), "agent")
        messages += parse_message_parts(attributes.get("ai.response.toolCalls"), "agent")
    messages = messages or _parts_from_events(span, asked=False)
    if not messages:
        names = ("gen_ai.completion", "gen_ai.output", "output.value", "traceloop.entity.output")
        messages = parse_message_parts(first_attribute(attributes, *names), "agent")
    return messages


def call_from_span(span: OtelSpan) -> MessagePart:
    """The use of a tool: its name, its id, what it was given."""
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
    """What the tool gave back; None where that is not recorded."""
    names = ("gen_ai.tool.call.result", "gen_ai.tool.message", "tool_response",
             "ai.toolCall.result", "gcp.vertex.agent.tool_response", "gen_ai.output",
             "traceloop.entity.output", "output.value")  # fmt: skip
    result = first_attribute(span.attributes, *names)
    return _tool_events(span)[1] if result is None else result


def _tool_events(span: OtelSpan) -> tuple[Any, Any]:
    """What a tool was given and gave back, where events of its span say so."""
    bodies = {name: _event_body(given) for name, given in reversed(span.events)}
    message = bodies.get("gen_ai.tool.message", {}).get("content")
    answer = bodies.get("gen_ai.choice", {}).get("message")
    # Strands tells with a tool's message what the tool is given; others, what came of it.
    message_is_input = answer is not None or "strands" in (span.scope or "")
    return (message, answer) if message_is_input else (None, message)


def span_conversation(span: OtelSpan) -> str | None:
    """The conversation it says it is part of."""
    names = ("gen_ai.conversation.id", "session.id", "langfuse.session.id", "thread.id",
             "langsmith.trace.session_id")  # fmt: skip
    return id_text(first_attribute(span.attributes, *names))


def _parse_numbered_messages(given: Mapping[str, Any], prefix: str) -> list[MessagePart]:
    """Messages spread over attributes with numbers in their names, put together again."""
    tree: dict[str, Any] = {}
    role: PartRole = "agent" if "completion" in prefix or "output" in prefix else "user"
    for name, value in given.items():
        if name.startswith(prefix):
            _set_nested_value(tree, name[len(prefix) :].split("."), value)
    return parse_message_parts([_unwrap_names(one) for one in _numbered_values(tree)], role)


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
    """Without the names that OpenInference puts around each message, content and call."""
    if not isinstance(value, dict):
        return value
    if value and all(key.isdecimal() for key in value):
        return [_unwrap_names(one) for one in _numbered_values(value)]
    for name in ("message", "message_content", "tool_call"):
        if name in value and isinstance(value[name], dict):
            return _unwrap_names(value[name])
    plain = {key: _unwrap_names(one) for key, one in value.items()}
    if "contents" in plain and "content" not in plain:
        plain["content"] = plain.pop("contents")
    return plain


def _parts_from_events(span: OtelSpan, *, asked: bool) -> list[MessagePart]:
    """Messages that older conventions keep as events of the span."""
    parts: list[MessagePart] = []
    for name, attributes in span.events:
        if asked and name in _ROLE_BY_INPUT_EVENT:
            parts += parse_message_parts(
                {"role": _ROLE_BY_INPUT_EVENT[name], **_event_body(attributes)}, "user"
            )
        elif asked and name == "gen_ai.content.prompt":
            parts += parse_message_parts(attributes.get("gen_ai.prompt"), "user")
        elif not asked and name == "gen_ai.choice":
            body = _event_body(attributes)
            parts += parse_message_parts(
                body.get("message") or {"role": "assistant", **body}, "agent"
            )
        elif not asked and name == "gen_ai.content.completion":
            parts += parse_message_parts(attributes.get("gen_ai.completion"), "agent")
        elif name == _DETAILS_EVENT:
            way = "input" if asked else "output"
            parts += parse_message_parts(
                attributes.get(f"gen_ai.{way}.messages"), "user" if asked else "agent"
            )
    return parts


def _event_body(given: Mapping[str, Any]) -> dict[str, Any]:
    """An event's attributes, or what is kept as JSON in one of them."""
    for name in ("body", "gen_ai.event.content", "event_body"):
        inner = unfold_json(given.get(name))
        if isinstance(inner, dict):
            return inner
    return dict(given)
