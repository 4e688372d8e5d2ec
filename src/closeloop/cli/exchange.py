"""`closeloop task import` and `closeloop task export`: tasks in the formats of others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from closeloop.model.plural import plural

if TYPE_CHECKING:
    from closeloop.model.attempt import Proof
    from closeloop.model.settings import Settings
    from closeloop.model.task import Task
    from closeloop.store import Store

MOST_REASONS = 20


def import_(
    *sources: Path, clones: Path | None = None, run: str | None = None, json: bool = False
) -> int:
    """Read tasks of others: SWE-bench's JSON lines, Harbor's and terminal-bench's folders.

    Parameters
    ----------
    sources
        Files of JSON lines, and folders of tasks or with tasks below.
    clones
        A clone of the repository, or a folder with clones; addresses are used when not given.
    run
        The command that runs the tests, where the source does not say; the project's own else.
    json
        Print one JSON document instead of text.
    """
    from closeloop.cli.config import load
    from closeloop.cli.console import say, say_json, warn
    from closeloop.mining.mine import write_whole
    from closeloop.model.errors import BadInput

    if not sources:
        raise BadInput("Name what to read: a .jsonl file, or a folder of tasks.")
    found = load(Path.cwd())
    folder = found.root / found.settings.tasks
    made: list[str] = []
    there: list[str] = []
    refused: list[str] = []
    setting = found.settings if run is None else with_run(found.settings, run)
    known = digests_in(folder, found.root)
    for one in read(sources, setting, found.root, clones):
        if isinstance(one, str):
            refused.append(one)
        elif (folder / f"{one.id}.md").exists() or one.digest in known:
            there.append(one.id)
        else:
            write_whole(one, folder)
            known.add(one.digest)
            made.append(one.id)
    if json:
        say_json({"tasks": made, "there": there, "refused": refused})
    else:
        for why in refused[:MOST_REASONS]:
            warn(why)
        before = f"; {plural(len(there), 'was', 'were')} there already" if there else ""
        say(f"{plural(len(made), 'task')} written to {folder}, {len(refused)} not{before}.")
        if made:
            say("Next: prove them with `closeloop task check`; what cannot be proved is not run.")
    return 0 if made or there else 1


def digests_in(folder: Path, root: Path) -> set[str]:
    """What the tasks that are there ask: the same must not be asked twice, whatever its name."""
    from closeloop.model.errors import BadInput
    from closeloop.runs.workspaces import resolve_commit
    from closeloop.tasks.files import load_task, task_files

    found = set()
    for path in task_files(folder):
        with suppress(BadInput):
            found.add(load_task(path, root, resolve_commit).digest)
    return found


def with_run(settings: Settings, run: str) -> Settings:
    from msgspec.structs import replace

    return replace(settings, commands=replace(settings.commands, test=run))


def read(
    sources: Sequence[Path], settings: Settings, root: Path, clones: Path | None
) -> Iterator[Task | str]:
    """Each task, or why there is none."""
    from closeloop.model.errors import BadInput
    from closeloop.tasks.exchange.containers import is_task, read_container
    from closeloop.tasks.exchange.swebench import Setting, read_swebench

    commands = settings.commands
    setting = Setting(
        clones=clones, run=commands.test or "python -m pytest", setup=tuple(commands.setup)
    )
    for source in sources:
        if source.is_file():
            yield from read_swebench(source, setting)
            continue
        folders = [source] if is_task(source) else sorted(filter(is_task, source.glob("*")))
        if not folders:
            raise BadInput(f"{source} is no file of JSON lines and has no task.toml or task.yaml.")
        for folder in folders:
            try:
                yield read_container(folder, root / ".closeloop" / "imported")
            except BadInput as fault:
                yield str(fault)


def export(
    *tasks: str,
    to: Literal["harbor", "swe-bench"],
    out: Path,
    json: bool = False,
) -> int:
    """Write tasks as other tools take them: Harbor's folders, or SWE-bench's JSON lines.

    Parameters
    ----------
    tasks
        Ids or files of tasks; every dev task of the project when none is named.
    to
        The format: harbor or swe-bench.
    out
        The folder to write to, for swe-bench the file.
    json
        Print one JSON document instead of text.
    """
    from closeloop import flow
    from closeloop.cli.config import load
    from closeloop.cli.console import say, say_json, warn
    from closeloop.cli.files import write
    from closeloop.model.errors import BadInput
    from closeloop.tasks.seal import demand_open

    found = load(Path.cwd())
    chosen = flow.choose(found.settings, found.root, tasks)
    for task in chosen if tasks else ():
        demand_open(task)
    made: list[str] = []
    refused: dict[str, str] = {}
    lines = b""
    with flow.open_kept_store(found.settings, found.root) as store:
        for task in (task for task in chosen if task.split == "dev"):
            try:
                lines += written(task, to, out, store)
                made.append(task.id)
            except BadInput as fault:
                refused[task.id] = str(fault)
    if to == "swe-bench" and made:
        write(out, lines)
    if json:
        say_json({"tasks": made, "refused": refused})
    else:
        for why in list(refused.values())[:MOST_REASONS]:
            warn(why)
        say(f"{plural(len(made), 'task')} written to {out}, {len(refused)} not.")
    return 0 if made else 1


def written(task: Task, to: str, out: Path, store: Store) -> bytes:
    """Write one task's folder, or give its line."""
    from closeloop.model.errors import BadInput
    from closeloop.tasks.exchange.harbor import write_harbor
    from closeloop.tasks.exchange.named import named
    from closeloop.tasks.exchange.origins import source_of
    from closeloop.tasks.exchange.swebench import swebench_line

    proof = store.proof(task.grading)
    demand_sound(task, proof)
    if to == "swe-bench":
        return swebench_line(task, named(task, proof), source_of(task))
    folder = out / task.id
    if folder.exists():
        raise BadInput(f"{folder} is there already: choose another --out, or delete it.")
    names = named(task, proof) if task.acceptance.names_tests else None
    write_harbor(task, names, folder)
    return b""


def demand_sound(task: Task, proof: Proof | None) -> None:
    """Others should get no task that is known not to hold."""
    from closeloop.model.errors import BadInput

    if proof is not None and proof.state == "unproved":
        raise BadInput(f"{task.id} is unproved: `closeloop task check {task.id}` says why.")
