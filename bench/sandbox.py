"""One sandboxed command from end to end, beside the same command started bare."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import anyio
import msgspec

from closeloop.records.errors import MachineFailed
from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Limits
from closeloop.sandbox.sandbox_ladder import find_sandbox
from closeloop.sandbox.workspaces import WorkspacePool, resolve_commit
from harness import Bench, NotMeasured, commit_all, time_wall
from table import Row, build_row

COMMANDS = 40
COMMAND = ["true"]


class CommandPlace(NamedTuple):
    """Where a command is run, and what it may take there."""

    name: str
    kind: str
    filtered: bool = True
    standing: bool = False
    budget_ms: float | None = None


PLACES = (
    CommandPlace("bubblewrap", "bwrap"),
    CommandPlace("bubblewrap, no seccomp filter", "bwrap", filtered=False),
    CommandPlace("Landlock", "landlock"),
    CommandPlace("Landlock, no seccomp filter", "landlock", filtered=False),
    CommandPlace("a standing sandbox", "auto", standing=True, budget_ms=5),
    CommandPlace("no sandbox", "none", filtered=False),
)


def measure(bench: Bench) -> Iterator[Row]:
    commands = bench.size(COMMANDS, 2)
    source = bench.input("one-file", _make_repository)
    for place in PLACES:
        title = f"a command in {place.name}, seconds"
        try:
            times = bench.repeat(
                lambda: _time_commands(source, bench.folder, place, commands)  # noqa: B023
            )
        except NotMeasured as reason:
            yield Row(title, note=f"not measured: {reason}")
            continue
        yield build_row(
            title, times["ours"], "ms", floor=times["bare"], budget=place.budget_ms,
            against=f"a bare subprocess, {commands} of each",
        )  # fmt: skip


def find_sandbox_kind(cache: Path) -> str:
    """The kind of sandbox that closeloop takes on this machine."""
    try:
        return find_sandbox(SandboxSettings(), cache).sandbox_limits.kind
    except MachineFailed as error:
        raise NotMeasured(str(error)) from error


def _make_repository(folder: Path) -> None:
    folder.mkdir()
    (folder / "one.txt").write_text("one\n")
    commit_all(folder)


def _time_commands(
    source: Path, folder: Path, place: CommandPlace, commands: int
) -> dict[str, float]:
    """Seconds of a command, bare and in a workspace that is open already, in turn.

    Of each the lower quartile: what waits for others on a busy machine is left out.
    """
    bare: list[float] = []
    ours: list[float] = []

    async def run_sandboxed() -> None:
        async with WorkspacePool(folder / "cache", SandboxSettings(kind=place.kind)) as workspaces:
            if place.filtered and not workspaces.sandbox.filtered:
                raise NotMeasured("this kernel filters no system calls")
            workspaces.sandbox = msgspec.structs.replace(
                workspaces.sandbox, filtered=place.filtered
            )
            base = await workspaces.prepare_base(str(source), resolve_commit(source, "HEAD"))
            async with workspaces.open(base, Limits(), standing=place.standing) as workspace:
                await workspace.sandbox.run(COMMAND)
                if place.standing and workspace.sandbox.standing is None:
                    raise NotMeasured("no sandbox can stand here")
                for _ in range(commands):
                    bare.append(time_wall(lambda: subprocess.run(COMMAND, check=True)))
                    began = time.perf_counter()
                    assert (await workspace.sandbox.run(COMMAND)).exit_code == 0
                    ours.append(time.perf_counter() - began)

    try:
        anyio.run(run_sandboxed)
    except MachineFailed as error:
        raise NotMeasured(str(error)) from error
    return {"ours": statistics.quantiles(ours)[0], "bare": statistics.quantiles(bare)[0]}
