"""An evaluation: a judge's answers on one task's output, check by check, and their weight."""

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
    """One task of a plan, as given to its worker."""

    id: str
    prompt: str
    depends_on: tuple[str, ...] = ()
    wanted: str | None = None
    """A description of a good result, for judges."""
    rubric: str | None = None
    """Name or file of the rubric for this task; None is the judge's own."""


class TaskOutput(Record):
    """The output of a task. None of it is trusted."""

    task: str
    text: str = ""
    change: str | None = None
    """As a patch."""
    reference: str | None = None
    """A known good solution, as a patch or text."""
    author: str | None = None
    """The model that produced it, if known."""
    agent: str | None = None
    """The program that produced it."""
    seconds: Annotated[float, Meta(ge=0)] | None = None
    """How long that took."""
    usage: Usage = Usage()
    """Usage of the work, without that of judging."""


class ComputedFact(Record):
    """A fact that was computed elsewhere.

    It answers the check that names it, whatever the judge says.
    """

    name: str
    verdict: RubricVerdict | None = None
    """None is information only and decides nothing."""
    text: str
    blocks: bool = False
    """Whether the task fails unless its verdict is yes."""


class RepositoryState(Record):
    """The repository before a change."""

    repo: str
    commit: str
    setup: tuple[str, ...] = ()
    beneath: tuple[str, ...] = ()
    """Patches of other tasks that the change is based on, in order."""
    change: str | None = None
    """The change as it applies there, if it is shown with lines that do not apply."""


class QuestionSeals(Record):
    """Random seals of the fences in a question, drawn when it is asked."""

    common: str
    """Seal of what all cases of one evaluation share; equal for all, so that prompt caches hit."""
    own: str
    """Seal of one case, equal in all its samples; the answer must repeat it."""


class JudgeCase(Record):
    """What a judge sees of one task: of other tasks only their place in the plan."""

    request: str
    plan: tuple[Subtask, ...]
    task: Subtask
    output: TaskOutput
    facts: tuple[ComputedFact, ...] = ()
    site: RepositoryState | None = None
    """For a judge that reads files."""
    base_known: bool = False
    """Whether closeloop produced the patch itself: lines that it does not add are those of the
    base, not the author's."""
    unmasked: TaskOutput | None = None
    """The output as written, if `output` is masked: a quote may match either form."""
    seals: QuestionSeals | None = None
    """None: drawn when the question is asked."""


class Submission(Record):
    """A submission for evaluation: a request, its plan, and the outputs of the tasks."""

    request: str
    plan: tuple[Subtask, ...] = ()
    """Empty: each output is for the whole request."""
    continues: str | None = None
    """Id of a plan submitted before; the outputs are new tries at its tasks."""
    results: tuple[TaskOutput, ...]
    facts: dict[str, tuple[ComputedFact, ...]] = {}
    """By task id."""


# The criteria


class RubricQuestion(Record, forbid_unknown_fields=True):
    """One narrow question, with the meaning of each answer."""

    id: str
    criterion: CriterionName
    question: str
    yes: str
    partly: str | None = None
    """None if there is nothing between yes and no."""
    no: str
    weight: float = 1.0
    fact: str | None = None
    """Name of the fact that answers it."""
    needs: RequiredInput | None = None
    """Counted only if the output has this."""
    mode: FailureMode | None = None
    """The failure mode that `no` or `partly` indicates; `yes` means that it was examined and not
    found."""
    example: str | None = None


class Rubric(Record, forbid_unknown_fields=True):
    """Checks by criterion, and the thresholds of a pass."""

    name: str
    about: str
    checks: tuple[RubricQuestion, ...]
    weights: dict[CriterionName, float] = {}
    """Weights of criteria; 1 by default."""
    pass_at: float = 0.7
    floor: float = 0.5
    """Minimum score of each criterion."""
    subject: Literal["code", "text"] = "code"
    """What is judged. Text stays visible when its author's words are masked."""


class JudgeVersion(Record):
    """Everything an answer depends on. Numbers of different versions are never averaged."""

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
    """For a panel, the versions of its members."""


class PosedQuestion(Record):
    """A question as sent to the model, with what is needed to read the answer."""

    request: ModelRequest
    seal: str
    """Drawn when the judge is asked. The judged text is older and cannot contain it; the answer
    must repeat it, so that an echo of the judged text is no answer."""
    shown: dict[str, str]
    """What the judge was shown, by kind; quotes are looked up here."""
    unmasked: dict[str, str] = {}
    """The work as written, by kind, if it is shown masked: a quote may match either form."""
    cut: int = 0
    """Number of characters not shown."""


# The results


class RubricAnswer(Record):
    """Evidence, then reasoning, then the verdict."""

    check: str
    criterion: CriterionName
    verdict: RubricVerdict | None
    """None: undecidable, void, or nothing to ask."""
    evidence: tuple[str, ...] = ()
    """Quotes, found verbatim in what was shown."""
    reasoning: str = ""
    source: Literal["judge", "fact"] = "judge"
    mode: FailureMode | None = None
    """The failure mode that a verdict other than `yes` indicates."""
    void: str | None = None
    """Why the judge's verdict is not counted."""


class CriterionScore(Record):
    """One criterion, scored from its checks."""

    name: CriterionName
    score: float | None
    """From 0 to 1; None if too few checks were answered."""


class EvaluationIssue(Record):
    """What is wrong, as feedback for the next try."""

    check: str
    criterion: CriterionName | None
    text: str
    evidence: tuple[str, ...] = ()
    source: Literal["judge", "fact"] = "judge"


class JudgeSample(Record):
    """One of several samples, or the vote of one panel member."""

    judge: str
    score: float | None
    passed: bool | None


class Evaluation(Record):
    """The evaluation of one task's output: a single answer, or samples or a panel with their
    votes."""

    id: str
    task: str
    attempt: str | None = None
    judge: str
    """Id of the judge's version."""
    answers: tuple[RubricAnswer, ...] = ()
    criteria: tuple[CriterionScore, ...] = ()
    score: float | None = None
    passed: bool | None = None
    """None: the judge abstains."""
    abstained: str | None = None
    issues: tuple[EvaluationIssue, ...] = ()
    summary: str = ""
    samples: tuple[JudgeSample, ...] = ()
    """Empty for a single answer."""
    spread: float | None = None
    """Standard deviation of the samples' scores."""
    without_text: JudgeSample | None = None
    """A second answer after a pass, with the author's words masked."""
    same_family: bool | None = None
    """Whether the judge's model is of the family that produced the output; None if unknown."""
    cut: int = 0
    """Number of characters not shown to the judge."""
    usage: Usage = Usage()
    seconds: float = 0.0
    at: Time | None = None

    def criterion_score(self, name: CriterionName) -> float | None:
        return next(
            (criterion.score for criterion in self.criteria if criterion.name == name), None
        )


class Evaluations(Record):
    """A whole plan; it passes when every task does."""

    judges: tuple[JudgeVersion, ...]
    evaluations: tuple[Evaluation, ...]
    passed: bool | None
    """None: no task fails, but the judge abstains on some, or some have no output yet."""
    summary: str
    plan: str | None = None
    """The id it is stored under, if it was submitted."""


class OutputPreference(Record):
    """Which of two outputs is better, asked in both orders."""

    task: str
    judge: str
    winner: Literal["first", "second", "tie"] | None
    """None: the judge abstains."""
    flipped: bool = False
    """Whether it chose by position, which counts as a tie."""
    answers: tuple[str, ...] = ()
    """The answer in each order, with the outputs named as here."""
    reasons: tuple[str, ...] = ()
    abstained: str | None = None
    without_text: Literal["first", "second", "tie"] | None = None
    """The winner with the authors' words masked; None if there is none, or it was not asked."""
    usage: Usage = Usage()


# How reliable a judge is, and a question to many traces with a judge's answer on each.


LabelVerdict = Literal["pass", "fail"]
JudgedAspect = Literal["overall", "completeness", "quality", "relevance"]
"""The whole, or one criterion."""


class HumanLabel(Record):
    """A person's label of an item, given without seeing the judge's."""

    item: str
    """Id of an attempt or evaluation, or any name that the judge's verdicts also use."""
    rubric: str
    asked: JudgedAspect = "overall"
    label: LabelVerdict
    person: str = "somebody"
    golden: bool = False
    """Whether the answer is known by other means; used to measure people as well as judges."""
    at: Time | None = None


class JudgeTrust(Record):
    """Trust in one version of a judge, for one criterion or the whole."""

    asked: JudgedAspect
    agreement: Agreement
    judged: int
    """Number of items the judge has judged, labelled or not."""
    passed: int
    corrected: CorrectedRate
    """Pass rate among them, corrected towards people's labels."""
    powered: CorrectedRate | None = None
    """The same by prediction-powered inference, if some items are judged but not labelled."""
    may_block: bool
    """Whether it may block; otherwise it advises."""
    why_not: str | None = None


class JudgeDrift(Record):
    """The same items judged by an earlier version and this one."""

    before: JudgeVersion
    same: Rate | None
    """Share of equal verdicts among items that both judged."""
    changed: tuple[str, ...] = ()
    """Items whose verdict differs, as `item: pass → fail`."""
    changes: tuple[str, ...] = ()
    """Differences between the versions: model, rubric, prompt, temperature."""


class CanaryResults(Record):
    """Failing outputs with an injected attack, judged again."""

    attacked: int
    flipped: Rate | None
    """The attack-success rate."""
    by: tuple[str, ...] = ()
    """Names of the attacks that changed a verdict."""
    withheld: int = 0
    """Attacks that changed the first answer but not the one without the attacker's words."""


class Calibration(Record):
    """All measurements of a judge's version, with their time."""

    judge: JudgeVersion
    at: Time
    items: int
    """Number of labelled items."""
    doubled: float
    """Share of the items labelled by two or more people."""
    trust: tuple[JudgeTrust, ...] = ()
    people: Agreement | None = None
    """Agreement among people, on items with two labels."""
    golden: dict[str, Rate] = {}
    """By person, the share of known answers they match."""
    drift: JudgeDrift | None = None
    canaries: CanaryResults | None = None
    flips: Rate | None = None
    """Pairs whose winner changed with their order."""
    retest: Estimate | None = None
    """Standard deviation of the scores of one output when asked again."""
    notes: tuple[str, ...] = ()
    """What is missing: too few labels, too few double labels."""


# A question to many traces: the question, a judge's answer on each, and the summary.


class TraceQuestion(Record):
    """One narrow yes-or-no question, and where in a trace to look."""

    name: str
    text: str
    rules: tuple[str, ...] = ()
    """Asked only if one of these rules found something, about the events around it."""
    severity: Severity = "info"
    """Severity of the finding that a yes creates."""


class TraceAnswer(Record):
    """A judge's answer about one trace."""

    attempt: str
    question: TraceQuestion | None = None
    """The question; None in records stored before this field existed."""
    verdict: Literal["yes", "no"] | None
    """None: undecidable, or the judge abstains."""
    text: str = ""
    events: tuple[int, ...] = ()
    """The events it cites, each shown to it."""
    quotes: tuple[str, ...] = ()
    abstained: str | None = None
    usage: Usage = Usage()


class Analysis(Record):
    """A named question, asked once of stored attempts and of each new one."""

    name: str
    question: TraceQuestion
    task: str | None = None
    variant: str | None = None
    outcome: Literal["pass", "fail", "unscored"] | None = None
    """Only attempts with this outcome; None is any."""


class AnalysisResult(Record):
    """A summary of answers."""

    analysis: Analysis
    judge: str
    """The judge's version; another model or wording starts again."""
    attempts: int
    """Number of attempts that match the filter and the question."""
    rate: Rate | None
    """Share of yes among the answered ones."""
    corrected: CorrectedRate | None
    """The rate corrected by people's labels; None without labels."""
    answers: tuple[TraceAnswer, ...]
    findings: dict[str, tuple[Finding, ...]] = {}
    """For each attempt with a yes, the findings of rules, then of the judge."""
