"""The attempt table: the attempts that count, by column, as the input of metrics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from math import isnan
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from closeloop.metrics.attempt_measuring import (
    MIN_PARALLEL_EVENTS,
    basis_from_grade,
    load_said_columns,
    measure_missing,
)
from closeloop.process.rulebook import Rulebook
from closeloop.records.estimate import Metric
from closeloop.records.experiment_plan import TrialAssignment
from closeloop.records.pull_request import PullRow
from closeloop.records.record import Record
from closeloop.records.task import Task, Variant
from closeloop.reviews.agent_prompts import PromptIndex
from closeloop.store import Store
from closeloop.store.experiment_section import name_arm
from closeloop.store.fact_rows import MAX_QUERY_VALUES
from closeloop.store.metrics_section import RATE_NAMES, AttemptSpan
from closeloop.store.packed_columns import (
    AttemptColumns,
    Column,
    PackedColumns,
    RowPlacer,
    TextColumn,
    align_columns,
    filter_rows,
    make_text_column,
)
from closeloop.tasks.task_sets import held_out_digests, hide_task
from closeloop.text.wording import count_with_noun, repository_name

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


# The origin of each attempt: agent, requester, prompt, and arm of a trial.


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def load_origin_columns(
    store: Store, attempt_columns: AttemptColumns, variants: Mapping[str, Variant]
) -> dict[str, TextColumn]:
    """Return the agent, the requester and the prompt of each attempt.

    The pull request is used if nothing was recorded, or if the recording lacks the value.
    """
    pulls = {
        row.attempt: row for row in _list_pulls_of(store, attempt_columns.attempts) if row.attempt
    }
    index, columns = PromptIndex(store), attempt_columns.columns
    if not pulls and not index.tells_of_attempts:
        ids = {
            key: index.find_prompt_id("", variant=variant.prompt)
            for key, variant in variants.items()
        }
        return {"prompt": columns["variant"].translated(ids.get)}
    prompts = []
    agents, users = columns["agent"].tolist(), columns["user"].tolist()
    names = ("variant", "repo", "started", "events")
    rows = zip(attempt_columns.attempts, *(columns[name].tolist() for name in names), strict=True)
    for row_number, (name, digest, repo, started, events) in enumerate(rows):
        pull, variant = pulls.get(name), variants.get(digest)
        if pull is not None:
            agents[row_number], users[row_number] = _pull_origin(
                pull, agents[row_number], users[row_number], is_recorded=not isnan(events)
            )
        prompt = index.find_prompt_id(
            name,
            variant=variant.prompt if variant else None,
            prompt_name=pull.prompt if pull else None,
            agent=variant.agent if variant else agents[row_number],
            repo=pull.repo if pull else repo and repository_name(repo),
            started=None if isnan(started) else _EPOCH + timedelta(microseconds=started),
        )
        prompts.append(prompt)
    return {
        "agent": make_text_column(agents),
        "user": make_text_column(users),
        "prompt": make_text_column(prompts),
    }


def _list_pulls_of(store: Store, attempts: Sequence[str]) -> list[PullRow]:
    """List the agents' pull requests of some attempts; for many attempts, list all."""
    listed_attempts = attempts if len(attempts) <= MAX_QUERY_VALUES else None
    return store.pulls.list_pulls(agent=True, attempts=listed_attempts)


def _pull_origin(
    pull: PullRow, agent: str | None, user: str | None, *, is_recorded: bool
) -> tuple[str | None, str | None]:
    """Return agent and requester; for work without a recording, those of the pull request."""
    if not is_recorded:
        return pull.agent, pull.asked_by
    return agent or pull.agent, user or pull.asked_by


def load_pull_cost_column(store: Store, attempts: Sequence[str], placer: RowPlacer) -> Array:
    """Return, by attempt with a pull request, the cost of all recorded work behind it."""
    import numpy as np

    from closeloop.reviews.pull_board import load_pull_costs

    rows = {row.attempt: row for row in _list_pulls_of(store, attempts) if row.attempt}
    places = placer.find_ids([*rows]).tolist()
    if not any(place >= 0 for place in places):
        return np.broadcast_to(np.nan, placer.size)
    column = np.full(placer.size, np.nan)
    listed = [row for row, place in zip(rows.values(), places, strict=True) if place >= 0]
    costs = load_pull_costs(store, listed, store.pulls.list_pulls(agent=True))
    for row, place in zip(rows.values(), places, strict=True):
        if place >= 0:
            cost = costs[row.repo, row.pull].cost
            column[place] = np.nan if cost is None else cost
    return column


def load_arm_column(store: Store, attempt_columns: AttemptColumns) -> TextColumn:
    """Return the arms of each attempt.

    Those of memory (`memory`, `control`), and of trials (`TRIAL: VARIANT`). An attempt is found by
    its own name, its branch or its task.
    """
    import numpy as np

    arms: dict[str | tuple[str | None, str | None], dict[str, None]] = {}
    for record in store.memory.list_context_records():
        for key in (record.key, (record.repo, record.key)):
            arms.setdefault(key, {})[record.arm] = None
    assigned: dict[str, list[TrialAssignment]] = {}
    for trial in store.trials.list_trial_names():
        for assignment in store.trials.list_assignments(trial):
            assigned.setdefault(assignment.key, []).append(assignment)
    if not arms and not assigned:
        return TextColumn(codes=np.zeros(len(attempt_columns.attempts), np.int32), labels=(None,))
    column_by_name = attempt_columns.columns
    repos = column_by_name["repo"].translated(lambda repo: repo and repository_name(repo))
    labels: list[tuple[str, ...] | None] = []
    columns = (repos, column_by_name["branch"], column_by_name["task"], column_by_name["started"])
    for name, repo, branch, task, started in zip(
        attempt_columns.attempts, *(column.tolist() for column in columns), strict=True
    ):
        attempt_arms = [*(arms.get(name) or arms.get((repo, branch)) or ())]
        attempt_arms += [
            name_arm(assignment.trial, assignment.variant)
            for key in dict.fromkeys((name, branch, task))
            for assignment in assigned.get(key or "", ())
            if started >= assignment.at.timestamp() * 1e6
        ]
        labels.append(tuple(attempt_arms) or None)
    return make_text_column(labels)


MeasuringProgress = Callable[[int, int], None]
"""Called with the number measured so far and the total."""
SCORED_OUTCOMES = ("pass", "fail")


class AttemptTable(Record):
    """Attempts as columns, one row for each."""

    attempts: Sequence[str]
    columns: PackedColumns
    """Numbers, NaN if unknown; and texts, None if unknown."""
    tasks: dict[str, Task]
    variants: dict[str, Variant]
    """By digest."""
    notes: tuple[str, ...] = ()
    outdated: int = 0
    """Number of attempts whose measurement is outdated."""
    metrics: dict[str, tuple[Metric, Any]] = {}
    """Loaded scores as metrics with their values, by name."""

    def __len__(self) -> int:
        return len(self.attempts)

    def select_rows(self, attempts: Collection[str]) -> AttemptTable:
        """Return the table with only these attempts."""
        row_numbers = [row for row, name in enumerate(self.attempts) if name in attempts]
        selected = filter_rows(
            AttemptColumns(attempts=self.attempts, columns=self.columns), row_numbers
        )
        return replace(self, attempts=selected.attempts, columns=selected.columns)


def load_attempt_table(
    store: Store,
    rulebook: Rulebook,
    span: AttemptSpan | None = None,
    report_progress: MeasuringProgress = lambda done, of: None,
    *,
    remeasure: bool | None = True,
    jobs: int = 1,
) -> AttemptTable:
    """Load the attempts of a span, and measure those that need it.

    Attempts measured before the rules, their code or settings, or the grade changed are measured
    again. With `again=False` they stay as they were, and a note says how many there are. With
    `again=None` nothing is measured, and no trace is read. With several jobs, large amounts are
    measured in that many processes.
    """
    import numpy as np

    span = span or AttemptSpan()
    tables = store.numbers
    tasks, variants = tables.load_tasks(), tables.load_variants()
    attempt_columns, left_out = load_counted_columns(store, span, variants)
    attempt_columns, sealed_note = _leave_out_sealed(
        attempt_columns, held_out_digests([*tasks.values()])
    )
    placer = RowPlacer(attempt_columns.attempts)
    delivered = tables.load_delivery_columns(span)
    checked, orchestrated = tables.load_check_columns(), tables.load_plan_columns()

    def measure_new(new_bases: Sequence[tuple[str, str]], events: int) -> None:
        counter = count(1)
        is_parallel = events >= MIN_PARALLEL_EVENTS and not store.is_read_only
        measure_missing(
            store,
            new_bases,
            rulebook,
            lambda batch_size: report_progress(
                [next(counter) for _ in range(batch_size)][-1], len(new_bases)
            ),
            jobs=jobs if is_parallel else 1,
        )

    measured, outdated = _measurement_columns(
        partial(tables.load_measurement_columns, span),
        _measurement_bases(attempt_columns, rulebook),
        attempt_columns,
        placer,
        measure_new,
        remeasure,
    )
    measured["own_modules"] = measured.pop("modules")
    measured.forget_rows((*TRACE_COLUMNS, "category"), np.isnan(attempt_columns.columns["events"]))
    columns = attempt_columns.columns.join(
        measured,
        *(
            align_columns(part, placer.find_places(part), placer.size)
            for part in (delivered, checked, orchestrated)
        ),
        load_said_columns(store, span, placer),
        {"unreviewed_completes": np.broadcast_to(rulebook.unreviewed_completes, placer.size)},
        load_origin_columns(store, attempt_columns, variants),
    )
    columns["arm"] = load_arm_column(store, attempt_columns)
    columns["pull_cost"] = load_pull_cost_column(store, attempt_columns.attempts, placer)
    columns["unchecked"] = _mask_unchecked(columns, tasks)
    notes = (
        *_exclude_unusable(columns),
        *_tell_outdated(outdated, placer.size),
        *left_out,
        *sealed_note,
    )
    _forget_needless_questions(columns, tasks)
    return AttemptTable(
        attempts=attempt_columns.attempts,
        columns=columns,
        tasks={key: hide_task(task) for key, task in tasks.items()},
        variants=variants,
        notes=notes,
        outdated=outdated,
    )


def load_counted_columns(
    store: Store, span: AttemptSpan, variants: Mapping[str, Variant]
) -> tuple[AttemptColumns, tuple[str, ...]]:
    """Load one attempt per slot without replays, and a note of how many; includes held-out ones.

    Attempts given by id all count. Controls count only where variants are given.
    """
    import numpy as np

    if span.attempts is not None:
        attempt_columns = store.numbers.load_attempt_columns(span)
        none_retried = _retry_columns(attempt_columns, np.arange(0), np.zeros(0, np.bool_))
        return replace(attempt_columns, columns=attempt_columns.columns.join(none_retried)), ()
    last_tries = _keep_last_tries(store.numbers.load_attempt_columns(span))
    notes: list[str] = []
    replays = {key for key, variant in variants.items() if variant.replay_of}
    is_excluded = last_tries.columns["variant"].are(replays)
    if count := int(is_excluded.sum()):
        were = count_with_noun(count, "replayed attempt was", "replayed attempts were")
        notes.append(
            f"{were} excluded: a replay repeats recorded replies and does not measure a model."
        )
    if span.variants is None:
        controls = {key for key, variant in variants.items() if variant.is_control}
        is_control = last_tries.columns["variant"].are(controls)
        if count := int(is_control.sum()):
            were = count_with_noun(count, "attempt of a control was", "attempts of controls were")
            notes.append(f"{were} excluded: noop and reference are not agents.")
        is_excluded = is_excluded | is_control
    return (filter_rows(last_tries, ~is_excluded) if notes else last_tries), tuple(notes)


def _leave_out_sealed(
    attempt_columns: AttemptColumns, sealed: frozenset[str]
) -> tuple[AttemptColumns, tuple[str, ...]]:
    """Exclude attempts at held-out tasks, with a note: they are reported separately."""
    is_sealed = attempt_columns.columns["task_digest"].are(sealed)
    if not (count := int(is_sealed.sum())):
        return attempt_columns, ()
    were = count_with_noun(count, "held-out attempt was", "held-out attempts were")
    note = f"{were} excluded: `closeloop task sets` shows the results of the held-out set."
    return filter_rows(attempt_columns, ~is_sealed), (note,)


def _mask_unchecked(columns: Mapping[str, Column], tasks: Mapping[str, Task]) -> Array:
    """Return a mask of ungraded attempts at tasks without a check: people and judges score them."""
    unchecked = {key for key, task in tasks.items() if not task.acceptance.is_given}
    graded = columns["outcome"].are(SCORED_OUTCOMES)
    mask: Array = columns["task_digest"].are(unchecked) & ~graded
    return mask


def _forget_needless_questions(columns: PackedColumns, tasks: dict[str, Task]) -> None:
    """Set `asked` to unknown except for ambiguous tasks."""
    import numpy as np

    ambiguous = {key for key, task in tasks.items() if task.ambiguous}
    columns["asked"] = np.where(columns["task_digest"].are(ambiguous), columns["asked"], np.nan)


def _keep_last_tries(attempt_columns: AttemptColumns) -> AttemptColumns:
    """Return one attempt per slot: the last try of an experiment's slot, and every session."""
    import numpy as np

    task, variant, number, retry = (
        attempt_columns.columns[name] for name in ("task_digest", "variant", "number", "retry")
    )
    placed = np.flatnonzero(task.known() & variant.known())
    keys = (retry[placed], number[placed], variant.codes[placed], task.codes[placed])
    order = placed[np.lexsort(keys)]
    is_superseded = np.ones(max(0, len(order) - 1), np.bool_)
    for column in (number, variant.codes, task.codes):
        is_superseded &= column[order][1:] == column[order][:-1]
    is_kept = np.ones(len(attempt_columns.attempts), np.bool_)
    is_kept[order[:-1][is_superseded]] = False
    is_kept[_find_resumed_plans(attempt_columns)] = False
    attempt_columns = replace(
        attempt_columns,
        columns=attempt_columns.columns.join(_retry_columns(attempt_columns, order, is_superseded)),
    )
    return attempt_columns if is_kept.all() else filter_rows(attempt_columns, is_kept)


def _retry_columns(
    attempt_columns: AttemptColumns, order: Array, is_superseded: Array
) -> dict[str, Column]:
    """Return the cost of the tries before a slot's last one, and how many have an unknown cost.

    `order`: the rows of slots, the last try of each at its end.
    """
    import numpy as np

    retried, unknown = (
        np.full(len(attempt_columns.attempts), np.nan),
        np.zeros(len(attempt_columns.attempts)),
    )
    if is_superseded.any():
        cost = attempt_columns.columns["cost"][order]
        last = np.append(~is_superseded, True)
        slot = np.append(0, np.cumsum(last[:-1]))
        earlier = ~last
        sums = np.bincount(slot, np.where(earlier, np.nan_to_num(cost), 0.0))
        known_tries = np.bincount(slot, earlier & ~np.isnan(cost))
        retried[order[last]] = np.where(known_tries > 0, sums, np.nan)
        unknown[order[last]] = np.bincount(slot, earlier & np.isnan(cost))
    return {"retried_cost": retried, "retried_unknown": unknown}


def _find_resumed_plans(attempt_columns: AttemptColumns) -> Array:
    """Return the rows of plan attempts that were resumed by a longer one, which contains them."""
    import numpy as np

    task, seconds = attempt_columns.columns["task"], attempt_columns.columns["seconds"]
    is_plan = task.each(lambda name: (name or "").startswith("plan-")) == 1
    placed = np.flatnonzero(is_plan & ~attempt_columns.columns["task_digest"].known())
    order = placed[np.lexsort((seconds[placed], task.codes[placed]))]
    codes = task.codes[order]
    resumed: Array = order[:-1][codes[1:] == codes[:-1]]
    return resumed


def _measurement_columns(
    load: Callable[[], AttemptColumns],
    bases: TextColumn,
    attempt_columns: AttemptColumns,
    placer: RowPlacer,
    measure: Callable[[Sequence[tuple[str, str]], int], None],
    remeasure: bool | None,
) -> tuple[PackedColumns, int]:
    """Return the measurements of each attempt, and how many are outdated.

    Attempts never measured are measured first, and with `remeasure` also those whose basis changed:
    `measure` takes attempts with their bases, and the number of their events.
    """
    import numpy as np

    measurements, current_rows, any_rows = _load_measurements(load, bases, placer)
    missing = _missing(bases, current_rows if remeasure else any_rows)
    unmeasured = [] if remeasure is None else np.flatnonzero(missing).tolist()
    if unmeasured:
        names = [attempt_columns.attempts[row] for row in unmeasured]
        events = int(np.nansum(attempt_columns.columns["events"][unmeasured]))
        measure(list(zip(names, bases[unmeasured].tolist(), strict=True)), events)
        measurements, current_rows, any_rows = _load_measurements(load, bases, placer)
    outdated = _missing(bases, current_rows)
    # The last entry is for index -1, an attempt that does not count.
    current_rows = np.where(np.append(outdated, False)[any_rows], any_rows, current_rows)
    return align_columns(measurements, current_rows, placer.size), int(outdated.sum())


TRACE_COLUMNS = ("findings", "converged_after", "context_tokens", "drift_slope", *RATE_NAMES)
"""Numbers that only a trace can give: without one, 0 findings mean nothing."""


def _missing(bases: TextColumn, rows: Array) -> Array:
    """Return which measurable attempts have no measurement at these places."""
    missing = bases.known()
    missing[rows[rows >= 0]] = False
    return missing


def _measurement_bases(attempt_columns: AttemptColumns, rulebook: Rulebook) -> TextColumn:
    """Return the measurement basis of each attempt with a trace or a grade."""
    import numpy as np

    grading, outcome = attempt_columns.columns["grading"], attempt_columns.columns["outcome"]
    versions, version = np.unique(attempt_columns.columns["version"], return_inverse=True)
    kinds = (grading.codes.astype(np.int64) * len(versions) + version) * len(outcome.labels)
    _, rows, codes = np.unique(kinds + outcome.codes, return_index=True, return_inverse=True)
    labels = [
        basis_from_grade(
            (graded, None if isnan(grader_version) else int(grader_version), result), rulebook
        )
        for graded, grader_version, result in zip(
            grading[rows].tolist(),
            attempt_columns.columns["version"][rows].tolist(),
            outcome[rows].tolist(),
            strict=True,
        )
    ]
    # A grade shows failure modes even if nothing was recorded.
    is_measured = ~np.isnan(attempt_columns.columns["events"]) | outcome.are(SCORED_OUTCOMES)
    return TextColumn(codes=np.where(is_measured, codes, len(labels)), labels=(*labels, None))


def _load_measurements(
    load: Callable[[], AttemptColumns], bases: TextColumn, placer: RowPlacer
) -> tuple[AttemptColumns, Array, Array]:
    """Load all measurements; return also the place of each current one, and of each."""
    import numpy as np

    measurements = load()
    basis, rows = measurements.columns.pop("basis"), placer.find_places(measurements)
    codes = {label: code for code, label in enumerate(basis.labels)}
    current_codes = np.array([codes.get(label, -1) for label in bases.labels])[bases.codes]
    # The last entry is for index -1, an attempt that does not count.
    return measurements, np.where(np.append(current_codes, -1)[rows] == basis.codes, rows, -1), rows


def _tell_outdated(outdated: int, attempts: int) -> Iterator[str]:
    if outdated:
        yield (
            f"{outdated:,} of {count_with_noun(attempts, 'attempt')} are outdated: measured before"
            " the rules, their settings or the grade changed. `closeloop measure --all` measures"
            " them again."
        )


def forget_outdated_grades(columns: PackedColumns) -> Iterator[str]:
    """Remove outcomes by an older grader, with a note: graders are not mixed."""
    import numpy as np

    outcome, version = columns["outcome"], columns["version"]
    scored = outcome.are(SCORED_OUTCOMES)
    if scored.any() and (is_outdated := scored & (version < version[scored].max())).any():
        codes = np.where(is_outdated, len(outcome.labels), outcome.codes)
        columns["outcome"] = TextColumn(codes=codes, labels=(*outcome.labels, None))
        were = count_with_noun(int(is_outdated.sum()), "attempt was", "attempts were")
        yield (
            f"{were} graded by an older version of the grader than "
            f"{version[scored].max():.0f} and not scored here: `closeloop run --again "
            "grades` grades them again."
        )


def _exclude_unusable(columns: PackedColumns) -> Iterator[str]:
    """Set values that must not be mixed in to unknown, never zero, with notes."""
    import numpy as np

    seconds, scored = columns["seconds"], columns["outcome"].are(SCORED_OUTCOMES)
    yield from forget_outdated_grades(columns)
    gradable = columns["task_digest"].known() & ~columns["unchecked"]
    if (task_attempts := int(gradable.sum())) and not scored.any():
        yield (
            f"None of {task_attempts} attempts at tasks could be scored: `closeloop "
            "run --again unscored` runs them again."
        )
    if (backwards := seconds < 0).any():
        columns["seconds"] = np.where(backwards, np.nan, seconds)
        end = count_with_noun(
            int(backwards.sum()), "attempt ends before it starts", "attempts end before they start"
        )
        yield f"{end}: the duration is unknown."
