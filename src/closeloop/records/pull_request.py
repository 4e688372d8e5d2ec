"""Pull requests: facts from code hosts, the state derived from them, and corrections."""

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


# The facts, in any order


class PullDescription(Record, tag="description"):
    """A pull request as described by its host at one time; the latest counts."""

    title: str
    body: str = ""
    url: str | None = None
    author: str | None = None
    """None for a deleted account."""
    bot: bool = False
    state: PullRequestState = "open"
    draft: bool = False
    branch: str | None = None
    fork: bool = False
    """Whether the branch belongs to another repository."""
    member: bool = False
    """Whether the host says that its author may write to the repository."""
    base: str | None = None
    """The branch to merge into."""
    head: str | None = None
    """The latest commit."""
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
    """One file of a commit or a pull request, with line counts if known."""

    path: str
    added: int | None = None
    removed: int | None = None


class PullCommit(Record, tag="commit"):
    """One commit of a pull request's branch."""

    sha: str
    at: Time
    message: str = ""
    author: str | None = None
    """The account, else git's author name."""
    email: str | None = None
    bot: bool = False
    merge: bool = False
    """Whether it only merges work from elsewhere."""
    files: tuple[FileEdit, ...] | None = None
    """None if not reported."""


class Push(Record, tag="push"):
    """A push to the branch."""

    after: str
    at: Time
    before: str | None = None
    by: str | None = None
    forced: bool = False
    """Whether earlier commits were dropped."""
    commits: tuple[str, ...] | None = None
    """The pushed commits; None if not reported."""


class PullExtent(Record, tag="extent"):
    """The files and commits of a whole pull request at one time."""

    files: tuple[FileEdit, ...] | None = None
    commits: tuple[str, ...] | None = None


class CiCheck(Record, tag="check"):
    """One check of one commit; of several with the same name the latest counts."""

    sha: str
    name: str
    at: Time
    result: CheckResult
    conclusion: str | None = None
    """In the host's own words."""


class Review(Record, tag="review"):
    """A review of a pull request."""

    id: str
    by: str | None = None
    bot: bool = False
    state: ReviewState
    body: str = ""
    sha: str | None = None
    """The reviewed commit."""
    at: Time
    counts: bool = False
    """Whether it is by a person who is neither the author nor an agent; set only in a PullRequest.
    """


class ReviewComment(Record, tag="comment"):
    """One comment; a later version replaces an earlier one."""

    id: str
    by: str | None = None
    bot: bool = False
    body: str
    at: Time
    """When it was first written."""
    path: str | None = None
    line: int | None = None
    """The commented line; None for the whole."""
    hunk: str | None = None
    """The commented lines of the diff."""
    sha: str | None = None
    review: str | None = None
    answers: str | None = None
    """The comment it replies to."""
    deleted: bool = False
    resolved: bool | None = None
    """None if not reported; set only in a PullRequest."""
    counts: bool = False
    """Whether it is by a person who is neither the author nor an agent; set only in a PullRequest.
    """


class CommentThread(Record, tag="thread"):
    """A comment thread was resolved or reopened."""

    comments: tuple[str, ...]
    resolved: bool


class BackReference(Record, tag="pointer"):
    """A later change that refers to this one: a revert or a fix."""

    kind: PointerKind
    at: Time
    how: Literal["trailer", "message", "blame"]
    sha: str | None = None
    """The commit it refers to, possibly abbreviated."""
    by: str
    """The commit that refers, or the pull request as `#12`."""
    title: str = ""
    lines: int | None = None
    """How many of its lines were replaced, if computed from git."""


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
    """One reported fact about a repository's pull requests: added, never changed."""

    source: FactSource
    repo: str
    """`owner/name` on its host; a path for plain git."""
    pull: int | None = None
    """None if only the commit or branch identifies it."""
    sha: str | None = None
    branch: str | None = None
    at: Time
    key: str
    """Equal facts have equal keys, whatever their source."""
    what: FactBody


# The pull request built from them


class AuthorshipSign(Record):
    """Evidence that a pull request is an agent's work."""

    kind: SignKind
    value: str


class ReviewRound(Record):
    """A review and the change that answers it."""

    number: int
    started: Time
    ended: Time | None = None
    """When it was answered."""
    by: tuple[str, ...] = ()
    reviews: tuple[str, ...] = ()
    comments: tuple[str, ...] = ()
    requested: bool = False
    """Whether changes were explicitly requested."""
    answer: str | None = None
    """The commit that followed."""


class HumanEdit(Record):
    """A person's commit on top of an agent's."""

    sha: str
    by: str | None = None
    at: Time
    title: str = ""
    files: tuple[FileEdit, ...] | None = None
    last: bool = True
    """Whether it follows the agent's last commit."""


class PullRequest(Record):
    """The state of a pull request, derived from the known facts."""

    repo: str
    number: int
    source: FactSource
    title: str
    body: str = ""
    url: str | None = None
    author: str | None = None
    asked_by: str | None = None
    """The person who requested it, never a bot; None if unknown."""
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
    """Time of the latest fact."""
    signs: tuple[AuthorshipSign, ...] = ()
    """Empty: it is a person's."""
    agent: str | None = None
    task: str | None = None
    prompt: str | None = None
    """From `Task-Id:` and `Prompt-Version:` of its commits, or from a label."""
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
    """Combined result of all checks of that push."""
    reviews: tuple[Review, ...] = ()
    comments: tuple[ReviewComment, ...] = ()
    rounds: tuple[ReviewRound, ...] = ()
    edits: tuple[HumanEdit, ...] = ()
    pointers: tuple[BackReference, ...] = ()
    reviewed: bool = False
    """Whether a person other than the author reviewed it."""
    version: int = 1
    """Version of the code that derived this from the facts: a number from its digest."""


class Correction(Record):
    """A correction of an agent's work by a person, with its place."""

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
    """Suggested failure modes, until somebody confirms one."""
    withdrawn: bool = False
    """Whether its source is gone: a deleted comment, or a commit that was forced away."""


class PullRow(Record):
    """One row of the list of pull requests."""

    repo: str
    pull: int
    source: FactSource
    title: str
    url: str | None = None
    author: str | None = None
    asked_by: str | None = None
    """The person who requested it, never a bot; None if unknown."""
    agent: str | None = None
    """None for a person's pull request."""
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
    """Number of reviewers' comments."""
    edits: int = 0
    pointers: int = 0
    first_push: CheckResult | None = None
    last_push: CheckResult | None = None
    risk: RiskLevel | None = None
    reviewed: bool = False
    files: int | None = None
    added: int | None = None
    removed: int | None = None
    """Number of removed lines; None means unknown, not 0."""
    has_change: bool = False
    """Whether the diff of its latest commit is stored."""
    version: int = 1


# A delivery: what reviewers and mergers did with an attempt's change.


class Delivery(Record):
    """What people did with the work of one attempt. None is unknown."""

    attempt: str
    at: Time
    """When this was learned; the latest counts."""
    passed: bool | None = None
    """Whether the whole suite passes and it builds; needed only without a grade."""
    merged: bool | None = None
    corrected: bool | None = None
    """Whether a person changed the diff before the merge."""
    reviewed: bool | None = None
    """Whether a person other than the author reviewed it before it was merged or closed."""
    seconds_in_review: float | None = None
    """From opening to merge or close."""
    cycles: int | None = None
    """Rounds of human correction before it could be merged."""
    regressed: bool | None = None
    """Whether a test outside the task's scope broke, or a later revert or fix refers to it."""
    files: int | None = None
    modules: int | None = None
    dependents: int | None = None
    """Number of modules that the change touches or that depend on those."""
    risk: RiskLevel | None = None
    first_review: bool | None = None
    """Whether it was merged after its first review."""
    first_push: bool | None = None
    """Whether CI passed on the first push."""
    comments: int | None = None
    """Number of reviewers' comments."""
    seconds_to_open: float | None = None
    """From the start of the task to the pull request."""
    repeated: int | None = None
    """Confirmed comments that restate something said before the pull request.

    None if there was nothing to compare them with, or they have not been compared yet.
    """
    repeated_unconfirmed: int | None = None
