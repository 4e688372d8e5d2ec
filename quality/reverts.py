"""How many of the changes that were taken back does the history know of?

    python quality/reverts.py REPOSITORY...

The truth is found another way: all commits, merged branches too, whose message names the commit
that it reverts, or whose patch is the exact inverse of an earlier one's (`git patch-id`). Pairs
that landed in one step are left out: what they undid never was on the main line.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from closeloop.changes.risk.change_history import (
    MAX_INVERSE_DAYS,
    MIN_INVERSE_LINES,
    History,
    MainlineCommit,
    read_history,
    read_landed_commits,
)
from closeloop.git import find_repository
from closeloop.records.estimate import Rate, wilson_rate
from closeloop.records.record import Record

NAMED = re.compile(r"reverts? commit ([0-9a-f]{7,40})", re.IGNORECASE)


class RevertRecall(Record):
    """Of the steps that are known to have been taken back, those that the history knows."""

    repository: str
    stated: Rate | None
    inverse: Rate | None
    labelled: int
    """Steps that the history says were reverted."""


def measure_recall(repository: Path) -> RevertRecall:
    """Truth by names and by patches, each held against the labels."""
    head = _git(repository, "rev-parse", "HEAD").strip()
    with tempfile.TemporaryDirectory() as cache:
        history = read_history(repository, head, Path(cache))
    place = find_repository(repository)
    assert place is not None
    steps = [one.id for one in history.past]
    landed = {one.id: one for one in read_landed_commits(place, steps, head)}
    name = repository.parent.name if repository.name == "repo" else repository.name
    return RevertRecall(
        repository=name,
        stated=_count_known(history, _stated_targets(landed)),
        inverse=_count_known(history, _inverse_targets(repository, landed)),
        labelled=sum(one.reverted for one in history.judged_changes),
    )


def _count_known(history: History, steps: set[int]) -> Rate | None:
    judged = [step for step in steps if history.past[step].added is not None]
    return wilson_rate(sum(history.past[step].reverted for step in judged), len(judged))


def _stated_targets(landed: dict[str, MainlineCommit]) -> set[int]:
    by_prefix = {commit[:7]: one for commit, one in landed.items()}
    pairs = (
        (by_prefix.get(target[:7].lower()), one)
        for one in landed.values()
        for target in NAMED.findall(one.message)
    )
    return {target.step for target, one in pairs if target and target.step < one.step}


def _inverse_targets(repository: Path, landed: dict[str, MainlineCommit]) -> set[int]:
    """Commits whose patch a later one takes back to the letter, soon and for more than a line."""
    sizes = {}
    options = ("--no-merges", "--numstat", "--format=%x00%H %ct")
    for entry in _git(repository, "log", *options).split("\0")[1:]:
        head, *files = entry.split("\n")
        commit, at = head.split()
        lines = sum(int(n) for file in files for n in file.split("\t")[:2] if n.isdigit())
        sizes[commit] = int(at), lines
    forward, backward = (_patch_ids(repository, *extra) for extra in ((), ("-R",)))
    by_patch: dict[str, list[str]] = {}
    for commit, patch in forward.items():
        by_patch.setdefault(patch, []).append(commit)
    targets = set()
    for commit, patch in backward.items():
        for target in by_patch.get(patch, ()):
            if target not in landed or commit not in landed:
                continue
            (at, lines), (later, _) = sizes[target], sizes[commit]
            soon = 0 <= later - at <= MAX_INVERSE_DAYS * 86_400
            if soon and lines >= MIN_INVERSE_LINES and landed[target].step < landed[commit].step:
                targets.add(landed[target].step)
    return targets


def _patch_ids(repository: Path, *extra: str) -> dict[str, str]:
    command = ["git", "log", "--no-merges", "-p", "--src-prefix=a/", "--dst-prefix=a/", *extra]
    log = subprocess.run(command, cwd=repository, capture_output=True, check=False).stdout
    told = subprocess.run(
        ["git", "patch-id", "--stable"], input=log, capture_output=True, check=True
    )
    pairs = (line.split() for line in told.stdout.decode().splitlines())
    return {commit: patch for patch, commit in pairs}


def _git(repository: Path, *arguments: str) -> str:
    command = ["git", *arguments]
    ran = subprocess.run(command, cwd=repository, check=False, capture_output=True)
    return ran.stdout.decode("utf-8", "replace")


def render_recall(rows: list[RevertRecall]) -> str:
    """By repository: known of those stated, known of exact inverses, and all labels."""
    lines = ["| repository | stated | exact inverses | labelled |", "| --- " * 4 + "|"]
    for one in rows:
        cells = [
            f"{round(rate.value * rate.of)} of {rate.of}" if rate else "–"
            for rate in (one.stated, one.inverse)
        ]
        lines.append(f"| {one.repository} | {' | '.join(cells)} | {one.labelled} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("repositories", nargs="+", type=Path)
    rows = [measure_recall(one) for one in options.parse_args().repositories]
    sys.stdout.write(render_recall(rows) + "\n")


if __name__ == "__main__":
    main()
