"""Pull requests that we open: the issue, the branch pushed, one request and no second.

Everything looks before it makes, so that it can be done again after any loss: the branch is pushed
to where it is already, and a pull request of that branch is found and left as it is.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from closeloop.changes.code_host import CodeHostClient, CodeHostRefused, CodeHostReplyLost
from closeloop.changes.host_credentials import HostedRepository
from closeloop.changes.report_publishing import HOLD_LABEL, WorkflowPull, publish_report
from closeloop.changes.reports.markdown_report import render_comment
from closeloop.records.change import ChangeReport
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.record import Record
from closeloop.records.request_delivery import DeliveredPull, DeliveryBranch, HostIssue
from closeloop.sandbox.workspaces.source_repository import git_folder, run_own_git

MAX_ISSUE_CHARS = 60_000
HostConnection = AbstractAsyncContextManager[CodeHostClient]
_TRIED_BRANCH = "{commit}:refs/heads/closeloop/access"
_INVALID_STATUSES = (400, 409, 422)
_GIT_REFUSAL = re.compile(
    r"error: 40[134]|denied|not found|not appear|could not read|authentication", re.IGNORECASE
)


class PullDraft(Record):
    """A pull request as it is to be opened."""

    title: str
    body: str
    target: str
    branch: DeliveryBranch
    held: bool = False
    """Opened as a draft, and labelled."""


# Issues


class _IssueAuthor(Record):
    login: str | None = None
    username: str | None = None


class _IssueAnswer(Record):
    """As GitHub, GitLab or `gh issue view --json` write it."""

    title: str
    number: int | None = None
    iid: int | None = None
    body: str | None = None
    description: str | None = None
    html_url: str | None = None
    web_url: str | None = None
    url: str | None = None
    user: _IssueAuthor | None = None
    author: _IssueAuthor | None = None


async def fetch_issue(hub: CodeHostClient, repo: str, number: int) -> HostIssue:
    """What an issue says; BadInput where there is none."""
    try:
        told = await hub.request_json("GET", f"issues/{number}", _IssueAnswer)
    except CodeHostRefused as refused:
        if refused.status in (404, 410):
            raise BadInput(f"{repo} has no issue {number} that we may read.") from None
        raise
    return replace(_issue_from_answer(told, number), closable=True)


def issue_from_map(value: Any, name: str, host: HostedRepository | None = None) -> HostIssue:
    """An issue as somebody saved it; BadInput where it is none."""
    try:
        told = msgspec.convert(value, _IssueAnswer)
    except msgspec.ValidationError as error:
        raise BadInput(f"{name} holds no issue ({error}): save one as its host sends it.") from None
    issue = _issue_from_answer(told, 0)
    # Where it is one of another repository, the same number is somebody else's here.
    pages = (
        [f"{host.page}{part}/{issue.number}" for part in ("/issues", "/-/issues")] if host else ()
    )
    return replace(issue, closable=bool(issue.number) and issue.url in pages)


def _issue_from_answer(told: _IssueAnswer, number: int) -> HostIssue:
    author = told.user or told.author
    return HostIssue(
        number=told.iid or told.number or number,
        title=told.title,
        body=(told.body or told.description or "")[:MAX_ISSUE_CHARS],
        # Where there is a page, `url` is the API's.
        url=told.html_url or told.web_url or told.url,
        author=(author.login or author.username) if author else None,
    )


# The branch


async def require_delivery_access(
    repo: str, opening: HostConnection, host: HostedRepository, base: str, target: str
) -> None:
    """BadInput where a branch could not be pushed or a pull request not opened; nothing is made."""
    try:
        async with opening as hub:
            await _require_base(hub, host, base)
            async with _open_push(repo, hub, host, base) as run_git:
                await run_git("push", "-q", "--dry-run", _TRIED_BRANCH.format(commit=base))
            await _try_opening(hub, host, target)
    except MachineFailed as refused:
        if not isinstance(refused, CodeHostRefused) and not _GIT_REFUSAL.search(str(refused)):
            raise
        raise BadInput(
            f"{host.page} would take no pull request from us ({str(refused).rstrip('.')}): set a"
            " token that may write contents and pull requests, or give --dry-run."
        ) from None


async def _try_opening(hub: CodeHostClient, host: HostedRepository, target: str) -> None:
    """Ask for a pull request of a branch into itself: who may open one is told it is invalid."""
    title = "closeloop: may pull requests be opened?"
    path, payload = "pulls", {"title": title, "head": target, "base": target}
    if host.kind == "gitlab":
        path = "merge_requests"
        payload = {"title": title, "source_branch": target, "target_branch": target}
    try:
        await hub.request_json("POST", path, Record, payload)
    except CodeHostRefused as refused:
        if refused.status not in _INVALID_STATUSES:
            raise


async def push_branch(
    repo: str, hub: CodeHostClient, host: HostedRepository, branch: DeliveryBranch
) -> None:
    """Bring a branch to the host; what the clone has that the host lacks is not sent along."""
    await _require_base(hub, host, branch.base)
    name = f"refs/heads/{branch.name}"
    async with _open_push(repo, hub, host, branch.commit) as run_git:
        try:
            # Where it is there already, people may have gone on with it.
            if not await run_git("ls-remote", name):
                await run_git("push", "-q", f"{branch.commit}:{name}")
        except MachineFailed as refused:
            raise MachineFailed(
                f"The branch {branch.name} cannot be pushed to {host.page}: {refused}"
            ) from None


@asynccontextmanager
async def _open_push(
    repo: str, hub: CodeHostClient, host: HostedRepository, commit: str
) -> AsyncIterator[Callable[..., Awaitable[str]]]:
    """Git towards the host, with our token and through a repository of our own.

    Hooks, helpers and remotes that the user's repository names play no part.
    """
    # In the environment: what is on a command line anybody on this machine may read.
    header = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"http.{host.page}.git.extraHeader",
        "GIT_CONFIG_VALUE_0": hub.git_header(),
    }
    with tempfile.TemporaryDirectory(prefix="closeloop-") as own:
        kind = "sha256" if len(commit) == 64 else "sha1"
        await run_own_git(own, "init", "-q", "--bare", "--template=", f"--object-format={kind}")
        _borrow_objects(Path(own), Path(git_folder(repo)))

        async def run_git(*arguments: str) -> str:
            *options, what = arguments
            return await run_own_git(own, *options, "--", f"{host.page}.git", what, env=header)

        yield run_git


def _borrow_objects(own: Path, lender: Path) -> None:
    """Read the objects of another repository as if they were here."""
    (own / "objects/info").mkdir(exist_ok=True)
    (own / "objects/info/alternates").write_text(f"{lender}/objects\n")
    if (shallow := lender / "shallow").is_file():
        (own / "shallow").write_bytes(shallow.read_bytes())


async def _require_base(hub: CodeHostClient, host: HostedRepository, base: str) -> None:
    path = "commits" if host.kind == "github" else "repository/commits"
    try:
        await hub.request_json("GET", f"{path}/{base}", Record)
    except CodeHostRefused as refused:
        if refused.status not in (404, 422):
            raise
        raise BadInput(
            f"Commit {base[:12]}, which the branch starts from, is not at {host.page}, as far as"
            " we may read it: push it, then run the same command again."
        ) from None


# The pull request


class _OpenedPullRequest(Record):
    number: int
    html_url: str
    draft: bool = False


class _OpenedMergeRequest(Record):
    iid: int
    web_url: str
    draft: bool = False


async def open_pull(
    hub: CodeHostClient, host: HostedRepository, wanted: PullDraft, report: ChangeReport
) -> DeliveredPull:
    """The pull request of a branch, opened where there is none, and told the report."""
    if host.kind == "gitlab":
        return await _open_gitlab_pull(hub, host, wanted, report)
    pull = await hub.retry_lost_replies(lambda: _settle_github_pull(hub, host, wanted))
    told = await publish_report(hub, _workflow_pull(host, wanted, pull), report)
    notes = [*told.notes]
    if wanted.held and not pull.draft:
        notes.append("This repository has no drafts: only the label says that it waits.")
    return DeliveredPull(
        host="github",
        repo=host.repo,
        number=pull.number,
        url=pull.html_url,
        draft=pull.draft,
        labels=told.labels,
        notes=tuple(notes),
    )


async def _settle_github_pull(
    hub: CodeHostClient, host: HostedRepository, wanted: PullDraft
) -> _OpenedPullRequest:
    """That of the branch, whatever became of it; else a new one."""
    owner = host.repo.partition("/")[0]
    path = f"pulls?state=all&head={quote(f'{owner}:{wanted.branch.name}', safe='')}"
    known = await hub.request_json("GET", path, list[_OpenedPullRequest])
    if known:
        return known[0]
    payload = {
        "title": wanted.title,
        "body": wanted.body,
        "head": wanted.branch.name,
        "base": wanted.target,
        "draft": wanted.held,
    }
    try:
        return await hub.request_json("POST", "pulls", _OpenedPullRequest, payload, again=False)
    except CodeHostRefused as refused:
        if refused.status == 422 and "already exists" in str(refused):
            raise CodeHostReplyLost(str(refused)) from None  # another process was first: look again
        if refused.status == 422 and wanted.held and "draft" in str(refused).lower():
            return await _settle_github_pull(hub, host, replace(wanted, held=False))
        raise


def _workflow_pull(
    host: HostedRepository, wanted: PullDraft, pull: _OpenedPullRequest
) -> WorkflowPull:
    return WorkflowPull(
        repo=host.repo,
        number=pull.number,
        base=wanted.branch.base,
        head=wanted.branch.commit,
        request=wanted.title,
        address=host.page,
    )


async def _open_gitlab_pull(
    hub: CodeHostClient, host: HostedRepository, wanted: PullDraft, report: ChangeReport
) -> DeliveredPull:
    """A merge request; the report is the end of its text."""
    labels = [f"risk:{report.risk.level}"] if report.risk else []
    labels += [HOLD_LABEL] if wanted.held else []
    name = quote(wanted.branch.name, safe="")
    payload = {
        "title": f"Draft: {wanted.title}" if wanted.held else wanted.title,
        "description": f"{wanted.body}\n\n{render_comment(report)}",
        "source_branch": wanted.branch.name,
        "target_branch": wanted.target,
        "labels": ",".join(labels),
    }

    async def settle() -> _OpenedMergeRequest:
        path = f"merge_requests?state=all&source_branch={name}"
        known = await hub.request_json("GET", path, list[_OpenedMergeRequest])
        if known:
            return known[0]
        try:
            return await hub.request_json(
                "POST", "merge_requests", _OpenedMergeRequest, payload, again=False
            )
        except CodeHostRefused as refused:
            if refused.status != 409:
                raise
            raise CodeHostReplyLost(str(refused)) from None

    pull = await hub.retry_lost_replies(settle)
    return DeliveredPull(
        host="gitlab",
        repo=host.repo,
        number=pull.iid,
        url=pull.web_url,
        draft=pull.draft,
        labels=tuple(labels),
    )
