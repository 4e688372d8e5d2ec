"""Which of git's commands a step runs."""

from __future__ import annotations

import re
from functools import lru_cache

from closeloop.model.steps import Step
from closeloop.model.trace import Command

_VERB = re.compile(
    r"(?<![\w./-])git(?:\s+(?:-[Cc]\s+\S+|--?[\w-]+(?:=\S+)?))*\s+([a-z][a-z-]+)(?![\w./=])"
)


def git_verbs(step: Step) -> frozenset[str]:
    """`commit`, `push`, `checkout`, …; none where the step does not run git."""
    event = step.event
    if not isinstance(event, Command) or step.doing is None or "git" not in step.doing.programs:
        return frozenset()
    return _verbs(event.command[:4000])


@lru_cache(maxsize=4096)
def _verbs(command: str) -> frozenset[str]:
    return frozenset(_VERB.findall(command))


def sets_aside(step: Step) -> bool:
    """Work put away for a moment, to see how things were without it, or taken up again."""
    return "stash" in git_verbs(step)
