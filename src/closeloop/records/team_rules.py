"""Review questions and answers, team rules, and the prompts that agents ran under."""

from __future__ import annotations

from typing import Literal

from closeloop.records.evaluation import CriterionName
from closeloop.records.finding import FailureMode
from closeloop.records.record import Record, Time
from closeloop.records.settings import RepoRule
from closeloop.records.task import PromptSource

RuleState = Literal["proposed", "active", "retired"]
RepeatState = Literal["candidate", "confirmed", "denied"]
MemoryArm = Literal["memory", "control"]


class RuleParts(Record):
    """The parts of a remark's demand."""

    verb: str | None = None
    object: str = ""
    scope: str | None = None
    """Where it applies, in the remark's own words."""
    polarity: Literal["do", "avoid"] | None = None
    """Whether the object is wanted; None if not stated."""
    by: Literal["patterns", "model"] = "patterns"


class RuleExample(Record):
    """One occasion on which somebody said it."""

    key: str
    """Key of the comment, correction, insight or review; equal keys are the same example."""
    source: Literal["comment", "correction", "review", "insight", "person"]
    text: str
    repo: str | None = None
    pull: int | None = None
    path: str | None = None
    by: str | None = None
    at: Time
    put_by: str | None = None
    """The person who assigned it to the rule; None if its own words did."""
    withdrawn: bool = False
    """Whether its remark was deleted or changed its meaning."""


class CheckProof(Record):
    """Whether an automatic check is right for a rule, and how often it would fire."""

    proved: bool
    """It fires on the corrected code and is silent on the correction."""
    why: str
    """Explanation; if it is not proved, what is missing."""
    check: RepoRule | None = None
    pull: int | None = None
    """The pull request it was tried on."""
    fires: tuple[str, ...] = ()
    """Places in the reviewed code where it fires."""
    today: int = 0
    """How often it would fire in the repository today."""
    files: int = 0
    """In how many files."""
    places: tuple[str, ...] = ()
    """The first of them."""


class TeamRule(Record):
    """A rule of a repository's reviewers in one sentence; agents receive it while it is active."""

    id: str
    repo: str | None = None
    """None applies to every repository."""
    text: str
    canonical: RuleParts = RuleParts()
    paths: tuple[str, ...] = ()
    """Globs of the files it applies to; empty is all."""
    check: RepoRule | None = None
    """An automatic check, if one was proved."""
    state: RuleState = "proposed"
    since: Time
    """When it entered this state."""
    by: str | None = None
    """Who set it."""
    activated: Time | None = None
    """When it first became active."""
    examples: tuple[RuleExample, ...] = ()
    """Stored separately; the first is its origin."""


class RuleMatch(Record):
    """A rule that a remark may restate."""

    rule: TeamRule
    likeness: float
    """Similarity by the encoder, from -1 to 1. It ranks and decides nothing."""
    relation: Literal["same", "unclear"]
    """Whether the polarity agrees or is unknown; opposites are left out."""
    exact: bool = False
    """Whether the words are the same."""
    earlier: RuleExample | None = None
    """Its first example before the work; None if the rule was only written down."""
    texts: tuple[str, ...] = ()
    """Its wordings from before the work: its own text, then its examples."""


class RepeatedRemark(Record):
    """A remark that restates, or may restate, what was said before the work began.

    A candidate is unconfirmed: the rule may not be accepted yet, or the words are ambiguous.
    """

    key: str
    """Key of the remark."""
    rule: str
    repo: str
    pull: int | None = None
    attempt: str | None = None
    text: str
    path: str | None = None
    at: Time
    likeness: float
    encoder: str
    state: RepeatState = "candidate"
    by: Literal["words", "model", "person"] | None = None
    """What confirmed or denied it."""
    who: str | None = None
    """Name of the person or model."""
    opinion: Literal["same", "opposite", "other"] | None = None
    """A model's opinion, if asked."""
    rule_age: float
    """Seconds from the first statement of the rule to the remark."""
    offered: bool | None = None
    """Whether the agent had received the rule; None if not recorded."""
    earlier: str = ""
    """The most similar earlier text."""
    earlier_pull: int | None = None
    earlier_by: str | None = None


class ContextRecord(Record):
    """The context an agent received before a piece of work, or that it was assigned to receive
    none."""

    key: str
    """Key of the work: an attempt, a task or a branch."""
    repo: str
    arm: MemoryArm
    rules: tuple[str, ...] = ()
    insights: int = 0
    tokens: int = 0
    at: Time
    prompt: str | None = None
    """Id of the PromptVersion that it became part of, if we made one."""


class ContextItem(Record):
    """One item of the next agent's context, with its origin."""

    text: str
    why: str
    """Its origin as a sentence."""
    rule: str | None = None
    """None for statements of agents."""
    rank: float = 0.0
    tokens: int = 0


class AgentContext(Record):
    """The context of the next agent."""

    repo: str
    arm: MemoryArm
    hints: tuple[ContextItem, ...] = ()
    left_out: int = 0
    """Number of items that did not fit the budget."""
    tokens: int = 0
    text: str = ""
    """All of it as one block, quoted and marked as data."""


class ContextPreview(Record):
    """A preview of what would be written into a file that agents read, with its token cost."""

    file: str
    hints: tuple[ContextItem, ...] = ()
    """Each with its origin and its tokens."""
    left_out: int = 0
    tokens: int = 0
    """Tokens of the written block, estimated on the high side."""
    file_tokens: int = 0
    """Tokens of the whole resulting file."""
    changed: bool = False
    written: bool = False
    diff: str = ""


class InsightTheme(Record):
    """Something that agents said they lacked more than once."""

    number: int
    text: str
    """The most typical wording."""
    repo: str | None = None
    count: int
    """Number of attempts that said so."""
    attempts: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    first: Time
    last: Time


# The questions to people about a change, and their answers.

ScopeAnswer = Literal["yes", "no", "none"]
"""`none`: no file outside the scope was changed."""
AnswerDegree = Literal["yes", "partly", "no"]


class ReviewQuestion(Record):
    """One question about an item."""

    name: str
    """A field of the answers, a criterion, or one of the team's own questions."""
    text: str
    keys: dict[str, str]
    """The key to press for each answer."""
    optional: bool = False


class ReviewOutput(Record):
    """The output of an attempt, without names."""

    label: str = ""
    """`A`, `B` if several attempts at one task are shown side by side."""
    files: tuple[str, ...] = ()
    patch: str = ""
    answer: str = ""
    """The agent's last message."""
    ended: str = ""
    """How it ended, if it did not finish."""


class ReviewItem(Record):
    """An item for human review: a change that passed its checks, or work without checks.

    Who made it is not shown.
    """

    id: str
    """Id of an attempt, or `owner/name#12`."""
    kind: Literal["attempt", "pull"]
    title: str
    request: str = ""
    """The request."""
    repo: str | None = None
    url: str | None = None
    scope: tuple[str, ...] = ()
    rubric: str = ""
    """Description of a good result, if the task has one."""
    output: ReviewOutput = ReviewOutput()
    others: tuple[ReviewOutput, ...] = ()
    """Outputs of other variants for the same request, in random order."""
    outside: tuple[str, ...] = ()
    """Files outside the declared scope."""
    questions: tuple[ReviewQuestion, ...] = ()
    checks: str = ""
    """Result of stage 1, as a sentence."""
    suggested: tuple[FailureMode, ...] = ()
    blind: bool = False
    """Whether it is part of a comparison, so that nothing may reveal the variant."""


class ReviewAnswers(Record):
    """One person's answers about one item."""

    item: str
    contained: bool | None = None
    """Is the change contained in the intended scope?"""
    outside: ScopeAnswer | None = None
    """Were files outside the scope changed correctly?"""
    approach: bool | None = None
    """Is this the approach the team would take?"""
    merge: bool | None = None
    """Would you merge it, or use it as it is?"""
    dimensions: dict[CriterionName, AnswerDegree] = {}
    answers: dict[str, AnswerDegree] = {}
    """Answers to the team's own questions, by their names in `[review.questions]`."""
    tags: tuple[FailureMode, ...] | None = None
    """Failure modes that they saw; None if they were not asked."""
    notes: str = ""
    seconds: float | None = None


class HumanReview(ReviewAnswers):
    """One person's answers about one item."""

    reviewer: str
    at: Time
    state: Literal["draft", "done"] = "done"


class ReviewAssignment(Record):
    """The assignment of an item to a reviewer."""

    item: str
    reviewer: str
    at: Time
    asked: bool = False
    """Whether somebody named the reviewer; otherwise it was taken from the queue."""


class QueueStatus(Record):
    """The state of the queue."""

    items: int
    reviewed: int
    doubled: int
    """Number of items that two people review."""
    golden: int
    mine: int
    """Number of items left for the current user."""
    without_change: int = 0
    """Pull requests that are not queued because their diff is not stored."""


# Prompts as artefacts: which exist, and what ran under each.


class PromptUse(Record):
    """A prompt version and the work done under it."""

    id: str
    name: str | None = None
    """Its given name."""
    source: PromptSource = "variant"
    """Where its text comes from."""
    variants: tuple[str, ...] = ()
    """Names of variants; of agents for work without a variant."""
    attempts: int = 0
    """Number of attempts that a list of them has."""
    tasks: tuple[str, ...] = ()
    """Ids of the tasks attempted under it, without held-out ones."""
    pulls: tuple[str, ...] = ()
    """Pull requests with work under it, as `owner/name#12`."""
    first: Time | None = None
    last: Time | None = None
    """Start of the latest attempt; None without attempts."""
    opening: str = ""
    """Its first line."""


class PromptProposal(Record):
    """Runs that would show whether a change of the prompt is an improvement."""

    old: str
    new: str
    tasks: tuple[str, ...] = ()
    """Attempted under the old prompt, and not yet under the new one."""
    commands: tuple[str, ...] = ()
    note: str = ""
