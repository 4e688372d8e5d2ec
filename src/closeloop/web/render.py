"""Templates: every value is escaped, and what would reorder or hide text is made plain to see."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from closeloop import __version__
from closeloop.measuring import wording
from closeloop.model.attempt import AttemptRow
from closeloop.model.plural import plural
from closeloop.model.visible import visible
from closeloop.web import assets
from closeloop.web.prose import prose

ABSENT = "–"


def render(template: str, **values: Any) -> str:
    """A template with its values."""
    return environment().get_template(template).render(**values)


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("closeloop.web"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_plain,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    made.filters |= {
        "chart": chart,
        "count": count,
        "duration": duration,
        "money": money,
        "named": named,
        "moment": moment,
        "percent": percent,
        "plural": plural,
        "points": points,
        "prose": prose,
        "short": short,
    }
    made.globals |= {
        "address": address,
        "api_of": api_of,
        "asset": assets.address,
        "result": result,
        "version": __version__,
    }
    return made


def _plain(value: Any) -> Any:
    """Absent is a dash; text that nobody vouches for shows what it would do to a terminal."""
    if value is None:
        return ABSENT
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value)
    return value


def address(here: Any, **changes: str | None) -> str:
    """Where somebody is, with some of what is asked changed; None takes a part away."""
    kept = [(name, value) for name, value in parse_qsl(here.query) if name not in changes]
    kept += [(name, value) for name, value in changes.items() if value is not None]
    return f"{here.path}?{urlencode(kept)}" if kept else str(here.path)


def api_of(here: Any) -> str:
    """The same as JSON."""
    path = here.page.api or f"/api{here.path}"
    return path + (f"?{here.query}" if here.query else "")


def chart(points: Any) -> str:
    """What a chart is drawn from."""
    return msgspec.json.encode(points).decode()


def count(number: int | None) -> str:
    """`12,345`."""
    return ABSENT if number is None else f"{number:,}"


def duration(seconds: float | None) -> str:
    """`0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds is None:
        return ABSENT
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, less, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= size:
            return _two(whole // size, unit, whole % size // less, small)
    return _two(whole // 60, "min", whole % 60, "s") if whole >= 60 else f"{whole} s"


def _two(large: int, unit: str, rest: int, small: str) -> str:
    return f"{large} {unit} {rest} {small}" if rest else f"{large} {unit}"


def money(amount: float | None) -> str:
    """As figures have it."""
    return ABSENT if amount is None else wording.money(amount)


def percent(share: float | None) -> str:
    """`83 %`; no rounding to all or to none of what is neither."""
    if share is None:
        return ABSENT
    told = round(share * 100)
    if told in (0, 100) and 0 < share < 1:
        return f"{min(max(share * 100, 0.1), 99.9):.1f} %"
    return f"{told} %"


def points(share: float, signed: bool = False) -> str:
    """`78 points`, of a difference between shares; `+78 points` where its side matters."""
    size = abs(100 * share)
    told = f"{max(size, 0.1):.1f} points" if 0 < size < 0.95 else plural(round(size), "point")
    sign = "−" if share < 0 else "+" if share else ""
    return sign + told if signed else told


def moment(time: datetime | None) -> str:
    """`2026-03-01 14:05`, in UTC."""
    return ABSENT if time is None else f"{time:%Y-%m-%d %H:%M}"


def short(text: str | None, most: int = 80) -> str | None:
    """The beginning of a text, in one line."""
    if text is None:
        return None
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most else line[: most - 1] + "…"


def named(name: str | None, most: int = 40) -> str | None:
    """A name that may be long: its beginning, and its end, which tells it from others like it."""
    whole = short(name, 1000)
    if whole is None or len(whole) <= most:
        return whole
    end = most // 3
    return f"{whole[: most - end - 1]}…{whole[-end:]}"


def result(row: AttemptRow) -> str:
    """Pass, fail or unscored; a session that nobody graded has no result."""
    if row.outcome is None and row.origin == "production":
        return "session"
    return row.outcome or "unscored"
