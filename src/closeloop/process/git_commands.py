"""Which of git's commands a step runs."""

from __future__ import annotations

import re
from functools import lru_cache

from closeloop.records.trace import Command
from closeloop.records.trace_steps import TraceStep

_GIT_VERB = re.compile(
    r"(?<![\w./-])git(?:\s+(?:-[Cc]\s+\S+|--?[\w-]+(?:=\S+)?))*\s+([a-z][a-z-]+)(?![\w./=])"
)


def list_git_verbs(step: TraceStep) -> frozenset[str]:
    """`commit`, `push`, `checkout`, …; none where the step does not run git."""
    event = step.event
    if not isinstance(event, Command) or step.doing is None or "git" not in step.doing.programs:
        return frozenset()
    return _parse_git_verbs(event.command[:4000])


@lru_cache(maxsize=4096)
def _parse_git_verbs(command: str) -> frozenset[str]:
    return frozenset(_GIT_VERB.findall(command))


def uses_stash(step: TraceStep) -> bool:
    """Work put away for a moment, to see how things were without it, or taken up again."""
    return "stash" in list_git_verbs(step)
