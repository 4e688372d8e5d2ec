"""Tasks made ready for attempts: their base tree, and what their tests say before any change."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anyio import to_thread

from closeloop.attempts.run_resources import RunResources
from closeloop.grading import task_proof
from closeloop.records.attempt import Proof
from closeloop.records.errors import BadInput
from closeloop.records.experiment_plan import RunProgress
from closeloop.records.task import Task
from closeloop.sandbox.workspaces import WorkspaceBase, WorkspacePool
from closeloop.store import Store
from closeloop.text.redaction import redact_proof

ProgressCallback = Callable[[RunProgress], None]


async def prepare_task(task: Task, tools: RunResources, store: Store) -> Proof:
    """The task's base tree, and what its tests say there: made once, then remembered."""
    try:
        base = tools.bases[task.digest] = await prepare_task_base(task, tools.workspaces)
    except BadInput as fault:
        return task_proof.unready_proof(task, fault)
    proof = await to_thread.run_sync(store.load_proof, task.grading)
    if proof is None or proof.version != task_proof.GRADER_VERSION:
        proof = await task_proof.check_gradable(tools.workspaces, base, task)
        # What is wrong may lie outside the task, such as a tool that is not installed yet.
        if proof.state != "unproved":
            await to_thread.run_sync(save_usable_proof, proof, store)
    return proof


def save_usable_proof(proof: Proof, store: Store) -> None:
    """Keep a proof; but what the machine spoiled today may be well tomorrow."""
    test_runs = (proof.before, proof.reference)
    if not any(run is not None and run.trouble is not None for run in test_runs):
        store.save_proof(redact_proof(proof))


async def prove_tasks(
    tasks: Sequence[Task],
    store: Store,
    workspaces: WorkspacePool,
    *,
    repeats: int,
    tell: ProgressCallback,
) -> list[Proof]:
    """Prove each task by its controls, and remember what came of it."""
    proofs = []
    for task in tasks:
        tell(RunProgress(stage="preparing", task=task.id))
        try:
            base = await prepare_task_base(task, workspaces)
            proof = await task_proof.prove_task(workspaces, base, task, repeats)
            save_usable_proof(proof, store)
        except BadInput as fault:
            proof = task_proof.unready_proof(task, fault)
        store.save_task(task)
        tell(RunProgress(stage="prepared", task=task.id))
        proofs.append(proof)
    return proofs


async def prepare_task_base(task: Task, workspaces: WorkspacePool) -> WorkspaceBase | None:
    """The tree that the task starts from; None for a question without a repository."""
    if task.repo is None or task.base is None:
        return None
    return await workspaces.prepare_base(task.repo, task.base, task.setup)
