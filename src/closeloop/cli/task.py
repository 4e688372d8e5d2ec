"""`closeloop task`: write tasks and prove them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.model.settings import SandboxKind

if TYPE_CHECKING:
    from rich.table import Table

    from closeloop.model.attempt import Proof
    from closeloop.model.settings import Settings
    from closeloop.model.task import Task


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
    from closeloop.cli.config import load, repository
    from closeloop.cli.console import say, say_json
    from closeloop.model.errors import BadInput
    from closeloop.runs.workspaces import resolve_commit
    from closeloop.tasks.files import demand_id
    from closeloop.tasks.write import scaffold, write_new

    demand_id(name, "The name of a task")
    found = load(Path.cwd())
    folder = found.root / found.settings.tasks
    root = repository(folder.resolve())
    if root is None:
        raise BadInput(f"{folder} lies in no git repository: make one with `git init`.")
    head = resolve_commit(root, "HEAD")
    path = folder / f"{name}.md"
    write_new(path, scaffold(name, found.settings.commands, head, prompt))
    if json:
        say_json({"file": str(path), "id": name, "base": head})
        return
    say(f"Wrote {path}")
    say("Next: say what is asked and how it is checked, then prove it with `closeloop task check`.")


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
    from closeloop.cli.config import load
    from closeloop.cli.console import say_json, show
    from closeloop.cli.run import with_flags
    from closeloop.cli.typed import demand_positive

    demand_positive(repeats=repeats)
    found = load(Path.cwd())
    settings = with_flags(found.settings, sandbox=sandbox)

    chosen = flow.choose(settings, found.root, tasks)
    proofs = anyio.run(prove, chosen, settings, found.root, repeats)
    say_json(proofs) if json else show(proof_table(proofs))
    return 0 if all(proof.state != "unproved" for proof in proofs) else 1


async def prove(
    chosen: Sequence[Task], settings: Settings, root: Path, repeats: int
) -> list[Proof]:
    """What their controls say of tasks; of held-out ones, no more than that."""
    from closeloop import flow
    from closeloop.cli.console import console
    from closeloop.cli.run import warn_of_gaps
    from closeloop.tasks.seal import hide_proof, hide_task

    shown = {task.id: hide_task(task).id for task in chosen}
    async with flow.open_workspaces(settings, root) as workspaces:
        warn_of_gaps(workspaces)
        with (
            flow.open_named_store(settings, root) as store,
            console(stderr=True).status("proving …") as status,
        ):
            proved = await flow.prove(
                chosen,
                store,
                workspaces,
                repeats=repeats,
                tell=lambda told: status.update(f"proving {shown[told.task]} …"),
            )
    return [hide_proof(*pair) for pair in zip(proved, chosen, strict=True)]


def proof_table(proofs: Sequence[Proof]) -> Table:
    """A row a task: its state, its tests, and what is wrong with it."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.console import visible

    table = Table(box=None)
    for name in ("task", "state", "tests at base", "flaky", "why"):
        table.add_column(name, no_wrap=name != "why")
    colours = {"proved": "green", "unproved": "red", "unchecked": "yellow"}
    for proof in proofs:
        runs = [run for run in (proof.before, proof.reference) if run is not None]
        flaky = {name for run in runs for name in run.flaky}
        table.add_row(
            Text(visible(proof.task)),
            Text(proof.state, style=colours[proof.state]),
            str(len(proof.before.tests)) if proof.before else "–",
            str(len(flaky)) if flaky else "",
            Text(visible("\n".join(proof.reasons)), style="dim"),
        )
    return table
