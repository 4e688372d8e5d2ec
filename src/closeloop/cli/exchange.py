"""`closeloop task import` and `closeloop task export`: tasks in formats of other tools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from closeloop.cli.console import JsonFlag
from closeloop.text.wording import count_with_noun

if TYPE_CHECKING:
    from closeloop.records.attempt import Proof
    from closeloop.records.settings import Settings
    from closeloop.records.task import Task
    from closeloop.store import Store

MAX_REASONS = 20


def import_(
    *sources: Path,
    clones: Path | None = None,
    test_command: str | None = None,
    json: JsonFlag = False,
) -> int:
    """Import tasks: SWE-bench JSON lines, or folders of Harbor and terminal-bench tasks.

    Parameters
    ----------
    sources
        Files of JSON lines, and folders of tasks or with tasks below.
    clones
        A clone of the repository, or a folder with clones; by default the task's repository URL.
    test_command
        The command that runs the tests, where the source has none; by default the project's own.
    """
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_line, print_warning
    from closeloop.records.errors import BadInput
    from closeloop.tasks.miner import write_task_files

    if not sources:
        raise BadInput("Give a .jsonl file or a folder of tasks to import.")
    project = load_project(Path.cwd())
    folder = project.root / project.settings.tasks
    written_ids: list[str] = []
    present_ids: list[str] = []
    refused: list[str] = []
    settings = (
        project.settings
        if test_command is None
        else settings_with_test_command(project.settings, test_command)
    )
    known_digests = task_digests_in_folder(folder, project.root, project.settings.commands.setup)
    for task_or_reason in read_external_tasks(sources, settings, project.root, clones):
        if isinstance(task_or_reason, str):
            refused.append(task_or_reason)
        elif (
            folder / f"{task_or_reason.id}.md"
        ).exists() or task_or_reason.digest in known_digests:
            present_ids.append(task_or_reason.id)
        else:
            write_task_files(task_or_reason, folder)
            known_digests.add(task_or_reason.digest)
            written_ids.append(task_or_reason.id)
    if json:
        print_json({"tasks": written_ids, "there": present_ids, "refused": refused})
    else:
        for reason in refused[:MAX_REASONS]:
            print_warning(reason)
        already_there = (
            f"; {count_with_noun(len(present_ids), 'task')} already existed" if present_ids else ""
        )
        print_line(
            f"{count_with_noun(len(written_ids), 'task')} written to {folder}, "
            f"{len(refused)} rejected{already_there}."
        )
        if written_ids:
            print_line(
                "Next: verify them with `closeloop task check`; unverified tasks do not run."
            )
    return 0 if written_ids or present_ids else 1


def task_digests_in_folder(folder: Path, root: Path, setup: Sequence[str]) -> set[str]:
    """Return the digests of existing tasks: no task is imported twice, whatever its name."""
    from closeloop.records.errors import BadInput
    from closeloop.sandbox.workspaces import resolve_commit
    from closeloop.tasks.task_files import list_task_files, load_task

    digests = set()
    for path in list_task_files(folder):
        with suppress(BadInput):
            digests.add(load_task(path, root, resolve_commit, setup).digest)
    return digests


def settings_with_test_command(settings: Settings, run: str) -> Settings:
    from msgspec.structs import replace

    return replace(settings, commands=replace(settings.commands, test=run))


def read_external_tasks(
    sources: Sequence[Path], settings: Settings, root: Path, clones: Path | None
) -> Iterator[Task | str]:
    """Yield each task, or the reason why it could not be read."""
    from closeloop.records.errors import BadInput
    from closeloop.tasks.task_exchange import (
        SwebenchOptions,
        is_container_task,
        read_container_task,
        read_swebench_tasks,
    )

    commands = settings.commands
    setting = SwebenchOptions(
        clones=clones, run=commands.test or "python -m pytest", setup=tuple(commands.setup)
    )
    for source in sources:
        if source.is_file():
            yield from read_swebench_tasks(source, setting)
            continue
        folders = (
            [source]
            if is_container_task(source)
            else sorted(filter(is_container_task, source.glob("*")))
        )
        if not folders:
            raise BadInput(
                f"{source} is neither a JSON Lines file nor a folder with task.toml or task.yaml."
            )
        for folder in folders:
            try:
                yield read_container_task(folder, root / ".closeloop" / "imported")
            except BadInput as fault:
                yield str(fault)


def export(
    *tasks: str,
    format: Literal["harbor", "swe-bench"],  # noqa: A002
    out: Path,
    json: JsonFlag = False,
) -> int:
    """Export tasks as Harbor folders or SWE-bench JSON lines.

    Parameters
    ----------
    tasks
        Ids or files of tasks; all dev tasks of the project by default.
    format
        harbor or swe-bench.
    out
        The folder to write to; with swe-bench, the file.
    """
    from msgspec.structs import replace

    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_line, print_warning, write_named_file
    from closeloop.metrics.attempt_measuring import collect_task_modes, project_rulebook
    from closeloop.records.errors import BadInput
    from closeloop.store.store import open_store_if_any
    from closeloop.tasks.task_files import select_tasks, tag_from_mode
    from closeloop.tasks.task_sets import require_unsealed

    project = load_project(Path.cwd())
    chosen_tasks = select_tasks(project.settings, project.root, tasks)
    for task in chosen_tasks if tasks else ():
        require_unsealed(task)
    written_ids: list[str] = []
    refused: dict[str, str] = {}
    lines = b""
    dev_tasks = [task for task in chosen_tasks if task.split == "dev"]
    with open_store_if_any(project.settings, project.root) as store:
        modes = collect_task_modes(
            store, [task.digest for task in dev_tasks], project_rulebook(project.settings)
        )
        for task in dev_tasks:
            mode_tags = [tag_from_mode(mode) for mode in modes.get(task.digest, ())]
            tagged = replace(task, tags=tuple(dict.fromkeys([*task.tags, *mode_tags])))
            try:
                lines += write_external_task(tagged, format, out, store)
                written_ids.append(task.id)
            except BadInput as fault:
                refused[task.id] = str(fault)
    if format == "swe-bench" and written_ids:
        write_named_file(out, lines)
    if json:
        print_json({"tasks": written_ids, "refused": refused})
    else:
        for reason in list(refused.values())[:MAX_REASONS]:
            print_warning(reason)
        print_line(
            f"{count_with_noun(len(written_ids), 'task')} written to {out}, "
            f"{len(refused)} rejected."
        )
    return 0 if written_ids else 1


def write_external_task(task: Task, to: str, out: Path, store: Store) -> bytes:
    """Write one task's folder, or return its line."""
    from closeloop.records.errors import BadInput
    from closeloop.tasks.task_exchange import (
        list_required_tests,
        read_swebench_source,
        render_swebench_line,
        write_harbor_task,
    )

    proof = store.load_proof(task.grading)
    require_no_failed_proof(task, proof)
    if to == "swe-bench":
        return render_swebench_line(
            task, list_required_tests(task, proof), read_swebench_source(task)
        )
    folder = out / task.id
    if folder.exists():
        raise BadInput(f"{folder} already exists: choose another --out, or delete it.")
    names = list_required_tests(task, proof) if task.acceptance.names_tests else None
    write_harbor_task(task, names, folder)
    return b""


def require_no_failed_proof(task: Task, proof: Proof | None) -> None:
    """Raise BadInput for a task whose proof failed: others should not get it."""
    from closeloop.records.errors import BadInput

    if proof is not None and proof.state == "unproved":
        raise BadInput(f"{task.id} is not verified: `closeloop task check {task.id}` shows why.")
