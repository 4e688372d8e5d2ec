"""Pull requests in GitHub's words, as its API and its webhooks say them, turned into facts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from msgspec.structs import replace

from closeloop.model.record import Record, digest
from closeloop.model.review import (
    Check,
    CheckResult,
    Comment,
    Commit,
    Description,
    Fact,
    FileEdit,
    Review,
    ReviewState,
)
from closeloop.reviews.pulls_witness import LONGEST, MOST, Witness

LONGEST_HUNK = 4_000
FAILED = ("failure", "timed_out", "startup_failure", "error")
STATES: dict[str, ReviewState] = {
    "approved": "approved",
    "changes_requested": "changes_requested",
    "dismissed": "dismissed",
}


class User(Record):
    login: str = ""
    type: str = ""


class Label(Record):
    name: str = ""


class Repository(Record):
    full_name: str
    default_branch: str = ""
    pushed_at: int | str | None = None


class Home(Record):
    full_name: str = ""


class End(Record):
    ref: str = ""
    sha: str = ""
    repo: Home | None = None


class Pull(Record):
    """A pull request; some answers leave the sizes out."""

    number: int
    title: str = ""
    body: str | None = None
    state: str = "open"
    draft: bool | None = None
    user: User | None = None
    labels: tuple[Label, ...] = ()
    head: End = End()
    base: End = End()
    created_at: datetime
    updated_at: datetime | None = None
    closed_at: datetime | None = None
    merged_at: datetime | None = None
    merged_by: User | None = None
    merge_commit_sha: str | None = None
    html_url: str | None = None
    additions: int | None = None
    deletions: int | None = None
    changed_files: int | None = None


class Reviewed(Record):
    id: int
    user: User | None = None
    body: str | None = None
    state: str = ""
    submitted_at: datetime | None = None
    commit_id: str | None = None


class Remark(Record):
    """A comment on lines, or on the whole."""

    id: int
    user: User | None = None
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


class App(Record):
    slug: str = ""


class Run(Record):
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
    app: App | None = None


class Signature(Record):
    name: str = ""
    email: str = ""
    date: datetime | None = None


class Inner(Record):
    message: str = ""
    author: Signature | None = None
    committer: Signature | None = None


class Parent(Record):
    sha: str = ""


class File(Record):
    filename: str
    additions: int | None = None
    deletions: int | None = None


class Listed(Record):
    """A commit as the API lists it; asked for alone, it has its files."""

    sha: str
    commit: Inner = Inner()
    author: User | None = None
    parents: tuple[Parent, ...] = ()
    files: tuple[File, ...] | None = None


def is_bot(user: User | None) -> bool:
    return user is not None and (user.type == "Bot" or user.login.endswith("[bot]"))


def login(user: User | None) -> str | None:
    """None for an account that is gone."""
    return user.login or None if user else None


class Teller(Witness):
    """Says what GitHub says."""

    source = "github"

    def pull(self, pull: Pull) -> Iterator[Fact]:
        """What a pull request says of itself, and of others that it takes back or repairs."""
        at = pull.updated_at or pull.merged_at or pull.closed_at or pull.created_at
        told = describe(pull)
        name = ("description", pull.number, at.isoformat(), digest(told)[:16])
        fact = self.fact(told, at, *name, pull=pull.number, sha=pull.head.sha)
        home = pull.head.repo
        # A branch of a fork may be called like one of ours.
        yield fact if home and home.full_name != self.repo else replace(fact, branch=told.branch)
        if told.state == "merged":
            text = f"{told.title}\n\n{told.body}"
            yield from self.pointers(text, f"#{pull.number}", told.merged or at)

    def review(self, number: int, review: Reviewed, at: datetime | None) -> Fact:
        when = review.submitted_at or at or self.heard
        told = Review(
            id=str(review.id),
            by=login(review.user),
            bot=is_bot(review.user),
            state=STATES.get(review.state.lower(), "commented"),
            body=(review.body or "")[:LONGEST],
            sha=review.commit_id,
            at=when,
        )
        key = ("review", review.id, told.state, digest(told.body)[:12])
        return self.fact(told, at or when, *key, pull=number)

    def comment(self, number: int, remark: Remark, *, deleted: bool = False) -> Fact:
        on_lines = remark.path is not None
        name = f"{'line' if on_lines else 'whole'}-{remark.id}"
        answered = remark.in_reply_to_id
        told = Comment(
            id=name,
            by=login(remark.user),
            bot=is_bot(remark.user),
            body=(remark.body or "")[:LONGEST],
            at=remark.created_at,
            path=remark.path,
            line=remark.line or remark.original_line,
            hunk=remark.diff_hunk and remark.diff_hunk[:LONGEST_HUNK],
            sha=remark.commit_id,
            review=str(remark.pull_request_review_id) if remark.pull_request_review_id else None,
            answers=f"line-{answered}" if answered else None,
            deleted=deleted,
        )
        at = remark.updated_at or remark.created_at
        key = ("comment", name, at.isoformat(), digest(told.body, deleted)[:12])
        return self.fact(told, at, *key, pull=number)

    def check(self, kind: str, run: Run) -> Fact:
        at = run.completed_at or run.updated_at or run.started_at or run.created_at or self.heard
        name = run.name or (run.app.slug if run.app else "") or "unnamed"
        told = Check(
            sha=run.head_sha,
            name=name if kind == "check_run" else f"{kind}: {name}",
            at=at,
            result=result_of(run.status, run.conclusion),
            conclusion=run.conclusion,
        )
        key = ("check", kind, run.id, told.result, at.isoformat())
        return self.fact(told, at, *key, sha=run.head_sha)

    def listed(self, number: int, commit: Listed) -> Fact:
        inner = commit.commit
        signed = inner.author or Signature()
        dated = inner.committer or signed
        told = Commit(
            sha=commit.sha,
            at=dated.date or signed.date or self.heard,
            message=inner.message[:LONGEST],
            author=login(commit.author) or signed.name or None,
            email=signed.email or None,
            bot=is_bot(commit.author),
            merge=len(commit.parents) > 1,
            files=None if commit.files is None else files_of(commit.files),
        )
        key = ("commit", commit.sha, *(["files"] if told.files is not None else []))
        return self.fact(told, told.at, *key, pull=number, sha=commit.sha)


def describe(pull: Pull) -> Description:
    merged = pull.merged_at is not None
    return Description(
        title=pull.title[:LONGEST],
        body=(pull.body or "")[:LONGEST],
        url=pull.html_url,
        author=login(pull.user),
        bot=is_bot(pull.user),
        state="merged" if merged else "open" if pull.state == "open" else "closed",
        draft=bool(pull.draft),
        branch=pull.head.ref or None,
        base=pull.base.ref or None,
        head=pull.head.sha or None,
        # Before the merge, GitHub names a commit that only tries it.
        merge_commit=pull.merge_commit_sha if merged else None,
        labels=tuple(label.name for label in pull.labels[:MOST]),
        opened=pull.created_at,
        closed=pull.closed_at,
        merged=pull.merged_at,
        merged_by=login(pull.merged_by),
        files=pull.changed_files,
        added=pull.additions,
        removed=pull.deletions,
    )


def files_of(files: tuple[File, ...]) -> tuple[FileEdit, ...]:
    return tuple(
        FileEdit(path=file.filename, added=file.additions, removed=file.deletions)
        for file in files[:MOST]
    )


def result_of(status: str | None, conclusion: str | None) -> CheckResult:
    """What a check says; a word that is not known is no failure."""
    if conclusion == "success":
        return "passed"
    if conclusion in FAILED:
        return "failed"
    if conclusion == "action_required":
        return "running"
    return "running" if conclusion is None and status != "completed" else "skipped"
