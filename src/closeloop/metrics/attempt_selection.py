"""What a name stands for where work is compared: a variant, an agent, a repository, a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from closeloop.metrics.attempt_groups import DIMENSIONS
from closeloop.metrics.attempt_measuring import find_experiment, list_experiment_attempts
from closeloop.metrics.attempt_table import AttemptTable
from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.record import Record
from closeloop.records.task import Variant
from closeloop.reviews.agent_prompts import MIN_PROMPT_ID_CHARS
from closeloop.store import Store
from closeloop.store.metrics_section import AttemptSpan
from closeloop.text.wording import count_with_noun, parse_moment

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

LABEL_FIELDS = ("agent", "model", "repo", "user")
"""What attempts and sessions are grouped by, as `closeloop metrics --by` names it."""
SELECTION_FIELDS = (*LABEL_FIELDS, "prompt", "experiment", "attempt", "variant")


class AttemptSelection(Record):
    """Attempts and sessions that meet all of some conditions; None is any."""

    name: str
    variants: tuple[str, ...] | None = None
    """Digests."""
    labels: dict[str, str] = {}
    """By field, such as `agent`, what it must be."""
    prompt: str | None = None
    """The beginning of the id of the prompt that they were seen to run under."""
    attempts: frozenset[str] | None = None
    """Ids: those of an experiment, or a single one."""
    since: datetime | None = None
    until: datetime | None = None
    note: str | None = None


def select_attempts(
    name: str, variants: Mapping[str, Variant], store: Store | None = None
) -> AttemptSelection:
    """What a name stands for, or several joined by commas, which all must hold.

    `careful`, a digest or its beginning, `agent:X`, `model:X`, `repo:X`, `user:X`, `prompt:ID`,
    `experiment:ID`, `attempt:ID`, `DAY..DAY`.
    """
    if any(one.name == name for one in variants.values()):
        return _select_variant(name, variants)
    selection = AttemptSelection(name=name)
    for part in name.split(","):
        selection = _narrow(selection, part.strip(), variants, store)
    return selection


def narrow_period(
    selection: AttemptSelection, since: datetime | None, until: datetime | None
) -> AttemptSelection:
    """The same, within a stretch of time."""
    starts = [one for one in (selection.since, since) if one is not None]
    ends = [one for one in (selection.until, until) if one is not None]
    return replace(selection, since=max(starts, default=None), until=min(ends, default=None))


def _narrow(
    selection: AttemptSelection, part: str, variants: Mapping[str, Variant], store: Store | None
) -> AttemptSelection:
    """The same with one more condition."""
    if ".." in part:
        since, until = _parse_period(part)
        return replace(selection, since=since, until=until)
    field, colon, value = part.partition(":")
    if not colon or field not in SELECTION_FIELDS:
        field, value = "variant", part
    match field:
        case "variant":
            chosen = _select_variant(value, variants)
            return replace(selection, variants=chosen.variants, note=chosen.note)
        case "prompt":
            return _select_prompt(selection, value, variants)
        case "experiment" | "attempt":
            ids = _find_attempts(field, value, store)
            known = selection.attempts
            return replace(selection, attempts=ids if known is None else ids & known)
    if not value:
        raise BadInput(f"{part!r} names no {field}: write it like {field}:NAME.")
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
    """Attempts of variants that say so, else those that were seen to run under it."""
    prompts = {key: one.prompt for key, one in variants.items() if one.prompt}
    matches = [key for key, prompt in prompts.items() if value and prompt.startswith(value)]
    if matches:
        return replace(selection, variants=tuple(matches))
    if len(value) >= MIN_PROMPT_ID_CHARS:
        return replace(selection, prompt=value)
    raise unknown_name_error("prompt", value, sorted({*prompts.values()}))


def _select_variant(name: str, variants: Mapping[str, Variant]) -> AttemptSelection:
    """The newest version of that name, or the one whose digest begins so."""
    if not variants:
        raise BadInput(f"There is no variant {name!r}: `closeloop run` lets some try tasks.")
    same_name = [key for key, one in variants.items() if one.name == name]
    if same_name:
        older = len(same_name) - 1
        note = (
            f"{count_with_noun(older, 'older version')} of {name!r} left out: name "
            f"{', '.join(key[:12] for key in same_name[:-1])} to compare with it."
        )
        return AttemptSelection(name=name, variants=(same_name[-1],), note=note if older else None)
    prefix_matches = [key for key in variants if key.startswith(name)] if name else []
    if len(prefix_matches) == 1:
        return AttemptSelection(name=name, variants=(prefix_matches[0],))
    if prefix_matches:
        raise BadInput(
            f"{name!r} begins the digests of {len(prefix_matches)} variants: type more of it."
        )
    raise unknown_name_error("variant", name, sorted({one.name for one in variants.values()}))


def _parse_period(name: str) -> tuple[datetime | None, datetime | None]:
    first, _, last = name.partition("..")
    now = datetime.now(UTC)
    since, until = (parse_moment(text, now) if text else None for text in (first, last))
    if (since is None and until is None) or (since and until and since >= until):
        raise BadInput(f"{name!r} is no time: write it like 2026-11-01..2026-11-08.")
    return since, until


def selection_mask(work: AttemptTable, choice: AttemptSelection) -> Array:
    """Which attempts and sessions are meant; BadInput where a label is of none."""
    import numpy as np

    columns = work.columns
    mask: Array = np.ones(len(work), np.bool_)
    if choice.variants is not None:
        mask = mask & columns["variant"].are(choice.variants)
    for field, value in choice.labels.items():
        column = DIMENSIONS[field](work)
        if value not in column.labels:
            known = sorted({one for one in column.labels if one})
            raise unknown_name_error(field, value, known)
        mask = mask & column.are((value,))
    if choice.prompt is not None:
        start = choice.prompt
        prompts = [one for one in columns["prompt"].labels if one and one.startswith(start)]
        mask = mask & columns["prompt"].are(prompts)
    if choice.attempts is not None:
        ids = choice.attempts
        mask = mask & np.fromiter((one in ids for one in work.attempts), np.bool_, len(work))
    if choice.since is not None:
        mask = mask & (columns["started"] >= choice.since.timestamp() * 1e6)
    if choice.until is not None:
        mask = mask & (columns["started"] < choice.until.timestamp() * 1e6)
    return mask


def covering_span(choices: Sequence[AttemptSelection]) -> AttemptSpan:
    """The smallest that holds them all."""
    variants: list[str] | None = []
    for one in choices:
        variants = None if variants is None or one.variants is None else [*variants, *one.variants]
    return AttemptSpan(
        variants=None if variants is None else tuple(dict.fromkeys(variants)),
        since=_outermost_moment(min, [one.since for one in choices]),
        until=_outermost_moment(max, [one.until for one in choices]),
    )


def _outermost_moment(pick: Any, moments: Sequence[datetime | None]) -> datetime | None:
    known = [one for one in moments if one is not None]
    outermost: datetime | None = pick(known) if len(known) == len(moments) else None
    return outermost
