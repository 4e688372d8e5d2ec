"""`closeloop judge`: score outputs by a rubric, with the facts first."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from closeloop.cli.console import JsonFlag, make_visible
from closeloop.text.wording import count_with_noun

if TYPE_CHECKING:
    from rich.console import RenderableType

    from closeloop.cli.config import ProjectConfiguration
    from closeloop.judges.judge_panel import JudgePanel
    from closeloop.records.errors import Fault
    from closeloop.records.evaluation import (
        Evaluation,
        Evaluations,
        JudgeCase,
        OutputPreference,
        RepositoryState,
        Submission,
    )
    from closeloop.store import Store

RESULT_COLOURS = {True: "green", False: "red", None: "yellow"}
RESULT_WORDS = {True: "pass", False: "fail", None: "no verdict"}

app = App(name="judge", help_format="plaintext")
app.command(
    "closeloop.cli.judge_calibration:calibrate",
    help="Hold a judge against people's labels, against its earlier versions, and against attacks.",
)


@app.default
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
    """Evaluate outputs: completeness, quality and relevance, check by check, with quotes.

    Exit code 1 when a fact fails one, or a judge that is calibrated well enough to block.

    Parameters
    ----------
    attempts
        Ids of attempts, or their beginnings; `-` reads JSON of request, plan and results.
    patch
        A file with a change to judge, instead.
    request
        What was asked for, with --patch.
    check
        Validate the patch first, as `closeloop check` does: what that says are facts.
    awaiting_review
        Judge every attempt at a task without an automatic check that no judge has seen.
    model
        Who judges; several are a panel. Those of closeloop.toml when not given.
    rubric
        code-change, analysis, documentation, or a file.
    samples
        How often each model is asked about each output.
    against
        An attempt at the same task for each of those named: say which of the two is better.
    """
    from closeloop.cli.config import load_project
    from closeloop.cli.console import refuse_option
    from closeloop.flow import judge_outputs, judge_submission
    from closeloop.records.errors import BadInput
    from closeloop.store.store_opening import open_existing_store, open_project_store

    names = attempts or []
    for name in names:
        refuse_option(name, "judge")
    if not awaiting_review:
        require_attempts_or_patch(names, patch, request, check=check)
    elif names or patch or request or check or against:
        raise BadInput("--awaiting-review chooses the attempts itself: name no others with it.")
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
            lambda panel: judge_outputs(panel, cases, store, attempt_ids),
            panel_opener,
            store,
            json,
        )


def require_attempts_or_patch(
    names: Sequence[str], patch: Path | None, request: str | None, *, check: bool
) -> None:
    """Either attempts are judged, or a patch with its request."""
    from closeloop.records.errors import BadInput

    if bool(names) == (patch is not None):
        raise BadInput("Name attempts to judge, or `-` for JSON on standard input, or --patch.")
    if check and patch is None:
        raise BadInput("--check goes with --patch: attempts are graded already.")
    if (patch is None) != (request is None):
        raise BadInput("--patch and --request go together: what was changed, and what was asked.")


def list_unjudged_attempts(store: Store) -> list[str]:
    """Attempts at tasks without an automatic check that no judge has given a verdict on."""
    from closeloop.records.errors import BadInput
    from closeloop.reviews.agent_context import hidden_attempts
    from closeloop.store.metrics_section import AttemptSpan

    judged = store.scores.load_score_columns(AttemptSpan(), "would-merge", "judge")
    seen = {*judged.attempts, *hidden_attempts(store)}
    names = [one.attempt for one in store.counts.list_unchecked_attempts()]
    if not (unjudged := [name for name in names if name not in seen]):
        raise BadInput(
            "Nothing awaits a judge: `closeloop run` on tasks without an acceptance makes some."
            if not names
            else "Judges have seen all that awaits review: name attempts to judge them again."
        )
    return unjudged


def judge_and_print(
    judge_all: Callable[[JudgePanel], Awaitable[tuple[Evaluations, Fault | None]]],
    opening: Callable[[], AbstractAsyncContextManager[JudgePanel]],
    store: Store,
    json: bool,
) -> int:
    """Each output by itself, kept as it comes and told in the end, even where the store is gone."""
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
    patch: Path, request: str, found: ProjectConfiguration, *, check: bool
) -> JudgeCase:
    """A change in a file, with what is known of it."""

    from closeloop.cli.console import read_file_content
    from closeloop.grading.touched_paths import list_patch_paths
    from closeloop.judges.judge_cases import case_from_patch
    from closeloop.records.errors import BadInput

    text = read_file_content(patch).decode("utf-8", "replace")
    if not list_patch_paths(text):
        raise BadInput(f"{patch} is no patch: give one as `git diff` writes it.")
    report = None
    if check:
        from msgspec.structs import replace

        from closeloop.changes.change_check import TIERS
        from closeloop.changes.change_sides import ChangeQuery
        from closeloop.cli.check import build_check_order, load_check_configuration, run_check
        from closeloop.concurrency import run_event_loop

        change_query = ChangeQuery(patch=patch)
        check_configuration = load_check_configuration(change_query)
        order = build_check_order(check_configuration, change_query, TIERS, None, coverage=False)
        order = replace(order, request=request)
        report = run_event_loop(run_check, order, check_configuration, None)
    return case_from_patch(text, request, current_commit_site(found), report)


def load_cases(names: Sequence[str], found: ProjectConfiguration, store: Store) -> list[JudgeCase]:
    """What is to be judged."""
    from closeloop.judges.evaluator import cases_from_submission
    from closeloop.judges.judge_cases import case_from_story
    from closeloop.metrics.attempt_measuring import load_story, project_rulebook
    from closeloop.records.errors import BadInput
    from closeloop.tasks.sealed_tasks import require_unsealed

    if "-" in names:
        if len(names) > 1:
            raise BadInput("Give either attempts, or `-` for JSON on standard input.")
        return cases_from_submission(read_standard_input())
    book = project_rulebook(found.settings)
    stories = [load_story(store, name, book) for name in names]
    for story_read in stories:
        require_unsealed(story_read.task)
    return [case_from_story(one, store.load_exact_change(one.attempt.id)) for one in stories]


def read_standard_input() -> Submission:
    """A request, its plan, and what came of its tasks."""
    from closeloop.judges.judge_cases import MAX_SUBMISSION_BYTES, read_submission

    return read_submission(sys.stdin.buffer.read(MAX_SUBMISSION_BYTES + 1), "standard input")


def current_commit_site(found: ProjectConfiguration) -> RepositoryState | None:
    """The commit that is checked out, which a patch is taken to be for."""
    from closeloop.records.errors import BadInput
    from closeloop.records.evaluation import RepositoryState
    from closeloop.sandbox.workspaces import resolve_commit

    if found.settings.judge.variant is None:
        return None
    repo = Path.cwd()
    try:
        commit = resolve_commit(repo, "HEAD")
    except BadInput:
        return None
    return RepositoryState(repo=str(repo), commit=commit, setup=found.settings.commands.setup)


@asynccontextmanager
async def open_configured_panel(
    found: ProjectConfiguration, models: Sequence[str], rubric: str | None, samples: int | None
) -> AsyncIterator[JudgePanel]:
    from closeloop.gateway import Gateway
    from closeloop.judges.agent_judge import JudgeResources, with_judge_agents
    from closeloop.judges.judge_panel import open_judge_panel

    settings, root = found.settings, found.root
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
    others: Sequence[JudgeCase],
    opening: Callable[[], AbstractAsyncContextManager[JudgePanel]],
    store: Store,
    json: bool,
) -> int:
    """Pairs, each asked in both orders."""
    import anyio
    from rich.text import Text

    from closeloop.cli.console import print_json, print_parts
    from closeloop.judges.pair_comparison import compare_pairs, flip_rate
    from closeloop.records.errors import BadInput

    if len(cases) != len(others):
        raise BadInput("Give --against once for each attempt: pairs are compared.")

    async def ask_preferences() -> list[OutputPreference]:
        async with opening() as panel:
            return await compare_pairs(panel, list(zip(cases, others, strict=True)))

    preferences = anyio.run(ask_preferences)
    store.judged.save_preferences(preferences)
    if json:
        print_json({"preferences": preferences, "flips": flip_rate(preferences)})
        return 0
    for preference in preferences:
        why = preference.abstained or (
            "by position alone" if preference.flipped else preference.reasons[0]
        )
        print_parts(
            Text(
                f"{make_visible(preference.task)}  {preference.winner or 'no verdict'}:"
                f" {make_visible(why)}"
            )
        )
    flips = flip_rate(preferences)
    if flips is not None:
        print_parts(Text(f"The order decided {flips.hits:g} of {flips.of}.", style="dim"))
    return 0


def render_evaluations(made: Evaluations, stops: Sequence[str]) -> Iterator[RenderableType]:
    """Each output with what is wrong, then the whole."""
    from rich.text import Text

    for evaluation in made.evaluations:
        yield from render_evaluation(evaluation)
    if made.plan is not None:
        summary = " ".join(made.summary.splitlines()[:1])
        yield Text(f"plan {made.plan}  {RESULT_WORDS[made.passed]}: {make_visible(summary)}")
    judges = "; ".join(f"{one.judge} by {one.model}, {one.rubric}" for one in made.judges)
    yield Text(make_visible(f"judged by {judges}"), style="dim")
    if stops:
        yield Text(f"blocks: {make_visible('; '.join(stops))}", style="bold red")
    elif any(one.passed is False for one in made.evaluations):
        yield Text("advises only: `closeloop judge calibrate` says how far to trust it.")
    else:
        yield Text("`closeloop judge calibrate` says how far to trust it.")


def render_evaluation(one: Evaluation) -> Iterator[RenderableType]:
    from rich.text import Text

    title = Text(f"{make_visible(one.task)}  ", style="bold")
    if one.attempt:
        title.append(f"{one.attempt}  ", style="dim")
    title.append(RESULT_WORDS[one.passed], style=RESULT_COLOURS[one.passed])
    if one.score is not None:
        spread = "" if one.spread is None else f" ± {one.spread:.2f}"
        title.append(f"  {one.score:.2f}{spread}")
    for part in one.criteria:
        title.append(f"  {part.name} {'–' if part.score is None else f'{part.score:.2f}'}", "dim")
    yield title
    if one.samples:
        votes = ", ".join(RESULT_WORDS[vote.passed] for vote in one.samples)
        yield Text(f"  asked {count_with_noun(len(one.samples), 'time')}: {votes}", style="dim")
    if one.abstained:
        yield Text(f"  abstains: {make_visible(one.abstained)}", style="yellow")
    if one.same_family:
        yield Text("  the judge is of the family that made this", style="yellow")
    if one.cut:
        yield Text(f"  {count_with_noun(one.cut, 'character')} too many to show", style="yellow")
    for issue in one.issues:
        yield Text(f"  {issue.check} ({issue.source}): {make_visible(issue.text)}")
        for quote in issue.evidence[:1] if issue.source == "judge" else ():
            yield Text(f"    “{make_visible(quote[:200])}”", style="dim")
