"""How much a workspace has grown, measured no more often than is cheap."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence

from closeloop.records.record import Record

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
