"""Pull requests that we open: which host, its issues, the branch pushed, one request and no second.

Everything looks before it makes, so that it can be done again after any loss: the branch is pushed
to where it is already, and a pull request of that branch is found and left as it is.
"""

from __future__ import annotations

import base64
import re
import tempfile
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import msgspec
from msgspec.structs import replace

from closeloop.changes.code_host import (
    GITHUB_API,
    GITLAB_API,
    CodeHostClient,
    CodeHostRefused,
    CodeHostReplyLost,
    open_github,
    open_gitlab,
)
from closeloop.changes.report_publishing import HOLD_LABEL, WorkflowPull, publish_report
from closeloop.changes.reports.markdown_report import render_comment
from closeloop.git import try_git_text
from closeloop.records.change import ChangeReport
from closeloop.records.errors import BadInput, MachineFailed
from closeloop.records.record import Record
from closeloop.records.request_delivery import DeliveredPull, DeliveryBranch, HostIssue
from closeloop.sandbox.workspaces.source_repository import git_folder, run_own_git
from closeloop.text.wording import repository_name

HostKind = Literal["github", "gitlab"]
_HOSTS: dict[HostKind, tuple[str, str]] = {
    "github": ("GITHUB", GITHUB_API),
    "gitlab": ("GITLAB", GITLAB_API),
}
"""What their variables begin with, and where they usually are."""
_TOKEN_USERS = {"github": "x-access-token", "gitlab": "oauth2"}
_REPO_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_./-]{0,300}/[A-Za-z0-9_.-]{1,100}")
MAX_ISSUE_CHARS = 60_000


class CodeHostAddress(Record):
    """Where a repository is at its host, and what it is spoken to with."""

    kind: HostKind
    repo: str
    """`owner/name`; at GitLab a group may have groups."""
    api: str
    token: str

    @property
    def page(self) -> str:
        """The repository's page, which is also where git finds it."""
        parts = urlsplit(self.api)
        return f"{parts.scheme}://{_web_host(self.api)}/{self.repo}"


class PullDraft(Record):
    """A pull request as it is to be opened."""

    title: str
    body: str
    target: str
    branch: DeliveryBranch
    held: bool = False
    """Opened as a draft, and labelled."""


def find_code_host(repo: Path, environ: Mapping[str, str]) -> CodeHostAddress | None:
    """The host that a clone came from, where the environment holds a token for it."""
    origin = try_git_text(repo, "remote", "get-url", "origin").strip()
    name = repository_name(origin)
    for kind, (prefix, usual) in _HOSTS.items():
        token, api = environ.get(f"{prefix}_TOKEN", ""), environ.get(f"{prefix}_API_URL", usual)
        if token and _origin_host(origin) == _web_host(api) and _REPO_NAME.fullmatch(name):
            return CodeHostAddress(kind=kind, repo=name, api=api, token=token)
    return None


def _origin_host(origin: str) -> str:
    if "://" in origin:
        parts = urlsplit(origin)
        # A port of SSH is none of the web's.
        return parts.netloc.rpartition("@")[2] if parts.scheme != "ssh" else parts.hostname or ""
    return origin.partition("@")[2].partition(":")[0]


def _web_host(api: str) -> str:
    return urlsplit(api).netloc.removeprefix("api.")


def connect_to_address(address: CodeHostAddress) -> AbstractAsyncContextManager[CodeHostClient]:
    """A connection while the block runs."""
    opening = open_github if address.kind == "github" else open_gitlab
    return opening(address.repo, address.token, address.api)


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


async def fetch_issue(address: CodeHostAddress, number: int) -> HostIssue:
    """What an issue says; BadInput where there is none."""
    async with connect_to_address(address) as hub:
        try:
            told = await hub.request_json("GET", f"issues/{number}", _IssueAnswer)
        except CodeHostRefused as refused:
            if refused.status in (404, 410):
                raise BadInput(
                    f"{address.repo} has no issue {number} that this token may read."
                ) from None
            raise
    return _issue_from_answer(told, number)


def issue_from_map(value: Any, name: str) -> HostIssue:
    """An issue as somebody saved it; BadInput where it is none."""
    try:
        told = msgspec.convert(value, _IssueAnswer)
    except msgspec.ValidationError as error:
        raise BadInput(f"{name} holds no issue ({error}): save one as its host sends it.") from None
    return _issue_from_answer(told, 0)


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


async def push_branch(repo: str, address: CodeHostAddress, branch: DeliveryBranch) -> None:
    """Bring a branch to the host, with the token and through a repository of our own.

    Hooks, helpers and remotes that the user's repository names play no part, and what it has that
    the host lacks is not sent: the base must be there.
    """
    await _require_base(address, branch)
    folder = git_folder(repo)
    secret = base64.b64encode(f"{_TOKEN_USERS[address.kind]}:{address.token}".encode()).decode()
    # In the environment: what is on a command line anybody on this machine may read.
    header = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"http.{address.page}.git.extraHeader",
        "GIT_CONFIG_VALUE_0": f"Authorization: Basic {secret}",
    }
    address_of_git, name = f"{address.page}.git", f"refs/heads/{branch.name}"
    with tempfile.TemporaryDirectory(prefix="closeloop-") as own:
        kind = "sha256" if len(branch.commit) == 64 else "sha1"
        await run_own_git(own, "init", "-q", "--bare", "--template=", f"--object-format={kind}")
        _borrow_objects(Path(own), Path(folder))
        try:
            # Where it is there already, people may have gone on with it.
            if not await run_own_git(own, "ls-remote", "--", address_of_git, name, env=header):
                target = f"{branch.commit}:{name}"
                await run_own_git(own, "push", "-q", "--", address_of_git, target, env=header)
        except MachineFailed as refused:
            raise MachineFailed(
                f"The branch {branch.name} cannot be pushed to {address.page}: {refused}"
            ) from None


def _borrow_objects(own: Path, lender: Path) -> None:
    """Read the objects of another repository as if they were here."""
    (own / "objects/info").mkdir(exist_ok=True)
    (own / "objects/info/alternates").write_text(f"{lender}/objects\n")
    if (shallow := lender / "shallow").is_file():
        (own / "shallow").write_bytes(shallow.read_bytes())


async def _require_base(address: CodeHostAddress, branch: DeliveryBranch) -> None:
    path = "commits" if address.kind == "github" else "repository/commits"
    async with connect_to_address(address) as hub:
        try:
            await hub.request_json("GET", f"{path}/{branch.base}", Record)
        except CodeHostRefused as refused:
            if refused.status not in (404, 422):
                raise
            raise BadInput(
                f"Commit {branch.base[:12]}, which the branch starts from, is not at"
                f" {address.page}: push it, then run the same command again."
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
    address: CodeHostAddress, wanted: PullDraft, report: ChangeReport
) -> DeliveredPull:
    """The pull request of a branch, opened where there is none, and told the report."""
    async with connect_to_address(address) as hub:
        if address.kind == "gitlab":
            return await _open_gitlab_pull(hub, address, wanted, report)
        pull = await hub.retry_lost_replies(lambda: _settle_github_pull(hub, address, wanted))
        told = await publish_report(hub, _workflow_pull(address, wanted, pull), report)
    notes = [*told.notes]
    if wanted.held and not pull.draft:
        notes.append("This repository has no drafts: only the label says that it waits.")
    return DeliveredPull(
        host="github",
        repo=address.repo,
        number=pull.number,
        url=pull.html_url,
        draft=pull.draft,
        labels=told.labels,
        notes=tuple(notes),
    )


async def _settle_github_pull(
    hub: CodeHostClient, address: CodeHostAddress, wanted: PullDraft
) -> _OpenedPullRequest:
    """That of the branch, whatever became of it; else a new one."""
    owner = address.repo.partition("/")[0]
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
            return await _settle_github_pull(hub, address, replace(wanted, held=False))
        raise


def _workflow_pull(
    address: CodeHostAddress, wanted: PullDraft, pull: _OpenedPullRequest
) -> WorkflowPull:
    return WorkflowPull(
        repo=address.repo,
        number=pull.number,
        base=wanted.branch.base,
        head=wanted.branch.commit,
        request=wanted.title,
        address=address.page,
    )


async def _open_gitlab_pull(
    hub: CodeHostClient, address: CodeHostAddress, wanted: PullDraft, report: ChangeReport
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
        repo=address.repo,
        number=pull.iid,
        url=pull.web_url,
        draft=pull.draft,
        labels=tuple(labels),
    )
