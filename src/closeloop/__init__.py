"""closeloop tells a team whether its coding agents work.

What is named here is what others may build on; each name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Agent": "closeloop.records.protocols",
    "Assignment": "closeloop.records.protocols",
    "Attempt": "closeloop.records.attempt",
    "BadInput": "closeloop.records.errors",
    "Change": "closeloop.records.change",
    "Fault": "closeloop.records.errors",
    "Grade": "closeloop.records.attempt",
    "MachineFailed": "closeloop.records.errors",
    "PluginFailed": "closeloop.records.errors",
    "Score": "closeloop.records.score",
    "ScoreDefinition": "closeloop.records.score",
    "ScoredAttempt": "closeloop.records.protocols",
    "Task": "closeloop.records.task",
    "Trace": "closeloop.records.trace",
    "Variant": "closeloop.records.task",
    "Work": "closeloop.records.protocols",
    "check_agent": "closeloop.agents.contract",
    "check_scorer": "closeloop.metrics.scorer_contract",
    "load_tasks": "closeloop.tasks.task_files",
    "open_store": "closeloop.store.store_opening",
    "record": "closeloop.traces.recording",
    "recording": "closeloop.traces.recording",
}

__all__ = [*_HOMES]  # noqa: PLE0604 - they are strings


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'closeloop' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
