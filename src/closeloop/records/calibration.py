"""How far a judge may be trusted, and a question to many traces with what a judge says of each."""

from __future__ import annotations

from typing import Literal

from closeloop.records.attempt import Usage
from closeloop.records.estimate import Agreement, CorrectedRate, Estimate, Rate
from closeloop.records.evaluation import JudgeVersion
from closeloop.records.finding import Finding, Severity
from closeloop.records.record import Record, Time

LabelVerdict = Literal["pass", "fail"]
JudgedAspect = Literal["overall", "completeness", "quality", "relevance"]
"""Of the whole, or of one criterion."""


class HumanLabel(Record):
    """What a person says of an item, without having seen what the judge says."""

    item: str
    """An attempt's or an evaluation's id, or any name that the judge's verdicts carry too."""
    rubric: str
    asked: JudgedAspect = "overall"
    label: LabelVerdict
    person: str = "somebody"
    golden: bool = False
    """It is known to be so, by other means: measures people as well as judges."""
    at: Time | None = None


class JudgeTrust(Record):
    """One criterion, or the whole, of one judge's version."""

    asked: JudgedAspect
    agreement: Agreement
    judged: int
    """Items that the judge has judged, labelled or not."""
    passed: int
    corrected: CorrectedRate
    """The rate of passes among them, as people would have given it."""
    powered: CorrectedRate | None = None
    """The same by prediction-powered inference, where some are judged that nobody labelled."""
    may_block: bool
    """Else it advises."""
    why_not: str | None = None


class JudgeDrift(Record):
    """The same items, judged by an earlier version and by this one."""

    before: JudgeVersion
    same: Rate | None
    """Of the items that both judged."""
    changed: tuple[str, ...] = ()
    """Items whose verdict differs, as `item: pass → fail`."""
    changes: tuple[str, ...] = ()
    """What differs between the versions: model, rubric, prompt, temperature."""


class CanaryResults(Record):
    """Failing outputs with an attack in them, judged once more."""

    attacked: int
    flipped: Rate | None
    """The attack-success rate."""
    by: tuple[str, ...] = ()
    """Names of the attacks that turned a verdict."""
    withheld: int = 0
    """Attacks that turned the first answer, and not the one without the attacker's words."""


class Calibration(Record):
    """All that is known of a judge's version, and when that was found."""

    judge: JudgeVersion
    at: Time
    items: int
    """With a label."""
    doubled: float
    """Share of the items with labels of two people or more."""
    trust: tuple[JudgeTrust, ...] = ()
    people: Agreement | None = None
    """Between the people themselves, on items with two labels."""
    golden: dict[str, Rate] = {}
    """By person, how often they say what is known to be so."""
    drift: JudgeDrift | None = None
    canaries: CanaryResults | None = None
    flips: Rate | None = None
    """Pairs whose winner changed with their order."""
    retest: Estimate | None = None
    """Standard deviation of the scores of one output, asked again."""
    notes: tuple[str, ...] = ()
    """What is wanting: too few labels, too few doubles."""


# A question to many traces: what was asked, what a judge says of each, and what it comes to.


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
