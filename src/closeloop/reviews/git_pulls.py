"""Pull requests that only git remembers: merges and squashed commits of the main line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from closeloop.records.pull_request import (
    Fact,
    FileEdit,
    PullCommit,
    PullDescription,
    PullExtent,
    Review,
)
from closeloop.records.record import Record
from closeloop.reviews.authorship import parse_trailers
from closeloop.reviews.fact_builder import FactBuilder

_PULL_MERGE = re.compile(
    r"Merge (?:pull request|PR) #(\d{1,9})(?: from [^/\s]{1,100}/(\S{1,250})|: *(\S.{0,500}))?"
)
_BRANCH_MERGE = re.compile(r"Merge (?:remote-tracking )?branch '(?:origin/)?([^']{1,250})'")
_SQUASHED_TITLE = re.compile(r"^(.{1,500}?) \((?:PR )?#(\d{1,9})\)$")
_MERGE_REQUEST = re.compile(r"See merge request \S{0,300}!(\d{1,9})\b")


class LandedCommit(Record):
    """One commit, and what it brought to the main line."""

    commit: PullCommit
    parents: tuple[str, ...]
    brought: tuple[PullCommit, ...] = ()
    """Of a merge: the commits of its branch, oldest first."""


class MergedPull(Record):
    """What a commit of the main line says of the pull request that it is."""

    number: int
    title: str
    body: str
    branch: str | None = None


def parse_merged_pull(landed: LandedCommit) -> MergedPull | None:
    """The pull request that a commit of the main line is; None where it is none."""
    lines = landed.commit.message.strip().splitlines() or [""]
    rest = [line for line in lines[1:] if line.strip()]
    body = "\n".join(lines[1:]).strip()
    request = _MERGE_REQUEST.search(landed.commit.message)
    if match := _PULL_MERGE.match(lines[0]):
        title = match[3] or (rest[0] if rest else lines[0])
        return MergedPull(number=int(match[1]), title=title, body=body, branch=match[2])
    if match := _SQUASHED_TITLE.match(lines[0]):
        return MergedPull(number=int(match[2]), title=match[1], body=body)
    if len(landed.parents) < 2 and request is None:
        return None
    branch = _BRANCH_MERGE.match(lines[0])
    return MergedPull(
        # Without a number it gets one of its commit's: the same whenever it is read.
        number=int(request[1]) if request else int(landed.commit.sha[:8], 16),
        title=rest[0] if branch and rest else lines[0],
        body=body,
        branch=branch[1] if branch else None,
    )


class GitFacts(FactBuilder):
    """Says what git says."""

    source = "git"


def merged_pull_facts(landed: LandedCommit, repo: str) -> Iterator[Fact]:
    """A merged pull request as git tells it: no review but what trailers say, no checks."""
    merged_pull = parse_merged_pull(landed)
    if merged_pull is None:
        return
    commit = landed.commit
    brought = landed.brought or (commit,)
    first = brought[0]
    tell = GitFacts(repo, commit.at)
    number = merged_pull.number
    description = PullDescription(
        title=merged_pull.title,
        body=merged_pull.body,
        author=first.author,
        state="merged",
        branch=merged_pull.branch,
        head=brought[-1].sha,
        merge_commit=commit.sha,
        opened=min(first.at, commit.at),
        closed=commit.at,
        merged=commit.at,
    )
    name = (number, commit.sha)
    yield tell.make_fact(description, commit.at, "description", *name, pull=number, sha=commit.sha)
    for one in brought:
        yield tell.make_fact(one, one.at, "commit", one.sha, "git", pull=number, sha=one.sha)
    extent = PullExtent(files=_sum_file_edits(brought), commits=tuple(one.sha for one in brought))
    yield tell.make_fact(extent, commit.at, "extent", *name, pull=number)
    texts = (commit.message, *(one.message for one in landed.brought))
    for who in dict.fromkeys(
        value for text in texts for key, value in parse_trailers(text) if key == "reviewed-by"
    ):
        review = Review(id=f"{commit.sha}-{who}", by=who, state="approved", at=commit.at)
        yield tell.make_fact(review, commit.at, "review", review.id, "approved", pull=number)


def landed_pointer_facts(landed: LandedCommit, repo: str) -> Iterator[Fact]:
    """What a commit, or what it brought, says that it takes back or repairs."""
    commit = landed.commit
    for one in (commit, *landed.brought):
        yield from GitFacts(repo, commit.at).pointer_facts(one.message, commit.sha, commit.at)


def _sum_file_edits(commits: Sequence[PullCommit]) -> tuple[FileEdit, ...]:
    """The files of several commits, their lines added up."""
    added: dict[str, list[int]] = {}
    for commit in commits:
        for file in commit.files or ():
            sums = added.setdefault(file.path, [0, 0])
            sums[0] += file.added or 0
            sums[1] += file.removed or 0
    return tuple(FileEdit(path=path, added=one, removed=two) for path, (one, two) in added.items())
