"""The cache's folders: who uses them, and how they go away without anybody waiting.

Whatever a process makes lies in `runs/<owner>/`, locked for as long as it lives. What is done
with moves to `trash/`, where anybody may delete it.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import queue
import secrets
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

BATCH, GATHER = 256, 0.2
"""How many folders one `rm` deletes at most, and for how many seconds they are gathered."""


class Folders:
    """A process's own part of the cache."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self._numbers = itertools.count(1)
        self._trash = str(cache / "trash")
        self._doomed: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._deleter: threading.Thread | None = None
        for name in ("bases", "locks", "runs", "trash"):
            (cache / name).mkdir(parents=True, exist_ok=True)
            (cache / name).chmod(0o700)  # programs in there may have anything set
        owner = f"{os.getpid()}-{secrets.token_hex(4)}"
        making = cache / f"owner-{owner}"
        making.mkdir()
        # Locked before others can see it, or they would take it for a dead process's.
        self._lock = os.open(making / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._own = cache / "runs" / owner
        making.rename(self._own)
        self._sweep()

    def new(self) -> str:
        """The name of a folder of our own that nobody has used; it is not made yet."""
        return f"{self._own}/{next(self._numbers)}"

    def discard(self, folder: str) -> None:
        """Out of the way at once, deleted later."""
        doomed = f"{self._trash}/{secrets.token_hex(8)}"
        try:
            os.rename(folder, doomed)  # noqa: PTH104
        except FileNotFoundError:
            return
        self._doomed.put(doomed)
        if self._deleter is None:
            self._deleter = threading.Thread(target=self._delete, daemon=True, name="deletes")
            self._deleter.start()

    def close(self) -> None:
        """Discard all that is left. Deleting may outlast us."""
        self.discard(str(self._own))
        self._doomed.put(None)
        if self._deleter is not None:
            self._deleter.join(timeout=5)
        with suppress(OSError):
            os.close(self._lock)
        self._lock = -1

    def _sweep(self) -> None:
        """What killed processes left behind."""
        for left in (self.cache / "trash").iterdir():
            self.discard(str(left))
        for owner in (self.cache / "runs").iterdir():
            if owner != self._own and not _alive(owner):
                self.discard(str(owner))

    def _delete(self) -> None:
        batch: list[str | None] = []
        while None not in batch:
            batch = [self._doomed.get()]
            end = time.monotonic() + GATHER
            with suppress(queue.Empty):
                while None not in batch[-1:] and len(batch) < BATCH:
                    batch.append(self._doomed.get(timeout=max(end - time.monotonic(), 0)))
            # A program, so that it neither holds our interpreter nor dies with us.
            doomed = list(filter(None, batch))
            if _silently(["rm", "-rf", "--", *doomed]) != 0:
                _silently(["chmod", "-R", "u+rwx", "--", *doomed])
                _silently(["rm", "-rf", "--", *doomed])


def _silently(argv: list[str]) -> int:
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=False,
        ).returncode
    except OSError:
        return 0  # nothing more to try: the next start sweeps again


def _alive(owner: Path) -> bool:
    """Whether a process still holds its lock."""
    try:
        handle = os.open(owner / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
