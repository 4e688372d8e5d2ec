"""What a name on the command line stands for: a variant, an agent, a model, a prompt, a time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from closeloop.model.errors import BadInput, unknown
from closeloop.model.plural import plural
from closeloop.model.record import Record
from closeloop.model.variant import Variant

FIELDS = ("agent", "model", "prompt")


class Choice(Record):
    """Attempts by their variants or by their time."""

    name: str
    variants: tuple[str, ...] | None = None
    """Digests; None is any."""
    since: datetime | None = None
    until: datetime | None = None
    note: str | None = None


def choose(name: str, variants: Mapping[str, Variant]) -> Choice:
    """`closer`, a digest or its beginning, `agent:X`, `model:X`, `prompt:ID`, `DAY..DAY`."""
    if not variants:
        raise BadInput("No variant has tried a task yet: `closeloop run` lets some.")
    if ".." in name:
        return _window(name)
    field, colon, value = name.partition(":")
    if colon and field in FIELDS:
        found = [key for key, one in variants.items() if _has(getattr(one, field), value, field)]
        if not found:
            known = {getattr(one, field) for one in variants.values()} - {None}
            raise unknown(field, value, sorted(known))
        return Choice(name=name, variants=tuple(found))
    named = [key for key, one in variants.items() if one.name == name]
    if named:
        older = len(named) - 1
        note = f"{plural(older, 'older variant')} of that name left out: digests name each one."
        return Choice(name=name, variants=(named[-1],), note=note if older else None)
    begun = [key for key in variants if key.startswith(name)] if name else []
    if len(begun) == 1:
        return Choice(name=name, variants=(begun[0],))
    if begun:
        raise BadInput(f"{name!r} begins the digests of {len(begun)} variants: type more of it.")
    raise unknown("variant", name, sorted({one.name for one in variants.values()}))


def _has(held: str | None, value: str, field: str) -> bool:
    if held is None or not value:
        return False
    return held.startswith(value) if field == "prompt" else held == value


def _window(name: str) -> Choice:
    first, _, last = name.partition("..")
    since, until = _moment(first), _moment(last)
    if (since is None and until is None) or (since and until and since >= until):
        raise BadInput(f"{name!r} is no time: write it like 2026-11-01..2026-11-08.")
    return Choice(name=name, since=since, until=until)


def _moment(text: str) -> datetime | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(f"{text!r} is no date: write it like 2026-11-01.") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
