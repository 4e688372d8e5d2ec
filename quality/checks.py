"""What tier 2 says of changes that real projects accepted: how many it would have blocked.

    python quality/checks.py REPOSITORY... [--commits N] [--findings FILE]

Checks of names are left out: quality/names.py measures them. FILE gets one finding a line.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from closeloop import plugins
from closeloop.changes.change_sides import ChangeQuery, open_sides
from closeloop.changes.repository_index import inspect_change, open_index
from closeloop.records.errors import BadInput
from closeloop.records.estimate import Rate, wilson_rate
from closeloop.records.finding import Finding
from closeloop.records.record import Record
from closeloop.records.settings import CheckSettings

COMMITS = 100
LEFT_OUT = {"names", "scope"}
AIM = 0.03


class Told(Record):
    """What was said of one commit."""

    repository: str
    commit: str
    findings: tuple[Finding, ...]


def told(repository: Path, commits: int = COMMITS) -> Iterator[Told]:
    """The latest commits of the main line that change something, each against its parent."""
    looks = [
        plugins.load_plugin("checks", name)
        for name in plugins.installed_plugins("checks").keys() - LEFT_OUT
    ]
    settings = CheckSettings()
    with tempfile.TemporaryDirectory() as cache:
        for commit in _latest(repository, commits):
            wanted = ChangeQuery(range=f"{commit}^..{commit}")
            try:
                with (
                    open_sides(repository, wanted) as sides,
                    open_index(sides, Path(cache), settings) as index,
                ):
                    inspection = inspect_change(sides, index, settings=settings)
                    said = [one for look in looks for one in look.check(inspection)]
            except BadInput:
                continue
            findings = tuple(one for one in said if isinstance(one, Finding))
            yield Told(repository=_name(repository), commit=commit, findings=findings)


def _latest(repository: Path, commits: int) -> list[str]:
    command = ["git", "log", "--first-parent", "--min-parents=1", "--format=%H", f"-{commits}"]
    listed = subprocess.run(command, cwd=repository, check=True, capture_output=True, text=True)
    return listed.stdout.split()


def _name(repository: Path) -> str:
    return repository.parent.name if repository.name == "repo" else repository.name


def flagged(every: Sequence[Told], severity: str) -> Rate | None:
    """The part of the commits with a finding of that severity."""
    marked = sum(any(one.severity == severity for one in each.findings) for each in every)
    return wilson_rate(marked, len(every))


def table(every: Iterable[Told]) -> str:
    """By repository, commits with an error and with a warning; then the findings by rule."""
    groups: dict[str, list[Told]] = {}
    for one in every:
        groups.setdefault(one.repository, []).append(one)
    groups["all"] = [one for group in groups.values() for one in group]
    lines = ["| repository | commits | with an error | with a warning |", "| --- " * 4 + "|"]
    for name, group in groups.items():
        shares = " | ".join(_percent(flagged(group, kind)) for kind in ("error", "warning"))
        lines.append(f"| {name} | {len(group)} | {shares} |")
    counts = Counter((one.rule, one.severity) for each in groups["all"] for one in each.findings)
    lines += ["", "| rule | severity | findings |", "| --- " * 3 + "|"]
    lines += [f"| {rule} | {kind} | {count} |" for (rule, kind), count in sorted(counts.items())]
    return "\n".join(lines)


def _percent(share: Rate | None) -> str:
    if share is None:
        return "–"
    return f"{share.value:.1%} ({share.low:.1%}–{share.high:.1%})"


def main() -> None:
    """Print the table; with a file, write each finding too."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("repositories", nargs="+", type=Path)
    options.add_argument("--commits", type=int, default=COMMITS)
    options.add_argument("--findings", type=argparse.FileType("wb"))
    given = options.parse_args()
    every = []
    for repository in given.repositories:
        for one in told(repository, given.commits):
            every.append(one)
            if given.findings:
                given.findings.write(msgspec.json.encode(one) + b"\n")
    sys.stdout.write(table(every) + "\n")


if __name__ == "__main__":
    main()
