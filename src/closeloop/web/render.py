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
from closeloop.metrics import figure_wording
from closeloop.records.attempt import AttemptRow
from closeloop.records.plural import count_with_noun
from closeloop.records.visible_text import make_visible
from closeloop.web import assets
from closeloop.web.markdown_prose import render_prose

ABSENT_MARK = "–"


def render_template(template: str, **values: Any) -> str:
    """A template with its values."""
    return template_environment().get_template(template).render(**values)


@cache
def template_environment() -> Environment:
    jinja_environment = Environment(
        loader=PackageLoader("closeloop.web"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize_value,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    jinja_environment.filters |= {
        "chart": chart_json,
        "count": format_thousands,
        "duration": format_duration,
        "money": format_money,
        "named": shorten_name,
        "moment": format_moment,
        "percent": format_percent,
        "plural": count_with_noun,
        "points": format_points,
        "prose": render_prose,
        "short": shorten_text,
    }
    jinja_environment.globals |= {
        "address": address_with_changes,
        "api_of": api_address,
        "asset": assets.asset_address,
        "result": attempt_result,
        "version": __version__,
    }
    return jinja_environment


def _finalize_value(value: Any) -> Any:
    """Absent is a dash; text that nobody vouches for shows what it would do to a terminal."""
    if value is None:
        return ABSENT_MARK
    if isinstance(value, str) and not isinstance(value, Markup):
        return make_visible(value)
    return value


def address_with_changes(here: Any, **changes: str | None) -> str:
    """Where somebody is, with some of what is asked changed; None takes a part away."""
    query_pairs = [(name, value) for name, value in parse_qsl(here.query) if name not in changes]
    query_pairs += [(name, value) for name, value in changes.items() if value is not None]
    return f"{here.path}?{urlencode(query_pairs)}" if query_pairs else str(here.path)


def api_address(here: Any) -> str:
    """The same as JSON."""
    path = here.page.api or f"/api{here.path}"
    return path + (f"?{here.query}" if here.query else "")


def chart_json(points: Any) -> str:
    """What a chart is drawn from."""
    return msgspec.json.encode(points).decode()


def format_thousands(number: int | None) -> str:
    """`12,345`."""
    return ABSENT_MARK if number is None else f"{number:,}"


def format_duration(seconds: float | None) -> str:
    """`0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds is None:
        return ABSENT_MARK
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, less, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= size:
            return _format_two_units(whole // size, unit, whole % size // less, small)
    return _format_two_units(whole // 60, "min", whole % 60, "s") if whole >= 60 else f"{whole} s"


def _format_two_units(large: int, unit: str, rest: int, small: str) -> str:
    return f"{large} {unit} {rest} {small}" if rest else f"{large} {unit}"


def format_money(amount: float | None) -> str:
    """As figures have it."""
    return ABSENT_MARK if amount is None else figure_wording.format_dollars(amount)


def format_percent(share: float | None) -> str:
    """`83 %`; no rounding to all or to none of what is neither."""
    if share is None:
        return ABSENT_MARK
    rounded = round(share * 100)
    if rounded in (0, 100) and 0 < share < 1:
        return f"{min(max(share * 100, 0.1), 99.9):.1f} %"
    return f"{rounded} %"


def format_points(share: float, signed: bool = False) -> str:
    """`78 points`, of a difference between shares; `+78 points` where its side matters."""
    size = abs(100 * share)
    points_text = (
        f"{max(size, 0.1):.1f} points" if 0 < size < 0.95 else count_with_noun(round(size), "point")
    )
    sign = "−" if share < 0 else "+" if share else ""
    return sign + points_text if signed else points_text


def format_moment(time: datetime | None) -> str:
    """`2026-03-01 14:05`, in UTC."""
    return ABSENT_MARK if time is None else f"{time:%Y-%m-%d %H:%M}"


def shorten_text(text: str | None, most: int = 80) -> str | None:
    """The beginning of a text, in one line."""
    if text is None:
        return None
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most else line[: most - 1] + "…"


def shorten_name(name: str | None, most: int = 40) -> str | None:
    """A name that may be long: its beginning, and its end, which tells it from others like it."""
    whole = shorten_text(name, 1000)
    if whole is None or len(whole) <= most:
        return whole
    end = most // 3
    return f"{whole[: most - end - 1]}…{whole[-end:]}"


def attempt_result(row: AttemptRow) -> str:
    """Pass, fail or unscored; a session that nobody graded has no result."""
    if row.outcome is None and row.origin == "production":
        return "session"
    return row.outcome or "unscored"
