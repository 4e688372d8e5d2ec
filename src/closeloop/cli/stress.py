"""`closeloop task stress`: variants of a proved task, each hard in one way."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from closeloop.model.settings import SandboxKind
from closeloop.tasks.stress import MODES, Stress

if TYPE_CHECKING:
    from closeloop.cli.config import Configuration
    from closeloop.model.attempt import Proof
    from closeloop.model.task import Task
    from closeloop.tasks.stress import Stressed


def stress(
    task: str,
    *,
    mode: list[Stress] | None = None,
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
    from closeloop.cli.config import load
    from closeloop.cli.console import say_json
    from closeloop.cli.run import with_flags
    from closeloop.cli.task import prove
    from closeloop.cli.typed import demand_positive
    from closeloop.model.errors import BadInput
    from closeloop.tasks.seal import demand_open

    demand_positive(repeats=repeats)
    found = load(Path.cwd())
    settings = with_flags(found.settings, sandbox=sandbox)
    [chosen] = flow.choose(found.settings, found.root, [task])
    demand_open(chosen)
    made: list[str] = []
    refused: dict[str, str] = {}
    with flow.open_kept_store(found.settings, found.root) as store:
        known = store.proof(chosen.grading)
        if known is None or known.state != "proved":
            raise BadInput(f"{task} is not proved: `closeloop task check {task}` does that first.")
        for one in mode or MODES:
            try:
                variant = variant_of(chosen, one, found)
                [proof] = anyio.run(prove, [variant], settings, found.root, repeats)
                keep(variant, proof, found)
                made.append(variant.id)
            except BadInput as fault:
                refused[one] = str(fault)
    say_json({"tasks": made, "refused": refused}) if json else tell(made, refused)
    return 0 if made else 1


def tell(made: Sequence[str], refused: Mapping[str, str]) -> None:
    from closeloop.cli.console import say

    for name in made:
        say(f"proved {name}")
    for name, why in refused.items():
        say(f"no {name}: {why}")


def variant_of(task: Task, mode: Stress, found: Configuration) -> Task:
    """One variant, with a repository of its own where files are planted."""
    from closeloop.model.errors import BadInput
    from closeloop.tasks.digests import with_digests
    from closeloop.tasks.exchange.trees import check_out
    from closeloop.tasks.stress import stress as vary

    if task.repo is None or task.base is None or not Path(task.repo).is_dir():
        raise BadInput(f"{task.id} has no repository on this machine: clone it first.")
    with TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        check_out(task.repo, task.base, tree)
        variant = vary(task, mode, tree)
        # Before anything is planted: the variant that is there needs what it was planted with.
        if (found.root / found.settings.tasks / f"{variant.task.id}.md").exists():
            raise BadInput(f"{variant.task.id} is there already.")
        made = planted(variant, tree, found) if variant.planted else variant.task
    return with_digests(made)


def planted(variant: Stressed, tree: Path, found: Configuration) -> Task:
    """The variant in a repository that has the files it needs besides."""
    from msgspec.structs import replace

    from closeloop.tasks.exchange.trees import commit_all

    repo = found.root / ".closeloop" / "stress" / variant.task.id
    shutil.rmtree(repo, ignore_errors=True)
    shutil.copytree(tree, repo, symlinks=True)
    for name, text in variant.planted.items():
        (repo / name).write_text(text, encoding="utf-8")
    return replace(variant.task, repo=str(repo.resolve()), base=commit_all(repo))


def keep(task: Task, proof: Proof, found: Configuration) -> None:
    """Write down a variant that holds; BadInput with the reason for one that does not."""
    from closeloop.mining.mine import write_whole
    from closeloop.model.errors import BadInput

    if proof.state != "proved":
        raise BadInput(proof.reasons[0] if proof.reasons else "it could not be proved.")
    write_whole(task, found.root / found.settings.tasks)
