"""Corrections: what people did to an agent's work because it was not right."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from closeloop.changes.report_formats import parse_place
from closeloop.records.finding import FailureMode
from closeloop.records.pull_request import BackReference, Correction, HumanEdit, PullRequest, Review
from closeloop.records.record import content_digest
from closeloop.records.team_rules import HumanReview, ReviewItem, RuleExample
from closeloop.store import Store
from closeloop.text.wording import compile_lazily

MAX_CORRECTION_CHARS = 2_000
_RULE_NAME_SUFFIX = compile_lazily(r" \([^()]{1,200}\)\.$")
"""The rule name that a check appends to a rule's text."""

_MODE_PATTERNS: tuple[tuple[FailureMode, re.Pattern[str]], ...] = (
    (
        "hallucinated API",
        compile_lazily(
            r"(?:does|do|did)(?:n't| not) exist|no such (?:method|function|attribute|module|flag|"
            r"option|field)|made[ -]up|hallucinat|not a real|has no (?:method|attribute|member)|"
            r"undefined|unknown (?:option|flag|keyword)|invented"
        ),
    ),
    (
        "scope creep",
        compile_lazily(
            r"out of scope|unrelated|not part of (?:this|the)|nobody asked|not asked for|"
            r"separate (?:pr|pull request|change)|why (?:did you|is this) (?:change|touch)|"
            r"does(?:n't| not) belong (?:in|to) this (?:pr|diff|change|pull)|noise|too big|"
            r"revert (?:this|these|the) (?:file|change|format|whitespace)"
        ),
    ),
    (
        "context blindness",
        compile_lazily(
            r"already (?:have|has|exist|do|does|there)|duplicat|reuse|re-use|existing (?:helper|"
            r"function|util|class|component|method)|we have a|instead of our own|our own (?:\w+ )?"
            r"(?:helper|client|logger|component)|follow the (?:existing|convention)|"
            r"convention (?:here|of)|like (?:the )?(?:others|rest|siblings)"
        ),
    ),
    (
        "instruction drift",
        compile_lazily(
            r"not what (?:was|i|we) asked|asked (?:for|you)|the (?:issue|ticket|task) (?:says|asks|"
            r"said|wants)|misunderst|wrong (?:problem|thing|approach)|requirement|supposed to|"
            r"as (?:described|discussed|agreed)"
        ),
    ),
    (
        "silent regression",
        compile_lazily(
            r"\bbroke|\bbreaks\b|regress|no longer works|stopped working|used to work|revert|"
            r"rolled? back|fail(?:s|ed|ing) (?:now|since)|outage|incident"
        ),
    ),
)


def suggest_failure_modes(text: str) -> tuple[FailureMode, ...]:
    """Return the failure modes that a remark's words suggest."""
    plain = text[:MAX_CORRECTION_CHARS].casefold().replace("’", "'")
    return tuple(mode for mode, sign in _MODE_PATTERNS if sign.search(plain))


def list_corrections(pull: PullRequest) -> list[Correction]:
    """Return every reviewer remark, edit by a person, revert and later fix.

    Only of an agent's work; of a thread, only the first remark counts.
    """
    if not pull.signs:
        return []
    return [
        *_corrections_from_remarks(pull),
        *_corrections_from_edits(pull),
        *_corrections_from_pointers(pull),
    ]


def count_remarks(pull: PullRequest) -> int:
    """Count the reviewers' comments: on lines, on the whole, and as the text of a review."""
    return sum(comment.counts for comment in pull.comments) + sum(map(_is_remark, pull.reviews))


def _is_remark(review: Review) -> bool:
    """Return whether a review says in words what should change."""
    return review.counts and review.state != "approved" and bool(review.body.strip())


def _corrections_from_remarks(pull: PullRequest) -> Iterator[Correction]:
    for comment in pull.comments:
        if comment.counts and not comment.answers and not comment.deleted and comment.body.strip():
            yield _complete_correction(
                pull,
                Correction(
                    id=correction_id(pull, "comment", comment.id),
                    repo=pull.repo,
                    kind="comment",
                    text=comment.body[:MAX_CORRECTION_CHARS],
                    path=comment.path,
                    line=comment.line,
                    hunk=comment.hunk,
                    by=comment.by,
                    at=comment.at,
                ),
            )
    for review in pull.reviews:
        if _is_remark(review):
            yield _complete_correction(
                pull,
                Correction(
                    id=correction_id(pull, "review", review.id),
                    repo=pull.repo,
                    kind="note",
                    text=review.body[:MAX_CORRECTION_CHARS],
                    by=review.by,
                    at=review.at,
                ),
            )


def _corrections_from_edits(pull: PullRequest) -> Iterator[Correction]:
    for edit in pull.edits:
        files = [file.path for file in edit.files or ()]
        yield _complete_correction(
            pull,
            Correction(
                id=correction_id(pull, "edit", edit.sha),
                repo=pull.repo,
                kind="edit",
                text=_describe_edit(edit),
                path=files[0] if len(files) == 1 else None,
                by=edit.by,
                at=edit.at,
            ),
        )


def _describe_edit(edit: HumanEdit) -> str:
    files = [file.path for file in edit.files or ()]
    paths_note = f" ({', '.join(files[:5])}{' …' if len(files) > 5 else ''})" if files else ""
    return f"{edit.title or 'An edit by a person'}{paths_note}"[:MAX_CORRECTION_CHARS]


def _corrections_from_pointers(pull: PullRequest) -> Iterator[Correction]:
    for pointer in pull.pointers:
        correction = _complete_correction(
            pull,
            Correction(
                id=correction_id(pull, pointer.kind, pointer.by),
                repo=pull.repo,
                kind=pointer.kind,
                text=_describe_pointer(pointer),
                at=pointer.at,
            ),
        )
        modes = dict.fromkeys((*correction.suggested, "silent regression"))
        yield replace(correction, suggested=tuple(modes))


def _describe_pointer(pointer: BackReference) -> str:
    return f"{pointer.kind} by {pointer.by}: {pointer.title}".rstrip(": ")[:MAX_CORRECTION_CHARS]


def review_note_id(review: HumanReview) -> str:
    """Return the id of one person's notes on one item: one correction, however often edited."""
    return content_digest("correction", review.item, "note", review.reviewer)[:16]


def corrections_from_review(review: HumanReview, item: ReviewItem) -> list[Correction]:
    """Return a reviewer's notes on work that is not fit to merge as it is."""
    if not review.notes.strip() and not review.tags:
        return []
    correction = Correction(
        id=review_note_id(review),
        repo=item.repo or "",
        pull=int(item.id.rpartition("#")[2]) if item.kind == "pull" else None,
        attempt=item.id if item.kind == "attempt" else None,
        kind="note",
        text=review.notes[:MAX_CORRECTION_CHARS],
        by=review.reviewer,
        at=review.at,
        tags=review.tags or (),
    )
    return [replace(correction, suggested=suggest_failure_modes(correction.text))]


def _complete_correction(pull: PullRequest, correction: Correction) -> Correction:
    return replace(
        correction,
        pull=pull.number,
        attempt=pull.attempt,
        suggested=suggest_failure_modes(correction.text),
    )


def correction_id(pull: PullRequest, kind: str, name: str) -> str:
    """Return the id of a correction from one comment, review or commit of a pull request."""
    return content_digest("correction", pull.repo, pull.number, kind, name)[:16]


def corrections_from_findings(store: Store, pull: PullRequest) -> list[Correction]:
    """Return the latest findings of a judge and a check as corrections. They teach no rule."""
    if pull.attempt is None:
        return []
    evaluation = next(iter(store.judged.list_evaluations(attempt=pull.attempt)), None)
    corrections = [
        _correction_from_finding(pull, (evaluation.id, number), issue.text, evaluation.at)
        for number, issue in enumerate(evaluation.issues if evaluation else ())
        if evaluation is not None and issue.source == "judge"
    ]
    row = next(iter(store.reports.list_reports(1, attempt=pull.attempt)), None)
    stored_report = store.reports.load_report(row.number) if row else None
    # A check's description of itself is not a remark; findings of repository rules and models are.
    places_by_message = {
        _RULE_NAME_SUFFIX.sub(".", finding.message): finding.places
        for finding in (stored_report[1].findings if stored_report else ())
        if finding.silenced is None and (finding.rule == "repo-rule" or finding.source == "judge")
    }
    for text, places in places_by_message.items():
        path = parse_place(places[0]).path if places else None
        correction = _correction_from_finding(
            pull,
            ("check", pull.repo, pull.number),
            text,
            stored_report[0].at if stored_report else None,
        )
        corrections.append(replace(correction, path=path))
    return corrections


def _correction_from_finding(
    pull: PullRequest, name: tuple[Any, ...], text: str, found_at: datetime | None
) -> Correction:
    return Correction(
        id=content_digest("finding", *name, text)[:16],
        repo=pull.repo,
        pull=pull.number,
        attempt=pull.attempt,
        kind="note",
        text=text,
        at=found_at or pull.told,
    )


def example_from_remark(remark: Correction) -> RuleExample:
    """Return a correction as the example of a rule."""
    return RuleExample(
        key=remark.id,
        source="comment" if remark.kind == "comment" else "review",
        text=remark.text,
        repo=remark.repo or None,
        pull=remark.pull,
        path=remark.path,
        by=remark.by,
        at=remark.at,
    )
