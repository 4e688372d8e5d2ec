"""`closeloop task stress`: variants of a proved task, each hard in one way."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from closeloop.records.settings import SandboxKind
from closeloop.tasks.stress import STRESS_MODES, StressMode

if TYPE_CHECKING:
    from closeloop.cli.config import ProjectConfiguration
    from closeloop.records.attempt import Proof
    from closeloop.records.task import Task
    from closeloop.tasks.stress import StressVariant


def stress(
    task: str,
    *,
    mode: list[StressMode] | None = None,
    repeats: int = 3,
    sandbox: SandboxKind | None = None,
    json: bool = False,
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
    json
        Print one JSON document instead of text.
    """
    import anyio

    from closeloop import flow
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json
    from closeloop.cli.flag_checks import require_positive_flags
    from closeloop.cli.run import apply_run_flags
    from closeloop.cli.task import prove_and_hide
    from closeloop.records.errors import BadInput
    from closeloop.tasks.sealed_tasks import require_unsealed

    require_positive_flags(repeats=repeats)
    project = load_project(Path.cwd())
    settings = apply_run_flags(project.settings, sandbox=sandbox)
    [chosen_task] = flow.select_tasks(project.settings, project.root, [task])
    require_unsealed(chosen_task)
    proved_ids: list[str] = []
    refused: dict[str, str] = {}
    with flow.open_existing_store(project.settings, project.root) as store:
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
    from closeloop.tasks.exchange.git_trees import check_out_commit
    from closeloop.tasks.stress import stress_task as vary
    from closeloop.tasks.task_digests import with_digests

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

    from closeloop.tasks.exchange.git_trees import commit_folder

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
