"""`closeloop measure`: findings of rules in traces, and the process score."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from closeloop.cli.console import JsonFlag, make_visible
from closeloop.text.wording import (
    count_with_noun,
    format_percent,
    format_percent_range,
    format_points,
    short_repository_name,
)

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from closeloop.metrics.attempt_measuring import MeasuredAttempt
    from closeloop.process.rulebook import ConfiguredDetector, GateDecision, Rulebook, RuleQuality
    from closeloop.records.attempt import AttemptRow
    from closeloop.records.estimate import Rate
    from closeloop.records.finding import Finding, Rule
    from closeloop.records.score import SessionTriage, TriageReport
    from closeloop.store import Store


# `closeloop triage`: which sessions to look at first, and why.


def triage(
    *,
    since: str = "7d",
    agent: str | None = None,
    model: str | None = None,
    limit: int = 20,
    json: JsonFlag = False,
) -> None:
    """List sessions, most likely failures first, with the reasons.

    Parameters
    ----------
    since
        How far back: 24h, 7d, 2w, a date such as 2026-11-01, or all.
    agent
        Only sessions of this agent.
    model
        Only sessions with this model.
    limit
        Maximum number of sessions.
    """
    from closeloop.cli.config import open_metrics_store
    from closeloop.cli.console import print_json, print_parts, require_positive_flags
    from closeloop.cli.import_ import parse_since
    from closeloop.metrics.triage import TriageQuery, triage_sessions

    require_positive_flags(limit=limit)
    query = TriageQuery(since=parse_since(since), agent=agent, model=model, limit=limit)
    with open_metrics_store() as (store, rulebook):
        report = triage_sessions(
            store,
            rulebook,
            query,
            lambda total: show_measuring_progress(total, quiet=json),
            jobs=os.cpu_count() or 1,
        )
    print_json(report) if json else print_parts(*render_triage(report, query.since))


def render_triage(report: TriageReport, since: datetime | None) -> Iterator[RenderableType]:
    """Render a table of sessions, and how reliable its order is."""
    from rich.text import Text

    if not report.sessions:
        where, older = (
            (" in this period", "`--since all` includes older ones, ") if since else ("", "")
        )
        yield Text(
            f"No sessions to triage: there are none{where}, or the outcome of each is known. "
            f"{older}`closeloop import` adds sessions, and `closeloop list attempts --outcome "
            "fail` lists known failures."
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
    """Build a table with one row per session."""
    from rich.table import Table
    from rich.text import Text

    states_chances = any(session.chance is not None for session in report.sessions)
    table = Table(
        title="Sessions, most likely failures first",
        title_justify="left",
        title_style="bold",
        box=None,
    )
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("session", no_wrap=True)
    table.add_column("when", no_wrap=True)
    if states_chances:
        table.add_column("succeeded", justify="right", no_wrap=True)
    table.add_column("request", max_width=44)
    table.add_column("agent", no_wrap=True)
    table.add_column("why", min_width=56)
    for session in report.sessions:
        chance = (
            [format_percent(session.chance) if session.chance is not None else "–"]
            if states_chances
            else []
        )
        table.add_row(
            str(session.place),
            session.attempt,
            f"{session.started:%Y-%m-%d}" if session.started else "–",
            *chance,
            Text(make_visible(session.title or "–")),
            Text(make_visible(" ".join(filter(None, (session.agent, session.model))) or "–")),
            render_reasons(session),
        )
    if report.total > len(report.sessions):
        table.caption = f"… and {report.total - len(report.sessions)} more: --limit shows more"
    return table


def render_reasons(session: SessionTriage) -> RenderableType:
    """Render reasons: `−` for signs of failure, `+` for signs of success."""
    from rich.text import Text

    from closeloop.metrics.triage import NO_FAILURE_REASON

    text = Text()
    if not any(reason.effect < 0 for reason in session.reasons):
        text.append(NO_FAILURE_REASON, style="dim")
    for reason in session.reasons:
        sign, colour = ("+", "green") if reason.effect > 0 else ("−", "red")
        text.append("\n" if text else "").append(f"{sign} ", style=colour)
        text.append(make_visible(reason.text))
    return text


def describe_quality(report: TriageReport) -> str:
    """Describe the basis of the order, and its quality."""
    from closeloop.metrics.triage import MIN_GRADED_SESSIONS

    graded = sum(agent.graded for agent in report.agents)
    auc = report.prior.get("auc, held")
    lines = ["The ranking model is trained on public runs" + (f" (AUC {auc:.2f})" if auc else "")]
    if graded:
        lines[0] += f" and on {count_with_noun(graded, 'session')} of yours with an outcome"
    lines[0] += "."
    quality = report.quality
    if quality is not None and quality.auc is not None:
        lines.append(
            f"On your sessions, with leave-one-out cross-validation: AUC {quality.auc:.2f}"
        )
        if quality.calibration_error is not None:
            lines[-1] += f", mean calibration error {format_points(quality.calibration_error)}"
        lines[-1] += "."
    silent = [agent for agent in report.agents if not agent.states_chances]
    if silent:
        condition = f"{MIN_GRADED_SESSIONS} of its sessions have an outcome"
        lines.append(f"Probabilities are shown for an agent once {condition}.")
    return " ".join(lines)


MAX_ROWS = 40
MAX_FINDINGS = 30
SEVERITY_COLOURS = {"error": "red", "warning": "yellow", "info": "dim"}
RATE_NAMES = ("handoff", "feedback", "recovery", "convergence")


def measure(
    *sources: str,
    all: bool = False,  # noqa: A002
    experiment: str | None = None,
    rules: bool = False,
    json: JsonFlag = False,
    sarif: bool = False,
) -> None:
    """Measure how agents worked: iterations, spirals, handoffs, claims, with the evidence.

    Parameters
    ----------
    sources
        Files or folders of recorded sessions, or ids of attempts; the newest experiment by default.
    all
        Measure every attempt and session in the store.
    experiment
        Measure the attempts of this experiment.
    rules
        List the rules instead: what each detects, its precision and recall, and whether it gates.
    sarif
        Print the findings as SARIF for code hosts and editors.
    """
    if rules:
        print_rules(json=json)
        return
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_parts
    from closeloop.metrics.attempt_measuring import (
        add_judge_findings,
        measure_attempts,
        project_rulebook,
    )
    from closeloop.records.errors import BadInput
    from closeloop.records.settings import has_store
    from closeloop.store.store import open_existing_store

    if bool(sources) + all + (experiment is not None) > 1:
        raise BadInput("Give only one of sources, --all and --experiment.")
    project = load_project(Path.cwd())
    rulebook = project_rulebook(project.settings)
    paths = [Path(source) for source in sources if Path(source).exists()]
    ids = [source for source in sources if not Path(source).exists()]
    if missing_path := next((name for name in ids if not name.isalnum()), None):
        raise BadInput(f"{missing_path} is not a file, a folder or the id of an attempt.")
    if ids and not has_store(project.settings, project.root):
        raise BadInput(
            f"There is no file or folder {ids[0]!r}, and no store here with an attempt of that id."
        )
    results: list[MeasuredAttempt] = []
    jobs = os.cpu_count() or 1
    if paths:
        with import_into_memory(paths) as store:
            results += measure_attempts(store, store.list_attempts(), rulebook, jobs=jobs)
    if not paths or ids:
        with open_existing_store(project.settings, project.root) as store:
            rows = select_measured_rows(store, ids, experiment=experiment, every=all)
            with show_measuring_progress(len(rows), quiet=json or sarif) as report_progress:
                measured = measure_attempts(store, rows, rulebook, report_progress, jobs=jobs)
                results += add_judge_findings(measured, store)
    if sarif:
        print_json(findings_to_sarif(results, rulebook))
    elif json:
        print_json(results)
    elif ids and not results:
        raise BadInput(
            f"{count_with_noun(len(ids), 'attempt has', 'attempts have')} no trace: the agent "
            "recorded nothing that could be measured."
        )
    else:
        print_parts(*measurement_tables(results))


def findings_to_sarif(results: Sequence[MeasuredAttempt], rulebook: Rulebook) -> dict[str, Any]:
    from msgspec.structs import replace

    from closeloop.changes.report_formats import build_sarif

    rules = [replace(entry.detector.rule, gates=entry.gate.gates) for entry in rulebook.chosen]
    findings_by_attempt = [
        (result.row.id, finding) for result in results for finding in result.measurement.findings
    ]
    return build_sarif(findings_by_attempt, rules)


@contextmanager
def import_into_memory(paths: Sequence[Path]) -> Iterator[Store]:
    """Import sessions from files into a temporary store in memory."""
    from closeloop.cli.console import print_warning
    from closeloop.cli.import_ import import_warnings
    from closeloop.flow import import_sessions
    from closeloop.records.errors import BadInput
    from closeloop.records.trace import SessionFilter
    from closeloop.store import make_store

    with make_store(":memory:") as store:
        tally = import_sessions(
            list(paths),
            store,
            session_filter=SessionFilter(),
            jobs=os.cpu_count() or 1,
            report_progress=lambda tally: None,
        )
        if not tally.formats:
            raise BadInput(next(iter(import_warnings(tally)), "Nothing could be read."))
        for warning in tally.troubles:
            print_warning(warning)
        yield store


def select_measured_rows(
    store: Store, ids: Sequence[str], *, experiment: str | None, every: bool
) -> list[AttemptRow]:
    """Return the requested attempts; those at held-out tasks are refused or omitted."""
    from closeloop.metrics.attempt_measuring import find_experiment, list_experiment_attempts
    from closeloop.tasks.task_sets import require_unsealed

    if ids:
        attempts = [store.load_attempt(name) for name in ids]
        for digest in {attempt.task_digest for attempt in attempts if attempt.task_digest}:
            require_unsealed(store.load_task(digest))
        names = {attempt.id for attempt in attempts}
        return [row for row in store.list_attempts() if row.id in names]
    if every or (experiment is None and not store.list_experiments()):
        rows = store.list_attempts()
    else:
        rows = list_experiment_attempts(store, find_experiment(store, experiment))
    sealed = store.held_out.list_sealed_digests()
    return [row for row in rows if row.task_digest not in sealed]


@contextmanager
def show_measuring_progress(total: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal."""
    from closeloop.cli.console import open_console

    output = open_console(stderr=True)
    if quiet or not output.is_terminal:
        yield lambda count: None
        return
    from rich.progress import Progress

    with Progress(console=output, transient=True) as progress:
        bar = progress.add_task("measuring", total=total)
        yield lambda count: progress.advance(bar, count)


def measurement_tables(results: Sequence[MeasuredAttempt]) -> Iterator[RenderableType]:
    """Build tables of the attempts, the process score by variant, and the findings."""
    from rich.text import Text

    if not results:
        yield Text("Nothing to measure: add traces with `closeloop run` or `closeloop import`.")
        return
    yield measured_attempts_table(results)
    yield Text()
    yield process_score_table(results)
    yield Text()
    yield from render_findings(results)


def measured_attempts_table(results: Sequence[MeasuredAttempt]) -> RenderableType:
    """Build a table with one row per attempt."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.console import OUTCOME_MARKS

    table = Table(
        title="Process measures by attempt", title_justify="left", title_style="bold", box=None
    )
    # Recorded sessions have neither a task nor a variant.
    has_sessions = any(result.row.task is None for result in results)
    heads = ("task or repository", "variant or agent") if has_sessions else ("task", "variant")
    for name in ("attempt", *heads, ""):
        table.add_column(name, no_wrap=True)
    for name in ("iterations", "converged", "feedback", "handoff", "recovery"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("ending")
    table.add_column("findings", min_width=22)
    for result in sorted(results, key=lambda measured: -finding_weight(measured))[:MAX_ROWS]:
        row, measurement = result.row, result.measurement
        sign, colour = OUTCOME_MARKS[row.outcome] if row.outcome else ("·", "dim")
        whole, score = measurement.whole, measurement.score
        converged = {True: f"after {whole.converged_after}", False: "never", None: "–"}
        table.add_row(
            row.id,
            Text(make_visible(row.task or short_repository_name(row.repo) or "–")),
            Text(make_visible(row.variant_name or row.agent or "–")),
            Text(sign, style=colour),
            str(whole.iterations),
            converged[whole.converged],
            format_hits(score.feedback),
            format_hits(score.handoff),
            format_hits(score.recovery),
            measurement.ending.category if measurement.ending else "–",
            rule_name_counts(unsilenced_findings(result)),
        )
    if len(results) > MAX_ROWS:
        table.caption = f"… and {len(results) - MAX_ROWS} more: --json lists all"
    return table


def process_score_table(results: Sequence[MeasuredAttempt]) -> RenderableType:
    """Build a table of each variant's four rates and pass rate, as `metrics` computes them."""
    from rich.table import Table

    table = Table(
        title="Process score: means over tasks, with 95 % intervals",
        title_justify="left",
        title_style="bold",
        box=None,
    )
    sides: dict[str, list[MeasuredAttempt]] = {}
    for result in results:
        sides.setdefault(result.row.variant_name or result.row.agent or "–", []).append(result)
    table.add_column("")
    for name in sides:
        table.add_column(make_visible(name), justify="right")
    for rate_name in RATE_NAMES:
        rates = [
            [
                (measured, rate.value)
                for measured in side
                if (rate := getattr(measured.measurement.score, rate_name))
            ]
            for side in sides.values()
        ]
        table.add_row(rate_name, *map(_format_task_mean, rates))
    passes = [
        [
            (measured, float(measured.row.outcome == "pass"))
            for measured in side
            if measured.row.outcome in ("pass", "fail")
        ]
        for side in sides.values()
    ]
    table.add_row("passed", *map(_format_task_mean, passes))
    return table


def _format_task_mean(values: Sequence[tuple[MeasuredAttempt, float]]) -> str:
    """Format `67 % of 12 (39–86 %)`: the repeats of a task are averaged, a session counts as a
    task."""
    import numpy as np

    from closeloop.metrics.metric_figures import rate_bounds

    by_task: dict[str, list[float]] = {}
    for measured, value in values:
        by_task.setdefault(measured.row.task_digest or measured.row.id, []).append(value)
    if not by_task:
        return "–"
    repeats = list(by_task.values())
    mean = rate_bounds(
        np.array([sum(repeat) for repeat in repeats]), np.array([*map(len, repeats)])
    )
    bounds = format_percent_range(mean.low or 0.0, 1.0 if mean.high is None else mean.high)
    return f"{format_percent(mean.value)} of {len(repeats)} ({bounds})"


def render_findings(results: Sequence[MeasuredAttempt]) -> Iterator[Text]:
    """Render the findings, most severe first, each with its events."""
    from rich.text import Text

    all_findings = [
        (result.row.id, finding) for result in results for finding in unsilenced_findings(result)
    ]
    order = list(SEVERITY_COLOURS)
    all_findings.sort(key=lambda pair: (order.index(pair[1].severity), -pair[1].confidence))
    yield Text("Findings" if all_findings else "No findings.", style="bold")
    for attempt, finding in all_findings[:MAX_FINDINGS]:
        yield render_finding_line(finding, attempt)
    if len(all_findings) > MAX_FINDINGS:
        yield Text(f"… and {len(all_findings) - MAX_FINDINGS} more: --json lists all", style="dim")
    silenced = sum(
        finding.silenced is not None
        for result in results
        for finding in result.measurement.findings
    )
    if silenced:
        silenced_text = count_with_noun(silenced, "finding is", "findings are")
        yield Text(f"{silenced_text} silenced in closeloop.toml.", style="dim")
    if all_findings:
        yield Text(f"closeloop show {all_findings[0][0]}   # the events behind them", style="cyan")


def render_finding_line(finding: Finding, attempt: str | None = None) -> Text:
    """Render `spiral  6 rounds of changes … (#4, #9) in 1a2b3c`."""
    from rich.text import Text

    cited = ", ".join(f"#{number}" for number in finding.events[:6])
    ellipsis = "…" if len(finding.events) > 6 else ""
    line = Text(
        f"  {make_visible(finding.rule)}", style=f"bold {SEVERITY_COLOURS[finding.severity]}"
    )
    line.append("  (by a judge)" if finding.source == "judge" else "", style="dim")
    line.append(f"  {make_visible(finding.message)}", style="default")
    line.append(f"  ({cited}{ellipsis})" if cited else "", style="dim")
    return line.append(f"  {attempt}" if attempt else "", style="dim")


def unsilenced_findings(measured: MeasuredAttempt) -> list[Finding]:
    """Return the findings that are not silenced."""
    return [finding for finding in measured.measurement.findings if finding.silenced is None]


def finding_weight(measured: MeasuredAttempt) -> float:
    """Return a rough weight of what can be learned from an attempt."""
    weights = {"error": 3, "warning": 1, "info": 0}
    return sum(weights[finding.severity] for finding in unsilenced_findings(measured)) + 2 * len(
        measured.measurement.modes
    )


def rule_name_counts(findings: Sequence[Finding]) -> Text:
    """Render each rule's name once, with its count."""
    from rich.text import Text

    text = Text()
    names = [finding.rule for finding in findings]
    for finding in {finding.rule: finding for finding in findings}.values():
        times = names.count(finding.rule)
        text.append(
            f"{finding.rule}{f' ×{times}' if times > 1 else ''} ",
            SEVERITY_COLOURS[finding.severity],
        )
    return text


def format_hits(rate: Rate | None) -> str:
    return "–" if rate is None else f"{rate.hits:g} of {rate.of}"


def format_rate_interval(rate: Rate | None) -> str:
    """Format `67 % of 12 (39–86 %)`."""
    if rate is None:
        return "–"
    bounds = format_percent_range(rate.low, rate.high)
    return f"{format_percent(rate.value)} of {rate.of} ({bounds})"


# `closeloop measure --rules`: the catalogue of rules.


def print_rules(*, json: bool) -> None:
    """List the rules: what each detects, whether it gates, its precision and recall."""
    from closeloop import plugins
    from closeloop.cli.config import load_project
    from closeloop.cli.console import open_console, print_json, print_parts
    from closeloop.metrics.attempt_measuring import project_rulebook
    from closeloop.process.rulebook import describe_readings, load_measured_quality, quality_by_rule

    project = load_project(Path.cwd())
    rulebook = project_rulebook(project.settings)
    configured = {entry.detector.rule.name: entry for entry in rulebook.chosen}
    catalogue = [detector.rule for detector in plugins.load_plugins("detectors")]
    rule_quality = quality_by_rule()
    if json:
        print_json(
            [
                {
                    "rule": rule,
                    "enabled": rule.name in configured,
                    "thresholds": configured_entry.limits
                    if (configured_entry := configured.get(rule.name))
                    else None,
                    "gate": configured_entry.gate if configured_entry else None,
                    "quality": rule_quality.get(rule.name),
                }
                for rule in catalogue
            ]
        )
        return
    summary = describe_readings(load_measured_quality().reading_summary)
    build_table = rule_catalogue_table if open_console().is_terminal else rule_rows_table
    print_parts(build_table(catalogue, configured, rule_quality), *summary)


def rule_catalogue_table(
    catalogue: Sequence[Rule],
    configured: Mapping[str, ConfiguredDetector],
    quality_by_rule: Mapping[str, RuleQuality],
) -> Table:
    """Build a table with three lines per rule: its precision on real sessions and on labelled
    examples."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 1, 0))
    for name in ("rule", "", "precision", "recall"):
        table.add_column(name, no_wrap=True)
    table.add_column("what it detects", ratio=1)
    for rule in catalogue:
        entry, scores = configured.get(rule.name), quality_by_rule.get(rule.name)
        read = scores.read if scores else None
        title = Text(rule.name, style=SEVERITY_COLOURS[rule.severity])
        description = Text(make_visible(rule.about))
        description.append(f"\n{_describe_gate(entry)}", style="bold")
        table.add_row(
            title.append(f"\n{rule.severity}\n{_list_thresholds(entry)}", style="dim"),
            "real sessions\nexamples",
            _join_rates(read.precision if read else None, scores.precision if scores else None),
            _join_rates(read.recall if read else None, scores.recall if scores else None),
            description,
        )
    return table


def rule_rows_table(
    catalogue: Sequence[Rule],
    configured: Mapping[str, ConfiguredDetector],
    quality_by_rule: Mapping[str, RuleQuality],
) -> Table:
    """Build the same table for a pipe: one line per rule and kind of sessions."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for name in ("rule", "severity", "", "precision", "recall", "thresholds", "what it detects"):
        table.add_column(name)
    for rule in catalogue:
        entry, scores = configured.get(rule.name), quality_by_rule.get(rule.name)
        description = Text(make_visible(f"{rule.about} {_describe_gate(entry)}"))
        for name, quality in (("real sessions", scores and scores.read), ("examples", scores)):
            table.add_row(
                rule.name,
                rule.severity,
                name,
                format_rate_interval(quality.precision if quality else None),
                format_rate_interval(quality.recall if quality else None),
                _list_thresholds(entry),
                description,
            )
    return table


def _list_thresholds(entry: ConfiguredDetector | None) -> str:
    return ", ".join(f"{key} {value:g}" for key, value in (entry.limits if entry else {}).items())


def _describe_gate(entry: ConfiguredDetector | None) -> str:
    return format_gate(entry.gate) if entry else "switched off"


def _join_rates(*rates: Rate | None) -> str:
    return "\n".join(map(format_rate_interval, rates))


def format_gate(gate: GateDecision) -> str:
    """Format `advises: 12 of 13 right: 7 more have to be read`."""
    return f"{'gates' if gate.gates else 'advises'}: {gate.reason}"
