"""Langfuse traces from its interface, its API and its exports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from closeloop.records.protocols import RecordingSource
from closeloop.records.trace import Session
from closeloop.traces.readers.otel_sessions import OtelSpan, first_attribute, sessions_from_spans
from closeloop.traces.session_builder import count_skip
from closeloop.traces.untrusted_json import (
    as_amount,
    as_count,
    as_mapping,
    clean_text,
    text_or_json,
    time_from_text,
    unfold_json,
)

name = "langfuse"
version = 3

_OBSERVATION_TYPES = frozenset(
    {
        "SPAN",
        "GENERATION",
        "EVENT",
        "AGENT",
        "TOOL",
        "CHAIN",
        "RETRIEVER",
        "EVALUATOR",
        "EMBEDDING",
        "GUARDRAIL",
    }
)
_COUNT_PREFIXES = ("gen_ai.usage.", "llm.token_count.", "ai.usage.", "operation.cost")
_CACHE_READ_KEYS = ("input_cached_tokens", "cache_read_input_tokens", "input_cache_read",
         "input_cached", "cache_read")  # fmt: skip
_CACHE_WRITE_KEYS = ("cache_creation_input_tokens", "input_cache_creation", "input_cache_write",
          "cache_creation")  # fmt: skip
_REASONING_KEYS = ("output_reasoning_tokens", "output_reasoning", "reasoning_tokens")


def recognises(source: RecordingSource) -> bool:
    if b'"' not in source.head or source.head.lstrip()[:1] not in (b"{", b"["):
        return False
    lines = source.lines
    if lines and _list_observations(lines[0]):
        return True
    if b'raceId"' not in source.head and b'trace_id"' not in source.head:
        return b'"observations"' in source.head and bool(_document_observations(source.document))
    return bool(_document_observations(source.document))


def read(source: RecordingSource) -> Iterator[Session]:
    yield from sessions_from_spans(_iter_spans(source), name, version, source.skipped)


def _iter_spans(source: RecordingSource) -> Iterator[OtelSpan]:
    document = source.document
    values = source.records() if document is None else document
    for value in values if not isinstance(values, dict) else [values]:
        observations = _list_observations(value)
        if not observations:
            key = "a record that is no observation"
            count_skip(source.skipped, key)
        trace = as_mapping(as_mapping(value).get("trace")) or as_mapping(value)
        shared = {
            "session.id": first_attribute(trace, "sessionId", "session_id"),
            "user.id": first_attribute(trace, "userId", "user_id"),
            "langfuse.trace.name": first_attribute(trace, "name")
            if "observations" in trace
            else None,
        }
        for observation in observations:
            yield _span_from_observation(observation, shared)


def _document_observations(value: Any) -> Sequence[Any]:
    if isinstance(value, list):
        observations = [_list_observations(item) for item in value[:20]]
        return observations if observations and all(observations) else ()
    return _list_observations(value)


def _list_observations(value: Any) -> list[Mapping[str, Any]]:
    """Return the observations of a trace, or the single one that a value is."""
    if not isinstance(value, dict):
        return []
    items = value.get("observations")
    if isinstance(items, list):
        observations = [item for item in items if _is_observation(item)]
        return observations if len(observations) * 2 > len(items) else []
    return [value] if _is_observation(value) else []


def _is_observation(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("type"), str)
        and value["type"] in _OBSERVATION_TYPES
        and isinstance(value.get("id"), str)
        and isinstance(first_attribute(value, "traceId", "trace_id"), str)
        and ("startTime" in value or "start_time" in value)
    )


def _span_from_observation(observation: Mapping[str, Any], shared: Mapping[str, Any]) -> OtelSpan:
    meta = as_mapping(unfold_json(observation.get("metadata")))
    attributes = dict(as_mapping(unfold_json(meta.get("attributes"))))
    attributes = {
        key: value for key, value in attributes.items() if not key.startswith(_COUNT_PREFIXES)
    }
    attributes |= {key: value for key, value in shared.items() if value is not None}
    attributes["langfuse.observation.type"] = observation["type"]
    attributes |= _usage_attributes(observation)
    if model := clean_text(first_attribute(observation, "model", "provided_model_name")):
        attributes["gen_ai.response.model"] = model
    for key, attribute in (("input", "input.value"), ("output", "output.value")):
        if observation.get(key) is not None:
            attributes.setdefault(attribute, observation[key])
    failed = observation.get("level") == "ERROR"
    return OtelSpan(
        trace=first_attribute(observation, "traceId", "trace_id"),
        id=observation["id"],
        parent=clean_text(
            first_attribute(observation, "parentObservationId", "parent_observation_id")
        ),
        name=text_or_json(observation.get("name") or ""),
        start=time_from_text(first_attribute(observation, "startTime", "start_time")),
        end=time_from_text(first_attribute(observation, "endTime", "end_time")),
        attributes=attributes,
        resource=dict(as_mapping(unfold_json(meta.get("resourceAttributes")))),
        scope=clean_text(as_mapping(unfold_json(meta.get("scope"))).get("name")),
        failed=True if failed else None,
        error=clean_text(first_attribute(observation, "statusMessage", "status_message"))
        if failed
        else None,
    )


def _usage_attributes(observation: Mapping[str, Any]) -> dict[str, Any]:
    """Langfuse's counts under the conventions' names, where the total includes its parts."""
    details = as_mapping(unfold_json(first_attribute(observation, "usageDetails", "usage_details")))
    details = details or as_mapping(observation.get("usage"))
    input_tokens, output_tokens, total = (
        as_count(details.get(key)) for key in ("input", "output", "total")
    )
    read, write = (
        as_count(first_attribute(details, *_CACHE_READ_KEYS)),
        as_count(first_attribute(details, *_CACHE_WRITE_KEYS)),
    )
    thought = as_count(first_attribute(details, *_REASONING_KEYS))
    if input_tokens is not None and (
        output_tokens is None or total is None or input_tokens + output_tokens != total
    ):
        # Kinds of tokens are disjoint here, and add up to the total.
        input_tokens += (read or 0) + (write or 0)
        output_tokens = output_tokens if output_tokens is None else output_tokens + (thought or 0)
    provided = as_mapping(
        unfold_json(first_attribute(observation, "providedCostDetails", "provided_cost_details"))
    )
    computed = as_mapping(unfold_json(first_attribute(observation, "costDetails", "cost_details")))
    cost = as_amount(provided.get("total")) or as_amount(computed.get("total"))
    cost = cost or as_amount(
        first_attribute(observation, "calculatedTotalCost", "totalCost", "total_cost")
    )
    attributes = {
        "gen_ai.usage.input_tokens": input_tokens,
        "gen_ai.usage.output_tokens": output_tokens,
        "gen_ai.usage.cache_read.input_tokens": read,
        "gen_ai.usage.cache_creation.input_tokens": write,
        "gen_ai.usage.reasoning.output_tokens": thought,
        "gen_ai.usage.cost": cost,
    }
    return {key: value for key, value in attributes.items() if value is not None}
