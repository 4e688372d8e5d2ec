"""Pull requests that only git remembers: merges and squashed commits of the main line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from closeloop.model.record import Record
from closeloop.model.review import Commit, Description, Extent, Fact, FileEdit, Review
from closeloop.reviews.authorship import trailers
from closeloop.reviews.pulls_witness import Witness

_PULL = re.compile(
    r"Merge (?:pull request|PR) #(\d{1,9})(?: from [^/\s]{1,100}/(\S{1,250})|: *(\S.{0,500}))?"
)
_BRANCH = re.compile(r"Merge (?:remote-tracking )?branch '(?:origin/)?([^']{1,250})'")
_SQUASHED = re.compile(r"^(.{1,500}?) \((?:PR )?#(\d{1,9})\)$")
_REQUEST = re.compile(r"See merge request \S{0,300}!(\d{1,9})\b")


class Landed(Record):
    """One commit, and what it brought to the main line."""

    commit: Commit
    parents: tuple[str, ...]
    brought: tuple[Commit, ...] = ()
    """Of a merge: the commits of its branch, oldest first."""


class Merged(Record):
    """What a commit of the main line says of the pull request that it is."""

    number: int
    title: str
    body: str
    branch: str | None = None


def merged_by(landed: Landed) -> Merged | None:
    """The pull request that a commit of the main line is; None where it is none."""
    lines = landed.commit.message.strip().splitlines() or [""]
    rest = [line for line in lines[1:] if line.strip()]
    body = "\n".join(lines[1:]).strip()
    request = _REQUEST.search(landed.commit.message)
    if found := _PULL.match(lines[0]):
        title = found[3] or (rest[0] if rest else lines[0])
        return Merged(number=int(found[1]), title=title, body=body, branch=found[2])
    if found := _SQUASHED.match(lines[0]):
        return Merged(number=int(found[2]), title=found[1], body=body)
    if len(landed.parents) < 2 and request is None:
        return None
    branch = _BRANCH.match(lines[0])
    return Merged(
        # Without a number it gets one of its commit's: the same whenever it is read.
        number=int(request[1]) if request else int(landed.commit.sha[:8], 16),
        title=rest[0] if branch and rest else lines[0],
        body=body,
        branch=branch[1] if branch else None,
    )


class Teller(Witness):
    """Says what git says."""

    source = "git"


def facts_of(landed: Landed, repo: str) -> Iterator[Fact]:
    """A merged pull request as git tells it: no review but what trailers say, no checks."""
    found = merged_by(landed)
    if found is None:
        return
    commit = landed.commit
    brought = landed.brought or (commit,)
    first = brought[0]
    tell = Teller(repo, commit.at)
    number = found.number
    description = Description(
        title=found.title,
        body=found.body,
        author=first.author,
        state="merged",
        branch=found.branch,
        head=brought[-1].sha,
        merge_commit=commit.sha,
        opened=min(first.at, commit.at),
        closed=commit.at,
        merged=commit.at,
    )
    name = (number, commit.sha)
    yield tell.fact(description, commit.at, "description", *name, pull=number, sha=commit.sha)
    for one in brought:
        yield tell.fact(one, one.at, "commit", one.sha, "git", pull=number, sha=one.sha)
    extent = Extent(files=_together(brought), commits=tuple(one.sha for one in brought))
    yield tell.fact(extent, commit.at, "extent", *name, pull=number)
    texts = (commit.message, *(one.message for one in landed.brought))
    for who in dict.fromkeys(
        value for text in texts for key, value in trailers(text) if key == "reviewed-by"
    ):
        review = Review(id=f"{commit.sha}-{who}", by=who, state="approved", at=commit.at)
        yield tell.fact(review, commit.at, "review", review.id, "approved", pull=number)


def pointing(landed: Landed, repo: str) -> Iterator[Fact]:
    """What a commit, or what it brought, says that it takes back or repairs."""
    commit = landed.commit
    for one in (commit, *landed.brought):
        yield from Teller(repo, commit.at).pointers(one.message, commit.sha, commit.at)


def _together(commits: Sequence[Commit]) -> tuple[FileEdit, ...]:
    """The files of several commits, their lines added up."""
    added: dict[str, list[int]] = {}
    for commit in commits:
        for file in commit.files or ():
            sums = added.setdefault(file.path, [0, 0])
            sums[0] += file.added or 0
            sums[1] += file.removed or 0
    return tuple(FileEdit(path=path, added=one, removed=two) for path, (one, two) in added.items())
