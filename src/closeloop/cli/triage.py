"""`closeloop triage`: which sessions to look at first, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from closeloop.cli.console import JsonFlag, make_visible
from closeloop.text.wording import count_with_noun, format_percent, format_points

if TYPE_CHECKING:
    from rich.console import RenderableType

    from closeloop.records.triage import SessionTriage, TriageReport


def triage(
    *,
    since: str = "7d",
    agent: str | None = None,
    model: str | None = None,
    number: Annotated[int, Parameter(name=("--number", "-n"))] = 20,
    json: JsonFlag = False,
) -> None:
    """List the sessions that likely failed, first those to look at first, with the reasons.

    Parameters
    ----------
    since
        How far back: 24h, 7d, 2w, a date such as 2026-11-01, or all.
    agent
        Only sessions of this agent.
    model
        Only sessions with this model.
    number
        So many sessions.
    """
    from closeloop.cli.config import open_metrics_store
    from closeloop.cli.console import print_json, print_parts, require_positive_flags
    from closeloop.cli.import_ import parse_since
    from closeloop.cli.measure import show_measuring_progress
    from closeloop.metrics.triage import TriageQuery, triage_sessions

    require_positive_flags(number=number)
    query = TriageQuery(since=parse_since(since), agent=agent, model=model, limit=number)
    with open_metrics_store() as (store, book):
        report = triage_sessions(
            store, book, query, lambda total: show_measuring_progress(total, quiet=json)
        )
    print_json(report) if json else print_parts(*render_triage(report))


def render_triage(report: TriageReport) -> Iterator[RenderableType]:
    """A table of sessions, and how far its order can be trusted."""
    from rich.text import Text

    if not report.sessions:
        yield Text(
            "No session to look at: all of that time are graded, or there are none;"
            " `closeloop import` brings them, and `--since all` looks further back."
        )
    else:
        yield triage_table(report)
        yield Text()
    for note in report.notes:
        yield Text(note, style="yellow")
    if report.sessions:
        yield Text(describe_quality(report), style="dim")
        first = report.sessions[0].attempt
        yield Text(f"closeloop show {first}   # what happened in it", style="cyan")


def triage_table(report: TriageReport) -> RenderableType:
    """A row a session."""
    from rich.table import Table
    from rich.text import Text

    states_chances = any(one.chance is not None for one in report.sessions)
    table = Table(title="Look at these first", title_justify="left", title_style="bold", box=None)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("session", no_wrap=True)
    for name in ("agent", "when"):
        table.add_column(name, no_wrap=True)
    if states_chances:
        table.add_column("succeeded", justify="right", no_wrap=True)
    table.add_column("request", max_width=30)
    table.add_column("why", min_width=40)
    for one in report.sessions:
        chance = (
            [format_percent(one.chance) if one.chance is not None else "–"]
            if states_chances
            else []
        )
        table.add_row(
            str(one.place),
            one.attempt,
            Text(make_visible("\n".join(filter(None, (one.agent, one.model))) or "–")),
            f"{one.started:%Y-%m-%d}" if one.started else "–",
            *chance,
            Text(make_visible(one.title or "–")),
            render_reasons(one),
        )
    if report.total > len(report.sessions):
        table.caption = f"… and {report.total - len(report.sessions)} more: -n shows more of them"
    return table


def render_reasons(one: SessionTriage) -> RenderableType:
    """`−` before what speaks for failure, `+` before what speaks against it."""
    from rich.text import Text

    text = Text()
    for place, reason in enumerate(one.reasons):
        sign, colour = ("+", "green") if reason.effect > 0 else ("−", "red")
        text.append("\n" if place else "").append(f"{sign} ", style=colour)
        text.append(make_visible(reason.text))
    return text


def describe_quality(report: TriageReport) -> str:
    """What the order rests on, and how good it is."""
    from closeloop.metrics.triage_model import MIN_GRADED_SESSIONS

    graded = sum(agent.graded for agent in report.agents)
    auc = report.prior.get("auc, held")
    lines = ["The order comes from public runs" + (f" (AUC {auc:.2f})" if auc else "")]
    if graded:
        lines[0] += f" and from {count_with_noun(graded, 'graded session')} of yours"
    lines[0] += "."
    quality = report.quality
    if quality is not None and quality.auc is not None:
        lines.append(f"On yours, each left out in turn: AUC {quality.auc:.2f}")
        if quality.calibration_error is not None:
            lines[-1] += f", chances off by {format_points(quality.calibration_error)} on average"
        lines[-1] += "."
    silent = [agent for agent in report.agents if not agent.states_chances]
    if silent:
        enough = f"{MIN_GRADED_SESSIONS} of its sessions are graded"
        lines.append(f"Chances are stated for an agent once {enough}.")
    return " ".join(lines)
