"""How many made-up names of Go are found, with the project's own compiler and without it?

    python quality/planted_compiled.py [--plants N] REPOSITORY …

Plausible ones, planted in real commits: a method or function that an added line calls gets a name
that nothing in the repository has. The same commits without a plant must be silent.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio

from closeloop.changes.change_check import CheckRequest
from closeloop.flow import check_change
from closeloop.records.change import ChangeReport, CheckTier
from closeloop.records.settings import CommandSettings, SandboxSettings
from closeloop.sandbox.workspaces import WorkspacePool

PLANTS = 15
"""A repository."""
MAX_COMMITS = 150
RULE = "hallucinated-name"
_FORMS = ("{}All", "Get{}", "{}Safe", "{}OrNil", "To{}")
_CALL = re.compile(r"\b\w+\.([A-Z]\w+)\(")
_COMMANDS = CommandSettings(lint="go vet ./...")


def run_git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def list_spots(folder: Path, commit: str) -> Iterator[tuple[str, int, str]]:
    """Path, line and name of each call of a member on a line that the commit adds."""
    path, number = "", 0
    for line in run_git(folder, "show", "-U0", "--format=", commit, "--", "*.go").splitlines():
        if line.startswith("+++ "):
            path = line[6:]
        elif line.startswith("@@"):
            number = int(line.split("+")[1].split(" ")[0].split(",")[0])
        elif line.startswith("+"):
            code = line[1:].partition("//")[0]
            if '"' not in code.partition("(")[0] and (call := _CALL.search(code)):
                yield path, number, call[1]
            number += 1


def check_folder(folder: Path, cache: Path, tiers: tuple[CheckTier, ...]) -> ChangeReport:
    order = CheckRequest(root=folder, cache=cache, tiers=tiers, commands=_COMMANDS)

    async def check() -> ChangeReport:
        async with WorkspacePool(cache, SandboxSettings()) as workspaces:
            return await check_change(order, workspaces)

    return anyio.run(check)


def is_told(report: ChangeReport, place: str, severity: str = "") -> bool:
    return any(
        one.rule == RULE and place in one.places and one.severity.startswith(severity)
        for one in report.findings
    )


def measure_repository(repository: Path, work: Path, plants: int) -> str:
    """Planted, found and found as errors without and with the compiler, and clean ones flagged."""
    folder, cache = work / repository.name, work / "cache"
    run_git(work, "clone", "-q", str(repository), str(folder))
    draw = random.Random(0)  # noqa: S311
    counts = dict.fromkeys(("planted", "names", "errors", "all", "all errors", "flagged"), 0)
    commits = run_git(folder, "rev-list", "--no-merges", f"-{MAX_COMMITS}", "HEAD", "--", "*.go")
    for commit in commits.split():
        spots = list(list_spots(folder, commit))
        if not spots or counts["planted"] == plants:
            continue
        run_git(folder, "checkout", "-qf", commit)
        run_git(folder, "reset", "-q", "--soft", f"{commit}~1")
        clean = check_folder(folder, cache, ("tools", "quality"))
        if any(run.after != "passed" for run in clean.tools):
            run_git(folder, "reset", "-q", "--hard")
            continue  # It does not compile here.
        counts["planted"] += 1
        counts["flagged"] += any(one.rule == RULE for one in clean.findings)
        path, number, name = draw.choice(spots)
        made = draw.choice(_FORMS).format(name)
        lines = (folder / path).read_text().split("\n")
        lines[number - 1] = lines[number - 1].replace(f".{name}(", f".{made}(", 1)
        (folder / path).write_text("\n".join(lines))
        for tiers, key in ((("quality",), ""), (("tools", "quality"), "all")):
            report = check_folder(folder, cache, tiers)
            counts[key or "names"] += is_told(report, f"{path}:{number}")
            counts[f"{key} errors".strip()] += is_told(report, f"{path}:{number}", "error")
            if key and not is_told(report, f"{path}:{number}"):
                sys.stdout.write(f"  missed {commit[:9]} {path}:{number} {made}\n")
        run_git(folder, "reset", "-q", "--hard")
    return ", ".join(f"{key} {count}" for key, count in counts.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repositories", nargs="+", type=Path)
    parser.add_argument("--plants", type=int, default=PLANTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        for repository in arguments.repositories:
            told = measure_repository(repository, Path(work), arguments.plants)
            sys.stdout.write(f"{repository.name}: {told}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
