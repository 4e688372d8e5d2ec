"""How many made-up names of Go, TypeScript or Rust are found, with the compiler and without it?

    python quality/planted_compiled.py [--plants N] [--language LANGUAGE] [--command COMMAND]
        [--setup COMMAND] REPOSITORY …

COMMAND is how the repositories are checked, such as `tsc --noEmit`, and how they are set up before.
Plausible names,
planted in real commits: a method or function that an added line calls gets a name that nothing in
the repository has. The same commits without a plant must be silent.
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
from closeloop.records.record import Record
from closeloop.records.settings import CommandSettings, SandboxSettings
from closeloop.sandbox.workspaces import WorkspacePool

PLANTS = 15
"""A repository."""
MAX_COMMITS = 150
RULE = "hallucinated-name"


class CompiledLanguage(Record):
    """How names of a language are planted, and which command must find them."""

    files: str
    call: str
    forms: tuple[str, ...]
    command: str


GO = CompiledLanguage(
    files="*.go",
    call=r"\b\w+\.([A-Z]\w+)\(",
    forms=("{}All", "Get{}", "{}Safe", "{}OrNil", "To{}"),
    command="go vet ./...",
)
TYPESCRIPT = CompiledLanguage(
    files="src/*.ts",
    call=r"\b\w+\.([a-z]\w+)\(",
    forms=("{}All", "{}Safe", "{}OrNull", "{}Async", "{}Of"),
    command="tsc --noEmit",
)
RUST = CompiledLanguage(
    files="src/*.rs",
    call=r"[\w)\]?](?:\.|::)([a-z]\w+)\(",
    forms=("{}_all", "get_{}", "{}_checked_all", "{}_or_none", "to_{}"),
    command="cargo check",
)
LANGUAGES = {"go": GO, "typescript": TYPESCRIPT, "rust": RUST}


def run_git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def list_spots(
    folder: Path, commit: str, language: CompiledLanguage
) -> Iterator[tuple[str, int, str]]:
    """Path, line and name of each call of a member on a line that the commit adds."""
    path, number = "", 0
    for line in run_git(
        folder, "show", "-U0", "--format=", commit, "--", language.files
    ).splitlines():
        if line.startswith("+++ "):
            path = line[6:]
        elif line.startswith("@@"):
            number = int(line.split("+")[1].split(" ")[0].split(",")[0])
        elif line.startswith("+"):
            code = line[1:].partition("//")[0]
            if '"' not in code.partition("(")[0] and (call := re.search(language.call, code)):
                yield path, number, call[1]
            number += 1


def check_folder(
    folder: Path, cache: Path, tiers: tuple[CheckTier, ...], commands: CommandSettings
) -> ChangeReport:
    order = CheckRequest(root=folder, cache=cache, tiers=tiers, commands=commands)

    async def check() -> ChangeReport:
        async with WorkspacePool(cache, SandboxSettings()) as workspaces:
            return await check_change(order, workspaces)

    return anyio.run(check)


def is_told(report: ChangeReport, place: str, severity: str = "") -> bool:
    return any(
        one.rule == RULE and place in one.places and one.severity.startswith(severity)
        for one in report.findings
    )


def measure_repository(
    repository: Path, work: Path, plants: int, language: CompiledLanguage, commands: CommandSettings
) -> str:
    """Planted, found and found as errors without and with the compiler, and clean ones flagged."""
    name = repository.resolve().parent.name if repository.name == "repo" else repository.name
    folder, cache = work / name, work / "cache"
    run_git(work, "clone", "-q", str(repository), str(folder))
    draw = random.Random(0)  # noqa: S311
    counts = dict.fromkeys(("planted", "names", "errors", "all", "all errors", "flagged"), 0)
    history = ("rev-list", "--no-merges", "--min-parents=1", f"-{MAX_COMMITS}", "HEAD")
    commits = run_git(folder, *history, "--", language.files)
    for commit in commits.split():
        spots = list(list_spots(folder, commit, language))
        if not spots or counts["planted"] == plants:
            continue
        run_git(folder, "checkout", "-qf", commit)
        run_git(folder, "reset", "-q", "--soft", f"{commit}~1")
        clean = check_folder(folder, cache, ("tools", "quality"), commands)
        states = ("passed",) if language is not TYPESCRIPT else ("passed", "failed")
        if any(run.after not in states or run.before not in states for run in clean.tools):
            run_git(folder, "reset", "-q", "--hard")
            continue  # It does not compile here.
        counts["planted"] += 1
        counts["flagged"] += any(one.rule == RULE for one in clean.findings)
        path, number, name = draw.choice(spots)
        made = draw.choice(language.forms).format(name)
        lines = (folder / path).read_text().split("\n")
        lines[number - 1] = re.sub(rf"(?<=[.:]){name}(?=\()", made, lines[number - 1], count=1)
        (folder / path).write_text("\n".join(lines))
        for tiers, key in ((("quality",), ""), (("tools", "quality"), "all")):
            report = check_folder(folder, cache, tiers, commands)
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
    parser.add_argument("--language", choices=LANGUAGES, default="go")
    parser.add_argument("--command", help="how the language is checked")
    parser.add_argument("--setup", help="how a repository is set up before")
    arguments = parser.parse_args()
    language = LANGUAGES[arguments.language]
    setup = (arguments.setup,) if arguments.setup else ()
    commands = CommandSettings(setup=setup, lint=arguments.command or language.command)
    with tempfile.TemporaryDirectory() as work:
        for repository in arguments.repositories:
            told = measure_repository(repository, Path(work), arguments.plants, language, commands)
            sys.stdout.write(f"{repository}: {told}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
