"""What a name on the command line stands for: a variant, an agent, a model, a prompt, a time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.plural import count_with_noun
from closeloop.records.record import Record
from closeloop.records.variant import Variant

VARIANT_FIELDS = ("agent", "model", "prompt")


class AttemptSelection(Record):
    """Attempts by their variants or by their time."""

    name: str
    variants: tuple[str, ...] | None = None
    """Digests; None is any."""
    since: datetime | None = None
    until: datetime | None = None
    note: str | None = None


def select_attempts(name: str, variants: Mapping[str, Variant]) -> AttemptSelection:
    """`closer`, a digest or its beginning, `agent:X`, `model:X`, `prompt:ID`, `DAY..DAY`."""
    if not variants:
        raise BadInput("No variant has tried a task yet: `closeloop run` lets some.")
    if ".." in name:
        return _select_period(name)
    field, colon, value = name.partition(":")
    if colon and field in VARIANT_FIELDS:
        matches = [
            key
            for key, one in variants.items()
            if _matches_field(getattr(one, field), value, field)
        ]
        if not matches:
            known = {getattr(one, field) for one in variants.values()} - {None}
            raise unknown_name_error(field, value, sorted(known))
        return AttemptSelection(name=name, variants=tuple(matches))
    same_name = [key for key, one in variants.items() if one.name == name]
    if same_name:
        older = len(same_name) - 1
        note = (
            f"{count_with_noun(older, 'older variant')} of that name left out: digests name each"
            " one."
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


def _matches_field(held: str | None, value: str, field: str) -> bool:
    if held is None or not value:
        return False
    return held.startswith(value) if field == "prompt" else held == value


def _select_period(name: str) -> AttemptSelection:
    first, _, last = name.partition("..")
    since, until = _parse_moment(first), _parse_moment(last)
    if (since is None and until is None) or (since and until and since >= until):
        raise BadInput(f"{name!r} is no time: write it like 2026-11-01..2026-11-08.")
    return AttemptSelection(name=name, since=since, until=until)


def _parse_moment(text: str) -> datetime | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(f"{text!r} is no date: write it like 2026-11-01.") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
