"""closeloop tells a team whether its coding agents work.

What is named here is what others may build on; each name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_HOMES = {
    "Agent": "closeloop.records.protocols",
    "Assignment": "closeloop.records.protocols",
    "Attempt": "closeloop.records.attempt",
    "BadInput": "closeloop.records.errors",
    "Change": "closeloop.records.change",
    "ChangeReport": "closeloop.records.change",
    "CompareReport": "closeloop.records.estimate",
    "Fault": "closeloop.records.errors",
    "Grade": "closeloop.records.attempt",
    "MachineFailed": "closeloop.records.errors",
    "Measurement": "closeloop.records.finding",
    "PluginFailed": "closeloop.records.errors",
    "Project": "closeloop.api",
    "ResultTable": "closeloop.api",
    "Score": "closeloop.records.score",
    "ScoreDefinition": "closeloop.records.score",
    "ScoredAttempt": "closeloop.records.protocols",
    "Session": "closeloop.records.trace",
    "Task": "closeloop.records.task",
    "Trace": "closeloop.records.trace",
    "Variant": "closeloop.records.task",
    "Work": "closeloop.records.protocols",
    "check": "closeloop.api",
    "check_agent": "closeloop.contracts",
    "check_scorer": "closeloop.contracts",
    "compare": "closeloop.api",
    "load_tasks": "closeloop.tasks.task_files",
    "measure": "closeloop.api",
    "open": "closeloop.api",
    "open_store": "closeloop.store.store",
    "read": "closeloop.api",
    "read_all": "closeloop.api",
    "record": "closeloop.traces.recording",
    "recording": "closeloop.traces.recording",
}

# `from closeloop import *` leaves the built-in `open` as it is.
__all__ = [name for name in _HOMES if name != "open"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'closeloop' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*_HOMES, "__version__"})
