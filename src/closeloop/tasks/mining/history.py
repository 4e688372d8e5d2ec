"""Read a repository's history as pieces of work that were accepted, newest first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from closeloop.git import read_text
from closeloop.model.errors import BadInput
from closeloop.model.record import Record, Time

MOST_COMMITS = 100_000
MOST_INSIDE = 50
"""Commits of one pull request whose messages are read."""
MOST_BODIES = 2
"""Of these, such as speak of what the title says."""
MOST_SUBJECTS = 5
LARGEST_MESSAGE = 20_000
FEW_WORDS = 6
"""Who says less does not tell what is wanted: it is told by something else."""
_FORMAT = "%H%x00%P%x00%ct%x00%B%x00%x01"
_PULL_REQUEST = re.compile(
    r"Merged? (?:pull request|pr|in\b|branch '[^']+' into)|.*See merge request", re.I | re.DOTALL
)
_TITLED = re.compile(r"(?!Merge\b)[^\n]{1,300}\(#\d{1,9}\)\s*(?:\n|$)")
"""A pull request that was merged under its own title."""
_SIDE_BRANCH = re.compile(
    r"Merge (?:remote-tracking )?(?:branch )?['`\"](?:[\w.-]+/)?(?:v?\d[\w.]*|stable|main|master"
    r"|develop\w*|maint\w*|release\w*)\b",
    re.I,
)


class Commit(Record):
    """A commit as the log tells it."""

    id: str
    parents: tuple[str, ...]
    at: Time
    message: str


class Work(Record):
    """One accepted piece of work: a commit, or a merged pull request as a whole."""

    commit: str
    base: str
    """The first parent."""
    at: Time
    message: str
    hindsight: bool = True
    """Whoever wrote the message knew the work; not so in an issue, or a user's first words."""


def works(repo: Path | str, since: str | None = None) -> list[Work]:
    """Every accepted piece of work that HEAD holds.

    A merged pull request counts once; a merged branch, such as a release's, by its own commits.
    """
    commits = {commit.id: commit for commit in _log(repo, since)}
    if not commits:
        return []
    head = read_text(repo, "rev-parse", "HEAD").strip()
    seen: dict[str, Commit] = {}
    starts = [head]
    while starts:
        place: str | None = starts.pop()
        while place in commits and place not in seen:
            commit = seen[place] = commits[place]
            if len(commit.parents) > 1 and not _is_pull_request(commit.message):
                starts.extend(commit.parents[1:])
            place = commit.parents[0] if commit.parents else None
    found = [
        Work(
            commit=commit.id,
            base=commit.parents[0],
            at=commit.at,
            message=_message(commit, commits, seen),
        )
        for commit in seen.values()
        if commit.parents and (len(commit.parents) == 1 or _is_pull_request(commit.message))
    ]
    return sorted(found, key=lambda work: work.at, reverse=True)


def is_shallow(repo: Path | str) -> bool:
    """Whether older history was left behind when the repository was cloned."""
    return read_text(repo, "rev-parse", "--is-shallow-repository").strip() == "true"


def nearest_tag(repo: Path | str, commit: str) -> str | None:
    """The tag of the last release before a commit."""
    try:
        return read_text(repo, "describe", "--tags", "--abbrev=0", commit).strip() or None
    except BadInput:
        return None


def files_at(repo: Path | str, commit: str) -> list[str]:
    """The names of all files of a commit."""
    listed = read_text(repo, "ls-tree", "-r", "-z", "--name-only", commit)
    return listed.removesuffix("\0").split("\0") if listed else []


def words_in(repo: Path | str, commit: str, words: Sequence[str]) -> frozenset[str]:
    """Those of some words that occur anywhere in the files of a commit."""
    if not words:
        return frozenset()
    asked = [part for word in words for part in ("-e", word)]
    try:
        found = read_text(repo, "grep", "-h", "-o", "-w", "-I", "-F", *asked, commit)
    except BadInput:  # git says "no match" by failing
        return frozenset()
    return frozenset(found.split("\n"))


def _log(repo: Path | str, since: str | None) -> Iterator[Commit]:
    limits = [f"--max-count={MOST_COMMITS}", *([f"--since={since}"] if since else [])]
    for entry in read_text(repo, "log", f"--format={_FORMAT}", *limits, "HEAD").split("\x01"):
        fields = entry.lstrip("\n").split("\0")
        if len(fields) >= 4:
            yield Commit(
                id=fields[0],
                parents=tuple(fields[1].split()),
                at=datetime.fromtimestamp(int(fields[2]), UTC),
                message=_text(fields[3][:LARGEST_MESSAGE]).strip(),
            )


def _text(told: str) -> str:
    return told.encode("utf-8", "surrogateescape").decode("utf-8", "replace").replace("\0", "")


def _is_pull_request(message: str) -> bool:
    named = _PULL_REQUEST.match(message) or _TITLED.match(message)
    return bool(named) and not _SIDE_BRANCH.match(message)


def _message(commit: Commit, commits: dict[str, Commit], seen: dict[str, Commit]) -> str:
    """Of a merged pull request, its title and what its commits say below their own."""
    if len(commit.parents) == 1:
        return commit.message
    inside = [one.message.partition("\n") for one in _inside(commit, commits, seen)]
    title = commit.message
    if not _TITLED.match(title):
        title = title.partition("\n")[2].strip() or (inside[0][0] if inside else "")
    meant = [one for one in inside if _words(title) & _words(one[0])] or inside
    bodies = [body.strip() for _, _, body in meant if body.strip()][:MOST_BODIES]
    if len(" ".join((title, *bodies)).split()) < FEW_WORDS:
        subjects = dict.fromkeys(subject for subject, _, _ in meant)
        bodies = [one for one in subjects if _words(one) - _words(title)][:MOST_SUBJECTS]
    told = dict.fromkeys(text for text in (title, *bodies) if text)
    return "\n\n".join(told)[:LARGEST_MESSAGE]


def _words(text: str) -> set[str]:
    return {word.lower() for word in re.findall(r"\w{4,}", text)} - {"with", "from", "when", "this"}


def _inside(commit: Commit, commits: dict[str, Commit], seen: dict[str, Commit]) -> list[Commit]:
    """The commits of a pull request, oldest first; merges from its target say nothing."""
    found: dict[str, Commit] = {}
    places = list(commit.parents[1:])
    while places and len(found) < MOST_INSIDE:
        place = places.pop()
        if place in commits and place not in seen and place not in found:
            found[place] = commits[place]
            places.extend(commits[place].parents[:1])
    return [one for one in reversed(found.values()) if len(one.parents) < 2]
