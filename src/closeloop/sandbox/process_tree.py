"""A process and all its descendants, as /proc shows them."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

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
