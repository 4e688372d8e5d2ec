"""Resolve the facts about a pull request: each item once, in its current state."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeVar

from msgspec.structs import replace

from closeloop.records.pull_request import (
    BackReference,
    CheckResult,
    CiCheck,
    CommentThread,
    Fact,
    FactBody,
    FactSource,
    FileEdit,
    HumanEdit,
    PointerKind,
    PullCommit,
    PullDescription,
    PullExtent,
    Push,
    Review,
    ReviewComment,
)
from closeloop.records.record import content_digest
from closeloop.reviews.authorship import AgentSignsByName, agent_commits, is_agent_account
from closeloop.text.wording import compile_lazily

# Back references of a message: the change that it reverts or fixes.

PointerMethod = Literal["trailer", "message"]

MAX_MESSAGE_CHARS = 20_000
MAX_POINTERS = 20
_PULL_NUMBER = r"([\w.-]{1,100}/[\w./-]{1,200})?[#!](\d{1,9})\b"
_REVERTED_COMMIT = compile_lazily(r"\breverts?:? (?:commit )?([0-9a-f]{7,64})\b", re.IGNORECASE)
_REVERTED_PULL = compile_lazily(
    rf"\breverts:? (?:(?:pull|merge) request |pr )?{_PULL_NUMBER}", re.IGNORECASE
)
_FIXED_COMMIT = compile_lazily(r"^fixes: ([0-9a-f]{7,64})\b", re.IGNORECASE | re.MULTILINE)
_BROKEN_BY = (
    r"\b(?:introduced|broken?|regress(?:ed|ion)|caused|bug)(?: \w{1,20}){0,3}"
    r" (?:in|by|from|since|with|after) (?:commit |pull request |merge request |pr )?"
)
_BROKEN_PULL = compile_lazily(_BROKEN_BY + _PULL_NUMBER, re.IGNORECASE)
_BROKEN_COMMIT = compile_lazily(_BROKEN_BY + r"([0-9a-f]{7,64})\b", re.IGNORECASE)
_FOLLOW_UP = compile_lazily(
    rf"\bfollow[ -]?up (?:to|of|for) (?:pull request |pr )?{_PULL_NUMBER}", re.IGNORECASE
)
_SAYS_FIX = compile_lazily(r"\bfix(?:e[sd]|ing)?\b", re.IGNORECASE)
_BY_COMMIT: tuple[tuple[re.Pattern[str], PointerKind, PointerMethod], ...] = (
    (_REVERTED_COMMIT, "revert", "message"),
    (_FIXED_COMMIT, "fix", "trailer"),
    (_BROKEN_COMMIT, "fix", "message"),
)
_BY_NUMBER: tuple[tuple[re.Pattern[str], PointerKind], ...] = (
    (_REVERTED_PULL, "revert"),
    (_BROKEN_PULL, "fix"),
    (_FOLLOW_UP, "fix"),
)


def parse_pointers(
    message: str, repo: str, source: str, merged_at: datetime
) -> list[tuple[int | None, BackReference]]:
    """Return what a message reverts or fixes: by number, or by commit."""
    text = message.strip()[:MAX_MESSAGE_CHARS]
    title = message_title(text)
    pointers: dict[str, tuple[int | None, BackReference]] = {}
    for pattern, kind, method in _BY_COMMIT:
        for match in pattern.finditer(text):
            sha = match[1].lower()
            pointer = BackReference(
                kind=kind, at=merged_at, how=method, sha=sha, by=source, title=title
            )
            pointers.setdefault(sha, (None, pointer))
    for pattern, kind in _BY_NUMBER:
        if pattern is _FOLLOW_UP and not _SAYS_FIX.search(title):
            continue
        for match in pattern.finditer(text):
            if match[1] in (None, repo) and source != f"#{match[2]}":
                pointer = BackReference(
                    kind=kind, at=merged_at, how="message", by=source, title=title
                )
                pointers.setdefault(f"#{match[2]}", (int(match[2]), pointer))
    return list(pointers.values())[:MAX_POINTERS]


def message_title(message: str) -> str:
    """Return the first line, truncated for display."""
    return (message.splitlines() or [""])[0][:200]


EARLIEST_TIME = datetime(1970, 1, 15, tzinfo=UTC)
BEFORE_OPENING = timedelta(days=14)
"""How long before its opening a pull request's branch may have been pushed to."""
_RESULT_ORDER: dict[CheckResult, int] = {"running": 0, "skipped": 1, "passed": 2, "failed": 3}

Kind = TypeVar("Kind")
TimedFacts = list[tuple[datetime, Kind]]


def facts_of_kind(facts: Iterable[Fact], kind: type[Kind]) -> TimedFacts[Kind]:
    """Return the facts of one kind, with their times."""
    return [(fact.at, fact.what) for fact in facts if isinstance(fact.what, kind)]


def list_descriptions(facts: Iterable[Fact]) -> list[PullDescription]:
    """Return the descriptions, oldest first; an author named once is filled in everywhere."""
    descriptions = [
        description
        for _, description in sorted(facts_of_kind(facts, PullDescription), key=_description_order)
    ]
    author = next(
        (description.author for description in reversed(descriptions) if description.author), None
    )
    bot = any(description.bot for description in descriptions if description.author == author)
    return [replace(description, author=author, bot=bot) for description in descriptions]


def _description_order(dated: tuple[datetime, PullDescription]) -> tuple[datetime, bool, str]:
    changed_at, description = dated
    # Hosts report whole seconds: closed within a second means not open at its end.
    return changed_at, description.state != "open", f"{description.head} {description.title}"


def last_known_number(numbers: Iterable[int | None]) -> int | None:
    """Return the last known number."""
    return next((number for number in reversed([*numbers]) if number is not None), None)


def list_pushes(
    facts: Sequence[Fact], opened: datetime, until: datetime | None
) -> tuple[Push, ...]:
    """Return every push once, even if both the branch and the pull request reported it."""
    pushes: dict[tuple[str | None, str], Push] = {}
    earliest = max(opened, EARLIEST_TIME) - BEFORE_OPENING
    for fact in sorted(facts, key=lambda candidate: (candidate.at, candidate.key)):
        push = fact.what
        if not isinstance(push, Push):
            continue
        if fact.pull is None and (push.at < earliest or (until is not None and push.at > until)):
            continue
        key = (push.before, push.after)
        known_push = pushes.get(key)
        pushes[key] = push if known_push is None else _merge_pushes(known_push, push)
    return tuple(sorted(pushes.values(), key=lambda push: (push.at, push.after)))


def _merge_pushes(first: Push, second: Push) -> Push:
    commits = first.commits if first.commits is not None else second.commits
    return replace(
        first, by=first.by or second.by, forced=first.forced or second.forced, commits=commits
    )


def list_pull_commits(
    facts: Sequence[Fact], number: int, pushes: Sequence[Push]
) -> tuple[PullCommit, ...]:
    """Return its current commits, oldest first."""
    commits_by_sha: dict[str, PullCommit] = {}
    pull_shas: list[str] = []
    for fact in sorted(facts, key=lambda candidate: (candidate.at, candidate.key)):
        if isinstance(fact.what, PullCommit):
            known_commit = commits_by_sha.get(fact.what.sha)
            commits_by_sha[fact.what.sha] = (
                fact.what if known_commit is None else _merge_commits(known_commit, fact.what)
            )
            pull_shas += [fact.what.sha] if fact.pull == number and known_commit is None else []
    moves: list[tuple[datetime, bool, tuple[str, ...]]] = [
        (changed_at, True, extent.commits)
        for changed_at, extent in facts_of_kind(facts, PullExtent)
        if extent.commits is not None
    ]
    moves += [
        (push.at, push.forced or push.before is None, push.commits)
        for push in pushes
        if push.commits is not None
    ]
    if not moves:
        return tuple(commits_by_sha[sha] for sha in pull_shas)
    present: dict[str, None] = {}
    for _, anew, shas in sorted(moves, key=lambda move: move[0]):
        present = {**({} if anew else present), **dict.fromkeys(shas)}
    return tuple(commits_by_sha[sha] for sha in present if sha in commits_by_sha)


def _merge_commits(first: PullCommit, second: PullCommit) -> PullCommit:
    """Merge two reports of a commit, preferring the one with line counts."""
    sized = [
        commit for commit in (first, second) if commit.files and commit.files[0].added is not None
    ]
    best = (sized or [first])[0]
    return replace(best, merge=first.merge or second.merge, bot=first.bot or second.bot)


def latest_checks(facts: Sequence[Fact]) -> tuple[CiCheck, ...]:
    """Return the latest result of each check of each commit."""
    newest: dict[tuple[str, str], CiCheck] = {}
    for _, check in facts_of_kind(facts, CiCheck):
        known_check = newest.get((check.sha, check.name))
        if known_check is None or _check_order(known_check) < _check_order(check):
            newest[check.sha, check.name] = check
    return tuple(sorted(newest.values(), key=lambda check: (check.at, check.name)))


def _check_order(check: CiCheck) -> tuple[datetime, int]:
    return check.at, _RESULT_ORDER[check.result]


def combined_result(sha: str | None, checks: Sequence[CiCheck]) -> CheckResult | None:
    """Return the combined result of all checks of a commit."""
    results = {check.result for check in checks if check.sha == sha}
    return next((result for result in ("failed", "running", "passed") if result in results), None)


def first_head(
    facts: Sequence[Fact], number: int, commits: Sequence[PullCommit], checks: Sequence[CiCheck]
) -> str | None:
    """Return the commit that was pushed first: by pushes, else by checks, as CI runs on what is
    pushed."""
    pushes = [
        fact.what
        for fact in sorted(facts, key=lambda candidate: (candidate.at, candidate.key))
        if fact.pull == number and isinstance(fact.what, Push)
    ]
    opening = [push.after for push in pushes if push.before is None]
    if opening:
        return opening[0]
    if pushes:
        return pushes[0].before
    checked = {check.sha for check in checks}
    looked_at = [commit.sha for commit in commits if commit.sha in checked]
    heads = [description.head for description in list_descriptions(facts)]
    return (looked_at or heads)[0]


def latest_reviews(
    facts: Sequence[Fact], author: str | None, agents: AgentSignsByName
) -> tuple[Review, ...]:
    """Return each review in its current state."""
    newest = _latest_by_name(facts_of_kind(facts, Review), lambda review: review.id)
    marked = [
        replace(review, counts=_counts_as_review(review.by, review.bot, author, agents))
        for review in newest
    ]
    return tuple(sorted(marked, key=lambda review: (review.at, review.id)))


def latest_comments(
    facts: Sequence[Fact], author: str | None, agents: AgentSignsByName
) -> tuple[ReviewComment, ...]:
    """Return each comment in its current state, without deleted ones."""
    settled: dict[str, bool] = {}
    for _, thread in sorted(facts_of_kind(facts, CommentThread), key=lambda dated: dated[0]):
        settled.update(dict.fromkeys(thread.comments, thread.resolved))
    deleted_ids = {
        comment.id for _, comment in facts_of_kind(facts, ReviewComment) if comment.deleted
    }
    marked = [
        replace(
            comment,
            counts=_counts_as_review(comment.by, comment.bot, author, agents),
            resolved=settled.get(comment.answers or comment.id, settled.get(comment.id)),
        )
        for comment in _latest_by_name(
            facts_of_kind(facts, ReviewComment), lambda comment: comment.id
        )
        if comment.id not in deleted_ids
    ]
    return tuple(sorted(marked, key=lambda comment: (comment.at, comment.id)))


def _latest_by_name(timed_facts: TimedFacts[Kind], name: Callable[[Kind], str]) -> Iterable[Kind]:
    ordered = sorted(timed_facts, key=lambda timed: (timed[0], repr(timed[1])))
    return {name(body): body for _, body in ordered}.values()


def _counts_as_review(
    account: str | None, bot: bool, author: str | None, agents: AgentSignsByName
) -> bool:
    """Return whether a person other than the author said it; a deleted account counts as a
    person."""
    return not bot and account != author and not is_agent_account(account, agents)


def has_human_review(
    reviews: Sequence[Review], comments: Sequence[ReviewComment], until: datetime | None
) -> bool:
    moments = [review.at for review in reviews if review.counts]
    moments += [comment.at for comment in comments if comment.counts and comment.path]
    return any(until is None or moment <= until for moment in moments)


def list_pull_files(
    facts: Sequence[Fact], commits: Sequence[PullCommit]
) -> tuple[FileEdit, ...] | None:
    """Return the files it changes: as listed, else those of its commits."""
    extents = sorted(facts_of_kind(facts, PullExtent), key=lambda dated: dated[0])
    listed_files = [extent.files for _, extent in extents if extent.files is not None]
    if listed_files:
        return listed_files[-1]
    changed = [commit.files for commit in commits if not commit.merge]
    if not changed or any(files is None for files in changed):
        return None
    paths = dict.fromkeys(file.path for files in changed for file in files or ())
    return tuple(FileEdit(path=path) for path in paths)


def list_human_edits(
    commits: Sequence[PullCommit],
    pushes: Sequence[Push],
    last_description: PullDescription,
    agents: AgentSignsByName,
) -> tuple[HumanEdit, ...]:
    """Return what people changed on top of the agent's work."""
    if not commits:
        return _edits_from_pushes(pushes, last_description, agents)
    agent = agent_commits(commits, agents)
    agent_indexes = [index for index, commit in enumerate(commits) if commit.sha in agent]
    if not agent_indexes:
        return ()
    return tuple(
        HumanEdit(
            sha=commit.sha,
            by=commit.author,
            at=commit.at,
            title=message_title(commit.message),
            files=commit.files,
            last=index > agent_indexes[-1],
        )
        for index, commit in enumerate(commits)
        if index > agent_indexes[0]
        and commit.sha not in agent
        and not commit.merge
        and not commit.bot
    )


def _edits_from_pushes(
    pushes: Sequence[Push], told_last: PullDescription, agents: AgentSignsByName
) -> tuple[HumanEdit, ...]:
    """Return edits by who pushed, if no commits are known and the agent has its own account."""
    if not is_agent_account(told_last.author, agents):
        return ()
    return tuple(
        HumanEdit(sha=push.after, by=push.by, at=push.at)
        for push in pushes
        if push.by
        and push.before
        and not is_agent_account(push.by, agents)
        and not push.by.endswith("[bot]")
    )


def select_pointers(
    facts: Sequence[Fact], number: int, last: PullDescription, commits: Sequence[PullCommit]
) -> tuple[BackReference, ...]:
    """Return what later reverted or fixed it."""
    if last.merged is None:
        return ()
    shas = [sha for sha in (last.merge_commit, *(commit.sha for commit in commits)) if sha]
    pointers = {
        (pointer.kind, pointer.by): pointer
        for fact in sorted(facts, key=lambda candidate: (candidate.at, candidate.key), reverse=True)
        if isinstance(pointer := fact.what, BackReference)
        and (
            fact.pull == number
            or (pointer.sha and any(sha.startswith(pointer.sha) for sha in shas))
        )
        and pointer.by not in shas
    }
    return tuple(sorted(pointers.values(), key=lambda pointer: (pointer.at, pointer.by)))


# Build facts about a repository: the same thing gives the same fact, whatever its source.

MAX_TEXT_CHARS = 20_000
"""Maximum stored characters of a text."""
MAX_ITEMS = 2_000
"""Maximum stored commits, files and labels of one pull request."""
NO_COMMIT = "0" * 40
"""The commit id before a branch's first commit, and after its deletion."""


class FactBuilder:
    """Builds facts about one repository."""

    source: FactSource

    def __init__(self, repo: str, received_at: datetime) -> None:
        self.repo = repo
        self.heard = received_at
        """When the data was received, for facts without a time of their own."""

    def make_fact(
        self,
        body: FactBody,
        observed_at: datetime | None,
        *key: object,
        pull: int | None = None,
        sha: str = "",
    ) -> Fact:
        """Return one fact; its key identifies it."""
        return Fact(
            source=self.source,
            repo=self.repo,
            pull=pull,
            sha=sha or None,
            at=observed_at or self.heard,
            key=":".join(map(str, key)),
            what=body,
        )

    def push_fact(self, number: int, push: Push) -> Fact:
        key = ("push", number, push.before, push.after)
        return self.make_fact(push, push.at, *key, pull=number, sha=push.after)

    def extent_fact(self, number: int, extent: PullExtent, observed_at: datetime | None) -> Fact:
        return self.make_fact(
            extent, observed_at, "extent", number, content_digest(extent)[:16], pull=number
        )

    def pointer_facts(self, message: str, source: str, merged_at: datetime) -> Iterator[Fact]:
        """Yield what the message of something merged reverts or fixes."""
        for number, pointer in parse_pointers(message, self.repo, source, merged_at):
            key = ("pointer", pointer.kind, number or pointer.sha, source)
            yield self.make_fact(pointer, merged_at, *key, pull=number, sha=pointer.sha or "")


def pushed_file_edits(*paths: Sequence[str]) -> tuple[FileEdit, ...]:
    """Return the files that a push lists, by kind of change, without line counts."""
    names = dict.fromkeys(path for some in paths for path in some)
    return tuple(FileEdit(path=name) for name in list(names)[:MAX_ITEMS])
