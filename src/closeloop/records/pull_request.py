"""The human side: pull requests as facts come in about them, their lives, and corrections."""

from __future__ import annotations

from typing import Literal

from closeloop.records.change import RiskLevel
from closeloop.records.finding import FailureMode
from closeloop.records.record import Record, Time

FactSource = Literal["github", "gitlab", "git"]
PullRequestState = Literal["open", "merged", "closed"]
ReviewState = Literal["approved", "changes_requested", "commented", "dismissed"]
CheckResult = Literal["passed", "failed", "running", "skipped"]
PointerKind = Literal["revert", "fix"]
SignKind = Literal["author", "label", "branch", "trailer", "attempt"]


# What is told, in whatever order


class PullDescription(Record, tag="description"):
    """A pull request as its host described it at one moment; the latest counts."""

    title: str
    body: str = ""
    url: str | None = None
    author: str | None = None
    """None for an account that was deleted."""
    bot: bool = False
    state: PullRequestState = "open"
    draft: bool = False
    branch: str | None = None
    fork: bool = False
    """The branch is one of another repository, whoever may write there."""
    member: bool = False
    """The host says that its author may write to the repository."""
    base: str | None = None
    """The branch it is to be merged into."""
    head: str | None = None
    """The newest commit."""
    merge_commit: str | None = None
    labels: tuple[str, ...] = ()
    assignees: tuple[str, ...] = ()
    opened: Time
    closed: Time | None = None
    merged: Time | None = None
    merged_by: str | None = None
    files: int | None = None
    added: int | None = None
    removed: int | None = None


class FileEdit(Record):
    """One file of a commit or a pull request; how many lines, where that is known."""

    path: str
    added: int | None = None
    removed: int | None = None


class PullCommit(Record, tag="commit"):
    """One commit of a pull request's branch."""

    sha: str
    at: Time
    message: str = ""
    author: str | None = None
    """The account, else the name that git has."""
    email: str | None = None
    bot: bool = False
    merge: bool = False
    """It only brings in what others did elsewhere."""
    files: tuple[FileEdit, ...] | None = None
    """None where nobody told."""


class Push(Record, tag="push"):
    """The branch moved."""

    after: str
    at: Time
    before: str | None = None
    by: str | None = None
    forced: bool = False
    """What was there before is no longer in it."""
    commits: tuple[str, ...] | None = None
    """What it brought; None where nobody told."""


class PullExtent(Record, tag="extent"):
    """The files and commits of a whole pull request, as they were at one moment."""

    files: tuple[FileEdit, ...] | None = None
    commits: tuple[str, ...] | None = None


class CiCheck(Record, tag="check"):
    """One check of one commit; of several with the same name the latest counts."""

    sha: str
    name: str
    at: Time
    result: CheckResult
    conclusion: str | None = None
    """In the host's own word."""


class Review(Record, tag="review"):
    """Somebody looked at a pull request and said so."""

    id: str
    by: str | None = None
    bot: bool = False
    state: ReviewState
    body: str = ""
    sha: str | None = None
    """The commit that was looked at."""
    at: Time
    counts: bool = False
    """By a person who is neither its author nor an agent; told only within a PullRequest."""


class ReviewComment(Record, tag="comment"):
    """One remark; a later version of it replaces an earlier one."""

    id: str
    by: str | None = None
    bot: bool = False
    body: str
    at: Time
    """When it was first written."""
    path: str | None = None
    line: int | None = None
    """The place it speaks of; None for the whole."""
    hunk: str | None = None
    """The lines of the diff it stands at."""
    sha: str | None = None
    review: str | None = None
    answers: str | None = None
    """The comment it replies to."""
    deleted: bool = False
    resolved: bool | None = None
    """None where nobody told; told only within a PullRequest."""
    counts: bool = False
    """By a person who is neither its author nor an agent; told only within a PullRequest."""


class CommentThread(Record, tag="thread"):
    """A thread of comments was settled, or opened again."""

    comments: tuple[str, ...]
    resolved: bool


class BackReference(Record, tag="pointer"):
    """A later change that points back: what it takes back or repairs."""

    kind: PointerKind
    at: Time
    how: Literal["trailer", "message", "blame"]
    sha: str | None = None
    """Of what it points at, perhaps shortened."""
    by: str
    """The commit that points, or the pull request as `#12`."""
    title: str = ""
    lines: int | None = None
    """How many of its lines were replaced, where git was asked."""


FactBody = (
    PullDescription
    | PullCommit
    | Push
    | PullExtent
    | CiCheck
    | Review
    | ReviewComment
    | CommentThread
    | BackReference
)


class Fact(Record):
    """One thing that was told of a repository's pull requests: added, never changed."""

    source: FactSource
    repo: str
    """`owner/name` at its host; a path for plain git."""
    pull: int | None = None
    """None where only the commit or the branch says which one it is."""
    sha: str | None = None
    branch: str | None = None
    at: Time
    key: str
    """Equal facts have equal keys, whoever tells them."""
    what: FactBody


# What is made of it


class AuthorshipSign(Record):
    """Why a pull request is taken for an agent's work."""

    kind: SignKind
    value: str


class ReviewRound(Record):
    """Review, and the change that answers it: one turn of the review loop."""

    number: int
    started: Time
    ended: Time | None = None
    """When it was answered."""
    by: tuple[str, ...] = ()
    reviews: tuple[str, ...] = ()
    comments: tuple[str, ...] = ()
    requested: bool = False
    """Changes were asked for in so many words."""
    answer: str | None = None
    """The commit that came next."""


class HumanEdit(Record):
    """A person's commit on top of an agent's."""

    sha: str
    by: str | None = None
    at: Time
    title: str = ""
    files: tuple[FileEdit, ...] | None = None
    last: bool = True
    """After the agent's last commit: it was not changed again by the agent."""


class PullRequest(Record):
    """The life of a pull request, as far as it was told."""

    repo: str
    number: int
    source: FactSource
    title: str
    body: str = ""
    url: str | None = None
    author: str | None = None
    asked_by: str | None = None
    """The person who wanted it, never a bot; None where nobody says."""
    state: PullRequestState
    draft: bool = False
    branch: str | None = None
    fork: bool = False
    base: str | None = None
    head: str | None = None
    merge_commit: str | None = None
    labels: tuple[str, ...] = ()
    opened: Time
    closed: Time | None = None
    merged: Time | None = None
    told: Time
    """When the last of this happened."""
    signs: tuple[AuthorshipSign, ...] = ()
    """None of them: it is a person's."""
    agent: str | None = None
    task: str | None = None
    prompt: str | None = None
    """What its commits say in `Task-Id:` and `Prompt-Version:`, or a label says."""
    attempt: str | None = None
    files: tuple[FileEdit, ...] | None = None
    files_changed: int | None = None
    added: int | None = None
    removed: int | None = None
    commits: tuple[PullCommit, ...] = ()
    pushes: tuple[Push, ...] = ()
    checks: tuple[CiCheck, ...] = ()
    first_push: CheckResult | None = None
    last_push: CheckResult | None = None
    """What all checks of that push say together."""
    reviews: tuple[Review, ...] = ()
    comments: tuple[ReviewComment, ...] = ()
    rounds: tuple[ReviewRound, ...] = ()
    edits: tuple[HumanEdit, ...] = ()
    pointers: tuple[BackReference, ...] = ()
    reviewed: bool = False
    """By a person other than its author."""
    version: int = 1
    """Of the code that made this of the facts: a number from its digest."""


class Correction(Record):
    """What people did to an agent's work because it was not right: a lesson, with its place."""

    id: str
    repo: str
    pull: int | None = None
    attempt: str | None = None
    kind: Literal["comment", "edit", "revert", "fix", "note"]
    text: str
    path: str | None = None
    line: int | None = None
    hunk: str | None = None
    by: str | None = None
    at: Time
    tags: tuple[FailureMode, ...] = ()
    suggested: tuple[FailureMode, ...] = ()
    """What it may be, until somebody says so."""
    withdrawn: bool = False
    """What it was read from is gone: a deleted comment, or a commit that was forced away."""


class PullRow(Record):
    """A pull request as far as a list shows it."""

    repo: str
    pull: int
    source: FactSource
    title: str
    url: str | None = None
    author: str | None = None
    asked_by: str | None = None
    """The person who wanted it, never a bot; None where nobody says."""
    agent: str | None = None
    """None for a person's."""
    attempt: str | None = None
    task: str | None = None
    prompt: str | None = None
    state: PullRequestState
    draft: bool = False
    branch: str | None = None
    head: str | None = None
    merge_commit: str | None = None
    opened: Time
    closed: Time | None = None
    told: Time
    rounds: int = 0
    comments: int = 0
    """Of reviewers."""
    edits: int = 0
    pointers: int = 0
    first_push: CheckResult | None = None
    last_push: CheckResult | None = None
    risk: RiskLevel | None = None
    reviewed: bool = False
    files: int | None = None
    added: int | None = None
    removed: int | None = None
    """Lines; None where nobody told, which is not 0."""
    has_change: bool = False
    """Whether the diff of its newest commit is stored."""
    version: int = 1


# A delivery: what became of an attempt's change among the people who were to merge it.


class Delivery(Record):
    """What people did with the work of one attempt, as far as it is known. None is not known."""

    attempt: str
    at: Time
    """When this was learned: of several the newest counts."""
    passed: bool | None = None
    """The whole suite passes and it builds cleanly; needed only where no grade says so."""
    merged: bool | None = None
    corrected: bool | None = None
    """A person changed the diff before it was merged."""
    reviewed: bool | None = None
    """A person other than its author looked before it was merged or closed."""
    seconds_in_review: float | None = None
    """From the opening to the merge or the closing."""
    cycles: int | None = None
    """Rounds of human correction before it could be merged."""
    regressed: bool | None = None
    """A test outside the task's scope broke, or a later revert or fix points at it."""
    files: int | None = None
    modules: int | None = None
    dependents: int | None = None
    """What the change touched, and what depends on that."""
    risk: RiskLevel | None = None
    first_review: bool | None = None
    """Merged after its first review."""
    first_push: bool | None = None
    """CI passed on what was pushed first."""
    comments: int | None = None
    """Of reviewers."""
    seconds_to_open: float | None = None
    """From the task's start to the pull request."""
    repeated: int | None = None
    """Comments that restate what was said before the pull request: confirmed.

    None where there was nothing to compare them with, or nobody compared them yet.
    """
    repeated_unconfirmed: int | None = None
