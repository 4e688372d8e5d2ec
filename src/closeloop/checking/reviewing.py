"""Tier 2 with a model: it reviews what tools cannot see, and only advises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

import anyio

from closeloop.changes.lines import lines_of, sections
from closeloop.judges.review import (
    RULE,
    Chunk,
    Line,
    Reviewed,
    chunks,
    pose_review,
    read_review,
)
from closeloop.model.errors import BadInput
from closeloop.model.finding import Finding, Unmeasured
from closeloop.model.inspection import Inspection
from closeloop.model.patch_redaction import redact_patch
from closeloop.model.protocols import Model
from closeloop.runs.executors.local import each
from closeloop.runs.models.asking import ask

MOST_REQUESTS = 6
"""About one change: what does not fit is told as not reviewed."""
AT_ONCE = 3


async def review(
    inspection: Inspection,
    known: Sequence[Finding | Unmeasured],
    reviewer: Model | Unmeasured,
    seconds: float,
) -> list[Finding | Unmeasured]:
    """What a model finds beside what is known; what it could not look at is told."""
    if isinstance(reviewer, Unmeasured):
        return [reviewer]
    facts = [one for one in known if isinstance(one, Finding)]
    parts = list(islice(chunks(_lines(inspection)), MOST_REQUESTS))
    answers: dict[int, Reviewed | str] = {}

    async def one(item: tuple[int, Chunk]) -> None:
        number, chunk = item
        posed = pose_review(chunk, facts, inspection.request)
        try:
            told = await ask(
                reviewer, posed.request, partial(read_review, posed=posed, chunk=chunk)
            )
            answers[number] = told.answer or told.why or ""
        except BadInput as fault:
            answers[number] = str(fault)

    with anyio.move_on_after(seconds):
        await each(enumerate(parts), one, jobs=AT_ONCE)
    late = f"the model did not answer within {seconds:g} seconds"
    told = [answers.get(number, late) for number in range(len(parts))]
    found = [finding for one in told if isinstance(one, Reviewed) for finding in one.findings]
    return [*found, *_unmeasured(inspection, parts, told)]


def _lines(inspection: Inspection) -> Iterator[Line]:
    """Of the files that people write, and to which something is added."""
    files = {file.path for file in inspection.files}
    for path, section in sections(redact_patch(inspection.change.patch)):
        if path in files and inspection.added.get(path):
            for line in lines_of(section):
                yield path, *line


def _unmeasured(
    inspection: Inspection, parts: Sequence[Chunk], told: Sequence[Reviewed | str]
) -> Iterator[Unmeasured]:
    reasons = [one for one in told if isinstance(one, str)]
    for reason in dict.fromkeys(reasons):
        share = f"{reasons.count(reason)} of {len(parts)} parts: " if len(parts) > 1 else ""
        yield Unmeasured(rule=RULE.name, reason=f"{share}{reason}")
    dropped = sum(one.dropped for one in told if isinstance(one, Reviewed))
    if dropped:
        reason = f"{dropped} of the model's findings quote what no added line says: left out"
        yield Unmeasured(rule=RULE.name, reason=reason)
    shown = sum(len(lines) for part in parts for lines in part.added.values())
    added = sum(len(inspection.added.get(file.path, ())) for file in inspection.files)
    if shown < added:
        reason = f"only {shown} of {added} added lines were shown to the model: split the change"
        yield Unmeasured(rule=RULE.name, reason=reason)
