"""Tier 2 with a model: it reviews what tools cannot see, and only advises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

import anyio

from closeloop.concurrency import run_limited
from closeloop.judges.change_review import (
    RULE,
    PatchLine,
    ReviewAnswer,
    ReviewChunk,
    build_review_question,
    read_review_answer,
    split_into_chunks,
)
from closeloop.providers.model_question import ask_with_repair
from closeloop.records.diff_lines import parse_hunk_lines, split_patch_by_file
from closeloop.records.errors import BadInput
from closeloop.records.finding import Finding, Unmeasured
from closeloop.records.inspection import Inspection
from closeloop.records.patch_redaction import redact_patch
from closeloop.records.protocols import Model

MAX_REQUESTS = 6
"""About one change: what does not fit is told as not reviewed."""
MAX_CONCURRENT_REQUESTS = 3


async def review_with_model(
    inspection: Inspection,
    known: Sequence[Finding | Unmeasured],
    reviewer: Model | Unmeasured,
    seconds: float,
) -> list[Finding | Unmeasured]:
    """What a model finds beside what is known; what it could not look at is told."""
    if isinstance(reviewer, Unmeasured):
        return [reviewer]
    facts = [one for one in known if isinstance(one, Finding)]
    parts = list(islice(split_into_chunks(_list_review_lines(inspection)), MAX_REQUESTS))
    answers: dict[int, ReviewAnswer | str] = {}

    async def one(item: tuple[int, ReviewChunk]) -> None:
        number, chunk = item
        posed = build_review_question(chunk, facts, inspection.request)
        try:
            reply = await ask_with_repair(
                reviewer, posed.request, partial(read_review_answer, posed=posed, chunk=chunk)
            )
            answers[number] = reply.answer or reply.why or ""
        except BadInput as fault:
            answers[number] = str(fault)

    with anyio.move_on_after(seconds):
        await run_limited(enumerate(parts), one, jobs=MAX_CONCURRENT_REQUESTS)
    late = f"the model did not answer within {seconds:g} seconds"
    replies = [answers.get(number, late) for number in range(len(parts))]
    findings = [
        finding for one in replies if isinstance(one, ReviewAnswer) for finding in one.findings
    ]
    return [*findings, *_report_review_gaps(inspection, parts, replies)]


def _list_review_lines(inspection: Inspection) -> Iterator[PatchLine]:
    """Of the files that people write, and to which something is added."""
    files = {file.path for file in inspection.files}
    for path, section in split_patch_by_file(redact_patch(inspection.change.patch)):
        if path in files and inspection.added.get(path):
            for line in parse_hunk_lines(section):
                yield path, *line


def _report_review_gaps(
    inspection: Inspection, parts: Sequence[ReviewChunk], told: Sequence[ReviewAnswer | str]
) -> Iterator[Unmeasured]:
    reasons = [one for one in told if isinstance(one, str)]
    for reason in dict.fromkeys(reasons):
        share = f"{reasons.count(reason)} of {len(parts)} parts: " if len(parts) > 1 else ""
        yield Unmeasured(rule=RULE.name, reason=f"{share}{reason}")
    dropped = sum(one.dropped for one in told if isinstance(one, ReviewAnswer))
    if dropped:
        reason = f"{dropped} of the model's findings quote what no added line says: left out"
        yield Unmeasured(rule=RULE.name, reason=reason)
    shown_lines = sum(len(lines) for part in parts for lines in part.added.values())
    added = sum(len(inspection.added.get(file.path, ())) for file in inspection.files)
    if shown_lines < added:
        reason = (
            f"only {shown_lines} of {added} added lines were shown to the model: split the change"
        )
        yield Unmeasured(rule=RULE.name, reason=reason)
