"""Langfuse traces as its interface, its API and its exports give them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from closeloop.model.protocols import Source
from closeloop.model.session import Session
from closeloop.traces import single
from closeloop.traces.otel.conversations import sessions_of
from closeloop.traces.otel.spans import Span, first
from closeloop.traces.untrusted import amount, count, mapping, moment
from closeloop.traces.values import text, unfolded, written

name = "langfuse"
version = 2
parts, owner = single.parts, single.owner

_TYPES = frozenset({"SPAN", "GENERATION", "EVENT", "AGENT", "TOOL", "CHAIN", "RETRIEVER",
                    "EVALUATOR", "EMBEDDING", "GUARDRAIL"})  # fmt: skip


def recognises(source: Source) -> bool:
    if b'"' not in source.head or source.head.lstrip()[:1] not in (b"{", b"["):
        return False
    lines = source.lines
    if lines and _observations(lines[0]):
        return True
    if b'raceId"' not in source.head and b'trace_id"' not in source.head:
        return b'"observations"' in source.head and bool(_of_document(source.document))
    return bool(_of_document(source.document))


def read(source: Source) -> Iterator[Session]:
    yield from sessions_of(_spans(source), name, version, source.skipped)


def _spans(source: Source) -> Iterator[Span]:
    document = source.document
    values = source.records() if document is None else document
    for value in values if not isinstance(values, dict) else [values]:
        found = _observations(value)
        if not found:
            key = "a record that is no observation"
            source.skipped[key] = source.skipped.get(key, 0) + 1
        trace = mapping(mapping(value).get("trace")) or mapping(value)
        shared = {
            "session.id": first(trace, "sessionId", "session_id"),
            "user.id": first(trace, "userId", "user_id"),
            "langfuse.trace.name": first(trace, "name") if "observations" in trace else None,
        }
        for observation in found:
            yield _span(observation, shared)


def _of_document(value: Any) -> Sequence[Any]:
    if isinstance(value, list):
        found = [_observations(one) for one in value[:20]]
        return found if found and all(found) else ()
    return _observations(value)


def _observations(value: Any) -> list[Mapping[str, Any]]:
    """The observations of a trace; or the one that a value is, where a file lists them alone."""
    if not isinstance(value, dict):
        return []
    inside = value.get("observations")
    if isinstance(inside, list):
        found = [one for one in inside if _is_observation(one)]
        return found if len(found) * 2 > len(inside) else []
    return [value] if _is_observation(value) else []


def _is_observation(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("type"), str)
        and value["type"] in _TYPES
        and isinstance(value.get("id"), str)
        and isinstance(first(value, "traceId", "trace_id"), str)
        and ("startTime" in value or "start_time" in value)
    )


def _span(observation: Mapping[str, Any], shared: Mapping[str, Any]) -> Span:
    meta = mapping(unfolded(observation.get("metadata")))
    given = dict(mapping(unfolded(meta.get("attributes"))))
    given = {key: value for key, value in given.items() if not key.startswith(_COUNTED)}
    given |= {key: value for key, value in shared.items() if value is not None}
    given["langfuse.observation.type"] = observation["type"]
    given |= _usage(observation)
    if model := text(first(observation, "model", "provided_model_name")):
        given["gen_ai.response.model"] = model
    for key, attribute in (("input", "input.value"), ("output", "output.value")):
        if observation.get(key) is not None:
            given.setdefault(attribute, observation[key])
    failed = observation.get("level") == "ERROR"
    return Span(
        trace=first(observation, "traceId", "trace_id"),
        id=observation["id"],
        parent=text(first(observation, "parentObservationId", "parent_observation_id")),
        name=written(observation.get("name") or ""),
        start=moment(first(observation, "startTime", "start_time")),
        end=moment(first(observation, "endTime", "end_time")),
        attributes=given,
        resource=dict(mapping(unfolded(meta.get("resourceAttributes")))),
        scope=text(mapping(unfolded(meta.get("scope"))).get("name")),
        failed=True if failed else None,
        error=text(first(observation, "statusMessage", "status_message")) if failed else None,
    )


_COUNTED = ("gen_ai.usage.", "llm.token_count.", "ai.usage.", "operation.cost")
_READ = ("input_cached_tokens", "cache_read_input_tokens", "input_cache_read",
         "input_cached", "cache_read")  # fmt: skip
_WRITE = ("cache_creation_input_tokens", "input_cache_creation", "input_cache_write",
          "cache_creation")  # fmt: skip
_REASONING = ("output_reasoning_tokens", "output_reasoning", "reasoning_tokens")


def _usage(observation: Mapping[str, Any]) -> dict[str, Any]:
    """Langfuse's counts under the conventions' names: there, the whole has its kinds in it."""
    details = mapping(unfolded(first(observation, "usageDetails", "usage_details")))
    details = details or mapping(observation.get("usage"))
    asked, made, total = (count(details.get(key)) for key in ("input", "output", "total"))
    read, write = count(first(details, *_READ)), count(first(details, *_WRITE))
    thought = count(first(details, *_REASONING))
    if asked is not None and (made is None or total is None or asked + made != total):
        # Kinds of tokens stand beside each other here, and sum up to the total.
        asked += (read or 0) + (write or 0)
        made = made if made is None else made + (thought or 0)
    provided = mapping(unfolded(first(observation, "providedCostDetails", "provided_cost_details")))
    computed = mapping(unfolded(first(observation, "costDetails", "cost_details")))
    cost = amount(provided.get("total")) or amount(computed.get("total"))
    cost = cost or amount(first(observation, "calculatedTotalCost", "totalCost", "total_cost"))
    found = {
        "gen_ai.usage.input_tokens": asked,
        "gen_ai.usage.output_tokens": made,
        "gen_ai.usage.cache_read.input_tokens": read,
        "gen_ai.usage.cache_creation.input_tokens": write,
        "gen_ai.usage.reasoning.output_tokens": thought,
        "gen_ai.usage.cost": cost,
    }
    return {key: value for key, value in found.items() if value is not None}
