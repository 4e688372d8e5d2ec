"""What a command may use, and that nothing of it outlives its end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from closeloop.records.protocols import ProcessResult
from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Limits
from closeloop.sandbox import sandbox_ladder
from closeloop.sandbox.program_execution import CommandOutput
from closeloop.sandbox.workspaces import WorkspacePool
from patience import (
    PATIENCE,
    SCALES,
    has_ended,
    is_never_scheduled,
    until,
    waits_for_ended_children,
)

TIERS = {
    "bwrap": (sandbox_ladder.wrap_with_bwrap, True),
    "bwrap alone": (sandbox_ladder.wrap_with_bwrap_alone, False),
    "landlock": (sandbox_ladder.wrap_with_landlock, True),
    "landlock alone": (sandbox_ladder.wrap_with_landlock_alone, False),
    "none": (None, False),
}


def at_tier(tier: str, cache: Path) -> WorkspacePool:
    """Workspaces of exactly this kind; the test is skipped where the machine has none."""
    workspaces = WorkspacePool(cache, SandboxSettings(kind="none"))
    if tier == "none":
        return workspaces
    for candidate in sandbox_ladder.list_candidates(workspaces.sandbox, "auto", cache):
        if (candidate.wrap, candidate.overlay) == TIERS[tier]:
            trouble = sandbox_ladder.probe_sandbox(candidate, cache)
            if trouble:
                pytest.skip(f"NOT TESTED HERE: {tier}: {trouble}")
            workspaces.sandbox = candidate
            return workspaces
    pytest.skip(f"NOT TESTED HERE: {tier} is not installed")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(params=TIERS)
def workspaces(request: pytest.FixtureRequest, cache: Path) -> Iterator[WorkspacePool]:
    opened = at_tier(request.param, cache)
    yield opened
    opened.close()


@pytest.fixture
def token() -> str:
    """A number of seconds to sleep that nobody else does."""
    return f"31{uuid.uuid4().int % 10**9}.5"


def living(token: str) -> list[int]:
    """Processes that have the token among their arguments."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and folder.name != str(os.getpid()):
            try:
                arguments = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if token.encode() in arguments:
                found.append(int(folder.name))
    return found


def gone(token: str) -> bool:
    return until(lambda: not living(token))


def describe_processes(text: str) -> list[str]:
    """Processes with a text in their arguments: state, parent, what they wait for, time used."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            process = int(folder.name)
            if text in arguments and not (has_ended(process) or waits_for_ended_children(process)):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                ticks = int(fields[11]) + int(fields[12])
                waits_for = (folder / "wchan").read_text()
                children = (folder / "task" / folder.name / "children").read_text().split()
                found.append(
                    f"{folder.name} {fields[0]} below {fields[1]} above {children} {waits_for} "
                    f"{ticks} ticks: "
                    f"{arguments[:80]}"
                )
        except OSError:
            continue
    return found


def attempt(workspaces: WorkspacePool, command: str, **limits: float) -> ProcessResult:
    """What becomes of a command in a new, empty workspace."""

    async def main() -> ProcessResult:
        async with workspaces.open(
            None, Limits(**({"command_seconds": PATIENCE} | limits))
        ) as space:
            return await space.sandbox.run(command)

    return anyio.run(main)


def test_a_command_that_outlives_its_time_is_stopped_with_all_its_children(
    workspaces: WorkspacePool, token: str
) -> None:
    ran = attempt(
        workspaces, f"trap '' TERM HUP INT; sleep {token} & sleep {token}", command_seconds=0.3
    )
    assert (ran.exit_code, ran.stopped) == (None, "out of time")
    assert ran.seconds < PATIENCE
    assert gone(token)


def test_a_command_that_says_nothing_for_too_long_is_idle(workspaces: WorkspacePool) -> None:
    for scale in SCALES:
        ran = attempt(workspaces, "echo start; sleep 300", idle_seconds=0.3 * scale)
        if ran.output:
            break
    assert (ran.output, ran.stopped) == ("start\n", "idle")


def test_a_command_that_keeps_talking_is_not_idle(workspaces: WorkspacePool) -> None:
    for scale in SCALES:
        talk = f"for i in 1 2 3 4; do echo $i; sleep {0.25 * scale}; done"
        ran = attempt(workspaces, talk, idle_seconds=0.9 * scale)
        if ran.stopped is None:
            break
    assert (ran.output, ran.stopped) == ("1\n2\n3\n4\n", None)


def test_a_fork_bomb_is_stopped(workspaces: WorkspacePool, token: str) -> None:
    # It ends by itself after a thousand processes, lest a failing test take the machine down.
    again = "b $(($1 + 1)) &"
    bomb = f"b() {{ [ $1 -gt 8 ] && return; {again} {again} sleep {token} & }}; b 0; sleep {token}"
    ran = attempt(workspaces, bomb, processes=80)
    assert ran.stopped == "too many processes"
    assert gone(token)


def test_a_command_that_fills_the_disk_is_stopped(workspaces: WorkspacePool) -> None:
    fill = "for i in $(seq 100); do head -c 4000000 /dev/zero > f$i; done; sleep 30"
    ran = attempt(workspaces, fill, disk_bytes=20_000_000)
    assert ran.stopped == "too much disk"


def test_filling_the_temporary_folder_counts_as_well(workspaces: WorkspacePool) -> None:
    fill = 'for i in $(seq 100); do head -c 4000000 /dev/zero > "$TMPDIR/f$i"; done; sleep 30'
    assert attempt(workspaces, fill, disk_bytes=20_000_000).stopped == "too much disk"


def test_after_filling_the_disk_a_command_may_clean_up(workspaces: WorkspacePool) -> None:
    async def main() -> list[str | None]:
        async with workspaces.open(None, Limits(disk_bytes=5_000_000)) as workspace:
            fill = "for i in 1 2 3 4; do head -c 4000000 /dev/zero > f$i; done; sleep 30"
            return [
                (await workspace.sandbox.run(fill)).stopped,
                (await workspace.sandbox.run("rm f*; sleep 0.5")).stopped,
            ]

    assert anyio.run(main) == ["too much disk", None]


def test_a_command_that_makes_too_many_files_is_stopped(workspaces: WorkspacePool) -> None:
    fill = "for d in $(seq 30); do mkdir $d && (cd $d && touch $(seq 100)); done; sleep 30"
    assert attempt(workspaces, fill, files=1000).stopped == "too many files"


def test_after_making_too_many_files_a_command_may_clean_up(workspaces: WorkspacePool) -> None:
    async def main() -> list[str | None]:
        async with workspaces.open(None, Limits(files=100)) as workspace:
            return [
                (await workspace.sandbox.run("touch $(seq 200); sleep 30")).stopped,
                (await workspace.sandbox.run("rm *; sleep 0.5")).stopped,
            ]

    assert anyio.run(main) == ["too many files", None]


def test_one_file_does_not_grow_past_the_limit(workspaces: WorkspacePool) -> None:
    if workspaces.sandbox_limits.kind == "none":
        pytest.skip("without a cage only the watcher looks")
    ran = attempt(workspaces, "head -c 9000000 /dev/zero > f; wc -c < f", disk_bytes=4_000_000)
    assert ran.stopped == "too much disk" or ran.output.split()[-1] <= "4000000"


def test_a_command_that_eats_memory_is_stopped(workspaces: WorkspacePool) -> None:
    eat = "import time; held = b'x' * (300 << 20); time.sleep(30)"
    ran = attempt(workspaces, f'{sys.executable} -c "{eat}"', memory_bytes=150 << 20)
    assert ran.stopped == "too much memory"


def test_memory_in_files_that_no_process_maps_counts(workspaces: WorkspacePool) -> None:
    eat = (
        "import os, time; held = [os.memfd_create('held') for _ in range(3)];"
        " [os.write(one, bytes(100 << 20)) for one in held]; time.sleep(30)"
    )
    ran = attempt(workspaces, f'{sys.executable} -c "{eat}"', memory_bytes=200 << 20)
    assert ran.stopped == "too much memory"


def test_memory_in_files_that_a_process_maps_counts_once(workspaces: WorkspacePool) -> None:
    use = (
        "import mmap, os, time; held = os.memfd_create('held'); os.truncate(held, 100 << 20);"
        " seen = mmap.mmap(held, 100 << 20); seen.write(b'x' * (100 << 20)); time.sleep(0.7)"
    )
    ran = attempt(workspaces, f'{sys.executable} -c "{use}"', memory_bytes=290 << 20)
    assert (ran.stopped, ran.exit_code) == (None, 0), ran.output


def test_memory_that_forked_processes_share_counts_once(workspaces: WorkspacePool) -> None:
    share = (
        "import os, time; held = b'x' * (60 << 20); "
        "[os.fork() or (time.sleep(0.6), os._exit(0)) for _ in range(6)]; time.sleep(0.7)"
    )
    ran = attempt(workspaces, f'{sys.executable} -c "{share}"', memory_bytes=250 << 20)
    assert (ran.exit_code, ran.stopped) == (0, None)


def test_a_daemon_left_behind_dies_with_its_command(workspaces: WorkspacePool, token: str) -> None:
    daemon = (
        f"(setsid sh -c '(trap \"\" TERM; exec sleep {token}) >/dev/null 2>&1 &' &) ; sleep 0.1"
    )
    ran = attempt(workspaces, f"{daemon}; echo done")
    assert (ran.exit_code, ran.output) == (0, "done\n")
    assert gone(token)


def test_orphans_that_die_by_themselves_leave_no_trace(cache: Path) -> None:
    workspaces = at_tier("none", cache)
    # Under a name of its own: this process may have children of other tests.
    napping = "cp $(command -v sleep) orphan; for i in 1 2 3 4 5; do (./orphan 0.01 &); done"
    attempt(workspaces, f"{napping}; sleep 0.1")
    own = ["ps", "-o", "stat=,comm=", "--ppid", str(os.getpid())]

    def dead() -> list[str]:
        listed = subprocess.run(own, capture_output=True, text=True, check=False).stdout
        return [line for line in listed.splitlines() if line.startswith("Z") and "orphan" in line]

    assert until(lambda: not dead())
    workspaces.close()


def test_a_daemon_that_holds_the_output_does_not_keep_us_waiting(
    workspaces: WorkspacePool, token: str
) -> None:
    ran = attempt(workspaces, f"setsid sleep {token} & echo done")
    assert (ran.exit_code, ran.output) == (0, "done\n")
    assert ran.seconds < PATIENCE
    assert gone(token)


def test_cancelling_kills_the_whole_tree(workspaces: WorkspacePool, token: str) -> None:
    async def main() -> None:
        for delay in (0.0, 0.001, 0.003, 0.006, 0.01, 0.02, 0.2):
            async with workspaces.open(None, Limits()) as workspace:
                with anyio.move_on_after(delay):
                    await workspace.sandbox.run(f"setsid sleep {token} & sleep {token}")
            assert gone(token), delay

    anyio.run(main)
    time.sleep(0.1)
    assert not living(token)


def test_a_flood_of_output_keeps_its_head_and_tail(workspaces: WorkspacePool) -> None:
    size = (
        1_000_000_000 if workspaces.sandbox.wrap is sandbox_ladder.wrap_with_bwrap else 50_000_000
    )
    flood = f"echo first; yes | head -c {size}; echo last"
    ran = attempt(workspaces, flood, output_bytes=1 << 16, command_seconds=600)
    assert ran.exit_code == 0
    assert ran.output.startswith("first\ny\ny\n")
    assert ran.output.endswith("y\nlast\n")
    assert len(ran.output) < (1 << 16) + 100
    assert ran.dropped_bytes == size + 11 - (1 << 16)


def test_output_that_is_not_text_is_replaced(workspaces: WorkspacePool) -> None:
    assert attempt(workspaces, r"printf 'a\377b'").output == "a\ufffdb"


def test_the_end_of_a_command_is_told_as_shells_do(workspaces: WorkspacePool) -> None:
    async def main() -> list[int | None]:
        async with workspaces.open(None, Limits()) as workspace:
            commands = ("exit 7", "kill -9 $$", "no-such-program", ["no-such-program"], "echo \0")
            return [(await workspace.sandbox.run(each)).exit_code for each in commands]

    assert anyio.run(main) == [7, 137, 127, 127, 126]


def test_a_command_longer_than_the_kernel_takes_is_the_agents_failure(
    workspaces: WorkspacePool,
) -> None:
    ran = attempt(workspaces, "echo " + "x" * 200_000)
    assert ran.exit_code == 126
    assert "too long" in ran.output


def test_standard_input_arrives_whole_and_may_be_ignored(workspaces: WorkspacePool) -> None:
    async def main() -> tuple[ProcessResult, ProcessResult, ProcessResult]:
        async with workspaces.open(None, Limits()) as workspace:
            run = workspace.sandbox.run
            return (
                await run("wc -c", stdin=b"x" * 3_000_000),
                await run("true", stdin=b"x" * 3_000_000),
                await run("cat"),
            )

    counted, ignored, nothing = anyio.run(main)
    assert counted.output.strip() == "3000000"
    assert (ignored.exit_code, nothing.exit_code, nothing.output) == (0, 0, "")


HARNESS = """
import sys, anyio
from pathlib import Path
sys.path[:0] = {tests!r}
from test_sandbox_limits import at_tier
from closeloop.records.task import Limits

async def main():
    workspaces = at_tier({tier!r}, Path({cache!r}))
    print("ready", flush=True)
    async with workspaces.open(None, Limits()) as workspace:
        while True:
            await workspace.sandbox.run({command!r}, seconds={seconds})

anyio.run(main)
"""


def harness(tier: str, cache: Path, command: str, seconds: float) -> subprocess.Popen[bytes]:
    script = HARNESS.format(
        tests=[str(folder) for folder in Path(__file__).parents[:2]],
        tier=tier,
        cache=str(cache),
        command=command,
        seconds=seconds,
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    if process.stdout.readline() != b"ready\n":
        process.wait()
        pytest.skip(f"NOT TESTED HERE: {tier}")
    return process


@pytest.mark.parametrize("tier", [tier for tier in TIERS if tier != "none"])
def test_when_closeloop_is_killed_its_commands_are_gone(tier: str, cache: Path, token: str) -> None:
    command = f"setsid sleep {token} & trap '' TERM; sleep {token} & sleep {token}"
    process = harness(tier, cache, command, 60)
    assert until(lambda: len(living(token)) >= 3)
    process.send_signal(signal.SIGKILL)
    assert gone(token)
    process.communicate()


# Loaded once for many kills; its own arguments do not hold the command.
NURSERY = """
import os, sys, anyio
from pathlib import Path
sys.path[:0] = {tests!r}
from test_sandbox_limits import at_tier
from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Limits
from closeloop.sandbox.workspaces import WorkspacePool

sandbox = at_tier({tier!r}, Path({cache!r})).sandbox

async def main(command):
    workspaces = WorkspacePool(Path({cache!r}), SandboxSettings(kind="none"))
    workspaces.sandbox = sandbox
    async with workspaces.open(None, Limits()) as workspace:
        print(os.getpid(), flush=True)
        while True:
            await workspace.sandbox.run(command, seconds=0.03)

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        anyio.run(main, line.strip())
    os.waitpid(child, 0)
    print("dead", flush=True)
"""
KILLS = 12
DEATH_SECONDS = 60.0
"""On a machine that does much else, too, what is killed is gone after that."""


@pytest.mark.parametrize("tier", ["bwrap", "landlock"])
def test_when_closeloop_is_killed_while_a_cage_is_built_it_is_not_finished(
    tier: str, cache: Path, token: str
) -> None:
    folders = [str(folder) for folder in Path(__file__).parents[:2]]
    script = NURSERY.format(tests=folders, tier=tier, cache=str(cache))
    chance = random.Random(7)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as nursery:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        for _ in range(KILLS):
            print(f"sleep {token}", file=nursery.stdin, flush=True)
            closeloop = nursery.stdout.readline()
            if not closeloop:
                pytest.skip(f"NOT TESTED HERE: {tier}")
            time.sleep(chance.uniform(0.0, 0.12))
            os.kill(int(closeloop), signal.SIGKILL)
            assert nursery.stdout.readline() == "dead\n"
            # What builds a cage has the command among its arguments, too: it must end by itself.
            until(lambda: not describe_processes(token), DEATH_SECONDS)
            left = describe_processes(token)
            for process in [int(line.split()[0]) for line in left]:
                if is_never_scheduled(process):
                    os.kill(process, signal.SIGKILL)  # counts as ended, and is not met again
            left = left and describe_processes(token)  # some ended while one was watched
            assert not left, f"these outlived closeloop {closeloop.strip()}: {left}"


@pytest.mark.parametrize("tier", ["bwrap", "none"])
def test_a_hundred_workspaces_at_once(tier: str, cache: Path) -> None:
    workspaces = at_tier(tier, cache)

    async def one(number: int, outputs: dict[int, str]) -> None:
        async with workspaces.open(None, Limits()) as workspace:
            await workspace.sandbox.run(f"echo {number} > n")
            outputs[number] = (await workspace.sandbox.run("cat n")).output

    async def main() -> dict[int, str]:
        outputs: dict[int, str] = {}
        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(one, number, outputs)
        return outputs

    assert anyio.run(main) == {number: f"{number}\n" for number in range(100)}
    workspaces.close()


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 100])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_output_is_kept_within_its_limit_however_it_arrives(size: int, chunk: int) -> None:
    content = bytes(range(33, 33 + size))
    output = CommandOutput(8)
    for start in range(0, size, chunk):
        output.add_chunk(content[start : start + chunk])
    kept = content if size <= 8 else content[:4] + content[-4:]
    assert output.content == kept
    assert output.dropped_bytes == max(size - 8, 0)
    assert ("left out" in output.text) == (size > 8)
