"""What reviewers are asked and what they taught, and the prompts that agents ran under."""

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
    """What a remark asks for, in parts."""

    verb: str | None = None
    object: str = ""
    scope: str | None = None
    """Where it holds, in the remark's own words."""
    polarity: Literal["do", "avoid"] | None = None
    """Whether the object is wanted; None where that is not said."""
    by: Literal["patterns", "model"] = "patterns"


class RuleExample(Record):
    """One time that somebody said it."""

    key: str
    """Of the comment, correction, insight or review; the same key is the same example."""
    source: Literal["comment", "correction", "review", "insight", "person"]
    text: str
    repo: str | None = None
    pull: int | None = None
    path: str | None = None
    by: str | None = None
    at: Time
    put_by: str | None = None
    """Who said that it is one, where a person did; otherwise its own words do."""
    withdrawn: bool = False
    """Its remark was deleted, or says something else now."""


class CheckProof(Record):
    """Whether a check that a program can do is right for a rule, and what it would cost."""

    proved: bool
    """It fires on what was corrected, and is silent on the correction."""
    why: str
    """In words; where it is not proved, what is missing."""
    check: RepoRule | None = None
    pull: int | None = None
    """The pull request that it was tried on."""
    fires: tuple[str, ...] = ()
    """Places in the code that was reviewed."""
    today: int = 0
    """How often it would fire in the repository as it is."""
    files: int = 0
    """In how many files."""
    places: tuple[str, ...] = ()
    """The first of them."""


class TeamRule(Record):
    """What a repository's reviewers want, in one sentence; agents are told it while active."""

    id: str
    repo: str | None = None
    """None holds for every repository."""
    text: str
    canonical: RuleParts = RuleParts()
    paths: tuple[str, ...] = ()
    """Globs of the files that it holds for; none is all."""
    check: RepoRule | None = None
    """How a program sees that it is broken, where one was proved to."""
    state: RuleState = "proposed"
    since: Time
    """When it came into this state."""
    by: str | None = None
    """Who put it there."""
    activated: Time | None = None
    """When it first became active."""
    examples: tuple[RuleExample, ...] = ()
    """Kept apart, the first being its origin."""


class RuleMatch(Record):
    """A rule that a remark may restate."""

    rule: TeamRule
    likeness: float
    """By the encoder, from -1 to 1. It ranks; it decides nothing."""
    relation: Literal["same", "unclear"]
    """Whether polarity agrees, or cannot be told; contraries are left out."""
    exact: bool = False
    """In the same words."""
    earlier: RuleExample | None = None
    """The nearest of the times that it was said; None where it was only written down."""


class RepeatedRemark(Record):
    """A remark that restates, or may restate, what was said before the work began.

    A candidate is not confirmed: the rule may not be accepted yet, or the words leave room.
    """

    key: str
    """Of the remark."""
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
    opinion: Literal["same", "opposite", "other"] | None = None
    """A model's, where one was asked."""
    rule_age: float
    """Seconds from when the rule was first said to the remark."""
    offered: bool | None = None
    """Whether the agent had been told the rule; None where nothing was logged of its work."""
    earlier: str = ""
    """What was said before, in the words that are likest."""
    earlier_pull: int | None = None
    earlier_by: str | None = None


class ContextRecord(Record):
    """What an agent was told before a piece of work, or that it was told nothing, by lot."""

    key: str
    """Of the work: an attempt, a task or a branch."""
    repo: str
    arm: MemoryArm
    rules: tuple[str, ...] = ()
    insights: int = 0
    tokens: int = 0
    at: Time
    prompt: str | None = None
    """Of the PromptVersion that it became a part of, where we made that."""


class ContextItem(Record):
    """One thing that the next agent is told, and where it comes from."""

    text: str
    why: str
    """Provenance, in words."""
    rule: str | None = None
    """None for what agents said themselves."""
    rank: float = 0.0
    tokens: int = 0


class AgentContext(Record):
    """What the next agent is told."""

    repo: str
    arm: MemoryArm
    hints: tuple[ContextItem, ...] = ()
    left_out: int = 0
    """Hints that the budget had no room for."""
    tokens: int = 0
    text: str = ""
    """All of it as one block: quoted, and said to be data."""


class ContextPreview(Record):
    """What would be written into a file that agents read, and what that costs."""

    file: str
    hints: tuple[ContextItem, ...] = ()
    """Each with its origin and its tokens."""
    left_out: int = 0
    tokens: int = 0
    """Of the block that is written, by an estimate on the high side."""
    file_tokens: int = 0
    """Of the whole file, as it would be."""
    changed: bool = False
    written: bool = False
    diff: str = ""


class InsightTheme(Record):
    """What agents said more than once that they lacked."""

    number: int
    text: str
    """The most typical way it was put."""
    repo: str | None = None
    count: int
    """Attempts that said so."""
    attempts: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    first: Time
    last: Time


# What people are asked about a change, and what they answered.

ScopeAnswer = Literal["yes", "no", "none"]
"""`none`: no file outside the scope was changed."""
AnswerDegree = Literal["yes", "partly", "no"]


class ReviewQuestion(Record):
    """One question about an item."""

    name: str
    """A field of the answers, a criterion, or a question of the team's own."""
    text: str
    keys: dict[str, str]
    """The key of each answer."""
    optional: bool = False


class ReviewOutput(Record):
    """What an attempt left, without the names of who made it."""

    label: str = ""
    """`A`, `B`: where several attempts at one task are shown side by side."""
    files: tuple[str, ...] = ()
    patch: str = ""
    answer: str = ""
    """The agent's last message."""
    ended: str = ""
    """How it ended, where it did not finish."""


class ReviewItem(Record):
    """What waits for a person: a change that passed its checks, or work that nothing checks.

    Who made it is not said.
    """

    id: str
    """An attempt's, or `owner/name#12`."""
    kind: Literal["attempt", "pull"]
    title: str
    request: str = ""
    """What was asked for."""
    repo: str | None = None
    url: str | None = None
    scope: tuple[str, ...] = ()
    rubric: str = ""
    """What a good result is like, where the task says so."""
    output: ReviewOutput = ReviewOutput()
    others: tuple[ReviewOutput, ...] = ()
    """What other variants left for the same request, in no order that tells them apart."""
    outside: tuple[str, ...] = ()
    """Files outside the declared scope."""
    questions: tuple[ReviewQuestion, ...] = ()
    checks: str = ""
    """What stage 1 found, in words."""
    suggested: tuple[FailureMode, ...] = ()
    blind: bool = False
    """It is part of a comparison: nothing may tell which variant made it."""


class ReviewAnswers(Record):
    """What somebody says of one item."""

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
    """To the team's own questions, by their names in `[review.questions]`."""
    tags: tuple[FailureMode, ...] | None = None
    """Failure modes that they saw; None where nobody asked them to look for any."""
    notes: str = ""
    seconds: float | None = None


class HumanReview(ReviewAnswers):
    """One person's answers to one item."""

    reviewer: str
    at: Time
    state: Literal["draft", "done"] = "done"


class ReviewAssignment(Record):
    """Whose turn an item is."""

    item: str
    reviewer: str
    at: Time
    asked: bool = False
    """Somebody named the reviewer; otherwise it was taken from the queue."""


class QueueStatus(Record):
    """How the queue stands."""

    items: int
    reviewed: int
    doubled: int
    """Items that two people look at."""
    golden: int
    mine: int
    """Items that are left for whoever asks."""
    without_change: int = 0
    """Pull requests that nobody is asked about, as their diff is not stored."""


# Prompts as artefacts: which there are, and what ran under each.


class PromptUse(Record):
    """A prompt's version and the work that was done under it."""

    id: str
    name: str | None = None
    """What people call it."""
    source: PromptSource = "variant"
    """Where its text is from."""
    variants: tuple[str, ...] = ()
    """Names; of work that no variant did, those of the agents."""
    attempts: int = 0
    tasks: tuple[str, ...] = ()
    """Ids of the tasks that were tried under it, but for held-out ones."""
    pulls: tuple[str, ...] = ()
    """Pull requests whose commits name it, as `owner/name#12`."""
    first: Time | None = None
    last: Time | None = None
    """When the first and the last of the attempts began; None where none did."""
    opening: str = ""
    """Its first line."""


class PromptProposal(Record):
    """Runs that would tell whether a change of the prompt did any good."""

    old: str
    new: str
    tasks: tuple[str, ...] = ()
    """Tried under the old one, and not yet under the new."""
    commands: tuple[str, ...] = ()
    note: str = ""
