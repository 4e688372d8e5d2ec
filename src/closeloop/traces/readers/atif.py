"""Harbor's Agent Trajectory Interchange Format, ATIF 1.0 to 1.8.

A sub-agent's trajectory is embedded in its parent's or lies in a file of its own; a long run
goes on in another file, which begins with a copy of what came before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from closeloop.records.attempt import Usage
from closeloop.records.protocols import RecordingSource
from closeloop.records.record import content_digest
from closeloop.records.session import Session
from closeloop.traces.readers.atif_steps import (
    MAX_FILES,
    AtifStepReader,
    find_trajectory_file,
    is_trajectory,
    iter_embedded_trajectories,
    iter_referenced_paths,
    usage_from_atif,
)
from closeloop.traces.session_builder import CUT_OFF, ROOT_LANE, SessionBuilder, count_skip
from closeloop.traces.trace_export import EXPORT_KEY, SessionExtras, parse_session_extras
from closeloop.traces.untrusted_json import as_list, as_mapping, clean_text, text_or_json

name = "atif"
version = 3
COPIED_CONTEXT = "copied context"


def recognises(source: RecordingSource) -> bool:
    if b"ATIF-v" not in source.head:
        return False
    lines = source.lines
    if lines and is_trajectory(lines[0]):
        return True
    return is_trajectory(source.document)


def parts(source: RecordingSource) -> Sequence[Path]:
    return list(_iter_named_files(source))


def _iter_named_files(source: RecordingSource) -> Iterator[Path]:
    """The files that a trajectory names and those that they name, the nearest first."""
    seen = {source.path}
    waiting = [source.path]
    while waiting:
        path = waiting.pop(0)
        document = source.document if path == source.path else source.beside(path).document
        for named in dict.fromkeys(iter_referenced_paths(document)):
            inner = find_trajectory_file(path, named)
            if inner is not None and inner not in seen and len(seen) <= MAX_FILES:
                seen.add(inner)
                waiting.append(inner)
                yield inner


def owner(source: RecordingSource) -> Path | None:
    folder, own = source.path.parent, source.path.name
    # `run.json` may own `run.agent.json`: no other file of the folder needs a look.
    ends = [place for place, letter in enumerate(own) if letter == "."]
    mine = sorted(folder / f"{own[:end]}.json" for end in ends)
    for path in (*mine, folder / "trajectory.json", folder.parent / "trajectory.json"):
        if (
            path != source.path
            and path.is_file()
            and source.path in _iter_named_files(source.beside(path))
        ):
            return path
    return None


def read(source: RecordingSource) -> Iterator[Session]:
    document = source.document
    for trajectory in source.records() if document is None else [document]:
        if is_trajectory(trajectory):
            yield AtifSession(
                source, trajectory, SessionBuilder(name, version, source.skipped)
            ).build_session()
        else:
            key = "a record that is no trajectory"
            count_skip(source.skipped, key)


class AtifSession:
    """One run while it is put together."""

    def __init__(
        self, source: RecordingSource, trajectory: Mapping[str, Any], builder: SessionBuilder
    ) -> None:
        self.source = source
        self.top = trajectory
        self.builder = builder
        self.system: str | None = None
        self.read: set[int] = set()
        self.files = {source.path}
        self.inside = {id(one): one for one in iter_embedded_trajectories(trajectory)}
        self.lanes = {ROOT_LANE}
        self.asked: set[str] = set()

    def build_session(self) -> Session:
        top, agent = self.top, as_mapping(self.top.get("agent"))
        extra = as_mapping(agent.get("extra"))
        self.builder.open_lane(agent=clean_text(agent.get("name")))
        self.add_lane(top, ROOT_LANE, self.source.path)
        self.builder.drop_unknown_children(self.lanes)
        times = [event.at for event in self.builder.events if event.at]
        cut_off = self.builder.ends_inside_call()
        extras = parse_session_extras(
            as_mapping(top.get("extra")).get(EXPORT_KEY)
        ) or SessionExtras(
            exit="crashed" if cut_off else "finished",
            cause=CUT_OFF if cut_off else None,
            started=min(times, default=None),
            ended=max(times, default=None),
            summary=self.builder.mark_claim(),
            directory=_first_text(extra, "cwds", "cwd"),
            branch=_first_text(extra, "git_branches", "git_branch"),
        )
        if notes := clean_text(top.get("notes")):
            self.builder.add_note(notes, "notes")
        stated_version = agent.get("version")
        return self.builder.build_session(
            id=clean_text(top.get("session_id"))
            or clean_text(top.get("trajectory_id"))
            or content_digest(text_or_json(top)),
            agent=clean_text(agent.get("name")) or "unknown",
            agent_version=clean_text(stated_version) if stated_version != "unknown" else None,
            model=self.builder.most_used_model() or clean_text(agent.get("model_name")),
            system=self.system,
            usage=self.total_usage(),
            copy="exported",
            **msgspec.structs.asdict(extras),
        )

    def total_usage(self) -> Usage:
        """The steps' sum; what the whole states, where the steps do not."""
        summed = self.builder.total_usage()
        final = as_mapping(self.top.get("final_metrics"))
        stated = {key.removeprefix("total_"): value for key, value in final.items()}
        stated_usage = usage_from_atif(stated)
        if summed == Usage():
            return stated_usage
        if stated_usage.cost:
            # The whole's has in it what sub-agents cost, which their steps may not say.
            return msgspec.structs.replace(summed, cost=stated_usage.cost, cost_from="reported")
        return summed

    def add_lane(self, trajectory: Mapping[str, Any], lane: str, path: Path) -> None:
        """The steps of one agent, and what continues them."""
        self.read.add(id(trajectory))
        steps = [as_mapping(step) for step in as_list(trajectory.get("steps"))]
        new = [step for step in steps if step.get("is_copied_context") is not True]
        if len(new) < len(steps):
            copied = f"steps that are copies: {len(steps) - len(new)}"
            self.builder.add_note(copied, about=COPIED_CONTEXT, lane=lane)
        lane_steps = AtifStepReader(self, trajectory, lane, path)
        for step in new:
            lane_steps.add_step(step)
        for inner in as_list(trajectory.get("subagent_trajectories")):
            if isinstance(inner, dict) and id(inner) not in self.read:
                self.add_child_lane(inner, lane, path)
        next_path = clean_text(trajectory.get("continued_trajectory_ref"))
        if next_path and (continuation := self.load_file(path, next_path)) is not None:
            self.add_lane(continuation[0], lane, continuation[1])

    def load_file(self, path: Path, named: str) -> tuple[Mapping[str, Any], Path] | None:
        """Another file of the run, once."""
        sibling = find_trajectory_file(path, named)
        if sibling is None or sibling in self.files or len(self.files) > MAX_FILES:
            return None
        self.files.add(sibling)
        document = self.source.beside(sibling).document
        return (document, sibling) if is_trajectory(document) else None

    def resolve_reference(
        self, reference: Mapping[str, Any], path: Path
    ) -> tuple[Mapping[str, Any], Path] | None:
        """The trajectory of a reference: embedded, or in a file beside."""
        for key in ("trajectory_id", "session_id"):
            wanted = clean_text(reference.get(key))
            for inner in self.inside.values():
                if wanted and inner.get(key) == wanted and id(inner) not in self.read:
                    return inner, path
        named_path = clean_text(reference.get("trajectory_path"))
        return self.load_file(path, named_path) if named_path else None

    def add_child_lane(self, trajectory: Mapping[str, Any], parent: str, path: Path) -> str:
        """Open a sub-agent's lane and read it."""
        stated_id = clean_text(trajectory.get("trajectory_id")) or clean_text(
            trajectory.get("session_id")
        )
        lane = stated_id or f"agent {len(self.lanes)}"
        while lane in self.lanes:
            lane = f"{lane}'"
        self.lanes.add(lane)
        agent = clean_text(as_mapping(trajectory.get("agent")).get("name"))
        self.builder.open_lane(lane, parent, agent)
        self.add_lane(trajectory, lane, path)
        return lane


def _first_text(given: Mapping[str, Any], several: str, one: str) -> str | None:
    listed = as_list(given.get(several))
    return clean_text(listed[0]) if listed else clean_text(given.get(one))
