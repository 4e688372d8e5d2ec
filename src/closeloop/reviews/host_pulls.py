"""Convert webhooks and API replies of GitHub and GitLab into facts about pull requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from closeloop.records.errors import BadInput
from closeloop.records.pull_request import (
    CheckResult,
    CiCheck,
    CommentThread,
    Fact,
    FileEdit,
    PullCommit,
    PullDescription,
    PullRequestState,
    Push,
    Review,
    ReviewComment,
    ReviewState,
)
from closeloop.records.record import Record, content_digest
from closeloop.reviews.pull_facts import (
    MAX_ITEMS,
    MAX_TEXT_CHARS,
    NO_COMMIT,
    FactBuilder,
    pushed_file_edits,
)

# Convert pull requests of GitHub's API and webhooks into facts.


MAX_HUNK_CHARS = 4_000
TEAM_ASSOCIATIONS = ("OWNER", "MEMBER", "COLLABORATOR")
"""Author associations on GitHub that have write access."""
FAILED_CONCLUSIONS = ("failure", "timed_out", "startup_failure", "error")
REVIEW_STATES: dict[str, ReviewState] = {
    "approved": "approved",
    "changes_requested": "changes_requested",
    "dismissed": "dismissed",
}


class GithubUser(Record):
    login: str = ""
    type: str = ""


class GithubLabel(Record):
    name: str = ""


class GithubRepository(Record):
    full_name: str
    default_branch: str = ""
    pushed_at: int | str | None = None


class GithubHeadRepository(Record):
    full_name: str = ""


class GithubPullEnd(Record):
    ref: str = ""
    sha: str = ""
    repo: GithubHeadRepository | UnsetType | None = UNSET


class GithubPull(Record):
    """A pull request on GitHub; some replies omit the sizes."""

    number: int
    title: str = ""
    body: str | None = None
    state: str = "open"
    draft: bool | None = None
    user: GithubUser | None = None
    labels: tuple[GithubLabel, ...] = ()
    assignees: tuple[GithubUser, ...] = ()
    head: GithubPullEnd = GithubPullEnd()
    base: GithubPullEnd = GithubPullEnd()
    created_at: datetime
    updated_at: datetime | None = None
    closed_at: datetime | None = None
    merged_at: datetime | None = None
    merged_by: GithubUser | None = None
    merge_commit_sha: str | None = None
    author_association: str | None = None
    html_url: str | None = None
    additions: int | None = None
    deletions: int | None = None
    changed_files: int | None = None


class GithubReview(Record):
    id: int
    user: GithubUser | None = None
    body: str | None = None
    state: str = ""
    submitted_at: datetime | None = None
    commit_id: str | None = None


class GithubComment(Record):
    """A comment on lines, or on the whole pull request."""

    id: int
    user: GithubUser | None = None
    body: str | None = None
    created_at: datetime
    updated_at: datetime | None = None
    path: str | None = None
    line: int | None = None
    original_line: int | None = None
    diff_hunk: str | None = None
    commit_id: str | None = None
    pull_request_review_id: int | None = None
    in_reply_to_id: int | None = None


class GithubApp(Record):
    slug: str = ""


class GithubCheckRun(Record):
    """A check run, a check suite or a workflow run."""

    id: int
    head_sha: str
    name: str | None = None
    status: str | None = None
    conclusion: str | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    app: GithubApp | None = None


class GithubSignature(Record):
    name: str = ""
    email: str = ""
    date: datetime | None = None


class GithubCommitDetails(Record):
    message: str = ""
    author: GithubSignature | None = None
    committer: GithubSignature | None = None


class GithubCommitParent(Record):
    sha: str = ""


class GithubFile(Record):
    """A file of a commit or a pull request; large and binary ones have no patch."""

    filename: str
    previous_filename: str | None = None
    status: str = "modified"
    patch: str | None = None
    additions: int | None = None
    deletions: int | None = None


class GithubCommit(Record):
    """A commit as the API lists it; fetched individually, it has its files."""

    sha: str
    commit: GithubCommitDetails = GithubCommitDetails()
    author: GithubUser | None = None
    parents: tuple[GithubCommitParent, ...] = ()
    files: tuple[GithubFile, ...] | None = None


def is_github_bot(user: GithubUser | None) -> bool:
    return user is not None and (user.type == "Bot" or user.login.endswith("[bot]"))


def user_login(user: GithubUser | None) -> str | None:
    """Return the account's name; None if the account was deleted."""
    return user.login or None if user else None


class GithubFacts(FactBuilder):
    """Builds facts from GitHub's data."""

    source = "github"

    def pull_facts(self, pull: GithubPull) -> Iterator[Fact]:
        """Yield the facts of a pull request, and of others that it reverts or fixes."""
        updated_at = pull.updated_at or pull.merged_at or pull.closed_at or pull.created_at
        description = describe_github_pull(pull, self.repo)
        name = (
            "description",
            pull.number,
            updated_at.isoformat(),
            content_digest(description)[:16],
        )
        fact = self.make_fact(description, updated_at, *name, pull=pull.number, sha=pull.head.sha)
        # A branch of a fork may have the name of one of ours.
        yield fact if description.fork else replace(fact, branch=description.branch)
        if description.state == "merged":
            text = f"{description.title}\n\n{description.body}"
            yield from self.pointer_facts(text, f"#{pull.number}", description.merged or updated_at)

    def review_fact(self, number: int, review: GithubReview, updated_at: datetime | None) -> Fact:
        when = review.submitted_at or updated_at or self.heard
        submitted_review = Review(
            id=str(review.id),
            by=user_login(review.user),
            bot=is_github_bot(review.user),
            state=REVIEW_STATES.get(review.state.lower(), "commented"),
            body=(review.body or "")[:MAX_TEXT_CHARS],
            sha=review.commit_id,
            at=when,
        )
        key = (
            "review",
            review.id,
            submitted_review.state,
            content_digest(submitted_review.body)[:12],
        )
        return self.make_fact(submitted_review, updated_at or when, *key, pull=number)

    def comment_fact(self, number: int, remark: GithubComment, *, deleted: bool = False) -> Fact:
        on_lines = remark.path is not None
        name = f"{'line' if on_lines else 'whole'}-{remark.id}"
        answered = remark.in_reply_to_id
        comment = ReviewComment(
            id=name,
            by=user_login(remark.user),
            bot=is_github_bot(remark.user),
            body=(remark.body or "")[:MAX_TEXT_CHARS],
            at=remark.created_at,
            path=remark.path,
            line=remark.line or remark.original_line,
            hunk=remark.diff_hunk and remark.diff_hunk[:MAX_HUNK_CHARS],
            sha=remark.commit_id,
            review=str(remark.pull_request_review_id) if remark.pull_request_review_id else None,
            answers=f"line-{answered}" if answered else None,
            deleted=deleted,
        )
        changed_at = remark.updated_at or remark.created_at
        key = ("comment", name, changed_at.isoformat(), content_digest(comment.body, deleted)[:12])
        return self.make_fact(comment, changed_at, *key, pull=number)

    def check_fact(self, kind: str, run: GithubCheckRun) -> Fact:
        finished_at = (
            run.completed_at or run.updated_at or run.started_at or run.created_at or self.heard
        )
        name = run.name or (run.app.slug if run.app else "") or "unnamed"
        check = CiCheck(
            sha=run.head_sha,
            name=name if kind == "check_run" else f"{kind}: {name}",
            at=finished_at,
            result=to_check_result(run.status, run.conclusion),
            conclusion=run.conclusion,
        )
        key = ("check", kind, run.id, check.result, finished_at.isoformat())
        return self.make_fact(check, finished_at, *key, sha=run.head_sha)

    def commit_fact(self, number: int, commit: GithubCommit) -> Fact:
        inner = commit.commit
        signed = inner.author or GithubSignature()
        dated = inner.committer or signed
        listed_commit = PullCommit(
            sha=commit.sha,
            at=dated.date or signed.date or self.heard,
            message=inner.message[:MAX_TEXT_CHARS],
            author=user_login(commit.author) or signed.name or None,
            email=signed.email or None,
            bot=is_github_bot(commit.author),
            merge=len(commit.parents) > 1,
            files=None if commit.files is None else to_file_edits(commit.files),
        )
        key = ("commit", commit.sha, *(["files"] if listed_commit.files is not None else []))
        return self.make_fact(listed_commit, listed_commit.at, *key, pull=number, sha=commit.sha)


def describe_github_pull(pull: GithubPull, repo: str) -> PullDescription:
    merged = pull.merged_at is not None
    home = pull.head.repo
    return PullDescription(
        title=pull.title[:MAX_TEXT_CHARS],
        body=(pull.body or "")[:MAX_TEXT_CHARS],
        url=pull.html_url,
        author=user_login(pull.user),
        bot=is_github_bot(pull.user),
        state="merged" if merged else "open" if pull.state == "open" else "closed",
        draft=bool(pull.draft),
        branch=pull.head.ref or None,
        # A deleted fork has none.
        fork=home is None or (home is not UNSET and home.full_name.lower() != repo.lower()),
        member=pull.author_association in TEAM_ASSOCIATIONS,
        base=pull.base.ref or None,
        head=pull.head.sha or None,
        # Before the merge, GitHub reports the commit of a test merge.
        merge_commit=pull.merge_commit_sha if merged else None,
        labels=tuple(label.name for label in pull.labels[:MAX_ITEMS]),
        assignees=tuple(
            assignee.login
            for assignee in pull.assignees[:MAX_ITEMS]
            if assignee.login and not is_github_bot(assignee)
        ),
        opened=pull.created_at,
        closed=pull.closed_at,
        merged=pull.merged_at,
        merged_by=user_login(pull.merged_by),
        files=pull.changed_files,
        added=pull.additions,
        removed=pull.deletions,
    )


def to_file_edits(files: tuple[GithubFile, ...]) -> tuple[FileEdit, ...]:
    return tuple(
        FileEdit(path=file.filename, added=file.additions, removed=file.deletions)
        for file in files[:MAX_ITEMS]
    )


def to_check_result(status: str | None, conclusion: str | None) -> CheckResult:
    """Return the result of a check; an unknown conclusion is not a failure."""
    if conclusion == "success":
        return "passed"
    if conclusion in FAILED_CONCLUSIONS:
        return "failed"
    if conclusion == "action_required":
        return "running"
    return "running" if conclusion is None and status != "completed" else "skipped"


# GitHub's webhooks: each event becomes facts, in any order.


class _WebhookIssue(Record):
    number: int
    pull_request: dict[str, Any] | None = None
    """None for an issue."""


class _WebhookCommentId(Record):
    id: int


class _WebhookThread(Record):
    comments: tuple[_WebhookCommentId, ...] = ()


class _WebhookAuthor(Record):
    name: str = ""
    email: str | None = None
    username: str | None = None


class _WebhookCommit(Record):
    id: str
    message: str = ""
    timestamp: datetime | None = None
    author: _WebhookAuthor = _WebhookAuthor()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    modified: tuple[str, ...] = ()


class _WebhookPayload(Record):
    """The parts of a webhook payload that are read; each kind of event has some of them."""

    repository: GithubRepository
    action: str = ""
    sender: GithubUser | None = None
    pull_request: GithubPull | None = None
    review: GithubReview | None = None
    comment: GithubComment | None = None
    issue: _WebhookIssue | None = None
    thread: _WebhookThread | None = None
    check_run: GithubCheckRun | None = None
    check_suite: GithubCheckRun | None = None
    workflow_run: GithubCheckRun | None = None
    ref: str = ""
    before: str | None = None
    after: str | None = None
    forced: bool = False
    deleted: bool = False
    commits: tuple[_WebhookCommit, ...] = ()
    head_commit: _WebhookCommit | None = None


_github_decoder = msgspec.json.Decoder(_WebhookPayload)


def read_github_event(event: str, body: bytes, received_at: datetime) -> list[Fact]:
    """Return the facts of one delivery; raise BadInput if it does not match its event."""
    try:
        payload = _github_decoder.decode(body)
        return list(
            GITHUB_EVENTS[event](payload, GithubFacts(payload.repository.full_name, received_at))
        )
    except (ValueError, OverflowError, RecursionError) as error:
        raise BadInput(f"A delivery of {event!r} is not in GitHub's format: {error}.") from error


def _pull_request_facts(payload: _WebhookPayload, builder: GithubFacts) -> Iterator[Fact]:
    pull = payload.pull_request
    if pull is None:
        return
    yield from builder.pull_facts(pull)
    if payload.action == "opened" and pull.head.sha:
        yield builder.push_fact(pull.number, Push(after=pull.head.sha, at=pull.created_at))
    if payload.action == "synchronize" and payload.after:
        moved = Push(
            after=payload.after,
            before=payload.before,
            at=pull.updated_at or builder.heard,
            by=user_login(payload.sender),
        )
        yield builder.push_fact(pull.number, moved)


def _review_facts(payload: _WebhookPayload, builder: GithubFacts) -> Iterator[Fact]:
    pull, review = payload.pull_request, payload.review
    if pull is not None and review is not None:
        yield from builder.pull_facts(pull)
        # Only a dismissal is later than the review itself.
        late = payload.action in ("dismissed", "edited")
        yield builder.review_fact(pull.number, review, pull.updated_at if late else None)


def _line_comment_facts(payload: _WebhookPayload, builder: GithubFacts) -> Iterator[Fact]:
    pull, comment = payload.pull_request, payload.comment
    if pull is not None and comment is not None:
        yield from builder.pull_facts(pull)
        yield builder.comment_fact(pull.number, comment, deleted=payload.action == "deleted")


def _comment_facts(payload: _WebhookPayload, builder: GithubFacts) -> Iterator[Fact]:
    issue, comment = payload.issue, payload.comment
    if issue is not None and issue.pull_request is not None and comment is not None:
        yield builder.comment_fact(issue.number, comment, deleted=payload.action == "deleted")


def _thread_facts(payload: _WebhookPayload, builder: GithubFacts) -> Iterator[Fact]:
    pull, thread = payload.pull_request, payload.thread
    if pull is None or thread is None:
        return
    yield from builder.pull_facts(pull)
    changed_at = pull.updated_at or builder.heard
    names = tuple(f"line-{comment.id}" for comment in thread.comments[:MAX_ITEMS])
    resolution = CommentThread(comments=names, resolved=payload.action == "resolved")
    key = ("thread", *names[:1], resolution.resolved, changed_at.isoformat())
    yield builder.make_fact(resolution, changed_at, *key, pull=pull.number)


def _check_reader(kind: str) -> Callable[[_WebhookPayload, GithubFacts], Iterator[Fact]]:
    def read_checks(payload: _WebhookPayload, builder: GithubFacts) -> Iterator[Fact]:
        run: GithubCheckRun | None = getattr(payload, kind)
        if run is not None:
            yield builder.check_fact(kind, run)

    return read_checks


def _github_push_facts(payload: _WebhookPayload, builder: GithubFacts) -> Iterator[Fact]:
    """Yield the pushed commits of a branch; of the main line, what they revert or fix."""
    branch = payload.ref.removeprefix("refs/heads/")
    if branch == payload.ref or payload.deleted or not payload.after:
        return
    pushed_at = _push_time(payload, builder)
    if branch == payload.repository.default_branch:
        for commit in payload.commits[:MAX_ITEMS]:
            yield from builder.pointer_facts(
                commit.message, commit.id, commit.timestamp or pushed_at
            )
        return
    before = None if payload.before == NO_COMMIT else payload.before
    moved = Push(
        after=payload.after,
        before=before,
        at=pushed_at,
        by=user_login(payload.sender),
        forced=payload.forced,
        commits=tuple(commit.id for commit in payload.commits[:MAX_ITEMS]),
    )
    key = ("push", branch, before, payload.after, int(pushed_at.timestamp()))
    yield _set_branch(builder.make_fact(moved, pushed_at, *key, sha=payload.after), branch)
    for commit in payload.commits[:MAX_ITEMS]:
        yield _set_branch(_commit_fact(commit, pushed_at, builder), branch)


def _commit_fact(commit: _WebhookCommit, pushed_at: datetime, builder: GithubFacts) -> Fact:
    author = commit.author
    pushed_commit = PullCommit(
        sha=commit.id,
        at=commit.timestamp or pushed_at,
        message=commit.message[:MAX_TEXT_CHARS],
        author=author.username or author.name or None,
        email=author.email,
        bot=(author.username or "").endswith("[bot]"),
        merge=commit.message.startswith(("Merge branch ", "Merge remote-tracking ")),
        files=pushed_file_edits(commit.added, commit.modified, commit.removed),
    )
    return builder.make_fact(
        pushed_commit, pushed_commit.at, "commit", commit.id, "pushed", sha=commit.id
    )


def _set_branch(fact: Fact, branch: str) -> Fact:
    return msgspec.structs.replace(fact, branch=branch)


def _push_time(payload: _WebhookPayload, builder: GithubFacts) -> datetime:
    """Return when a push arrived; its commits may be much older."""
    pushed = payload.repository.pushed_at
    if isinstance(pushed, int) and 0 < pushed < 1 << 33:
        return datetime.fromtimestamp(pushed, UTC)
    last = payload.head_commit
    return last.timestamp if last and last.timestamp else builder.heard


GITHUB_EVENTS: dict[str, Callable[[_WebhookPayload, GithubFacts], Iterator[Fact]]] = {
    "pull_request": _pull_request_facts,
    "pull_request_review": _review_facts,
    "pull_request_review_comment": _line_comment_facts,
    "pull_request_review_thread": _thread_facts,
    "issue_comment": _comment_facts,
    "check_run": _check_reader("check_run"),
    "check_suite": _check_reader("check_suite"),
    "workflow_run": _check_reader("workflow_run"),
    "push": _github_push_facts,
}
"""Events that are read; others are acknowledged and counted."""


# Convert merge requests of GitLab's webhooks and API into facts.


GITLAB_STATES: dict[str, PullRequestState] = {
    "opened": "open",
    "locked": "open",
    "merged": "merged",
}
PIPELINE_RESULTS: dict[str, CheckResult] = {
    "success": "passed",
    "failed": "failed",
    "canceled": "skipped",
    "skipped": "skipped",
    "manual": "skipped",
}
_BOT_NAME = re.compile(r"(?:project|group)_\d{1,12}_bot")


class GitlabUser(Record):
    id: int | None = None
    username: str = ""
    name: str = ""


class GitlabProject(Record):
    path_with_namespace: str = ""
    default_branch: str | None = None


class GitlabLabel(Record):
    title: str = ""


class GitlabAuthor(Record):
    name: str = ""
    email: str = ""


class GitlabCommit(Record):
    """A commit, as in a push event or as the API lists it."""

    id: str
    message: str = ""
    timestamp: str | None = None
    committed_date: str | None = None
    author: GitlabAuthor | None = None
    author_name: str = ""
    author_email: str = ""
    parent_ids: tuple[str, ...] = ()
    added: tuple[str, ...] | None = None
    modified: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class GitlabPosition(Record):
    new_path: str | None = None
    old_path: str | None = None
    new_line: int | None = None
    old_line: int | None = None
    head_sha: str | None = None


class GitlabAttributes(Record):
    """The subject of an event: a merge request, a note or a pipeline."""

    id: int | None = None
    iid: int | None = None
    title: str = ""
    description: str | None = None
    state: str = ""
    action: str = ""
    draft: bool | None = None
    source_branch: str | None = None
    target_branch: str | None = None
    source_project_id: int | None = None
    target_project_id: int | None = None
    last_commit: GitlabCommit | None = None
    oldrev: str | None = None
    merge_commit_sha: str | None = None
    squash_commit_sha: str | None = None
    created_at: str | None = None
    updated_at: str | None = None
    url: str | None = None
    author_id: int | None = None
    note: str = ""
    discussion_id: str | None = None
    system: bool = False
    position: GitlabPosition | None = None
    ref: str | None = None
    sha: str | None = None
    status: str = ""
    finished_at: str | None = None
    source: str = ""


class GitlabPayload(Record):
    project: GitlabProject = GitlabProject()
    user: GitlabUser | None = None
    user_username: str = ""
    object_attributes: GitlabAttributes = GitlabAttributes()
    merge_request: GitlabAttributes | None = None
    labels: tuple[GitlabLabel, ...] | None = None
    assignees: tuple[GitlabUser, ...] = ()
    ref: str = ""
    before: str = ""
    after: str = ""
    commits: tuple[GitlabCommit, ...] = ()


_gitlab_decoder = msgspec.json.Decoder(GitlabPayload)


def read_gitlab_event(event: str, body: bytes, received_at: datetime) -> list[Fact]:
    """Return the facts of one delivery; raise BadInput if it does not match its event."""
    try:
        payload = _gitlab_decoder.decode(body)
        repo = payload.project.path_with_namespace
        return list(GITLAB_EVENTS[event](payload, GitlabFacts(repo, received_at))) if repo else []
    except (ValueError, OverflowError, RecursionError) as error:
        raise BadInput(f"A delivery of {event!r} is not in GitLab's format: {error}.") from error


def parse_gitlab_time(text: str | None) -> datetime | None:
    """Parse `2026-01-05T09:00:00Z`, or `2026-01-05 09:00:00 UTC`, as GitLab writes it in places."""
    try:
        parsed = datetime.fromisoformat((text or "").replace(" UTC", "+00:00"))
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


class GitlabFacts(FactBuilder):
    """Builds facts from GitLab's data."""

    source = "gitlab"

    def description_facts(
        self, number: int, description: PullDescription, changed_at: datetime
    ) -> Iterator[Fact]:
        name = ("description", number, changed_at.isoformat(), content_digest(description)[:16])
        fact = self.make_fact(
            description, changed_at, *name, pull=number, sha=description.head or ""
        )
        yield fact if description.fork else msgspec.structs.replace(fact, branch=description.branch)
        if description.state == "merged":
            yield from self.pointer_facts(
                f"{description.title}\n\n{description.body}", f"#{number}", changed_at
            )

    def commit_fact(
        self, listed_commit: GitlabCommit, fallback_time: datetime, pull: int | None = None
    ) -> Fact:
        author = listed_commit.author or GitlabAuthor(
            name=listed_commit.author_name, email=listed_commit.author_email
        )
        files = None
        if listed_commit.added is not None:
            files = pushed_file_edits(
                listed_commit.added, listed_commit.modified, listed_commit.removed
            )
        commit = PullCommit(
            sha=listed_commit.id,
            at=parse_gitlab_time(listed_commit.timestamp)
            or parse_gitlab_time(listed_commit.committed_date)
            or fallback_time,
            message=listed_commit.message[:MAX_TEXT_CHARS],
            author=author.name or None,
            email=author.email or None,
            merge=len(listed_commit.parent_ids) > 1
            or listed_commit.message.startswith("Merge branch "),
            files=files,
        )
        key = ("commit", listed_commit.id, "listed" if files is None else "pushed")
        return self.make_fact(commit, commit.at, *key, pull=pull, sha=listed_commit.id)

    def comment_fact(
        self,
        number: int,
        comment: ReviewComment,
        position: GitlabPosition | None,
        changed_at: datetime,
    ) -> Fact:
        """Return a note on the whole or on a position; `changed_at` is when it was last changed."""
        position = position or GitlabPosition()
        comment = msgspec.structs.replace(
            comment,
            body=comment.body[:MAX_TEXT_CHARS],
            path=position.new_path or position.old_path,
            line=position.new_line or position.old_line,
            sha=position.head_sha,
        )
        key = ("comment", comment.id, changed_at.isoformat(), content_digest(comment.body)[:12])
        return self.make_fact(comment, changed_at, *key, pull=number)

    def pipeline_fact(
        self, name: int | None, sha: str, status: str, source: str | None, finished_at: datetime
    ) -> Fact:
        check = CiCheck(
            sha=sha,
            name=f"pipeline: {source or 'push'}",
            at=finished_at,
            result=PIPELINE_RESULTS.get(status, "running"),
            conclusion=status,
        )
        key = ("check", "pipeline", name, check.result, finished_at.isoformat())
        return self.make_fact(check, finished_at, *key, sha=sha)


def is_gitlab_bot(person: GitlabUser | None) -> bool:
    return person is not None and bool(_BOT_NAME.match(person.username))


def name_people(accounts: tuple[GitlabUser, ...]) -> tuple[str, ...]:
    """Return the names of the accounts that are not bots."""
    people = (account for account in accounts[:MAX_ITEMS] if not is_gitlab_bot(account))
    return tuple(person.username for person in people if person.username)


def describe_merge_request(
    payload: GitlabPayload, attributes: GitlabAttributes, builder: GitlabFacts
) -> tuple[PullDescription, datetime]:
    """Return a merge request as an event describes it; GitLab gives only the author's number."""
    opened_at = parse_gitlab_time(attributes.created_at) or builder.heard
    updated_at = parse_gitlab_time(attributes.updated_at) or builder.heard
    state = GITLAB_STATES.get(attributes.state, "closed")
    head = attributes.last_commit.id if attributes.last_commit else None
    user = payload.user
    is_author = user is not None and user.id is not None and user.id == attributes.author_id
    description = PullDescription(
        title=attributes.title[:MAX_TEXT_CHARS],
        body=(attributes.description or "")[:MAX_TEXT_CHARS],
        url=attributes.url,
        author=user.username or None if user and is_author else None,
        bot=is_author and is_gitlab_bot(user),
        state=state,
        draft=bool(attributes.draft),
        branch=attributes.source_branch,
        fork=attributes.source_project_id != attributes.target_project_id,
        base=attributes.target_branch,
        head=head,
        merge_commit=(attributes.squash_commit_sha or attributes.merge_commit_sha)
        if state == "merged"
        else None,
        labels=tuple(label.title for label in (payload.labels or ())[:MAX_ITEMS]),
        assignees=name_people(payload.assignees),
        opened=opened_at,
        closed=updated_at if state != "open" else None,
        merged=updated_at if state == "merged" else None,
        merged_by=user.username or None if user and attributes.action == "merge" else None,
    )
    return description, updated_at


def _merge_request_facts(payload: GitlabPayload, builder: GitlabFacts) -> Iterator[Fact]:
    attributes = payload.object_attributes
    if attributes.iid is None:
        return
    description, updated_at = describe_merge_request(payload, attributes, builder)
    yield from builder.description_facts(attributes.iid, description, updated_at)
    head = description.head
    if attributes.action == "open" and head:
        yield builder.push_fact(attributes.iid, Push(after=head, at=description.opened))
    if attributes.action == "update" and attributes.oldrev and head:
        username = payload.user.username if payload.user else None
        yield builder.push_fact(
            attributes.iid,
            Push(after=head, before=attributes.oldrev, at=updated_at, by=username or None),
        )
    if attributes.action in ("approved", "unapproved") and payload.user:
        reviewer = payload.user
        review = Review(
            id=f"{attributes.iid}-{reviewer.username}-{updated_at.isoformat()}",
            by=reviewer.username or None,
            bot=is_gitlab_bot(reviewer),
            state="approved" if attributes.action == "approved" else "dismissed",
            sha=head,
            at=updated_at,
        )
        yield builder.make_fact(
            review, updated_at, "review", review.id, review.state, pull=attributes.iid
        )


def _note_facts(payload: GitlabPayload, builder: GitlabFacts) -> Iterator[Fact]:
    note, request = payload.object_attributes, payload.merge_request
    if request is None or request.iid is None or note.system:
        return
    created_at = parse_gitlab_time(note.created_at) or builder.heard
    comment = ReviewComment(
        id=f"note-{note.id}",
        by=payload.user.username or None if payload.user else None,
        bot=is_gitlab_bot(payload.user),
        body=note.note,
        at=created_at,
        answers=note.discussion_id,
    )
    yield builder.comment_fact(
        request.iid, comment, note.position, parse_gitlab_time(note.updated_at) or created_at
    )


def _pipeline_facts(payload: GitlabPayload, builder: GitlabFacts) -> Iterator[Fact]:
    attributes = payload.object_attributes
    if attributes.sha is None:
        return
    finished_at = (
        parse_gitlab_time(attributes.finished_at)
        or parse_gitlab_time(attributes.created_at)
        or builder.heard
    )
    yield builder.pipeline_fact(
        attributes.id, attributes.sha, attributes.status, attributes.source, finished_at
    )


def _gitlab_push_facts(payload: GitlabPayload, builder: GitlabFacts) -> Iterator[Fact]:
    branch = payload.ref.removeprefix("refs/heads/")
    if branch == payload.ref or payload.after in ("", NO_COMMIT):
        return
    stamps = [parse_gitlab_time(commit.timestamp) for commit in payload.commits]
    pushed_at = max([stamp for stamp in stamps if stamp] or [builder.heard])
    if branch == payload.project.default_branch:
        for commit in payload.commits[:MAX_ITEMS]:
            yield from builder.pointer_facts(
                commit.message, commit.id, parse_gitlab_time(commit.timestamp) or pushed_at
            )
        return
    before = None if payload.before == NO_COMMIT else payload.before
    push = Push(
        after=payload.after,
        before=before,
        at=pushed_at,
        by=payload.user_username or None,
        commits=tuple(commit.id for commit in payload.commits[:MAX_ITEMS]),
    )
    facts = [
        builder.make_fact(push, pushed_at, "push", branch, before, payload.after, sha=payload.after)
    ]
    facts += [builder.commit_fact(commit, pushed_at) for commit in payload.commits[:MAX_ITEMS]]
    for fact in facts:
        yield msgspec.structs.replace(fact, branch=branch)


GITLAB_EVENTS: dict[str, Callable[[GitlabPayload, GitlabFacts], Iterator[Fact]]] = {
    "Merge Request Hook": _merge_request_facts,
    "Note Hook": _note_facts,
    "Pipeline Hook": _pipeline_facts,
    "Push Hook": _gitlab_push_facts,
}
"""Events that are read; others are acknowledged and counted."""
