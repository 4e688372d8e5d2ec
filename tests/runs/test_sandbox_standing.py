"""One sandbox for the commands of an attempt: none reaches its first process, or the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from git_trees import git

from closeloop.records.protocols import ProcessResult
from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Limits
from closeloop.sandbox.program_execution import FirstProcess, list_children
from closeloop.sandbox.workspaces import Workspace, WorkspacePool, resolve_commit
from patience import has_ended, until

LIST_PROCESSES = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null; echo; done"
LIMITS = Limits(processes=40, output_bytes=1 << 16)


def run_in_workspace(
    cache: Path,
    work: Callable[[Workspace], Awaitable[None]],
    limits: Limits = LIMITS,
    *,
    kind: str = "auto",
    repo: Path | None = None,
) -> None:
    async def main() -> None:
        async with WorkspacePool(cache, SandboxSettings(kind=kind)) as pool:
            if not pool.sandbox.isolated:
                pytest.skip("NOT TESTED HERE: no sandbox with namespaces works on this machine")
            base = None
            if repo is not None:
                base = await pool.prepare_base(str(repo), resolve_commit(repo, "HEAD"))
            async with pool.open(base, limits, standing=True) as workspace:
                await workspace.sandbox.run("true")
                if workspace.sandbox.standing is None:
                    pytest.skip("NOT TESTED HERE: our launcher may not make namespaces")
                await work(workspace)

    anyio.run(main)


def first_process(workspace: Workspace) -> FirstProcess:
    standing = workspace.sandbox.standing
    assert standing is not None
    assert standing.process is not None
    return standing.process


def sandbox_process(workspace: Workspace) -> int:
    return first_process(workspace).pid


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("kind", ["auto", "landlock"])
def test_commands_run_one_after_the_other_in_one_sandbox(cache: Path, kind: str) -> None:
    async def work(workspace: Workspace) -> None:
        sandbox = workspace.sandbox
        first = sandbox_process(workspace)
        assert (await sandbox.run("echo out; echo err >&2; exit 7")).exit_code == 7
        assert (await sandbox.run("cat", stdin=b"x" * 300_000)).dropped_bytes > 0
        assert (await sandbox.run("kill -9 $$")).exit_code == 137
        assert (await sandbox.run("no-such-program")).exit_code == 127
        assert (await sandbox.run(["no-such-program"])).exit_code == 127
        assert (await sandbox.run("echo $MINE", env={"MINE": "é"})).output == "é\n"
        assert (await sandbox.run("echo [$MINE] $HOME $PWD")).output.startswith("[] ")
        await sandbox.write("a/b", b"c\xff")
        assert await sandbox.read("a/b") == b"c\xff"
        assert sandbox_process(workspace) == first

    run_in_workspace(cache, work, kind=kind)


def test_all_that_a_command_leaves_behind_is_dead_before_the_next_begins(cache: Path) -> None:
    async def work(workspace: Workspace) -> None:
        sandbox = workspace.sandbox
        first = sandbox_process(workspace)
        leave = "setsid sleep 98765 & (trap '' TERM HUP INT; sleep 98765 &) ; nohup sleep 98765 &"
        loop = "(while :; do setsid sh -c 'sleep 98765 & sleep 98765' & sleep 0.01; done) &"
        for command in (leave, f"{loop} sleep 0.1;"):
            assert (await sandbox.run(f"{command} true")).exit_code == 0
            assert "98765" not in (await sandbox.run(LIST_PROCESSES)).output
        assert sandbox_process(workspace) == first

    run_in_workspace(cache, work)


def test_no_signal_of_a_command_reaches_the_first_process(cache: Path) -> None:
    async def work(workspace: Workspace) -> None:
        first = sandbox_process(workspace)
        signals = "for s in $(seq 1 64); do kill -$s 1 2>/dev/null; done; exit 5"
        assert (await workspace.sandbox.run(signals)).exit_code == 5
        assert (await workspace.sandbox.run("exit 6")).exit_code == 6
        assert sandbox_process(workspace) == first

    run_in_workspace(cache, work)


ATTACKS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
got = []
if libc.ptrace(16, 1, 0, 0) == 0 or libc.ptrace(0x4206, 1, 0, 0) == 0:
    got.append("ptrace")
pidfd = libc.syscall(434, 1, 0)
got += [f"pidfd_getfd {n}" for n in range(64) if pidfd >= 0 and libc.syscall(438, pidfd, n, 0) >= 0]
for name in ["mem", "environ", "maps", *(f"fd/{n}" for n in range(64)), "root/etc", "cwd/etc"]:
    try:
        os.close(os.open(f"/proc/1/{name}", os.O_RDONLY))
        got.append(name)
    except OSError:
        pass
os.closerange(3, 4)
for number in range(3, 256):
    try:
        os.write(number, b'{"exit-code": 0}')
        got.append(f"wrote to {number}")
    except OSError:
        pass
print('{"exit-code": 0}')
print(got)
sys.exit(9)
"""


def test_a_command_cannot_look_into_the_first_process_or_speak_for_it(cache: Path) -> None:
    async def work(workspace: Workspace) -> None:
        await workspace.sandbox.write("attack.py", ATTACKS.encode())
        ended = await workspace.sandbox.run("python3 attack.py")
        assert ended.output.splitlines()[-1] == "[]"
        assert ended.exit_code == 9
        listed = await workspace.sandbox.run("ls /proc/self/fd | wc -l")
        assert int(listed.output) == 4  # its own standard streams, and the folder that is listed

    run_in_workspace(cache, work)


def test_shared_memory_ends_with_the_command_that_made_it(cache: Path) -> None:
    make = (
        'python3 -c "import ctypes; c = ctypes.CDLL(None); assert c.shmget(7, 1 << 12, 0o1600) > -1'
        "; open('/dev/shm/left', 'w').write('x')\""
    )

    async def work(workspace: Workspace) -> None:
        made = await workspace.sandbox.run(make)
        assert made.exit_code == 0, made.output
        left = await workspace.sandbox.run("ls /dev/shm; tail -n +2 /proc/sysvipc/shm")
        assert left.output == ""

    run_in_workspace(cache, work)


@pytest.mark.parametrize(
    ("command", "stopped"),
    [
        ("sleep 98764", "out of time"),
        ("for i in $(seq 200); do sleep 98764 & done; wait", "too many processes"),
        ("kill -STOP $$", "out of time"),
    ],
)
def test_a_command_that_is_stopped_takes_its_sandbox_along(
    cache: Path, command: str, stopped: str
) -> None:
    async def work(workspace: Workspace) -> None:
        first = sandbox_process(workspace)
        seconds = 2.0 if stopped == "out of time" else 60.0
        ended: ProcessResult = await workspace.sandbox.run(command, seconds=seconds)
        assert ended.stopped == stopped
        assert ended.exit_code is None
        assert has_ended(first)
        assert "98764" not in (await workspace.sandbox.run(LIST_PROCESSES)).output
        assert sandbox_process(workspace) != first

    run_in_workspace(cache, work)


def test_a_command_that_closes_its_folder_does_not_stop_the_next_one(cache: Path) -> None:
    async def work(workspace: Workspace) -> None:
        assert (await workspace.sandbox.run("chmod 000 .")).exit_code == 0
        assert (await workspace.sandbox.run("echo here")).output == "here\n"

    run_in_workspace(cache, work)


def test_commands_at_once_get_a_sandbox_each_or_wait(cache: Path) -> None:
    async def work(workspace: Workspace) -> None:
        outputs: list[str] = []

        async def run_one(number: int) -> None:
            outputs.append((await workspace.sandbox.run(f"sleep 0.1; echo {number}")).output)

        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(run_one, number)
        assert sorted(outputs) == ["0\n", "1\n", "2\n"]

    run_in_workspace(cache, work)


def test_a_change_is_read_while_a_sandbox_stands(cache: Path, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    git(repo, "init", "-q")
    (repo / "file").write_text("one\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "x")

    async def work(workspace: Workspace) -> None:
        for word in ("two", "three"):
            assert (await workspace.sandbox.run(f"echo {word} > file")).exit_code == 0
            assert f"+{word}\n" in await workspace.read_diff()

    run_in_workspace(cache, work, repo=repo)


def test_a_cancelled_command_leaves_nothing_alive(cache: Path) -> None:
    async def work(workspace: Workspace) -> None:
        first = sandbox_process(workspace)
        with anyio.move_on_after(0.5):
            await workspace.sandbox.run("sleep 98763")
        assert has_ended(first)
        assert (await workspace.sandbox.run("echo on")).output == "on\n"

    run_in_workspace(cache, work)


def test_the_sandbox_ends_with_its_workspace(cache: Path) -> None:
    pids = []

    async def work(workspace: Workspace) -> None:
        pids.append(sandbox_process(workspace))

    run_in_workspace(cache, work)
    before = count_descriptors()
    run_in_workspace(cache, work)
    assert has_ended(pids[0])
    assert has_ended(pids[1])
    assert count_descriptors() == before


def test_the_kinds_of_sandbox_are_recorded_that_commands_ran_in(cache: Path) -> None:
    async def work(workspace: Workspace) -> None:
        assert workspace.sandbox.describe().startswith("landlock (files, network")
        workspace.sandbox.standing = None
        await workspace.sandbox.run("true")
        kind = workspace.sandbox.sandbox.sandbox_limits.kind
        kinds = "landlock" if kind == "landlock" else "bwrap and landlock"
        assert workspace.sandbox.describe().startswith(f"{kinds} (files, network")

    run_in_workspace(cache, work)


def test_graders_and_others_get_a_sandbox_for_each_command(cache: Path) -> None:
    async def main() -> None:
        async with (
            WorkspacePool(cache, SandboxSettings()) as pool,
            pool.open(None, LIMITS) as workspace,
        ):
            assert workspace.sandbox.standing is None

    anyio.run(main)


@pytest.mark.parametrize("limit", ["NOFILE", "FSIZE", "CPU", "AS"])
def test_no_command_sets_the_limits_of_those_after_it(cache: Path, limit: str) -> None:
    attack = f"import resource as r; r.prlimit(1, r.RLIMIT_{limit}, (0, 0))"

    async def work(workspace: Workspace) -> None:
        sandbox = workspace.sandbox
        assert (await sandbox.run(["python3", "-c", attack])).exit_code == 1
        assert (await sandbox.run("echo ran > f && cat f; exit 7")).exit_code == 7

    run_in_workspace(cache, work)


def test_a_command_that_asks_to_be_traced_is_let_go_on(cache: Path) -> None:
    attack = (
        "import ctypes, os, signal\n"
        "ctypes.CDLL(None).ptrace(0, 0, 0, 0)\n"
        "os.kill(os.getpid(), signal.SIGCHLD)\n"
        "print('went on')\n"
    )

    async def work(workspace: Workspace) -> None:
        sandbox = workspace.sandbox
        first = sandbox_process(workspace)
        done = await sandbox.run(["python3", "-c", attack])
        assert done.exit_code is not None
        assert (await sandbox.run("exit 7")).exit_code == 7
        assert sandbox_process(workspace) == first

    run_in_workspace(cache, work)


def test_a_port_is_free_again_for_the_next_command(cache: Path) -> None:
    serve = (
        "import socket\n"
        "s = socket.socket(); s.bind(('127.0.0.1', 8000)); s.listen()\n"
        "c = socket.create_connection(('127.0.0.1', 8000)); a, _ = s.accept()\n"
        "a.close(); c.recv(1); c.close(); print('served')\n"
    )

    async def work(workspace: Workspace) -> None:
        for _ in range(2):
            done = await workspace.sandbox.run(["python3", "-c", serve])
            assert (done.exit_code, done.output) == (0, "served\n")

    run_in_workspace(cache, work)


def list_servers() -> list[int]:
    children = list_children(os.getpid())
    return [pid for pid in children if b"launcher.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_sandboxes_are_started_again_when_the_process_that_starts_them_was_killed(
    cache: Path,
) -> None:
    async def work(workspace: Workspace) -> None:
        first = first_process(workspace)
        (server,) = list_servers()
        os.kill(server, signal.SIGKILL)
        # A killed sandbox accepts commands, which end with it, until the kernel has removed it.
        assert until(lambda: first.has_ended)
        for _ in range(2):
            assert (await workspace.sandbox.run("echo on")).output == "on\n"
        assert list_servers() != [server]

    run_in_workspace(cache, work)
    run_in_workspace(cache, work)


KILLED_PROGRAM = """
import sys, anyio
from pathlib import Path
from closeloop.records.settings import SandboxSettings
from closeloop.records.task import Limits
from closeloop.sandbox.workspaces import WorkspacePool

async def main():
    async with WorkspacePool(Path(sys.argv[1]), SandboxSettings()) as pool:
        async with pool.open(None, Limits(), standing=True) as workspace:
            await workspace.sandbox.run("true")
            print(workspace.sandbox.standing.process.pid, flush=True)
            await workspace.sandbox.run("sleep 98762")

anyio.run(main)
"""


def test_a_killed_closeloop_leaves_no_standing_sandbox(cache: Path) -> None:
    async def work(workspace: Workspace) -> None:
        assert not has_ended(sandbox_process(workspace))

    run_in_workspace(cache, work)  # or skip
    command = [sys.executable, "-c", KILLED_PROGRAM, str(cache)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        first = int(program.stdout.readline())
        program.kill()
    assert until(lambda: has_ended(first))
