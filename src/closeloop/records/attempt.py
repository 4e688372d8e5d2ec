"""An attempt: one run of an agent on a task, with its result."""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import attrgetter
from typing import Annotated, Literal

import msgspec

from closeloop.records.estimate import Rate
from closeloop.records.record import Record, Time
from closeloop.records.task import CONTROL_AGENTS

Exit = Literal["finished", "gave_up", "out_of_time", "idle", "out_of_budget", "crashed", "machine"]
Origin = Literal["experiment", "production"]
_INCOMPLETE_RECORDING = re.compile(r"\b(?:recording|stream|log) ends\b|no completion was reported")


def is_incomplete_recording(origin: Origin, cause: str | None) -> bool:
    """Whether a recording just stops, which says nothing about the agent: it may still work."""
    return origin == "production" and _INCOMPLETE_RECORDING.search(cause or "") is not None


class Usage(Record):
    """Tokens and cost as counted by the provider. None means unknown, not zero."""

    input_tokens: int | None = None
    """Uncached input: neither read from a cache nor written to one."""
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    """Part of the output tokens; None if the provider does not report it."""
    cost: float | None = None
    """In US dollars."""
    cost_from: Literal["reported", "prices"] | None = None


def count_prompt_tokens(usage: Usage) -> int | None:
    """Count all input tokens, cached or not, as orchestrators do; None if unknown."""
    counts = (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
    known_counts = [count for count in counts if count is not None]
    return sum(known_counts) if known_counts else None


class Attempt(Record):
    """One run of a variant on a task, or an imported session."""

    id: str
    origin: Origin
    task: str | None = None
    """Id of the task; None for an imported session."""
    task_digest: str | None = None
    variant: str | None = None
    """Digest of the variant."""
    experiment: str | None = None
    """The experiment it was run for.

    Other experiments with the same task and variant count it too.
    """
    number: int = 1
    """Number of the repeat, from 1."""
    retry: int = 0
    """How often this repeat was restarted because it could not be scored."""
    parent: str | None = None
    """The attempt that this one retries; for a session, its previous, shorter version."""
    started: Time | None = None
    ended: Time | None = None
    exit: Exit
    cause: str | None = None
    """Why it did not finish."""
    usage: Usage = Usage()
    summary: str | None = None
    """The agent's last message."""
    sandbox: str | None = None
    """The sandbox that was used, and the limits it did not enforce."""
    branch: str | None = None
    repo: str | None = None
    user: str | None = None
    links: dict[str, str] = {}


class TestResult(Record):
    """The result of one test in one run."""

    id: str
    status: Literal["passed", "failed", "error", "skipped"]
    seconds: float | None = None
    message: str | None = None
    """Why it failed, truncated."""


class CommandResult(Record):
    """The result of one acceptance command in one run."""

    command: str
    exit_code: int | None
    seconds: float
    output: str
    """Start and end of its output."""
    stopped: str | None = None
    """The limit that stopped it, if any."""


class TestRun(Record):
    """One run of a task's tests: at the base, or after a change."""

    when: Literal["before", "after"]
    tests: tuple[TestResult, ...] = ()
    commands: tuple[CommandResult, ...] = ()
    """The test command first, if there is one, then the acceptance commands."""
    flaky: tuple[str, ...] = ()
    """Tests whose result differed between repeats."""
    trouble: str | None = None
    """The machine fault, if one makes this run unusable."""
    ran: bool = False
    """Whether there is evidence that at least one test ran."""
    notes: tuple[str, ...] = ()
    """Contradictions, such as exit code 0 after a failed test. A run with any is never a pass."""
    printed_passes: int | None = None
    """Number of passed tests in the runner's own summary line, if it prints one."""


class Proof(Record):
    """The result of a task's control runs. A task counts only if it is proved."""

    task: str
    grading: str
    version: int = 1
    """Version of the grader."""
    state: Literal["proved", "unproved", "unchecked"]
    """Unchecked: only the base was run, because grading needs it."""
    reasons: tuple[str, ...] = ()
    """Why it is not proved; for a proved task, what its tests do not cover."""
    before: TestRun | None = None
    reference: TestRun | None = None
    repeats: int = 1
    at: Time | None = None


AWAITING_REVIEW = "awaiting review"
"""Cause of an attempt at a task without an automatic check: nothing failed, nobody has reviewed it.
"""


class Outcome(Record):
    """Pass, fail, or unscored with its cause; derived from facts when read."""

    result: Literal["pass", "fail", "unscored"]
    cause: str | None = None
    """For unscored: the infrastructure that failed, or that it awaits review."""
    reasons: tuple[str, ...] = ()
    """For fail: the violated conditions, most important first."""


PassEvidence = Literal["confirmed", "reported", "weak", "by answer"]


class IntegrityCheck(Record):
    """One condition that a result must meet to be trusted."""

    name: Literal["restored", "unshadowed", "controls", "confirmed", "agreement", "perturbed"]
    state: Literal["held", "violated", "not applicable"]
    detail: str = ""
    """What was examined, or the evidence of a violation."""


class Grade(Record):
    """The result of testing an attempt's change."""

    attempt: str
    grading: str
    """The task's grading digest. When it changes, the attempt is graded again."""
    version: int
    """Version of the grader."""
    outcome: Outcome
    before: TestRun | None = None
    after: TestRun | None = None
    fail_to_pass: tuple[int, int] | None = None
    """Fail-to-pass tests: how many pass now, of how many."""
    pass_to_pass: tuple[int, int] | None = None
    """Pass-to-pass tests: how many still pass, of how many."""
    broken: tuple[str, ...] = ()
    """Tests that passed before and fail now."""
    out_of_scope: tuple[str, ...] = ()
    """Files changed outside the declared scope."""
    restored: tuple[str, ...] = ()
    """Files changed by the agent that decide its verdict, and so were restored: protected files,
    test configuration, and what the acceptance runs through."""
    set_aside: tuple[str, ...] = ()
    """Other tests that the agent added or changed; they are not counted."""
    integrity: tuple[IntegrityCheck, ...] = ()
    """The conditions that a pass must meet, and whether it does."""
    evidence: PassEvidence | None = None
    """How a pass is known: tests confirmed in a second process, reported once, exit codes only, or
    the agent's answer."""
    files_precision: float | None = None
    files_recall: float | None = None
    """Share of the reference's changed files that the attempt changed too."""
    similarity: float | None = None
    """Dice similarity of the changed lines to those of the reference, without tests."""
    asked: bool | None = None
    """Whether the agent asked a question before its first edit; None without a recording."""
    missing_names: tuple[str, ...] | None = None
    """Names used only by the change that a failing test reports as missing; None if not examined.
    """


def lacks_sandbox(grade: Grade) -> bool:
    """Whether only the missing sandbox kept a pass from being confirmed."""
    held_checks = {check.name for check in grade.integrity if check.state == "held"}
    return grade.evidence == "reported" and held_checks >= {"confirmed", "perturbed"}


def is_failure_fixed(grade: Grade) -> bool | None:
    """Whether everything that failed at the base passes now; None if nothing failed or was
    scored."""
    before, after = grade.before, grade.after
    if grade.outcome.result == "unscored" or before is None:
        return None
    if after is None or any(check.state == "violated" for check in grade.integrity):
        return False if grade.outcome.result == "fail" else None
    if grade.fail_to_pass is not None and grade.fail_to_pass[1]:
        return grade.fail_to_pass[0] == grade.fail_to_pass[1]
    failed = {test.id for test in before.tests if test.status in ("failed", "error")}
    failed -= {*before.flaky, *after.flaky}
    if failed:
        return failed <= {test.id for test in after.tests if test.status == "passed"}
    failed = {command.command for command in before.commands if command.exit_code != 0}
    passing = {command.command for command in after.commands if command.exit_code == 0}
    return failed <= passing if failed else None


TableName = Literal["attempts", "findings", "events", "scores", "pulls"]
"""The tables that `export` writes and the Python API returns."""


class AttemptRow(Record):
    """One attempt with its latest grade, as shown in lists."""

    id: str
    origin: Origin
    title: str | None = None
    """The task's name, the pull request's title, or the first line of the request."""
    detail: str | None = None
    """The request without its title, truncated."""
    task: str | None = None
    task_digest: str | None = None
    variant: str | None = None
    variant_name: str | None = None
    agent: str | None = None
    model: str | None = None
    replay_of: str | None = None
    """The recorded attempt that this one replays. Replays are not counted anywhere."""
    repo: str | None = None
    """Repository of an imported session, if known."""
    user: str | None = None
    experiment: str | None = None
    number: int = 1
    retry: int = 0
    parent: str | None = None
    exit: Exit
    cause: str | None = None
    """Truncated, like `reason`."""
    started: Time | None = None
    ended: Time | None = None
    seconds: float | None = None
    input_tokens: int | None = None
    """Uncached input, without cache reads and writes."""
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost: float | None = None
    lanes: int | None = None
    turns: int | None = None
    events: int | None = None
    """This and the next two are None if there is no trace."""
    files_changed: int | None = None
    lines_added: int | None = None
    lines_removed: int | None = None
    """This and the two before are None if no change is recorded."""
    grading: str | None = None
    version: int | None = None
    """Version of the grader."""
    outcome: Literal["pass", "fail", "unscored"] | None = None
    """None if it is not graded."""
    outcome_cause: str | None = None
    reason: str | None = None
    """The most important reason of a failure."""
    broken: int | None = None
    out_of_scope: int | None = None
    """This and other counts are None if it is not graded."""
    asked: bool | None = None
    fixed: bool | None = None
    """Whether the failure that the task starts from is fixed."""
    evidence: PassEvidence | None = None
    """How a pass is known; None if it did not pass, or if an older version graded it."""

    @property
    def is_unscored(self) -> bool:
        """Whether its grading failed. An attempt that awaits review is not unscored."""
        return self.outcome not in ("pass", "fail") and not self.is_for_review

    @property
    def is_control(self) -> bool:
        """Whether a control made it, and not an agent. Controls count only in comparisons."""
        return self.origin == "experiment" and self.agent in CONTROL_AGENTS

    @property
    def is_for_review(self) -> bool:
        """Whether its task has no automatic check, so that people and judges score it."""
        return self.outcome_cause == AWAITING_REVIEW


# The usage of several turns together.

_TOKEN_FIELDS = tuple(name for name in Usage.__struct_fields__ if name.endswith("_tokens"))
_token_counts = attrgetter(*_TOKEN_FIELDS)
_NO_USAGE = Usage()


def sum_token_counts(usages: Iterable[Usage]) -> Usage:
    """Sum the known token counts, None where none is known. Costs are left out."""
    columns = zip(*map(_token_counts, usages), strict=True)
    sums = {
        name: sum(filter(None, column))
        for name, column in zip(_TOKEN_FIELDS, columns, strict=False)
        if column.count(None) < len(column)
    }
    return msgspec.structs.replace(_NO_USAGE, **sums)


def count_without_output(usages: Iterable[Usage]) -> tuple[int, int]:
    """Count the usages with input whose output is unknown, and all usages with input."""
    outputs = [usage.output_tokens for usage in usages if usage.input_tokens is not None]
    return outputs.count(None), len(outputs)


def sum_usage(usages: Iterable[Usage]) -> Usage:
    """Sum usages. The cost is known only if it is known for every usage with tokens.

    The output is known only if at most a tenth of the usages with input lack it: less is no total.
    """
    usage_list = list(usages)
    total = sum_token_counts(usage_list)
    lacking, counted = count_without_output(usage_list)
    if lacking * 10 > counted:
        total = msgspec.structs.replace(total, output_tokens=None, reasoning_tokens=None)
    if all(usage.cost is None for usage in usage_list):
        return total
    usage_list = [usage for usage in usage_list if usage != _NO_USAGE]
    costs = [usage.cost for usage in usage_list]
    if None in costs:
        return total
    reported = all(usage.cost_from == "reported" for usage in usage_list)
    return msgspec.structs.replace(
        total,
        cost=sum(cost for cost in costs if cost is not None),
        cost_from="reported" if reported else "prices",
    )


# Lists of attempts: the filter, and what a row shows besides the attempt.


MAX_SEARCH_CHARS = 200


class TimeRange(Record):
    """A time range; None is unbounded. Pages that accept one show the picker."""

    since: Time | None = None
    """In a URL also `24h`, `7d`, `4w` or a date."""
    until: Time | None = None
    """Exclusive; a date in a URL includes that day."""


class AttemptFilter(TimeRange):
    """Conditions that attempts must meet; None is any."""

    task: str | None = None
    variant: str | None = None
    """Name of the variant."""
    outcome: Literal["pass", "fail", "unscored"] | None = None
    origin: Origin | None = None
    exit: Exit | None = None
    experiment: str | None = None
    agent: str | None = None
    model: str | None = None
    repo: str | None = None
    """As `owner/name`, or any address of it."""
    user: str | None = None
    rule: str | None = None
    """Only attempts with a finding of this rule."""
    prompt: str | None = None
    """Id of the prompt that they ran under; in a URL also its name or the beginning of its id."""
    arm: str | None = None
    """Arm that they were assigned to: `memory`, `control`, or `TRIAL: VARIANT`."""
    category: str | None = None
    min_cost: float | None = None
    """Minimum cost in US dollars."""
    q: Annotated[str, msgspec.Meta(max_length=MAX_SEARCH_CHARS)] | None = None
    """Words, or beginnings of words, in its requests, messages, commands, paths and findings; in
    quotes, a phrase."""


AttemptSort = Literal["newest", "oldest", "cost", "turns", "findings", "time"]
"""Order of a list: largest values first, unknown ones last."""


class PageCursor(Record):
    """The last row of one page of a list; the next page starts after it."""

    started: Time | None
    id: str
    value: float | None = None
    """The sort value, if the list is not sorted by time."""


class AttemptMarks(Record):
    """Summary of an attempt's latest measurement."""

    findings: int = 0
    rules: tuple[str, ...] = ()
    category: str | None = None
    iterations: int = 0
    converged_after: int | None = None
    """Number of iterations until no check failed any more."""
    feedback: Rate | None = None
    """Share of failing checks whose output the agent used."""
    outdated: bool = False
    """Whether the rules, their code, their settings or the grade changed since it was measured."""


class FilterChoices(Record):
    """Values that a list can be filtered by."""

    tasks: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    repos: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    prompts: dict[str, str] = {}
    """Name or first line by id, the most used first."""
    arms: tuple[str, ...] = ()


# An insight: what somebody learned from an attempt, saved for later work.

InsightType = Literal["agent_self_feedback"]


class Insight(Record):
    """One statement about one attempt."""

    attempt: str
    repo: str | None = None
    """Repository of the task, if it has one."""
    type: InsightType
    text: str
    at: Time
