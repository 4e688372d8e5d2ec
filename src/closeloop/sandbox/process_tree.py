"""What belongs to a running program: its descendants, keyring, output, and the disk it fills."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from closeloop.records.record import Record

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def list_children(pid: int) -> list[int]:
    """The direct children of a process, whichever of its threads started them."""
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
    """Our own children, orphans among them: the kernel gives those to the first thread."""
    pid = os.getpid()
    if not _lists_children():
        return list_children(pid)
    return list(map(int, _read_proc(f"/proc/{pid}/task/{pid}/children").split()))


def list_descendants(*pids: int, most: int | None = None) -> list[int]:
    """Every process below these, parents before their children, or a few more than `most`."""
    below = [child for pid in pids for child in list_children(pid)]
    for parent in below:  # grows while it is walked
        if most is not None and len(below) > most:
            break
        below += list_children(parent)
    return below


def resident_bytes(pids: Iterable[int]) -> int:
    """Resident bytes, pages that processes share counted once for each."""
    total = 0
    for pid in pids:
        fields = _read_proc(f"/proc/{pid}/statm").split()
        total += int(fields[1]) * PAGE_BYTES if fields else 0
    return total


def proportional_bytes(pids: Iterable[int]) -> int:
    """Resident bytes, shared pages divided among their users: exact, but slow to read."""
    total = 0
    for pid in pids:
        lines = _read_proc(f"/proc/{pid}/smaps_rollup").splitlines()
        shares = [int(line.split()[1]) << 10 for line in lines if line.startswith(b"Pss:")]
        total += shares[0] if shares else resident_bytes([pid])
    return total


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time of these processes and of those children of theirs that have ended."""
    return sum(seconds for _, seconds in (_read_cpu(pid) for pid in pids))


def measure_all_cpu() -> dict[tuple[int, int], float]:
    """The same of every process that there is, by its id and when it began."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    cpu = ((pid, *_read_cpu(pid)) for pid in pids)
    return {(pid, began): seconds for pid, began, seconds in cpu}


def measure_queueing(pids: Iterable[int]) -> tuple[float, float]:
    """For how long the threads of these processes ran, and waited for a processor to run on."""
    ran = waited = 0
    for pid in pids:
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
                fields = _read_proc(f"/proc/{pid}/task/{thread}/schedstat").split()
                ran += int(fields[0]) if fields else 0
                waited += int(fields[1]) if fields else 0
    return ran / 1e9, waited / 1e9


def own_cpu_seconds() -> float:
    """Processor time of this process alone."""
    times = os.times()
    return times.user + times.system


def _read_cpu(pid: int) -> tuple[int, float]:
    """When a process began, and its processor time."""
    fields = _read_proc(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return (
        (int(fields[19]), sum(map(int, fields[11:15])) / TICKS_PER_SECOND) if fields else (0, 0.0)
    )


def kill_processes(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def belongs_to_session(pid: int, session: int, mark: str) -> bool:
    """Whether an orphan is of this session, or was started with this text in its environment."""
    fields = _read_proc(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if not fields or int(fields[3]) == session:
        return bool(fields)
    environment = _read_proc(f"/proc/{pid}/environ")
    if environment or fields[0] == b"Z":
        return mark.encode() in environment
    time.sleep(0.001)  # it is becoming another program, and has no environment for a moment
    return mark.encode() in _read_proc(f"/proc/{pid}/environ")


def reap_child(pid: int) -> bool:
    """Take note of the end of a child, if it has ended."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False


def _read_proc(path: str) -> bytes:
    """Processes come and go: what cannot be read any more is empty."""
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
    """Process and parent, for kernels that do not list children."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    except OSError:
        return []
    stats = ((pid, _read_proc(f"/proc/{pid}/stat").rpartition(b")")[2].split()) for pid in pids)
    return [(pid, int(fields[1])) for pid, fields in stats if len(fields) > 1]


# Starting programs without the user's session keyring.
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
    """Where the user's quota of keys is used up, the keyring of the last start serves again."""
    if (number := KEYCTL_NUMBERS.get(os.uname().machine)) is not None:
        _load_libc().syscall(number, JOIN_SESSION_KEYRING, None)
    return start()


@functools.cache
def _load_libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@functools.cache
def _starter_thread(process: int) -> ThreadPoolExecutor:
    """One for each process: a forked child has only its parent's first thread."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="starts")


# What a command prints, kept in bounded memory: its head and its tail.


class CommandOutput:
    """The first and the last half of the limit; the middle is only counted."""

    def __init__(self, limit: int) -> None:
        self._half = max(limit // 2, 1)
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._dropped = 0

    def add_chunk(self, chunk: bytes) -> None:
        room = self._half - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
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
        """Everything kept, as it came."""
        return bytes(self._head) + b"".join(self._tail)[-self._half :]

    @property
    def text(self) -> str:
        """For people: a line stands where the middle is missing."""
        tail = b"".join(self._tail)[-self._half :]
        gap = f"\n[{self.dropped_bytes} bytes left out]\n" if self.dropped_bytes else ""
        if not gap:
            return (bytes(self._head) + tail).decode("utf-8", "replace")
        return self._head.decode("utf-8", "replace") + gap + tail.decode("utf-8", "replace")


# How much a workspace has grown, measured no more often than is cheap.

PAUSE_FACTOR = 20
"""A measurement may take one part in this of the time."""
TOO_MUCH_DISK, TOO_MANY_FILES = "too much disk", "too many files"


class DiskUsage(Record):
    """What some folders hold."""

    bytes: int = 0
    """That they take on their disk."""
    apparent_bytes: int = 0
    """That a reader of all files gets: a sparse file has more of them than it takes."""
    files: int = 0
    """Files, links and folders."""


class DiskLimit:
    """The disk use of some folders against limits, for as long as a workspace lives."""

    def __init__(self, folders: Sequence[str], most: DiskUsage) -> None:
        self._folders = folders
        self._most = most
        self._used = DiskUsage()
        self._next = 0.0

    def is_due(self) -> bool:
        return time.monotonic() >= self._next

    def find_exceeded_limit(self) -> str | None:
        """The limit that is passed and still being passed: commands that clean up may go on."""
        start = time.monotonic()
        before, self._used = self._used, measure_disk(*self._folders)
        end = time.monotonic()
        self._next = end + max(0.2, PAUSE_FACTOR * (end - start))
        if before.bytes < self._used.bytes > self._most.bytes:
            return TOO_MUCH_DISK
        if before.files < self._used.files > self._most.files:
            return TOO_MANY_FILES
        return None


def measure_disk(*folders: str) -> DiskUsage:
    """What is in these folders, without themselves."""
    taken, apparent, files = 0, 0, 0
    waiting = list(folders)
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    taken += status.st_blocks * 512
                    files += 1
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(entry.path)
                    elif stat.S_ISREG(status.st_mode):
                        apparent += status.st_size
        except OSError:
            continue  # it went away, or is closed to us
    return DiskUsage(bytes=taken, apparent_bytes=apparent, files=files)
