"""Build the structured log of a task from everything stored about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Literal

from closeloop.changes.file_kinds import is_test_file
from closeloop.metrics.attempt_measuring import (
    LEAST_SHOWN,
    MAX_EVENTS_READ_AT_ONCE,
    VERDICT,
    measure_attempts,
    measurement_basis,
)
from closeloop.process.rulebook import Rulebook
from closeloop.records.attempt import (
    Attempt,
    AttemptMarks,
    AttemptRow,
    CommandResult,
    Grade,
    TestRun,
    count_prompt_tokens,
)
from closeloop.records.change import Change
from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.estimate import Rate, pool_rates, wilson_rate
from closeloop.records.experiment_plan import (
    FileDifference,
    LoggedPlan,
    LoggedReview,
    MergeDecision,
    ReferenceDifference,
    SuiteCounts,
    TaskLog,
    TouchedFile,
)
from closeloop.records.orchestration import OrchestrationHistory
from closeloop.records.pull_request import Correction, Delivery, PullRow
from closeloop.records.record import Record
from closeloop.records.task import Task
from closeloop.records.team_rules import HumanReview, ReviewItem
from closeloop.records.trace import Trace
from closeloop.reviews.authorship import AgentSignsByName
from closeloop.store import Store
from closeloop.tasks.task_sets import require_unsealed
from closeloop.text.patches import count_changed_lines, has_line_counts, parse_patch
from closeloop.text.search_text import find_request
from closeloop.text.wording import matches_globs, natural_order

MAX_FAILING = 50
MAX_DIFFERING_LINES = 200
"""Lines of one file and side."""


class HumanVerdicts(Record):
    """What people did with the work of one attempt."""

    delivery: Delivery | None = None
    pull: PullRow | None = None
    reviews: tuple[HumanReview, ...] = ()
    would_merge: tuple[bool, ...] = ()
    """The last answer of each person, in a review or as a score."""
    corrections: tuple[Correction, ...] = ()


def load_task_log(
    store: Store, name: str, agents: AgentSignsByName, trace: Trace | None = None
) -> TaskLog:
    """Load the log of one attempt, by its id or a prefix of it; for a task, no trace is read.

    For a session the trace is read, unless it is given.
    """
    attempt = store.load_attempt(name)
    task = store.load_task(attempt.task_digest) if attempt.task_digest else None
    variant = store.load_variant(attempt.variant) if attempt.variant else None
    session = store.load_session(attempt.id) if attempt.origin == "production" else None
    grade, change = store.load_grade(attempt.id), store.load_change(attempt.id)
    plan = attempt.links.get("plan")
    history = store.plans.load_story(plan) if plan else None
    people = load_human_verdicts(store, attempt, agents)
    if change is None and people.pull is not None:
        from closeloop.reviews.pull_lifecycle import load_pull, load_pull_change

        row = people.pull
        change = load_pull_change(load_pull(row.repo, row.pull, store, agents), store)
    files = list_touched_files(change, task, grade)
    recovered = None
    if attempt.origin == "production" and trace is None:
        trace = store.load_trace(attempt.id)
    if change is None and attempt.origin == "production" and trace is not None:
        recovered = list_recovered_files(trace)
    after = build_suite_counts(grade.after if grade else None)
    if history is not None and history.ending is not None:
        after = count_commands(history.ending.checks)
    return TaskLog(
        attempt=attempt.id,
        origin=attempt.origin,
        task=attempt.task,
        description=describe_task(store, attempt, task, history, trace),
        repo=attempt.repo or (task.repo if task else None),
        variant=variant.name if variant else None,
        agent=variant.agent if variant else session.agent if session else None,
        model=variant.model if variant else session.model if session else None,
        started=attempt.started,
        ended=attempt.ended,
        cost=attempt.usage.cost,
        outcome=grade.outcome.result if grade else None,
        reasons=list_reasons(grade),
        files=files if recovered is None else recovered,
        recovered=recovered is not None,
        tests_before=build_suite_counts(grade.before if grade else None),
        tests_after=after,
        broken=grade.broken if grade else (),
        mended=list_fixed_tests(grade),
        review_cycles=count_review_cycles(people),
        reviews=tuple(map(_logged_review, people.reviews)),
        corrections=people.corrections,
        merge_decision=decide_merge(people),
        pull=f"{people.pull.repo}#{people.pull.pull}" if people.pull else None,
        reference=compare_with_reference(task, change, grade),
        plan=None if history is None else summarise_story(store, history),
    )


def describe_task(
    store: Store,
    attempt: Attempt,
    task: Task | None,
    history: OrchestrationHistory | None,
    trace: Trace | None,
) -> str:
    """Return the request; for a session, the one that its title is made of."""
    if task is not None:
        return task.prompt
    if history is not None:
        return history.plan.request
    trace = trace or store.load_trace(attempt.id)
    return find_request(trace) if trace else ""


def list_reasons(grade: Grade | None) -> tuple[str, ...]:
    if grade is None:
        return ()
    return (*grade.outcome.reasons, *filter(None, (grade.outcome.cause,)))


def list_touched_files(
    change: Change | None, task: Task | None, grade: Grade | None
) -> tuple[TouchedFile, ...] | None:
    if change is None:
        return None
    reference_paths = {file.path for file in parse_reference(task).files} if task else set()
    outside = grade.out_of_scope if grade else ()
    has_scope = grade is not None and task is not None and bool(task.scope)
    return tuple(
        TouchedFile(
            path=file.path,
            status=file.status,
            added=file.added if has_line_counts(file) else None,
            removed=file.removed if has_line_counts(file) else None,
            in_scope=file.path not in outside if has_scope else None,
            in_reference=file.path in reference_paths if reference_paths else None,
        )
        for file in change.files
    )


def list_recovered_files(trace: Trace) -> tuple[TouchedFile, ...] | None:
    """List the files changed by the edits in a recording; None if it has no edits or is long."""
    if len(trace.events) > MAX_EVENTS_READ_AT_ONCE:
        return None
    from closeloop.process.edit_contents import recover_change
    from closeloop.process.trace_reading import build_reading

    recovered = recover_change(build_reading(trace))
    files = tuple(
        TouchedFile(path=file.path, status=file.status, added=file.added, removed=file.removed)
        for file in recovered
    )
    return files or None


def parse_reference(task: Task) -> Change:
    """Return the reference change of a task; an empty one if it is missing or no patch."""
    try:
        return parse_patch(task.reference or "", base=task.base)
    except BadInput:
        return Change()


# Tests


def build_suite_counts(run: TestRun | None) -> SuiteCounts | None:
    """Count results by test, else by command; None if nothing ran."""
    if run is None or (not run.tests and not run.commands):
        return None
    if not run.tests:
        return count_commands(run.commands)
    counts = Counter(test.status for test in run.tests)
    failing = [test.id for test in run.tests if test.status in ("failed", "error")]
    return SuiteCounts(
        of="tests",
        passed=counts["passed"],
        failed=len(failing),
        skipped=counts["skipped"],
        failing=tuple(failing[:MAX_FAILING]),
    )


def count_commands(commands: Sequence[CommandResult]) -> SuiteCounts | None:
    if not commands:
        return None
    failing = [command.command for command in commands if command.exit_code != 0]
    return SuiteCounts(
        of="commands",
        passed=len(commands) - len(failing),
        failed=len(failing),
        failing=tuple(failing[:MAX_FAILING]),
    )


def list_fixed_tests(grade: Grade | None) -> tuple[str, ...]:
    """Return the tests that failed before and pass now."""
    if grade is None or grade.before is None or grade.after is None:
        return ()
    failing = {test.id for test in grade.before.tests if test.status in ("failed", "error")}
    return tuple(
        test.id for test in grade.after.tests if test.status == "passed" and test.id in failing
    )


# People


def load_human_verdicts(store: Store, attempt: Attempt, agents: AgentSignsByName) -> HumanVerdicts:
    """Load the pull request, the reviews in the queue, and every correction, each once."""
    pull = next(iter(store.pulls.list_pulls(attempt=attempt.id, limit=1)), None)
    reviews = store.reviews.list_reviews(item=attempt.id)
    repo, number = attempt.repo or "", None
    corrections: list[Correction] = []
    if pull is not None:
        repo, number = pull.repo, pull.pull
        reviews += store.reviews.list_reviews(item=f"{repo}#{number}")
        from closeloop.reviews.pull_lifecycle import load_pull
        from closeloop.reviews.review_corrections import list_corrections

        corrections += list_corrections(load_pull(repo, number, store, agents))
        corrections += store.memory.list_corrections(repo=repo, pull=number)
    done_reviews = tuple(review for review in reviews if review.state == "done")
    if done_reviews:
        from closeloop.reviews.review_corrections import corrections_from_review

        item = ReviewItem(id=attempt.id, kind="attempt", title="", repo=repo)
        corrections += [
            correction
            for review in done_reviews
            for correction in corrections_from_review(review, item)
        ]
    newest = {
        correction.id: correction for correction in corrections
    }  # tags may have been added since
    return HumanVerdicts(
        delivery=store.pulls.load_delivery(attempt.id),
        pull=pull,
        reviews=done_reviews,
        would_merge=tuple(
            score.value >= LEAST_SHOWN
            for score in store.scores.list_scores(attempt.id)
            if (score.name, score.source) == (VERDICT, "person") and score.value is not None
        ),
        corrections=tuple(
            sorted(newest.values(), key=lambda correction: (correction.at, correction.id))
        ),
    )


def count_review_cycles(people: HumanVerdicts) -> int | None:
    """Return the review rounds of the pull request; else 1 if somebody refused to merge it."""
    if people.delivery is not None and people.delivery.cycles is not None:
        return people.delivery.cycles
    if people.pull is not None:
        return people.pull.rounds
    return int(False in people.would_merge) if people.would_merge else None


def decide_merge(people: HumanVerdicts) -> MergeDecision | None:
    """Return the state of the pull request; else the reviewers' answer."""
    merged = people.delivery.merged if people.delivery else None
    if people.pull is not None and people.pull.state == "open":
        return "open"
    if merged is not None:
        return "merged" if merged else "not merged"
    answers = {*people.would_merge}
    if len(answers) > 1:
        return "split"
    return None if not answers else "would merge" if True in answers else "would not merge"


def _logged_review(review: HumanReview) -> LoggedReview:
    return LoggedReview(
        by=review.reviewer,
        at=review.at,
        merge=review.merge,
        tags=review.tags or (),
        notes=review.notes,
        seconds=review.seconds,
    )


# The reference compared with the attempt's change


def compare_with_reference(
    task: Task | None, change: Change | None, grade: Grade | None
) -> ReferenceDifference | None:
    """Compare the change of an attempt with the task's reference; None without either."""
    if task is None or not task.reference or change is None:
        return None
    reference = parse_reference(task)
    left_out = {*grade.restored, *grade.set_aside} if grade else set()

    def counted_paths(compared: Change) -> set[str]:
        return {
            file.path
            for file in compared.files
            if not is_test_file(file.path) and not matches_globs(file.path, task.protected)
        } - left_out

    changed_paths, reference_paths = counted_paths(change), counted_paths(reference)
    return ReferenceDifference(
        similarity=grade.similarity if grade else None,
        files_in_both=tuple(sorted(changed_paths & reference_paths)),
        only_attempt=tuple(sorted(changed_paths - reference_paths)),
        only_reference=tuple(sorted(reference_paths - changed_paths)),
        files=tuple(compare_files(change.patch, reference.patch, changed_paths | reference_paths)),
        change=reference,
    )


def compare_files(patch: str, reference: str, paths: Collection[str]) -> list[FileDifference]:
    """Compare file by file: changed lines in both, and those in only one."""
    attempt_lines, reference_lines = (
        count_changed_lines(patch, paths),
        count_changed_lines(reference, paths),
    )
    shared_lines, only_attempt, only_reference = (
        attempt_lines & reference_lines,
        attempt_lines - reference_lines,
        reference_lines - attempt_lines,
    )
    return [
        FileDifference(
            path=path,
            both=sum(
                count for (line_path, _, _), count in shared_lines.items() if line_path == path
            ),
            only_attempt=tuple(extra[:MAX_DIFFERING_LINES]),
            only_reference=tuple(lacking[:MAX_DIFFERING_LINES]),
            more=sum(max(0, len(lines) - MAX_DIFFERING_LINES) for lines in (extra, lacking)),
        )
        for path in sorted(paths)
        for extra, lacking in [
            (_signed_lines(only_attempt, path), _signed_lines(only_reference, path))
        ]
    ]


def _signed_lines(lines: Counter[tuple[str, str, str]], path: str) -> list[str]:
    return [f"{sign}{text}" for line_path, sign, text in lines.elements() if line_path == path]


# Plans


def summarise_story(store: Store, history: OrchestrationHistory) -> LoggedPlan:
    """Summarise the tasks of a plan, with the numbers that `list plans` shows."""
    from closeloop.orchestration.plan_execution import measure_plan_rates

    rates, ending = measure_plan_rates(history), history.ending
    usage = ending.usage if ending else rates.usage
    return LoggedPlan(
        id=history.plan.id,
        passed=ending.passed if ending else None,
        summary=ending.summary if ending else "",
        grade=store.plans.load_grade(history.plan.id) if ending else None,
        tasks=len(history.plan.tasks),
        first_try=_count_pair(rates.first_try),
        after_feedback=_count_pair(rates.after_feedback),
        final=_count_pair(rates.final),
        tries=len(history.tries),
        prompt_tokens=count_prompt_tokens(usage),
        completion_tokens=usage.output_tokens,
        cost=usage.cost,
        seconds=ending.seconds if ending else None,
    )


def _count_pair(rate: Rate | None) -> tuple[int, int] | None:
    return None if rate is None else (int(rate.hits), rate.of)


# One task over its repeats: iterations, whether output was used, whether the failure is gone.
#
# The three metrics of a first evaluation of an agent's loop, for every run of one task that
# sometimes spirals.


OutcomeWord = Literal["pass", "fail", "unscored"]


class TaskRepeat(Record):
    """One attempt at the task."""

    attempt: str
    variant: str
    number: int
    outcome: OutcomeWord
    iterations: int | None = None
    """Number of iterations (changes, then a check); None if nothing was recorded."""
    converged_after: int | None = None
    """Iterations until nothing failed any more; None if that never happened."""
    output_used: Rate | None = None
    """Share of failing checks whose output was acted on; None if no check failed."""
    fixed: bool | None = None
    """Whether the failure that the task starts from is fixed; None if unknown."""
    replay_of: str | None = None
    """The replayed attempt; replays are excluded from the sums."""


class VariantRepeats(Record):
    """All repeats of one variant together."""

    variant: str
    repeats: int
    iterations: float | None
    """Mean number of iterations."""
    converged: Rate | None
    """Share of repeats in which everything passed in the end, of those with a failing check."""
    output_used: Rate | None
    """Over the failing checks of all repeats."""
    fixed: Rate | None


class TaskRepeats(Record):
    """A task, by repeat and by variant."""

    task: str
    variants: tuple[VariantRepeats, ...]
    repeats: tuple[TaskRepeat, ...]


def require_tried(store: Store, task: str | None, variant: str | None) -> None:
    """Raise BadInput for a task or variant without attempts; held-out tasks are never named."""
    tasks = [*store.numbers.load_tasks().values()] if task else []
    if tasks and task not in {task.id for task in tasks}:
        raise unknown_name_error(
            "tried task",
            str(task),
            [task.id for task in tasks if task.split == "dev"],
            "closeloop task sets",
        )
    variants = (
        {variant.name for variant in store.numbers.load_variants().values()} if variant else set()
    )
    if variants and variant not in variants:
        raise unknown_name_error("tried variant", str(variant), variants)


def load_task_repeats(
    store: Store, rulebook: Rulebook, name: str, would_merge: Mapping[str, float]
) -> TaskRepeats:
    """Load every repeat of the task's latest version; measure those that need it."""
    newest = {task.id: task for task in store.numbers.load_tasks().values()}
    if name not in newest:
        known_ids = [task.id for task in newest.values() if task.split == "dev"]
        raise unknown_name_error("task", name, known_ids)
    require_unsealed(newest[name])
    rows = store.list_attempts(task_digests=[newest[name].digest])
    for _ in measure_attempts(store, rows, rulebook):
        pass
    bases = {row.id: measurement_basis(row, rulebook) for row in rows}
    marks = store.listing.load_marks(bases, bases)
    return next(iter(group_task_repeats(rows, marks, would_merge)), _sum_repeats(name, ()))


def group_task_repeats(
    rows: Iterable[AttemptRow], marks: Mapping[str, AttemptMarks], would_merge: Mapping[str, float]
) -> list[TaskRepeats]:
    """Return a table per task, sorted by name, with the last try of each repeat.

    Without a check, the outcome is that of people: whether most would merge it.
    """
    last_tries: dict[tuple[str | None, str | None, int], AttemptRow] = {}
    for row in sorted(rows, key=lambda row: row.retry):
        if row.task is not None:
            last_tries[row.task_digest, row.variant, row.number] = row
    by_task: dict[str, list[TaskRepeat]] = {}
    for row in last_tries.values():
        repeat = _build_repeat(row, marks.get(row.id), outcome_with_review(row, would_merge))
        by_task.setdefault(row.task or "", []).append(repeat)
    return [_sum_repeats(task, by_task[task]) for task in sorted(by_task, key=natural_order)]


def outcome_with_review(row: AttemptRow, would_merge: Mapping[str, float]) -> OutcomeWord:
    """Return the grade's outcome; without a check, whether most reviewers would merge it."""
    if row.is_for_review and row.id in would_merge:
        return "pass" if would_merge[row.id] > 0.5 else "fail"
    return row.outcome or "unscored"


def _build_repeat(row: AttemptRow, marks: AttemptMarks | None, outcome: OutcomeWord) -> TaskRepeat:
    return TaskRepeat(
        attempt=row.id,
        variant=row.variant_name or "?",
        number=row.number,
        outcome=outcome,
        iterations=marks.iterations if marks else None,
        converged_after=marks.converged_after if marks else None,
        output_used=marks.feedback if marks else None,
        fixed=row.fixed,
        replay_of=row.replay_of,
    )


def _sum_repeats(task: str, repeats: Sequence[TaskRepeat]) -> TaskRepeats:
    ordered = tuple(
        sorted(repeats, key=lambda repeat: (repeat.variant, repeat.number, repeat.attempt))
    )
    originals = [repeat for repeat in ordered if repeat.replay_of is None]
    names = dict.fromkeys(repeat.variant for repeat in originals)
    return TaskRepeats(
        task=task,
        variants=tuple(
            _sum_variant(name, [repeat for repeat in originals if repeat.variant == name])
            for name in names
        ),
        repeats=ordered,
    )


def _sum_variant(name: str, repeats: Sequence[TaskRepeat]) -> VariantRepeats:
    iterations = [repeat.iterations for repeat in repeats if repeat.iterations is not None]
    failing = [
        repeat for repeat in repeats if repeat.output_used or repeat.converged_after is not None
    ]
    fixed_flags = [repeat.fixed for repeat in repeats if repeat.fixed is not None]
    return VariantRepeats(
        variant=name,
        repeats=len(repeats),
        iterations=fmean(iterations) if iterations else None,
        converged=wilson_rate(
            sum(repeat.converged_after is not None for repeat in failing), len(failing)
        ),
        output_used=pool_rates(*(repeat.output_used for repeat in repeats)),
        fixed=wilson_rate(sum(fixed_flags), len(fixed_flags)),
    )
