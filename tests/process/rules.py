"""One rule over a short trace, as tests ask for it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import msgspec
from story import Told, story

from closeloop.process.trace_reading import build_reading
from closeloop.records.finding import Finding, Unmeasured


def found(
    rule: str, events: Sequence[Told], *, limits: dict[str, float] | None = None, **known: Any
) -> Sequence[Finding] | Unmeasured:
    """What a rule says of these events."""
    detector = importlib.import_module(f"closeloop.process.detectors.{rule.replace('-', '_')}")
    lanes = known.pop("lanes", None)
    reading = msgspec.structs.replace(build_reading(story(events, lanes)), **known)
    said = detector.detect(reading, {**detector.rule.thresholds, **(limits or {})})
    assert isinstance(said, Unmeasured) or all(one.rule == rule for one in said)
    return said


def pytest_run(*failing: str, command: str = "pytest -q", error: str = "AssertionError") -> Told:
    """A run of pytest in which these tests fail, or none does."""
    lines = [f"FAILED {test} - {error}" for test in failing]
    counts = f"{len(failing)} failed, 3 passed" if failing else "8 passed"
    output = "\n".join([*lines, f"{counts} in 0.12s"])
    return {"run": {"command": command, "exit": 1 if failing else 0, "output": output}}


def edit(path: str = "cart.py", before: str = "a = 1", after: str = "a = 2") -> Told:
    return {"edit": {"path": path, "before": before, "after": after}}
