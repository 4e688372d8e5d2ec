"""Pull requests in GitHub's words, as its API and its webhooks say them, turned into facts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from closeloop.records.pull_request import (
    CheckResult,
    CiCheck,
    Fact,
    FileEdit,
    PullCommit,
    PullDescription,
    Review,
    ReviewComment,
    ReviewState,
)
from closeloop.records.record import Record, content_digest
from closeloop.reviews.pull_facts import MAX_ITEMS, MAX_TEXT_CHARS, FactBuilder

MAX_HUNK_CHARS = 4_000
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
    """A pull request; some answers leave the sizes out."""

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
    """A comment on lines, or on the whole."""

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
    """A check run, a check suite or a run of a workflow."""

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
    """A file of a commit or a pull request; large and binary ones come without their patch."""

    filename: str
    previous_filename: str | None = None
    status: str = "modified"
    patch: str | None = None
    additions: int | None = None
    deletions: int | None = None


class GithubCommit(Record):
    """A commit as the API lists it; asked for alone, it has its files."""

    sha: str
    commit: GithubCommitDetails = GithubCommitDetails()
    author: GithubUser | None = None
    parents: tuple[GithubCommitParent, ...] = ()
    files: tuple[GithubFile, ...] | None = None


def is_github_bot(user: GithubUser | None) -> bool:
    return user is not None and (user.type == "Bot" or user.login.endswith("[bot]"))


def user_login(user: GithubUser | None) -> str | None:
    """None for an account that is gone."""
    return user.login or None if user else None


class GithubFacts(FactBuilder):
    """Says what GitHub says."""

    source = "github"

    def pull_facts(self, pull: GithubPull) -> Iterator[Fact]:
        """What a pull request says of itself, and of others that it takes back or repairs."""
        at = pull.updated_at or pull.merged_at or pull.closed_at or pull.created_at
        description = describe_github_pull(pull, self.repo)
        name = ("description", pull.number, at.isoformat(), content_digest(description)[:16])
        fact = self.make_fact(description, at, *name, pull=pull.number, sha=pull.head.sha)
        # A branch of a fork may be called like one of ours.
        yield fact if description.fork else replace(fact, branch=description.branch)
        if description.state == "merged":
            text = f"{description.title}\n\n{description.body}"
            yield from self.pointer_facts(text, f"#{pull.number}", description.merged or at)

    def review_fact(self, number: int, review: GithubReview, at: datetime | None) -> Fact:
        when = review.submitted_at or at or self.heard
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
        return self.make_fact(submitted_review, at or when, *key, pull=number)

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
        at = remark.updated_at or remark.created_at
        key = ("comment", name, at.isoformat(), content_digest(comment.body, deleted)[:12])
        return self.make_fact(comment, at, *key, pull=number)

    def check_fact(self, kind: str, run: GithubCheckRun) -> Fact:
        at = run.completed_at or run.updated_at or run.started_at or run.created_at or self.heard
        name = run.name or (run.app.slug if run.app else "") or "unnamed"
        check = CiCheck(
            sha=run.head_sha,
            name=name if kind == "check_run" else f"{kind}: {name}",
            at=at,
            result=to_check_result(run.status, run.conclusion),
            conclusion=run.conclusion,
        )
        key = ("check", kind, run.id, check.result, at.isoformat())
        return self.make_fact(check, at, *key, sha=run.head_sha)

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
        # Of a fork that is gone there is none.
        fork=home is None or (home is not UNSET and home.full_name.lower() != repo.lower()),
        base=pull.base.ref or None,
        head=pull.head.sha or None,
        # Before the merge, GitHub names a commit that only tries it.
        merge_commit=pull.merge_commit_sha if merged else None,
        labels=tuple(label.name for label in pull.labels[:MAX_ITEMS]),
        assignees=tuple(
            one.login for one in pull.assignees[:MAX_ITEMS] if one.login and not is_github_bot(one)
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
    """What a check says; a word that is not known is no failure."""
    if conclusion == "success":
        return "passed"
    if conclusion in FAILED_CONCLUSIONS:
        return "failed"
    if conclusion == "action_required":
        return "running"
    return "running" if conclusion is None and status != "completed" else "skipped"
