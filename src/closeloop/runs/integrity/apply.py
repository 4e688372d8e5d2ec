"""Put an agent's change on top of the base, without what does not decide its verdict."""

from __future__ import annotations

from closeloop.model.globs import literal
from closeloop.model.task import Task
from closeloop.runs.integrity.restore import Steering, restored_paths, why_restored
from closeloop.runs.protected import parse_change, paths_of
from closeloop.runs.workspaces import Workspace


async def apply_change(workspace: Workspace, task: Task, patch: str, steering: Steering) -> None:
    """Apply a change; tests and what steers them become the reference's, where it changes them.

    BadInput when the patch does not apply.
    """
    change = parse_change(patch)
    aside = restored_paths(steering, change) if change else {}
    await workspace.apply(patch, exclude=[literal(path) for path in aside])
    hidden = set(paths_of(task.acceptance.patch))
    kept = [
        path
        for path in paths_of(task.reference)
        if path in hidden or why_restored(steering, path) is None
    ]
    if task.reference is not None and len(kept) < len(steering.references):
        await workspace.apply(task.reference, exclude=[literal(path) for path in kept])
