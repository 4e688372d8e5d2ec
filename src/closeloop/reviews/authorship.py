"""Whose work a pull request is: an agent's, by its account, label, branch or trailers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from closeloop.model.record import Record
from closeloop.model.review import Commit, Description, Sign
from closeloop.model.settings import AgentSigns
from closeloop.model.wildcards import matching

UNNAMED = "agent"
"""What an agent is called that does not say who it is."""
KNOWN: dict[str, AgentSigns] = {
    "aider": AgentSigns(co_authors=("aider (*", "*@aider.chat")),
    "claude-code": AgentSigns(
        authors=("claude[bot]",), branches=("claude/*",), co_authors=("noreply@anthropic.com",)
    ),
    "closeloop": AgentSigns(branches=("closeloop/*",)),
    "codex": AgentSigns(
        authors=("chatgpt-codex-connector[bot]",),
        labels=("codex",),
        branches=("codex/*",),
        co_authors=("codex@openai.com", "noreply@openai.com"),
    ),
    "copilot": AgentSigns(
        authors=("copilot", "copilot-swe-agent", "copilot-swe-agent[bot]"),
        branches=("copilot/*",),
        co_authors=("copilot", "*+copilot@users.noreply.github.com", "copilot@github.com"),
    ),
    "cursor": AgentSigns(
        authors=("cursor[bot]", "cursoragent"),
        branches=("cursor/*",),
        co_authors=("cursoragent@cursor.com",),
    ),
    "devin": AgentSigns(
        authors=("devin-ai-integration[bot]",),
        branches=("devin/*",),
        co_authors=("devin-ai-integration*", "*devin-ai-integration[bot]@users.noreply.github.com"),
    ),
    "gemini-cli": AgentSigns(
        authors=("gemini-cli[bot]", "gemini-cli-robot"), co_authors=("gemini-cli*",)
    ),
    "jules": AgentSigns(authors=("google-labs-jules[bot]",), co_authors=("google-labs-jules*",)),
    "opencode": AgentSigns(authors=("opencode-agent[bot]",), co_authors=("*@opencode.ai",)),
    "openhands": AgentSigns(
        authors=("openhands-agent", "openhands-ai[bot]"),
        branches=("openhands/*",),
        co_authors=("openhands@all-hands.dev",),
    ),
    "qwen-code": AgentSigns(co_authors=("qwen-coder*", "qwen-coder@alibabacloud.com")),
    UNNAMED: AgentSigns(labels=("agent", "ai-agent", "ai-generated"), branches=("agent/*",)),
}
_TRAILER = re.compile(r"^([A-Za-z][A-Za-z-]{1,40}): *(\S.{0,299}?) *$", re.MULTILINE)
_CO_AUTHOR = re.compile(r"([^<>]{0,200}?) *<([^<>\s]{1,200})>")

_TELLING = {
    "co-authored-by": "Co-Authored-By",
    "task-id": "Task-Id",
    "prompt-version": "Prompt-Version",
}

Agents = Mapping[str, AgentSigns]


class Authorship(Record):
    """What a pull request says of who made it."""

    signs: tuple[Sign, ...] = ()
    agent: str | None = None
    task: str | None = None
    prompt: str | None = None


def agents_of(own: Agents) -> dict[str, AgentSigns]:
    """The agents that are known, with those of the settings in their place."""
    return {**KNOWN, **own}


def trailers(message: str) -> list[tuple[str, str]]:
    """`Key: value` lines, keys in small letters."""
    return [(key.lower(), value) for key, value in _TRAILER.findall(message[:20_000])]


def authorship(told: Description, commits: Sequence[Commit], agents: Agents) -> Authorship:
    """Which agent made a pull request, if one did, and why that is thought."""
    texts = (told.body, *(commit.message for commit in commits))
    lines = [line for text in texts for line in trailers(text)]
    signs: dict[Sign, str] = {}
    for sign, name in (
        *_described(told, agents),
        *_trailing(lines, agents),
        *_written(commits, agents),
    ):
        signs.setdefault(sign, name)
    named = sorted(signs.values(), key=lambda name: name == UNNAMED)
    return Authorship(
        signs=tuple(signs),
        agent=named[0] if named else None,
        task=next((value for key, value in reversed(lines) if key == "task-id"), None),
        prompt=next((value for key, value in reversed(lines) if key == "prompt-version"), None),
    )


def _described(told: Description, agents: Agents) -> Iterator[tuple[Sign, str]]:
    for name, known in agents.items():
        if told.author and matching(told.author, known.authors):
            yield Sign(kind="author", value=told.author), name
        for label in told.labels:
            if matching(label, known.labels):
                yield Sign(kind="label", value=label), name
        if told.branch and matching(told.branch, known.branches):
            yield Sign(kind="branch", value=told.branch), name


def _trailing(lines: Sequence[tuple[str, str]], agents: Agents) -> Iterator[tuple[Sign, str]]:
    for key, value in lines:
        agent = co_author(value, agents) if key == "co-authored-by" else UNNAMED
        if key in _TELLING and agent is not None:
            yield Sign(kind="trailer", value=f"{_TELLING[key]}: {value}"), agent


def _written(commits: Sequence[Commit], agents: Agents) -> Iterator[tuple[Sign, str]]:
    for commit in commits:
        if (name := _writer(commit, agents)) is not None:
            yield Sign(kind="author", value=commit.author or commit.email or ""), name


def co_author(value: str, agents: Agents) -> str | None:
    """The agent that a `Co-Authored-By:` names."""
    found = _CO_AUTHOR.match(value)
    names = (found[1], found[2]) if found else (value,)
    for agent, known in agents.items():
        if any(matching(name, known.co_authors) for name in names):
            return agent
    return None


def is_agent(account: str | None, agents: Agents) -> bool:
    """Whether an account is an agent's own."""
    return any(matching(account, known.authors) for known in agents.values())


def is_of_agent(commit: Commit, agents: Agents) -> bool:
    """Whether a commit says that an agent wrote it."""
    if _writer(commit, agents) is not None:
        return True
    return any(
        key in ("task-id", "prompt-version")
        or (key == "co-authored-by" and co_author(value, agents) is not None)
        for key, value in trailers(commit.message)
    )


def agent_commits(commits: Iterable[Commit], agents: Agents) -> set[str]:
    """Which commits of an agent's pull request are the agent's; the others are people's.

    Where none says so, the agent works under the name of whoever wrote the first one.
    """
    known = list(commits)
    marked = {commit.sha for commit in known if is_of_agent(commit, agents)}
    if marked or not known:
        return marked
    first = known[0]
    return {
        commit.sha
        for commit in known
        if (commit.author, commit.email) == (first.author, first.email)
    }


def _writer(commit: Commit, agents: Agents) -> str | None:
    for agent, known in agents.items():
        if matching(commit.author, known.authors) or matching(commit.email, known.co_authors):
            return agent
    return None
