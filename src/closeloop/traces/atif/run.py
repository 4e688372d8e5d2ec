"""One run: its trajectories as lanes of a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from closeloop.model.attempt import Usage
from closeloop.model.protocols import Source
from closeloop.model.record import digest
from closeloop.model.session import Session
from closeloop.traces.atif.files import MOST_FILES, beside, embedded, is_trajectory
from closeloop.traces.atif.steps import Steps
from closeloop.traces.atif.values import usage_of
from closeloop.traces.builder import ROOT, Builder
from closeloop.traces.results import OWN, Kept, drop_unknown_children, kept_in, mark_claim
from closeloop.traces.texts import shortened
from closeloop.traces.untrusted import items, mapping
from closeloop.traces.values import text, written

COPIED = "copied context"


class Run:
    """One run while it is put together."""

    def __init__(self, source: Source, trajectory: Mapping[str, Any], builder: Builder) -> None:
        self.source = source
        self.top = trajectory
        self.builder = builder
        self.system: str | None = None
        self.models: Counter[str] = Counter()
        self.read: set[int] = set()
        self.files = {source.path}
        self.inside = {id(one): one for one in embedded(trajectory)}
        self.lanes = {ROOT}
        self.asked: set[str] = set()

    def session(self) -> Session:
        top, agent = self.top, mapping(self.top.get("agent"))
        extra = mapping(agent.get("extra"))
        self.builder.lane(agent=text(agent.get("name")))
        self.lane(top, ROOT, self.source.path)
        drop_unknown_children(self.builder, self.lanes)
        times = [event.at for event in self.builder.events if event.at]
        known = kept_in(mapping(top.get("extra")).get(OWN)) or Kept(
            started=min(times, default=None),
            ended=max(times, default=None),
            summary=mark_claim(self.builder),
            directory=_first_text(extra, "cwds", "cwd"),
            branch=_first_text(extra, "git_branches", "git_branch"),
        )
        if notes := text(top.get("notes")):
            self.builder.note(self.short(notes), about="notes")
        numbered = agent.get("version")
        return Session(
            id=text(top.get("session_id"))
            or text(top.get("trajectory_id"))
            or digest(written(top)),
            agent=text(agent.get("name")) or "unknown",
            agent_version=text(numbered) if numbered != "unknown" else None,
            trace=self.builder.trace(self.source.skipped),
            model=max(self.models, key=lambda model: self.models[model], default=None)
            or text(agent.get("model_name")),
            system=self.system,
            usage=self.usage(),
            copy="exported",
            **msgspec.structs.asdict(known),
        )

    def usage(self) -> Usage:
        """The steps' sum; what the whole states, where the steps do not."""
        summed = self.builder.usage()
        final = mapping(self.top.get("final_metrics"))
        stated = {key.removeprefix("total_"): value for key, value in final.items()}
        whole = usage_of(stated)
        if summed == Usage():
            return whole
        if whole.cost:
            # The whole's has in it what sub-agents cost, which their steps may not say.
            return msgspec.structs.replace(summed, cost=whole.cost, cost_from="reported")
        return summed

    def short(self, words: str) -> str:
        return shortened(words, self.source.skipped)

    def lane(self, trajectory: Mapping[str, Any], lane: str, path: Path) -> None:
        """The steps of one agent, and what continues them."""
        self.read.add(id(trajectory))
        steps = [mapping(step) for step in items(trajectory.get("steps"))]
        new = [step for step in steps if step.get("is_copied_context") is not True]
        if len(new) < len(steps):
            copied = f"steps that are copies: {len(steps) - len(new)}"
            self.builder.note(copied, about=COPIED, lane=lane)
        lane_steps = Steps(self, trajectory, lane, path)
        for step in new:
            lane_steps.add(step)
        for inner in items(trajectory.get("subagent_trajectories")):
            if isinstance(inner, dict) and id(inner) not in self.read:
                self.child(inner, lane, path)
        named = text(trajectory.get("continued_trajectory_ref"))
        if named and (more := self.load(path, named)) is not None:
            self.lane(more[0], lane, more[1])

    def load(self, path: Path, named: str) -> tuple[Mapping[str, Any], Path] | None:
        """Another file of the run, once."""
        found = beside(path, named)
        if found is None or found in self.files or len(self.files) > MOST_FILES:
            return None
        self.files.add(found)
        document = self.source.beside(found).document
        return (document, found) if is_trajectory(document) else None

    def resolve(
        self, reference: Mapping[str, Any], path: Path
    ) -> tuple[Mapping[str, Any], Path] | None:
        """The trajectory of a reference: embedded, or in a file beside."""
        for key in ("trajectory_id", "session_id"):
            wanted = text(reference.get(key))
            for inner in self.inside.values():
                if wanted and inner.get(key) == wanted and id(inner) not in self.read:
                    return inner, path
        named = text(reference.get("trajectory_path"))
        return self.load(path, named) if named else None

    def child(self, trajectory: Mapping[str, Any], parent: str, path: Path) -> str:
        """Open a sub-agent's lane and read it."""
        wanted = text(trajectory.get("trajectory_id")) or text(trajectory.get("session_id"))
        lane = wanted or f"agent {len(self.lanes)}"
        while lane in self.lanes:
            lane = f"{lane}'"
        self.lanes.add(lane)
        agent = text(mapping(trajectory.get("agent")).get("name"))
        self.builder.lane(lane, parent, agent)
        self.lane(trajectory, lane, path)
        return lane


def _first_text(given: Mapping[str, Any], several: str, one: str) -> str | None:
    listed = items(given.get(several))
    return text(listed[0]) if listed else text(given.get(one))
