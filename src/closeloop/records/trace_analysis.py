"""A question to many traces: what was asked, what a judge says of each, and what it comes to."""

from __future__ import annotations

from typing import Literal

from closeloop.records.attempt import Usage
from closeloop.records.estimate import CorrectedRate
from closeloop.records.finding import Finding, Severity
from closeloop.records.rates import Rate
from closeloop.records.record import Record


class TraceQuestion(Record):
    """One narrow question with a yes or a no, and where in a trace to look."""

    name: str
    text: str
    rules: tuple[str, ...] = ()
    """Asked only where one of these found something, and of what happened around it."""
    severity: Severity = "info"
    """Of a finding that a yes is."""


class TraceAnswer(Record):
    """What a judge says of one trace."""

    attempt: str
    question: TraceQuestion | None = None
    """What was asked; None in what was kept before this was."""
    verdict: Literal["yes", "no"] | None
    """None: it cannot be told, or the judge abstains."""
    text: str = ""
    events: tuple[int, ...] = ()
    """What it cites, each shown to it."""
    quotes: tuple[str, ...] = ()
    abstained: str | None = None
    usage: Usage = Usage()


class Analysis(Record):
    """A question under a name: asked of old attempts once, and of new ones when they come."""

    name: str
    question: TraceQuestion
    task: str | None = None
    variant: str | None = None
    outcome: Literal["pass", "fail", "unscored"] | None = None
    """Which attempts; None is any."""


class AnalysisResult(Record):
    """What answers come to."""

    analysis: Analysis
    judge: str
    """The version: another model or another wording begins again."""
    attempts: int
    """That the filter lets through and that the question is for."""
    rate: Rate | None
    """Of yes among those with an answer."""
    corrected: CorrectedRate | None
    """As people would have answered; None without labels."""
    answers: tuple[TraceAnswer, ...]
    findings: dict[str, tuple[Finding, ...]] = {}
    """By attempt with a yes: what the rules found, and then the judge."""
