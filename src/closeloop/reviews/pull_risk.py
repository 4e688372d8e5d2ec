"""The risk of a pull request whose diff was fetched: told without running anything of it."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from closeloop.changes.change_check import CheckRequest, report_risk_alone
from closeloop.changes.change_sides import ChangeQuery
from closeloop.changes.check_verdict import save_report
from closeloop.records.change import Change, ChangeReport
from closeloop.records.errors import Fault
from closeloop.records.pull_request import PullRow
from closeloop.records.record import Record
from closeloop.records.settings import CheckSettings
from closeloop.store import Store

_log = logging.getLogger(__name__)


class RiskAssessment(Record):
    """How the risk of what was fetched is told."""

    cache: Path
    """Where what is known of the clones is kept."""
    settings: CheckSettings = CheckSettings()


def save_risk(
    store: Store,
    row: PullRow,
    change: Change,
    clones: Sequence[tuple[Path, str]],
    how: RiskAssessment,
) -> None:
    """Keep a report of its risk, unless there is one of this commit; a diff without is kept too.

    `clones` have its commits, each with the one that it began from.
    """
    if store.reports.list_reports(1, repo=row.repo, head=change.head):
        return
    try:
        report = assess_pull_risk(change, clones, how)
    except Exception as error:  # hostile content may break any reader
        reason = str(error) if isinstance(error, Fault) else type(error).__name__
        _log.warning("The risk of %s#%s is not known: %s", row.repo, row.pull, reason)
        return
    if report is not None and report.risk is not None:
        told = replace(report.change, head=change.head)
        report = replace(report, change=told, title=f"{row.repo}#{row.pull}")
        save_report(report, store, row.repo)


def assess_pull_risk(
    change: Change, clones: Sequence[tuple[Path, str]], how: RiskAssessment
) -> ChangeReport | None:
    """By a clone that has its commits, else by the diff alone; None where that is not whole."""
    order = CheckRequest(root=Path(), cache=how.cache, settings=how.settings)
    for folder, start in clones:
        ends = ChangeQuery(range=f"{start}..{change.head}")
        return report_risk_alone(replace(order, root=folder, wanted=ends))
    # What is missing could be what matters.
    if any((file.note or "").startswith("not read") for file in change.files):
        return None
    with tempfile.TemporaryDirectory(prefix="closeloop-") as private:
        patch = Path(private) / "change.patch"
        patch.write_text(change.patch, encoding="utf-8", errors="surrogateescape")
        alone = ChangeQuery(patch=patch)
        return report_risk_alone(replace(order, root=patch.parent, wanted=alone))
