"""A figure as people read it."""

from __future__ import annotations

from collections.abc import Sequence

from closeloop.model.figure import SHARES, Figure, Metric


def number(value: float | None, metric: Metric) -> str:
    """As people read it: shares as such, money as such, the rest with three digits."""
    if value is None:
        return "not known"
    shown = _bare(value, metric)
    if metric.kind in SHARES or metric.unit in ("", "$"):
        return shown
    unit = metric.unit if shown != "1" or metric.unit == "s" else metric.unit.removesuffix("s")
    return f"{shown} {unit}"


def bounds(figure: Figure, metric: Metric) -> str:
    """`0.39–0.86`, or what a spread has besides."""
    if figure.value is None:
        return ""
    parts = []
    if figure.low is not None and figure.high is not None:
        parts.append("–".join(_bare(each, metric) for each in (figure.low, figure.high)))
    parts += [f"{name} {_short(value)}" for name, value in figure.more.items()]
    return ", ".join(parts)


def money(amount: float) -> str:
    """`$1.20`, `$0.01`; below ten cents with the hundredths of a cent, if any: `$0.0042`."""
    if 0 < abs(amount) < 0.0001:
        return "< $0.0001"
    whole, _, rest = f"{amount:,.{4 if abs(amount) < 0.1 else 2}f}".partition(".")
    return f"${whole}.{rest[:2]}{rest[2:].rstrip('0')}"


def _bare(value: float, metric: Metric) -> str:
    if metric.kind in SHARES:
        return f"{value:.2f}"
    return money(value) if metric.unit == "$" else _short(value)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def query(metric: str, by: Sequence[str] = ()) -> str:
    """The command that gives the figure again."""
    grouped = f" --by {','.join(by)}" if by else ""
    return f'closeloop metrics --metric "{metric}"{grouped} --json'
