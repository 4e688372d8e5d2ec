"""`closeloop measure`: what the rules say of traces, and the process score."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from closeloop.cli.console import visible
from closeloop.model.plural import plural

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from closeloop.measuring.attempts import Measured
    from closeloop.model.attempt import AttemptRow
    from closeloop.model.finding import Finding
    from closeloop.model.rates import Rate
    from closeloop.process.rulebook import Rulebook
    from closeloop.store import Store

MOST_ROWS = 40
MOST_FINDINGS = 30
COLOURS = {"error": "red", "warning": "yellow", "info": "dim"}
RATES = ("handoff", "feedback", "recovery", "convergence")


def measure(
    *sources: str,
    all: bool = False,  # noqa: A002
    experiment: str | None = None,
    json: bool = False,
    sarif: bool = False,
) -> None:
    """Say how agents worked: iterations, spirals, feedback, handoffs, claims, with the evidence.

    Parameters
    ----------
    sources
        Recorded sessions, as files or folders, or ids of attempts; else the newest experiment.
    all
        Every attempt and session in the store.
    experiment
        The attempts of this experiment.
    json
        Print one JSON document instead of tables.
    sarif
        Print the findings as SARIF, which code hosts and editors read.
    """
    from closeloop import flow
    from closeloop.cli.config import load
    from closeloop.cli.console import say_json, show
    from closeloop.measuring.attempts import book_of, measured
    from closeloop.model.errors import BadInput

    if bool(sources) + all + (experiment is not None) > 1:
        raise BadInput("Give either sources, --all, or --experiment.")
    found = load(Path.cwd())
    book = book_of(found.settings)
    paths = [Path(source) for source in sources if Path(source).exists()]
    ids = [source for source in sources if not Path(source).exists()]
    results: list[Measured] = []
    if paths:
        with read_files(paths) as store:
            results += measured(store, store.attempts(), book)
    if not paths or ids:
        with flow.open_kept_store(found.settings, found.root) as store:
            rows = chosen(store, ids, experiment=experiment, every=all)
            with counting(len(rows), quiet=json or sarif) as tell:
                made = with_judges(measured(store, rows, book, tell), store)
            results += unsealed(made, store.held_out.sealed())
    if sarif:
        say_json(findings_as_sarif(results, book))
    elif json:
        say_json(results)
    else:
        show(*tables(results))


def findings_as_sarif(results: Sequence[Measured], book: Rulebook) -> dict[str, Any]:
    from closeloop.changes.reports.sarif import sarif

    rules = [one.detector.rule for one in book.chosen]
    found = [(one.row.id, each) for one in results for each in one.measurement.findings]
    return sarif(found, rules)


@contextmanager
def read_files(paths: Sequence[Path]) -> Iterator[Store]:
    """Sessions in files, in a store that is gone afterwards."""
    from closeloop.cli.console import warn
    from closeloop.cli.import_ import warnings
    from closeloop.intake.imports import import_sessions
    from closeloop.model.errors import BadInput
    from closeloop.model.intake import Wish
    from closeloop.store import open_store

    with open_store(":memory:") as store:
        tally = import_sessions(
            list(paths), store, wish=Wish(), jobs=os.cpu_count() or 1, tell=lambda tally: None
        )
        if not tally.formats:
            raise BadInput(next(iter(warnings(tally)), "Nothing could be read."))
        for trouble in tally.troubles:
            warn(trouble)
        yield store


def chosen(
    store: Store, ids: Sequence[str], *, experiment: str | None, every: bool
) -> list[AttemptRow]:
    """The attempts that are asked for."""
    from closeloop.measuring.attempts import attempts_of, experiment_of

    if ids:
        names = {store.attempt(name).id for name in ids}
        return [row for row in store.attempts() if row.id in names]
    if every or (experiment is None and not store.experiments()):
        return store.attempts()
    return attempts_of(store, experiment_of(store, experiment))


def with_judges(results: Iterable[Measured], store: Store) -> list[Measured]:
    """With what models found when they were asked about traces, after the rules."""
    from msgspec.structs import replace

    from closeloop.judges.questions import with_answers

    said = store.judged.found()
    return [
        replace(one, measurement=replace(made, findings=with_answers(made.findings, answers)))
        if (made := one.measurement) and (answers := said.get(one.row.id))
        else one
        for one in results
    ]


def unsealed(results: Sequence[Measured], sealed: Collection[str]) -> Iterator[Measured]:
    """What may be told of each: of held-out tasks only numbers."""
    from closeloop.measuring.attempts import Measured
    from closeloop.tasks.seal import hide_measurement, hide_row

    for one in results:
        if one.row.task_digest in sealed:
            hidden = hide_measurement(one.measurement)
            yield Measured(row=hide_row(one.row, sealed), measurement=hidden)
        else:
            yield one


@contextmanager
def counting(total: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar that fills, on a terminal."""
    from rich.progress import Progress

    from closeloop.cli.console import console

    output = console(stderr=True)
    if quiet or not output.is_terminal:
        yield lambda done: None
        return
    with Progress(console=output, transient=True) as progress:
        bar = progress.add_task("measuring", total=total)
        yield lambda done: progress.advance(bar, done)


def tables(results: Sequence[Measured]) -> Iterator[RenderableType]:
    """The attempts, the process score by variant, and the findings."""
    from rich.text import Text

    if not results:
        yield Text("Nothing to measure: `closeloop run` and `closeloop import` bring traces.")
        return
    yield attempt_table(results)
    yield Text()
    yield score_table(results)
    yield Text()
    yield from findings(results)


def attempt_table(results: Sequence[Measured]) -> RenderableType:
    """A row an attempt."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.attempts import short
    from closeloop.cli.results import MARKS

    table = Table(title="How each attempt went", title_justify="left", title_style="bold", box=None)
    for name in ("attempt", "task", "variant", ""):
        table.add_column(name, no_wrap=True)
    for name in ("iterations", "converged", "feedback", "handoff", "recovery"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("category")
    table.add_column("findings", min_width=22)
    for one in sorted(results, key=lambda one: -telling(one))[:MOST_ROWS]:
        row, made = one.row, one.measurement
        mark, colour = MARKS[row.outcome] if row.outcome else ("·", "dim")
        whole, score = made.whole, made.score
        converged = {True: f"after {whole.converged_after}", False: "never", None: "–"}
        table.add_row(
            row.id,
            Text(visible(row.task or short(row.repo) or "–")),
            Text(visible(row.variant_name or row.agent or "–")),
            Text(mark, style=colour),
            str(whole.iterations),
            converged[whole.converged],
            of(score.feedback),
            of(score.handoff),
            of(score.recovery),
            made.ending.category if made.ending else "–",
            found(counted(one)),
        )
    if len(results) > MOST_ROWS:
        table.caption = f"… and {len(results) - MOST_ROWS} more: --json has all of them"
    return table


def score_table(results: Sequence[Measured]) -> RenderableType:
    """The four rates of each variant, with their n and interval; beside them what passed."""
    from rich.table import Table

    from closeloop.model.rates import pooled, rate

    table = Table(title="Process score", title_justify="left", title_style="bold", box=None)
    table.add_column("")
    for name in (*RATES, "passed"):
        table.add_column(name, justify="right")
    sides: dict[str, list[Measured]] = {}
    for one in results:
        sides.setdefault(one.row.variant_name or one.row.agent or "–", []).append(one)
    for name, side in sides.items():
        rates = [pooled(*(getattr(one.measurement.score, each) for one in side)) for each in RATES]
        scored = [one.row.outcome for one in side if one.row.outcome in ("pass", "fail")]
        rates.append(rate(scored.count("pass"), len(scored)))
        table.add_row(visible(name), *(interval(each) for each in rates))
    return table


def findings(results: Sequence[Measured]) -> Iterator[Text]:
    """What the rules found, the gravest first, each with the events to look at."""
    from rich.text import Text

    every = [(one.row.id, finding) for one in results for finding in counted(one)]
    order = list(COLOURS)
    every.sort(key=lambda pair: (order.index(pair[1].severity), -pair[1].confidence))
    yield Text("Findings" if every else "No findings.", style="bold")
    for attempt, finding in every[:MOST_FINDINGS]:
        yield finding_line(finding, attempt)
    if len(every) > MOST_FINDINGS:
        yield Text(f"… and {len(every) - MOST_FINDINGS} more: --json has all of them", style="dim")
    silenced = sum(
        finding.silenced is not None for one in results for finding in one.measurement.findings
    )
    if silenced:
        are = plural(silenced, "finding is", "findings are")
        yield Text(f"{are} silenced in closeloop.toml.", style="dim")
    if every:
        yield Text(f"closeloop show {every[0][0]}   # the events behind them", style="cyan")


def finding_line(finding: Finding, attempt: str | None = None) -> Text:
    """`spiral  6 rounds of changes … (#4, #9) in 1a2b3c`."""
    from rich.text import Text

    cited = ", ".join(f"#{number}" for number in finding.events[:6])
    more = "…" if len(finding.events) > 6 else ""
    line = Text(f"  {visible(finding.rule)}", style=f"bold {COLOURS[finding.severity]}")
    line.append("  (a judge says)" if finding.source == "judge" else "", style="dim")
    line.append(f"  {visible(finding.message)}", style="default")
    line.append(f"  ({cited}{more})" if cited else "", style="dim")
    return line.append(f"  {attempt}" if attempt else "", style="dim")


def counted(one: Measured) -> list[Finding]:
    """The findings that are not silenced."""
    return [finding for finding in one.measurement.findings if finding.silenced is None]


def telling(one: Measured) -> float:
    """How much there is to learn from an attempt, roughly."""
    weights = {"error": 3, "warning": 1, "info": 0}
    return sum(weights[finding.severity] for finding in counted(one)) + 2 * len(
        one.measurement.modes
    )


def found(counted: Sequence[Finding]) -> Text:
    """The rules' names, each once, with how often."""
    from rich.text import Text

    text = Text()
    names = [finding.rule for finding in counted]
    for finding in {finding.rule: finding for finding in counted}.values():
        times = names.count(finding.rule)
        text.append(
            f"{finding.rule}{f' ×{times}' if times > 1 else ''} ", COLOURS[finding.severity]
        )
    return text


def of(rate: Rate | None) -> str:
    return "–" if rate is None else f"{rate.hits:g} of {rate.of}"


def interval(rate: Rate | None) -> str:
    """`0.67 of 12 (0.39–0.86)`."""
    return (
        "–" if rate is None else f"{rate.value:.2f} of {rate.of} ({rate.low:.2f}–{rate.high:.2f})"
    )
