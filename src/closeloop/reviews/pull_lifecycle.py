"""Build a pull request from the facts about it, independent of the order they came in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec.structs import replace

from closeloop.code_digest import digest_code
from closeloop.records.attempt import Attempt
from closeloop.records.change import Change, Risk, RiskLevel
from closeloop.records.errors import BadInput
from closeloop.records.orchestration import DeliveryBranch
from closeloop.records.pull_request import (
    AuthorshipSign,
    CiCheck,
    Delivery,
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
from closeloop.records.record import Record, content_digest
from closeloop.records.trace import UNKNOWN_AGENT, EventDetails, LogEvent, Session, Trace
from closeloop.reviews.authorship import (
    ATTEMPT_TRAILER,
    UNNAMED_AGENT,
    AgentSignsByName,
    Authorship,
    detect_authorship,
    parse_trailers,
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
from closeloop.reviews.review_corrections import count_remarks
from closeloop.store import Store
from closeloop.store.event_section import delivery_step_key
from closeloop.store.experiment_section import MIN_PROMPT_ID_CHARS
from closeloop.text.redaction import redact_record
from closeloop.text.wording import package_folder, repository_name

# Review rounds: people request something, then the branch moves.


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
    """Return one round for every push after people requested something.

    Approval alone requests nothing. A person who edits an agent's work without a comment counts as
    having requested a change. An explicit request without a push after it is an open round.
    """
    edits = {edit.sha: edit.by for edit in activity.edits}
    remarks = sorted(_reviewer_remarks(activity), key=lambda remark: remark.at)
    rounds: list[ReviewRound] = []
    people_edit = False
    for pushed_at, sha, new_shas in _branch_moves(activity):
        before = [remark for remark in remarks if remark.at <= pushed_at]
        remarks = remarks[len(before) :]
        editors = [edits[commit_sha] for commit_sha in new_shas if commit_sha in edits]
        if any(map(_asks_for_change, before)):
            rounds.append(_build_round(len(rounds) + 1, before, pushed_at, sha))
        elif editors and people_edit:
            rounds[-1] = replace(rounds[-1], ended=pushed_at, answer=sha)
        elif editors:
            names = tuple(dict.fromkeys(name for name in editors if name))
            number = len(rounds) + 1
            rounds.append(
                ReviewRound(number=number, started=pushed_at, ended=pushed_at, by=names, answer=sha)
            )
        # People's fixes count until the agent's next turn.
        people_edit = bool(editors)
    if any(
        isinstance(remark, Review) and remark.state == "changes_requested" for remark in remarks
    ):
        rounds.append(_build_round(len(rounds) + 1, remarks, None, None))
    return tuple(rounds)


def _reviewer_remarks(activity: PullActivity) -> list[Review | ReviewComment]:
    remarks: list[Review | ReviewComment] = [*activity.reviews, *activity.comments]
    return [
        remark
        for remark in remarks
        if remark.counts and (activity.until is None or remark.at <= activity.until)
    ]


def _branch_moves(activity: PullActivity) -> list[tuple[datetime, str, tuple[str, ...]]]:
    """Return the pushes after the opening: when, to which commit, with which new commits."""
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


def _asks_for_change(remark: Review | ReviewComment) -> bool:
    return isinstance(remark, ReviewComment) or remark.state != "approved"


def _build_round(
    number: int,
    remarks: Sequence[Review | ReviewComment],
    ended: datetime | None,
    answer: str | None,
) -> ReviewRound:
    return ReviewRound(
        number=number,
        started=remarks[0].at,
        ended=ended,
        by=tuple(dict.fromkeys(remark.by for remark in remarks if remark.by)),
        reviews=tuple(remark.id for remark in remarks if isinstance(remark, Review)),
        comments=tuple(remark.id for remark in remarks if isinstance(remark, ReviewComment)),
        requested=any(
            isinstance(remark, Review) and remark.state == "changes_requested" for remark in remarks
        ),
        answer=answer,
    )


FOLDING_MODULE = "closeloop.reviews.pull_lifecycle"
"""The module whose code builds pull requests from facts and decides what became of the work."""


def compute_version() -> int:
    """Return a number for the code that builds pull requests; those of other versions are
    rebuilt."""
    return int(digest_code(FOLDING_MODULE)[:12], 16)


class RecordedWork(Record):
    """The recorded work that a pull request came from."""

    attempt: str
    agent: str | None = None
    """The program that did the work."""
    user: str | None = None
    """Who ran it."""
    delivered: bool = False
    """Whether `closeloop deliver` delivered it, and so recorded the requester."""


def build_pull_request(
    facts: Sequence[Fact],
    number: int,
    agents: AgentSignsByName,
    recorded: RecordedWork | None = None,
) -> PullRequest | None:
    """Build a pull request from its facts; None if no fact describes it."""
    descriptions = list_descriptions(facts)
    if not descriptions:
        return None
    last = descriptions[-1]
    ended_at = last.merged or last.closed
    pushes = list_pushes(facts, last.opened, ended_at)
    commits = list_pull_commits(facts, number, pushes)
    authorship = detect_authorship(last, commits, agents)
    if recorded is not None:
        sign = AuthorshipSign(kind="attempt", value=recorded.attempt)
        authorship = replace(
            authorship,
            signs=(*authorship.signs, sign),
            agent=recorded.agent or authorship.agent or UNNAMED_AGENT,
            asked_by=(recorded.user if recorded.delivered else None)
            or authorship.asked_by
            or recorded.user,
        )
    checks = latest_checks(facts)
    activity = PullActivity(
        opened=last.opened,
        until=ended_at,
        reviews=latest_reviews(facts, last.author, agents),
        comments=latest_comments(facts, last.author, agents),
        pushes=pushes,
        commits=commits,
        edits=list_human_edits(commits, pushes, last, agents) if authorship.signs else (),
    )
    return replace(
        _build_outline(facts, number, descriptions, authorship),
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
        reviewed=has_human_review(activity.reviews, activity.comments, ended_at),
    )


def _build_outline(
    facts: Sequence[Fact],
    number: int,
    descriptions: Sequence[PullDescription],
    authorship: Authorship,
) -> PullRequest:
    """Return the pull request as its descriptions have it."""
    last = descriptions[-1]
    # Sizes reported for an earlier commit do not apply to the newest.
    sizes = [description for description in descriptions if description.head == last.head]
    return PullRequest(
        repo=facts[0].repo,
        number=number,
        source=facts[0].source,
        title=last.title,
        body=last.body,
        url=last.url,
        author=last.author,
        asked_by=authorship.asked_by,
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
        signs=authorship.signs,
        agent=authorship.agent,
        task=authorship.task,
        prompt=authorship.prompt,
        files_changed=last_known_number(size.files for size in sizes),
        added=last_known_number(size.added for size in sizes),
        removed=last_known_number(size.removed for size in sizes),
        version=compute_version(),
    )


def block_reason(pull: PullRequest) -> str | None:
    """Return why no person should review it now; None if one may."""
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


# The events of pull requests.


def events_from_fact(fact: Fact) -> list[LogEvent]:
    """Return the events of a new fact."""
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
            location = {"path": comment.path, "line": comment.line}
            details = {"by": comment.by, "id": comment.id, **location}
        case _:
            return []
    if fact.pull is None and isinstance(fact.what, Push):
        # Pushes are known from the pull request itself.
        return []
    return [LogEvent(kind=kind, at=fact.at, repo=fact.repo, pull=fact.pull, details=details)]


def events_from_change(old: PullRow | None, row: PullRow, pull: PullRequest) -> Iterator[LogEvent]:
    """Yield the events between the stored state of a pull request and the new one."""
    if old is None:
        details: EventDetails = {"agent": pull.agent, "author": pull.author, "title": pull.title}
        yield _make_event(pull, "pull.opened", pull.opened, details)
    known_counts = (old.rounds, old.edits, old.pointers) if old else (0, 0, 0)
    yield from _new_activity_events(pull, *known_counts)
    if row.risk is not None and (old is None or old.risk != row.risk):
        yield _make_event(pull, "risk.level", pull.told, {"level": row.risk})
    if (old.state if old else "open") != pull.state:
        yield _state_event(pull)
    if pull.state == "open" and (old is None or old.last_push != row.last_push):
        reason = block_reason(pull)
        if reason is not None or row.last_push == "passed":
            yield _make_event(
                pull, "pull.blocked" if reason else "pull.ready", pull.told, {"why": reason}
            )


def _make_event(pull: PullRequest, kind: str, time: datetime, details: EventDetails) -> LogEvent:
    return LogEvent(
        kind=kind,
        at=time,
        repo=pull.repo,
        pull=pull.number,
        task=pull.task,
        attempt=pull.attempt,
        details=details,
    )


def _new_activity_events(
    pull: PullRequest, rounds: int, edits: int, pointers: int
) -> Iterator[LogEvent]:
    """Yield events for review rounds, edits and back references beyond the counts already known."""
    details: EventDetails
    for review_round in pull.rounds[rounds:]:
        details = {
            "number": review_round.number,
            "by": ", ".join(review_round.by),
            "answer": review_round.answer,
        }
        yield _make_event(pull, "review.round", review_round.ended or review_round.started, details)
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
    ended_at = pull.merged or pull.closed or pull.told
    return _make_event(pull, f"pull.{pull.state}", ended_at, _ending_details(pull))


def _ending_details(pull: PullRequest) -> EventDetails:
    """Return how the pull request ended."""
    return {
        "agent": pull.agent,
        "rounds": len(pull.rounds),
        "edits": len(pull.edits),
        "reviewed": pull.reviewed,
        "first_push": pull.first_push,
    }


# Current pull requests: built from the facts, linked to the work behind them, and delivered.


MAIN_BRANCHES = ("main", "master", "trunk", "develop")
RISK_LABELS: dict[str, RiskLevel] = {
    "risk:low": "low",
    "risk:medium": "medium",
    "risk:high": "high",
    "risk:critical": "critical",
}
MAX_CHECKS_READ = 20
"""Maximum checks searched for a risk level; not every check gives one."""


def save_facts(facts: Sequence[Fact], store: Store, agents: AgentSignsByName) -> list[PullRequest]:
    """Save facts, and return the pull requests they are about in their current state."""
    pull_keys = add_facts(facts, store)
    return [pull for key in pull_keys if (pull := refresh_pull(*key, store, agents)) is not None]


def add_facts(facts: Sequence[Fact], store: Store) -> list[tuple[str, int]]:
    """Save facts without secrets, and return the repository and number of each pull request."""
    redacted_facts = [redact_record(fact)[0] for fact in facts]
    store.pulls.add_facts(redacted_facts, events_from_fact)
    return store.pulls.find_touched_pulls(redacted_facts)


def refresh_pull(
    repo: str, number: int, store: Store, agents: AgentSignsByName
) -> PullRequest | None:
    """Rebuild a pull request, link it to its attempt, and save what became of the work."""
    facts = store.pulls.list_facts(repo, number)
    unlinked = build_pull_request(facts, number, agents)
    if unlinked is None:
        return None
    linked = find_recorded_attempt(unlinked, store)
    recorded = load_recorded_work(linked, store) if linked else None
    pull = build_pull_request(facts, number, agents, recorded) if recorded else unlinked
    assert pull is not None
    if pull.signs and linked is None:
        pull = replace(pull, attempt=_save_placeholder(pull, store))
    pull = add_change_size(pull, store)
    risk = load_checked_risk(pull, store)
    row = replace(
        build_pull_row(pull),
        risk=labelled_risk(pull) or (risk.level if risk else None),
        has_change=load_pull_change(pull, store) is not None,
    )
    stored_row = store.pulls.save_pull(row, lambda old: [*events_from_change(old, row, pull)])
    if pull.attempt is not None:
        store.pulls.save_delivery(build_delivery(pull, store))
    if stored_row and stored_row.attempt and stored_row.attempt != pull.attempt:
        # The work behind it is now recorded: the placeholder has no meaning any more.
        store.pulls.save_delivery(Delivery(attempt=stored_row.attempt, at=pull.told))
        for sibling in _other_pulls_of(stored_row.attempt, pull, store)[:1]:
            refresh_pull(sibling.repo, sibling.pull, store, agents)
        for review in store.reviews.list_reviews(item=f"{repo}#{number}"):
            store.reviews.save_review(review)  # its scores belong to the work known now
    return pull


def load_pull(repo: str, number: int, store: Store, agents: AgentSignsByName) -> PullRequest:
    """Return a complete pull request; raise BadInput if there is none."""
    row = store.pulls.load_pull(repo, number)
    facts = store.pulls.list_facts(repo, number)
    pull = build_pull_request(facts, number, agents)
    if pull is None:
        raise BadInput(f"No pull request {repo}#{number}: `closeloop list pulls` lists them.")
    pull = add_change_size(pull, store)
    attempt = row.attempt if row else None
    if attempt in (None, placeholder_id(pull)):
        return replace(pull, attempt=attempt)
    assert attempt is not None
    recorded = load_recorded_work(attempt, store)
    return add_change_size(build_pull_request(facts, number, agents, recorded) or pull, store)


def refresh_all_pulls(store: Store, agents: AgentSignsByName) -> int:
    """Rebuild the pull requests that another version of the code built, and return how many."""
    old = [row for row in store.pulls.list_pulls() if row.version != compute_version()]
    for row in old:
        refresh_pull(row.repo, row.pull, store, agents)
    return len(old)


def build_pull_row(pull: PullRequest) -> PullRow:
    """Return a pull request's row in lists."""
    return PullRow(
        repo=pull.repo,
        pull=pull.number,
        source=pull.source,
        title=pull.title,
        url=pull.url,
        author=pull.author,
        asked_by=pull.asked_by,
        agent=pull.agent,
        attempt=pull.attempt,
        task=pull.task,
        prompt=pull.prompt,
        state=pull.state,
        draft=pull.draft,
        branch=pull.branch,
        head=pull.head,
        merge_commit=pull.merge_commit,
        opened=pull.opened,
        closed=pull.merged or pull.closed,
        told=pull.told,
        rounds=len(pull.rounds),
        comments=count_remarks(pull),
        edits=len(pull.edits),
        pointers=len(pull.pointers),
        first_push=pull.first_push,
        last_push=pull.last_push,
        risk=labelled_risk(pull),
        reviewed=pull.reviewed,
        files=pull.files_changed,
        added=pull.added,
        removed=pull.removed,
        version=pull.version,
    )


def load_pull_change(pull: PullRequest, store: Store) -> Change | None:
    """Return the diff of its newest commit; of a branch without pushes, that of the attempt."""
    change = store.pulls.load_change(pull.repo, pull.number, pull.head) if pull.head else None
    if change is None and pull.attempt and not pull.edits and len(pull.pushes) <= 1:
        change = store.load_change(pull.attempt)
    return change if change is not None and change.files else None


def add_change_size(pull: PullRequest, store: Store) -> PullRequest:
    """Return it with the sizes of its diff, if no fact gives them."""
    edits = pull.files or ()
    is_known = bool(edits) and all(file.added is not None for file in edits)
    added = sum(file.added or 0 for file in edits) if is_known else None
    removed = sum(file.removed or 0 for file in edits) if is_known else None
    files = len(edits) or None
    size = store.pulls.load_change_size(pull.repo, pull.number, pull.head) if pull.head else None
    if size is not None:
        files, added, removed = size
    return replace(
        pull,
        files_changed=files if pull.files_changed is None else pull.files_changed,
        added=added if pull.added is None else pull.added,
        removed=removed if pull.removed is None else pull.removed,
    )


# The work behind it


def find_recorded_attempt(pull: PullRequest, store: Store) -> str | None:
    """Return the attempt that a pull request came from: by branch, trailer, or mention of its URL.

    A branch of a fork does not count: anybody can choose its name.
    """
    branch = "" if pull.fork else pull.branch or ""
    if branch.startswith("closeloop/"):
        name = branch.rpartition("/")[2]
        if store.pulls.has_attempt(name) and _has_delivered_commit(pull, name, store):
            return name
    if (trailer_attempt := _attempt_in_trailers(pull, store)) is not None:
        return trailer_attempt
    placeholder = placeholder_id(pull)
    for name in store.pulls.attempts_naming(pull.url) if pull.url else ():
        if name != placeholder:
            return name
    if branch in ("", pull.base, *MAIN_BRANCHES):
        return None
    for name, repo, started in store.pulls.attempts_on_branch(branch):
        if (
            name != placeholder
            and _is_same_repo(repo, pull.repo)
            and _started_before(started, pull.opened)
        ):
            return name
    return None


def _attempt_in_trailers(pull: PullRequest, store: Store) -> str | None:
    """Return the attempt that a trailer names, if only this pull request has its delivered commit.

    Anybody can copy a trailer, and a cherry-picked commit has it too.
    """
    texts = (pull.body, *(commit.message for commit in pull.commits))
    lines = [] if pull.fork else [line for text in texts for line in parse_trailers(text)]
    for key, name in reversed(lines):  # ours is the last, after text that anybody may have written
        if key == ATTEMPT_TRAILER.lower() and store.pulls.has_attempt(name):
            branch = _load_delivery_branch(name, store)
            is_ours = branch is not None and _contains_commit(pull, branch.commit)
            return name if is_ours and not _other_pulls_of(name, pull, store) else None
    return None


def _has_delivered_commit(pull: PullRequest, attempt: str, store: Store) -> bool:
    """Return whether the commit of `closeloop deliver` is or was in it; True if none is known."""
    branch = _load_delivery_branch(attempt, store)
    return branch is None or _contains_commit(pull, branch.commit)


def _load_delivery_branch(attempt: str, store: Store) -> DeliveryBranch | None:
    return store.steps.load_step(delivery_step_key(attempt, "branched"), DeliveryBranch)


def _contains_commit(pull: PullRequest, commit: str) -> bool:
    moves = (sha for push in pull.pushes for sha in (push.before, push.after))
    return commit in (pull.head, *moves, *(commit.sha for commit in pull.commits))


def _other_pulls_of(attempt: str, pull: PullRequest, store: Store) -> list[PullRow]:
    """Return the other pull requests that came from an attempt."""
    rows = store.pulls.list_pulls(attempt=attempt)
    return [row for row in rows if (row.repo, row.pull) != (pull.repo, pull.number)]


def load_recorded_work(attempt: str, store: Store) -> RecordedWork:
    """Return which program did a piece of work, and who ran it."""
    work = store.load_attempt(attempt)
    variant = store.load_variant(work.variant) if work.variant else None
    session = None if variant else store.load_session(attempt)
    agent = variant.agent if variant else session.agent if session else None
    return RecordedWork(
        attempt=attempt,
        agent=None if agent == UNKNOWN_AGENT else agent,
        user=work.user,
        delivered=bool(store.steps.list_steps(delivery_step_key(attempt, "requested"))),
    )


def _is_same_repo(address: str | None, repo: str) -> bool:
    """Return whether a clone's address, such as `git@host:owner/name.git`, is that of a
    repository."""
    return address is not None and repository_name(address).lower() == repo.lower()


def _started_before(started: datetime | None, opened: datetime) -> bool:
    return started is not None and started <= opened


def placeholder_id(pull: PullRequest) -> str:
    """Return the id of the attempt that stands for unrecorded work."""
    return content_digest("pull request", pull.source, pull.repo, pull.number)[:12]


def _save_placeholder(pull: PullRequest, store: Store) -> str:
    """Save an attempt for work that is known only by its pull request, and return its id."""
    name = placeholder_id(pull)
    if not store.pulls.has_attempt(name):
        attempt = Attempt(
            id=name,
            origin="production",
            task=pull.task,
            variant=_find_variant(pull, store),
            started=pull.opened,
            exit="finished",
            branch=pull.branch,
            repo=pull.repo,
            user=pull.asked_by,
            links={"pull request": pull.url} if pull.url else {},
        )
        session = Session(
            id=f"{pull.repo}#{pull.number}",
            agent=pull.agent or "agent",
            trace=Trace(reader="pull-request", reader_version=1),
            started=pull.opened,
            branch=pull.branch,
            links=attempt.links,
        )
        store.pulls.save_pull_attempt(attempt, session, pull.title)
    return name


def _find_variant(pull: PullRequest, store: Store) -> str | None:
    """Return the only variant with the prompt that the commits name, if there is exactly one."""
    if pull.prompt is None or len(pull.prompt) < MIN_PROMPT_ID_CHARS:
        return None
    matching_keys = [
        key
        for key, variant in store.numbers.load_variants().items()
        if variant.prompt and variant.prompt.startswith(pull.prompt)
    ]
    return matching_keys[0] if len(matching_keys) == 1 else None


# Human decisions


def build_delivery(pull: PullRequest, store: Store) -> Delivery:
    """Return what people did with the work; the counts of repeated mistakes stay as stored."""
    assert pull.attempt is not None
    before = store.pulls.load_delivery(pull.attempt)
    attempt = store.load_attempt(pull.attempt)
    started = attempt.started if attempt.id != placeholder_id(pull) else None
    has_ended = pull.state != "open"
    merged = pull.state == "merged"
    end = pull.merged or pull.closed if has_ended else None
    # Git alone does not record review comments.
    knows_reviews = pull.source != "git"
    # If passing is unknown, only changes fixed by people would count, all as failures.
    is_judged = has_passed(pull.last_push) is not None or attempt.origin == "experiment"
    was_examined = bool(pull.edits) or (merged and bool(pull.commits))
    paths = [file.path for file in pull.files or ()]
    risk = load_checked_risk(pull, store)
    return Delivery(
        attempt=pull.attempt,
        at=pull.told,
        passed=has_passed(pull.last_push),
        merged=merged if has_ended else None,
        corrected=bool(pull.edits) if was_examined and is_judged else None,
        reviewed=pull.reviewed if has_ended and knows_reviews else None,
        seconds_in_review=(end - pull.opened).total_seconds() if end and knows_reviews else None,
        cycles=len(pull.rounds) if has_ended and knows_reviews else None,
        regressed=bool(pull.pointers) if merged else None,
        files=pull.files_changed if pull.files_changed is not None else len(paths) or None,
        modules=len({package_folder(path) for path in paths}) or None,
        dependents=count_dependents(risk) if risk else None,
        risk=labelled_risk(pull) or (risk.level if risk else None),
        first_review=merged and not pull.rounds
        if has_ended and knows_reviews and pull.reviewed
        else None,
        first_push=has_passed(pull.first_push),
        comments=count_remarks(pull) if has_ended and knows_reviews else None,
        seconds_to_open=_seconds_between(started, pull.opened),
        repeated=before.repeated if before else None,
        repeated_unconfirmed=before.repeated_unconfirmed if before else None,
    )


def _seconds_between(started: datetime | None, opened: datetime) -> float | None:
    """Return the seconds; None if the work began after the pull request, so is not its source."""
    return None if started is None or started > opened else (opened - started).total_seconds()


def labelled_risk(pull: PullRequest) -> RiskLevel | None:
    """Return the risk level that a check put on it as a label."""
    return next((RISK_LABELS[label] for label in pull.labels if label in RISK_LABELS), None)


def load_checked_risk(pull: PullRequest, store: Store) -> Risk | None:
    """Return the risk from the last check with a level, of the attempt or of its final commit."""
    reports = store.reports.list_reports(MAX_CHECKS_READ, attempt=pull.attempt)
    if pull.head:
        reports += store.reports.list_reports(MAX_CHECKS_READ, repo=pull.repo, head=pull.head)
    row = next((report for report in reports if report.level), None)
    stored = store.reports.load_report(row.number) if row else None
    return stored[1].risk if stored else None


def count_dependents(risk: Risk) -> int | None:
    """Return how many files import what the change touches; None if that was not checked."""
    if any(missing.rule == "dependents" for missing in risk.unmeasured):
        return None
    return next(
        (int(factor.value or 0) for factor in risk.factors if factor.name == "dependents"), 0
    )


def has_passed(result: str | None) -> bool | None:
    return {"passed": True, "failed": False}.get(result or "")
