"""Waiting and timing on a machine that may be slow, busy or paused."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

PATIENCE = 280.0
"""Seconds for what comes in a moment; they matter only to a test that fails."""
ROUNDS = 5
SCALES = (1, 5, 20)
"""Limits in which something must happen first are made wider so often before a test fails."""
EXITING = 0x4

Result = TypeVar("Result")


def until(happened: Callable[[], Result], seconds: float = PATIENCE) -> Result:
    """What it gives as soon as that is true, or when there is no more patience."""
    end = time.monotonic() + seconds
    while not (result := happened()) and time.monotonic() < end:
        time.sleep(0.02)
    return result


def takes(work: Callable[[int], object], enough: float) -> float:
    """Processor seconds of the quickest of some rounds; one that is quick enough is the last.

    The work is told its round, to ask for what no cache holds yet.
    """
    quickest = float("inf")
    for number in range(ROUNDS):
        begun = time.process_time()
        work(number)
        quickest = min(quickest, time.process_time() - begun)
        if quickest < enough:
            break
    return quickest


def has_ended(process: int) -> bool:
    """Whether it executes nothing any more: it is gone, or the kernel or its parent is about to.

    Some machines take minutes to reap a process whose parent was killed.
    """
    folder = Path(f"/proc/{process}")
    try:
        flags = int((folder / "stat").read_text().rpartition(")")[2].split()[6])
        pending = 0
        for line in (folder / "status").read_text().splitlines():
            if line.startswith(("SigPnd:", "ShdPnd:")):
                pending |= int(line.split()[1], 16)
    except (FileNotFoundError, ProcessLookupError):
        return True
    return bool(flags & EXITING or pending >> (signal.SIGKILL - 1) & 1)


def waits_for_ended_children(process: int) -> bool:
    """Whether it only waits for children that have ended: it will end, too, and do nothing else.

    What a killed process leaves in its namespace can take minutes to be removed; until then its
    parent waits.
    """
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state == "S" and bool(children) and all(has_ended(int(child)) for child in children)


def count_ticks(process: int) -> int | None:
    """Its processor time in ticks of the kernel, if it waits for a processor or has one."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[11]) + int(fields[12]) if fields[0] == "R" else None


def is_never_scheduled(process: int, seconds: float = 5.0) -> bool:
    """Whether it is ready to run, but the kernel gives it no processor.

    Some virtual machines leave what lost its parent like this for minutes, whatever program it is.
    """
    before = count_ticks(process)
    time.sleep(seconds)
    return before is not None and count_ticks(process) == before
