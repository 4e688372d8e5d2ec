"""One sandboxed command from end to end, beside the same command started bare."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

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
KINDS = {"bwrap": "bubblewrap", "landlock": "Landlock", "none": "no sandbox"}


def measure(bench: Bench) -> Iterator[Row]:
    commands = bench.size(COMMANDS, 2)
    source = bench.input("one-file", _make_repository)
    for kind, name in KINDS.items():
        for filtered in (True, False) if kind != "none" else (False,):
            suffix = ("", ", no seccomp filter")[kind != "none" and not filtered]
            title = f"a command in {name}{suffix}, seconds"
            try:
                times = bench.repeat(
                    lambda: _time_commands(source, bench.folder, kind, filtered, commands)  # noqa: B023
                )
            except NotMeasured as reason:
                yield Row(title, note=f"not measured: {reason}")
                continue
            yield build_row(
                title, times["ours"], "ms", floor=times["bare"],
                against=f"a bare subprocess, {commands} of each",
            )  # fmt: skip


def find_sandbox_kind(cache: Path) -> str:
    """The kind of sandbox that closeloop takes on this machine."""
    try:
        return find_sandbox(SandboxSettings(), cache).guards.kind
    except MachineFailed as error:
        raise NotMeasured(str(error)) from error


def _make_repository(folder: Path) -> None:
    folder.mkdir()
    (folder / "one.txt").write_text("one\n")
    commit_all(folder)


def _time_commands(
    source: Path, folder: Path, kind: str, filtered: bool, commands: int
) -> dict[str, float]:
    """Seconds of a command, bare and in a workspace that is open already, in turn.

    Of each the lower quartile: what waits for others on a busy machine is left out.
    """
    bare: list[float] = []
    ours: list[float] = []

    async def run_sandboxed() -> None:
        async with WorkspacePool(folder / "cache", SandboxSettings(kind=kind)) as workspaces:
            if filtered and not workspaces.sandbox.filtered:
                raise NotMeasured("this kernel filters no system calls")
            workspaces.sandbox = msgspec.structs.replace(workspaces.sandbox, filtered=filtered)
            base = await workspaces.prepare_base(str(source), resolve_commit(source, "HEAD"))
            async with workspaces.open(base, Limits()) as workspace:
                for _ in range(commands):
                    bare.append(time_wall(lambda: subprocess.run(COMMAND, check=True)))
                    began = time.perf_counter()
                    assert (await workspace.cage.run(COMMAND)).exit_code == 0
                    ours.append(time.perf_counter() - began)

    try:
        anyio.run(run_sandboxed)
    except MachineFailed as error:
        raise NotMeasured(str(error)) from error
    return {"ours": statistics.quantiles(ours)[0], "bare": statistics.quantiles(bare)[0]}
