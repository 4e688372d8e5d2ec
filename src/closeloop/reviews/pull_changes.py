"""The diffs of pull requests: fetched from their code host, else from a clone, and stored."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import anyio
import anyio.to_thread
from msgspec.structs import replace

from closeloop.git import read_git_start, read_git_text, try_git_text
from closeloop.records.change import Change, FileChange
from closeloop.records.errors import BadInput, Fault, MachineFailed
from closeloop.records.pull_request import PullRow
from closeloop.records.record import Record
from closeloop.reviews.agent_prompts import clone_repository_name
from closeloop.reviews.authorship import AgentSignsByName
from closeloop.reviews.host_pulls import GithubFile
from closeloop.reviews.pull_board import RiskAssessment, save_risk
from closeloop.reviews.pull_facts import MAX_ITEMS
from closeloop.reviews.pull_lifecycle import refresh_pull
from closeloop.store import Store
from closeloop.text.patches import parse_patch, split_patch_by_file

MAX_PATCH_CHARS = 4_000_000
"""Maximum characters of one pull request's patch; files beyond that have no lines."""
MAX_FETCHED = 50
"""Maximum pull requests fetched in one run."""
RETRY_SECONDS = 600.0
"""Seconds until a refused request is repeated."""
MAX_LOGGED_PULLS = 5
POLL_SECONDS = 2.0
NOT_READ_LARGE = "not read: the code host does not return the lines of so large a file"
NO_TEXT = "no lines: binary, or only its mode changed"
_SHA = re.compile(r"[0-9a-f]{40,64}")
_log = logging.getLogger(__name__)

Kind = TypeVar("Kind")


class ChangeHost(Protocol):
    """One repository at its host, with the requests needed for diffs."""

    def list_pages(self, path: str, kind: type[Kind]) -> AsyncIterator[Kind]: ...


OpenHost = Callable[[str, str], AbstractAsyncContextManager[Any] | None]
"""Opens the host of a source for a repository; None if there is no token for it."""


class GitlabFileDiff(Record):
    """One file of a merge request, as GitLab lists it."""

    new_path: str
    old_path: str = ""
    diff: str = ""
    new_file: bool = False
    renamed_file: bool = False
    deleted_file: bool = False
    too_large: bool | None = False
    collapsed: bool | None = False


class FetchedChanges(Record):
    """The result of fetching diffs."""

    fetched: int = 0
    from_clone: int = 0
    """Number of these that came from a clone."""
    missing: dict[str, str] = {}
    """Why a diff is missing, by pull request."""


# From code hosts

FileStatus = Literal["added", "changed", "deleted", "renamed"]
_GITHUB_STATUSES: dict[str, FileStatus] = {
    "added": "added",
    "copied": "added",
    "removed": "deleted",
    "renamed": "renamed",
}


_GIT_STATUSES: dict[str, FileStatus] = {"A": "added", "C": "added", "D": "deleted", "R": "renamed"}


async def fetch_github_change(host: ChangeHost, number: int) -> Change:
    """Return the change of a pull request, as GitHub lists its files."""
    files = [
        file
        async for page in host.list_pages(f"pulls/{number}/files", list[GithubFile])
        for file in page
    ]
    return change_from_github(files)


def change_from_github(files: Sequence[GithubFile]) -> Change:
    """Build the diff from GitHub's list of files."""
    return _join_files(
        (
            FileChange(
                path=file.filename,
                old_path=file.previous_filename,
                status=_GITHUB_STATUSES.get(file.status, "changed"),
                added=file.additions or 0,
                removed=file.deletions or 0,
            ),
            file.patch,
        )
        for file in files[:MAX_ITEMS]
    )


async def fetch_gitlab_change(host: ChangeHost, number: int) -> Change:
    """Return the change of a merge request, as GitLab lists its files."""
    path = f"merge_requests/{number}/diffs"
    files = [file async for page in host.list_pages(path, list[GitlabFileDiff]) for file in page]
    return change_from_gitlab(files)


def change_from_gitlab(files: Sequence[GitlabFileDiff]) -> Change:
    """Build the diff from GitLab's list of files, which has no line counts."""
    return _join_files((_gitlab_file(file), file.diff or None) for file in files[:MAX_ITEMS])


def _gitlab_file(diff: GitlabFileDiff) -> FileChange:
    status: FileStatus = "changed"
    if diff.new_file or diff.deleted_file:
        status = "added" if diff.new_file else "deleted"
    elif diff.renamed_file:
        status = "renamed"
    hidden = not diff.diff and (diff.too_large or diff.collapsed)
    return FileChange(
        path=diff.new_path,
        old_path=diff.old_path if diff.renamed_file else None,
        status=status,
        note=NOT_READ_LARGE if hidden else None,
    )


def _join_files(files: Iterable[tuple[FileChange, str | None]]) -> Change:
    """Join the files into one patch; a file whose lines are unknown is marked."""
    changed, sections, size = [], [], 0
    for file, lines in files:
        section = _git_section(file, lines)
        parsed = _parse_section(section) if lines else None
        # Without a hunk nothing is known about its lines.
        if parsed is not None and parsed.hunks and size + len(section) <= MAX_PATCH_CHARS:
            size += len(section)
            sections.append(section)
            changed.append(replace(parsed, path=file.path, old_path=file.old_path))
            continue
        # It stays in the patch: files and sections correspond by position.
        sections.append(_git_section(file, None))
        note, binary = file.note, False
        if note is None and (lines or file.added or file.removed):
            note = NOT_READ_LARGE
        elif note is None and file.status != "renamed":
            note, binary = NO_TEXT, True
        changed.append(replace(file, note=note, binary=binary))
    return Change(files=tuple(changed), patch="".join(sections))


def _parse_section(section: str) -> FileChange | None:
    try:
        return parse_patch(section).files[0]
    except (BadInput, IndexError):
        return None


def _git_section(file: FileChange, lines: str | None) -> str:
    """Return one file's section of a patch, as git writes it."""
    before, after = file.old_path or file.path, file.path
    old, new = _quote_path(f"a/{before}"), _quote_path(f"b/{after}")
    header = [f"diff --git {old} {new}"]
    if file.status == "renamed" and file.old_path:
        header += [f"rename from {_quote_path(before)}", f"rename to {_quote_path(after)}"]
    elif file.status == "added":
        header.append("new file mode 100644")
    elif file.status == "deleted":
        header.append("deleted file mode 100644")
    if lines is None:
        return "\n".join([*header, ""])
    old = "/dev/null" if file.status == "added" else old
    new = "/dev/null" if file.status == "deleted" else new
    body = lines.rstrip("\n")
    return "\n".join([*header, f"--- {old}", f"+++ {new}", body, ""])


def _quote_path(path: str) -> str:
    if not any(sign in '"\\' or not sign.isprintable() for sign in path):
        return path
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}"
        for byte in path.encode("utf-8", "replace")
    )
    return f'"{escaped}"'


# From a clone


def change_from_clone(folder: Path, row: PullRow, head: str, base: str | None) -> Change | None:
    """Return a pull request's change from a clone; None if the clone lacks its commits."""
    start = find_branch_start(folder, row, head, base)
    if start is None:
        return None
    return replace(_read_clone_diff(folder, start, head), base=start, head=head)


def find_branch_start(folder: Path, row: PullRow, head: str, base: str | None) -> str | None:
    """Return the commit that a pull request began from, by a clone that has its newest commit."""
    if clone_repository_name(str(folder)).lower() != row.repo.lower():
        return None
    if not _SHA.fullmatch(head) or not try_git_text(folder, "cat-file", "-t", head):
        return None
    merged = (row.merge_commit if row.state == "merged" else None) or ""
    # If its head was merged unchanged, the commit before that is one of its own.
    is_named = re.fullmatch(r"[0-9a-f]{7,64}", merged) and not head.startswith(merged)
    names = [f"{merged}^1"] if is_named else []
    names += [f"refs/remotes/origin/{base}", f"refs/heads/{base}"] if base else []
    starts = (try_git_text(folder, "merge-base", name, head).strip() for name in names)
    return next((start for start in starts if _SHA.fullmatch(start) and start != head), None)


def _read_clone_diff(folder: Path, start: str, head: str) -> Change:
    """Return the diff of two commits; if it is too large, the files that are complete in its
    start."""
    ends = ("--no-color", "--find-renames", start, head)
    options = ("-c", "core.quotePath=false", "diff")
    content, complete = read_git_start(folder, MAX_PATCH_CHARS, *options, *ends)
    patch = content.decode("utf-8", "surrogateescape")
    if complete:
        return parse_patch(patch)
    # The last section may end anywhere.
    sections = dict(split_patch_by_file(patch[: patch.rindex("diff --git ")]))
    status_list = read_git_text(folder, "diff", "--name-status", "-z", *ends)
    count_list = read_git_text(folder, "diff", "--numstat", "-z", *ends)
    return _join_files(
        (
            file,
            f"@@ -{hunks}"
            if (hunks := sections.get(file.path, "").partition("\n@@ -")[2])
            else None,
        )
        for file in _list_clone_files(status_list, count_list)
    )


def _list_clone_files(status_list: str, count_list: str) -> Iterator[FileChange]:
    """Yield files with status and line counts, from git's two lists."""
    statuses, numbers = iter(status_list.split("\0")), iter(count_list.split("\0"))
    for letter in statuses:
        if not letter:
            return
        old_path = next(statuses) if letter[0] in "RC" else None
        path = next(statuses)
        added, removed, name = next(numbers).split("\t", 2)
        for _ in range(0 if name else 2):
            next(numbers)  # a renamed file is followed by both paths
        binary = added == "-"
        yield FileChange(
            path=path,
            old_path=old_path if letter[0] == "R" else None,
            status=_GIT_STATUSES.get(letter[0], "changed"),
            added=0 if binary else int(added),
            removed=0 if binary else int(removed),
        )


# Pull requests without a diff


def list_pulls_without_change(store: Store, repo: str | None = None) -> list[PullRow]:
    """Return agents' pull requests whose diff is not stored, open ones first."""
    rows = store.pulls.list_pulls(agent=True, has_change=False, repo=repo)
    with_host = [row for row in rows if row.source != "git"]
    return sorted(with_host, key=lambda row: row.state != "open")


async def fetch_missing_changes(
    store: Store,
    agents: AgentSignsByName,
    rows: Sequence[PullRow],
    open_host: OpenHost,
    clones: Sequence[Path] = (),
    risk: RiskAssessment | None = None,
) -> FetchedChanges:
    """Fetch and store the diffs of some pull requests, and report which are missing and why."""
    from closeloop.reviews.pull_lifecycle import load_pull

    fetched = from_clone = 0
    missing: dict[str, str] = {}
    for row in rows:
        name = f"{row.repo}#{row.pull}"
        pull = await anyio.to_thread.run_sync(load_pull, row.repo, row.pull, store, agents)
        if pull.head is None:
            missing[name] = "its newest commit is unknown"
            continue
        try:
            change, failure = (
                await _fetch_from_host(row, open_host),
                "there is no token for its host",
            )
        except MachineFailed as fault:
            change, failure = None, str(fault)
        local = None
        if change is None:
            local = await anyio.to_thread.run_sync(
                _change_from_clones, clones, row, pull.head, pull.base
            )
        if (change or local) is None:
            missing[name] = f"{failure.rstrip('.')}, and no clone here has its commits"
            continue
        change = replace(change or local or Change(), head=pull.head)
        if risk is not None:
            clone_starts = [
                (clone, start)
                for clone in clones
                if (start := find_branch_start(clone, row, pull.head, pull.base))
            ]
            await anyio.to_thread.run_sync(save_risk, store, row, change, clone_starts[:1], risk)
        await anyio.to_thread.run_sync(_save_fetched, store, agents, row, pull.head, change)
        fetched, from_clone = fetched + 1, from_clone + (local is not None)
    return FetchedChanges(fetched=fetched, from_clone=from_clone, missing=missing)


def _save_fetched(
    store: Store, agents: AgentSignsByName, row: PullRow, head: str, change: Change
) -> None:
    store.pulls.save_change(row.repo, row.pull, head, change, datetime.now(UTC))
    refresh_pull(row.repo, row.pull, store, agents)


def _change_from_clones(
    clones: Sequence[Path], row: PullRow, head: str, base: str | None
) -> Change | None:
    for folder in clones:
        try:
            change = change_from_clone(folder, row, head, base)
        except Fault:
            continue
        if change is not None:
            return change
    return None


async def _fetch_from_host(row: PullRow, open_host: OpenHost) -> Change | None:
    """Fetch the change from the host; None if there is no token."""
    connection = open_host(row.source, row.repo)
    if connection is None:
        return None
    async with connection as host:
        fetch = fetch_gitlab_change if row.source == "gitlab" else fetch_github_change
        return await fetch(host, row.pull)


async def run_change_worker(
    store: Store,
    agents: AgentSignsByName,
    open_host: OpenHost,
    clones: Sequence[Path],
    risk: RiskAssessment | None = None,
) -> None:
    """Fetch the diff of every pull request that a webhook names, until cancelled."""
    tried_at: dict[tuple[str, int, str | None], float] = {}
    while True:
        try:
            rows = await anyio.to_thread.run_sync(list_pulls_without_change, store)
            now = time.monotonic()
            due = [
                row
                for row in rows
                if now - tried_at.get(_version(row), -RETRY_SECONDS) >= RETRY_SECONDS
            ]
            tried_at.update((_version(row), now) for row in due[:MAX_FETCHED])
            failures: dict[str, list[str]] = {}
            for row in due[:MAX_FETCHED]:
                for reason in await _fetch_change(store, agents, row, open_host, clones, risk):
                    failures.setdefault(reason, []).append(f"{row.repo}#{row.pull}")
            _log_failures(failures)
        except Exception as error:
            # Receiving continues; failed ones are retried.
            _log.warning("Diffs cannot be fetched (%s)", type(error).__name__)
        await anyio.sleep(POLL_SECONDS)


async def _fetch_change(
    store: Store,
    agents: AgentSignsByName,
    row: PullRow,
    open_host: OpenHost,
    clones: Sequence[Path],
    risk: RiskAssessment | None,
) -> list[str]:
    """Fetch one diff; return why it is missing. A failure does not stop the others."""
    try:
        fetched = await fetch_missing_changes(store, agents, [row], open_host, clones, risk)
    except Exception as error:
        return [str(error) if isinstance(error, Fault) else type(error).__name__]
    return [*fetched.missing.values()]


def _log_failures(pulls_by_reason: Mapping[str, Sequence[str]]) -> None:
    """Log each reason once, with the pull requests that it concerns."""
    for reason, pulls in pulls_by_reason.items():
        names = ", ".join(pulls[:MAX_LOGGED_PULLS])
        if len(pulls) > MAX_LOGGED_PULLS:
            names += f" and {len(pulls) - MAX_LOGGED_PULLS} more"
        noun = "diff" if len(pulls) == 1 else "diffs"
        verb = "is" if len(pulls) == 1 else "are"
        _log.warning("The %s of %s %s unknown: %s.", noun, names, verb, reason.rstrip("."))


def _version(row: PullRow) -> tuple[str, int, str | None]:
    return row.repo, row.pull, row.head
