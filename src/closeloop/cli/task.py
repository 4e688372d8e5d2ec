"""`closeloop task`: write tasks and prove them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.records.settings import SandboxKind

if TYPE_CHECKING:
    from rich.table import Table

    from closeloop.records.attempt import Proof
    from closeloop.records.settings import Settings
    from closeloop.records.task import Task


def new(
    name: str,
    *,
    prompt: str | None = None,
    json: bool = False,
) -> None:
    """Write a new task, filled in as far as can be known.

    Parameters
    ----------
    name
        The task's id: letters, digits, '.', '_' and '-'.
    prompt
        What the agent is asked; to be written into the file when not given.
    json
        Print one JSON document instead of text.
    """
    from closeloop.cli.config import find_repository_root, load_project
    from closeloop.cli.console import print_json, print_line
    from closeloop.records.errors import BadInput
    from closeloop.sandbox.workspaces import resolve_commit
    from closeloop.tasks.task_files import require_valid_id
    from closeloop.tasks.task_writer import render_new_task, write_new_file

    require_valid_id(name, "The name of a task")
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
        "Next: say what is asked and how it is checked, then prove it with `closeloop task check`."
    )


def check(
    *tasks: str,
    repeats: int = 3,
    sandbox: SandboxKind | None = None,
    json: bool = False,
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
    json
        Print one JSON document instead of a table.
    """
    import anyio

    from closeloop import flow
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_parts
    from closeloop.cli.flag_checks import require_positive_flags
    from closeloop.cli.run import apply_run_flags

    require_positive_flags(repeats=repeats)
    project = load_project(Path.cwd())
    settings = apply_run_flags(project.settings, sandbox=sandbox)

    chosen_tasks = flow.select_tasks(settings, project.root, tasks)
    proofs = anyio.run(prove_and_hide, chosen_tasks, settings, project.root, repeats)
    print_json(proofs) if json else print_parts(proofs_table(proofs))
    return 0 if all(proof.state != "unproved" for proof in proofs) else 1


async def prove_and_hide(
    chosen: Sequence[Task], settings: Settings, root: Path, repeats: int
) -> list[Proof]:
    """What their controls say of tasks; of held-out ones, no more than that."""
    from closeloop import flow
    from closeloop.cli.console import open_console
    from closeloop.cli.run import warn_of_sandbox_gaps
    from closeloop.tasks.sealed_tasks import hide_proof, hide_task

    visible_ids = {task.id: hide_task(task).id for task in chosen}
    async with flow.open_workspaces(settings, root) as workspaces:
        warn_of_sandbox_gaps(workspaces)
        with (
            flow.open_project_store(settings, root) as store,
            open_console(stderr=True).status("proving …") as status,
        ):
            task_proofs = await flow.prove_tasks(
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

    from closeloop.cli.console import make_visible

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
