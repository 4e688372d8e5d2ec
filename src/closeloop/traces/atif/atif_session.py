"""One run: its trajectories as lanes of a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from closeloop.records.attempt import Usage
from closeloop.records.protocols import RecordingSource
from closeloop.records.record import content_digest
from closeloop.records.session import Session
from closeloop.text.untrusted import truncate_middle
from closeloop.traces.atif.atif_steps import AtifStepReader
from closeloop.traces.atif.atif_values import usage_from_atif
from closeloop.traces.atif.trajectory_files import (
    MAX_FILES,
    find_trajectory_file,
    is_trajectory,
    iter_embedded_trajectories,
)
from closeloop.traces.call_results import (
    EXPORT_KEY,
    SessionExtras,
    drop_unknown_children,
    mark_claim,
    parse_session_extras,
)
from closeloop.traces.export_values import clean_text, text_or_json
from closeloop.traces.trace_builder import ROOT_LANE, TraceBuilder
from closeloop.traces.untrusted_json import as_list, as_mapping

COPIED_CONTEXT = "copied context"


class AtifSessionBuilder:
    """One run while it is put together."""

    def __init__(
        self, source: RecordingSource, trajectory: Mapping[str, Any], builder: TraceBuilder
    ) -> None:
        self.source = source
        self.top = trajectory
        self.builder = builder
        self.system: str | None = None
        self.models: Counter[str] = Counter()
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
        drop_unknown_children(self.builder, self.lanes)
        times = [event.at for event in self.builder.events if event.at]
        extras = parse_session_extras(
            as_mapping(top.get("extra")).get(EXPORT_KEY)
        ) or SessionExtras(
            started=min(times, default=None),
            ended=max(times, default=None),
            summary=mark_claim(self.builder),
            directory=_first_text(extra, "cwds", "cwd"),
            branch=_first_text(extra, "git_branches", "git_branch"),
        )
        if notes := clean_text(top.get("notes")):
            self.builder.add_note(self.truncate_text(notes), about="notes")
        stated_version = agent.get("version")
        return Session(
            id=clean_text(top.get("session_id"))
            or clean_text(top.get("trajectory_id"))
            or content_digest(text_or_json(top)),
            agent=clean_text(agent.get("name")) or "unknown",
            agent_version=clean_text(stated_version) if stated_version != "unknown" else None,
            trace=self.builder.build_trace(self.source.skipped),
            model=max(self.models, key=lambda model: self.models[model], default=None)
            or clean_text(agent.get("model_name")),
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

    def truncate_text(self, words: str) -> str:
        return truncate_middle(words, self.source.skipped)

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
