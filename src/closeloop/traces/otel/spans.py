"""Spans of OpenTelemetry and its relatives: what each one is, by the names its emitter used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from closeloop.model.attempt import Usage
from closeloop.model.record import Record
from closeloop.traces.otel.said import Role, Said, identity, said
from closeloop.traces.untrusted import amount, count
from closeloop.traces.values import fresh, text, unfolded

Kind = Literal["agent", "model", "tool"]


class Span(Record):
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


_KINDS: dict[str, Kind] = {
    "chat": "model", "generate_content": "model", "text_completion": "model", "llm": "model",
    "completion": "model", "generation": "model", "call_llm": "model", "execute_tool": "tool",
    "tool": "tool", "ai.toolcall": "tool", "invoke_agent": "agent", "agent": "agent",
}  # fmt: skip
_PLAIN = frozenset({"create_agent", "embeddings", "embedding", "retrieval", "retriever", "chain",
                    "invoke_workflow", "plan", "workflow", "evaluator", "guardrail",
                    "reranker"})  # fmt: skip
_KIND_NAMES = ("gen_ai.operation.name", "openinference.span.kind", "langfuse.observation.type",
               "traceloop.span.kind", "langsmith.span.kind", "ai.operationId",
               "llm.request.type")  # fmt: skip


def kind_of(span: Span) -> Kind | None:
    """What it records: an agent at work, one reply of a model, one use of a tool; or none of it."""
    given = span.attributes
    for name in _KIND_NAMES:
        value = given.get(name)
        if not isinstance(value, str):
            continue
        if value.endswith((".doGenerate", ".doStream")):
            return "model"
        stated = value.lower()
        if stated in _KINDS:
            return _KINDS[stated]
        if stated in _PLAIN:
            return None
    if "gen_ai.tool.name" in given or "gen_ai.tool.call.id" in given:
        return "tool"
    if "gen_ai.request.model" in given and any(name.startswith("gen_ai.usage.") for name in given):
        return "model"
    return "agent" if "gen_ai.agent.name" in given else None


def first(given: Mapping[str, Any], *names: str) -> Any:
    """The first of these attributes that is there."""
    for name in names:
        if (value := given.get(name)) is not None:
            return value
    return None


def model_of(span: Span) -> str | None:
    """The model that replied, or the one that was asked."""
    names = ("gen_ai.response.model", "ai.response.model", "gen_ai.request.model",
             "llm.model_name", "ai.model.id", "llm.response.model", "llm.request.model",
             "model_name")  # fmt: skip
    return text(first(span.attributes, *names))


def agent_of(span: Span) -> str | None:
    """The agent's name."""
    names = ("gen_ai.agent.name", "agent.name", "agent_name", "graph.node.id", "gen_ai.agent.id")
    found = text(first(span.attributes, *names))
    if found is None and kind_of(span) == "agent":
        found = span.name.removeprefix("invoke_agent").strip()
        inside = re.search(r"\[(.+)\]$", found)
        found = inside[1] if inside else found
    return found or None


_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt",
          "llm.usage.prompt_tokens", "ai.usage.inputTokens", "ai.usage.promptTokens")  # fmt: skip
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens",
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


def usage_of(span: Span) -> Usage:
    """What one reply used. Input counts of the conventions include what came from a cache."""
    given = span.attributes
    asked, made = count(first(given, *_INPUT)), count(first(given, *_OUTPUT))
    if not asked and not made:
        # A model that read nothing and said nothing was not counted at all.
        return Usage()
    read, write = count(first(given, *_CACHE_READ)), count(first(given, *_CACHE_WRITE))
    cost = amount(first(given, *_COST))
    return Usage(
        input_tokens=fresh(asked, read, write),
        output_tokens=made,
        cache_read_tokens=read,
        cache_write_tokens=write,
        reasoning_tokens=count(first(given, *_REASONING)),
        cost=cost,
        cost_from=None if cost is None else "reported",
    )


def inputs(span: Span) -> list[Said]:
    """What a model or an agent was given: the whole conversation, as a rule."""
    given = span.attributes
    system = said(given.get("gen_ai.system_instructions"), "system")
    messages = said(first(given, "gen_ai.input.messages", "ai.prompt.messages"), "user")
    messages = messages or _numbered(given, "llm.input_messages.")
    messages = messages or _numbered(given, "gen_ai.prompt.")
    messages = messages or _of_events(span, asked=True)
    if not messages:
        names = ("gen_ai.prompt", "ai.prompt", "input.value", "traceloop.entity.input")
        messages = said(first(given, *names), "user")
    return system + messages


def outputs(span: Span) -> list[Said]:
    """What a model or an agent said and asked to be done."""
    given = span.attributes
    messages = said(given.get("gen_ai.output.messages"), "agent")
    messages = messages or _numbered(given, "llm.output_messages.")
    messages = messages or _numbered(given, "gen_ai.completion.")
    if not messages and ("ai.response.text" in given or "ai.response.toolCalls" in given):
        thought = text(given.get("ai.response.reasoning"))
        messages = [Said("agent", "thought", thought)] if thought else []
        messages += said(given.get("ai.response.text"), "agent")
        messages += said(given.get("ai.response.toolCalls"), "agent")
    messages = messages or _of_events(span, asked=False)
    if not messages:
        names = ("gen_ai.completion", "gen_ai.output", "output.value", "traceloop.entity.output")
        messages = said(first(given, *names), "agent")
    return messages


def call_of(span: Span) -> Said:
    """The use of a tool: its name, its id, what it was given."""
    given = span.attributes
    name = first(given, "gen_ai.tool.name", "tool.name", "ai.toolCall.name", "tool_name",
                 "traceloop.entity.name")  # fmt: skip
    called = first(given, "gen_ai.tool.call.id", "tool_call.id", "tool.id", "ai.toolCall.id")
    arguments = first(given, "gen_ai.tool.call.arguments", "gen_ai.tool.args", "tool.parameters",
                      "tool_arguments",
                      "ai.toolCall.args", "gcp.vertex.agent.tool_call_args",
                      "traceloop.entity.input", "input.value")  # fmt: skip
    arguments = _tool_events(span)[0] if arguments is None else arguments
    plain = span.name.removeprefix("execute_tool ").removeprefix("tool.")
    [call] = said(
        {"type": "tool_call", "id": called, "name": name or plain, "arguments": arguments}, "agent"
    )
    return call


def result_in(span: Span) -> Any:
    """What the tool gave back; None where that is not recorded."""
    names = ("gen_ai.tool.call.result", "gen_ai.tool.message", "tool_response",
             "ai.toolCall.result", "gcp.vertex.agent.tool_response", "gen_ai.output",
             "traceloop.entity.output", "output.value")  # fmt: skip
    found = first(span.attributes, *names)
    return _tool_events(span)[1] if found is None else found


def _tool_events(span: Span) -> tuple[Any, Any]:
    """What a tool was given and gave back, where events of its span say so."""
    told = {name: _body(given) for name, given in reversed(span.events)}
    message = told.get("gen_ai.tool.message", {}).get("content")
    answer = told.get("gen_ai.choice", {}).get("message")
    # Strands tells with a tool's message what the tool is given; others, what came of it.
    given = answer is not None or "strands" in (span.scope or "")
    return (message, answer) if given else (None, message)


def conversation_of(span: Span) -> str | None:
    """The conversation it says it is part of."""
    names = ("gen_ai.conversation.id", "session.id", "langfuse.session.id", "thread.id",
             "langsmith.trace.session_id")  # fmt: skip
    return identity(first(span.attributes, *names))


def _numbered(given: Mapping[str, Any], prefix: str) -> list[Said]:
    """Messages spread over attributes with numbers in their names, put together again."""
    tree: dict[str, Any] = {}
    role: Role = "agent" if "completion" in prefix or "output" in prefix else "user"
    for name, value in given.items():
        if name.startswith(prefix):
            _plant(tree, name[len(prefix) :].split("."), value)
    return [part for message in _listed(tree) for part in said(_unwrapped(message), role)]


def _plant(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for step in path[:-1]:
        inner = tree.setdefault(step, {})
        if not isinstance(inner, dict):
            return
        tree = inner
    tree[path[-1]] = value


def _listed(tree: Mapping[str, Any]) -> list[Any]:
    numbered = [(int(key), value) for key, value in tree.items() if key.isdecimal()]
    return [value for _, value in sorted(numbered, key=lambda pair: pair[0])]


def _unwrapped(value: Any) -> Any:
    """Without the names that OpenInference puts around each message, content and call."""
    if not isinstance(value, dict):
        return value
    if value and all(key.isdecimal() for key in value):
        return [_unwrapped(one) for one in _listed(value)]
    for name in ("message", "message_content", "tool_call"):
        if name in value and isinstance(value[name], dict):
            return _unwrapped(value[name])
    plain = {key: _unwrapped(one) for key, one in value.items()}
    if "contents" in plain and "content" not in plain:
        plain["content"] = plain.pop("contents")
    return plain


_ASKED = {"gen_ai.system.message": "system", "gen_ai.user.message": "user",
          "gen_ai.assistant.message": "assistant", "gen_ai.tool.message": "tool"}  # fmt: skip
_DETAILS = "gen_ai.client.inference.operation.details"


def _of_events(span: Span, *, asked: bool) -> list[Said]:
    """Messages that older conventions keep as events of the span."""
    found: list[Said] = []
    for name, given in span.events:
        if asked and name in _ASKED:
            found += said({"role": _ASKED[name], **_body(given)}, "user")
        elif asked and name == "gen_ai.content.prompt":
            found += said(given.get("gen_ai.prompt"), "user")
        elif not asked and name == "gen_ai.choice":
            body = _body(given)
            found += said(body.get("message") or {"role": "assistant", **body}, "agent")
        elif not asked and name == "gen_ai.content.completion":
            found += said(given.get("gen_ai.completion"), "agent")
        elif name == _DETAILS:
            way = "input" if asked else "output"
            found += said(given.get(f"gen_ai.{way}.messages"), "user" if asked else "agent")
    return found


def _body(given: Mapping[str, Any]) -> dict[str, Any]:
    """An event's attributes, or what is kept as JSON in one of them."""
    for name in ("body", "gen_ai.event.content", "event_body"):
        inner = unfolded(given.get(name))
        if isinstance(inner, dict):
            return inner
    return dict(given)
