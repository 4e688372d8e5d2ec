"""An evaluation: what a judge says of one task's output, check by check, and how far it counts."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from closeloop.records.attempt import Usage
from closeloop.records.estimate import Agreement, CorrectedRate, Estimate, Rate
from closeloop.records.finding import FailureMode, Finding, Severity
from closeloop.records.record import Record, Time
from closeloop.records.trace import ModelRequest

RubricVerdict = Literal["yes", "partly", "no"]
CriterionName = Literal["completeness", "quality", "relevance"]
RequiredInput = Literal["change", "reference"]
CRITERIA: tuple[CriterionName, ...] = ("completeness", "quality", "relevance")


# What is judged


class Subtask(Record):
    """One task of a plan, as its worker was given it."""

    id: str
    prompt: str
    depends_on: tuple[str, ...] = ()
    wanted: str | None = None
    """What a good result is like, in words, for whoever judges it."""
    rubric: str | None = None
    """The name or file of the rubric for this task alone; None is the judge's."""


class TaskOutput(Record):
    """What came back for a task. Nobody vouches for any of it."""

    task: str
    text: str = ""
    change: str | None = None
    """As a patch."""
    reference: str | None = None
    """A good solution, as a patch or text, where one is known."""
    author: str | None = None
    """The model that made it, where that is known."""
    agent: str | None = None
    """The program that made it."""
    seconds: Annotated[float, Meta(ge=0)] | None = None
    """How long that took."""
    usage: Usage = Usage()
    """What that used; no part of what judging does."""


class ComputedFact(Record):
    """What was computed elsewhere. It answers the check that names it, whatever the judge says."""

    name: str
    verdict: RubricVerdict | None = None
    """None only tells, and decides nothing."""
    text: str
    blocks: bool = False
    """Unless its verdict is yes, the task fails."""


class RepositoryState(Record):
    """Where a change belongs: a repository as it was before."""

    repo: str
    commit: str
    setup: tuple[str, ...] = ()
    beneath: tuple[str, ...] = ()
    """Patches of other tasks that the change was made on top of, in order."""
    change: str | None = None
    """The change as it applies there, where it is shown with lines that do not."""


class QuestionSeals(Record):
    """What the fences of a question are marked with, drawn at random when it is asked."""

    common: str
    """Of what all cases of one evaluation share: the same for all, so that caches hit."""
    own: str
    """Of one case, the same in all its samples; its answer must repeat it."""


class JudgeCase(Record):
    """All that a judge sees of one task: nothing of the others but their places in the plan."""

    request: str
    plan: tuple[Subtask, ...]
    task: Subtask
    output: TaskOutput
    facts: tuple[ComputedFact, ...] = ()
    site: RepositoryState | None = None
    """For a judge that looks at files."""
    base_known: bool = False
    """closeloop made the change's patch itself: lines that it does not add are those of the base,
    which whoever did the work has not written."""
    unmasked: TaskOutput | None = None
    """The output as written, where `output` is masked: a quote may be of either form."""
    seals: QuestionSeals | None = None
    """None: they are drawn when the question is put."""


class Submission(Record):
    """What somebody hands in to be evaluated: a request, its plan, and what came of the tasks."""

    request: str
    plan: tuple[Subtask, ...] = ()
    """None given: each result is one for the whole request."""
    continues: str | None = None
    """The id of a plan that was handed in before: the results are next tries at its tasks."""
    results: tuple[TaskOutput, ...]
    facts: dict[str, tuple[ComputedFact, ...]] = {}
    """By task."""


# What it is judged by


class RubricQuestion(Record, forbid_unknown_fields=True):
    """One narrow question, with what each answer means."""

    id: str
    criterion: CriterionName
    question: str
    yes: str
    partly: str | None = None
    """None: there is nothing between yes and no."""
    no: str
    weight: float = 1.0
    fact: str | None = None
    """A fact of this name answers it."""
    needs: RequiredInput | None = None
    """Counted only where the output has this."""
    mode: FailureMode | None = None
    """What a judge's `no` or `partly` shows; `yes` says that it looked and saw nothing of it."""
    example: str | None = None


class Rubric(Record, forbid_unknown_fields=True):
    """Checks by criterion, and what it takes to pass."""

    name: str
    about: str
    checks: tuple[RubricQuestion, ...]
    weights: dict[CriterionName, float] = {}
    """Of criteria; 1 where not given."""
    pass_at: float = 0.7
    floor: float = 0.5
    """Under which no criterion may be."""
    subject: Literal["code", "text"] = "code"
    """What is judged: where it is text, that is shown when words of its author are masked."""


class JudgeVersion(Record):
    """What an answer depends on. Numbers of different versions are never averaged."""

    id: str
    judge: str
    rubric: str
    rubric_digest: str
    prompt: str
    """Digest of the instructions and the schema."""
    model: str
    model_digest: str | None = None
    temperature: float
    pass_at: float = 0.7
    floor: float = 0.5
    members: tuple[str, ...] = ()
    """Of a panel, the versions of those who vote."""


class PosedQuestion(Record):
    """A question as it goes to the model, and what one must know to read the answer."""

    request: ModelRequest
    seal: str
    """Drawn when the judge is asked. What is judged was written before, so it cannot hold it; the
    answer must repeat it, so no echo of what is judged is an answer."""
    shown: dict[str, str]
    """What was laid before the judge, by its kind: quotes are looked up here."""
    unmasked: dict[str, str] = {}
    """The work as written, by kind, where it is shown masked: a quote may be of either form."""
    cut: int = 0
    """Characters that were not shown."""


# What came of it


class RubricAnswer(Record):
    """Evidence, then reasoning, then the verdict."""

    check: str
    criterion: CriterionName
    verdict: RubricVerdict | None
    """None: it cannot be told, it is void, or nothing to ask."""
    evidence: tuple[str, ...] = ()
    """Quotes, found verbatim in what was shown."""
    reasoning: str = ""
    source: Literal["judge", "fact"] = "judge"
    mode: FailureMode | None = None
    """Of which a verdict that is not `yes` is a sign."""
    void: str | None = None
    """Why the judge's verdict does not count."""


class CriterionScore(Record):
    """One criterion, scored from its checks."""

    name: CriterionName
    score: float | None
    """From 0 to 1; None where too few checks were answered."""


class EvaluationIssue(Record):
    """What is wrong, for whoever tries again."""

    check: str
    criterion: CriterionName | None
    text: str
    evidence: tuple[str, ...] = ()
    source: Literal["judge", "fact"] = "judge"


class JudgeSample(Record):
    """One of several askings, or the vote of one member of a panel."""

    judge: str
    score: float | None
    passed: bool | None


class Evaluation(Record):
    """One task's output, judged once; or by samples or a panel, whose votes are kept."""

    id: str
    task: str
    attempt: str | None = None
    judge: str
    """The id of the judge's version."""
    answers: tuple[RubricAnswer, ...] = ()
    criteria: tuple[CriterionScore, ...] = ()
    score: float | None = None
    passed: bool | None = None
    """None: the judge abstains."""
    abstained: str | None = None
    issues: tuple[EvaluationIssue, ...] = ()
    summary: str = ""
    samples: tuple[JudgeSample, ...] = ()
    """None for a single asking."""
    spread: float | None = None
    """Standard deviation of the samples' scores."""
    without_text: JudgeSample | None = None
    """A pass, asked for again with the words of whoever did the work masked."""
    same_family: bool | None = None
    """The judge's model is of the family that made the output; None where that is not known."""
    cut: int = 0
    """Characters of what was given that the judge was not shown."""
    usage: Usage = Usage()
    seconds: float = 0.0
    at: Time | None = None

    def criterion_score(self, name: CriterionName) -> float | None:
        return next((one.score for one in self.criteria if one.name == name), None)


class Evaluations(Record):
    """A whole plan: it passes when every task does."""

    judges: tuple[JudgeVersion, ...]
    evaluations: tuple[Evaluation, ...]
    passed: bool | None
    """None: no task fails, but the judge abstains on some, or some have no result yet."""
    summary: str
    plan: str | None = None
    """The id that it is kept under, where it was handed in."""


class OutputPreference(Record):
    """Which of two outputs is better, asked in both orders."""

    task: str
    judge: str
    winner: Literal["first", "second", "tie"] | None
    """None: the judge abstains."""
    flipped: bool = False
    """It chose by position, which is a tie."""
    answers: tuple[str, ...] = ()
    """What it said in each order, of the outputs as they are named here."""
    reasons: tuple[str, ...] = ()
    abstained: str | None = None
    without_text: Literal["first", "second", "tie"] | None = None
    """The winner where the words of whoever did the work are masked; None: that has none, or was
    not asked."""
    usage: Usage = Usage()


# How far a judge may be trusted, and a question to many traces with what a judge says of each.


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
