"""Is a change judged by its request as people would? Real commits, and edits nobody asked for.

    python quality/request_scope.py [--commits N] [--tell] REPOSITORY …

The message of a commit is the request, and what its author changed is in scope by definition: a
file that is flagged there is a false alarm. Then, to each of these commits, the edit of one more
source file is added that another commit of the repository made (backwards): it must be flagged.
Merges, commits of robots, and commits that change no source file are left out.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from closeloop.changes import scope
from closeloop.changes.change_sides import ChangeQuery, open_sides
from closeloop.changes.file_kinds import classify_file
from closeloop.changes.repository_index import inspect_change, open_index
from closeloop.records.errors import BadInput
from closeloop.records.finding import Finding
from closeloop.records.record import Record
from closeloop.records.settings import CheckSettings

COMMITS = 40
MIN_DISTANCE = 5
"""Commits between the one that is judged and the one whose edit is added to it."""
_ROBOTS = ("[bot]", "pre-commit", "dependabot", "renovate")


class ScopeCase(Record):
    """A commit with its request, what was flagged of it, and of it with one edit more."""

    repository: str
    commit: str
    request: str
    measured: bool
    flagged: tuple[str, ...]
    planted: str | None = None
    planted_measured: bool = False
    planted_found: bool = False


def list_cases(repository: Path, commits: int, cache: Path) -> Iterator[ScopeCase]:
    """The latest commits of people that change source files."""
    chosen = list(_list_commits(repository, commits))
    chance = random.Random(7)  # noqa: S311
    for place, (commit, request, paths) in enumerate(chosen):
        human = _judge(repository, f"{commit}^..{commit}", request, cache)
        if human is None:
            continue
        others = [one for at, one in enumerate(chosen) if abs(at - place) >= MIN_DISTANCE]
        chance.shuffle(others)
        planted = _plant_edit(repository, commit, paths, others)
        plant = planted and _judge(repository, f"{commit}^..{planted[0]}", request, cache)
        yield ScopeCase(
            repository=repository.name,
            commit=commit,
            request=request,
            measured=human[0],
            flagged=human[1],
            planted=planted[1] if planted else None,
            planted_measured=bool(plant and plant[0]),
            planted_found=bool(planted and plant and planted[1] in plant[1]),
        )


def _list_commits(repository: Path, commits: int) -> Iterator[tuple[str, str, list[str]]]:
    listed = _git(repository, "log", "--no-merges", "--format=%H%x00%an", f"-{commits * 6}")
    count = 0
    for line in listed.split("\n"):
        commit, _, author = line.partition("\0")
        if not commit or any(robot in author for robot in _ROBOTS) or count == commits:
            continue
        request = _git(repository, "log", "-1", "--format=%B", commit)
        named = _git(repository, "diff-tree", "--no-commit-id", "--name-only", "-r", commit)
        paths = [path for path in named.split("\n") if classify_file(path) == "source"]
        if paths:
            count += 1
            yield commit, request, paths


def _plant_edit(
    repository: Path,
    commit: str,
    paths: Sequence[str],
    others: Sequence[tuple[str, str, list[str]]],
) -> tuple[str, str] | None:
    """A commit with one file more, as another commit found it; and that file."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "GIT_INDEX_FILE": str(Path(folder, "index"))}
        _git(repository, "read-tree", commit, env=environment)
        for other, _, theirs in others[:12]:
            for path in sorted(set(theirs) - set(paths)):
                patch = _git(repository, "diff", "--binary", other, f"{other}^", "--", path)
                try:
                    _git(repository, "apply", "--cached", "-", env=environment, stdin=patch)
                except subprocess.CalledProcessError:
                    continue
                tree = _git(repository, "write-tree", env=environment).strip()
                made = _git(
                    repository,
                    *("-c", "user.name=quality", "-c", "user.email=quality@localhost"),
                    *("commit-tree", tree, "-p", f"{commit}^", "-m", "Planted"),
                )
                return made.strip(), path
    return None


def _git(
    repository: Path, *arguments: str, env: dict[str, str] | None = None, stdin: str = ""
) -> str:
    ran = subprocess.run(
        ["git", *arguments],
        cwd=repository,
        env=env,
        input=stdin.encode("utf-8", "surrogateescape"),
        check=True,
        capture_output=True,
    )
    return ran.stdout.decode("utf-8", "surrogateescape")


def _judge(
    repository: Path, wanted: str, request: str, cache: Path
) -> tuple[bool, tuple[str, ...]] | None:
    """Whether the change was measured, and which files were flagged."""
    settings = CheckSettings()
    try:
        with (
            open_sides(repository, ChangeQuery(range=wanted)) as sides,
            open_index(sides, cache, settings) as index,
        ):
            inspection = inspect_change(sides, index, request=request, settings=settings)
            said = scope.check(inspection)
    except BadInput:
        return None
    flagged = tuple(one.places[0].rpartition(":")[0] for one in said if isinstance(one, Finding))
    return all(isinstance(one, Finding) for one in said), flagged


def write_table(cases: Sequence[ScopeCase]) -> str:
    """By repository: how many were measured, wrongly flagged, and of the added edits found."""
    columns = "repository", "changes", "measured", "flagged wrongly", "edits added", "found"
    lines = [f"| {' | '.join(columns)} | right or silent |", "| --- " * 7 + "|"]
    groups: dict[str, list[ScopeCase]] = {}
    for case in cases:
        groups.setdefault(case.repository, []).append(case)
    groups["all"] = list(cases)
    for name, group in groups.items():
        measured = sum(case.measured for case in group)
        wrong = sum(bool(case.flagged) for case in group)
        planted = [case for case in group if case.planted]
        found = sum(case.planted_found for case in planted)
        missed = sum(case.planted_measured and not case.planted_found for case in planted)
        right = 1 - (wrong + missed) / max(1, len(group) + len(planted))
        lines.append(
            f"| {name} | {len(group)} | {measured} | {wrong} | {len(planted)} | {found} |"
            f" {right:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("repositories", nargs="+", type=Path)
    options.add_argument("--commits", type=int, default=COMMITS)
    options.add_argument("--tell", action="store_true", help="name what was judged wrongly")
    given = options.parse_args()
    cases = []
    for repository in given.repositories:
        with tempfile.TemporaryDirectory() as cache:
            for case in list_cases(repository, given.commits, Path(cache)):
                cases.append(case)
                first = case.request.partition("\n")[0]
                if given.tell and case.flagged:
                    sys.stdout.write(f"wrong {case.commit[:10]} {first!r}: {case.flagged}\n")
                if given.tell and case.planted and not case.planted_found:
                    state = "measured" if case.planted_measured else "unmeasured"
                    sys.stdout.write(
                        f"missed {case.commit[:10]} {first!r}: {case.planted} {state}\n"
                    )
    sys.stdout.write(write_table(cases) + "\n")


if __name__ == "__main__":
    main()
