"""Plots as SVG, drawn by hand: a course over time, and values side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import floor, log10

from closeloop.records.record import Record
from closeloop.records.visible_text import make_visible

WIDTH, LEFT, RIGHT, TOP = 720, 56, 16, 14
HEIGHT, FOOT = 210, 30
ROW, NAMES, NUMBERS = 26, 190, 150
MAX_LABEL_CHARS = 26
MAX_TIME_LABELS = 6


class PlotPoint(Record):
    """One value to draw."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    told: str = ""
    """What is said of it, for those who point at it or cannot see it."""
    faint: bool = False
    """Rests on too little to be looked at long."""


def draw_time_plot(points: Sequence[PlotPoint], *, most: float | None = None, name: str) -> str:
    """Values in the order of time, with their bounds as a band."""
    top = most or round_up_axis(max((point.high or point.value for point in points), default=1.0))
    inner = WIDTH - LEFT - RIGHT
    step = inner / max(1, len(points) - 1)
    places = [(LEFT + step * place, point) for place, point in enumerate(points)]
    parts = [*_draw_grid(top), *_draw_band(places, top)]
    line = " ".join(f"{x:.1f},{_y_position(point.value, top):.1f}" for x, point in places)
    parts.append(f'<polyline class="line" points="{line}"/>')
    for x, point in places:
        kind = "dot faint" if point.faint else "dot"
        y = _y_position(point.value, top)
        parts.append(
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4">'
            f"<title>{escape_markup(f'{point.label}: {point.told}')}</title></circle>"
        )
    every = -(-len(points) // MAX_TIME_LABELS)
    for place, (x, point) in enumerate(places):
        if place % every == 0:
            anchor = "start" if place == 0 else "end" if place == len(points) - 1 else "middle"
            parts.append(_draw_label(x, HEIGHT - 8, _shorten_label(point.label), anchor))
    return _wrap_svg(HEIGHT, parts, name)


def draw_range_plot(points: Sequence[PlotPoint], *, most: float | None = None, name: str) -> str:
    """Values one below the other, with their bounds as whiskers."""
    top = most or round_up_axis(max((point.high or point.value for point in points), default=1.0))
    inner = WIDTH - NAMES - NUMBERS - RIGHT
    height = TOP + ROW * len(points) + FOOT

    def across(value: float) -> float:
        return NAMES + inner * min(1.0, max(0.0, value / top))

    parts = []
    for share in (0, 0.5, 1):
        x, end = across(share * top), height - FOOT
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{end}"/>')
        parts.append(_draw_label(x, height - 10, f"{share * top:g}", "middle"))
    for place, point in enumerate(points):
        y = TOP + ROW * (place + 0.5)
        kind = " faint" if point.faint else ""
        parts.append(_draw_label(NAMES - 10, y + 4, _shorten_label(point.label), "end"))
        if point.low is not None and point.high is not None:
            first, last = across(point.low), across(point.high)
            parts.append(
                f'<line class="whisker{kind}" x1="{first:.1f}" x2="{last:.1f}" y1="{y:.1f}" '
                f'y2="{y:.1f}"/>'
            )
        parts.append(
            f'<circle class="dot{kind}" cx="{across(point.value):.1f}" cy="{y:.1f}" r="4.5">'
            f"<title>{escape_markup(f'{point.label}: {point.told}')}</title></circle>"
        )
        parts.append(_draw_label(WIDTH - RIGHT, y + 4, point.told, "end"))
    return _wrap_svg(height, parts, name)


def round_up_axis(value: float) -> float:
    """A round number that is no smaller."""
    if value <= 0:
        return 1.0
    size: float = 10.0 ** floor(log10(value))
    steps = (size * step for step in (1, 1.5, 2, 3, 4, 5, 8, 10))
    return next((each for each in steps if each >= value), value)


def _y_position(value: float, top: float) -> float:
    inner = HEIGHT - TOP - FOOT
    return TOP + inner * (1 - min(1.0, max(0.0, value / top)))


def _draw_grid(top: float) -> Iterator[str]:
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = _y_position(share * top, top)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        if share in (0, 0.5, 1):
            yield _draw_label(LEFT - 8, y + 4, f"{share * top:g}", "end")


def _draw_band(places: Sequence[tuple[float, PlotPoint]], top: float) -> Iterator[str]:
    bounded = [
        (x, point.low, point.high)
        for x, point in places
        if point.low is not None and point.high is not None
    ]
    if len(bounded) > 1:
        above = [f"{x:.1f},{_y_position(high, top):.1f}" for x, _, high in bounded]
        below = [f"{x:.1f},{_y_position(low, top):.1f}" for x, low, _ in reversed(bounded)]
        yield f'<polygon class="band" points="{" ".join(above + below)}"/>'


def _draw_label(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape_markup(words)}</text>'


def _wrap_svg(height: float, parts: Sequence[str], name: str) -> str:
    inside = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape_markup(name)}">\n'
        f"{inside}\n</svg>"
    )


def _shorten_label(words: str) -> str:
    return words if len(words) <= MAX_LABEL_CHARS else f"…{words[-MAX_LABEL_CHARS + 1 :]}"


def escape_markup(words: str) -> str:
    """Nothing in a name or a note is markup."""
    return escape(make_visible(words))
