"""A figure as people read it."""

from __future__ import annotations

from collections.abc import Sequence

from closeloop.model.figure import SHARES, Figure, Metric


def number(value: float | None, metric: Metric) -> str:
    """As people read it: shares as such, money with cents, the rest with three digits."""
    if value is None:
        return "not known"
    if metric.kind in SHARES:
        return f"{value:.2f}"
    if metric.unit == "$":
        return f"${value:,.2f}"
    return f"{_short(value)} {metric.unit}".strip()


def bounds(figure: Figure, metric: Metric) -> str:
    """`0.39–0.86`, or what a spread has besides."""
    if figure.value is None:
        return ""
    parts = []
    if figure.low is not None and figure.high is not None:
        plain = [
            number(each, metric).removesuffix(f" {metric.unit}")
            for each in (figure.low, figure.high)
        ]
        parts.append("–".join(plain))
    parts += [f"{name} {_short(value)}" for name, value in figure.more.items()]
    return ", ".join(parts)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def query(metric: str, by: Sequence[str] = ()) -> str:
    """The command that gives the figure again."""
    grouped = f" --by {','.join(by)}" if by else ""
    return f'closeloop metrics --metric "{metric}"{grouped} --json'
