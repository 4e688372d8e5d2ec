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

MAX_BATCH_FOLDERS, BATCH_SECONDS = 256, 0.2
"""How many folders one `rm` deletes at most, and for how many seconds they are gathered."""


class CacheFolders:
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
        temporary_folder = cache / f"owner-{owner}"
        temporary_folder.mkdir()
        # Locked before others can see it, or they would take it for a dead process's.
        self._lock = os.open(temporary_folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._own = cache / "runs" / owner
        temporary_folder.rename(self._own)
        self._discard_leftovers()

    def name_new_folder(self) -> str:
        """The name of a folder of our own that nobody has used; it is not made yet."""
        return f"{self._own}/{next(self._numbers)}"

    def discard_folder(self, folder: str) -> None:
        """Out of the way at once, deleted later."""
        trash_folder = f"{self._trash}/{secrets.token_hex(8)}"
        try:
            os.rename(folder, trash_folder)  # noqa: PTH104
        except FileNotFoundError:
            return
        self._doomed.put(trash_folder)
        if self._deleter is None:
            self._deleter = threading.Thread(
                target=self._delete_discarded_folders, daemon=True, name="deletes"
            )
            self._deleter.start()

    def discard_all(self) -> None:
        """Discard all that is left. Deleting may outlast us."""
        self.discard_folder(str(self._own))
        self._doomed.put(None)
        if self._deleter is not None:
            self._deleter.join(timeout=5)
        with suppress(OSError):
            os.close(self._lock)
        self._lock = -1

    def _discard_leftovers(self) -> None:
        """What killed processes left behind."""
        for leftover in (self.cache / "trash").iterdir():
            self.discard_folder(str(leftover))
        for owner in (self.cache / "runs").iterdir():
            if owner != self._own and not _is_alive(owner):
                self.discard_folder(str(owner))

    def _delete_discarded_folders(self) -> None:
        batch: list[str | None] = []
        while None not in batch:
            batch = [self._doomed.get()]
            end = time.monotonic() + BATCH_SECONDS
            with suppress(queue.Empty):
                while None not in batch[-1:] and len(batch) < MAX_BATCH_FOLDERS:
                    batch.append(self._doomed.get(timeout=max(end - time.monotonic(), 0)))
            # A program, so that it neither holds our interpreter nor dies with us.
            discarded = list(filter(None, batch))
            if _run_silently(["rm", "-rf", "--", *discarded]) != 0:
                _run_silently(["chmod", "-R", "u+rwx", "--", *discarded])
                _run_silently(["rm", "-rf", "--", *discarded])


def _run_silently(argv: list[str]) -> int:
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


def _is_alive(owner: Path) -> bool:
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
