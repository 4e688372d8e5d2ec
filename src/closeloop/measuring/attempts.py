"""From traces to measurements: what is stored or lies in files, by the rules as they are set.

What was measured before, by the same rules from the same facts, is not measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import msgspec

from closeloop import plugins
from closeloop.model.attempt import Attempt, AttemptRow
from closeloop.model.errors import BadInput, unknown
from closeloop.model.measurement import Measurement
from closeloop.model.plan import Story
from closeloop.model.record import Record, digest
from closeloop.model.settings import Settings
from closeloop.model.steps import Reading
from closeloop.model.trace import Trace
from closeloop.model.variant import Experiment
from closeloop.process.measure import measure
from closeloop.process.reading import read
from closeloop.process.rulebook import Rulebook, rulebook
from closeloop.store import Store

AT_ONCE = 200
"""So many attempts are looked up, measured and saved together: a kill loses no more."""


class Measured(Record):
    """An attempt, and what the rules say of it."""

    row: AttemptRow
    measurement: Measurement


def book_of(settings: Settings) -> Rulebook:
    """The installed rules, as the project has set them."""
    commands = settings.commands
    own = (commands.test, commands.lint, commands.types, commands.build, *commands.others)
    detectors = plugins.every("detectors")
    names = {detector.rule.name for detector in detectors}
    ours = [silence for silence in settings.silence if silence.rule in names]
    if len(ours) < len(settings.silence):
        # The others are those of checks of a change; a name that nobody knows is ours to refuse.
        theirs = {rule.name for check in plugins.every("checks") for rule in check.rules}
        ours += [one for one in settings.silence if one.rule not in names | theirs]
    return rulebook(
        detectors,
        settings.rules,
        ours,
        [command for command in own if command],
    )


def measured(
    store: Store,
    rows: Sequence[AttemptRow],
    book: Rulebook,
    tell: Callable[[int], None] = lambda done: None,
) -> Iterator[Measured]:
    """Attempts with their measurements, in the order given; those without a trace are left out."""
    waiting = iter([row for row in rows if row.events is not None])
    while part := list(islice(waiting, AT_ONCE)):
        wanted = {row.id: basis(row, book) for row in part}
        known = store.measurements(wanted)
        new = {row.id: measure_stored(store, row.id, book) for row in part if row.id not in known}
        store.save_measurements([(name, wanted[name], made) for name, made in new.items()])
        for row in part:
            yield Measured(row=row, measurement=known.get(row.id) or new[row.id])
        tell(len(part))


def basis(row: AttemptRow, book: Rulebook) -> str:
    """What a measurement is made from, besides the trace: the rules and the grade."""
    return basis_of((row.grading, row.version, row.outcome), book)


def basis_of(graded: tuple[str | None, int | None, str | None], book: Rulebook) -> str:
    """The same, from the grading, its grader's version and the outcome."""
    return digest(book.identity, *graded)[:16]


def measure_stored(store: Store, attempt: str, book: Rulebook) -> Measurement:
    """One attempt, by all that the store knows of it."""
    return measure(_known(store, attempt, book)[0], book)


def story(store: Store, name: str, book: Rulebook) -> Story:
    """All of one attempt, by its id or the beginning of it."""
    known, made, trace = _known(store, name, book)
    return Story(
        attempt=made,
        task=known.task,
        variant=store.variant(made.variant) if made.variant else None,
        trace=trace,
        change=known.change,
        grade=known.grade,
        session=store.session(made.id),
        measurement=measure(known, book),
        insights=tuple(store.course.insights(attempt=made.id)),
    )


def _known(store: Store, name: str, book: Rulebook) -> tuple[Reading, Attempt, Trace | None]:
    """What the rules look at, of which attempt and which trace."""
    made, trace, change = store.recorded(name)
    reading = msgspec.structs.replace(
        read(trace or Trace(reader="none", reader_version=1), book.own_checks),
        attempt=made,
        task=store.task(made.task_digest) if made.task_digest else None,
        change=change,
        grade=store.grade(made.id),
    )
    return reading, made, trace


def attempts_of(store: Store, experiment: Experiment) -> list[AttemptRow]:
    """The attempts that count for an experiment: the last try of each of its places."""
    rows = store.attempts(task_digests=experiment.tasks, variants=experiment.variants)
    last: dict[tuple[str | None, str | None, int], AttemptRow] = {}
    for row in sorted(rows, key=lambda row: row.retry):
        if row.number <= experiment.repeats:
            last[row.task_digest, row.variant, row.number] = row
    return sorted(
        last.values(), key=lambda row: (row.task or "", row.variant_name or "", row.number)
    )


def experiment_of(store: Store, name: str | None) -> Experiment:
    """The one whose id begins so; the newest when none is named."""
    known = store.experiments()
    if not known:
        raise BadInput("There is no experiment yet: `closeloop run` makes one.")
    if name is None:
        return known[0]
    found = [experiment for experiment in known if experiment.id.startswith(name)]
    if not found:
        raise unknown("experiment", name, [experiment.id for experiment in known[:10]])
    if len(found) > 1:
        ids = ", ".join(experiment.id for experiment in found[:5])
        raise BadInput(f"{name!r} begins several experiments, {ids}: type more of it.")
    return found[0]
