"""A figure as people read it."""

from __future__ import annotations

from collections.abc import Sequence

from closeloop.records.metric_values import SHARE_KINDS, Metric, MetricValue


def format_metric_value(value: float | None, metric: Metric) -> str:
    """As people read it: shares as such, money as such, the rest with three digits."""
    if value is None:
        return "not known"
    shown = _format_bare_value(value, metric)
    if metric.kind in SHARE_KINDS or metric.unit in ("", "$"):
        return shown
    unit = metric.unit if shown != "1" or metric.unit == "s" else metric.unit.removesuffix("s")
    return f"{shown} {unit}"


def format_bounds(figure: MetricValue, metric: Metric) -> str:
    """`0.39–0.86`, or what a spread has besides."""
    if figure.value is None:
        return ""
    parts = []
    if figure.low is not None and figure.high is not None:
        parts.append(
            "–".join(_format_bare_value(each, metric) for each in (figure.low, figure.high))
        )
    parts += [f"{name} {_format_number(value)}" for name, value in figure.more.items()]
    return ", ".join(parts)


def format_dollars(amount: float) -> str:
    """`$1.20`, `$0.01`; below ten cents with the hundredths of a cent, if any: `$0.0042`."""
    if 0 < abs(amount) < 0.0001:
        return "< $0.0001"
    whole, _, rest = f"{amount:,.{4 if abs(amount) < 0.1 else 2}f}".partition(".")
    return f"${whole}.{rest[:2]}{rest[2:].rstrip('0')}"


def _format_bare_value(value: float, metric: Metric) -> str:
    if metric.kind in SHARE_KINDS:
        return f"{value:.2f}"
    return format_dollars(value) if metric.unit == "$" else _format_number(value)


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def metrics_command(metric: str, by: Sequence[str] = ()) -> str:
    """The command that gives the figure again."""
    grouped = f" --by {','.join(by)}" if by else ""
    return f'closeloop metrics --metric "{metric}"{grouped} --json'
