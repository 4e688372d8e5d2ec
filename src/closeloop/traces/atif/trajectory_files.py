"""The files of one ATIF run: what a trajectory names, and what of it is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from closeloop.traces.untrusted_json import as_list, as_mapping, clean_text

MAX_FILES = 1000


def is_trajectory(value: Any) -> bool:
    """Whether a JSON value is one trajectory."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("schema_version"), str)
        and value["schema_version"].startswith("ATIF-v")
        and isinstance(value.get("steps"), list)
    )


def iter_referenced_paths(document: Any) -> Iterator[str]:
    """The files that a trajectory names: sub-agents' and the one in which it goes on."""
    for trajectory in (document, *iter_embedded_trajectories(document)):
        for step in as_list(as_mapping(trajectory).get("steps")):
            for result in observation_results(as_mapping(step)):
                for reference in subagent_references(result):
                    if path := clean_text(reference.get("trajectory_path")):
                        yield path
        if path := clean_text(as_mapping(trajectory).get("continued_trajectory_ref")):
            yield path


def iter_embedded_trajectories(trajectory: Any) -> Iterator[Mapping[str, Any]]:
    """Sub-agents' trajectories inside it, at any depth."""
    for inner in as_list(as_mapping(trajectory).get("subagent_trajectories")):
        if isinstance(inner, dict):
            yield inner
            yield from iter_embedded_trajectories(inner)


def find_trajectory_file(path: Path, named: str) -> Path | None:
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


def observation_results(step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    results = as_list(as_mapping(step.get("observation")).get("results"))
    return [result for result in results if isinstance(result, dict)]


def subagent_references(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    references = result.get("subagent_trajectory_ref")
    references = references if isinstance(references, list) else [references]
    return [reference for reference in references if isinstance(reference, dict)]
