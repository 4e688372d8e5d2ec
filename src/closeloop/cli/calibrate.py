"""`closeloop judge calibrate`: how far a judge may be trusted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.cli.console import make_visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from closeloop.cli.config import ProjectConfiguration
    from closeloop.judges.label_sheet import LabelSheet
    from closeloop.records.calibration import Calibration, CanaryResults, HumanLabel, JudgeTrust
    from closeloop.records.estimate import Estimate
    from closeloop.records.evaluation import JudgeVersion
    from closeloop.store import Store

TRUST_ROWS = (
    *("items", "agreeing", "sensitivity", "specificity", "Cohen's κ", "Gwet's AC1"),
    *("rate of passes", "as people would", "prediction-powered", "it may"),
)
MAX_CANARIES = 10
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
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_parts
    from closeloop.judges.judge_panel import (
        build_panel_version,
        load_project_rubric,
        open_judge_panel,
    )

    project = load_project(Path.cwd())
    rubric_setting = rubric or project.settings.judge.rubric
    judge_rubric = load_project_rubric(rubric_setting, project.settings, project.root)
    sheet = load_label_sheet(labels, judge_rubric.name) if labels is not None else None
    if sheet is not None and sheet.verdicts is not None:
        calibration = calibrate_from_sheet(sheet, str(labels))
    else:
        panel = open_judge_panel(
            project.settings, None, project.root, models=model or [], rubric=rubric
        )
        judge = build_panel_version(panel)
        with flow.open_project_store(project.settings, project.root) as store:
            store.judged.save_labels(sheet.labels if sheet else ())
            # Reviews are kept under what the settings say, which may be the rubric's file.
            names = dict.fromkeys((judge.rubric, rubric_setting))
            known_labels = [label for name in names for label in store.judged.list_labels(name)]
            canary_results = (
                plant_canaries(known_labels, project, store, model or [], rubric)
                if canaries
                else None
            )
            calibration = calibrate_from_store(judge, known_labels, store, canary_results)
            store.judged.save_calibration(calibration)
    print_json(calibration) if json else print_parts(*render_calibration(calibration))


def load_label_sheet(file: Path, rubric: str) -> LabelSheet:
    from closeloop.cli.argument_files import read_file_content
    from closeloop.judges.label_sheet import MAX_SHEET_BYTES, read_label_sheet

    return read_label_sheet(read_file_content(file, MAX_SHEET_BYTES + 1), str(file), rubric)


def calibrate_from_sheet(sheet: LabelSheet, file: str) -> Calibration:
    """Of a judge whose verdicts the file holds itself: anybody's, so nothing of it is kept."""
    from closeloop.judges.judge_calibration import calibrate_judge as calibrated
    from closeloop.records.evaluation import JudgeVersion

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


def calibrate_from_store(
    judge: JudgeVersion, labels: Sequence[HumanLabel], store: Store, canaries: CanaryResults | None
) -> Calibration:
    """Of the judge as it is set, by what it judged so far."""
    from msgspec.structs import replace

    from closeloop.judges.judge_calibration import calibrate_judge as calibrated
    from closeloop.judges.judge_calibration import (
        measure_drift,
        retest_spread,
        verdicts_from_evaluations,
    )
    from closeloop.judges.output_comparison import flip_rate
    from closeloop.records.errors import BadInput

    if not labels:
        raise BadInput(
            f"No labels for the rubric {judge.rubric!r} are kept: give a CSV file with some."
        )
    current_verdicts = verdicts_from_evaluations(store.judged.newest_verdicts(judge.id), judge)
    calibration = calibrated(judge, labels, current_verdicts, datetime.now(UTC))
    earlier_drifts = (
        measure_drift(
            one,
            verdicts_from_evaluations(store.judged.newest_verdicts(one.id), one),
            judge,
            current_verdicts,
        )
        for one in store.judged.list_judge_versions()
        if one.id != judge.id and one.rubric == judge.rubric
    )
    return replace(
        calibration,
        drift=next((one for one in earlier_drifts if one is not None), None),
        retest=retest_spread(store.judged.list_evaluations(judge=judge.id)),
        flips=flip_rate(store.judged.list_preferences(judge.id)),
        canaries=canaries,
    )


def plant_canaries(
    labels: Sequence[HumanLabel],
    found: ProjectConfiguration,
    store: Store,
    models: Sequence[str],
    rubric: str | None,
) -> CanaryResults:
    """Attacks on attempts that people call failures."""
    import anyio

    from closeloop.cli.judge import open_configured_panel
    from closeloop.judges.canary_run import run_canaries
    from closeloop.judges.judge_cases import case_from_story
    from closeloop.metrics.attempt_measuring import load_story, project_rulebook
    from closeloop.records.errors import BadInput
    from closeloop.tasks.sealed_tasks import require_unsealed

    failures = dict.fromkeys(
        one.item for one in labels if one.label == "fail" and one.asked == "overall"
    )
    book = project_rulebook(found.settings)
    cases = []
    for item in failures:
        try:
            story_read = load_story(store, item, book)
            require_unsealed(story_read.task)
            cases.append(case_from_story(story_read))
        except BadInput:
            continue  # labelled, but no attempt of ours, or one at a sealed task
        if len(cases) == MAX_CANARIES:
            break
    if not cases:
        raise BadInput("No attempt is labelled as failing: canaries need bad work to hide in.")

    async def attack_panel() -> CanaryResults:
        async with open_configured_panel(found, models, rubric, None) as panel:
            return await run_canaries(panel, cases)

    return anyio.run(attack_panel)


def render_calibration(made: Calibration) -> Iterator[RenderableType]:
    """A row for the whole and each criterion, then what else is known."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    table.add_column("")
    for one in made.trust:
        table.add_column(one.asked, no_wrap=True)
    for cells in zip(TRUST_ROWS, *(trust_column(one) for one in made.trust), strict=True):
        table.add_row(*cells)
    judge = made.judge
    yield Text(make_visible(f"{judge.judge} {judge.model} {judge.rubric}").strip(), style="bold")
    yield table
    for one in made.trust:
        if one.why_not:
            yield Text(f"{one.asked} only advises: {one.why_not}.")
        if one.corrected.refusal:
            yield Text(f"{one.asked} has no corrected rate: {one.corrected.refusal}", "yellow")
    yield from (Text(make_visible(line)) for line in list_calibration_facts(made))
    yield from (Text(make_visible(line), style="yellow") for line in made.notes)


def trust_column(one: JudgeTrust) -> list[str]:
    agreement = one.agreement
    return [
        str(agreement.agreeing.n),
        format_estimate(agreement.agreeing),
        format_estimate(agreement.sensitivity),
        format_estimate(agreement.specificity),
        format_estimate(agreement.kappa),
        format_estimate(agreement.ac1),
        f"{one.passed / one.judged:.2f}",
        format_estimate(one.corrected.estimate),
        format_estimate(one.powered.estimate if one.powered else None),
        "block" if one.may_block else "advise",
    ]


def format_estimate(one: Estimate | None) -> str:
    return "–" if one is None else f"{one.value:.2f} ({one.low:.2f} … {one.high:.2f})"


def list_calibration_facts(made: Calibration) -> Iterator[str]:
    if made.people is not None:
        yield f"People among themselves: AC1 {format_estimate(made.people.ac1)}."
    for person, golden_rate in made.golden.items():
        yield f"{person} is right on {golden_rate.hits:g} of {golden_rate.of} golden items."
    if made.retest is not None:
        yield f"The same output asked again: scores spread by {format_estimate(made.retest)}."
    if made.drift is not None and made.drift.same is not None:
        same, changed_parts = made.drift.same, ", ".join(made.drift.changes)
        yield (
            f"Since {made.drift.before.id} ({changed_parts} changed): the same verdict on "
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
