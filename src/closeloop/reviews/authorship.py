"""Whether an agent made a pull request, by its account, label, branch or trailers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from closeloop.records.pull_request import AuthorshipSign, PullCommit, PullDescription
from closeloop.records.record import Record
from closeloop.records.settings import AgentSigns
from closeloop.text.wording import compile_lazily, matches_wildcards

UNNAMED_AGENT = "agent"
"""Name of an agent that does not identify itself."""
KNOWN_AGENTS: dict[str, AgentSigns] = {
    "aider": AgentSigns(co_authors=("aider (*", "*@aider.chat")),
    "claude-code": AgentSigns(
        authors=("claude[bot]",), branches=("claude/*",), co_authors=("noreply@anthropic.com",)
    ),
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
    UNNAMED_AGENT: AgentSigns(
        labels=("agent", "ai-agent", "ai-generated", "prompt:*"),
        # Our own branches contain the work of any agent.
        branches=("agent/*", "closeloop/*"),
    ),
}
_TRAILER = compile_lazily(r"^([A-Za-z][A-Za-z-]{1,40}): *(\S.{0,299}?) *$", re.MULTILINE)
_CO_AUTHOR = compile_lazily(r"([^<>]{0,200}?) *<([^<>\s]{1,200})>")
_BOT_ACCOUNT = compile_lazily(r"\[bot\]$|-bot$|(?:project|group)_\d{1,12}_bot", re.IGNORECASE)
PROMPT_LABEL = "prompt:"
"""Prefix of a label that names the prompt."""

ATTEMPT_TRAILER = "Attempt-Id"
"""The trailer that names the attempt from which `closeloop deliver` made a commit."""
_AGENT_TRAILERS = {
    "attempt-id": ATTEMPT_TRAILER,
    "co-authored-by": "Co-Authored-By",
    "task-id": "Task-Id",
    "prompt-version": "Prompt-Version",
}

AgentSignsByName = Mapping[str, AgentSigns]


class Authorship(Record):
    """What a pull request says about who made it."""

    signs: tuple[AuthorshipSign, ...] = ()
    agent: str | None = None
    task: str | None = None
    prompt: str | None = None
    asked_by: str | None = None


def merge_known_agents(configured: AgentSignsByName) -> dict[str, AgentSigns]:
    """Return the known agents, overridden and extended by those of the settings."""
    return {**KNOWN_AGENTS, **configured}


def parse_trailers(message: str) -> list[tuple[str, str]]:
    """Return the `Key: value` lines, with keys in lower case."""
    return [(key.lower(), value) for key, value in _TRAILER.findall(message[:20_000])]


def detect_authorship(
    description: PullDescription, commits: Sequence[PullCommit], agents: AgentSignsByName
) -> Authorship:
    """Return which agent made a pull request, if any, and the evidence.

    Its account, labels and branch come from the host. Trailers and commit authors count only if a
    member of the team opened it: a bot quotes what strangers wrote, such as release notes.
    """
    by_team = is_opened_by_team(description, agents)
    lines = _trailers_to_believe(description, commits, agents)
    signs: dict[AuthorshipSign, str] = {}
    for sign, name in (
        *_signs_in_description(description, agents),
        *(_signs_in_trailers(lines, agents) if by_team else ()),
        *(_signs_in_commits(commits, agents) if by_team else ()),
    ):
        signs.setdefault(sign, name)
    agent_names = sorted(signs.values(), key=lambda name: name == UNNAMED_AGENT)
    latest = dict(lines)
    return Authorship(
        signs=tuple(signs),
        agent=agent_names[0] if agent_names else None,
        task=latest.get("task-id"),
        prompt=_labelled_prompt(description.labels) or latest.get("prompt-version"),
        asked_by=find_requester(description, agents),
    )


def _trailers_to_believe(
    description: PullDescription, commits: Sequence[PullCommit], agents: AgentSignsByName
) -> list[tuple[str, str]]:
    """Return all trailers if the team opened it, else those of an agent's commits in our
    repository."""
    if is_opened_by_team(description, agents):
        texts = [description.body, *(commit.message for commit in commits)]
    else:
        agent_made = [
            commit
            for commit in commits
            if not description.fork and is_agent_account(commit.author, agents)
        ]
        texts = [commit.message for commit in agent_made]
    return [line for text in texts for line in parse_trailers(text)]


def is_opened_by_team(description: PullDescription, agents: AgentSignsByName) -> bool:
    """Return whether a person with write access to the repository opened a pull request."""
    return not is_bot_account(description, agents) and (not description.fork or description.member)


def is_bot_account(description: PullDescription, agents: AgentSignsByName) -> bool:
    """Return whether a program opened a pull request."""
    author = description.author or ""
    return description.bot or bool(_BOT_ACCOUNT.search(author)) or is_agent_account(author, agents)


def _labelled_prompt(labels: Sequence[str]) -> str | None:
    names = [
        label[len(PROMPT_LABEL) :].strip() for label in labels if label.startswith(PROMPT_LABEL)
    ]
    return next(filter(None, names), None)


def find_requester(description: PullDescription, agents: AgentSignsByName) -> str | None:
    """Return the person who requested the work, never a bot or an agent; None if unknown.

    That is the author, else an assigned person. A trailer is no evidence: whoever writes the
    commits could name anybody.
    """
    authors = [] if description.bot or description.author is None else [description.author]
    for account in (*authors, *description.assignees):
        if not _BOT_ACCOUNT.search(account) and not is_agent_account(account, agents):
            return account
    return None


def _signs_in_description(
    description: PullDescription, agents: AgentSignsByName
) -> Iterator[tuple[AuthorshipSign, str]]:
    for name, signs in agents.items():
        if description.author and matches_wildcards(description.author, signs.authors):
            yield AuthorshipSign(kind="author", value=description.author), name
        for label in description.labels:
            if matches_wildcards(label, signs.labels):
                yield AuthorshipSign(kind="label", value=label), name
        if (
            description.branch
            and not description.fork
            and matches_wildcards(description.branch, signs.branches)
        ):
            yield AuthorshipSign(kind="branch", value=description.branch), name


def _signs_in_trailers(
    lines: Sequence[tuple[str, str]], agents: AgentSignsByName
) -> Iterator[tuple[AuthorshipSign, str]]:
    for key, value in lines:
        agent = find_co_author(value, agents) if key == "co-authored-by" else UNNAMED_AGENT
        if key in _AGENT_TRAILERS and agent is not None:
            yield AuthorshipSign(kind="trailer", value=f"{_AGENT_TRAILERS[key]}: {value}"), agent


def _signs_in_commits(
    commits: Sequence[PullCommit], agents: AgentSignsByName
) -> Iterator[tuple[AuthorshipSign, str]]:
    for commit in commits:
        if (name := _commit_agent(commit, agents)) is not None:
            yield AuthorshipSign(kind="author", value=commit.author or commit.email or ""), name


def find_co_author(value: str, agents: AgentSignsByName) -> str | None:
    """Return the agent that a `Co-Authored-By:` trailer names."""
    match = _CO_AUTHOR.match(value)
    names = (match[1], match[2]) if match else (value,)
    for agent, signs in agents.items():
        if any(matches_wildcards(name, signs.co_authors) for name in names):
            return agent
    return None


def is_agent_account(account: str | None, agents: AgentSignsByName) -> bool:
    """Return whether an account belongs to an agent."""
    return any(matches_wildcards(account, signs.authors) for signs in agents.values())


def is_agent_commit(commit: PullCommit, agents: AgentSignsByName) -> bool:
    """Return whether a commit says that an agent wrote it."""
    if _commit_agent(commit, agents) is not None:
        return True
    return any(
        key in ("attempt-id", "task-id", "prompt-version")
        or (key == "co-authored-by" and find_co_author(value, agents) is not None)
        for key, value in parse_trailers(commit.message)
    )


def agent_commits(commits: Iterable[PullCommit], agents: AgentSignsByName) -> set[str]:
    """Return which commits of an agent's pull request are the agent's; the others are people's.

    If no commit says so, the agent works under the name of the first commit's author.
    """
    all_commits = list(commits)
    marked = {commit.sha for commit in all_commits if is_agent_commit(commit, agents)}
    if marked or not all_commits:
        return marked
    first = all_commits[0]
    return {
        commit.sha
        for commit in all_commits
        if (commit.author, commit.email) == (first.author, first.email)
    }


def _commit_agent(commit: PullCommit, agents: AgentSignsByName) -> str | None:
    for agent, signs in agents.items():
        if matches_wildcards(commit.author, signs.authors) or matches_wildcards(
            commit.email, signs.co_authors
        ):
            return agent
    return None
