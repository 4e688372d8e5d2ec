"""`closeloop judge calibrate`: how far a judge may be trusted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.cli.console import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from closeloop.cli.config import Configuration
    from closeloop.judging.labels import Sheet
    from closeloop.model.calibration import Calibration, Canaries, Label, Trust
    from closeloop.model.estimate import Estimate
    from closeloop.model.evaluation import JudgeVersion
    from closeloop.store import Store

ROWS = (
    *("items", "agreeing", "sensitivity", "specificity", "Cohen's κ", "Gwet's AC1"),
    *("rate of passes", "as people would", "prediction-powered", "it may"),
)
MOST_CANARIES = 10
"""Failing outputs that attacks are planted in."""


def calibrate(
    labels: Path | None = None,
    *,
    model: list[str] | None = None,
    rubric: str | None = None,
    canaries: bool = False,
    json: bool = False,
) -> None:
    """Hold a judge against people's labels, against its earlier versions, and against attacks.

    Parameters
    ----------
    labels
        A CSV file with the columns item and label, to keep; without one, what is kept counts.
    model
        The judge's models; those of closeloop.toml when not given.
    rubric
        The judge's rubric.
    canaries
        Also plant attacks in failing attempts and have them judged; this asks the models.
    json
        Print one JSON document instead.
    """
    from closeloop import flow
    from closeloop.cli.config import load
    from closeloop.cli.console import say_json, show
    from closeloop.judging.bench import bench_version, open_bench, rubric_of

    found = load(Path.cwd())
    written = rubric or found.settings.judge.rubric
    wanted = rubric_of(written, found.settings, found.root)
    sheet = sheet_of(labels, wanted.name) if labels is not None else None
    if sheet is not None and sheet.verdicts is not None:
        made = from_sheet(sheet, str(labels))
    else:
        bench = open_bench(found.settings, None, found.root, models=model or [], rubric=rubric)
        judge = bench_version(bench)
        with flow.open_named_store(found.settings, found.root) as store:
            store.judged.save_labels(sheet.labels if sheet else ())
            # Reviews are kept under what the settings say, which may be the rubric's file.
            names = dict.fromkeys((judge.rubric, written))
            known = [label for name in names for label in store.judged.labels(name)]
            tried = attack(known, found, store, model or [], rubric) if canaries else None
            made = from_store(judge, known, store, tried)
            store.judged.save_calibration(made)
    say_json(made) if json else show(*told(made))


def sheet_of(file: Path, rubric: str) -> Sheet:
    from closeloop.cli.files import content_of
    from closeloop.judging.labels import LARGEST, read_sheet

    return read_sheet(content_of(file, LARGEST + 1), str(file), rubric)


def from_sheet(sheet: Sheet, file: str) -> Calibration:
    """Of a judge whose verdicts the file holds itself: anybody's, so nothing of it is kept."""
    from closeloop.judging.calibrate import calibrate as calibrated
    from closeloop.model.evaluation import JudgeVersion

    judge = JudgeVersion(
        id="given",
        judge=f"given in {file}",
        rubric="",
        rubric_digest="",
        prompt="",
        model="",
        temperature=0.0,
    )
    return calibrated(judge, sheet.labels, sheet.verdicts or {}, datetime.now(UTC))


def from_store(
    judge: JudgeVersion, labels: Sequence[Label], store: Store, canaries: Canaries | None
) -> Calibration:
    """Of the judge as it is set, by what it judged so far."""
    from msgspec.structs import replace

    from closeloop.judging.calibrate import calibrate as calibrated
    from closeloop.judging.calibrate import drift, retest, verdicts_of
    from closeloop.judging.comparing import flip_rate
    from closeloop.model.errors import BadInput

    if not labels:
        raise BadInput(
            f"No labels for the rubric {judge.rubric!r} are kept: give a CSV file with some."
        )
    now = verdicts_of(store.judged.verdicts(judge.id), judge)
    made = calibrated(judge, labels, now, datetime.now(UTC))
    earlier = (
        drift(one, verdicts_of(store.judged.verdicts(one.id), one), judge, now)
        for one in store.judged.versions()
        if one.id != judge.id and one.rubric == judge.rubric
    )
    return replace(
        made,
        drift=next((one for one in earlier if one is not None), None),
        retest=retest(store.judged.evaluations(judge=judge.id)),
        flips=flip_rate(store.judged.preferences(judge.id)),
        canaries=canaries,
    )


def attack(
    labels: Sequence[Label],
    found: Configuration,
    store: Store,
    models: Sequence[str],
    rubric: str | None,
) -> Canaries:
    """Attacks on attempts that people call failures."""
    import anyio

    from closeloop.cli.judge import opened_bench
    from closeloop.judging.attacking import attacked
    from closeloop.judging.cases import case_of
    from closeloop.measuring.attempts import book_of, story
    from closeloop.model.errors import BadInput
    from closeloop.tasks.seal import demand_open

    failures = dict.fromkeys(
        one.item for one in labels if one.label == "fail" and one.asked == "overall"
    )
    book = book_of(found.settings)
    cases = []
    for item in failures:
        try:
            told = story(store, item, book)
            demand_open(told.task)
            cases.append(case_of(told))
        except BadInput:
            continue  # labelled, but no attempt of ours, or one at a sealed task
        if len(cases) == MOST_CANARIES:
            break
    if not cases:
        raise BadInput("No attempt is labelled as failing: canaries need bad work to hide in.")

    async def go() -> Canaries:
        async with opened_bench(found, models, rubric, None) as bench:
            return await attacked(bench, cases)

    return anyio.run(go)


def told(made: Calibration) -> Iterator[RenderableType]:
    """A row for the whole and each criterion, then what else is known."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    table.add_column("")
    for one in made.trust:
        table.add_column(one.asked, no_wrap=True)
    for cells in zip(ROWS, *(column_of(one) for one in made.trust), strict=True):
        table.add_row(*cells)
    judge = made.judge
    yield Text(visible(f"{judge.judge} {judge.model} {judge.rubric}").strip(), style="bold")
    yield table
    for one in made.trust:
        if one.why_not:
            yield Text(f"{one.asked} only advises: {one.why_not}.")
        if one.corrected.refusal:
            yield Text(f"{one.asked} has no corrected rate: {one.corrected.refusal}", "yellow")
    yield from (Text(visible(line)) for line in others(made))
    yield from (Text(visible(line), style="yellow") for line in made.notes)


def column_of(one: Trust) -> list[str]:
    found = one.agreement
    return [
        str(found.agreeing.n),
        number(found.agreeing),
        number(found.sensitivity),
        number(found.specificity),
        number(found.kappa),
        number(found.ac1),
        f"{one.passed / one.judged:.2f}",
        number(one.corrected.estimate),
        number(one.powered.estimate if one.powered else None),
        "block" if one.may_block else "advise",
    ]


def number(one: Estimate | None) -> str:
    return "–" if one is None else f"{one.value:.2f} ({one.low:.2f} … {one.high:.2f})"


def others(made: Calibration) -> Iterator[str]:
    if made.people is not None:
        yield f"People among themselves: AC1 {number(made.people.ac1)}."
    for person, right in made.golden.items():
        yield f"{person} is right on {right.hits:g} of {right.of} golden items."
    if made.retest is not None:
        yield f"The same output asked again: scores spread by {number(made.retest)}."
    if made.drift is not None and made.drift.same is not None:
        same, what = made.drift.same, ", ".join(made.drift.changes)
        yield (
            f"Since {made.drift.before.id} ({what} changed): the same verdict on "
            f"{same.hits:g} of {same.of} items."
        )
        yield from (f"  {line}" for line in made.drift.changed)
    if made.flips is not None:
        yield f"Pairs whose order decided: {made.flips.hits:g} of {made.flips.of}."
    if made.canaries is not None:
        flipped = made.canaries.flipped
        names = ", ".join(made.canaries.by)
        yield (
            "No failing output to plant attacks in."
            if flipped is None
            else f"Attacks that succeeded: {flipped.hits:g} of {flipped.of}. {names}"
        )
