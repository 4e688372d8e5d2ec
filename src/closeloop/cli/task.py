"""The commands that write tasks: `closeloop init` and `closeloop task`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from closeloop.cli.console import JsonFlag, make_visible
from closeloop.records.record import Record
from closeloop.records.settings import SandboxKind
from closeloop.tasks.stress import STRESS_MODES, StressMode
from closeloop.text.wording import count_with_noun

if TYPE_CHECKING:
    from rich.table import Table

    from closeloop.changes.command_trial import CommandTrial
    from closeloop.cli.config import ProjectConfiguration
    from closeloop.records.attempt import Proof
    from closeloop.records.settings import Settings
    from closeloop.records.task import Task
    from closeloop.tasks.project_discovery import Discovery
    from closeloop.tasks.stress import StressVariant


# `closeloop init`: look at a repository and write its closeloop.toml.


def init(
    path: Path = Path(),
    *,
    force: bool = False,
    untried: bool = False,
    json: JsonFlag = False,
) -> None:
    """Find the project's test, lint, type and build commands and write closeloop.toml.

    Each is tried once in the sandbox, at the last commit. What cannot be run there is written as a
    comment.

    Parameters
    ----------
    path
        A folder of the git repository; its closeloop.toml goes to the repository's root.
    force
        Replace a closeloop.toml that is there already.
    untried
        Only look for the commands, and try none.
    """
    from closeloop.cli.config import CONFIG_NAME, find_repository_root
    from closeloop.cli.console import print_json, print_line
    from closeloop.records.errors import BadInput, MachineFailed
    from closeloop.tasks.project_discovery import discover_commands, render_config

    if not path.is_dir():
        raise BadInput(f"{path} is not a folder: name one inside a git repository.")
    root = find_repository_root(path.resolve())
    if root is None:
        raise BadInput(f"{path.resolve()} lies in no git repository: make one with `git init`.")
    file = root / CONFIG_NAME
    if file.exists() and not force:
        raise BadInput(f"{file} is there already: edit it, or replace it with --force.")
    discovery = discover_commands(root)
    discovery, trials = (discovery, {}) if untried else try_discovered(discovery, root)
    texts = {name: one.text for name, one in trials.items()}
    # Without its setup nothing runs, but it may work tomorrow, or with one more line.
    useless = [name for name, one in trials.items() if not one.works and name != "setup"]
    try:
        file.write_text(render_config(discovery, texts, useless), encoding="utf-8")
    except OSError as error:
        raise MachineFailed(f"{error.filename} cannot be written: {error.strerror}.") from error
    if json:
        print_json({"file": str(file), "found": discovery, "tried": trials})
        return
    print_line(f"Wrote {file}")
    for name in ("setup", "test", "lint", "types", "build"):
        value = getattr(discovery.commands, name)
        line = " && ".join(value) if isinstance(value, tuple) else value
        print_line(
            f"  {name:6} {line}  ({discovery.sources[name]})" if line else f"  {name:6} not found"
        )
        if name in texts:
            print_line(f"         {'✓' if trials[name].works else '✗'} {texts[name]}")
    if discovery.seen:
        print_line(
            f"  Also seen: {', '.join(discovery.seen[:8])}{' …' if len(discovery.seen) > 8 else ''}"
        )
    from closeloop.cli.memory import offer_encoder

    offer_encoder("auto")
    print_line("Next: look it over, then make tasks of past work with `closeloop mine`,")
    print_line("or write one with `closeloop task new NAME`.")


def try_discovered(
    discovery: Discovery, root: Path
) -> tuple[Discovery, Mapping[str, CommandTrial]]:
    """How each command ended in the sandbox; none where nothing can be tried, which is said.

    Where the project's package manager is not installed, its commands are those of npm.
    """
    from closeloop.grading.tool_outcomes import find_missing_program
    from closeloop.tasks.project_discovery import use_npm_instead

    trials = _try_once(discovery, root)
    setup = trials.get("setup")
    if setup is not None and not setup.works:
        instead = use_npm_instead(discovery, find_missing_program(setup.text))
        if instead is not None:
            return instead, _try_once(instead, root)
    return discovery, trials


def _try_once(discovery: Discovery, root: Path) -> Mapping[str, CommandTrial]:
    import anyio

    from closeloop.changes.command_trial import try_commands
    from closeloop.cli.check import cache_folder
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_warning, show_progress
    from closeloop.records.errors import Fault
    from closeloop.sandbox.workspaces import WorkspacePool, resolve_commit

    project = load_project(root)

    async def run_trials() -> Mapping[str, CommandTrial]:
        folder = cache_folder(project, os.environ) / "workspaces"
        async with WorkspacePool(folder, project.settings.sandbox) as workspaces:
            commit = resolve_commit(root, "HEAD")
            return await try_commands(workspaces, str(root), commit, discovery.commands, tell)

    try:
        with show_progress("trying the commands") as tell:
            return anyio.run(run_trials)
    except Fault as fault:
        print_warning(f"The commands are not tried: {fault}")
        return {}


def new(
    name: str,
    *,
    prompt: str | None = None,
    json: JsonFlag = False,
) -> None:
    """Write a new task, filled in as far as can be known.

    With --prompt it can be run at once: what comes back is scored by people and judges.

    Parameters
    ----------
    name
        The task's id: letters, digits, '.', '_' and '-'.
    prompt
        What the agent is asked; to be written into the file when not given.
    """
    from closeloop.cli.config import find_repository_root, load_project
    from closeloop.cli.console import print_json, print_line
    from closeloop.records.errors import BadInput
    from closeloop.sandbox.workspaces import resolve_commit
    from closeloop.tasks.task_files import require_valid_id
    from closeloop.tasks.task_writer import render_new_task, write_new_file

    require_valid_id(name, "The name of a task")
    if prompt is not None and not prompt.strip():
        raise BadInput("The prompt is empty: say what the agent is asked.")
    project = load_project(Path.cwd())
    folder = project.root / project.settings.tasks
    root = find_repository_root(folder.resolve())
    if root is None:
        raise BadInput(f"{folder} lies in no git repository: make one with `git init`.")
    head_commit = resolve_commit(root, "HEAD")
    path = folder / f"{name}.md"
    write_new_file(path, render_new_task(name, project.settings.commands, head_commit, prompt))
    if json:
        print_json({"file": str(path), "id": name, "base": head_commit})
        return
    print_line(f"Wrote {path}")
    print_line(
        f"Next: `closeloop run {name}`, then score what comes back with `closeloop review`; or say"
        " in the file how it is checked."
        if prompt
        else "Next: say what is asked and how it is checked, then prove it with `closeloop task"
        " check`."
    )


def check(
    *tasks: str,
    repeats: int = 3,
    sandbox: SandboxKind | None = None,
    json: JsonFlag = False,
) -> int:
    """Prove tasks by their controls: the reference passes, doing nothing fails, every time.

    Parameters
    ----------
    tasks
        Ids or files of tasks; every task of the project when none is named.
    repeats
        How often the tests run before and after the reference, to find flaky ones.
    sandbox
        How tests are caged: auto, bwrap, landlock, or none.
    """
    import anyio

    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_parts, require_positive_flags
    from closeloop.cli.run import apply_run_flags
    from closeloop.tasks.task_files import select_tasks

    require_positive_flags(repeats=repeats)
    project = load_project(Path.cwd())
    settings = apply_run_flags(project.settings, sandbox=sandbox)

    chosen_tasks = select_tasks(settings, project.root, tasks)
    proofs = anyio.run(prove_and_hide, chosen_tasks, settings, project.root, repeats)
    print_json(proofs) if json else print_parts(proofs_table(proofs))
    return 0 if all(proof.state != "unproved" for proof in proofs) else 1


async def prove_and_hide(
    chosen: Sequence[Task], settings: Settings, root: Path, repeats: int
) -> list[Proof]:
    """What their controls say of tasks; of held-out ones, no more than that."""
    from closeloop.attempts.run_resources import open_workspaces
    from closeloop.attempts.task_preparation import prove_tasks
    from closeloop.cli.console import open_console
    from closeloop.cli.run import warn_of_sandbox_gaps
    from closeloop.store.store_opening import open_project_store
    from closeloop.tasks.sealed_tasks import hide_proof, hide_task

    visible_ids = {task.id: hide_task(task).id for task in chosen}
    async with open_workspaces(settings, root) as workspaces:
        warn_of_sandbox_gaps(workspaces)
        with (
            open_project_store(settings, root) as store,
            open_console(stderr=True).status("proving …") as status,
        ):
            task_proofs = await prove_tasks(
                chosen,
                store,
                workspaces,
                repeats=repeats,
                tell=lambda told: status.update(f"proving {visible_ids[told.task]} …"),
            )
    return [hide_proof(*pair) for pair in zip(task_proofs, chosen, strict=True)]


def proofs_table(proofs: Sequence[Proof]) -> Table:
    """A row a task: its state, its tests, and what is wrong with it."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for name in ("task", "state", "tests at base", "flaky", "why"):
        table.add_column(name, no_wrap=name != "why")
    colours = {"proved": "green", "unproved": "red", "unchecked": "yellow"}
    for proof in proofs:
        runs = [run for run in (proof.before, proof.reference) if run is not None]
        flaky = {name for run in runs for name in run.flaky}
        table.add_row(
            Text(make_visible(proof.task)),
            Text(proof.state, style=colours[proof.state]),
            str(len(proof.before.tests)) if proof.before else "–",
            str(len(flaky)) if flaky else "",
            Text(make_visible("\n".join(proof.reasons)), style="dim"),
        )
    return table


# `closeloop task list` and `closeloop task tag`: tasks by what they are and what they show.


class TaskListLine(Record):
    """A task, as the list shows it."""

    id: str
    state: str
    """Proved, unproved, unchecked, or unknown before it was looked at."""
    tags: tuple[str, ...]
    modes: tuple[str, ...]
    """Failure modes that attempts at it have shown."""


def list_(*, tag: str | None = None, json: JsonFlag = False) -> None:
    """List dev tasks with their tags, those that show several failure modes first.

    Parameters
    ----------
    tag
        Only tasks with this tag.
    """
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_line, print_parts
    from closeloop.tasks.task_files import select_tasks

    project = load_project(Path.cwd())
    tasks = select_tasks(project.settings, project.root, ())
    task_lines = task_list_lines([task for task in tasks if task.split == "dev"], project)
    task_lines = [one for one in task_lines if tag is None or tag in one.tags]
    if json:
        print_json(task_lines)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for name in ("task", "state", "failure modes", "tags"):
        table.add_column(name, no_wrap=name in ("task", "state"))
    for task_line in task_lines:
        cells = (
            task_line.id,
            task_line.state,
            ", ".join(task_line.modes),
            ", ".join(task_line.tags),
        )
        table.add_row(*(Text(make_visible(cell)) for cell in cells))
    print_parts(table)
    if held_out_count := sum(task.split == "held-out" for task in tasks):
        print_line(f"{count_with_noun(held_out_count, 'more is', 'more are')} held out.")


def task_list_lines(tasks: Sequence[Task], found: ProjectConfiguration) -> list[TaskListLine]:
    """Tasks with what the store knows of them."""
    from closeloop.metrics.attempt_measuring import collect_task_modes, project_rulebook
    from closeloop.store.store_opening import open_existing_store
    from closeloop.tasks.task_writer import infer_kind_tags, tag_from_mode

    with open_existing_store(found.settings, found.root) as store:
        shown = collect_task_modes(
            store, [task.digest for task in tasks], project_rulebook(found.settings)
        )
        modes = {digest: [*map(tag_from_mode, each)] for digest, each in shown.items()}
        proofs = {task.digest: store.load_proof(task.grading) for task in tasks}
    task_lines = [
        TaskListLine(
            id=task.id,
            state=proof.state if (proof := proofs[task.digest]) else "unknown",
            tags=tuple(
                dict.fromkeys([*task.tags, *infer_kind_tags(task), *modes.get(task.digest, ())])
            ),
            modes=tuple(sorted(modes.get(task.digest, ()))),
        )
        for task in tasks
    ]
    return sorted(task_lines, key=lambda one: (-len(one.modes), one.id))


def tag(
    task: str,
    *changes: Annotated[str, Parameter(allow_leading_hyphen=True)],
    json: JsonFlag = False,
) -> None:
    """Add tags to a task's file and take others away: +billing -mined.

    Parameters
    ----------
    task
        The id of the task.
    changes
        +NAME adds a tag, -NAME takes it away.
    """
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_line
    from closeloop.records.errors import unknown_name_error
    from closeloop.sandbox.workspaces import resolve_commit
    from closeloop.tasks.sealed_tasks import require_unsealed
    from closeloop.tasks.task_sets import load_task_files
    from closeloop.tasks.task_writer import apply_tag_changes, set_task_field

    project = load_project(Path.cwd())
    task_files = load_task_files(
        project.root / project.settings.tasks, project.root, resolve_commit
    )
    files_by_id = {one.task.id: one for one in task_files}
    if task not in files_by_id:
        raise unknown_name_error(
            "task", task, [one.task.id for one in task_files if one.task.split == "dev"]
        )
    require_unsealed(files_by_id[task].task)
    tags = apply_tag_changes(files_by_id[task].task.tags, changes)
    if changes:
        set_task_field(files_by_id[task].path, "tags", tags or None)
    print_json({"id": task, "tags": tags}) if json else print_line(
        f"{task}: {', '.join(tags) or 'no tags'}"
    )


# `closeloop task stress`: variants of a proved task, each hard in one way.


def stress(
    task: str,
    *,
    mode: list[StressMode] | None = None,
    repeats: int = 3,
    sandbox: SandboxKind | None = None,
    json: JsonFlag = False,
) -> int:
    """Make variants of a proved task that stress one failure mode each, and prove them.

    Parameters
    ----------
    task
        The id of the task.
    mode
        Which mode; may be given again. All of them when none is named.
    repeats
        How often the tests run before and after the reference, to find flaky ones.
    sandbox
        How tests are caged: auto, bwrap, landlock, or none.
    """
    import anyio

    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, require_positive_flags
    from closeloop.cli.run import apply_run_flags
    from closeloop.records.errors import BadInput
    from closeloop.store.store_opening import open_existing_store
    from closeloop.tasks.sealed_tasks import require_unsealed
    from closeloop.tasks.task_files import select_tasks

    require_positive_flags(repeats=repeats)
    project = load_project(Path.cwd())
    settings = apply_run_flags(project.settings, sandbox=sandbox)
    [chosen_task] = select_tasks(project.settings, project.root, [task])
    require_unsealed(chosen_task)
    proved_ids: list[str] = []
    refused: dict[str, str] = {}
    with open_existing_store(project.settings, project.root) as store:
        known_proof = store.load_proof(chosen_task.grading)
        if known_proof is None or known_proof.state != "proved":
            raise BadInput(f"{task} is not proved: `closeloop task check {task}` does that first.")
        for stress_mode in mode or STRESS_MODES:
            try:
                variant = make_stress_task(chosen_task, stress_mode, project)
                [proof] = anyio.run(prove_and_hide, [variant], settings, project.root, repeats)
                save_stress_task(variant, proof, project)
                proved_ids.append(variant.id)
            except BadInput as fault:
                refused[stress_mode] = str(fault)
    print_json({"tasks": proved_ids, "refused": refused}) if json else print_stress_results(
        proved_ids, refused
    )
    return 0 if proved_ids else 1


def print_stress_results(made: Sequence[str], refused: Mapping[str, str]) -> None:
    from closeloop.cli.console import print_line

    for name in made:
        print_line(f"proved {name}")
    for name, why in refused.items():
        print_line(f"no {name}: {why}")


def make_stress_task(task: Task, mode: StressMode, found: ProjectConfiguration) -> Task:
    """One variant, with a repository of its own where files are planted."""
    from closeloop.records.errors import BadInput
    from closeloop.tasks.exchange.harbor_export import check_out_commit
    from closeloop.tasks.stress import stress_task as vary
    from closeloop.tasks.task_files import with_digests

    if task.repo is None or task.base is None or not Path(task.repo).is_dir():
        raise BadInput(f"{task.id} has no repository on this machine: clone it first.")
    with TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        check_out_commit(task.repo, task.base, tree)
        variant = vary(task, mode, tree)
        # Before anything is planted: the variant that is there needs what it was planted with.
        if (found.root / found.settings.tasks / f"{variant.task.id}.md").exists():
            raise BadInput(f"{variant.task.id} is there already.")
        stress_task = plant_files(variant, tree, found) if variant.planted else variant.task
    return with_digests(stress_task)


def plant_files(variant: StressVariant, tree: Path, found: ProjectConfiguration) -> Task:
    """The variant in a repository that has the files it needs besides."""
    from msgspec.structs import replace

    from closeloop.tasks.exchange.harbor_export import commit_folder

    repo = found.root / ".closeloop" / "stress" / variant.task.id
    shutil.rmtree(repo, ignore_errors=True)
    shutil.copytree(tree, repo, symlinks=True)
    for name, text in variant.planted.items():
        (repo / name).write_text(text, encoding="utf-8")
    return replace(variant.task, repo=str(repo.resolve()), base=commit_folder(repo))


def save_stress_task(task: Task, proof: Proof, found: ProjectConfiguration) -> None:
    """Write down a variant that holds; BadInput with the reason for one that does not."""
    from closeloop.records.errors import BadInput
    from closeloop.tasks.mining.miner import write_task_files

    if proof.state != "proved":
        raise BadInput(proof.reasons[0] if proof.reasons else "it could not be proved.")
    write_task_files(task, found.root / found.settings.tasks)
