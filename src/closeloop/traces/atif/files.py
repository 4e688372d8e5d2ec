"""The files of one ATIF run: what a trajectory names, and what of it is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from closeloop.traces.untrusted import items, mapping
from closeloop.traces.values import text

MOST_FILES = 1000


def is_trajectory(value: Any) -> bool:
    """Whether a JSON value is one trajectory."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("schema_version"), str)
        and value["schema_version"].startswith("ATIF-v")
        and isinstance(value.get("steps"), list)
    )


def named_in(document: Any) -> Iterator[str]:
    """The files that a trajectory names: sub-agents' and the one in which it goes on."""
    for trajectory in (document, *embedded(document)):
        for step in items(mapping(trajectory).get("steps")):
            for result in results_of(mapping(step)):
                for reference in references_of(result):
                    if path := text(reference.get("trajectory_path")):
                        yield path
        if path := text(mapping(trajectory).get("continued_trajectory_ref")):
            yield path


def embedded(trajectory: Any) -> Iterator[Mapping[str, Any]]:
    """Sub-agents' trajectories inside it, at any depth."""
    for inner in items(mapping(trajectory).get("subagent_trajectories")):
        if isinstance(inner, dict):
            yield inner
            yield from embedded(inner)


def beside(path: Path, named: str) -> Path | None:
    """A file that is named, where it is there and nowhere but below the folder of the first."""
    try:
        inner = path.parent / named
        if "://" in named or not inner.is_file():
            return None
        near = inner.parent == path.parent and not inner.is_symlink()
        if near or inner.resolve().is_relative_to(path.parent.resolve()):
            return inner
    except (OSError, ValueError, RuntimeError):
        pass
    return None


def results_of(step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    results = items(mapping(step.get("observation")).get("results"))
    return [result for result in results if isinstance(result, dict)]


def references_of(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    given = result.get("subagent_trajectory_ref")
    given = given if isinstance(given, list) else [given]
    return [reference for reference in given if isinstance(reference, dict)]
