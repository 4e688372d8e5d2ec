"""How many test suites and setups run at once on this machine, however many agents work.

There are slots: some for each processor, and more while processors are idle. A suite takes all
those of a processor, or fewer where it is known to wait most of its time. A slot is a lock on a
file that all closeloop processes of a user on a machine share; one that is killed lets go of it.
Waiting for slots is not part of a suite's time; when other processes make it long, it is reported.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from math import ceil
from pathlib import Path
from typing import TypeVar

import anyio
from anyio.lowlevel import RunVar

from closeloop.sandbox import program_execution
from closeloop.sandbox.program_execution import ALL_PROGRAMS, CURRENT_TALLY, CpuTally

SLOTS_PER_CORE = 32
"""Slots of a suite about which nothing is known."""
IDLE_FACTOR = 4
"""Maximum multiple of the slots while processors are idle."""
MEASURED_IDLE_SHARE = 0.25
"""Share of the time a processor must have been idle for a suite's measurement to count."""
IDLE_SECONDS = 1.0
"""Seconds a processor must have been idle before one more suite than processors starts."""
SPARE_SHARE = 0.15
"""With a smaller unused share of the processors, a suite may have had too little."""
MIN_OTHERS_SHARE = 0.25
"""Share that must have gone to others: what a suite takes from itself is its own fault."""
WAIT_SHARE = 0.2
"""A suite that waited for a processor for a smaller share of its time was not slowed down."""
MAX_OWN_SHARE = 0.8
"""A suite that had this share of the processors was not slowed down either."""
STAT_FILE = Path("/proc/stat")
ALONE_TIMEOUT_FACTOR = 3
"""Factor of the time limit for a suite that is run again alone."""
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.01, 0.2
FIRST_REPORT_SECONDS, REPORT_SECONDS = 3.0, 60.0
"""When a wait is reported first, and how often again."""
OVERSUBSCRIBED_MESSAGE = (
    "The machine was overloaded until the time limit, and again when nothing else was "
    "tested: run fewer processes at the same time, or raise the timeout."
)
Result = TypeVar("Result")


class Admission:
    """A suite's permission to run, and what the machine had left for it."""

    def __init__(self, alone: bool) -> None:
        self.own = CpuTally()
        self._alone = alone
        self._began = time.monotonic()
        self._before = _CpuUsage()

    def measure_cpu_share(self) -> float | None:
        """Return how much of a processor the suite used; None if it may have needed more."""
        wall_seconds = time.monotonic() - self._began
        idle = _read_stat()[0] - self._before.idle
        if wall_seconds <= 0 or idle < MEASURED_IDLE_SHARE * wall_seconds:
            return None
        return self.own.seconds / wall_seconds

    def was_oversubscribed(self) -> bool:
        """Whether the machine had nothing left, and the suite got less than it may have needed.

        Alone, it has more time, and needs no more than a processor for itself would have given it
        in the time that it has otherwise: one that loops for ever gets that.
        """
        wall_seconds, own_usage, current = time.monotonic() - self._began, self.own, _CpuUsage()
        available_seconds, used_seconds = (
            count_cores() * wall_seconds,
            current.seconds_since(self._before),
        )
        idle = (current.idle - self._before.idle) / (os.cpu_count() or 1)
        is_full = (
            idle < SPARE_SHARE * wall_seconds
            or used_seconds > (1 - SPARE_SHARE) * available_seconds
        )
        by_others = used_seconds - own_usage.seconds > MIN_OTHERS_SHARE * available_seconds
        # How long processes that have ended had waited is unknown.
        waited = (
            own_usage.waited > WAIT_SHARE * wall_seconds or own_usage.ran < own_usage.seconds / 2
        )
        enough_seconds = MAX_OWN_SHARE * (
            wall_seconds / ALONE_TIMEOUT_FACTOR if self._alone else available_seconds
        )
        return is_full and by_others and waited and own_usage.seconds < enough_seconds


_ADMITTED: ContextVar[Admission | None] = ContextVar("_ADMITTED", default=None)
_QUEUE: RunVar[anyio.Lock] = RunVar("_QUEUE")
_REPORT_WAIT: ContextVar[Callable[[int], None] | None] = ContextVar("_REPORT_WAIT", default=None)
_ADMISSION_NUMBERS = itertools.count()
_CPU_SHARES: dict[str, float] = {}
"""Share of a processor used in the last run, by suite."""


@contextmanager
def report_waiting(report: Callable[[int], None]) -> Iterator[None]:
    """Report suites of other processes that one of ours waits for: their number; 0 at the end."""
    token = _REPORT_WAIT.set(report)
    try:
        yield
    finally:
        _REPORT_WAIT.reset(token)


@asynccontextmanager
async def admit_suite(*, alone: bool = False, suite: str | None = None) -> AsyncIterator[Admission]:
    """Wait until the machine has room for a test suite or a setup, or is free of all others.

    A suite that has a name is known by its earlier runs. Inside another admission there is nothing
    to wait for.
    """
    if (outer := _ADMITTED.get()) is not None:
        yield outer
        return
    lock_descriptors: list[int] = []
    try:
        # One of this process waits for locks, the others for their turn: so processes that test
        # much leave room for those that test little.
        async with _process_queue():
            with _WaitReporter() as reporter:
                if alone:
                    await _take_all(lock_descriptors, reporter)
                else:
                    await _take_some(lock_descriptors, _count_needed_slots(suite), reporter)
        admission = Admission(alone)
        admission_token, tally_token = _ADMITTED.set(admission), CURRENT_TALLY.set(admission.own)
        try:
            yield admission
        finally:
            _ADMITTED.reset(admission_token)
            CURRENT_TALLY.reset(tally_token)
            if suite is not None and (share := admission.measure_cpu_share()) is not None:
                _CPU_SHARES[suite] = share
    finally:
        for descriptor in lock_descriptors:
            os.close(descriptor)


async def run_suite(
    run: Callable[[int], Awaitable[Result]],
    is_stopped: Callable[[Result], bool],
    suite: str | None = None,
) -> tuple[Result, bool]:
    """Run a suite when there is room for it, with so many times its time.

    Where the clock stopped it and the machine was oversubscribed, it is run once more, alone. Also
    returned is whether the machine still was: then the result says nothing about the change.
    """
    for clock in (1, ALONE_TIMEOUT_FACTOR):
        async with admit_suite(alone=clock > 1, suite=suite) as admission:
            result = await run(clock)
            if not is_stopped(result) or not admission.was_oversubscribed():
                return result, False
    return result, True


def count_cores() -> float:
    """Return the number of processors that this process may use."""
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text("ascii").split()
        return min(cores, max(int(quota) / int(period), 0.1))
    return cores


class _CpuUsage:
    """Processor time so far: idle, of each foreign process, of this one with all its programs.

    What a suite hides from its parents counts as neither, so it cannot pass for others' work.
    """

    def __init__(self) -> None:
        cpu_by_process = program_execution.measure_all_cpu()
        own_pids = {os.getpid(), *program_execution.list_descendants(os.getpid())}
        self._foreign = {key: cpu for key, cpu in cpu_by_process.items() if key[0] not in own_pids}
        self.idle, stolen = _read_stat()
        programs = ALL_PROGRAMS.seconds + program_execution.cpu_seconds(own_pids - {os.getpid()})
        self._ours = program_execution.own_cpu_seconds() + programs + stolen

    def seconds_since(self, earlier: _CpuUsage) -> float:
        """Return the seconds used between two measurements."""
        earlier_cpu = earlier._foreign
        foreign = sum(cpu - earlier_cpu.get(key, 0.0) for key, cpu in self._foreign.items())
        return foreign + self._ours - earlier._ours


class _IdleMeter:
    """The number of processors that were idle between two measurements far enough apart."""

    def __init__(self) -> None:
        self._at, self._idle = time.monotonic(), _read_stat()[0]

    def has_spare_core(self) -> bool:
        """Whether one was idle; after a yes, a new measurement is needed."""
        now, idle = time.monotonic(), _read_stat()[0]
        if now - self._at < IDLE_SECONDS:
            return False
        spare_cores = (idle - self._idle) / (now - self._at)
        self._at, self._idle = now, idle
        return spare_cores >= 1.0


class _WaitReporter:
    """Reports for how many suites of other processes one of ours waits, once that takes long."""

    def __init__(self) -> None:
        self.owner = f"{os.getpid()}-{next(_ADMISSION_NUMBERS)}"
        """Name of the waiting suite, written into its slots."""
        self._report, self._has_reported = _REPORT_WAIT.get(), False
        self._due = time.monotonic() + FIRST_REPORT_SECONDS

    def __enter__(self) -> _WaitReporter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._report is not None and self._has_reported:
            self._report(0)

    def check(self) -> None:
        """Report, if it is time to and others run."""
        if self._report is None or (now := time.monotonic()) < self._due:
            return
        self._due = now + REPORT_SECONDS
        if other_count := len(_list_foreign_owners(_slots_folder(tempfile.gettempdir()))):
            self._has_reported = True
            self._report(other_count)


def _list_foreign_owners(folder: Path) -> set[str]:
    """Return the suites of other processes that hold slots."""
    owners = set[str]()
    for path in folder.glob("slot-*"):
        if (descriptor := _lock_file(path)) is not None:
            os.close(descriptor)
        else:
            owners.add(path.read_text("ascii", "replace"))
    return {owner for owner in owners if owner.partition("-")[0] != str(os.getpid())}


def _read_stat() -> tuple[float, float]:
    """Return the machine's idle and stolen processor seconds."""
    fields = STAT_FILE.read_text("ascii").partition("\n")[0].split()
    return (int(fields[4]) + int(fields[5])) / program_execution.TICKS_PER_SECOND, int(
        fields[8]
    ) / program_execution.TICKS_PER_SECOND


def _process_queue() -> anyio.Lock:
    """The queue of this event loop, in order of the requests."""
    try:
        return _QUEUE.get()
    except LookupError:
        _QUEUE.set(anyio.Lock())
        return _QUEUE.get()


def _count_needed_slots(suite: str | None) -> int:
    share = 1.0 if suite is None else _CPU_SHARES.get(suite, 1.0)
    return max(1, min(ceil(share * SLOTS_PER_CORE), SLOTS_PER_CORE))


async def _take_some(locks: list[int], slot_count: int, reporter: _WaitReporter) -> None:
    """Take the gate first, so that nobody else takes free slots; then as many slots."""
    folder, cores, meter = _slots_folder(tempfile.gettempdir()), ceil(count_cores()), _IdleMeter()
    # Idle processors that we may not use do not count.
    shared = cores == os.cpu_count()
    gate = await _take_lock(folder / "gate", reporter)
    pause, taken_slots = FIRST_PAUSE_SECONDS, set[int]()
    try:
        while True:
            is_idle = shared and meter.has_spare_core()
            limit = cores * SLOTS_PER_CORE * (IDLE_FACTOR if is_idle else 1)
            for number in range(limit):
                if len(taken_slots) == slot_count:
                    return
                path = folder / f"slot-{number}"
                if number in taken_slots or (slot := _lock_file(path, reporter.owner)) is None:
                    continue
                taken_slots.add(number)
                locks.append(slot)
            if len(taken_slots) == slot_count:
                return
            reporter.check()
            await anyio.sleep(pause)
            pause = min(pause * 2, MAX_PAUSE_SECONDS)
    finally:
        os.close(gate)


async def _take_all(locks: list[int], reporter: _WaitReporter) -> None:
    """Take the gate first, so that nobody new starts; then every slot as it becomes free."""
    folder = _slots_folder(tempfile.gettempdir())
    count = (os.cpu_count() or 1) * SLOTS_PER_CORE * IDLE_FACTOR
    lock_paths = [
        folder / name for name in ("gate", *(f"slot-{number}" for number in range(count)))
    ]
    while lock_paths:
        locks.append(await _take_lock(lock_paths.pop(0), reporter))


async def _take_lock(path: Path, reporter: _WaitReporter) -> int:
    while True:
        if (descriptor := _lock_file(path, reporter.owner)) is not None:
            return descriptor
        reporter.check()
        await anyio.sleep(FIRST_PAUSE_SECONDS)


def _lock_file(path: Path, owner: str = "") -> int | None:
    """Lock a file and write the owner into it; None if somebody else holds the lock."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    if owner:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, owner.encode("ascii"), 0)
    return descriptor


@functools.cache
def _slots_folder(temporary: str) -> Path:
    """Shared by all of this user's processes; private to this process if that is impossible."""
    shared = Path(temporary, f"closeloop-{os.getuid()}")
    with suppress(OSError):
        shared.mkdir(mode=0o700, exist_ok=True)
        if not shared.is_symlink() and shared.stat().st_uid == os.getuid():
            (shared / "slots").mkdir(exist_ok=True)
            return shared / "slots"
    return Path(tempfile.mkdtemp(prefix="closeloop-slots-"))
