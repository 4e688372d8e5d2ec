"""The life of a pull request, made of what was told of it: the same in whatever order it came."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec.structs import replace

from closeloop.code_digest import digest_code
from closeloop.records.pull_request import (
    AuthorshipSign,
    CiCheck,
    Fact,
    HumanEdit,
    PullCommit,
    PullDescription,
    PullRequest,
    PullRow,
    Push,
    Review,
    ReviewComment,
    ReviewRound,
)
from closeloop.records.record import Record
from closeloop.records.session import EventDetails, LogEvent
from closeloop.reviews.authorship import (
    UNNAMED_AGENT,
    AgentSignsByName,
    Authorship,
    detect_authorship,
)
from closeloop.reviews.pull_facts import (
    combined_result,
    first_head,
    has_human_review,
    last_known_number,
    latest_checks,
    latest_comments,
    latest_reviews,
    list_descriptions,
    list_human_edits,
    list_pull_commits,
    list_pull_files,
    list_pushes,
    select_pointers,
)

# Rounds of review: people say something, then the branch moves.


class PullActivity(Record):
    """What happened between opening and end."""

    opened: datetime
    until: datetime | None
    reviews: tuple[Review, ...]
    comments: tuple[ReviewComment, ...]
    pushes: tuple[Push, ...]
    commits: tuple[PullCommit, ...]
    edits: tuple[HumanEdit, ...] = ()


def list_review_rounds(activity: PullActivity) -> tuple[ReviewRound, ...]:
    """One for every time the branch moved after people had asked for something.

    Approval alone asks for nothing. Who mends an agent's work without a word has asked, too. What
    was asked for in so many words, and never came, is a round that has not ended.
    """
    edits = {edit.sha: edit.by for edit in activity.edits}
    remarks = sorted(_reviewer_remarks(activity), key=lambda one: one.at)
    rounds: list[ReviewRound] = []
    going_on = False
    for at, sha, brought in _branch_moves(activity):
        before = [one for one in remarks if one.at <= at]
        remarks = remarks[len(before) :]
        mended_by = [edits[one] for one in brought if one in edits]
        if any(map(_asks_for_change, before)):
            rounds.append(_build_round(len(rounds) + 1, before, at, sha))
        elif mended_by and going_on:
            rounds[-1] = replace(rounds[-1], ended=at, answer=sha)
        elif mended_by:
            who = tuple(dict.fromkeys(name for name in mended_by if name))
            number = len(rounds) + 1
            rounds.append(ReviewRound(number=number, started=at, ended=at, by=who, answer=sha))
        # People who mend go on until the agent has its turn.
        going_on = bool(mended_by)
    if any(isinstance(one, Review) and one.state == "changes_requested" for one in remarks):
        rounds.append(_build_round(len(rounds) + 1, remarks, None, None))
    return tuple(rounds)


def _reviewer_remarks(activity: PullActivity) -> list[Review | ReviewComment]:
    both: list[Review | ReviewComment] = [*activity.reviews, *activity.comments]
    return [
        one for one in both if one.counts and (activity.until is None or one.at <= activity.until)
    ]


def _branch_moves(activity: PullActivity) -> list[tuple[datetime, str, tuple[str, ...]]]:
    """When the branch moved after the opening, to which commit, and what that brought."""
    brought_in = {commit.sha for commit in activity.commits if commit.merge}
    moves = [
        (push.at, push.after, push.commits or (push.after,))
        for push in activity.pushes
        if push.before is not None and not (push.commits and brought_in.issuperset(push.commits))
    ]
    if not moves:
        own_commits = [commit for commit in activity.commits if not commit.merge]
        moves = [(commit.at, commit.sha, (commit.sha,)) for commit in own_commits]
    return sorted(
        move
        for move in moves
        if move[0] > activity.opened and (activity.until is None or move[0] <= activity.until)
    )


def _asks_for_change(one: Review | ReviewComment) -> bool:
    return isinstance(one, ReviewComment) or one.state != "approved"


def _build_round(
    number: int, said: Sequence[Review | ReviewComment], ended: datetime | None, answer: str | None
) -> ReviewRound:
    return ReviewRound(
        number=number,
        started=said[0].at,
        ended=ended,
        by=tuple(dict.fromkeys(one.by for one in said if one.by)),
        reviews=tuple(one.id for one in said if isinstance(one, Review)),
        comments=tuple(one.id for one in said if isinstance(one, ReviewComment)),
        requested=any(isinstance(one, Review) and one.state == "changes_requested" for one in said),
        answer=answer,
    )


FOLDING_MODULE = "closeloop.reviews.pull_updates"
"""What makes pull requests of facts, by the rules here, and says what became of the work."""


def compute_version() -> int:
    """A number for the code that folds facts: what other code has made is made again."""
    return int(digest_code(FOLDING_MODULE)[:12], 16)


class RecordedWork(Record):
    """The work that a pull request came from, as far as it was recorded."""

    attempt: str
    agent: str | None = None
    """The program that did it."""
    user: str | None = None
    """Who ran it."""
    delivered: bool = False
    """By `closeloop deliver`, which wrote down who asked."""


def build_pull_request(
    facts: Sequence[Fact],
    number: int,
    agents: AgentSignsByName,
    recorded: RecordedWork | None = None,
) -> PullRequest | None:
    """What became of a pull request; None while nobody has described it."""
    descriptions = list_descriptions(facts)
    if not descriptions:
        return None
    last = descriptions[-1]
    until = last.merged or last.closed
    pushes = list_pushes(facts, last.opened, until)
    commits = list_pull_commits(facts, number, pushes)
    whose = detect_authorship(last, commits, agents)
    if recorded is not None:
        sign = AuthorshipSign(kind="attempt", value=recorded.attempt)
        whose = replace(
            whose,
            signs=(*whose.signs, sign),
            agent=recorded.agent or whose.agent or UNNAMED_AGENT,
            asked_by=(recorded.user if recorded.delivered else None)
            or whose.asked_by
            or recorded.user,
        )
    checks = latest_checks(facts)
    activity = PullActivity(
        opened=last.opened,
        until=until,
        reviews=latest_reviews(facts, last.author, agents),
        comments=latest_comments(facts, last.author, agents),
        pushes=pushes,
        commits=commits,
        edits=list_human_edits(commits, pushes, last, agents) if whose.signs else (),
    )
    return replace(
        _build_outline(facts, number, descriptions, whose),
        attempt=recorded.attempt if recorded else None,
        files=list_pull_files(facts, commits),
        commits=commits,
        pushes=pushes,
        checks=checks,
        first_push=combined_result(first_head(facts, number, commits, checks), checks),
        last_push=combined_result(last.head, checks),
        reviews=activity.reviews,
        comments=activity.comments,
        rounds=list_review_rounds(activity),
        edits=activity.edits,
        pointers=select_pointers(facts, number, last, commits),
        reviewed=has_human_review(activity.reviews, activity.comments, until),
    )


def _build_outline(
    facts: Sequence[Fact], number: int, descriptions: Sequence[PullDescription], whose: Authorship
) -> PullRequest:
    """What a pull request says of itself."""
    last = descriptions[-1]
    # Sizes that were told of an earlier commit are not those of the newest.
    sizes = [one for one in descriptions if one.head == last.head]
    return PullRequest(
        repo=facts[0].repo,
        number=number,
        source=facts[0].source,
        title=last.title,
        body=last.body,
        url=last.url,
        author=last.author,
        asked_by=whose.asked_by,
        state=last.state,
        draft=last.draft,
        branch=last.branch,
        fork=last.fork,
        base=last.base,
        head=last.head,
        merge_commit=last.merge_commit,
        labels=last.labels,
        opened=last.opened,
        closed=last.closed,
        merged=last.merged,
        told=max(fact.at for fact in facts),
        signs=whose.signs,
        agent=whose.agent,
        task=whose.task,
        prompt=whose.prompt,
        files_changed=last_known_number(one.files for one in sizes),
        added=last_known_number(one.added for one in sizes),
        removed=last_known_number(one.removed for one in sizes),
        version=compute_version(),
    )


def block_reason(pull: PullRequest) -> str | None:
    """Why no person is to be asked about it now; None when one may be."""
    if pull.state != "open":
        return f"it is {pull.state}"
    if pull.draft:
        return "it is a draft"
    check_names = [
        check.name
        for check in pull.checks
        if check.sha == pull.head and check.result == pull.last_push
    ]
    match pull.last_push:
        case "failed":
            return f"its checks fail: {', '.join(check_names[:5])}"
        case "running":
            return f"its checks are running: {', '.join(check_names[:5])}"
    return None


# What happens to pull requests, as events.


def events_from_fact(fact: Fact) -> list[LogEvent]:
    """The events that a new fact is."""
    details: EventDetails
    match fact.what:
        case Push(before=str()) as push:
            kind = "pull.pushed"
            details = {"sha": push.after, "by": push.by, "forced": push.forced}
        case CiCheck(result="passed" | "failed") as check:
            kind = f"check.{check.result}"
            details = {"name": check.name, "sha": check.sha}
        case Review() as review:
            kind = f"review.{review.state}"
            details = {"by": review.by, "id": review.id}
        case ReviewComment(deleted=False) as comment:
            kind = "review.comment"
            place = {"path": comment.path, "line": comment.line}
            details = {"by": comment.by, "id": comment.id, **place}
        case _:
            return []
    if fact.pull is None and isinstance(fact.what, Push):
        # The pull request itself tells of its pushes.
        return []
    return [LogEvent(kind=kind, at=fact.at, repo=fact.repo, pull=fact.pull, details=details)]


def events_from_change(old: PullRow | None, row: PullRow, pull: PullRequest) -> Iterator[LogEvent]:
    """The events between what was known of a pull request and what is known now."""
    if old is None:
        about: EventDetails = {"agent": pull.agent, "author": pull.author, "title": pull.title}
        yield _make_event(pull, "pull.opened", pull.opened, about)
    known_counts = (old.rounds, old.edits, old.pointers) if old else (0, 0, 0)
    yield from _new_activity_events(pull, *known_counts)
    if row.risk is not None and (old is None or old.risk != row.risk):
        yield _make_event(pull, "risk.level", pull.told, {"level": row.risk})
    if (old.state if old else "open") != pull.state:
        yield _state_event(pull)
    if pull.state == "open" and (old is None or old.last_push != row.last_push):
        why = block_reason(pull)
        if why is not None or row.last_push == "passed":
            yield _make_event(pull, "pull.held" if why else "pull.ready", pull.told, {"why": why})


def _make_event(pull: PullRequest, kind: str, at: datetime, details: EventDetails) -> LogEvent:
    return LogEvent(
        kind=kind,
        at=at,
        repo=pull.repo,
        pull=pull.number,
        task=pull.task,
        attempt=pull.attempt,
        details=details,
    )


def _new_activity_events(
    pull: PullRequest, rounds: int, edits: int, pointers: int
) -> Iterator[LogEvent]:
    """What is more than so many of each."""
    details: EventDetails
    for one in pull.rounds[rounds:]:
        details = {"number": one.number, "by": ", ".join(one.by), "answer": one.answer}
        yield _make_event(pull, "review.round", one.ended or one.started, details)
    for edit in pull.edits[edits:]:
        count = len(edit.files or ())
        details = {"by": edit.by, "sha": edit.sha, "files": count, "last": edit.last}
        yield _make_event(pull, "pull.edited", edit.at, details)
    for pointer in pull.pointers[pointers:]:
        kind = "pull.reverted" if pointer.kind == "revert" else "pull.repaired"
        yield _make_event(pull, kind, pointer.at, {"by": pointer.by, "how": pointer.how})


def _state_event(pull: PullRequest) -> LogEvent:
    if pull.state == "open":
        return _make_event(pull, "pull.reopened", pull.told, {})
    ended = pull.merged or pull.closed or pull.told
    return _make_event(pull, f"pull.{pull.state}", ended, _ending_details(pull))


def _ending_details(pull: PullRequest) -> EventDetails:
    """How it came to its end."""
    return {
        "agent": pull.agent,
        "rounds": len(pull.rounds),
        "edits": len(pull.edits),
        "reviewed": pull.reviewed,
        "first_push": pull.first_push,
    }
