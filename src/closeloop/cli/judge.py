"""`closeloop judge`: score outputs by a rubric, deterministic facts first."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from closeloop.cli.console import JsonFlag, make_visible
from closeloop.text.wording import count_with_noun, format_percent, format_percent_range

if TYPE_CHECKING:
    from rich.console import RenderableType

    from closeloop.cli.config import ProjectConfiguration
    from closeloop.judges.judge_calibration import LabelSheet
    from closeloop.judges.judge_panel import JudgePanel
    from closeloop.records.errors import Fault
    from closeloop.records.estimate import Estimate
    from closeloop.records.evaluation import (
        Analysis,
        AnalysisResult,
        Calibration,
        CanaryResults,
        Evaluation,
        Evaluations,
        HumanLabel,
        JudgeCase,
        JudgeTrust,
        JudgeVersion,
        OutputPreference,
        RepositoryState,
        Submission,
        TraceAnswer,
    )
    from closeloop.records.experiment_plan import AttemptDetails
    from closeloop.store import Store


RESULT_COLOURS = {True: "green", False: "red", None: "yellow"}
RESULT_WORDS = {True: "pass", False: "fail", None: "no verdict"}


def judge(  # noqa: PLR0913 - one parameter for each flag
    attempts: Annotated[list[str] | None, Parameter(allow_leading_hyphen=True)] = None,
    *,
    patch: Path | None = None,
    request: str | None = None,
    check: bool = False,
    awaiting_review: bool = False,
    model: list[str] | None = None,
    rubric: str | None = None,
    samples: int | None = None,
    against: list[str] | None = None,
    json: JsonFlag = False,
) -> int:
    """Judge outputs by a rubric: completeness, quality and relevance, with quotes.

    Exit code 1 when a check fails, or when a judge that is calibrated well enough to block rejects
    an output.

    Parameters
    ----------
    attempts
        Ids of attempts, or prefixes of them; `-` reads a request, plan and results as JSON.
    patch
        Judge the change in this file instead.
    request
        With --patch: the request that led to the change.
    check
        With --patch: run `closeloop check` first and pass its results to the judge as facts.
    awaiting_review
        Judge every attempt at a task without an automatic check that has no verdict yet.
    model
        A model that judges; several form a panel. By default those of closeloop.toml.
    rubric
        code-change, analysis, documentation, or a file.
    samples
        How often each model is asked about each output.
    against
        Compare each attempt with this attempt at the same task, and decide which is better; once
        for each attempt.
    """
    from closeloop.cli.config import load_project
    from closeloop.cli.console import refuse_option
    from closeloop.flow import judge_outputs, judge_submission
    from closeloop.records.errors import BadInput
    from closeloop.store.store import open_existing_store, open_project_store

    names = attempts or []
    for name in names:
        refuse_option(name, "judge")
    if not awaiting_review:
        require_attempts_or_patch(names, patch, request, check=check)
    elif names or patch or request or check or against:
        raise BadInput("--awaiting-review selects the attempts itself: remove the ids.")
    project = load_project(Path.cwd())
    is_given_work = patch is not None or "-" in names
    store_opener = open_project_store if is_given_work else open_existing_store
    with store_opener(project.settings, project.root) as store:
        if awaiting_review:
            names = list_unjudged_attempts(store)
        panel_opener = partial(open_configured_panel, project, model or [], rubric, samples)
        if names == ["-"] and not against:
            submission = read_standard_input()
            return judge_and_print(
                lambda panel: judge_submission(panel, submission, store), panel_opener, store, json
            )
        if patch is not None:
            cases = [load_patch_case(patch, request or "", project, check=check)]
        else:
            cases = load_cases(names, project, store)
        if against:
            return compare_cases(
                cases, load_cases(against, project, store), panel_opener, store, json
            )
        attempt_ids = [] if "-" in names else [store.load_attempt(name).id for name in names]
        return judge_and_print(
            lambda panel: judge_outputs(panel, cases, store, attempt_ids), panel_opener, store, json
        )


def require_attempts_or_patch(
    names: Sequence[str], patch: Path | None, request: str | None, *, check: bool
) -> None:
    """Require either attempts, or a patch with its request."""
    from closeloop.records.errors import BadInput

    if bool(names) == (patch is not None):
        raise BadInput("Give attempts to judge, `-` for JSON on standard input, or --patch.")
    if check and patch is None:
        raise BadInput("--check needs --patch: attempts are already graded.")
    if (patch is None) != (request is None):
        raise BadInput("--patch and --request need each other: the change, and what was requested.")


def list_unjudged_attempts(store: Store) -> list[str]:
    """Return the attempts at tasks without an automatic check that no judge has scored."""
    from closeloop.records.errors import BadInput
    from closeloop.reviews.agent_context import hidden_attempts
    from closeloop.store.metrics_section import AttemptSpan

    judged = store.scores.load_score_columns(AttemptSpan(), "would-merge", "judge")
    excluded_ids = {*judged.attempts, *hidden_attempts(store)}
    names = [
        unchecked_attempt.attempt for unchecked_attempt in store.counts.list_unchecked_attempts()
    ]
    if not (unjudged := [name for name in names if name not in excluded_ids]):
        raise BadInput(
            "No attempt awaits a judge: `closeloop run` on tasks without an automatic "
            "check creates some."
            if not names
            else "Judges have scored every attempt that awaits review: give ids of "
            "attempts to judge them again."
        )
    return unjudged


def judge_and_print(
    judge_all: Callable[[JudgePanel], Awaitable[tuple[Evaluations, Fault | None]]],
    opening: Callable[[], AbstractAsyncContextManager[JudgePanel]],
    store: Store,
    json: bool,
) -> int:
    """Judge and print all outputs; if one could not be saved, print the rest and raise the
    fault."""
    import anyio

    from closeloop.cli.console import print_json, print_parts
    from closeloop.judges.judge_calibration import list_blocking_reasons

    async def evaluate_cases() -> tuple[Evaluations, Fault | None]:
        async with opening() as panel:
            return await judge_all(panel)

    evaluations, fault = anyio.run(evaluate_cases)
    blocking_reasons = [] if fault else list_blocking_reasons(evaluations, store)
    print_json(evaluations) if json else print_parts(
        *render_evaluations(evaluations, blocking_reasons)
    )
    if fault is not None:
        raise fault
    return 1 if blocking_reasons else 0


def load_patch_case(
    patch: Path, request: str, project: ProjectConfiguration, *, check: bool
) -> JudgeCase:
    """Load a change from a file, with the known facts about it."""

    from closeloop.cli.console import read_file_content
    from closeloop.grading.tool_outcomes import list_patch_paths
    from closeloop.judges.judge_cases import case_from_patch
    from closeloop.records.errors import BadInput

    text = read_file_content(patch).decode("utf-8", "replace")
    if not list_patch_paths(text):
        raise BadInput(f"{patch} is not a patch: use the output of `git diff`.")
    report = None
    if check:
        from msgspec.structs import replace

        from closeloop.changes.change_check import TIERS
        from closeloop.changes.change_sides import ChangeQuery
        from closeloop.cli.check import build_check_order, load_check_configuration, run_check
        from closeloop.concurrency import run_event_loop

        change_query = ChangeQuery(patch=patch)
        check_configuration = load_check_configuration(change_query)
        order = build_check_order(check_configuration, change_query, TIERS, None)
        order = replace(order, request=request)
        report = run_event_loop(run_check, order, check_configuration, None)
    return case_from_patch(text, request, current_commit_site(project), report)


def load_cases(
    names: Sequence[str], project: ProjectConfiguration, store: Store
) -> list[JudgeCase]:
    """Load the attempts to judge."""
    from closeloop.judges.evaluator import cases_from_submission
    from closeloop.judges.judge_cases import case_from_story
    from closeloop.metrics.attempt_measuring import load_story, project_rulebook
    from closeloop.records.errors import BadInput
    from closeloop.tasks.task_sets import require_unsealed

    if "-" in names:
        if len(names) > 1:
            raise BadInput("Give either attempts, or `-` for JSON on standard input.")
        return cases_from_submission(read_standard_input())
    rulebook = project_rulebook(project.settings)
    stories = [load_story(store, name, rulebook) for name in names]
    for story_read in stories:
        require_unsealed(story_read.task)
    return [
        case_from_story(details, store.load_exact_change(details.attempt.id)) for details in stories
    ]


def read_standard_input() -> Submission:
    """Read a request, its plan and the results of its tasks."""
    from closeloop.judges.judge_cases import MAX_SUBMISSION_BYTES, read_submission

    return read_submission(sys.stdin.buffer.read(MAX_SUBMISSION_BYTES + 1), "standard input")


def current_commit_site(project: ProjectConfiguration) -> RepositoryState | None:
    """Return the checked-out commit, which is assumed to be the base of a patch."""
    from closeloop.records.errors import BadInput
    from closeloop.records.evaluation import RepositoryState
    from closeloop.sandbox.workspaces import resolve_commit

    if project.settings.judge.variant is None:
        return None
    repo = Path.cwd()
    try:
        commit = resolve_commit(repo, "HEAD")
    except BadInput:
        return None
    return RepositoryState(repo=str(repo), commit=commit, setup=project.settings.commands.setup)


@asynccontextmanager
async def open_configured_panel(
    project: ProjectConfiguration, models: Sequence[str], rubric: str | None, samples: int | None
) -> AsyncIterator[JudgePanel]:
    from closeloop.gateway import Gateway
    from closeloop.judges.agent_judge import JudgeResources, with_judge_agents
    from closeloop.judges.judge_panel import open_judge_panel

    settings, root = project.settings, project.root
    async with AsyncExitStack() as exit_stack:
        gateway = await exit_stack.enter_async_context(Gateway(os.environ, root))
        panel = open_judge_panel(
            settings, gateway, root, models=models, rubric=rubric, samples=samples
        )
        if settings.judge.variant is not None:
            from closeloop.attempts.run_resources import open_workspaces

            workspaces = await exit_stack.enter_async_context(open_workspaces(settings, root))
            looking_resources = JudgeResources(gateway=gateway, workspaces=workspaces, root=root)
            panel = with_judge_agents(panel, settings, looking_resources)
        yield panel


def compare_cases(
    cases: Sequence[JudgeCase],
    other_cases: Sequence[JudgeCase],
    opening: Callable[[], AbstractAsyncContextManager[JudgePanel]],
    store: Store,
    json: bool,
) -> int:
    """Judge pairs, each in both orders."""
    import anyio
    from rich.text import Text

    from closeloop.cli.console import print_json, print_parts
    from closeloop.judges.judge_panel import compare_pairs, flip_rate
    from closeloop.records.errors import BadInput

    if len(cases) != len(other_cases):
        raise BadInput("Give --against once for each attempt.")

    async def ask_preferences() -> list[OutputPreference]:
        async with opening() as panel:
            return await compare_pairs(panel, list(zip(cases, other_cases, strict=True)))

    preferences = anyio.run(ask_preferences)
    store.judged.save_preferences(preferences)
    if json:
        print_json({"preferences": preferences, "flips": flip_rate(preferences)})
        return 0
    for preference in preferences:
        reason = preference.abstained or (
            "tie: the order decided" if preference.flipped else preference.reasons[0]
        )
        print_parts(
            Text(
                f"{make_visible(preference.task)}  {preference.winner or 'no verdict'}:"
                f" {make_visible(reason)}"
            )
        )
    flips = flip_rate(preferences)
    if flips is not None:
        print_parts(Text(f"The order decided {flips.hits:g} of {flips.of} verdicts.", style="dim"))
    return 0


def render_evaluations(evaluations: Evaluations, stops: Sequence[str]) -> Iterator[RenderableType]:
    """Render each output with its issues, then the total."""
    from rich.text import Text

    for evaluation in evaluations.evaluations:
        yield from render_evaluation(evaluation)
    if evaluations.plan is not None:
        summary = " ".join(evaluations.summary.splitlines()[:1])
        yield Text(
            f"plan {evaluations.plan}  {RESULT_WORDS[evaluations.passed]}: {make_visible(summary)}"
        )
    judges = "; ".join(
        f"{judge.judge} by {judge.model}, {judge.rubric}" for judge in evaluations.judges
    )
    yield Text(make_visible(f"judged by {judges}"), style="dim")
    if stops:
        yield Text(f"blocks: {make_visible('; '.join(stops))}", style="bold red")
    elif any(evaluation.passed is False for evaluation in evaluations.evaluations):
        yield Text(
            "advisory only: run `closeloop judge calibrate` to measure its agreement with people."
        )
    else:
        yield Text("Run `closeloop judge calibrate` to measure its agreement with people.")


def render_evaluation(evaluation: Evaluation) -> Iterator[RenderableType]:
    from rich.text import Text

    title = Text(f"{make_visible(evaluation.task)}  ", style="bold")
    if evaluation.attempt:
        title.append(f"{evaluation.attempt}  ", style="dim")
    title.append(RESULT_WORDS[evaluation.passed], style=RESULT_COLOURS[evaluation.passed])
    if evaluation.score is not None:
        spread = "" if evaluation.spread is None else f" ± {evaluation.spread:.2f}"
        title.append(f"  {evaluation.score:.2f}{spread}")
    for part in evaluation.criteria:
        title.append(f"  {part.name} {'–' if part.score is None else f'{part.score:.2f}'}", "dim")
    yield title
    if evaluation.samples:
        votes = ", ".join(RESULT_WORDS[vote.passed] for vote in evaluation.samples)
        yield Text(
            f"  asked {count_with_noun(len(evaluation.samples), 'time')}: {votes}", style="dim"
        )
    if evaluation.abstained:
        yield Text(f"  abstains: {make_visible(evaluation.abstained)}", style="yellow")
    if evaluation.same_family:
        yield Text("  the judge is of the same model family as the author", style="yellow")
    if evaluation.cut:
        yield Text(f"  {count_with_noun(evaluation.cut, 'character')} truncated", style="yellow")
    for issue in evaluation.issues:
        yield Text(f"  {issue.check} ({issue.source}): {make_visible(issue.text)}")
        for quote in issue.evidence[:1] if issue.source == "judge" else ():
            yield Text(f"    “{make_visible(quote[:200])}”", style="dim")


# Comparison of a judge with people's labels (`judge calibrate`), and questions (`ask`).


TRUST_ROWS = (
    *("items", "agreeing", "sensitivity", "specificity", "Cohen's κ", "Gwet's AC1"),
    *("pass rate", "corrected pass rate", "prediction-powered", "allowed to"),
)
MAX_CANARIES = 10
"""Failing outputs in which attacks are planted."""


def calibrate(
    labels: Path | None = None,
    *,
    model: list[str] | None = None,
    rubric: str | None = None,
    canaries: bool = False,
    json: JsonFlag = False,
) -> None:
    """Compare a judge with people's labels and with its earlier versions, and test it with attacks.

    Parameters
    ----------
    labels
        A CSV file with the columns item and label; it is saved. By default the saved labels.
    model
        The judge's models; by default those of closeloop.toml.
    rubric
        The judge's rubric.
    canaries
        Also insert attacks into failing attempts and judge them; this calls the models.
    """
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_parts
    from closeloop.judges.judge_panel import (
        build_panel_version,
        load_project_rubric,
        open_judge_panel,
    )
    from closeloop.store.store import open_project_store

    project = load_project(Path.cwd())
    rubric_setting = rubric or project.settings.judge.rubric
    judge_rubric = load_project_rubric(rubric_setting, project.settings, project.root)
    label_sheet = load_label_sheet(labels, judge_rubric.name) if labels is not None else None
    if label_sheet is not None and label_sheet.verdicts is not None:
        calibration = calibrate_from_sheet(label_sheet, str(labels))
    else:
        panel = open_judge_panel(
            project.settings, None, project.root, models=model or [], rubric=rubric
        )
        judge = build_panel_version(panel)
        with open_project_store(project.settings, project.root) as store:
            store.judged.save_labels(label_sheet.labels if label_sheet else ())
            # Reviews are stored under the name in the settings, which may be the rubric's file.
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
    from closeloop.cli.console import read_file_content
    from closeloop.judges.judge_calibration import MAX_SHEET_BYTES, read_label_sheet

    return read_label_sheet(read_file_content(file, MAX_SHEET_BYTES + 1), str(file), rubric)


def calibrate_from_sheet(label_sheet: LabelSheet, file: str) -> Calibration:
    """Calibrate a judge whose verdicts are in the file; nothing is saved, as anybody may have
    written it."""
    from closeloop.judges.judge_calibration import calibrate_judge
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
    return calibrate_judge(judge, label_sheet.labels, label_sheet.verdicts or {}, datetime.now(UTC))


def calibrate_from_store(
    judge: JudgeVersion, labels: Sequence[HumanLabel], store: Store, canaries: CanaryResults | None
) -> Calibration:
    """Calibrate the configured judge by its stored verdicts."""
    from msgspec.structs import replace

    from closeloop.judges.judge_calibration import (
        calibrate_judge,
        measure_drift,
        retest_spread,
        verdicts_from_evaluations,
    )
    from closeloop.judges.judge_panel import flip_rate
    from closeloop.records.errors import BadInput

    if not labels:
        raise BadInput(
            f"No labels are saved for the rubric {judge.rubric!r}: give a CSV file with labels."
        )
    current_verdicts = verdicts_from_evaluations(store.judged.newest_verdicts(judge.id), judge)
    calibration = calibrate_judge(judge, labels, current_verdicts, datetime.now(UTC))
    earlier_drifts = (
        measure_drift(
            version,
            verdicts_from_evaluations(store.judged.newest_verdicts(version.id), version),
            judge,
            current_verdicts,
        )
        for version in store.judged.list_judge_versions()
        if version.id != judge.id and version.rubric == judge.rubric
    )
    return replace(
        calibration,
        drift=next(
            (earlier_drift for earlier_drift in earlier_drifts if earlier_drift is not None), None
        ),
        retest=retest_spread(store.judged.list_evaluations(judge=judge.id)),
        flips=flip_rate(store.judged.list_preferences(judge.id)),
        canaries=canaries,
    )


def plant_canaries(
    labels: Sequence[HumanLabel],
    project: ProjectConfiguration,
    store: Store,
    models: Sequence[str],
    rubric: str | None,
) -> CanaryResults:
    """Plant attacks in attempts that people labelled as failures."""
    import anyio

    from closeloop.judges.judge_calibration import run_canaries
    from closeloop.judges.judge_cases import case_from_story
    from closeloop.metrics.attempt_measuring import load_story, project_rulebook
    from closeloop.records.errors import BadInput
    from closeloop.tasks.task_sets import require_unsealed

    failures = dict.fromkeys(
        label.item for label in labels if label.label == "fail" and label.asked == "overall"
    )
    rulebook = project_rulebook(project.settings)
    cases = []
    for item in failures:
        try:
            story_read = load_story(store, item, rulebook)
            require_unsealed(story_read.task)
            cases.append(case_from_story(story_read))
        except BadInput:
            continue  # labelled, but not a stored attempt, or one at a sealed task
        if len(cases) == MAX_CANARIES:
            break
    if not cases:
        raise BadInput(
            "No attempt is labelled as failing: --canaries needs failing attempts to "
            "insert attacks into."
        )

    async def attack_panel() -> CanaryResults:
        async with open_configured_panel(project, models, rubric, None) as panel:
            return await run_canaries(panel, cases)

    return anyio.run(attack_panel)


def render_calibration(calibration: Calibration) -> Iterator[RenderableType]:
    """Render a row for the total and each criterion, then the other results."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    table.add_column("")
    for trust in calibration.trust:
        table.add_column(trust.asked, no_wrap=True)
    for cells in zip(
        TRUST_ROWS, *(trust_column(trust) for trust in calibration.trust), strict=True
    ):
        table.add_row(*cells)
    judge = calibration.judge
    yield Text(make_visible(f"{judge.judge} {judge.model} {judge.rubric}").strip(), style="bold")
    yield table
    for judge_trust in calibration.trust:
        if judge_trust.why_not:
            yield Text(f"{judge_trust.asked} is advisory only: {judge_trust.why_not}.")
        if judge_trust.corrected.refusal:
            yield Text(
                f"{judge_trust.asked} has no corrected rate: {judge_trust.corrected.refusal}",
                "yellow",
            )
    yield from (Text(make_visible(line)) for line in list_calibration_facts(calibration))
    yield from (Text(make_visible(line), style="yellow") for line in calibration.notes)


def trust_column(trust: JudgeTrust) -> list[str]:
    agreement = trust.agreement
    return [
        str(agreement.agreeing.n),
        format_share_estimate(agreement.agreeing),
        format_share_estimate(agreement.sensitivity),
        format_share_estimate(agreement.specificity),
        format_estimate(agreement.kappa),
        format_estimate(agreement.ac1),
        format_percent(trust.passed / trust.judged),
        format_share_estimate(trust.corrected.estimate),
        format_share_estimate(trust.powered.estimate if trust.powered else None),
        "block" if trust.may_block else "advise",
    ]


def format_share_estimate(estimate: Estimate | None) -> str:
    """Format a share: `83 % (61–94 %)`."""
    if estimate is None:
        return "–"
    return f"{format_percent(estimate.value)} ({format_percent_range(estimate.low, estimate.high)})"


def format_estimate(estimate: Estimate | None) -> str:
    """Format an estimate that is no share, such as kappa."""
    return (
        "–"
        if estimate is None
        else f"{estimate.value:.2f} ({estimate.low:.2f} … {estimate.high:.2f})"
    )


def list_calibration_facts(calibration: Calibration) -> Iterator[str]:
    if calibration.people is not None:
        yield f"Agreement between people: AC1 {format_estimate(calibration.people.ac1)}."
    for person, golden_rate in calibration.golden.items():
        yield f"{person} is right on {golden_rate.hits:g} of {golden_rate.of} golden items."
    if calibration.retest is not None:
        yield (
            "Repeated evaluation of the same output: standard deviation of scores "
            f"{format_estimate(calibration.retest)}."
        )
    if calibration.drift is not None and calibration.drift.same is not None:
        same_verdicts, changed_parts = calibration.drift.same, ", ".join(calibration.drift.changes)
        yield (
            f"Since {calibration.drift.before.id} ({changed_parts} changed): the same verdict on "
            f"{same_verdicts.hits:g} of {same_verdicts.of} items."
        )
        yield from (f"  {line}" for line in calibration.drift.changed)
    if calibration.flips is not None:
        flips = calibration.flips
        yield f"Pairs where the order decided: {flips.hits:g} of {flips.of}."
    if calibration.canaries is not None:
        flipped = calibration.canaries.flipped
        names = ", ".join(calibration.canaries.by)
        yield (
            "There is no failing output to insert attacks into."
            if flipped is None
            else f"Successful attacks: {flipped.hits:g} of {flipped.of}. {names}"
        )
        if calibration.canaries.withheld:
            yield (
                f"  {calibration.canaries.withheld} more changed the first answer, but not "
                "the answer without the attacker's text."
            )


# `closeloop judge ask`: one narrow question to every trace.


def ask(  # noqa: PLR0913 - one parameter for each flag
    question: str | None = None,
    *,
    name: str | None = None,
    task: str | None = None,
    variant: str | None = None,
    outcome: Literal["pass", "fail", "unscored"] | None = None,
    limit: int = 100,
    model: str | None = None,
    labels: Path | None = None,
    json: JsonFlag = False,
) -> None:
    """Ask a model a yes-or-no question about each trace. Earlier answers are reused.

    Parameters
    ----------
    question
        The question; by default that of --name.
    name
        Save the question and its filter under this name, or ask a saved or built-in question.
    task
        Only attempts at this task.
    variant
        Only attempts of this variant.
    outcome
        Only attempts with this outcome.
    limit
        Maximum number of attempts, newest first.
    model
        The model that answers; the first of judge.models by default.
    labels
        A CSV file with people's answers: the columns item (an attempt's id) and label (yes or no).
    """
    from closeloop.cli.config import load_project
    from closeloop.cli.console import (
        print_json,
        print_parts,
        require_positive_flags,
        require_utf8_text,
    )
    from closeloop.records.errors import BadInput
    from closeloop.store.store import open_existing_store, open_project_store

    require_positive_flags(limit=limit)
    if question is not None and not question.strip():
        raise BadInput("The question is empty: write a yes-or-no question.")
    require_utf8_text(question or "", "The question")
    project = load_project(Path.cwd())
    writes_store = labels is not None or (question is not None and name is not None)
    store_opener = open_project_store if writes_store else open_existing_store
    with store_opener(project.settings, project.root) as store:
        analysis = (
            find_analysis(name, store) if question is None else build_analysis(name, question)
        )
        analysis = narrow_analysis(analysis, task, variant, outcome)
        if question is not None and name is not None:
            store.judged.save_analysis(analysis)
        if labels is not None:
            save_labels_file(labels, analysis, store)
        result = answer_analysis(analysis, project, store, limit, model)
    print_json(result) if json else print_parts(*render_tally(result))


def build_analysis(name: str | None, question: str) -> Analysis:
    from closeloop.records.evaluation import Analysis, TraceQuestion

    new_question = TraceQuestion(name=name or "question", text=question.strip())
    return Analysis(name=new_question.name, question=new_question)


def find_analysis(name: str | None, store: Store) -> Analysis:
    from closeloop.judges.trace_questions import QUESTIONS
    from closeloop.records.errors import BadInput, unknown_name_error
    from closeloop.records.evaluation import Analysis

    if name is None:
        raise BadInput(f"Give a question, or --name with one of: {', '.join(QUESTIONS)}.")
    saved_analyses = store.judged.load_analyses()
    if name in saved_analyses:
        return saved_analyses[name]
    if name not in QUESTIONS:
        raise unknown_name_error("question", name, [*saved_analyses, *QUESTIONS])
    return Analysis(name=name, question=QUESTIONS[name])


def narrow_analysis(
    analysis: Analysis,
    task: str | None,
    variant: str | None,
    outcome: Literal["pass", "fail", "unscored"] | None,
) -> Analysis:
    from msgspec.structs import replace

    return replace(
        analysis,
        task=task or analysis.task,
        variant=variant or analysis.variant,
        outcome=outcome or analysis.outcome,
    )


def save_labels_file(file: Path, analysis: Analysis, store: Store) -> None:
    """Save people's answers from a file."""
    from closeloop.judges.trace_questions import label_rubric_name

    store.judged.save_labels(load_label_sheet(file, label_rubric_name(analysis)).labels)


def answer_analysis(
    analysis: Analysis, project: ProjectConfiguration, store: Store, limit: int, model: str | None
) -> AnalysisResult:
    """Return stored answers, and ask the model for missing ones."""
    import anyio

    from closeloop.gateway import Gateway
    from closeloop.judges.judge_panel import open_judge_panel
    from closeloop.judges.trace_questions import (
        ask_about_traces,
        label_rubric_name,
        question_version,
        select_traces,
        tally_answers,
    )

    question = analysis.question

    async def ask_judge() -> AnalysisResult:
        async with Gateway(os.environ, project.root) as gateway:
            names = [model] if model else project.settings.judge.models[:1]
            panel = open_judge_panel(project.settings, gateway, project.root, models=names)
            (judge,) = panel.judges
            judge_version = question_version(judge, question)
            known_answers = store.judged.load_answers(judge_version)
            selection = select_traces(
                load_analysis_stories(analysis, project, store, limit), question, known_answers
            )

            def save_answer(answer: TraceAnswer) -> None:
                store.judged.save_answers(judge_version, [answer])

            new_answers = await ask_about_traces(
                judge, question, selection.new, panel.concurrency, save_answer
            )
            labels = store.judged.list_labels(label_rubric_name(analysis))
            return tally_answers(
                analysis, judge_version, [*new_answers, *selection.old], labels, selection.findings
            )

    return anyio.run(ask_judge)


def load_analysis_stories(
    analysis: Analysis, project: ProjectConfiguration, store: Store, limit: int
) -> Iterator[AttemptDetails]:
    """Yield the attempts that match the filter, with their measurements, without sealed ones."""
    from closeloop.metrics.attempt_measuring import load_story, project_rulebook

    rulebook = project_rulebook(project.settings)
    rows = store.list_attempts(
        task=analysis.task, variant_name=analysis.variant, outcome=analysis.outcome, limit=limit
    )
    sealed = store.held_out.list_sealed_digests()
    unsealed_rows = [row for row in rows if row.events and row.task_digest not in sealed]
    return (load_story(store, row.id, rulebook) for row in unsealed_rows)


def render_tally(result: AnalysisResult) -> Iterator[RenderableType]:
    """Render the count, then every yes with its evidence."""
    from rich.text import Text

    yield Text(make_visible(result.analysis.question.text), style="bold")
    if result.rate is None:
        yield Text("No trace was answered.")
    else:
        yes_rate = result.rate
        yield Text(
            f"yes for {yes_rate.hits:g} of {yes_rate.of} ({format_percent(yes_rate.value)}, "
            f"{format_percent_range(yes_rate.low, yes_rate.high)}); "
            f"{result.attempts - yes_rate.of} without an answer"
        )
    if result.corrected is not None and result.corrected.estimate is not None:
        corrected_rate = result.corrected.estimate
        yield Text(
            f"corrected by people's labels: {format_percent(corrected_rate.value)} "
            f"({format_percent_range(corrected_rate.low, corrected_rate.high)})"
        )
    elif result.corrected is not None:
        yield Text(f"not corrected: {result.corrected.refusal}", style="yellow")
    else:
        yield Text("not corrected: none of these traces has a label from a person", style="dim")
    for answer in result.answers:
        if answer.verdict == "yes":
            events = ", ".join(map(str, answer.events))
            yield Text(f"{answer.attempt}  events {events}: {make_visible(answer.text)}")
        elif answer.abstained:
            yield Text(
                f"{answer.attempt}  no answer: {make_visible(answer.abstained)}", style="yellow"
            )
