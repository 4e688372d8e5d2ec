"""Let an agent mend a change: what starts it, and what is looked at again afterwards."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from closeloop.changes.change_check import (
    CheckRequest,
    PreparedContext,
    TierResults,
    apply_silences,
    describe_fault,
    run_checks,
)
from closeloop.changes.change_sides import ChangeQuery, open_sides
from closeloop.changes.check_context import CheckContext
from closeloop.changes.check_verdict import (
    Fixer,
    FixSubject,
    MendedChange,
    list_blocking_findings,
    run_fix_cycles,
)
from closeloop.changes.repository_index import inspect_change, open_index
from closeloop.concurrency import compute_in_thread
from closeloop.records.change import MendingResult
from closeloop.records.errors import Fault
from closeloop.records.finding import Finding, Unmeasured
from closeloop.records.record import content_digest
from closeloop.sandbox.workspaces import UnreadableChange


async def mend_change(
    order: CheckRequest, bench: PreparedContext, results: TierResults, fixer: Fixer | None
) -> TierResults:
    """Let an agent mend what the tools and the checks of quality say, where one is named."""
    if fixer is None or not isinstance(bench, CheckContext):
        return results
    sides = bench.sides

    async def recheck_quality(mended: str) -> list[Finding]:
        patch = sides.change.patch + mended
        return await compute_in_thread(list_blocking_in_patch, order, sides.base, patch)

    quality = [apply_silences(one, order) for one in results.quality if isinstance(one, Finding)]
    subject = FixSubject(
        tools=results.tools.tools,
        comparisons=results.tools.comparisons,
        findings=list_blocking_findings(order.settings, quality),
        recheck=recheck_quality,
    )
    if not subject.needs_fixing():
        return results
    try:
        mended = await run_fix_cycles(bench, subject, fixer, order.settings.fix_cycles)
        tools = msgspec.structs.replace(results.tools, mending=_save_mending(order, mended))
    except (Fault, OSError, UnreadableChange) as fault:
        unmended = Unmeasured(rule="mending", reason=describe_fault(fault))
        unmeasured = (*results.tools.unmeasured, unmended)
        tools = msgspec.structs.replace(results.tools, unmeasured=unmeasured)
    return msgspec.structs.replace(results, tools=tools)


def list_blocking_in_patch(order: CheckRequest, base: str | None, patch: str) -> list[Finding]:
    """What the checks of quality find in a patch of a commit that keeps it from being merged."""
    with TemporaryDirectory(prefix="closeloop-") as folder:
        path = Path(folder, "change")
        path.write_bytes(patch.encode("utf-8", "surrogateescape"))
        with (
            open_sides(order.root, ChangeQuery(patch=path, base=base)) as sides,
            open_index(sides, order.cache, order.settings) as index,
        ):
            inspection = inspect_change(
                sides, index, task=order.task, request=order.request, settings=order.settings
            )
            found = run_checks(inspection)
    findings = [apply_silences(one, order) for one in found if isinstance(one, Finding)]
    return list_blocking_findings(order.settings, findings)


def _save_mending(order: CheckRequest, mended: MendedChange) -> MendingResult:
    """What mends the change as a file: the repository itself is left as it is."""
    if not mended.patch or mended.mending.left or mended.mending.findings:
        return mended.mending
    content = mended.patch.encode("utf-8", "surrogateescape")
    path = order.cache / "mended" / f"{content_digest(content)[:16]}.patch"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return msgspec.structs.replace(mended.mending, patch=str(path))
