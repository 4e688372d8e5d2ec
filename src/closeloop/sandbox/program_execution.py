"""Run one program to its end, within limits, and leave nothing of it alive."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Literal, Protocol

import anyio

from closeloop.records.record import Record
from closeloop.sandbox import process_tree
from closeloop.sandbox.process_tree import (
    TOO_MANY_FILES,
    TOO_MUCH_DISK,
    CommandOutput,
    DiskLimit,
    start_without_keyring,
)

PIPE_BYTES = 1 << 18
KILL_SECONDS = 5.0
"""Seconds to wait for killed processes to be gone."""
ROOT_PIDS: set[int] = set()
"""The first processes of all running programs, which are nobody's orphans."""


class CpuTally:
    """Processor time of programs that have ended."""

    seconds: float = 0.0
    ran: float = 0.0
    waited: float = 0.0
    """Of what was alive when a limit stopped it: for how long threads ran, and waited to run."""


ALL_PROGRAMS = CpuTally()
CURRENT_TALLY: ContextVar[CpuTally | None] = ContextVar("TALLY", default=None)
"""Who counts the programs that are run here."""
FIRST_LOOK_SECONDS, LAST_LOOK_SECONDS = 0.02, 0.1
"""How long the watcher sleeps between looks, at first and later."""


class Channels(Record):
    """Descriptors that a program inherits besides the standard ones."""

    status: int
    """Where a sandbox reports how its command ended."""
    seccomp: int | None = None
    """Where it reads the filter of system calls."""


class Program(Record):
    """What to start, and what its tree of processes is like."""

    argv: Callable[[Channels], Sequence[str]]
    env: dict[str, str]
    directory: str
    tree: Literal["namespace", "adopted", "plain"] = "plain"
    """A cage's first process ends after all others. Its child is the first one of a process
    namespace, or it adopts orphans itself. Without a cage there may be more to kill."""
    mark: str | None = None
    """Without a cage: a text in the environment of all that belongs to this command."""
    seccomp: bytes = b""
    """The filter of system calls; empty where there is none."""


class ProgramLimits(Record):
    """What one program may use."""

    seconds: float
    idle_seconds: float
    processes: int
    memory_bytes: int
    output_bytes: int


class ProgramResult(Record):
    """What became of it."""

    exit_code: int | None
    output: CommandOutput
    errors: CommandOutput
    """The same as `output` unless they were asked for apart."""
    told: bytes
    """What the cage said about the end of the command."""
    seconds: float
    stopped: str | None


class Watcher(Protocol):
    """Somebody who knows more than limits about when a program should end."""

    def receive_output(self, chunk: bytes) -> None:
        """What it prints, as it comes."""
        ...

    async def wait_until_over(self) -> str:
        """Wait until it is to be stopped, and say why."""
        ...


async def execute_program(
    program: Program,
    bounds: ProgramLimits,
    *,
    stdin: bytes | None = None,
    disk: DiskLimit | None = None,
    apart: bool = False,
    watcher: Watcher | None = None,
) -> ProgramResult:
    """Run to the end or to a limit; OSError when it cannot be started."""
    running = _RunningProgram(program, bounds, stdin, apart)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(running.collect_output, watcher)
            group.start_soon(running.watch_limits, disk)
            if watcher is not None:
                group.start_soon(running.heed_watcher, watcher)
            if running.is_feeding:
                group.start_soon(running.feed_input)
            await running.wait_for_exit()
            running.count_cpu()
            await running.kill_orphans()
            with anyio.move_on_after(2):
                await running.drained.wait()
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await running.kill_tree()
        running.close_descriptors()
    if disk is not None and running.stopped in (TOO_MUCH_DISK, TOO_MANY_FILES):
        # What it wrote until it was dead is no growth of the next one, which may clean up.
        await anyio.to_thread.run_sync(disk.find_exceeded_limit)
    return running.build_result()


class _RunningProgram:
    """One running program: pipes, a pidfd, and what is known so far."""

    def __init__(
        self, program: Program, bounds: ProgramLimits, stdin: bytes | None, apart: bool
    ) -> None:
        self.program = program
        self.bounds = bounds
        self.drained = anyio.Event()
        self.stopped: str | None = None
        self.output = CommandOutput(bounds.output_bytes)
        self.errors = CommandOutput(bounds.output_bytes) if apart else self.output
        self.started = self.heard = time.monotonic()
        self._counted = False
        self._told = b""
        self._killed: set[int] = set()
        self._sink: int | None = None
        self._descriptors: set[int] = set()
        try:
            self._start_process(stdin)
        except BaseException:
            if hasattr(self, "process"):
                self.process.kill()
                self.process.wait()
            self.close_descriptors()
            raise

    def _start_process(self, stdin: bytes | None) -> None:
        out, out_end = self._open_pipe()
        with suppress(OSError):  # bigger is only faster, and a user's share is limited
            fcntl.fcntl(out_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        err, err_end = self._open_pipe() if self.errors is not self.output else (None, out_end)
        self._status, status_end = self._open_pipe()
        source = subprocess.DEVNULL
        if stdin is not None:
            source, self._sink = self._open_pipe()
        self.sources = {out: self.output} | ({err: self.errors} if err is not None else {})
        channels = Channels(
            status=status_end, seccomp=self._open_content_pipe(self.program.seccomp)
        )
        inherited = {status_end} | ({channels.seccomp} if channels.seccomp is not None else set())

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                self.program.argv(channels),  # names the thread that starts it
                stdin=source,
                stdout=out_end,
                stderr=err_end,
                cwd=self.program.directory,
                env=self.program.env,
                pass_fds=inherited,
                start_new_session=True,
            )

        # The parent whose death a sandbox watches is a thread, so it must be one that stays.
        self.process = start() if self.program.tree == "plain" else start_without_keyring(start)
        ROOT_PIDS.add(self.process.pid)
        self._close_some({out_end, err_end, source, *inherited} & self._descriptors)
        self._pidfd = self._keep_descriptor(os.pidfd_open(self.process.pid))
        self._rest = memoryview(stdin or b"")
        if self._sink is not None:
            os.set_blocking(self._sink, False)
            self._push_input()

    def _open_content_pipe(self, content: bytes) -> int | None:
        """A descriptor from which the program reads some bytes, fewer than a pipe holds."""
        if not content:
            return None
        read, write = self._open_pipe()
        os.write(write, content)
        self._close_some({write})
        return read

    @property
    def is_feeding(self) -> bool:
        return self._sink is not None

    async def wait_for_exit(self) -> None:
        await anyio.wait_readable(self._pidfd)

    async def collect_output(self, watcher: Watcher | None) -> None:
        async with anyio.create_task_group() as group:
            for source, output in self.sources.items():
                group.start_soon(self._collect_source, source, output, watcher)
        self.drained.set()

    async def _collect_source(
        self, source: int, output: CommandOutput, watcher: Watcher | None
    ) -> None:
        os.set_blocking(source, False)
        while True:
            await anyio.wait_readable(source)
            with suppress(BlockingIOError):
                chunk = os.read(source, PIPE_BYTES)
                if not chunk:
                    return
                output.add_chunk(chunk)
                self.heard = time.monotonic()
                if watcher is not None:
                    watcher.receive_output(chunk)

    async def heed_watcher(self, watcher: Watcher) -> None:
        why = await watcher.wait_until_over()
        self.stopped = self.stopped or why
        await self.kill_tree()

    async def feed_input(self) -> None:
        while self._sink is not None:
            await anyio.wait_writable(self._sink)
            self._push_input()

    def _push_input(self) -> None:
        """Write what fits; close the pipe when all is written or nobody reads."""
        assert self._sink is not None
        try:
            while self._rest:
                self._rest = self._rest[os.write(self._sink, self._rest) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            pass
        self._close_some({self._sink})
        self._sink = None

    def count_cpu(self) -> None:
        """Add its processor time to the tallies: before it is killed, or as its parent knows it."""
        if self._counted:
            return
        self._counted = True
        pids = self._list_pids() if self.stopped else [self.process.pid]
        seconds, (ran, waited) = process_tree.cpu_seconds(pids), process_tree.measure_queueing(pids)
        for tally in (ALL_PROGRAMS, CURRENT_TALLY.get()):
            if tally is not None:
                tally.seconds += seconds
                tally.ran += ran if self.stopped else 0.0
                tally.waited += waited if self.stopped else 0.0

    async def watch_limits(self, disk: DiskLimit | None) -> None:
        """Look at the clock and at the tree of processes; stop it at the first limit."""
        pause = FIRST_LOOK_SECONDS
        while self.stopped is None:
            left = (
                min(self.started + self.bounds.seconds, self.heard + self.bounds.idle_seconds)
                - time.monotonic()
            )
            await anyio.sleep(max(min(pause, left), 0.001))
            looked_at = time.monotonic()
            self.stopped = self.stopped or self._find_passed_limit()
            if not self.stopped and disk is not None and disk.is_due():
                exceeded = await anyio.to_thread.run_sync(
                    disk.find_exceeded_limit, abandon_on_cancel=True
                )
                self.stopped = self.stopped or exceeded
            # With many cages at once the looks themselves must stay cheap.
            pause = max(
                min(pause * 1.5, LAST_LOOK_SECONDS), min(20 * (time.monotonic() - looked_at), 0.5)
            )
        self.count_cpu()
        await self.kill_tree()

    def _find_passed_limit(self) -> str | None:
        now = time.monotonic()
        if now - self.started >= self.bounds.seconds:
            return "out of time"
        if now - self.heard >= self.bounds.idle_seconds:
            return "idle"
        pids = self._list_pids()
        if len(pids) > self.bounds.processes:
            return "too many processes"
        max_bytes = self.bounds.memory_bytes
        if (
            process_tree.resident_bytes(pids) > max_bytes
            and process_tree.proportional_bytes(pids) > max_bytes
        ):
            return "too much memory"
        return None

    def _list_pids(self) -> list[int]:
        """All processes of the command, also those whose parents are gone."""
        max_pids = self.bounds.processes
        pids = [self.process.pid, *process_tree.list_descendants(self.process.pid, most=max_pids)]
        orphans = self._list_orphans()
        return [*pids, *orphans, *process_tree.list_descendants(*orphans, most=max_pids)]

    def _list_orphans(self) -> list[int]:
        """Without a cage: what the command left to us, by its session or its mark."""
        mark, root = self.program.mark, self.process.pid
        if mark is None:
            return []
        others = set(process_tree.list_adopted_pids()) - ROOT_PIDS
        ours = {
            pid
            for pid in others
            if pid in self._killed or process_tree.belongs_to_session(pid, root, mark)
        }
        return [pid for pid in ours if not process_tree.reap_child(pid)]

    async def kill_orphans(self) -> None:
        """Kill what the command left behind; a cage leaves nothing."""
        end = time.monotonic() + KILL_SECONDS
        while (left := self._list_orphans()) and time.monotonic() < end:
            self._killed.update(left)
            process_tree.kill_processes([*left, *process_tree.list_descendants(*left)])
            await anyio.sleep(0.002)

    async def kill_tree(self) -> None:
        """Kill the whole tree and wait until it is gone."""
        end = time.monotonic() + KILL_SECONDS
        while self.process.poll() is None:
            below = process_tree.list_descendants(self.process.pid)
            late = time.monotonic() > end
            if self.program.tree == "namespace" and below:
                await self._kill_namespace(below[0])
            elif self.program.tree == "plain" or late:
                self.process.kill()
            process_tree.kill_processes(below)
            await anyio.sleep(0.002)
        ROOT_PIDS.discard(self.process.pid)
        await self.kill_orphans()

    async def _kill_namespace(self, first: int) -> None:
        """Kill a namespace by its first process, which the kernel lets go last."""
        try:
            handle = os.pidfd_open(first)
        except OSError:
            return
        try:
            self.process.kill()
            process_tree.kill_processes([first])
            with anyio.move_on_after(KILL_SECONDS):
                await anyio.wait_readable(handle)
        finally:
            os.close(handle)
        process_tree.reap_child(first)

    def build_result(self) -> ProgramResult:
        code = self.process.returncode
        return ProgramResult(
            exit_code=None if self.stopped else (128 - code if code < 0 else code),
            output=self.output,
            errors=self.errors,
            told=self._told,
            seconds=time.monotonic() - self.started,
            stopped=self.stopped,
        )

    def close_descriptors(self) -> None:
        if hasattr(self, "process"):
            os.set_blocking(self._status, False)
            with suppress(BlockingIOError):
                self._told = os.read(self._status, 1 << 12)
        self._close_some(set(self._descriptors))

    def _open_pipe(self) -> tuple[int, int]:
        read, write = os.pipe()
        return self._keep_descriptor(read), self._keep_descriptor(write)

    def _keep_descriptor(self, descriptor: int) -> int:
        self._descriptors.add(descriptor)
        return descriptor

    def _close_some(self, descriptors: set[int]) -> None:
        for descriptor in descriptors:
            os.close(descriptor)
        self._descriptors -= descriptors
