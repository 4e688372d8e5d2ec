"""What people did to an agent's work because it was not right, as corrections."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from closeloop.model.finding import Mode
from closeloop.model.queue import HumanReview, ReviewItem
from closeloop.model.record import digest
from closeloop.model.review import Correction, Edit, Pointer, PullRequest

LONGEST = 2_000

_SIGNS: tuple[tuple[Mode, re.Pattern[str]], ...] = (
    (
        "hallucinated API",
        re.compile(
            r"(?:does|do|did)(?:n't| not) exist|no such (?:method|function|attribute|module|flag|"
            r"option|field)|made[ -]up|hallucinat|not a real|has no (?:method|attribute|member)|"
            r"undefined|unknown (?:option|flag|keyword)|invented",
        ),
    ),
    (
        "scope creep",
        re.compile(
            r"out of scope|unrelated|not part of (?:this|the)|nobody asked|not asked for|"
            r"separate (?:pr|pull request|change)|why (?:did you|is this) (?:change|touch)|"
            r"does(?:n't| not) belong (?:in|to) this (?:pr|diff|change|pull)|noise|too big|"
            r"revert (?:this|these|the) (?:file|change|format|whitespace)",
        ),
    ),
    (
        "context blindness",
        re.compile(
            r"already (?:have|has|exist|do|does|there)|duplicat|reuse|re-use|existing (?:helper|"
            r"function|util|class|component|method)|we have a|instead of our own|our own (?:\w+ )?"
            r"(?:helper|client|logger|component)|follow the (?:existing|convention)|"
            r"convention (?:here|of)|like (?:the )?(?:others|rest|siblings)",
        ),
    ),
    (
        "instruction drift",
        re.compile(
            r"not what (?:was|i|we) asked|asked (?:for|you)|the (?:issue|ticket|task) (?:says|asks|"
            r"said|wants)|misunderst|wrong (?:problem|thing|approach)|requirement|supposed to|"
            r"as (?:described|discussed|agreed)",
        ),
    ),
    (
        "silent regression",
        re.compile(
            r"\bbroke|\bbreaks\b|regress|no longer works|stopped working|used to work|revert|"
            r"rolled? back|fail(?:s|ed|ing) (?:now|since)|outage|incident",
        ),
    ),
)


def suggest(text: str) -> tuple[Mode, ...]:
    """The failure modes that a remark's words speak of."""
    plain = text[:LONGEST].casefold().replace("’", "'")
    return tuple(mode for mode, sign in _SIGNS if sign.search(plain))


def corrections_of(pull: PullRequest) -> list[Correction]:
    """Every remark of a reviewer, every edit by a person, every revert and later fix.

    Only of an agent's work; a reply in a thread says no more than its first remark.
    """
    if not pull.signs:
        return []
    return [*_remarks(pull), *_edits(pull), *_pointers(pull)]


def _remarks(pull: PullRequest) -> Iterator[Correction]:
    for comment in pull.comments:
        if comment.counts and not comment.answers and not comment.deleted and comment.body.strip():
            yield _made(
                pull,
                Correction(
                    id=_id(pull, "comment", comment.id),
                    repo=pull.repo,
                    kind="comment",
                    text=comment.body[:LONGEST],
                    path=comment.path,
                    line=comment.line,
                    hunk=comment.hunk,
                    by=comment.by,
                    at=comment.at,
                ),
            )
    for review in pull.reviews:
        if review.counts and review.state != "approved" and review.body.strip():
            yield _made(
                pull,
                Correction(
                    id=_id(pull, "review", review.id),
                    repo=pull.repo,
                    kind="note",
                    text=review.body[:LONGEST],
                    by=review.by,
                    at=review.at,
                ),
            )


def _edits(pull: PullRequest) -> Iterator[Correction]:
    for edit in pull.edits:
        files = [file.path for file in edit.files or ()]
        yield _made(
            pull,
            Correction(
                id=_id(pull, "edit", edit.sha),
                repo=pull.repo,
                kind="edit",
                text=_told(edit),
                path=files[0] if len(files) == 1 else None,
                by=edit.by,
                at=edit.at,
            ),
        )


def _told(edit: Edit) -> str:
    files = [file.path for file in edit.files or ()]
    where = f" ({', '.join(files[:5])}{' …' if len(files) > 5 else ''})" if files else ""
    return f"{edit.title or 'An edit by a person'}{where}"[:LONGEST]


def _pointers(pull: PullRequest) -> Iterator[Correction]:
    for pointer in pull.pointers:
        made = _made(
            pull,
            Correction(
                id=_id(pull, pointer.kind, pointer.by),
                repo=pull.repo,
                kind=pointer.kind,
                text=_pointed(pointer),
                at=pointer.at,
            ),
        )
        modes = dict.fromkeys((*made.suggested, "silent regression"))
        yield replace(made, suggested=tuple(modes))


def _pointed(pointer: Pointer) -> str:
    return f"{pointer.kind} by {pointer.by}: {pointer.title}".rstrip(": ")[:LONGEST]


def note_id(review: HumanReview) -> str:
    """One person's notes on one item are one correction, however often they are changed."""
    return digest("correction", review.item, "note", review.reviewer)[:16]


def noted(review: HumanReview, item: ReviewItem) -> list[Correction]:
    """What somebody wrote in the queue about work that is not fit to merge as it is."""
    if not review.notes.strip() and not review.tags:
        return []
    made = Correction(
        id=note_id(review),
        repo=item.repo or "",
        pull=int(item.id.rpartition("#")[2]) if item.kind == "pull" else None,
        attempt=item.id if item.kind == "attempt" else None,
        kind="note",
        text=review.notes[:LONGEST],
        by=review.reviewer,
        at=review.at,
        tags=review.tags,
    )
    return [replace(made, suggested=suggest(made.text))]


def _made(pull: PullRequest, one: Correction) -> Correction:
    return replace(one, pull=pull.number, attempt=pull.attempt, suggested=suggest(one.text))


def _id(pull: PullRequest, kind: str, name: str) -> str:
    return digest("correction", pull.repo, pull.number, kind, name)[:16]
