"""How much a workspace has grown, measured no more often than is cheap."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

SHARE = 20
"""A measurement may take one part in this of the time."""


class Disk:
    """The disk use of some folders against a limit, for as long as a workspace lives."""

    def __init__(self, folders: Sequence[str], before: int, limit: int) -> None:
        self._folders = folders
        self._limit = before + limit
        self._used = 0
        self._next = 0.0

    def due(self) -> bool:
        return time.monotonic() >= self._next

    def overgrown(self) -> bool:
        """Over the limit and still growing: commands that clean up may go on."""
        start = time.monotonic()
        used = sum(map(size, self._folders))
        end = time.monotonic()
        self._next = end + max(0.2, SHARE * (end - start))
        grew, self._used = used > self._used, used
        return grew and used > self._limit


def size(folder: str) -> int:
    """Bytes that a folder takes on its disk."""
    total = 0
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue  # it went away, or is closed to us
    return total
