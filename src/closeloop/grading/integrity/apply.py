"""Put an agent's change on top of the base, without what does not decide its verdict."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import anyio.to_thread

from closeloop.grading.integrity.restore import Steering, is_manifest, restored_paths, why_restored
from closeloop.grading.touched_paths import list_patch_paths, parse_change
from closeloop.records.change import Change
from closeloop.records.task import Task
from closeloop.sandbox.workspaces import Workspace
from closeloop.text.wording import escape_glob

INLINE_TESTS = ("#[cfg(test)]", "#[test]")


async def apply_change(workspace: Workspace, task: Task, patch: str, steering: Steering) -> None:
    """Apply a change; tests and what steers them become the reference's, where it changes them.

    BadInput when the patch does not apply.
    """
    change = parse_change(patch)
    aside = restored_paths(steering, change) if change else {}
    if patch:
        await workspace.apply_patch(patch, exclude=[escape_glob(path) for path in aside])
    if change is not None:
        await _restore_renamed(workspace, change, steering, aside)
        await _restore_parts(workspace, change, steering)
    hidden = set(list_patch_paths(task.acceptance.patch))
    kept = [
        path
        for path in list_patch_paths(task.reference)
        if path in hidden or why_restored(steering, path) is None
    ]
    if task.reference is not None and len(kept) < len(steering.references):
        await workspace.apply_patch(task.reference, exclude=[escape_glob(path) for path in kept])


async def _restore_renamed(
    workspace: Workspace, change: Change, steering: Steering, aside: Collection[str]
) -> None:
    """Put back what a rename took away: git leaves out a renamed file by its new name alone."""
    for file in change.files:
        old = file.old_path
        if old is None or old not in aside or file.path in aside or steering.base is None:
            continue
        content = await anyio.to_thread.run_sync(steering.base.read_bytes, old)
        if content is not None:
            await workspace.cage.write(old, content)


async def _restore_parts(workspace: Workspace, change: Change, steering: Steering) -> None:
    """Restore the parts of files that steer tests, or are tests: the rest is the agent's."""
    for path, base_text in _files_with_parts(change, steering):
        try:
            text = (await workspace.cage.read(path)).decode()
        except (OSError, UnicodeDecodeError):
            continue
        restored = await anyio.to_thread.run_sync(_restored_text, path, text, base_text)
        if restored != text:
            await workspace.cage.write(path, restored.encode())


def _files_with_parts(change: Change, steering: Steering) -> Iterator[tuple[str, str]]:
    """Changed files of which a part does not count, with their text at the base."""
    for file in change.files:
        path = file.path
        if file.status == "deleted" or steering.base is None or path in steering.subject:
            continue
        base_text = steering.base.read(path)
        if is_manifest(path) and path not in steering.references:
            yield path, base_text or ("{}" if path.endswith(".json") else "")
        elif path.endswith(".rs") and base_text and any(mark in base_text for mark in INLINE_TESTS):
            yield path, base_text


def _restored_text(path: str, text: str, base_text: str) -> str:
    from closeloop.grading.integrity.manifests import restore_manifest
    from closeloop.grading.integrity.rust_inline import restore_inline_tests

    if path.endswith(".rs"):
        return restore_inline_tests(text, base_text) or text
    return restore_manifest(path, text, base_text)
