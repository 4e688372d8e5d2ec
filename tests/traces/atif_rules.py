"""The published rules of ATIF 1.8 (harbor.models.trajectories), for what closeloop writes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

_VERSIONS = [f"ATIF-v1.{minor}" for minor in range(9)]
_FIELDS: dict[str, dict[str, Any]] = {
    "trajectory": {
        "schema_version": str, "session_id": str, "trajectory_id": str, "agent": dict,
        "steps": list, "notes": str, "final_metrics": dict, "continued_trajectory_ref": str,
        "extra": dict, "subagent_trajectories": list,
    },
    "agent": {
        "name": str, "version": str, "model_name": str, "tool_definitions": list, "extra": dict,
    },
    "step": {
        "step_id": int, "timestamp": str, "source": str, "model_name": str,
        "reasoning_effort": (str, float), "message": (str, list), "reasoning_content": str,
        "tool_calls": list, "observation": dict, "metrics": dict, "is_copied_context": bool,
        "llm_call_count": int, "extra": dict,
    },
    "call": {"tool_call_id": str, "function_name": str, "arguments": dict, "extra": dict},
    "observation": {"results": list},
    "result": {
        "source_call_id": str, "content": (str, list), "subagent_trajectory_ref": list,
        "extra": dict,
    },
    "reference": {
        "trajectory_id": str, "session_id": str, "trajectory_path": str, "extra": dict,
    },
    "metrics": {
        "prompt_tokens": int, "completion_tokens": int, "cached_tokens": int,
        "cost_usd": (int, float), "prompt_token_ids": list, "completion_token_ids": list,
        "logprobs": list, "extra": dict,
    },
    "final_metrics": {
        "total_prompt_tokens": int, "total_completion_tokens": int, "total_cached_tokens": int,
        "total_cost_usd": (int, float), "total_steps": int, "extra": dict,
    },
}  # fmt: skip
_REQUIRED = {
    "trajectory": ("agent", "steps"),
    "agent": ("name", "version"),
    "step": ("step_id", "source", "message"),
    "call": ("tool_call_id", "function_name", "arguments"),
    "observation": ("results",),
}
_AGENTS_ONLY = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")


def breaches(trajectory: dict[str, Any]) -> list[str]:
    """What is against the rules; nothing where all are kept."""
    found = _shape("trajectory", trajectory) + _shape("agent", trajectory.get("agent", {}))
    found += _shape("final_metrics", trajectory.get("final_metrics", {}))
    if trajectory.get("schema_version", _VERSIONS[-1]) not in _VERSIONS:
        found.append(f"schema_version {trajectory['schema_version']!r}")
    steps = trajectory.get("steps", [])
    if not steps:
        found.append("no steps")
    if [step.get("step_id") for step in steps] != list(range(1, len(steps) + 1)):
        found.append("step_id is not 1, 2, 3, …")
    for step in steps:
        found += _step(step)
    children = trajectory.get("subagent_trajectories", [])
    ids = [child.get("trajectory_id") for child in children]
    if None in ids or len(set(ids)) != len(ids):
        found.append("embedded trajectories need ids of their own")
    for child in children:
        found += breaches(child)
    return found


def _step(step: dict[str, Any]) -> list[str]:
    found = _shape("step", step)
    if step.get("source") not in ("system", "user", "agent"):
        found.append(f"source {step.get('source')!r}")
    if step.get("timestamp") is not None:
        datetime.fromisoformat(step["timestamp"])
    if step.get("source") != "agent":
        found += [f"{name} in a step of {step['source']}" for name in _AGENTS_ONLY if name in step]
    elif step.get("llm_call_count") == 0 and ({"metrics", "reasoning_content"} & step.keys()):
        found.append("a step without a model's call has metrics or reasoning")
    found += _shape("metrics", step.get("metrics", {}))
    calls = step.get("tool_calls", [])
    for call in calls:
        found += _shape("call", call)
    return found + _observation(step, [call["tool_call_id"] for call in calls])


def _observation(step: dict[str, Any], calls: list[str]) -> list[str]:
    found = _shape("observation", step.get("observation", {}))
    for result in step.get("observation", {}).get("results", []):
        found += _shape("result", result)
        source = result.get("source_call_id")
        if source is not None and source not in calls:
            found.append(f"a result of {source!r}, which is not called in its step")
        for reference in result.get("subagent_trajectory_ref", []):
            found += _shape("reference", reference)
            if not {"trajectory_id", "trajectory_path"} & reference.keys():
                found.append("a reference that leads nowhere")
    return found


def _shape(name: str, value: dict[str, Any]) -> list[str]:
    known = _FIELDS[name]
    found = [f"{name}.{key} is not known" for key in value if key not in known]
    if value or name in ("trajectory", "step"):
        found += [f"{name}.{key} is missing" for key in _REQUIRED.get(name, ()) if key not in value]
    for key, one in value.items():
        if key in known and not isinstance(one, known[key]):
            found.append(f"{name}.{key} is a {type(one).__name__}")
    return found
