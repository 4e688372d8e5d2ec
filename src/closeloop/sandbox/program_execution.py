"""Runs one program to its end within limits, and leaves no process of it alive."""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import functools
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import anyio

from closeloop.records.record import Record

# The resources of a running program: its descendants, keyring, output, and disk use.


PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def list_children(pid: int) -> list[int]:
    """List the direct children of a process, whichever of its threads started them."""
    if not _lists_children():
        return [child for child, parent in _list_parents() if parent == pid]
    child_pids: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return child_pids
    for thread in threads:
        child_pids += map(int, _read_proc(f"/proc/{pid}/task/{thread}/children").split())
    return child_pids


def list_adopted_pids() -> list[int]:
    """List our own children including adopted orphans, which belong to the first thread."""
    pid = os.getpid()
    if not _lists_children():
        return list_children(pid)
    return list(map(int, _read_proc(f"/proc/{pid}/task/{pid}/children").split()))


def list_descendants(*pids: int, max_count: int | None = None) -> list[int]:
    """List every process below these, parents first, stopping soon after `max_count`."""
    descendants = [child for pid in pids for child in list_children(pid)]
    for parent in descendants:  # grows while it is walked
        if max_count is not None and len(descendants) > max_count:
            break
        descendants += list_children(parent)
    return descendants


def resident_bytes(pids: Iterable[int]) -> int:
    """Sum resident bytes; pages shared by processes count once for each."""
    total = 0
    for pid in pids:
        fields = _read_proc(f"/proc/{pid}/statm").split()
        total += int(fields[1]) * PAGE_BYTES if fields else 0
    return total


def proportional_bytes(pids: Iterable[int], in_files: int = 0) -> int:
    """Sum resident bytes with shared pages divided among their users: exact, but slow.

    The mapped part of files in memory is not counted twice.
    """
    total = mapped = 0
    for pid in pids:
        lines = _read_proc(f"/proc/{pid}/smaps_rollup").splitlines()
        parts = {line.split()[0]: int(line.split()[1]) << 10 for line in lines[1:]}
        total += parts[b"Pss:"] if b"Pss:" in parts else resident_bytes([pid])
        mapped += parts.get(b"Pss_Shmem:", 0)
    return total - min(mapped, in_files) + in_files


def memory_file_bytes(pids: Iterable[int]) -> int:
    """Return the bytes of open `memfd_create` files, mapped or not."""
    bytes_by_inode: dict[int, int] = {}
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        with suppress(OSError):
            for name in os.listdir(folder):  # noqa: PTH208
                with suppress(OSError):
                    if os.readlink(f"{folder}/{name}").startswith("/memfd:"):  # noqa: PTH115
                        status = os.stat(f"{folder}/{name}")  # noqa: PTH116
                        bytes_by_inode[status.st_ino] = status.st_blocks * 512
    return sum(bytes_by_inode.values())


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the processor time of these processes and of their ended children."""
    return sum(seconds for _, seconds in (_read_cpu(pid) for pid in pids))


def measure_all_cpu() -> dict[tuple[int, int], float]:
    """Return the same for every process, by its id and start time."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    cpu = ((pid, *_read_cpu(pid)) for pid in pids)
    return {(pid, start_time): seconds for pid, start_time, seconds in cpu}


def measure_queueing(pids: Iterable[int]) -> tuple[float, float]:
    """Return how long the threads of these processes ran, and waited for a processor."""
    ran_ns = waited_ns = 0
    for pid in pids:
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
                fields = _read_proc(f"/proc/{pid}/task/{thread}/schedstat").split()
                ran_ns += int(fields[0]) if fields else 0
                waited_ns += int(fields[1]) if fields else 0
    return ran_ns / 1e9, waited_ns / 1e9


def own_cpu_seconds() -> float:
    """Return the processor time of this process alone."""
    times = os.times()
    return times.user + times.system


def _read_cpu(pid: int) -> tuple[int, float]:
    """Return a process's start time and processor time."""
    fields = _read_proc(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return (
        (int(fields[19]), sum(map(int, fields[11:15])) / TICKS_PER_SECOND) if fields else (0, 0.0)
    )


def kill_processes(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def belongs_to_session(pid: int, session: int, mark: str) -> bool:
    """Whether an orphan belongs to this session, or has this text in its environment."""
    fields = _read_proc(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if not fields or int(fields[3]) == session:
        return bool(fields)
    environment = _read_proc(f"/proc/{pid}/environ")
    if environment or fields[0] == b"Z":
        return mark.encode() in environment
    time.sleep(0.001)  # it is becoming another program, and has no environment for a moment
    return mark.encode() in _read_proc(f"/proc/{pid}/environ")


def reap_child(pid: int) -> bool:
    """Reap a child if it has ended."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False


def _read_proc(path: str) -> bytes:
    """Return an empty text for processes that are gone."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        parts = []
        while part := os.read(handle, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(handle)


@functools.cache
def _lists_children() -> bool:
    return Path("/proc/thread-self/children").exists()


def _list_parents() -> list[tuple[int, int]]:
    """List process and parent, for kernels that do not list children."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    except OSError:
        return []
    stats = ((pid, _read_proc(f"/proc/{pid}/stat").rpartition(b")")[2].split()) for pid in pids)
    return [(pid, int(fields[1])) for pid, fields in stats if len(fields) > 1]


# Start programs without the user's session keyring.
#
# A session keyring belongs to a thread, and programs inherit that of the thread that starts them.
# So sandboxed programs are started by a thread of their own, which joins a new one each time.

KEYCTL_NUMBERS = {"x86_64": 250, "aarch64": 219}
JOIN_SESSION_KEYRING = 1

Started = TypeVar("Started")


def start_without_keyring(start: Callable[[], Started]) -> Started:
    """Call `start` in the thread that has a new, empty session keyring.

    The thread lives as long as this process: it is the parent whose death sandboxes watch.
    """
    return _starter_thread(os.getpid()).submit(_join_and_start, start).result()


def _join_and_start(start: Callable[[], Started]) -> Started:
    """If the user's quota of keys is used up, the last start's keyring is reused."""
    if (number := KEYCTL_NUMBERS.get(os.uname().machine)) is not None:
        _load_libc().syscall(number, JOIN_SESSION_KEYRING, None)
    return start()


@functools.cache
def _load_libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@functools.cache
def _starter_thread(process: int) -> ThreadPoolExecutor:
    """One thread per process: a forked child has only its parent's first thread."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="starts")


# A command's output, stored in bounded memory: its head and its tail.


class CommandOutput:
    """Stores the first and the last half of the limit; the middle is only counted."""

    def __init__(self, limit: int) -> None:
        self._half = max(limit // 2, 1)
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._dropped = 0

    def add_chunk(self, chunk: bytes) -> None:
        free_bytes = self._half - len(self._head)
        if free_bytes > 0:
            self._head += chunk[:free_bytes]
            chunk = chunk[free_bytes:]
        if not chunk:
            return
        self._tail.append(chunk)
        self._tail_bytes += len(chunk)
        while self._tail_bytes - len(self._tail[0]) >= self._half:
            first = len(self._tail.popleft())
            self._tail_bytes -= first
            self._dropped += first

    @property
    def dropped_bytes(self) -> int:
        return self._dropped + max(self._tail_bytes - self._half, 0)

    @property
    def content(self) -> bytes:
        """All stored output, in order."""
        return bytes(self._head) + b"".join(self._tail)[-self._half :]

    @property
    def text(self) -> str:
        """The output as text, with a line in place of the missing middle."""
        tail = b"".join(self._tail)[-self._half :]
        gap_note = f"\n[{self.dropped_bytes} bytes left out]\n" if self.dropped_bytes else ""
        if not gap_note:
            return (bytes(self._head) + tail).decode("utf-8", "replace")
        return self._head.decode("utf-8", "replace") + gap_note + tail.decode("utf-8", "replace")


# How much a workspace has grown, measured only as often as is cheap.

PAUSE_FACTOR = 20
"""A measurement may take at most one part in this of the time."""
TOO_MUCH_DISK, TOO_MANY_FILES = "too much disk", "too many files"


class DiskUsage(Record):
    """The disk usage of some folders."""

    bytes: int = 0
    """Bytes on disk."""
    apparent_bytes: int = 0
    """Bytes that a reader of all files gets; more than on disk for sparse files."""
    files: int = 0
    """Files, links and folders."""


class DiskLimit:
    """Limits the disk usage of some folders while a workspace exists."""

    def __init__(self, folders: Sequence[str], max_usage: DiskUsage) -> None:
        self._folders = folders
        self._most = max_usage
        self._used = DiskUsage()
        self._next = 0.0

    def is_due(self) -> bool:
        return time.monotonic() >= self._next

    def find_exceeded_limit(self) -> str | None:
        """Return the exceeded limit if usage still grows: commands that clean up may continue."""
        start = time.monotonic()
        earlier_usage, self._used = self._used, measure_disk(*self._folders)
        end = time.monotonic()
        self._next = end + max(0.2, PAUSE_FACTOR * (end - start))
        if earlier_usage.bytes < self._used.bytes > self._most.bytes:
            return TOO_MUCH_DISK
        if earlier_usage.files < self._used.files > self._most.files:
            return TOO_MANY_FILES
        return None


def measure_disk(*folders: str) -> DiskUsage:
    """Measure the content of these folders, without the folders themselves."""
    disk_bytes, apparent, files = 0, 0, 0
    waiting = list(folders)
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    disk_bytes += status.st_blocks * 512
                    files += 1
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(entry.path)
                    elif stat.S_ISREG(status.st_mode):
                        apparent += status.st_size
        except OSError:
            continue  # it vanished, or we may not read it
    return DiskUsage(bytes=disk_bytes, apparent_bytes=apparent, files=files)


LAUNCHER_COMMAND = (sys.executable, "-I", "-S", str(Path(__file__).with_name("launcher.py")))
PIPE_BYTES = 1 << 18
KILL_SECONDS = 5.0
"""Seconds to wait until killed processes are gone."""
ROOT_PIDS: set[int] = set()
"""First processes of all running programs, which are not orphans."""


class CpuTally:
    """Processor time of ended programs."""

    seconds: float = 0.0
    ran: float = 0.0
    waited: float = 0.0
    """How long threads ran and waited to run, of what was alive when a limit stopped it."""


ALL_PROGRAMS = CpuTally()
CURRENT_TALLY: ContextVar[CpuTally | None] = ContextVar("TALLY", default=None)
"""The tally of programs that run in this context."""
FIRST_LOOK_SECONDS, LAST_LOOK_SECONDS = 0.02, 0.1
"""Seconds between the watcher's polls, at first and later."""


class Channels(Record):
    """Descriptors that a program inherits besides the standard ones."""

    status: int
    """Where a sandbox reports its command's end."""
    seccomp: int | None = None
    """Where it reads the filter of system calls."""


class Program(Record):
    """What to start, and the kind of its process tree."""

    argv: Callable[[Channels], Sequence[str]]
    env: dict[str, str]
    directory: str
    tree: Literal["namespace", "adopted", "plain"] = "plain"
    """A sandbox's first process ends after all others. Its child is the first one of a process
    namespace, or it adopts orphans itself. Without a sandbox there may be more to kill."""
    mark: str | None = None
    """Without a sandbox: a text in the environment of all processes of this command."""
    seccomp: bytes = b""
    """The filter of system calls; empty if there is none."""
    command: Sequence[str] = ()
    """What is run in the sandbox."""
    standing: StandingSandbox | None = None
    """Run it there, instead of in a new sandbox."""


class ProgramLimits(Record):
    """The limits of one program."""

    seconds: float
    idle_seconds: float
    processes: int
    memory_bytes: int
    output_bytes: int


class ProgramResult(Record):
    """The result of a program."""

    exit_code: int | None
    output: CommandOutput
    errors: CommandOutput
    """The same as `output` unless requested separately."""
    sandbox_report: bytes
    """The sandbox's report about the command's end."""
    seconds: float
    stopped: str | None


class Watcher(Protocol):
    """Decides by more than limits when a program should end."""

    def receive_output(self, chunk: bytes) -> None:
        """Receive its output as it arrives."""
        ...

    async def wait_until_over(self) -> str:
        """Wait until it should be stopped, and return why."""
        ...


async def execute_program(
    program: Program,
    bounds: ProgramLimits,
    *,
    stdin: bytes | None = None,
    disk: DiskLimit | None = None,
    separate_errors: bool = False,
    watcher: Watcher | None = None,
) -> ProgramResult:
    """Run to the end or to a limit; OSError if it cannot be started."""
    run_class = _RunningProgram if program.standing is None else _StandingCommand
    running = run_class(program, bounds, stdin, separate_errors)
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
        # What it wrote until its end is not growth of the next command, which may clean up.
        await anyio.to_thread.run_sync(disk.find_exceeded_limit)
    return running.build_result()


class _RunningProgram:
    """One running program: pipes, a pidfd, and the state so far."""

    def __init__(
        self, program: Program, bounds: ProgramLimits, stdin: bytes | None, separate_errors: bool
    ) -> None:
        self.program = program
        self.bounds = bounds
        self.drained = anyio.Event()
        self.stopped: str | None = None
        self.output = CommandOutput(bounds.output_bytes)
        self.errors = CommandOutput(bounds.output_bytes) if separate_errors else self.output
        self.started = self.heard = time.monotonic()
        self._counted = False
        self._sandbox_report = b""
        self._killed: set[int] = set()
        self._sink: int | None = None
        self._descriptors: set[int] = set()
        try:
            self._start_process(stdin)
        except BaseException:
            self._abandon_start()
            self.close_descriptors()
            raise

    def _abandon_start(self) -> None:
        if hasattr(self, "process"):
            self.process.kill()
            self.process.wait()

    def _start_process(self, stdin: bytes | None) -> None:
        out, out_end = self._open_pipe()
        with suppress(OSError):  # larger is only faster, and a user's quota is limited
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

        # The parent that a sandbox watches is a thread, so it must be one that stays alive.
        self.process = start() if self.program.tree == "plain" else start_without_keyring(start)
        self.root_pid = self.process.pid
        ROOT_PIDS.add(self.root_pid)
        self._close_some({out_end, err_end, source, *inherited} & self._descriptors)
        self._pidfd = self._keep_descriptor(os.pidfd_open(self.process.pid))
        self._rest = memoryview(stdin or b"")
        if self._sink is not None:
            os.set_blocking(self._sink, False)
            self._push_input()

    def _open_content_pipe(self, content: bytes) -> int | None:
        """Return a descriptor from which the program reads some bytes, fewer than a pipe holds."""
        if not content:
            return None
        read_end, write_end = self._open_pipe()
        os.write(write_end, content)
        self._close_some({write_end})
        return read_end

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
        stop_reason = await watcher.wait_until_over()
        self.stopped = self.stopped or stop_reason
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
        """Add its processor time to the tallies, before it is killed or from its parent."""
        if self._counted:
            return
        self._counted = True
        pids = self._list_pids() if self.stopped else [self.process.pid]
        self._add_to_tallies(cpu_seconds(pids), pids)

    def _add_to_tallies(self, seconds: float, pids: Sequence[int]) -> None:
        ran_seconds, waited_seconds = measure_queueing(pids) if self.stopped else (0.0, 0.0)
        for tally in (ALL_PROGRAMS, CURRENT_TALLY.get()):
            if tally is not None:
                tally.seconds += seconds
                tally.ran += ran_seconds
                tally.waited += waited_seconds

    async def watch_limits(self, disk: DiskLimit | None) -> None:
        """Watch the clock and the process tree; stop it at the first limit."""
        pause = FIRST_LOOK_SECONDS
        while self.stopped is None:
            seconds_left = (
                min(self.started + self.bounds.seconds, self.heard + self.bounds.idle_seconds)
                - time.monotonic()
            )
            await anyio.sleep(max(min(pause, seconds_left), 0.001))
            checked_at = time.monotonic()
            self.stopped = self.stopped or self._find_passed_limit()
            if not self.stopped and disk is not None and disk.is_due():
                exceeded = await anyio.to_thread.run_sync(
                    disk.find_exceeded_limit, abandon_on_cancel=True
                )
                self.stopped = self.stopped or exceeded
            # With many sandboxes at once, measuring itself must stay cheap.
            pause = max(
                min(pause * 1.5, LAST_LOOK_SECONDS), min(20 * (time.monotonic() - checked_at), 0.5)
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
        max_bytes, in_files = self.bounds.memory_bytes, memory_file_bytes(pids)
        resident = resident_bytes(pids) + in_files
        if resident > max_bytes and proportional_bytes(pids, in_files) > max_bytes:
            return "too much memory"
        return None

    def _list_pids(self) -> list[int]:
        """List all processes of the command, including those whose parents are gone."""
        max_pids = self.bounds.processes
        pids = [self.root_pid, *list_descendants(self.root_pid, max_count=max_pids)]
        orphans = self._list_orphans()
        return [*pids, *orphans, *list_descendants(*orphans, max_count=max_pids)]

    def _list_orphans(self) -> list[int]:
        """List the orphans of a command that ran without a sandbox, by session or mark."""
        mark, root = self.program.mark, self.root_pid
        if mark is None:
            return []
        adopted_pids = set(list_adopted_pids()) - ROOT_PIDS
        orphans = {
            pid
            for pid in adopted_pids
            if pid in self._killed or belongs_to_session(pid, root, mark)
        }
        return [pid for pid in orphans if not reap_child(pid)]

    async def kill_orphans(self) -> None:
        """Kill what the command left behind; a sandbox leaves nothing."""
        end = time.monotonic() + KILL_SECONDS
        while (orphans := self._list_orphans()) and time.monotonic() < end:
            self._killed.update(orphans)
            kill_processes([*orphans, *list_descendants(*orphans)])
            await anyio.sleep(0.002)

    async def kill_tree(self) -> None:
        """Kill the whole tree and wait until it is gone."""
        end = time.monotonic() + KILL_SECONDS
        while self.process.poll() is None:
            descendants = list_descendants(self.process.pid)
            is_late = time.monotonic() > end
            if self.program.tree == "namespace" and descendants:
                await self._kill_namespace(descendants[0])
            elif self.program.tree == "plain" or is_late:
                self.process.kill()
            kill_processes(descendants)
            await anyio.sleep(0.002)
        ROOT_PIDS.discard(self.process.pid)
        await self.kill_orphans()

    async def _kill_namespace(self, first_pid: int) -> None:
        """Kill a namespace by its first process, which the kernel lets go last."""
        try:
            handle = os.pidfd_open(first_pid)
        except OSError:
            return
        try:
            self.process.kill()
            kill_processes([first_pid])
            with anyio.move_on_after(KILL_SECONDS):
                await anyio.wait_readable(handle)
        finally:
            os.close(handle)
        reap_child(first_pid)

    def build_result(self) -> ProgramResult:
        code = self.process.returncode
        return ProgramResult(
            exit_code=None if self.stopped else (128 - code if code < 0 else code),
            output=self.output,
            errors=self.errors,
            sandbox_report=self._sandbox_report,
            seconds=time.monotonic() - self.started,
            stopped=self.stopped,
        )

    def close_descriptors(self) -> None:
        if hasattr(self, "process"):
            os.set_blocking(self._status, False)
            with suppress(BlockingIOError):
                self._sandbox_report = os.read(self._status, 1 << 12)
        self._close_some(set(self._descriptors))

    def _open_pipe(self) -> tuple[int, int]:
        read_end, write_end = os.pipe()
        return self._keep_descriptor(read_end), self._keep_descriptor(write_end)

    def _keep_descriptor(self, descriptor: int) -> int:
        self._descriptors.add(descriptor)
        return descriptor

    def _close_some(self, descriptors: set[int]) -> None:
        for descriptor in descriptors:
            os.close(descriptor)
        self._descriptors -= descriptors


# A sandbox for several commands: its first process is ours, and runs one at a time.


class FirstProcess:
    """The first process of a standing sandbox: not our child, so its end is seen by a handle."""

    def __init__(self, pid: int, handle: int) -> None:
        self.pid = pid
        self._handle = handle

    @property
    def has_ended(self) -> bool:
        return self._wait_for_end(0)

    def kill_and_wait(self) -> None:
        """Kill it with all processes of its namespace, and wait until they are gone."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        self._wait_for_end(KILL_SECONDS)
        os.close(self._handle)

    def _wait_for_end(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return bool(poll.poll(seconds * 1000))


class SandboxServer:
    """One interpreter that forks the first processes of all standing sandboxes of this process.

    They share its memory, and a sandbox starts without starting Python. It dies with the thread
    that starts it, and the sandboxes die with it.
    """

    def __init__(self) -> None:
        self._socket, inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with inner:
            self._process = subprocess.Popen(
                [*LAUNCHER_COMMAND, str(inner.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                pass_fds=[inner.fileno()],
                start_new_session=True,
            )
        ROOT_PIDS.add(self._process.pid)

    def start_sandbox(self, handles: Sequence[int]) -> FirstProcess:
        """Start one with these handles; ConnectionError if it cannot be started this way."""
        socket.send_fds(self._socket, [b"start"], handles)
        pid, process_handles, _, _ = socket.recv_fds(self._socket, 16, 1)
        if not process_handles:
            raise ConnectionError("The standing sandbox could not be started.")
        return FirstProcess(int(pid), process_handles[0])

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()
        ROOT_PIDS.discard(self._process.pid)


_sandbox_servers: dict[int, SandboxServer] = {}
"""By process: a forked one starts its own."""


def _start_standing_sandbox(handles: Sequence[int]) -> FirstProcess:
    """Ask the server, which is started for the first request, and again if it has ended."""
    pid = os.getpid()
    if pid in _sandbox_servers and _sandbox_servers[pid].has_ended:
        _sandbox_servers.pop(pid).close()
    if pid not in _sandbox_servers:
        _sandbox_servers[pid] = SandboxServer()
        atexit.unregister(_close_server)
        atexit.register(_close_server, pid)
    return _sandbox_servers[pid].start_sandbox(handles)


def _close_server(pid: int) -> None:
    if pid == os.getpid():
        _sandbox_servers.pop(pid).close()


class StandingSandbox:
    """A process namespace in which the commands of one workspace run one after the other.

    Created for the first command. A stopped command ends it, and the next one gets a new one.
    """

    def __init__(self, specify: Callable[[], str]) -> None:
        self._specify = specify
        self.is_busy = False
        self.process: FirstProcess | None = None
        self.control: socket.socket | None = None

    def send_order(self, program: Program, handles: Sequence[int]) -> int:
        """Send a command and its standard streams to the first process; return its id."""
        if self.process is None or self.control is None or self.process.has_ended:
            self._start(program)
        assert self.process is not None
        assert self.control is not None
        order = _open_content_file(json.dumps({"argv": list(program.command), "env": program.env}))
        try:
            socket.send_fds(self.control, [b"run"], [order, *handles])
        except OSError:
            self.close()
            raise
        finally:
            os.close(order)
        return self.process.pid

    def _start(self, program: Program) -> None:
        self.close()
        self.control, inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setblocking(False)
        handles = [_open_content_file(self._specify()), inner.detach()]
        try:
            if program.seccomp:
                handles.append(_open_content_file(program.seccomp))
            self.process = start_without_keyring(lambda: _start_standing_sandbox(handles))
        finally:
            for handle in handles:
                os.close(handle)

    @property
    def is_open(self) -> bool:
        return self.control is not None

    def close(self) -> None:
        """End it with everything in it; nobody may be waiting for its report."""
        self.kill_all()
        if self.control is not None:
            self.control.close()
            self.control = None

    def kill_all(self) -> None:
        """Kill it with everything in it, and wait until that is gone."""
        if self.process is not None:
            self.process.kill_and_wait()
            self.process = None


def _open_content_file(content: str | bytes) -> int:
    """Return a descriptor of a file in memory with some content, at its beginning."""
    handle = os.memfd_create("content")
    os.write(handle, content.encode() if isinstance(content, str) else content)
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


class _StandingCommand(_RunningProgram):
    """A command in a standing sandbox."""

    def __init__(
        self, program: Program, bounds: ProgramLimits, stdin: bytes | None, separate_errors: bool
    ) -> None:
        assert program.standing is not None
        self._standing = program.standing
        self._has_ended = False
        super().__init__(program, bounds, stdin, separate_errors)

    def _start_process(self, stdin: bytes | None) -> None:
        out, out_end = self._open_pipe()
        err, err_end = self._open_pipe() if self.errors is not self.output else (None, out_end)
        self.sources = {out: self.output} | ({err: self.errors} if err is not None else {})
        if stdin is None:
            source = self._keep_descriptor(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        else:
            source, self._sink = self._open_pipe()
        self.root_pid = self._standing.send_order(self.program, [source, out_end, err_end])
        self._cpu_before = cpu_seconds([self.root_pid])
        self._close_some({out_end, err_end, source})
        self._rest = memoryview(stdin or b"")
        if self._sink is not None:
            os.set_blocking(self._sink, False)
            self._push_input()

    def _abandon_start(self) -> None:
        self._standing.close()

    async def wait_for_exit(self) -> None:
        """Wait for the report of the first process, which has then killed all others."""
        control = self._standing.control
        assert control is not None
        while True:
            await anyio.wait_readable(control)
            try:
                self._sandbox_report = control.recv(1 << 12)
                self._has_ended = bool(self._sandbox_report)
                if not self._sandbox_report and not control.getsockopt(
                    socket.SOL_SOCKET, socket.SO_ERROR
                ):
                    # The command was accepted, and killed with its sandbox.
                    self._sandbox_report = b'{"exit-code": 137}'
            except BlockingIOError:
                continue
            except ConnectionError:  # the sandbox ended before it accepted the command
                self._sandbox_report = b'{"failed": "the sandbox ended"}'
            return

    def count_cpu(self) -> None:
        if not self._counted:
            self._counted = True
            pids = self._list_pids() if self.stopped else [self.root_pid]
            seconds = max(cpu_seconds(pids) - self._cpu_before, 0.0)
            self._add_to_tallies(seconds, pids)

    async def kill_tree(self) -> None:
        """Nothing is left of an ended command; a running one is killed with its sandbox."""
        if not self._has_ended:
            self._has_ended = True
            # The socket stays open: a reader that waits for the report sees its end.
            await anyio.to_thread.run_sync(self._standing.kill_all)

    def build_result(self) -> ProgramResult:
        return ProgramResult(
            exit_code=None,
            output=self.output,
            errors=self.errors,
            sandbox_report=self._sandbox_report,
            seconds=time.monotonic() - self.started,
            stopped=self.stopped,
        )

    def close_descriptors(self) -> None:
        self._close_some(set(self._descriptors))
