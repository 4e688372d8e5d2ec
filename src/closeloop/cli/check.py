"""`closeloop check`: is this change safe to merge?"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeGuard

from closeloop.cli.console import JsonFlag
from closeloop.text.wording import count_with_noun

if TYPE_CHECKING:
    from rich.console import RenderableType

    from closeloop.changes.change_check import CheckRequest
    from closeloop.changes.change_sides import ChangeQuery
    from closeloop.changes.check_verdict import CheckSubject, Fixer
    from closeloop.changes.report_publishing import WorkflowPull
    from closeloop.changes.risk.risk_model import RiskFit
    from closeloop.cli.config import ProjectConfiguration
    from closeloop.records.change import ChangeReport
    from closeloop.records.settings import CheckSettings


TierName = Literal["tools", "quality", "risk"]
ATTEMPT_PREFIX = "attempt:"


def check(  # noqa: PLR0913 - one parameter for each flag
    change: str | None = None,
    *,
    base: str | None = None,
    patch: Path | None = None,
    staged: bool = False,
    task: str | None = None,
    tier: list[TierName] | None = None,
    fix: str | None = None,
    format: list[str] | None = None,  # noqa: A002
    github: bool = False,
    json: JsonFlag = False,
) -> int:
    """Check a change with the repository's own tools, for code quality, and for risk.

    The repository is not modified. Exit code 1 when the change is blocked.

    Parameters
    ----------
    change
        A range such as main..feature, HEAD~3 for everything since then, a branch, a commit, or
        attempt:ID for the change of an attempt; the working tree by default.
    base
        The commit to compare with.
    patch
        Check the change in this file instead.
    staged
        Check the staged changes instead.
    task
        The task that the change was made for, by id or file: its scope is then checked.
    tier
        Only this tier: tools, quality or risk; repeatable.
    fix
        Let this variant of closeloop.toml fix the findings, in a workspace of its own.
    format
        Format of the report: terminal, markdown, sarif, junit, gitlab or json.
        `markdown=report.md` writes it to that file. Repeatable.
    github
        In a GitHub workflow: check its pull request and comment on it.
    """
    import anyio
    from msgspec.structs import replace

    from closeloop.changes.change_check import TIERS
    from closeloop.changes.change_sides import ChangeQuery, NoChange
    from closeloop.changes.report_publishing import read_pull_event
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_warning, show_progress
    from closeloop.concurrency import run_event_loop

    require_one_change(change, patch, staged or None, github or None)
    attempt = change.removeprefix(ATTEMPT_PREFIX) if is_attempt_name(change) else None
    outputs = parse_report_formats([*(format or ()), *(["json"] if json else ())])
    pull = read_pull_event(github_event_file(os.environ)) if github else None
    query = ChangeQuery(range=None if attempt else change, patch=patch, base=base, staged=staged)
    query = select_change(query, pull, os.environ)
    # An attempt's change comes from the store: this folder does not contain it.
    configuration = load_project(Path.cwd()) if attempt else load_check_configuration(query, pull)
    try:
        with (
            show_progress("reading the change") as report_stage,
            open_check_subject(configuration, query, attempt) as subject,
        ):
            order = build_check_order(configuration, subject.wanted, tuple(tier or TIERS), task)
            if order.wanted.left_out:
                print_warning(describe_left_out(order.wanted.left_out))
            order = apply_check_subject(order, subject, configuration)
            order = replace(
                order, request=pull.request if pull else None, report_progress=report_stage
            )
            report = run_event_loop(run_check, order, configuration, fix)
            save_check_report(report, configuration, subject.attempt)
    except NoChange as none:
        if not staged:
            raise
        print_warning(str(none))  # a commit may be empty
        return 0
    for path, name in outputs.items():
        write_report(report, name, path)
    if pull is not None:
        anyio.run(publish_to_github, pull, report, os.environ)
    return 1 if report.verdict == "block" else 0


def is_attempt_name(change: str | None) -> TypeGuard[str]:
    return change is not None and change.startswith(ATTEMPT_PREFIX)


def require_one_change(*changes: str | Path | bool | None) -> None:
    from closeloop.records.errors import BadInput

    if sum(change is not None for change in changes) > 1:
        raise BadInput("Give only one of CHANGE, --patch, --staged and --github.")


def select_change(
    query: ChangeQuery, pull: WorkflowPull | None, environ: Mapping[str, str]
) -> ChangeQuery:
    """Return the change that the workflow or the flags name; in a commit hook, with git's own
    index."""
    from msgspec.structs import replace

    from closeloop.changes.change_sides import ChangeQuery

    if pull is not None:
        return ChangeQuery(range=f"{pull.base}...{pull.head}")
    if query.staged and "GIT_INDEX_FILE" in environ:
        return replace(query, index=Path(environ["GIT_INDEX_FILE"]).absolute())
    return query


def load_check_configuration(
    query: ChangeQuery, pull: WorkflowPull | None = None
) -> ProjectConfiguration:
    """Load the configuration for a change, which may have modified the configuration file here."""
    from closeloop.changes.change_sides import find_commit_before
    from closeloop.cli.config import load_for_change_check

    before = find_commit_before(Path.cwd(), query)
    if pull is not None:
        return load_for_change_check(Path.cwd(), pull.base, only_commit=True)
    return load_for_change_check(Path.cwd(), before)


def build_check_order(
    project: ProjectConfiguration, query: ChangeQuery, tiers: tuple[TierName, ...], task: str | None
) -> CheckRequest:
    """Build the request from settings and flags; detect commands if the project sets none."""
    from closeloop.changes.change_check import CheckRequest
    from closeloop.records.settings import CommandSettings
    from closeloop.tasks.project_discovery import discover_commands

    settings, root = project.settings, Path.cwd()
    query = leave_out_own_files(project, query)
    chosen_task = None
    if task:
        from closeloop.tasks.task_files import select_tasks
        from closeloop.tasks.task_sets import require_unsealed

        if "tasks" in project.ignored_settings:
            warn_of_change_settings(project, ["tasks"])
        chosen_task = select_tasks(settings, project.root, [task])[0]
        require_unsealed(chosen_task)
    commands = settings.commands
    if commands == CommandSettings() and ("tools" in tiers or settings.check.coverage):
        commands = discover_commands(project.root).commands
    return CheckRequest(
        root=root,
        wanted=query,
        cache=cache_folder(project, os.environ),
        settings=settings_with_learned_rules(project) if "quality" in tiers else settings.check,
        commands=commands,
        confirm=settings.judge.confirm,
        silences=settings.silence,
        tiers=tiers,
        task=chosen_task,
        coverage=settings.check.coverage,
        rewritten_commands=project.rewritten_commands,
    )


def leave_out_own_files(project: ProjectConfiguration, query: ChangeQuery) -> ChangeQuery:
    """Leave out untracked files that only closeloop reads: configuration, tasks and scripts."""
    from msgspec.structs import replace

    from closeloop.changes.change_sides import list_untracked_files
    from closeloop.cli.config import CONFIG_NAME, find_repository_root

    root = find_repository_root(project.root)
    if root is None or not query.is_worktree:
        return query
    config_file, tasks = project.root / CONFIG_NAME, project.root / project.settings.tasks
    own_files = tuple(
        path
        for path in list_untracked_files(root)
        if root / path == config_file
        or ((root / path).parent == tasks and path.endswith((".md", ".patch")))
        or (path.endswith((".yaml", ".yml")) and is_model_script(root / path))
    )
    return replace(query, left_out=own_files)


def is_model_script(path: Path) -> bool:
    """Whether a file is the script of a scripted model, which nothing but closeloop reads."""
    from closeloop.providers.scripted_model import load_script
    from closeloop.records.errors import BadInput

    try:
        load_script(path)
    except BadInput:
        return False
    return True


def describe_left_out(paths: Sequence[str]) -> str:
    """Say which files are not checked: `left out: closeloop.toml and 3 files in tasks/ …`."""
    folders = Counter(path.rpartition("/")[0] for path in paths)
    parts = [path for path in paths if "/" not in path]
    parts += [
        f"{count_with_noun(count, 'file')} in {folder}/"
        for folder, count in folders.items()
        if folder
    ]
    listed = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
    return f"left out: {listed} (only for closeloop, not tracked by git)"


def apply_check_subject(
    order: CheckRequest, subject: CheckSubject, project: ProjectConfiguration
) -> CheckRequest:
    """For an attempt, use its task's repository, environment and tests, and their grade."""
    from msgspec.structs import replace

    from closeloop.changes.check_verdict import apply_task_commands
    from closeloop.sandbox.workspaces.workspace_patches import has_branches

    order = replace(order, task=order.task or subject.task, grade=subject.grade)
    task = subject.task
    if task is None or task.repo is None:
        return order
    # A task whose repository is elsewhere is checked in this folder's clone of it.
    repo = (
        str(project.root / task.repo) if has_branches(str(project.root / task.repo)) else order.root
    )
    return replace(order, root=Path(repo), commands=apply_task_commands(order.commands, task))


@contextmanager
def open_check_subject(
    project: ProjectConfiguration, query: ChangeQuery, attempt: str | None
) -> Iterator[CheckSubject]:
    """Open the requested change, or the change of an attempt."""
    from closeloop.changes.check_verdict import CheckSubject, open_attempt_change
    from closeloop.cli.config import open_review_context
    from closeloop.records.errors import BadInput
    from closeloop.records.settings import has_store

    if attempt is None:
        yield CheckSubject(wanted=query)
        return
    if not has_store(project.settings, project.root):
        raise BadInput(
            f"No store exists at {project.settings.store}, so there is no attempt to check: "
            "run `closeloop run` first."
        )
    with (
        open_review_context(project=project) as review_context,
        open_attempt_change(attempt, review_context.store, query.base) as subject,
    ):
        yield subject


def save_check_report(
    report: ChangeReport, project: ProjectConfiguration, attempt: str | None
) -> None:
    """Save the report for the dashboard if there is a store; a failure to save is not fatal."""
    from closeloop.records.settings import has_store

    if project.store_shipped or not has_store(project.settings, project.root):
        return
    from closeloop.changes.check_verdict import save_report
    from closeloop.cli.config import open_review_context
    from closeloop.cli.console import print_warning
    from closeloop.records.errors import Fault

    try:
        with open_review_context(project=project) as review_context:
            save_report(report, review_context.store, review_context.repo, attempt)
    except Fault as fault:
        print_warning(f"The report is not saved: {fault}")


def settings_with_learned_rules(project: ProjectConfiguration) -> CheckSettings:
    """Return the settings with the team's learned rules, if there is a store."""
    from closeloop.records.settings import has_store

    settings = project.settings
    if project.store_shipped or not has_store(settings, project.root):
        return settings.check
    from closeloop.cli.config import open_review_context
    from closeloop.cli.console import print_warning
    from closeloop.records.errors import Fault
    from closeloop.reviews.rule_editing import with_learned_rules

    try:
        with open_review_context(project=project) as review_context:
            return with_learned_rules(settings.check, review_context.store, review_context.repo)
    except Fault as fault:
        print_warning(f"Team rules are not checked: {fault}")
        return settings.check


def cache_folder(project: ProjectConfiguration, environ: Mapping[str, str]) -> Path:
    """Return the cache folder, by default outside the repository, which a check must not modify."""
    if project.settings.cache:
        return project.root / project.settings.cache
    home = environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "closeloop"


async def run_check(
    order: CheckRequest, project: ProjectConfiguration, fix: str | None
) -> ChangeReport:
    from closeloop.flow import check_change
    from closeloop.gateway import Gateway
    from closeloop.judges.change_review import open_reviewer
    from closeloop.sandbox.workspaces import WorkspacePool

    async with AsyncExitStack() as exit_stack:
        exit_stack.enter_context(report_ignored_settings(order, project, fix))
        workspaces = await exit_stack.enter_async_context(
            WorkspacePool(order.cache / "workspaces", project.settings.sandbox)
        )
        fixer = await open_fixer(exit_stack, project, fix) if fix else None
        reviewer = None
        if order.settings.model and "quality" in order.tiers:
            gateway = await exit_stack.enter_async_context(Gateway(os.environ, project.root))
            reviewer = await open_reviewer(
                exit_stack, gateway, order.settings.model, project.settings
            )
        report = await check_change(order, workspaces, fixer, reviewer)
        workspaces.trim_unused_bases()
        return report


@contextmanager
def report_ignored_settings(
    order: CheckRequest, project: ProjectConfiguration, fix: str | None
) -> Iterator[None]:
    """Warn after a check of ignored settings that it would have used.

    If the input is wrong, only variants and models are reported: a missing one may be ignored.
    """
    from closeloop.records.errors import BadInput

    used_settings = [
        name for name in project.ignored_settings if uses_setting(name, order, project, fix)
    ]
    try:
        yield
    except BadInput:
        used_settings = [
            name for name in used_settings if name.startswith(("variants.", "models."))
        ]
        raise
    finally:
        warn_of_change_settings(project, used_settings)


def uses_setting(
    name: str, order: CheckRequest, project: ProjectConfiguration, fix: str | None
) -> bool:
    """Check whether a check reads this setting; `--task` reads `tasks` earlier."""
    section, _, key = name.partition(".")
    names_model = order.settings.model is not None or "check.model" in project.ignored_settings
    is_reviewed = names_model and "quality" in order.tiers
    if section == "sandbox":
        return fix is not None or "tools" in order.tiers or order.coverage
    if section == "variants":
        return fix is not None
    if section in ("models", "limits"):
        return fix is not None or is_reviewed
    if section == "check":
        return {"fix_cycles": fix is not None, "model": is_reviewed}.get(key, True)
    return section in ("store", "cache", "store_wait_seconds") or (
        name == "judge.confirm" and is_reviewed
    )


def warn_of_change_settings(project: ProjectConfiguration, names: Sequence[str]) -> None:
    """Warn of settings that are ignored because the change under check may have written them."""
    from closeloop.cli.config import warn_of_ignored_settings

    commit = project.trusted_commit
    source = f"in the commit before the change ({commit[:12]})" if commit else None
    reason = f"The change being checked may have written {'them' if len(names) > 1 else 'it'}"
    warn_of_ignored_settings(names, reason, source, os.environ)


async def open_fixer(exit_stack: AsyncExitStack, project: ProjectConfiguration, name: str) -> Fixer:
    """Return the variant that fixes findings, with its model open."""
    from closeloop.changes.check_verdict import AgentFixer
    from closeloop.gateway import Gateway
    from closeloop.grading.variants import resolve_variant

    resolved_variant = resolve_variant(name, project.settings, project.root)
    model_proxy = None
    if resolved_variant.model is not None:
        gateway = await exit_stack.enter_async_context(Gateway(os.environ, project.root))
        opening_proxy = gateway.open_proxy(
            resolved_variant.variant.model or "",
            resolved_variant.model,
            resolved_variant.variant.limits,
        )
        model_proxy = await exit_stack.enter_async_context(opening_proxy)
    return AgentFixer(
        agent=resolved_variant.agent,
        model_proxy=model_proxy,
        variant=resolved_variant.variant,
        system=resolved_variant.system,
    )


def parse_report_formats(formats: Sequence[str]) -> dict[Path | None, str]:
    """Return the format by file; the printed one has the key None."""
    from closeloop.changes.report_formats import REPORT_FORMATS
    from closeloop.records.errors import BadInput, unknown_name_error

    outputs: dict[Path | None, str] = {}
    for format_option in formats:
        name, equals_sign, file = format_option.partition("=")
        if name not in (known_formats := ("terminal", "json", *REPORT_FORMATS)):
            raise unknown_name_error("report format", name, known_formats)
        path = Path(file) if equals_sign else None
        if path and name == "terminal":
            raise BadInput(
                "The terminal report can only be printed: write --format markdown=FILE instead."
            )
        if path is not None and (not file or path.is_dir() or not path.absolute().parent.is_dir()):
            raise BadInput(
                f"--format {format_option} has no valid file name: write --format NAME=FILE."
            )
        if path in outputs:
            target = file or "standard output"
            raise BadInput(f"Only one report can go to {target}: write --format {name}=FILE.")
        outputs[path] = name
    return outputs if None in outputs else {None: "terminal", **outputs}


def write_report(report: ChangeReport, name: str, path: Path | None) -> None:
    """Write the report in one format, to a file or to standard output."""
    from closeloop import plugins
    from closeloop.changes import report_formats
    from closeloop.changes.report_formats import render_report
    from closeloop.cli.console import format_json, print_parts
    from closeloop.judges.change_review import RULE
    from closeloop.records.errors import MachineFailed

    if name == "terminal":
        print_parts(*report_formats.render_terminal_report(report))
        return
    if name == "json":
        text = format_json(report)
    else:
        rules = [rule for check in plugins.load_plugins("checks") for rule in check.rules]
        rules += [RULE] if any(finding.rule == RULE.name for finding in report.findings) else []
        text = render_report(name, report, rules)
    if path is None:
        print(text, end="")  # noqa: T201
        return
    try:
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise MachineFailed(f"{path} cannot be written: {error.strerror}.") from None


def github_event_file(environ: Mapping[str, str]) -> Path:
    from closeloop.records.errors import BadInput

    if "GITHUB_EVENT_PATH" not in environ:
        raise BadInput("--github only works in a GitHub workflow: GITHUB_EVENT_PATH is not set.")
    return Path(environ["GITHUB_EVENT_PATH"])


async def publish_to_github(
    pull: WorkflowPull, report: ChangeReport, environ: Mapping[str, str]
) -> None:
    """Write comment, check run and labels; report what could not be written."""
    from closeloop.changes.report_publishing import publish_report
    from closeloop.cli.console import print_warning
    from closeloop.cli.mine import open_github_repo

    summary = environ.get("GITHUB_STEP_SUMMARY")
    async with open_github_repo(pull.repo, environ) as github:
        published = await publish_report(github, pull, report, Path(summary) if summary else None)
    for note in published.notes:
        print_warning(note)


# `closeloop check risk`: how well the repository's history predicts which changes go wrong.


def fit(*, json: JsonFlag = False) -> None:
    """Fit the risk model to this repository's reverted and fixed changes."""
    from closeloop.changes.risk.change_history import read_history
    from closeloop.changes.risk.risk_model import fit_risk_model
    from closeloop.cli.config import load_project
    from closeloop.cli.console import open_console, print_json, print_parts, print_warning
    from closeloop.sandbox.workspaces import resolve_commit

    project = load_project(Path.cwd())
    head = resolve_commit(Path.cwd(), "HEAD")
    with open_console(stderr=True).status("reading the history"):
        history = read_history(Path.cwd(), head, cache_folder(project, os.environ))
        risk_fit = fit_risk_model(history)
    if history.cut:
        print_warning(f"Part of the history is not read: {history.cut}.")
    if json:
        print_json(risk_fit)
    else:
        print_parts(*render_risk_fit(risk_fit))


def render_risk_fit(learned: RiskFit) -> Iterator[RenderableType]:
    """Render the AUC, the calibration curve, and what each level would have contained."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.changes.risk.risk_model import MIN_WRONG_CHANGES, list_disordered_levels
    from closeloop.cli.measure import format_rate_interval

    yield Text(f"{count_with_noun(learned.changes, 'past change')}, {learned.wrong:,} went wrong "
               f"({learned.reverted:,} reverted): {learned.note}.")  # fmt: skip
    if learned.auc is not None and learned.baseline is not None:
        few = "" if learned.tested_wrong >= MIN_WRONG_CHANGES else ", which is too few to judge by"
        yield Text(
            f"AUC {learned.auc:.3f} on {learned.tested:,} later changes, of which "
            f"{learned.tested_wrong:,} went wrong{few}; lines added alone: "
            f"{learned.baseline:.3f}; chance: 0.5."
        )
    if learned.calibration:
        curve = Table(
            title="Calibration: predicted and observed rate of changes that went wrong",
            title_justify="left",
            box=None,
        )
        curve.add_column("predicted", justify="right")
        curve.add_column("observed", justify="right")
        curve.add_column("")
        for calibration_bin in learned.calibration:
            bar = "█" * round(40 * calibration_bin.came.value)
            curve.add_row(
                f"{calibration_bin.foretold:.2f}", format_rate_interval(calibration_bin.came), bar
            )
        yield curve
    levels = Table(title="Changes that went wrong, by risk level", title_justify="left", box=None)
    levels.add_column("level")
    levels.add_column("went wrong", justify="right")
    levels.add_column("")
    disordered = list_disordered_levels(learned.held)
    for level_result in learned.held:
        lower = disordered.get(level_result.level)
        remark = f"less often than {lower.level}: impact or size, not likelihood" if lower else ""
        levels.add_row(level_result.level, format_rate_interval(level_result.wrong), remark)
    yield levels
