"""Group, select and compare attempts: by repository, agent, prompt, week, context size and more."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from difflib import SequenceMatcher
from itertools import pairwise
from math import isnan
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from closeloop.metrics.attempt_measuring import find_experiment, list_experiment_attempts
from closeloop.metrics.attempt_table import AttemptTable, load_attempt_table
from closeloop.metrics.score_columns import ScoreCatalogue, derived_definitions, list_score_rows
from closeloop.process.rulebook import Rulebook
from closeloop.records.attempt import AttemptRow
from closeloop.records.change import Change, RecoveredFile
from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.record import Record
from closeloop.records.score import ScoreDefinition, ScoreSource
from closeloop.records.task import Variant
from closeloop.store import Store
from closeloop.store.experiment_section import MIN_PROMPT_ID_CHARS
from closeloop.store.metrics_section import AttemptSpan
from closeloop.store.packed_columns import TextColumn
from closeloop.tasks.task_sets import require_unsealed
from closeloop.text.patches import parse_hunk_lines, split_patch_by_file
from closeloop.text.wording import count_with_noun, natural_order, parse_moment, repository_name

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


UNKNOWN_LABEL = "–"
"""Label of an unknown value."""
DAY_MICROSECONDS = 86_400_000_000


def group_attempts(
    work: AttemptTable, group_by: Sequence[str]
) -> tuple[list[tuple[str, ...]], Array, Array]:
    """Return the groups in order, and for each membership the attempt's row and the group's place.

    With several tags or arms, an attempt counts in each of their groups.
    """
    import numpy as np

    for name in group_by:
        if name not in DIMENSIONS:
            raise unknown_name_error("grouping", name, DIMENSIONS)
    row_numbers = np.arange(len(work))
    names: list[tuple[str, ...]] = [()]
    groups = np.zeros(len(work), dtype=np.intp)
    for name in group_by:
        dimension = DIMENSIONS[name](work)[row_numbers]
        if name in ("tag", "arm"):
            rows, dimension = _split_labels(dimension)
            row_numbers, groups = row_numbers[rows], groups[rows]
        labels = sorted({label or UNKNOWN_LABEL for label in dimension.labels}, key=order_label)
        ranks = {label: rank for rank, label in enumerate(labels)}
        parts = np.array([ranks[label or UNKNOWN_LABEL] for label in dimension.labels], np.intp)[
            dimension.codes
        ]
        present_codes, groups = np.unique(groups * len(labels) + parts, return_inverse=True)
        pairs = (divmod(code, len(labels)) for code in present_codes.tolist())
        names = [(*names[outer], labels[label_index]) for outer, label_index in pairs]
    return names, row_numbers, groups


def _split_labels(label_sets: TextColumn) -> tuple[Array, TextColumn]:
    """Split rows with several labels: for each label, its row and the label."""
    import numpy as np

    labels = [label or (None,) for label in label_sets.labels]
    counts = np.array([len(label) for label in labels], np.intp)
    rows = np.repeat(np.arange(len(label_sets)), counts[label_sets.codes])
    first_codes = np.concatenate([[0], np.cumsum(counts)])[label_sets.codes[rows]]
    within = np.arange(len(rows)) - np.searchsorted(rows, rows)
    flat_labels = tuple(label for row_labels in labels for label in row_labels)
    return rows, TextColumn(codes=first_codes + within, labels=flat_labels)


def _column_dimension(name: str) -> Callable[[AttemptTable], TextColumn]:
    return lambda work: work.columns[name]


def _variant_dimension(name: str, session: str | None) -> Callable[[AttemptTable], TextColumn]:
    """Return a dimension read from the variant, or for a session from its files."""

    def held(work: AttemptTable) -> TextColumn:
        label_by_variant = {
            key: getattr(variant, name) or None for key, variant in work.variants.items()
        }
        labels: TextColumn = work.columns["variant"].translated(label_by_variant.get)
        return labels.otherwise(work.columns[session]) if session else labels

    return held


def _repository_labels(work: AttemptTable) -> TextColumn:
    repo_by_task = {key: task.repo or None for key, task in work.tasks.items()}
    task_repos: TextColumn = work.columns["task_digest"].translated(repo_by_task.get)
    repos: TextColumn = task_repos.otherwise(work.columns["repo"])
    # A clone has a URL, a pull request only owner and name.
    return repos.translated(lambda name: name and repository_name(name))


def _tag_labels(work: AttemptTable) -> TextColumn:
    tags_by_task = {key: tuple(dict.fromkeys(task.tags)) for key, task in work.tasks.items()}
    tags: TextColumn = work.columns["task_digest"].translated(tags_by_task.get)
    return tags


def _week_labels(work: AttemptTable) -> TextColumn:
    """Return weeks such as `2026-W46`, in UTC; each day is converted once."""
    import numpy as np

    days, codes = np.unique(work.columns["started"] // DAY_MICROSECONDS, return_inverse=True)
    return TextColumn(codes=codes, labels=tuple(map(_iso_week, days.tolist())))


CONTEXT_BOUNDS = (8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 512_000)
CONTEXT_BANDS = (
    "under 8k",
    *(f"{low // 1000}k–{high // 1000}k" for low, high in pairwise(CONTEXT_BOUNDS)),
    "512k and over",
)
"""Context tokens before the largest turn of a session."""


def _context_labels(work: AttemptTable) -> TextColumn:
    """Return the band of each session's peak context; each number is looked up once."""
    import numpy as np

    peaks, codes = np.unique(work.columns["context_tokens"], return_inverse=True)
    bands = [
        None if isnan(peak) else CONTEXT_BANDS[bisect_right(CONTEXT_BOUNDS, peak)]
        for peak in peaks.tolist()
    ]
    return TextColumn(codes=codes, labels=tuple(bands))


def order_label(label: str) -> tuple[int, tuple[tuple[str, int], ...]]:
    """Sort key of a label: bands by size, everything else by name."""
    rank = CONTEXT_BANDS.index(label) if label in CONTEXT_BANDS else -1
    return rank, natural_order(label)


def _iso_week(day: float) -> str | None:
    if isnan(day):
        return None
    year, week, _ = datetime.fromtimestamp(day * 86400, UTC).isocalendar()
    return f"{year}-W{week:02}"


DIMENSIONS: dict[str, Callable[[AttemptTable], TextColumn]] = {
    "repo": _repository_labels,
    "user": _column_dimension("user"),
    "agent": _variant_dimension("agent", "agent"),
    "model": _variant_dimension("model", "model"),
    "prompt": _column_dimension("prompt"),
    "variant": _variant_dimension("name", None),
    "tag": _tag_labels,
    "task": _column_dimension("task"),
    "week": _week_labels,
    "risk": _column_dimension("risk"),
    "arm": _column_dimension("arm"),
    "origin": _column_dimension("origin"),
    "context": _context_labels,
}


# What a name in a comparison refers to: a variant, an agent, a repository, a time.


LABEL_FIELDS = ("agent", "model", "repo", "user")
"""Fields that attempts and sessions are grouped by, as in `closeloop metrics --group-by`."""
SELECTION_FIELDS = (*LABEL_FIELDS, "prompt", "experiment", "attempt", "variant")


class AttemptSelection(Record):
    """Attempts and sessions that meet all conditions; None matches any."""

    name: str
    variants: tuple[str, ...] | None = None
    """Digests of variants."""
    labels: dict[str, str] = {}
    """Required value by field, such as `agent`."""
    prompt: str | None = None
    """Prefix of the id of the prompt that they were seen to run with."""
    attempts: frozenset[str] | None = None
    """Ids: those of an experiment, or a single one."""
    since: datetime | None = None
    until: datetime | None = None
    note: str | None = None


def select_attempts(
    name: str, variants: Mapping[str, Variant], store: Store | None = None
) -> AttemptSelection:
    """Parse a name, or several joined by commas that must all match, into a selection.

    `careful`, a digest or a prefix of it, `agent:X`, `model:X`, `repo:X`, `user:X`, `prompt:ID`,
    `experiment:ID`, `attempt:ID`, `DAY..DAY`.
    """
    if any(variant.name == name for variant in variants.values()):
        return _select_variant(name, variants)
    selection = AttemptSelection(name=name)
    for part in name.split(","):
        selection = _narrow(selection, part.strip(), variants, store)
    return selection


def narrow_period(
    selection: AttemptSelection, since: datetime | None, until: datetime | None
) -> AttemptSelection:
    """Return the selection limited to a period."""
    starts = [moment for moment in (selection.since, since) if moment is not None]
    ends = [moment for moment in (selection.until, until) if moment is not None]
    return replace(selection, since=max(starts, default=None), until=min(ends, default=None))


def _narrow(
    selection: AttemptSelection, part: str, variants: Mapping[str, Variant], store: Store | None
) -> AttemptSelection:
    """Return the selection with one more condition."""
    if ".." in part:
        since, until = _parse_period(part)
        return replace(selection, since=since, until=until)
    field, colon, value = part.partition(":")
    if not colon or field not in SELECTION_FIELDS:
        field, value = "variant", part
    match field:
        case "variant":
            variant_selection = _select_variant(value, variants)
            return replace(
                selection, variants=variant_selection.variants, note=variant_selection.note
            )
        case "prompt":
            return _select_prompt(selection, value, variants)
        case "experiment" | "attempt":
            ids = _find_attempts(field, value, store)
            selected_ids = selection.attempts
            return replace(selection, attempts=ids if selected_ids is None else ids & selected_ids)
    if not value:
        raise BadInput(f"{part!r} has no name: write it as {field}:NAME.")
    return replace(selection, labels={**selection.labels, field: value})


def _find_attempts(field: str, value: str, store: Store | None) -> frozenset[str]:
    assert store is not None, "attempts are looked up in a store"
    if field == "attempt":
        return frozenset((store.find_attempt_id(value),))
    experiment = find_experiment(store, value or None)
    return frozenset(row.id for row in list_experiment_attempts(store, experiment))


def _select_prompt(
    selection: AttemptSelection, value: str, variants: Mapping[str, Variant]
) -> AttemptSelection:
    """Select attempts of variants with this prompt, else those that were seen to run with it."""
    prompts = {key: variant.prompt for key, variant in variants.items() if variant.prompt}
    matches = [key for key, prompt in prompts.items() if value and prompt.startswith(value)]
    if matches:
        return replace(selection, variants=tuple(matches))
    if len(value) >= MIN_PROMPT_ID_CHARS:
        return replace(selection, prompt=value)
    raise unknown_name_error("prompt", value, sorted({*prompts.values()}))


def _select_variant(name: str, variants: Mapping[str, Variant]) -> AttemptSelection:
    """Select the newest version of that name, or the variant whose digest has this prefix."""
    if not variants:
        raise BadInput(f"There is no variant {name!r}: `closeloop run` runs variants.")
    same_name = [key for key, variant in variants.items() if variant.name == name]
    if same_name:
        older = len(same_name) - 1
        note = (
            f"{count_with_noun(older, 'older version')} of {name!r} excluded: add "
            f"{', '.join(key[:12] for key in same_name[:-1])} to compare with it."
        )
        return AttemptSelection(name=name, variants=(same_name[-1],), note=note if older else None)
    prefix_matches = [key for key in variants if key.startswith(name)] if name else []
    if len(prefix_matches) == 1:
        return AttemptSelection(name=name, variants=(prefix_matches[0],))
    if prefix_matches:
        raise BadInput(
            f"{name!r} is a prefix of the digests of {len(prefix_matches)} variants: "
            "give more characters."
        )
    raise unknown_name_error(
        "variant", name, sorted({variant.name for variant in variants.values()})
    )


def _parse_period(name: str) -> tuple[datetime | None, datetime | None]:
    first, _, last = name.partition("..")
    now = datetime.now(UTC)
    since, until = (parse_moment(text, now) if text else None for text in (first, last))
    if (since is None and until is None) or (since and until and since >= until):
        raise BadInput(f"{name!r} is not a period: write it as 2026-11-01..2026-11-08.")
    return since, until


def selection_mask(work: AttemptTable, choice: AttemptSelection) -> Array:
    """Return a mask of the selected attempts and sessions; BadInput if a label matches none."""
    import numpy as np

    columns = work.columns
    mask: Array = np.ones(len(work), np.bool_)
    if choice.variants is not None:
        mask = mask & columns["variant"].are(choice.variants)
    for field, value in choice.labels.items():
        column = DIMENSIONS[field](work)
        if value not in column.labels:
            known_labels = sorted({label for label in column.labels if label})
            raise unknown_name_error(field, value, known_labels)
        mask = mask & column.are((value,))
    if choice.prompt is not None:
        start = choice.prompt
        prompts = [label for label in columns["prompt"].labels if label and label.startswith(start)]
        mask = mask & columns["prompt"].are(prompts)
    if choice.attempts is not None:
        ids = choice.attempts
        mask = mask & np.fromiter(
            (attempt in ids for attempt in work.attempts), np.bool_, len(work)
        )
    if choice.since is not None:
        mask = mask & (columns["started"] >= choice.since.timestamp() * 1e6)
    if choice.until is not None:
        mask = mask & (columns["started"] < choice.until.timestamp() * 1e6)
    return mask


def covering_span(choices: Sequence[AttemptSelection]) -> AttemptSpan:
    """Return the smallest span that contains all selections."""
    variants: list[str] | None = []
    for choice in choices:
        variants = (
            None if variants is None or choice.variants is None else [*variants, *choice.variants]
        )
    return AttemptSpan(
        variants=None if variants is None else tuple(dict.fromkeys(variants)),
        since=_outermost_moment(min, [choice.since for choice in choices]),
        until=_outermost_moment(max, [choice.until for choice in choices]),
    )


def _outermost_moment(pick: Any, moments: Sequence[datetime | None]) -> datetime | None:
    known_moments = [moment for moment in moments if moment is not None]
    outermost: datetime | None = pick(known_moments) if len(known_moments) == len(moments) else None
    return outermost


# Two changes compared file by file: which lines both changed alike.


MAX_COMPARED_LINES = 2000
"""Changed lines of one file that are aligned; longer changes are listed one after the other."""
MAX_SHOWN_LINES = 800
MAX_LINE_CHARS = 1000

SharedBy = Literal["both", "first", "second"]


class ComparedLine(Record):
    """One changed line, and which change contains it."""

    by: SharedBy
    sign: Literal["+", "-"]
    text: str


class ComparedFile(Record):
    """One file of two compared changes."""

    path: str
    state: Literal["same", "differs", "only first", "only second", "not told"]
    """`not told`: a change lists the file without any line of it."""
    both: int
    first: int
    second: int
    """Number of changed lines: in both, only in the first, only in the second."""
    lines: tuple[ComparedLine, ...]
    left_out: int = 0
    """Number of lines not shown."""


ChangedLines = list[tuple[str, str]]
"""Sign and text of each line that a change adds or removes in one file."""


def compare_changes(first: Change, second: Change) -> tuple[ComparedFile, ...]:
    """Compare every file that either changes, differing ones first; context lines are skipped."""
    return compare_changed_lines(list_changed_lines(first), list_changed_lines(second))


def compare_changed_lines(
    first: Mapping[str, ChangedLines], second: Mapping[str, ChangedLines]
) -> tuple[ComparedFile, ...]:
    """Compare changed lines by path."""
    files = [
        _compare_file(
            path, (path in first, path in second), [first.get(path, []), second.get(path, [])]
        )
        for path in dict.fromkeys((*first, *second))
    ]
    return tuple(sorted(files, key=lambda file: file.state == "same"))


def list_changed_lines(change: Change | Sequence[RecoveredFile]) -> dict[str, ChangedLines]:
    """Return, by path, the lines that a change adds and removes; empty if unknown."""
    if not isinstance(change, Change):
        return {
            file.path: [
                (line[0], line[1:])
                for hunk in file.hunks
                for line in hunk.lines
                if line[:1] in ("+", "-")
            ]
            for file in change
        }
    changed_lines: dict[str, ChangedLines] = {file.path: [] for file in change.files}
    sections = split_patch_by_file(change.patch) if change.patch.strip() else ()
    for path, section in sections:
        if path in changed_lines:
            changed_lines[path] = [
                (sign, line[1:]) for sign, _, line in parse_hunk_lines(section) if sign in "+-"
            ]
    return changed_lines


def _compare_file(path: str, present: tuple[bool, ...], lines: list[ChangedLines]) -> ComparedFile:
    aligned = _align_lines(*lines)
    counts = {
        side: sum(line.by == side for line in aligned) for side in ("both", "first", "second")
    }
    state: Literal["same", "differs", "only first", "only second", "not told"]
    if present == (True, False):
        state = "only first"
    elif present == (False, True):
        state = "only second"
    elif not aligned:
        state = "not told"
    else:
        state = "differs" if counts["first"] or counts["second"] else "same"
    return ComparedFile(
        path=path,
        state=state,
        both=counts["both"],
        first=counts["first"],
        second=counts["second"],
        lines=tuple(aligned[:MAX_SHOWN_LINES]),
        left_out=max(0, len(aligned) - MAX_SHOWN_LINES),
    )


def _align_lines(first: ChangedLines, second: ChangedLines) -> list[ComparedLine]:
    if max(len(first), len(second)) > MAX_COMPARED_LINES and first != second:
        return [*_mark_lines(first, "first"), *_mark_lines(second, "second")]
    aligned: list[ComparedLine] = []
    matcher = SequenceMatcher(None, first, second, autojunk=False)
    for kind, start, end, other_start, other_end in matcher.get_opcodes():
        if kind == "equal":
            aligned += _mark_lines(first[start:end], "both")
        else:
            aligned += _mark_lines(first[start:end], "first")
            aligned += _mark_lines(second[other_start:other_end], "second")
    return aligned


def _mark_lines(lines: ChangedLines, side: SharedBy) -> list[ComparedLine]:
    return [
        ComparedLine(by=side, sign="+" if sign == "+" else "-", text=text[:MAX_LINE_CHARS])
        for sign, text in lines
    ]


# Two attempts compared: outcome, scores, cost, time and changes.


RATIO_FIELDS = {
    "cost": "cost",
    "time": "seconds",
    "tokens in (without cache)": "input_tokens",
    "tokens out": "output_tokens",
    "turns": "turns",
}


class ScorePair(Record):
    """One score of both attempts."""

    definition: ScoreDefinition
    source: ScoreSource
    first: float | None
    second: float | None

    @property
    def differs(self) -> bool:
        return self.first != self.second


class AttemptPair(Record):
    """The second attempt compared with the first."""

    first: AttemptRow
    second: AttemptRow
    sentence: str
    same_task: bool
    scores: tuple[ScorePair, ...]
    """Scores that differ first."""
    ratios: dict[str, float | None]
    """Ratio of the second to the first; None if either is unknown or 0."""
    files: tuple[ComparedFile, ...]
    """The diff of their diffs."""
    recovered: tuple[bool, bool] = (False, False)
    """Whether a side's change was reconstructed from the edits in its recording."""


def compare_two_attempts(
    store: Store,
    rulebook: Rulebook,
    catalogue: ScoreCatalogue,
    names: Sequence[str],
    *,
    again: bool | None = True,
) -> AttemptPair:
    """Compare two attempts by their ids or prefixes; BadInput if the task is held out.

    One attempt each shows where they differ, never which agent is better.
    """
    ids = [store.find_attempt_id(name) for name in names]
    if len(ids) != 2 or ids[0] == ids[1]:
        raise BadInput("Both attempts are the same: give two different ones.")
    rows = [_load_open_row(store, name) for name in ids]
    work = load_attempt_table(store, rulebook, AttemptSpan(attempts=tuple(ids)), remeasure=again)
    values: dict[tuple[str, ScoreSource], dict[str, list[float]]] = {}
    for row in list_score_rows(work, store):
        if row.value is not None:
            by_attempt = values.setdefault((row.name, row.source), {})
            by_attempt.setdefault(row.attempt, []).append(row.value)
    computed = derived_definitions()
    pairs = [
        ScorePair(
            definition=computed.get(name)
            or catalogue.definitions.get(name)
            or ScoreDefinition(name=name),
            source=source,
            first=fmean(attempt_values[ids[0]]) if ids[0] in attempt_values else None,
            second=fmean(attempt_values[ids[1]]) if ids[1] in attempt_values else None,
        )
        for (name, source), attempt_values in values.items()
    ]
    sides = [_load_changed_lines(store, name) for name in ids]
    return AttemptPair(
        first=rows[0],
        second=rows[1],
        sentence=describe_pair(rows[0], rows[1]),
        same_task=_is_same_task(rows[0], rows[1]),
        scores=tuple(sorted(pairs, key=lambda pair: not pair.differs)),
        ratios={
            name: _divide_known(getattr(rows[1], field), getattr(rows[0], field))
            for name, field in RATIO_FIELDS.items()
        },
        files=compare_changed_lines(sides[0][0], sides[1][0]),
        recovered=(sides[0][1], sides[1][1]),
    )


def _load_changed_lines(store: Store, name: str) -> tuple[dict[str, ChangedLines], bool]:
    """Return an attempt's changed lines by file, and whether they are from its recorded edits."""
    from closeloop.process.edit_contents import recover_change
    from closeloop.process.trace_reading import build_reading

    if (change := store.load_change(name)) is not None:
        return list_changed_lines(change), False
    trace = store.load_trace(name)
    recovered = recover_change(build_reading(trace)) if trace else ()
    return list_changed_lines(recovered), bool(recovered)


def _load_open_row(store: Store, name: str) -> AttemptRow:
    row = store.listing.load_row(name)
    assert row is not None, "an attempt has a row"
    require_unsealed(store.load_task(row.task_digest) if row.task_digest else None)
    return row


def _is_same_task(first: AttemptRow, second: AttemptRow) -> bool:
    return first.task_digest is not None and first.task_digest == second.task_digest


def _divide_known(second: float | None, first: float | None) -> float | None:
    return second / first if first and second else None


OUTCOME_WORDS = {"pass": "passed", "fail": "failed", "unscored": "could not be scored"}


def describe_pair(first: AttemptRow, second: AttemptRow) -> str:
    """Say in one sentence how both ended; agents of one name are distinguished by model or id."""
    names = [row.variant_name or row.agent or "an agent" for row in (first, second)]
    if names[0] == names[1] and first.model and second.model and first.model != second.model:
        names = [f"{row.variant_name or row.agent} ({row.model})" for row in (first, second)]
    if names[0] == names[1]:
        names = [f"{names[0]} ({row.id[:8]})" for row in (first, second)]
    ends = [
        f"{name} {OUTCOME_WORDS.get(row.outcome or '', 'was not graded')}"
        for name, row in zip(names, (first, second), strict=True)
    ]
    opening = "On different requests,"
    if _is_same_task(first, second):
        opening = f"On the same task, {first.task},"
    elif first.task and first.task == second.task:
        opening = f"On two versions of the task {first.task}"
    return f"{opening} {ends[0]} and {ends[1]}."
