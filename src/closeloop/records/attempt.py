"""An attempt: one agent, one task, one try; and what became of it."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Annotated, Literal

import msgspec

from closeloop.records.estimate import Rate
from closeloop.records.record import Record, Time

Exit = Literal["finished", "gave_up", "out_of_time", "idle", "out_of_budget", "crashed", "machine"]
Origin = Literal["experiment", "production"]


class Usage(Record):
    """What was used, as the provider counted it. None is not known, which is not zero."""

    input_tokens: int | None = None
    """Fresh input: neither read from a cache nor written to one."""
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    """Part of the output, where the provider says how much of it was reasoning."""
    cost: float | None = None
    """In US dollars."""
    cost_from: Literal["reported", "prices"] | None = None


def count_prompt_tokens(usage: Usage) -> int | None:
    """All that the model was sent, cached or not, as orchestrators count; None where not known."""
    counts = (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
    known_counts = [count for count in counts if count is not None]
    return sum(known_counts) if known_counts else None


class Attempt(Record):
    """One variant trying one task once, or an imported session."""

    id: str
    origin: Origin
    task: str | None = None
    """Id of the task; None for an imported session."""
    task_digest: str | None = None
    variant: str | None = None
    """The variant's digest."""
    experiment: str | None = None
    """The experiment it was run for; others with the same task and variant count it too."""
    number: int = 1
    """Which repeat of the task this is."""
    retry: int = 0
    """How often this repeat was started again because it could not be scored."""
    parent: str | None = None
    """The attempt that this one retries; of a session, its version before it grew."""
    started: Time | None = None
    ended: Time | None = None
    exit: Exit
    cause: str | None = None
    """Why it did not finish."""
    usage: Usage = Usage()
    summary: str | None = None
    """The agent's last words."""
    sandbox: str | None = None
    """Which sandbox was used, and which limits it did not enforce."""
    branch: str | None = None
    repo: str | None = None
    user: str | None = None
    links: dict[str, str] = {}


class TestResult(Record):
    """One test, once."""

    id: str
    status: Literal["passed", "failed", "error", "skipped"]
    seconds: float | None = None
    message: str | None = None
    """Why it failed, shortened."""


class CommandResult(Record):
    """One command of the acceptance, once."""

    command: str
    exit_code: int | None
    seconds: float
    output: str
    """Head and tail of what it printed."""
    stopped: str | None = None
    """Which limit stopped it, when one did."""


class TestRun(Record):
    """One run of a task's tests: at the base, or after a change."""

    when: Literal["before", "after"]
    tests: tuple[TestResult, ...] = ()
    commands: tuple[CommandResult, ...] = ()
    """The test command first, when there is one, then the acceptance commands."""
    flaky: tuple[str, ...] = ()
    """Tests whose result differed between repeats."""
    trouble: str | None = None
    """Why this run says nothing about the change: machine trouble, in words."""
    ran: bool = False
    """There is evidence that at least one test ran."""
    notes: tuple[str, ...] = ()
    """What does not fit together, such as exit code 0 after a failed test: never a pass."""
    printed_passes: int | None = None
    """How many passed tests the runner's own last line counts, where it prints one."""


class Proof(Record):
    """What is known of a task by its controls: a task counts only when it is proved."""

    task: str
    grading: str
    version: int = 1
    """Of the grader."""
    state: Literal["proved", "unproved", "unchecked"]
    """Unchecked: only the base was run, as grading needs it."""
    reasons: tuple[str, ...] = ()
    """Why it is not proved; of a proved task, what its tests do not see."""
    before: TestRun | None = None
    reference: TestRun | None = None
    repeats: int = 1
    at: Time | None = None


AWAITING_REVIEW = "awaiting review"
"""The cause of an attempt at a task without an automatic check: nothing failed, nobody said yet."""


class Outcome(Record):
    """Pass, fail, or unscored with its cause: derived from facts at read time."""

    result: Literal["pass", "fail", "unscored"]
    cause: str | None = None
    """For unscored: which machinery failed, or that it awaits review."""
    reasons: tuple[str, ...] = ()
    """For fail: what does not hold, most telling first."""


class IntegrityCheck(Record):
    """One condition of believing a result."""

    name: Literal["restored", "unshadowed", "controls", "confirmed", "agreement", "perturbed"]
    state: Literal["held", "violated", "not applicable"]
    detail: str = ""
    """What was looked at, or the evidence of a violation."""


class Grade(Record):
    """The result of testing an attempt's change."""

    attempt: str
    grading: str
    """The task's grading digest; when it changes, the attempt is graded again."""
    version: int
    """Of the grader."""
    outcome: Outcome
    before: TestRun | None = None
    after: TestRun | None = None
    fail_to_pass: tuple[int, int] | None = None
    """How many pass now, of how many."""
    pass_to_pass: tuple[int, int] | None = None
    """How many still pass, of how many."""
    broken: tuple[str, ...] = ()
    """Tests that passed before and fail now."""
    out_of_scope: tuple[str, ...] = ()
    """Files changed outside the declared scope."""
    restored: tuple[str, ...] = ()
    """Files the agent had changed though they decide its verdict: what is protected, what steers
    tests, what the acceptance runs through."""
    set_aside: tuple[str, ...] = ()
    """Other tests that the agent added or changed; they do not count."""
    integrity: tuple[IntegrityCheck, ...] = ()
    """The conditions that a pass had to meet, and whether it did."""
    evidence: Literal["confirmed", "reported", "weak"] | None = None
    """How a pass is known: tests confirmed in a second process, reported once, or exit codes."""
    files_precision: float | None = None
    files_recall: float | None = None
    """Of the files changed, against those of the reference."""
    similarity: float | None = None
    """Of the changed lines, tests left out, the share that the reference changes too (Dice)."""
    asked: bool | None = None
    """Whether a question came before the first edit; None where nothing was recorded."""
    missing_names: tuple[str, ...] | None = None
    """Names that only the change uses, and that a failing test says do not exist; None where
    nobody looked."""


def is_failure_fixed(grade: Grade) -> bool | None:
    """Whether all that failed at the base passes now; None where nothing failed or was scored."""
    before, after = grade.before, grade.after
    if grade.outcome.result == "unscored" or before is None:
        return None
    if after is None or any(check.state == "violated" for check in grade.integrity):
        return False if grade.outcome.result == "fail" else None
    if grade.fail_to_pass is not None and grade.fail_to_pass[1]:
        return grade.fail_to_pass[0] == grade.fail_to_pass[1]
    failed = {one.id for one in before.tests if one.status in ("failed", "error")}
    failed -= {*before.flaky, *after.flaky}
    if failed:
        return failed <= {one.id for one in after.tests if one.status == "passed"}
    failed = {one.command for one in before.commands if one.exit_code != 0}
    passing = {one.command for one in after.commands if one.exit_code == 0}
    return failed <= passing if failed else None


TableName = Literal["attempts", "findings", "events", "scores", "pulls"]
"""The tables that are exported and that the Python API returns."""


class AttemptRow(Record):
    """One attempt with its newest grade, as far as a list shows it."""

    id: str
    origin: Origin
    title: str | None = None
    """What a person would call it: the task, the pull request's title, else the request's first
    line."""
    detail: str | None = None
    """What the request says besides the title, shortened."""
    task: str | None = None
    task_digest: str | None = None
    variant: str | None = None
    variant_name: str | None = None
    agent: str | None = None
    model: str | None = None
    replay_of: str | None = None
    """The recorded attempt whose answers it was given again; such an attempt counts nowhere."""
    repo: str | None = None
    """Of an imported session, where it is known."""
    user: str | None = None
    experiment: str | None = None
    number: int = 1
    retry: int = 0
    parent: str | None = None
    exit: Exit
    cause: str | None = None
    """Shortened, as is `reason`."""
    started: Time | None = None
    ended: Time | None = None
    seconds: float | None = None
    input_tokens: int | None = None
    """Fresh input, without what a cache gave or took."""
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost: float | None = None
    lanes: int | None = None
    turns: int | None = None
    events: int | None = None
    """These three are None where there is no trace."""
    files_changed: int | None = None
    lines_added: int | None = None
    lines_removed: int | None = None
    """These three are None where there is no change on record."""
    grading: str | None = None
    version: int | None = None
    """Of the grader."""
    outcome: Literal["pass", "fail", "unscored"] | None = None
    """None when it is not graded."""
    outcome_cause: str | None = None
    reason: str | None = None
    """Of a failure, the most telling."""
    broken: int | None = None
    out_of_scope: int | None = None
    """Counts, None when it is not graded."""
    asked: bool | None = None
    fixed: bool | None = None
    """Whether the failure that the task starts from is gone."""

    @property
    def is_unscored(self) -> bool:
        """Whether something failed its grading; what awaits review is well."""
        return self.outcome not in ("pass", "fail") and not self.is_for_review

    @property
    def is_for_review(self) -> bool:
        """Whether its task has no automatic check, so that people and judges score it."""
        return self.outcome_cause == AWAITING_REVIEW


# What several turns used together.

_TOKEN_FIELDS = tuple(name for name in Usage.__struct_fields__ if name.endswith("_tokens"))
_token_counts = attrgetter(*_TOKEN_FIELDS)
_NO_USAGE = Usage()


def sum_token_counts(usages: Iterable[Usage]) -> Usage:
    """The sums of the tokens that are known, None where none is; what they cost is left out."""
    columns = zip(*map(_token_counts, usages), strict=True)
    sums = {
        name: sum(filter(None, column))
        for name, column in zip(_TOKEN_FIELDS, columns, strict=False)
        if column.count(None) < len(column)
    }
    return msgspec.structs.replace(_NO_USAGE, **sums)


def sum_usage(usages: Iterable[Usage]) -> Usage:
    """All of them as one. A cost is known only when that of every one that used anything is."""
    usage_list = list(usages)
    whole = sum_token_counts(usage_list)
    if all(usage.cost is None for usage in usage_list):
        return whole
    usage_list = [usage for usage in usage_list if usage != _NO_USAGE]
    costs = [usage.cost for usage in usage_list]
    if None in costs:
        return whole
    reported = all(usage.cost_from == "reported" for usage in usage_list)
    return msgspec.structs.replace(
        whole,
        cost=sum(cost for cost in costs if cost is not None),
        cost_from="reported" if reported else "prices",
    )


# Lists of attempts: which are wanted, and what a line of one shows besides the attempt.


MAX_SEARCH_CHARS = 200


class TimeRange(Record):
    """A stretch of time; None is without an end. Pages that take one show the picker."""

    since: Time | None = None
    """In an address also `24h`, `7d`, `4w` or a date."""
    until: Time | None = None
    """What begins then is outside; a date in an address includes its day."""


class AttemptFilter(TimeRange):
    """Which attempts are wanted; None is any."""

    task: str | None = None
    variant: str | None = None
    """By name."""
    outcome: Literal["pass", "fail", "unscored"] | None = None
    origin: Origin | None = None
    exit: Exit | None = None
    experiment: str | None = None
    agent: str | None = None
    model: str | None = None
    repo: str | None = None
    user: str | None = None
    rule: str | None = None
    """With a finding of this rule."""
    category: str | None = None
    min_cost: float | None = None
    """In US dollars: as much or more."""
    q: Annotated[str, msgspec.Meta(max_length=MAX_SEARCH_CHARS)] | None = None
    """Words that its requests, messages, commands, paths and findings have, or their beginnings;
    in quotes, a phrase."""


AttemptSort = Literal["newest", "oldest", "cost", "turns", "findings", "time"]
"""How a list is ordered; what is largest comes first, and what is not known last."""


class PageCursor(Record):
    """The last line of one page of a list: the next page begins after it."""

    started: Time | None
    id: str
    value: float | None = None
    """Of a list that is not in the order of time, what it is ordered by."""


class AttemptMarks(Record):
    """What the rules last said of an attempt, in short."""

    findings: int = 0
    rules: tuple[str, ...] = ()
    category: str | None = None
    iterations: int = 0
    converged_after: int | None = None
    """Iterations until nothing failed for good."""
    feedback: Rate | None = None
    """Of the failing checks, those whose output was acted on."""
    outdated: bool = False
    """Measured before the rules, their code or settings, or the grade changed."""


class FilterChoices(Record):
    """What a list can be narrowed to."""

    tasks: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    repos: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()


# An insight: what somebody learned from an attempt, kept for those who come after.

InsightType = Literal["agent_self_feedback"]


class Insight(Record):
    """One thing said of one attempt."""

    attempt: str
    repo: str | None = None
    """Of the task, where it has one."""
    type: InsightType
    text: str
    at: Time
